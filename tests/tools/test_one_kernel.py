"""Solutions share a kernel that forgets; a notebook has its own, and so has what starts a device."""

import json
import re
from queue import Empty

import pytest
from nbval import plugin

from tools.one_kernel import FORGET, shared
from tools.project import ROOT, notebooks, starts_a_device

ASKS = re.compile(r"(?m)^\s*(?:from|import) (?:lib\.simulated|support\.devices)\b")


def code_of(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")


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


def run(one, folder, notebook=None):
    one.notebook = notebook
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


def solution(folder, *cells):
    path = folder / "solution.ipynb"
    path.write_text(json.dumps({"cells": [{"cell_type": kind, "source": [text]} for kind, text in cells]}))
    return path


def test_a_solution_that_starts_a_device_has_a_kernel_of_its_own_that_ends_with_it(one, tmp_path):
    starts = solution(tmp_path, ("code", 'device = start_device("early_read")'))
    assert starts_a_device(starts)
    first = run(one, "solutions")
    own = run(one, "solutions", starts)
    third = run(one, "solutions")
    assert own is not first
    assert not own.alive
    assert third is first
    assert own.ran == []


def test_a_notebook_that_only_tells_of_a_device_starts_none(tmp_path):
    assert not starts_a_device(solution(tmp_path, ("markdown", "`start_device(...)` starts one"), ("code", "1 + 1")))


class File:
    """What nbval's collector of a notebook has, as far as its kernel is concerned."""

    def __init__(self, path):
        self.path = path


def test_the_notebook_whose_kernel_is_asked_for_is_known(monkeypatch, tmp_path):
    monkeypatch.setattr(plugin.IPyNbFile, "setup", lambda file: None)
    with shared() as one:
        plugin.IPyNbFile.setup(File(tmp_path / "solution.ipynb"))
        assert one.notebook == tmp_path / "solution.ipynb"


def test_a_device_is_started_by_notebooks_01_and_09_to_14_alone_and_by_their_solutions_if_they_need_one():
    starting = [path.relative_to(ROOT).as_posix() for path in notebooks() if starts_a_device(path)]
    assert starting == [
        "notebooks/01_loading_pipeline.ipynb",
        "notebooks/09_streams_tasks_workers.ipynb",
        "notebooks/10_checkpoint_recompute.ipynb",
        "notebooks/11_backward_order.ipynb",
        "notebooks/12_gpipe.ipynb",
        "notebooks/13_cuda_streams.ipynb",
        "notebooks/14_schedules.ipynb",
        "notebooks/solutions/13_cuda_streams.ipynb",
    ]


RECORDING = {f"n{number}/on_device.py" for number in ("09", "10", "11", "12", "13", "14")} | {"n01/copies.py"}
JUDGING = {"n12/articles.py", "n13/device_judge.py", "n13/museum.py"}
"""An exercise that is judged on the devices, too, which a cell has started."""


def test_only_a_cell_starts_a_device_and_nothing_else_of_the_notebooks_asks_for_the_simulated_one():
    """What a room asks for is named by its imports: it records, or asks what a cell has started."""
    support = ROOT / "notebooks" / "support"
    asking = {path.relative_to(support).as_posix() for path in support.rglob("*.py") if ASKS.search(path.read_text())}
    assert asking == {"devices.py"} | RECORDING | JUDGING
    cells = [path.name for path in notebooks() if "lib.simulated" in code_of(path)]
    assert cells == []
