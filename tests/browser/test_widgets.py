"""Every control of every interactive figure, moved in a real JupyterLab: the figure follows and no cell shows an error.

What the browser showed lies in tests/browser/screenshots afterwards, to be looked at; git ignores it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest

from tests.browser.conftest import SCREENSHOTS
from tools.lab import Notebook, Server
from tools.project import ROOT, notebooks


def uses_widgets(path: Path) -> bool:
    cells = nbformat.read(path, as_version=4).cells
    return any("explore(" in cell.source for cell in cells if cell.cell_type == "code")


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "path",
    [path for path in notebooks() if uses_widgets(path)],
    ids=lambda path: str(path.relative_to(ROOT / "notebooks")),
)
def test_every_control_changes_its_figure(
    path: Path, server: Server, open_notebook: Callable[[Path], Notebook]
) -> None:
    name = "-".join(path.relative_to(ROOT / "notebooks").with_suffix("").parts)
    notebook = open_notebook(server.root / path.relative_to(ROOT))
    notebook.run_all(seconds=300)  # another browser runs beside this one
    notebook.screenshots(SCREENSHOTS, f"{name}-run")
    explorers = notebook.explorers()
    assert explorers, "the notebook calls explore(…) and shows no interactive figure"
    complaints = [
        complaint
        for number, explorer in enumerate(explorers, start=1)
        for complaint in explorer.try_all(SCREENSHOTS, f"{name}-explore{number}")
    ]
    assert complaints == []
    assert notebook.errors() == []
