"""Drive a real JupyterLab in Debian's chromium: open a notebook, run it, move its controls.

The browser test and `python -m tools.look` share this file. Nothing here touches the user's own Jupyter settings: the
server gets folders of its own, listens on 127.0.0.1 only, wants a token, and asks nobody for news or updates.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from tools.lab_control import LiveControl
from tools.project import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

SCRIPT = Path(__file__).with_name("lab.js")

#: What chromium needs to run as root in a container, and to talk to nobody but the server.
CHROMIUM_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
CHROMIUM_FLAGS += ["--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"]

#: JupyterLab's settings: every cell in the page (not only the visible ones), and no questions asked.
SETTINGS: dict[str, dict[str, Any]] = {
    "@jupyterlab/notebook-extension/tracker": {"windowingMode": "none"},
    "@jupyterlab/apputils-extension/notification": {
        "fetchNews": "false",
        "checkForUpdates": False,
        "doNotDisturbMode": True,
    },
    "@jupyterlab/docmanager-extension/plugin": {"autosave": False},
}

#: What empties a kernel.
EMPTY = "import ipywidgets; ipywidgets.Widget.close_all(); get_ipython().run_line_magic('reset', '-f')"

INSTALL = "apt-get install chromium (Debian, Ubuntu), or .venv/bin/playwright install chromium"


def find_chromium() -> str | None:
    """Return the path of a chromium or Chrome on PATH, else of the one that playwright downloaded, or None."""
    for name in ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"):
        if path := shutil.which(name):
            return path
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = playwright.chromium.executable_path
    return path if Path(path).exists() else None


def copy_notebooks(notebook: Path, work: Path) -> Path:
    """Copy the folder tree that `notebook` lives in below `work`; return the copy of the notebook.

    A notebook in `solutions/` is copied with the whole of `notebooks/`, so that links and recorded data stay reachable.
    """
    notebook = notebook.resolve()
    tree = next((folder for folder in notebook.parents if folder.name == "notebooks"), notebook.parent)
    copy_tree(tree, work / tree.name)
    return work / tree.name / notebook.relative_to(tree)


def copy_tree(source: Path, target: Path) -> None:
    """Copy a folder without what editors leave in it."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns(".ipynb_checkpoints", "__pycache__"))


