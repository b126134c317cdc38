"""The tests in tests/gpu all run in CI, on simulated GPUs; the few that only CUDA can pass say why, and are counted."""

import ast
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import skip_without_gpu
from tests.gpu.conftest import pytest_runtest_makereport
from tools import test as suite
from tools.project import ROOT

FILES = sorted((ROOT / "tests" / "gpu").glob("test_*.py"))

#: Functions that are marked `cuda_only`, and files that are as a whole.
CUDA_ONLY = {
    "test_measure_gpu.test_the_card_names_the_gpu",
    "test_pipeline_distributed_gpu",
    "test_streams_gpu.test_a_recording_made_here_is_whole",
    "test_streams_gpu.test_the_profiler_sees_the_same_copies_and_the_same_overlap",
    "test_streams_gpu.test_torchs_own_sanitizer_finds_the_missing_waits_and_nothing_else",
    "test_training_gpu",
}


def marks(part: ast.AST) -> list[ast.Call]:
    """Return the calls of pytest.mark.cuda_only in a piece of code."""
    calls = [node for node in ast.walk(part) if isinstance(node, ast.Call)]
    return [call for call in calls if ast.unparse(call.func) == "pytest.mark.cuda_only"]


def marked(path: Path) -> dict[str, ast.Call]:
    """Return which tests of a file are marked, and by which call; the file's own name if all of them are."""
    found: dict[str, ast.Call] = {}
    for part in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(part, ast.Assign) and ast.unparse(part.targets[0]) == "pytestmark":
            for call in marks(part):
                found[path.stem] = call
        elif isinstance(part, ast.FunctionDef):
            for call in (call for line in part.decorator_list for call in marks(line)):
                found[f"{path.stem}.{part.name}"] = call
    return found


def test_only_these_are_marked_and_each_says_why() -> None:
    found = {name: call for path in FILES for name, call in marked(path).items()}
    assert set(found) == CUDA_ONLY
    for name, call in found.items():
        (reason,) = call.keywords
        assert reason.arg == "reason", name
        assert isinstance(reason.value, ast.Constant), name
        assert reason.value.value, name


def test_the_suite_runs_them_in_a_process_of_their_own() -> None:
    steps = suite.everything()
    assert [step.tests for step in steps if "tests/gpu" in step.tests and "--simulated" in step.options] == [
        ["tests/gpu"]
    ]
    assert all("tests/gpu" not in step.tests for step in steps if "tests/lib/simulated" in step.tests)


class Item(SimpleNamespace):
    """Stands in for a test, marked or not."""

    def __init__(self, reason: str = "", *, simulated: bool = True) -> None:
        self.reason = reason
        self.skipped: list[str] = []
        self.config = SimpleNamespace(getoption=lambda name: simulated)

    def get_closest_marker(self, name: str) -> Any:
        return SimpleNamespace(kwargs={"reason": self.reason}) if self.reason else None

    def add_marker(self, marker: pytest.MarkDecorator) -> None:
        self.skipped.append(marker.kwargs["reason"])


def test_what_is_marked_is_skipped_on_simulated_gpus_and_nothing_else() -> None:
    items = [Item(), Item("NCCL")]
    skip_without_gpu(items, simulated=True)
    assert [item.skipped for item in items] == [[], ["only on CUDA: NCCL"]]


def test_without_cuda_and_simulated_gpus_all_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    items = [Item(), Item("NCCL")]
    skip_without_gpu(items, simulated=False)
    assert [item.skipped for item in items] == [["needs a CUDA GPU, and torch sees none here"]] * 2


def test_on_cuda_none_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    items = [Item(), Item("NCCL")]
    skip_without_gpu(items, simulated=False)
    assert [item.skipped for item in items] == [[], []]


@pytest.mark.parametrize(
    "item, outcome",
    [(Item(), "failed"), (Item("NCCL"), "skipped"), (Item(simulated=False), "skipped")],
    ids=["unmarked", "marked", "on CUDA"],
)
def test_a_test_that_skips_itself_on_simulated_gpus_without_the_mark_fails(item: Item, outcome: str) -> None:
    hook = pytest_runtest_makereport(item)  # type: ignore[arg-type]
    next(hook)
    with pytest.raises(StopIteration) as ended:
        hook.send(SimpleNamespace(outcome="skipped", skipped=True, longrepr=""))  # type: ignore[arg-type]
    assert ended.value.value.outcome == outcome
