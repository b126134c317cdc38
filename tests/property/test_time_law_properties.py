"""What `simulate` predicts, the Executor does: the same order, the same times, the same activations held.

No clock is read. Time travels with the data: an activation, or a gradient, is the second at which it was made. A stage
starts when its rank is free and what it gets is there, adds its seconds, and hands on when it was done.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from weakref import finalize

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from lib.schedules import Costs, Schedule, live_activations, simulate
from lib.schedules.executor import Executor
from lib.schedules.makers import MAKERS
from tests.lib.schedules.random_tables import legal_table
from tests.sizes import size


@dataclass
class Rank:
    """What a rank has done, until when, and what it holds for backward."""

    now: float = 0.0
    done: list[tuple[str, float, float]] = field(default_factory=list)  # what, start, end
    held: int = 0
    peak: int = 0

    def work(self, what: str, there: float, seconds: float) -> float:
        """Start when the rank is free and the input there; return the end."""
        start = max(self.now, there)
        self.now = start + seconds
        self.done.append((what, start, self.now))
        return self.now

    def keep(self, x: Tensor) -> Callable[[], Tensor]:
        """Count what autograd saves as held until it lets go of it."""
        self.held += 1
        self.peak = max(self.peak, self.held)
        kept = partial(lambda: x)
        finalize(kept, self.let_go)
        return kept

    def let_go(self) -> None:
        self.held -= 1


class TimedStage(nn.Module):
    """A stage whose output is the second at which it was made: (second, micro-batch), and its gradient likewise."""

    def __init__(self, index: int, rank: Rank, seconds: tuple[float, float, float], messages: tuple[float, float]):
        super().__init__()
        self.index = index
        self.rank = rank
        self.forward_seconds, backward, self.weight_seconds = seconds
        self.input_seconds = backward - self.weight_seconds
        self.message_from_before, self.message_from_behind = messages
        self.weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        y = Trunk.apply(x, self)
        with saved_tensors_hooks(self.rank.keep, lambda kept: kept()):
            # autograd takes what was made last first: of a whole backward the weight's half is done when x's is
            return y + Branch.apply(self.weight, x.detach(), self)


class Trunk(torch.autograd.Function):
    """What leads to the stage before."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, stage: TimedStage) -> Tensor:
        ctx.stage = stage
        ctx.i = int(x[0, 1])
        there = x[0, 0].item() + stage.message_from_before
        end = stage.rank.work(f"{stage.index}F{ctx.i}", there, stage.forward_seconds)
        return torch.tensor([[end, ctx.i]], dtype=torch.float64)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        stage = ctx.stage
        there = gradient[0, 0].item() + stage.message_from_behind
        end = stage.rank.work(f"{stage.index}I{ctx.i}", there, stage.input_seconds)
        return torch.tensor([[end, 0.0]], dtype=torch.float64), None


class Branch(torch.autograd.Function):
    """What leads to the weight; it keeps an activation until then."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, x: Tensor, stage: TimedStage) -> Tensor:
        ctx.save_for_backward(x.clone())  # of each its own
        ctx.stage = stage
        return torch.zeros_like(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        stage = ctx.stage
        (x,) = ctx.saved_tensors
        there = gradient[0, 0].item() + stage.message_from_behind
        stage.rank.work(f"{stage.index}W{int(x[0, 1])}", there, stage.weight_seconds)
        return torch.ones_like(stage.weight), None, None


class Loss(torch.autograd.Function):
    """One whose gradient is there from the start: the last stage goes back as soon as its rank comes to it."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, target: Tensor) -> Tensor:
        return y[0, 0].clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return torch.zeros(1, 2, dtype=torch.float64), None


