"""The text of what a cell or a module defines: a new process can't import the cells of a notebook."""

from __future__ import annotations

import ast
import inspect
import linecache
import os
from functools import lru_cache
from pathlib import Path
from typing import Any


def source_of(thing: Any) -> str:
    """Return the text of a function or class, of a cell or a module; what wraps a function belongs to it.

    Raises ValueError if there is none to be found.
    """
    whole = inspect.unwrap(thing) if inspect.isfunction(thing) else thing
    # A class has no code object of its own, but its methods do (a classmethod's is that of the function within).
    parts = (getattr(part, "__func__", part) for part in (whole, *vars(whole).values()))
    files = (part.__code__.co_filename for part in parts if hasattr(part, "__code__"))
    lines = linecache.getlines(next(files, ""))
    text = _definition("".join(lines), thing.__name__, whole is not thing)
    if text is not None:
        return text
    raise ValueError(f"no text of {thing.__name__}: define it in a cell of its own")


@lru_cache(maxsize=64)  # a solution is asked for as often as it has famous mistakes
def _definition(text: str, name: str, wrapped: bool) -> str | None:
    """Return what of a text defines a name, if anything does; wrapped: with its decorators, which have to be there."""
    for node in ast.parse(text).body:
        if getattr(node, "name", "") == name:
            around = getattr(node, "decorator_list", []) if wrapped else []
            if wrapped and not around:
                return None  # wrapped by a call, which is written elsewhere
            decorators = [f"@{ast.get_source_segment(text, part)}\n" for part in around]
            return "".join(decorators) + (ast.get_source_segment(text, node) or "")
    return None


def module_text(*things: Any) -> str:
    """Return the text of a module of functions and classes, which first imports io, os, zlib and torch.

    Their annotations stay unread there: they may name what only the notebook has imported.
    """
    head = "from __future__ import annotations"
    imports = "import io\nimport os\nimport zlib\n\nimport torch\nfrom torch import nn"
    return "\n\n\n".join([f"{head}\n\n{imports}", *map(source_of, things)]) + "\n"


def write_module(path: str | os.PathLike[str], *things: Any) -> None:
    """Write functions and classes into a module that a script can import."""
    Path(path).write_text(module_text(*things), encoding="utf-8")
