"""One JupyterLab over a copy of the notebooks for all processes of a test run, and one chromium for each process."""

from __future__ import annotations

import fcntl
import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import nbformat
import pytest

from tools import lab
from tools.kept import KERNELSPEC
from tools.lab import Notebook, Server
from tools.project import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SCREENSHOTS = Path(__file__).parent / "screenshots"


@pytest.fixture(scope="session")
def chromium() -> str:
    """The browser; without one CI fails, and a reader's machine skips and says what to install."""
    found = lab.find_chromium()
    if found is None:
        reason = f"no browser, no widget was tried: {lab.INSTALL}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return found


def write(path: Path, *sources: str) -> Path:
    cells = [nbformat.v4.new_code_cell(source.strip()) for source in sources]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": KERNELSPEC}), path)
    return path


@contextmanager
def locked(folder: Path) -> Iterator[Path]:
    """Keep other processes out; yield the file that tells of the server and of who uses it."""
    with (folder / "lab.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder / "lab.pickle"


@pytest.fixture(scope="session")
def server(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The JupyterLab of this test run: the first process that needs it starts it, the last one that used it ends it."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # the one that all processes of this run share
    with locked(folder) as file:
        if not file.exists():
            root = folder / "lab-root"
            private = folder / "lab-private"
            private.mkdir(exist_ok=True)
            lab.copy_tree(ROOT / "notebooks", root / "notebooks")
            file.write_bytes(pickle.dumps((0, lab.start_lab(root, private))))
        users, server = pickle.loads(file.read_bytes())
        file.write_bytes(pickle.dumps((users + 1, server)))
    yield server
    with locked(folder) as file:
        users, server = pickle.loads(file.read_bytes())
        file.write_bytes(pickle.dumps((users - 1, server)))
        if users == 1:
            server.stop()
            file.unlink()


@pytest.fixture(scope="session")
def browser(chromium: str) -> Iterator[Browser]:
    with lab.browser() as browser:
        yield browser


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    page = browser.new_page(viewport={"width": 1280, "height": 1600})
    page.set_default_timeout(60_000)
    yield page
    page.close()


@pytest.fixture(scope="session")
def lab_pages(browser: Browser) -> list[Page]:
    return []


@pytest.fixture(scope="session")
def kernels() -> dict[Path, str]:
    """The kernel that the notebooks of a folder share in a process, one after another, each in an empty namespace."""
    return {}


@pytest.fixture
def open_notebook(server: Server, browser: Browser, lab_pages: list[Page], kernels: dict[Path, str]):
    """Open a notebook of the copy, alone in the page; it is closed with the test, and a kernel of its `own` ends."""
    opened: list[tuple[Path, Notebook, bool]] = []

    def open_one(path: Path, own: bool = False) -> Notebook:
        page = lab_pages.pop() if lab_pages else browser.new_page(viewport={"width": 1280, "height": 1600})
        try:  # fails it to open, the next one gets another page and another kernel
            notebook = Notebook(page, server, path, "" if own else kernels.pop(path.parent, ""))
        except Exception:
            server.end_kernel(path)
            raise
        opened.append((path, notebook, own))
        return notebook

    yield open_one
    for path, notebook, own in opened:
        kernel = "" if own else notebook.empty_kernel()
        notebook.close()
        lab_pages.append(notebook.page)
        if kernel:
            kernels[path.parent] = kernel
        else:
            server.end_kernel(path)
