"""What becomes of layers that recompute can trip over: who repeats, who refuses, who says nothing."""

import json
import math

import pytest
import torch
from torch import nn

from support import built
from support.n10.faults import CASES, HOWS, outcome, verdicts
from tools.project import ROOT


@pytest.mark.parametrize("name", HOWS)
@pytest.mark.parametrize("case, ends", [
    ("dropout", {"same"}), ("in place, inside", {"same"}), ("in place, input with gradient", {"error", "wrong"}),
    ("BatchNorm", {"counted twice"}), ("Python's random: values", {"wrong"}),
    ("Python's random: a branch", {"wrong", "error"}),
])  # fmt: skip
def test_what_becomes_of_a_case_whatever_the_checkpoint(name, case, ends):
    assert outcome(case, HOWS[name]) in ends


def test_a_repair_is_seen_a_warning_is_no_silence_and_no_case_is_right_by_having_no_gradient():
    found = verdicts(HOWS)
    assert [*found["input without gradient"].values()] == ["no gradient", "same", "same", "warned", "same"]
    assert [*found["in place, input with gradient"].values()] == ["error", "error", "wrong", "error", "error"]
    assert [*found["in place, a second input"].values()] == ["wrong", "error", "wrong", "wrong", "error"]
    assert [*found["Python's random: a branch"].values()] == ["wrong", "wrong", "error", "wrong", "error"]
    assert all(outcome(case, lambda f, *x: f(*x)) in ("same", "wrong") for case in CASES)


class SecondTimeTanh(nn.Module):
    """Nothing in the first forward, tanh in the second: it saves one tensor more, square like a weight."""

    def __init__(self):
        super().__init__()
        self.runs = 0

    def forward(self, x):
        self.runs += 1
        return x.tanh() if self.runs > 1 else x


@pytest.mark.parametrize("name", ["hook_checkpoint", "torch not reentrant"])
def test_hooks_overlook_a_branch_that_saves_more_tensors_of_equal_shapes(name):
    segment = nn.Sequential(nn.Linear(8, 8), SecondTimeTanh(), nn.Linear(8, 8))
    x = torch.linspace(-1, 1, 64).view(8, 8)
    segment[2](segment[0](x)).square().sum().backward()
    right = segment[2].weight.grad.clone()
    segment.zero_grad()
    HOWS[name](segment, x).square().sum().backward()
    assert not torch.allclose(segment[2].weight.grad, right, rtol=0.01)


def test_whatever_a_checkpoint_raises_is_an_error():
    def finds_too_few(function, *inputs):
        raise IndexError("list index out of range")

    assert outcome("Python's random: a branch", finds_too_few) == "error"


class Module(nn.Module):
    """Counts by assigning a buffer; its weights change places from one forward to the next if it rolls."""

    def __init__(self, rolls=False):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))
        self.weight = nn.Parameter(torch.tensor([1.0, 3.0]))
        self.rolls = rolls
        self.runs = 0

    def forward(self, x):
        self.seen = self.seen + 1
        self.runs += 1
        return x * self.weight.roll(self.runs * self.rolls)


@pytest.fixture
def careful():
    notebook = json.loads((ROOT / "notebooks" / "10_checkpoint_recompute.ipynb").read_text(encoding="utf-8"))
    (cell,) = (cell for cell in notebook["cells"] if cell["id"] == "n10-38")
    code = "".join(cell["source"]).split("\n\n\nfor case")[0]
    space = {"torch": torch, "is_recomputing": built.is_recomputing, "repaired_checkpoint": built.my_checkpoint}
    exec(code, space)
    return space["careful"]


def test_the_careful_checkpoint_counts_an_assigned_buffer_once_and_takes_nan(careful):
    for value in (1.0, math.nan):
        module = Module()
        careful(module, torch.full((2,), value)).sum().backward()
        assert module.runs == 2
        assert module.seen == 1


def test_the_careful_checkpoint_sees_outputs_of_equal_sum(careful):
    y = careful(Module(rolls=True), torch.ones(2))
    with pytest.raises(RuntimeError, match="another output"):
        y.sum().backward()
