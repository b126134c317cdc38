"""The set-up cell: the same text in every notebook, with the repository's address filled in."""

from __future__ import annotations

from tools.project import Address

TEMPLATE = """\
# NBVAL_IGNORE_OUTPUT
import os
import sys
from pathlib import Path

ref = "{ref}"
repository = "{repository}"
root = next((folder for folder in Path.cwd().parents if (folder / "notebooks" / "support").exists()), None)
if root is None and "google.colab" in sys.modules:  # Colab has this file only: fetch the project, once
    root = Path("inside-distributed-training").resolve()
    if not root.exists():
        !git -c advice.detachedHead=false clone -q --depth 1 --branch {{ref}} {{repository}} {{root}}
    if (root / "notebooks").exists():
        os.chdir(root / "notebooks")
if root is not None:
    sys.path[:0] = [str(root), str(root / "notebooks")]
try:
    from support.setup import setup
except ModuleNotFoundError:
    fetch = f"Fetch it:\\ngit clone --depth 1 --branch {{ref}} {{repository}} inside-distributed-training"
    hint = f"(if git finds no {{ref}}: without --branch {{ref}})"
    raise ModuleNotFoundError(f"This notebook needs the project around it. {{fetch}}\\n{{hint}}") from None

setup("{version}")"""


def text(address: Address) -> str:
    """Return the cell's source."""
    return TEMPLATE.format(repository=address.repository, ref=address.ref, version=address.version)
