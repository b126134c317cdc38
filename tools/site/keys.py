"""What a run of a notebook depends on, as one hash: its code, the project's files that it imports, the libraries.

Sooner too much than too little: a file counts whole, so a new comment in it runs a notebook again, but no page shows a
stale picture.
"""

from __future__ import annotations

import ast
import hashlib
import platform
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from IPython.core.inputtransformer2 import TransformerManager

from tools.project import ROOT

MODULE = re.compile(r"(lib|support)(\.\w+)+")


def digest(*parts: object) -> str:
    """Return a hash of the texts of `parts`."""
    hashed = hashlib.sha256()
    for part in parts:
        hashed.update(part if isinstance(part, bytes) else str(part).encode())
        hashed.update(b"\0")
    return hashed.hexdigest()[:32]


def key(code: Iterable[str], others: Iterable[Path] = (), root: Path = ROOT) -> str:
    """Return a hash of a notebook's cells and of all that they import; `others`: files that count as if imported."""
    import matplotlib
    import numpy
    import torch

    cells = [TransformerManager().transform_cell(text) for text in code]
    found = imported_files("\n".join(cells), others, root)
    notebooks = root / "notebooks"
    # What cells read or start by its name: recordings, scripts for torchrun, scripts and sheets of a room.
    found |= {*notebooks.glob("*.py"), *(notebooks / "recorded").glob("*")}
    found |= {path for room in {path.parent for path in found} for path in room.glob("*.[jc]s*")}
    contents = (part for path in sorted(found) for part in (path.relative_to(root), path.read_bytes()))
    versions = (platform.python_version(), torch.__version__, numpy.__version__, matplotlib.__version__)
    return digest(*cells, *contents, *versions)


def imported_files(text: str, others: Iterable[Path] = (), root: Path = ROOT) -> set[Path]:
    """Return the project's files that a text of Python imports, and those that they import, to the last one."""
    found: set[Path] = set()
    waiting = {*others, *_imports(text, root)}
    while waiting:
        path = waiting.pop()
        found.add(path)
        waiting |= {*_imports(path.read_text(encoding="utf-8"), root)} - found
    return found


@cache
def _imports(text: str, root: Path = ROOT) -> frozenset[Path]:
    """Return the project's files that a text names in its imports, wherever they stand, their packages included."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Constant) and MODULE.fullmatch(str(node.value)):
            names.add(str(node.value))  # as in `python -m lib.data.server`
    return frozenset(path for name in names for path in _files(name, root))


def _files(name: str, root: Path) -> Iterator[Path]:
    """Yield the files of a dotted name that lie in the project: a.b.c is a/__init__.py, a/b/__init__.py, a/b/c.py."""
    parts = name.split(".")
    for folder in (root, root / "notebooks"):
        for count in range(1, 1 + len(parts)):
            start = folder.joinpath(*parts[:count])
            places = (start.with_suffix(".py"), start / "__init__.py")
            yield from (place for place in places if place.is_file())
