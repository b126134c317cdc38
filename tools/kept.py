"""What `make save` keeps of a notebook, and the rules of tools/hygiene.py require: one place says it for both."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from tools.statements import read_statements, stands_on

WIDGET = "application/vnd.jupyter.widget-view+json"
MEASURED = "# NBVAL_IGNORE_OUTPUT"

KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
LANGUAGE = {"file_extension": ".py", "mimetype": "text/x-python", "name": "python", "pygments_lexer": "ipython3"}
#: Everything else in a notebook's or a cell's metadata is some editor's memory of itself.
KEPT_IN_NOTEBOOK = {"kernelspec", "language_info", "idt", "accelerator"}
KEPT_IN_CELL = {"tags", "jupyter"}


def is_measured(cell: Any) -> bool:
    """Tell whether a cell says in its first line that its output differs in every run."""
    return bool(cell.cell_type == "code" and cell.source.startswith(MEASURED))


def what_was_run(notebook: Any) -> dict[str, Any]:
    """Return what a saved notebook remembers of the code that gave its outputs."""
    return {"sources": sources(notebook), "measured": measured_sources(notebook)}


def sources(notebook: Any) -> str:
    """Return a hash of all code of the notebook, cell by cell."""
    return _hash(cell.source for cell in notebook.cells if cell.cell_type == "code")


def measured_sources(notebook: Any) -> dict[str, str]:
    """Return for each measured cell, by its id, a hash of its code and of all code that this stands on."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    statements = read_statements([cell.source for cell in code])
    found = {}
    for place, cell in enumerate(code):
        if not is_measured(cell):
            continue
        needed: set[int] = set()
        for index, statement in enumerate(statements):
            if statement.cell == place:
                needed |= {index} | stands_on(statements, index, statement.now | statement.later)
        found[cell.id] = _hash(statements[index].text for index in sorted(needed))[:16]
    return found


def _hash(texts: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text.encode() + b"\0")
    return digest.hexdigest()
