"""One JupyterLab over a copy of the notebooks, and one chromium, for all browser tests."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tools import lab
from tools.lab import Notebook, Server
from tools.project import ROOT

SCREENSHOTS = Path(__file__).parent / "screenshots"


@pytest.fixture(scope="session")
def chromium() -> str:
    """The browser; without one CI fails, and a reader's machine skips and says what to install."""
    found = lab.find_chromium()
    if found is None:
        reason = (
            "no chromium or Chrome on PATH (Debian, Ubuntu: apt-get install chromium): no widget was tried"
        )
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


@pytest.fixture(scope="session")
def server(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("lab-root")
    if (ROOT / "notebooks").exists():
        lab.copy_tree(ROOT / "notebooks", root / "notebooks")
    with lab.serve(root, tmp_path_factory.mktemp("lab-private")) as server:
        yield server


@pytest.fixture
def open_notebook(server: Server) -> Iterator[Callable[[Path], Notebook]]:
    """Open a notebook of the copy, in a browser of its own that is closed with the test."""
    with lab.browse() as page:
        yield lambda path: Notebook(page, server, path)
    server.end_kernels()
