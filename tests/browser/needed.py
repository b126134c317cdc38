"""What of a notebook its interactive figures need: the statements that show them, and by names what those read.

Reading from the last statement to the first, one is needed when it shows an interactive figure, or gives or changes a
name that a needed statement below it reads. The set-up cell always stays whole.
"""

import ast
import copy
from collections.abc import Callable, Set
from functools import cache, partial
from typing import Any

from tools.statements import gives_and_reads, statements

#: The calls that show an interactive figure: one that asks the kernel for its frames, one that lives in the page.
SHOWS = {"explore"}
LIVES = {"timeline_html"}


def shows(source: str, names: Set[str] = SHOWS) -> list[str]:
    """Return the calls that show an interactive figure, in order. names: of the calls; for all, SHOWS | LIVES."""
    if not any(name in source for name in names):
        return []  # most show none, and need not be read
    calls = [
        node.func for text in statements(source) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)
    ]
    return [call.id for call in calls if isinstance(call, ast.Name) and call.id in names]


@cache
def changes(statement: str) -> frozenset[str]:
    """Return names of objects that a statement may change: `x[0] = …`, `x.y = …`, `x += …`, `x.f(…)` for nothing."""
    names: set[str] = set()
    for part in ast.walk(ast.parse(statement)):
        if isinstance(part, ast.Call) and ast.unparse(part.func).startswith("write_"):
            names |= {name.id for name in part.args if isinstance(name, ast.Name)}  # makes a file that is read later
        target: Any = None
        if isinstance(part, ast.Subscript | ast.Attribute) and not isinstance(part.ctx, ast.Load):
            target = part
        elif isinstance(part, ast.AugAssign):
            target = part.target
        elif isinstance(part, ast.Expr) and isinstance(part.value, ast.Call):
            target = part.value.func if isinstance(part.value.func, ast.Attribute) else None
        while isinstance(target, ast.Subscript | ast.Attribute):
            target = target.value
        if isinstance(target, ast.Name):
            names.add(target.id)
    return frozenset(names)


def needed(cells: list[str], target: Callable[[str], object] = shows) -> list[str]:
    """Return the code cells with what the interactive figures need and nothing else; an empty one needs nothing.

    target: whether a statement is needed for itself.
    """
    wanted: set[str] = set()
    kept: list[str] = []
    for cell in reversed(cells):
        kept.append("")
        for statement in reversed(statements(cell)):
            gives, reads = gives_and_reads(statement)
            changed = changes(statement)
            if target(statement) or (gives | changed) & wanted:
                kept[-1] = f"{statement}\n{kept[-1]}".strip()
                wanted = (wanted - (gives - changed)) | reads
    return kept[::-1]


def with_needed_cells_only(notebook: Any) -> Any:
    """Return a copy of a notebook that holds its set-up cell and what the interactive figures need, not yet run."""
    small = copy.deepcopy(notebook)
    code = [cell for cell in small.cells if cell.cell_type == "code"]
    figures = partial(shows, names=SHOWS | LIVES)
    for cell, source in zip(code, needed([cell.source for cell in code], figures), strict=True):
        cell.outputs = []
        cell.execution_count = None
        setup = "setup" in cell.metadata.get("tags", [])
        cell.source = cell.source if setup else source
    small.cells = [cell for cell in code if cell.source]
    return small