@dataclass
class Server:
    """A running JupyterLab: its address, its token, the folder that it shows and its log."""

    port: int
    token: str
    root: Path
    log: Path
    process: int

    @property
    def address(self) -> str:
        """Where all its pages begin."""
        return f"http://127.0.0.1:{self.port}/"

    def path(self, notebook: Path) -> str:
        """Return a notebook's path as JupyterLab knows it."""
        return notebook.resolve().relative_to(self.root.resolve()).as_posix()

    def url(self, notebook: Path) -> str:
        """Return the address that opens `notebook` alone (no side bar)."""
        return f"{self.address}doc/tree/{self.path(notebook)}?token={self.token}&reset"

    def ask(self, method: str, path: str) -> bytes:
        """Send a request to the server's API; return the answer. Raises OSError where there is none."""
        request = urllib.request.Request(f"{self.address}api/{path}", method=method)
        request.add_header("Authorization", f"token {self.token}")
        with urllib.request.urlopen(request, timeout=20) as answer:
            return bytes(answer.read())

    def end_kernel(self, notebook: Path) -> None:
        """End the kernel of a notebook, so that the next one has the machine for itself."""
        for session in json.loads(self.ask("GET", "sessions")):
            if session["path"] == self.path(notebook):
                self.ask("DELETE", f"sessions/{session['id']}")

    def stop(self, seconds: float = 30) -> None:
        """End the server, which ends its kernels: they live in sessions of their own."""
        for sign in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.kill(self.process, sign)
            deadline = time.monotonic() + seconds
            while self.runs():
                if time.monotonic() > deadline:
                    break
                time.sleep(0.1)

    def runs(self) -> bool:
        """Tell whether the server's process, which another one than this may have started, is at work."""
        try:
            return bool(psutil.Process(self.process).status() != psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return False

    def answers(self) -> bool:
        """Tell whether the server is up."""
        try:
            return bool(self.ask("GET", "status"))
        except OSError:
            return False


def start_lab(root: Path, private: Path, start_seconds: float = 90) -> Server:
    """Start a JupyterLab that shows `root` and keeps its own files in `private`.

    Raises RuntimeError with the tail of the server's log if it does not answer within `start_seconds`.
    """
    settings = private / "settings"
    for plugin, values in SETTINGS.items():
        file = settings / f"{plugin}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(values))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    token = secrets.token_hex(16)
    log = private / "server.log"
    environment = {
        **os.environ,
        "JUPYTER_CONFIG_DIR": str(private / "config"),
        "JUPYTER_DATA_DIR": str(private / "data"),
        "JUPYTER_RUNTIME_DIR": str(private / "runtime"),
        "JUPYTERLAB_SETTINGS_DIR": str(settings),
        "JUPYTERLAB_WORKSPACES_DIR": str(private / "workspaces"),
        "IPYTHONDIR": str(private / "ipython"),
        "JUPYTER_TOKEN": token,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "TQDM_DISABLE": "1",
    }
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1"]
    command += ["--LanguageServerManager.autodetect=False"]  # it asks npm, which asks for a second of a core
    command += [f"--port={port}", "--ServerApp.port_retries=0", f"--ServerApp.root_dir={root}"]
    command += ["--LabApp.expose_app_in_browser=True", "--LabApp.extension_manager=readonly"]
    with log.open("w") as said:
        process = subprocess.Popen(command, env=environment, stdout=said, stderr=said, start_new_session=True)
    server = Server(port, token, root, log, process.pid)
    deadline = time.monotonic() + start_seconds
    while not server.answers():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            process.wait()
            raise RuntimeError(f"JupyterLab did not start:\n{log.read_text()[-3000:]}")
        time.sleep(0.2)
    return server


@contextmanager
def serve(root: Path, private: Path) -> Iterator[Server]:
    """Start a JupyterLab (see `start`); stop it and its kernels at the end."""
    server = start_lab(root, private)
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def browser() -> Iterator[Browser]:
    """Start chromium; raises FileNotFoundError with the way out where there is none."""
    from playwright.sync_api import sync_playwright

    chromium = find_chromium()
    if chromium is None:
        raise FileNotFoundError(f"no chromium or Chrome on PATH: {INSTALL}")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM_FLAGS)
        try:
            yield browser
        finally:
            browser.close()


