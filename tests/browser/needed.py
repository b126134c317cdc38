"""What of a notebook its interactive figures need: the set-up cell, the statements that show them, what those read."""

import ast
import copy
from collections.abc import Set
from functools import partial
from typing import Any

from tools.needed import needed_sources
from tools.statements import read_statements

#: The calls that show an interactive figure: one that asks the kernel for its frames, one that lives in the page.
SHOWS = {"explore"}
LIVES = {"timeline_html"}


def shows(source: str, names: Set[str] = SHOWS) -> list[str]:
    """Return the calls that show an interactive figure, in order. names: of the calls; for all, SHOWS | LIVES."""
    if not any(name in source for name in names):
        return []  # most show none, and need not be read
    nodes = [node for statement in read_statements([source]) for node in ast.walk(ast.parse(statement.text))]
    calls = [node.func for node in nodes if isinstance(node, ast.Call)]
    return [call.id for call in calls if isinstance(call, ast.Name) and call.id in names]


def with_needed_cells_only(notebook: Any) -> Any:
    """Return a copy of a notebook that holds its set-up cell and what the interactive figures need, not yet run."""
    small = copy.deepcopy(notebook)
    code = [cell for cell in small.cells if cell.cell_type == "code"]
    setup = [place for place, cell in enumerate(code) if "setup" in cell.metadata.get("tags", [])]
    figures = partial(shows, names=SHOWS | LIVES)
    needed = needed_sources([cell.source for cell in code], figures, always=setup)
    for place, cell in enumerate(code):
        cell.outputs = []
        cell.execution_count = None
        cell.source = cell.source if place in setup else needed.get(place, "")
    small.cells = [cell for cell in code if cell.source]
    return small
