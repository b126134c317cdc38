"""What `make save` keeps of a notebook, and the rules of tools/hygiene.py require: one place says it for both."""

from __future__ import annotations

import hashlib
from typing import Any

WIDGET = "application/vnd.jupyter.widget-view+json"
MEASURED = "# NBVAL_IGNORE_OUTPUT"

KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
LANGUAGE = {"file_extension": ".py", "mimetype": "text/x-python", "name": "python", "pygments_lexer": "ipython3"}
#: Everything else in a notebook's or a cell's metadata is some editor's memory of itself.
KEPT_IN_NOTEBOOK = {"kernelspec", "language_info", "idt", "accelerator"}
KEPT_IN_CELL = {"tags", "jupyter"}


def sources(notebook: Any) -> str:
    """Return a hash of all code of the notebook, cell by cell."""
    digest = hashlib.sha256()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            digest.update(cell.source.encode() + b"\0")
    return digest.hexdigest()