class Notebook:
    """One notebook, open in one browser page: run it, look at it, move its controls."""

    def __init__(self, page: Page, server: Server, path: Path, kernel: str = "") -> None:
        """Open `path` in `page` and wait until JupyterLab and the kernel are ready.

        kernel: the id of one that `page` has shown before, to go on with; without it a new one starts. A page that
        shows this server's JupyterLab already, of a notebook that was closed, is not loaded anew: that costs as much
        as running what the figures of a notebook need.
        """
        self.page = page
        self.console: list[str] = []
        page.set_default_timeout(60_000)
        page.on("console", self._keep_errors)
        page.on("pageerror", self._keep_page_error)
        if page.url.startswith(server.address):
            page.evaluate("([path, kernel]) => idt.open(path, kernel)", [server.path(path), kernel])
        else:
            page.goto(server.url(path))
        page.wait_for_function(
            "path => window.jupyterapp?.shell.currentWidget?.context?.path === path", arg=server.path(path)
        )
        page.evaluate(SCRIPT.read_text(encoding="utf-8"))
        ready = page.evaluate("idt.ready(60)")
        if not ready:  # for example: a dialog asks for the kernel
            raise AssertionError(f"no kernel after 60 s; the page says: {page.inner_text('body')[-500:]}")

    def empty_kernel(self) -> str:
        """Take all names and widgets out of the kernel; return its id, "" where that took more than 20 s."""
        return str(self.page.evaluate("([code, seconds]) => idt.run(code, seconds)", [EMPTY, 20]))

    def close(self) -> None:
        """Take the notebook off the page, unsaved; its kernel goes on, the page may open another one."""
        self.page.evaluate("idt.close()")
        self.page.remove_listener("console", self._keep_errors)
        self.page.remove_listener("pageerror", self._keep_page_error)

    def _keep_page_error(self, error: Any) -> None:
        self.console.append(str(error))

    def _keep_errors(self, message: Any) -> None:
        if message.type == "error":
            self.console.append(message.text)

    def run_all(self, seconds: float = 180) -> None:
        """Clear all outputs, run all cells and wait until every code prompt reads `[n]:`.

        JupyterLab stops at the first cell that raises; raises AssertionError with its text, or when time is up.
        """
        command = "id => window.jupyterapp.commands.execute(id)"
        self.page.evaluate(command, "notebook:clear-all-cell-outputs")
        # Not awaited in the page: a kernel that dies would leave that promise open for ever.
        self.page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells'); }")
        deadline = time.monotonic() + seconds
        while not self.finished():
            if self.errors():
                raise AssertionError("a cell failed: " + "\n".join(self.errors()))
            if time.monotonic() > deadline:
                raise AssertionError(f"not finished within {seconds} s; prompts: {self.prompts()}")
            self.page.wait_for_timeout(100)
        self.page.wait_for_timeout(500)  # Widgets are drawn after the prompt of their cell.
        if self.errors():  # The last cell may have failed between the two looks above.
            raise AssertionError("a cell failed: " + "\n".join(self.errors()))

    def prompts(self) -> list[str]:
        """Return the prompt of every code cell that has something in it: `[3]:`, `[*]:` or `[ ]:`."""
        return list(self.page.evaluate("idt.prompts()"))

    def finished(self) -> bool:
        """Tell whether every code cell has run."""
        prompts = self.prompts()
        return bool(prompts) and all(re.fullmatch(r"\[\d+\]:", prompt) for prompt in prompts)

    def errors(self) -> list[str]:
        """Return the text of every error on the page: tracebacks, failed figures, widgets that could not be shown.

        A cell tagged `raises-exception` is meant to fail; its traceback is not counted.
        """
        return list(self.page.evaluate("idt.errors()"))

    def warnings(self) -> list[str]:
        """Return what looks wrong but is no error: stderr, a figure wider than its cell, a widget shown as text."""
        return list(self.page.evaluate("idt.warnings()"))

    def screenshots(self, folder: Path, prefix: str) -> list[Path]:
        """Save the whole notebook as pictures, one window's height each; return the files."""
        box = self.page.locator(".jp-WindowedPanel-outer").first
        total, window = self.page.evaluate("idt.heights()")
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob(f"{prefix}-[0-9][0-9].png"):
            old.unlink()
        files = []
        for number, top in enumerate(range(0, int(total), window)):
            box.evaluate("(box, top) => { box.scrollTop = top; }", top)
            self.page.wait_for_timeout(150)
            files.append(folder / f"{prefix}-{number:02d}.png")
            box.screenshot(path=files[-1])
        return files

    def explorers(self) -> list[LiveExplorer]:
        """Return every interactive figure of the notebook, from top to bottom."""
        return [LiveExplorer(box) for box in self.page.locator(".idt-explore").all()]


