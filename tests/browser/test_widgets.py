"""Every control of every interactive figure, moved in a real JupyterLab: the figure follows and no cell shows an error.

`make test` tries one notebook, `make prove` all. There three run whole, as a reader runs them; of the others the set-up
cell and what their figures need (needed.py), because strict nbval runs every cell of them anyway. A solution holds no
interactive figure; one that did would be tried like any notebook. What the browser showed of a figure with a fault, and
after `make prove` of all of them, lies in tests/browser/screenshots afterwards; git ignores it.
"""

from collections.abc import Callable, Set
from pathlib import Path

import nbformat
import pytest

from tests.browser.conftest import SCREENSHOTS
from tests.browser.needed import LIVES, SHOWS, shows, with_needed_cells_only
from tests.sizes import size
from tools.lab import Notebook, Server
from tools.project import ROOT, notebooks

#: The quickest: what others measure is measured by nbval.
WHOLE = size(suite=tuple[str, ...](), prove=("08_pipeline_clock", "11_backward_order", "13_cuda_streams"))
assert {path.stem for path in notebooks()} >= {*WHOLE}

#: What `make test` tries: a figure that lives in the page, and two explorers. The rest: test_explorers.
TRIED = ("00_start_here",)
assert {path.stem for path in notebooks()} >= {*TRIED}

#: Whether pictures are saved of what has no fault. `python -m tools.look 03` saves them, too.
PICTURES = size(suite=False, prove=True)


def shown(path: Path, names: Set[str] = SHOWS) -> list[str]:
    cells = nbformat.read(path, as_version=4).cells
    return [call for cell in cells if cell.cell_type == "code" for call in shows(cell.source, names)]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=[] if path.stem in TRIED else [pytest.mark.costly], id=path.name)
        for path in notebooks()
        if shown(path)
    ],
)
def test_every_control_changes_its_figure(path: Path, server: Server, open_notebook: Callable[..., Notebook]) -> None:
    name = "-".join(path.relative_to(ROOT / "notebooks").with_suffix("").parts)
    place = server.root / path.relative_to(ROOT)
    if path.stem not in WHOLE:
        nbformat.write(with_needed_cells_only(nbformat.read(path, as_version=4)), place)
    notebook = open_notebook(place, own=path.stem in WHOLE)
    notebook.run_all(seconds=900)  # another browser runs beside this one
    if PICTURES:
        notebook.screenshots(SCREENSHOTS, f"{name}-run")
    explorers = notebook.explorers()
    assert len(explorers) == len(shown(path)), "one for each call"
    alive = notebook.page.locator(".jp-OutputArea .idt-timeline[data-ready]")
    assert alive.count() == len(shown(path, LIVES)), "JupyterLab runs the script of a figure that lives in the page"
    complaints = [
        complaint
        for number, explorer in enumerate(explorers, start=1)
        for complaint in explorer.try_all(SCREENSHOTS, f"{name}-explore{number}", pictures=PICTURES)
    ]
    assert complaints == []
    assert notebook.errors() == []