def timed_run(schedule: Schedule, costs: Costs, communicate: float) -> tuple[list[Rank], Executor, Tensor, list[float]]:
    """Run a schedule on stages that say when; return the ranks, the Executor, the input and what the losses are."""
    home = schedule.rank_of
    ranks = [Rank() for _ in schedule.ranks]
    stages = []
    for s, seconds in enumerate(zip(*costs, strict=True)):
        before, behind = (communicate * (home.get(other, home[s]) != home[s]) for other in (s - 1, s + 1))
        stages.append(TimedStage(s, ranks[home[s]], seconds, (before, behind)))
    m = schedule.micro_batches
    x = torch.stack([torch.zeros(m), torch.arange(m)], dim=1).double().requires_grad_()
    executor = Executor(schedule, stages)
    losses, trace = executor.run(x, torch.zeros(m, 1), Loss.apply, reduction="sum")
    for rank in range(len(ranks)):  # what the Executor recorded itself
        recorded = [span.label for span in trace if span.lane == f"rank {rank}"]
        assert recorded == [str(action) for action in schedule.actions(rank)]
    assert Counter(float(stage.weight.grad) for stage in stages) == {m: len(stages)}
    return ranks, executor, x, [loss.item() for loss in losses]


@st.composite
def famous_tables(draw: st.DrawFn) -> Schedule:
    """Draw a table of any maker, with some stages a rank, or running some micro-batches ahead."""
    maker = draw(st.sampled_from([*MAKERS.values()]))
    n = draw(st.integers(1, 4))
    m = maker.fewest(n) + draw(st.integers(0, 7))
    more = draw(st.integers(1, 3))
    if maker.ahead:
        return maker.make(m, n, ahead=more)
    return maker.table(m, n, stages_per_rank=more)


legal_tables = st.builds(legal_table, st.randoms(use_true_random=False), st.integers(1, 3))


@st.composite
def costed_tables(draw: st.DrawFn) -> tuple[Schedule, Costs, int]:
    """Draw a table, whole seconds for each of its stages, and those of a message."""
    schedule = draw(famous_tables() | legal_tables)

    def each(least: int, most: int) -> list[float]:
        return draw(st.lists(st.integers(least, most), min_size=schedule.stages, max_size=schedule.stages))

    weight = each(0, 4)
    backward = [part + rest for part, rest in zip(weight, each(0, 4), strict=True)]
    return schedule, Costs(each(0, 4), backward, weight), draw(st.integers(0, 5))


@settings(max_examples=size(suite=60, prove=1_000))
@given(costed_tables())
def test_the_executor_does_what_simulate_predicts_in_the_same_order_at_the_same_seconds(drawn):
    schedule, costs, communicate = drawn
    ranks, _, x, losses = timed_run(schedule, costs, communicate)
    predicted = {span.label: (span.start, span.end) for span in simulate(schedule, *costs, communicate)}
    for rank, told in enumerate(ranks):
        done = iter(told.done)
        for action in schedule.actions(rank):
            expected = str(action)
            what, start, end = next(done)
            if action.op == "B":  # two halves, one behind the other
                assert what == str(action._replace(op="W"))
                what, middle, end = next(done)
                assert middle >= start
                expected = str(action._replace(op="I"))
            assert what == expected
            assert (start, end) == predicted[str(action)]
        assert next(done, None) is None
    last = schedule.stages - 1
    for i, loss in enumerate(losses):
        assert loss == predicted[f"{last}F{i}"][1]
        first_backward = f"0B{i}" if f"0B{i}" in predicted else f"0I{i}"
        assert x.grad[i, 0] == predicted[first_backward][1], "a gradient of the input is there when that has ended"


@settings(max_examples=size(suite=60, prove=1_000))
@given(famous_tables() | legal_tables)
def test_the_executor_holds_as_many_activations_as_live_activations_predicts_and_none_afterwards(schedule):
    free = [0.0] * schedule.stages
    ranks, executor, _, _ = timed_run(schedule, Costs(free, free, free), 0)
    assert [rank.peak for rank in ranks] == executor.live == live_activations(schedule)
    assert [rank.held for rank in ranks] == [0] * len(ranks)
