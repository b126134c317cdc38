"""Solutions share a kernel that forgets, a notebook has its own, and a kernel that does not answer is replaced."""

from queue import Empty

import pytest
from nbval import plugin

from tools.one_kernel import FORGET, shared


class Kernel:
    def __init__(self, name: str, cwd: str) -> None:
        self.alive = True
        self.stuck = False
        self.ran = []

    def is_alive(self) -> bool:
        return self.alive

    def stop(self) -> None:
        self.alive = False

    def execute_cell_input(self, source: str, allow_stdin: bool) -> str:
        self.ran.append(source)
        return source

    def await_reply(self, message: str, timeout: float) -> None:
        if self.stuck:
            raise Empty

    await_idle = await_reply


@pytest.fixture
def one(monkeypatch):
    monkeypatch.setattr(plugin, "RunningKernel", Kernel)
    with shared() as one:
        yield one
    assert plugin.RunningKernel is Kernel


def run(one, folder):
    kernel = plugin.RunningKernel("python3", cwd=f"/x/{folder}")
    one.end(kernel)
    return kernel


def test_solutions_share_a_kernel_that_forgets_what_came_before_and_ends_with_the_run(one):
    first = run(one, "solutions")
    notebook = run(one, "notebooks")
    second = run(one, "solutions")
    assert first is second
    assert first is not notebook
    assert first.ran == [FORGET]
    assert notebook.ran == []
    assert first.alive
    assert not notebook.alive
    one.end_shared()
    assert not first.alive


@pytest.mark.parametrize("ends", ["alive", "stuck"])
def test_after_a_kernel_that_died_or_does_not_answer_comes_another(one, ends):
    first = run(one, "solutions")
    setattr(first, ends, ends == "stuck")
    second = run(one, "solutions")
    assert second is not first
    assert not first.alive
    assert second.alive
    assert second.ran == []