class LiveExplorer:
    """One interactive figure (`lib.show.explore`): its frame and its controls."""

    def __init__(self, box: Locator) -> None:
        """Wrap the element of class `idt-explore`."""
        self.box = box

    def source(self) -> str:
        """Return a short sum of the frame's picture, which has 500 kB; "" where there is none."""
        return self._attribute("src")

    def alt(self) -> str:
        """Return the frame's alt text; "" where there is none."""
        return self._attribute("alt")

    def _attribute(self, name: str) -> str:
        # Asked of the page in one step: a locator would wait for a frame that a failed figure has taken away.
        ask = """(box, name) => {
            const value = box.querySelector('img.idt-frame')?.getAttribute(name) ?? '';
            let sum = 0;
            for (const letter of value) sum = (31 * sum + letter.charCodeAt(0)) | 0;
            return name === 'alt' || !value ? value : `${value.length} ${sum}`; }"""
        return str(self.box.evaluate(ask, name))

    def controls(self) -> list[LiveControl]:
        """Return every control; raises AssertionError where the figure has none, or one that is not known here."""
        selectors = {
            "slider": ".noUi-handle",
            "dropdown": "select",
            "checkbox": "input[type=checkbox]",
            "buttons": ".widget-toggle-buttons",
        }
        found = [
            LiveControl(kind, element, self._label(element))
            for kind, selector in selectors.items()
            for element in self.box.locator(selector).all()
        ]
        others = "input:not([type=checkbox]), textarea, .widget-button, .jupyter-button:not(.widget-toggle-button)"
        assert self.box.locator(others).count() == 0, "a control that tools/lab.py cannot move"
        assert found, "an interactive figure without controls"
        return found

    @staticmethod
    def _label(element: Locator) -> str:
        return str(element.evaluate("element => idt.label(element)"))

    def wait_for_change(self, before: str, seconds: float = 30) -> None:
        """Wait until the frame is another picture than `before`; raises AssertionError when it stays the same."""
        self._wait_until(lambda source: source != before, "the figure did not change", seconds)

    def wait_for_return(self, first: str, seconds: float = 30) -> None:
        """Wait until the frame is the picture `first` again; raises AssertionError when it never is."""
        self._wait_until(lambda source: source == first, "the figure did not come back to its first frame", seconds)

    def _wait_until(self, holds: Callable[[str], bool], complaint: str, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        # One look a turn: a figure that fails between two looks would pass for a picture that changed.
        while not ((source := self.source()) and holds(source)):
            errors = self.box.locator(".idt-error").all_inner_texts()
            assert not errors, f"the figure failed: {errors}"
            assert time.monotonic() < deadline, f"{complaint} within {seconds:g} s"
            self.box.page.wait_for_timeout(50)

    def try_all(self, folder: Path, prefix: str, seconds: float = 90, *, pictures: bool = True) -> list[str]:
        """Move each control one step and back, save a picture of the first; return the complaints.

        The figure must change with every control, keep an alt text, and come back when the control does; the control's
        words and a slider's track must be seen.
        pictures: without them, only one is saved for each complaint.
        """
        folder.mkdir(parents=True, exist_ok=True)
        complaints = [] if self.alt() else [f"{prefix} has no alt text"]
        for number, control in enumerate(self.controls(), start=1):
            name = f"{prefix}, {control.kind} {control.label!r}"
            first = self.source()
            value = control.value()
            readout = control.readout()
            try:
                control.move()
                self.wait_for_change(first, seconds)
                if readout is not None and control.readout() == readout:
                    complaints.append(f"{name}: prints {readout!r} before and after")
                complaints += [f"{name}: {fault}" for fault in [control.readout_is_wrong()] if fault]
                complaints += [f"{name}: {fault}" for fault in control.unseen()]
                complaints += [] if self.alt() else [f"{name}: no alt text after the move"]
                if pictures and number == 1:
                    self.photograph(folder / f"{prefix}-{control.kind}-{file_part(control.label)}.png")
                control.restore(value)
                self.wait_for_return(first, seconds)
            except AssertionError as error:
                self.photograph(folder / f"{prefix}-{number}-{control.kind}-{file_part(control.label)}-FAULT.png")
                complaints.append(f"{name}: {error}")
        return complaints

    def photograph(self, file: Path) -> None:
        """Save a picture of the controls and the figure."""
        self.box.scroll_into_view_if_needed()
        self.box.screenshot(path=file)


def file_part(text: str) -> str:
    """Return a label as part of a file's name."""
    return re.sub(r"\W+", "_", text).strip("_")
