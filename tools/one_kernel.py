"""Let the solutions that a process of pytest compares share a kernel, each in an empty namespace (pytest's `-p`).

A solution is a few quick cells; starting a kernel that imports torch, matplotlib and ipywidgets takes longer than they
do. No solution measures anything, and its notebook, like a solution that is compared by itself, has a kernel of its
own. What stays from one solution to the next is what is imported. A solution that starts a device has a kernel of its
own, too: torch keeps the device, and would take it for the accelerator of all that come behind.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty
from typing import Any

import pytest
from nbval import plugin

from tools.project import starts_a_device

FORGET = "%reset -f"
SECONDS = 60


class OneKernel:
    """Starts and ends the kernels of nbval: of all that work in a folder named `solutions` there is one."""

    def __init__(self, start: Any) -> None:
        """Let `start`, nbval's RunningKernel, make each kernel."""
        self.start = start
        self.shared: Any = None  # the kernel, once there is one
        self.notebook: Path | None = None  # whose kernel is asked for

    def __call__(self, kernel_name: str, cwd: str, **more: Any) -> Any:
        """Return a kernel as `start` makes it, or the one that is shared, without a name in it."""
        if Path(cwd).name != "solutions" or (self.notebook and starts_a_device(self.notebook)):
            return self.start(kernel_name, cwd=cwd, **more)
        if self.shared is not None and self.shared.is_alive() and not self._forgets():
            self.shared.stop()  # its last cell can't be interrupted
        if self.shared is None or not self.shared.is_alive():
            self.shared = self.start(kernel_name, cwd=cwd, **more)
        return self.shared

    def _forgets(self) -> bool:
        message = self.shared.execute_cell_input(FORGET, allow_stdin=False)
        try:
            self.shared.await_reply(message, timeout=SECONDS)
            self.shared.await_idle(message, SECONDS)
        except Empty:
            return False
        return True

    def end(self, kernel: Any) -> None:
        """End a kernel after the last cell of its notebook, unless it is the one that is shared."""
        if kernel is not None and kernel is not self.shared and kernel.is_alive():
            kernel.stop()

    def end_shared(self) -> None:
        """End the kernel that was shared."""
        kernel = self.shared
        self.shared = None
        self.end(kernel)


@contextmanager
def shared() -> Iterator[OneKernel]:
    """Let nbval use one kernel for all solutions, until the block ends."""
    one = OneKernel(plugin.RunningKernel)
    set_up = plugin.IPyNbFile.setup

    def set_up_of(file: Any) -> None:
        one.notebook = file.path
        set_up(file)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plugin, "RunningKernel", one)
        patch.setattr(plugin.IPyNbFile, "setup", set_up_of)
        patch.setattr(plugin.IPyNbFile, "teardown", lambda file: one.end(file.kernel))
        try:
            yield one
        finally:
            one.end_shared()


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop() -> Iterator[None]:
    """Share while tests run: in each process of xdist its own."""
    with shared():
        return (yield)
