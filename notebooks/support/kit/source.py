"""The text of what a cell or a module defines."""

from __future__ import annotations

import ast
import linecache
from typing import Any


def source_of(thing: Any) -> str:
    """Return the text of a function or class, of a cell or a module. Raises ValueError if there is none to be found."""
    parts = (getattr(part, "__func__", part) for part in (thing, *vars(thing).values()))
    codes = (part.__code__ for part in parts if hasattr(part, "__code__"))
    text = "".join(linecache.getlines(next((code.co_filename for code in codes), "")))
    for node in ast.parse(text).body:
        if getattr(node, "name", "") == thing.__name__:
            return ast.get_source_segment(text, node) or ""
    raise ValueError(f"no text of {thing.__name__}: define it in a cell of its own")
