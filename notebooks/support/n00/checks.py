"""Predictions and exercises of notebook 00, start here."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.nn import functional as F

from lib.timeline import Span, Trace
from support.built import my_step
from support.checks import Exercise, Tried, cases
from support.checks import use as use
from support.kit.exact import exact_number
from support.kit.mistakes import edited
from support.n00.figures import shared_step

# ---- predictions


guess_weight = exact_number(
    "the weight of rank 0's gradient",
    lambda rows: rows[0] / sum(rows),
    said={
        0.5: "right only if both ranks had equally many rows",
        1: "then the two gradients would be added, but each of them is a mean already",
        6: "its number of rows; but the whole batch's loss is a mean over 8 rows",
        3: "three times as much as rank 1, yes, but the two factors must add up to 1",
        0.25: "that is the factor of rank 1",
    },
    tried=Tried(right=0.75, wrong=0.5, known=((6, 2),)),
)
"""Unequal shares: a gradient that is a mean over more rows weighs more."""
guess_slow_rank = exact_number(
    "the whole step",
    lambda ranks, slow: shared_step(ranks, slow).makespan,
    "ticks",
    {
        5: "as if rank 3 worked on alone; but the mean needs its gradient",
        5.75: "the 3 extra ticks are not shared out over four ranks: all wait for them",
        6.5: "forward takes 1 tick longer and backward 2, and all wait for both",
        6: "forward takes 1 tick longer, but backward 2 more, and all wait for both",
        7: "there the slow rank ends its backward; the mean and the step still follow",
        10: "twice everything; but loading, the mean and the step take as long as before",
    },
    tried=Tried(right=8, wrong=5, known=(4, 2)),
)
"""All wait for the slowest."""
guess_python_speedup = exact_number(
    "the speed-up by two threads that count",
    lambda: 1.0,
    "×",
    {2: "that is what threads get while they multiply in torch"},
    tried=Tried(right=1, wrong=2),
)
"""Threads that run Python: the interpreter's lock lets one of them run at a time."""

# ---- exercise 1: one step that ranks share

Batch: TypeAlias = tuple[torch.Tensor, torch.Tensor]
Step: TypeAlias = Callable[[list[nn.Module], list[Batch], float], Any]


def whole_batch_step(replicas: list[nn.Module], batches: list[Batch], learning_rate: float) -> None:
    """Step every replica by torch's gradient of all rows together: what the ranks' step has to equal."""
    rows, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    F.cross_entropy(replicas[0](rows), labels).backward()  # type: ignore[no-untyped-call]
    gradients = [weight.grad for weight in replicas[0].parameters()]
    for replica in replicas:
        for weight, gradient in zip(replica.parameters(), gradients, strict=True):
            weight.grad = gradient
        optimizer = torch.optim.SGD(replica.parameters(), learning_rate)
        optimizer.step()
        optimizer.zero_grad()


def _alone(replica: nn.Module, batches: list[Batch], learning_rate: float) -> None:
    """Let one replica do the work of all ranks."""
    for rows, labels in batches:
        (F.cross_entropy(replica(rows), labels) / len(batches)).backward()  # type: ignore[no-untyped-call]
    torch.optim.SGD(replica.parameters(), learning_rate).step()
    replica.zero_grad()


def _on_rank_0(replicas: list[nn.Module], batches: list[Batch], learning_rate: float) -> None:
    _alone(replicas[0], batches, learning_rate)
    for replica in replicas[1:]:
        replica.load_state_dict(replicas[0].state_dict())


def _on_every_rank(replicas: list[nn.Module], batches: list[Batch], learning_rate: float) -> None:
    for replica in replicas:
        _alone(replica, batches, learning_rate)


class _Watched(nn.Sequential):
    """A small model that keeps what its forwards were given."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))
        self.seen: list[torch.Tensor] = []

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self.seen.append(rows)
        out: torch.Tensor = super().forward(rows)  # type: ignore[no-untyped-call]
        return out


def _owner(rows: torch.Tensor, batches: list[Batch]) -> int | None:
    """Return the rank whose batch this is, None if it is no rank's."""
    for rank, (own, _) in enumerate(batches):
        if torch.equal(rows, own):
            return rank
    return None


def _broken_rule(replicas: list[_Watched], batches: list[Batch]) -> str:
    """Say what no real rank could have done, or would have done in vain; "" if nothing."""
    saw = [[_owner(rows, batches) for rows in replica.seen] for replica in replicas]
    if len(saw) > 1 and all(set(range(len(batches))) <= set(owners) for owners in saw):
        return "every rank did a forward on the rows of all ranks; a rank has its own batch and no other"
    for rank, owners in enumerate(saw):
        for rows, owner in zip(replicas[rank].seen, owners, strict=True):
            if owner is None:
                return f"a forward of rank {rank} got {len(rows)} rows, and they are no rank's batch"
            if owner != rank:
                return f"rank {rank} saw rank {owner}'s rows; a rank has its own batch and no other"
        if len(owners) > 1:
            return f"rank {rank} did {len(owners)} forwards on its rows, where a step has one"
    if [] in saw:
        return f"rank {saw.index([])} did no forward on its own rows"
    places: dict[int, int] = {}
    for rank, replica in enumerate(replicas):
        for weight in replica.parameters():
            if (owner := places.setdefault(weight.data_ptr(), rank)) != rank:
                return (
                    f"ranks {owner} and {rank} share one tensor as their weight; on two devices each has memory "
                    f"of its own"
                )
    return ""


def _weights_after(step: Step) -> Callable[..., list[Any]]:
    """Turn a step into the function of a case: after each of some steps each rank's weights and the rule broken."""

    def run(ranks: int, rows: int, steps: int, learning_rate: float) -> list[Any]:
        generator = torch.Generator().manual_seed(ranks)
        replicas = [_Watched().double() for _ in range(ranks)]
        with torch.no_grad():
            for weights in zip(*(replica.parameters() for replica in replicas), strict=True):
                value = torch.randn(weights[0].shape, generator=generator, dtype=torch.float64)
                for weight in weights:
                    weight.copy_(value)
        after: list[Any] = []
        for _ in range(steps):
            batches = [
                (
                    torch.randn(rows, 3, generator=generator, dtype=torch.float64),
                    torch.randint(0, 3, (rows,), generator=generator),
                )
                for _ in range(ranks)
            ]
            for replica in replicas:
                replica.seen.clear()
            step([*replicas], batches, learning_rate)
            flat = [nn.utils.parameters_to_vector(r.parameters()).tolist() for r in replicas]
            after.append((flat, _broken_rule(replicas, batches)))
        return after

    return run


def _first_difference(got: Any, expected: Any, case: Mapping[str, Any]) -> str:
    for number, ((mine, rule), (theirs, _)) in enumerate(zip(got, expected, strict=True), start=1):
        if rule:
            return f"in step {number} {rule}"
        for rank, (weights, wanted) in enumerate(zip(mine, theirs, strict=True)):
            for place, (weight, right) in enumerate(zip(weights, wanted, strict=True)):
                if not math.isclose(weight, right, rel_tol=1e-9, abs_tol=1e-12):
                    return (
                        f"after step {number} weight {place} of rank {rank} is {weight:.6f}, but "
                        f"{right:.6f} when torch steps on the whole batch"
                    )
    return ""


_stepped = partial(edited, my_step)
MEAN = "mean = sum(weight.grad for weight in weights) / len(weights)"
STEP = "weight -= learning_rate * mean"
ADDED_IN_PLACE = """mean = weights[0].grad
        for weight in weights:
            mean += weight.grad / len(weights)"""
OVERWRITTEN = """weight.grad = sum(other.grad for other in weights) / len(weights)
                weight -= learning_rate * weight.grad"""

check_step = Exercise(
    "one step of all ranks",
    reference=my_step,
    cases=cases(
        "ranks rows steps learning_rate",
        [(2, 4, 1, 0.4), (2, 4, 3, 0.1), (1, 5, 2, 0.2), (3, 2, 2, 0.3), (8, 1, 2, 0.05)],
    ),
    view=_weights_after,
    fault=_first_difference,
    praise="the same weights on every rank as torch on the whole batch, in all {count} cases",
    mistakes={
        "Each rank stepped by its own gradient: the replicas are different models now.": _stepped(
            ("* mean", "* weight.grad")
        ),
        "You took the sum of the gradients: the whole batch's loss is a mean, and so is its gradient.": _stepped(
            (" / len(weights)", "")
        ),
        "You divided by 2, but the mean over the ranks divides by their number.": _stepped(
            ("len(weights)", "2")
        ),
        "You divided by the number of rows, but each gradient is that of a mean over rows already.": _stepped(
            ("len(weights)", "(len(weights) * len(rows))")
        ),
        "Rank 0's gradient counts more than once: a sum that begins with `weights[0].grad` and adds in place changes "
        "that very tensor, and adds it again.": _stepped((MEAN, ADDED_IN_PLACE)),
        "Rank 0's gradient counts twice: the sum began with it and added it again.": _stepped(
            (
                "sum(weight.grad for weight in weights)",
                "sum((weight.grad for weight in weights), weights[0].grad)",
            )
        ),
        "You put the rows of all ranks together: real ranks have no place where all rows are.": whole_batch_step,
        "Rank 0 did the work of all: let replicas[r] do forward and backward on batches[r].": _on_rank_0,
        "Each rank computed every batch: that is all the work on every rank, and nothing is gained.": _on_every_rank,
        "Give each rank numbers of its own, as `weight -= …` does.": _stepped(
            (STEP, f"{STEP}\n                weight.data = weights[0].data")
        ),
        "Rank 0 stepped, the others did not: each rank has weights of its own to change.": _stepped(
            (STEP, f"if weight is weights[0]:\n                    {STEP}")
        ),
        "Nothing moved: `weight = …` gives the name a new tensor; change the weight in place, `weight -= …`.": _stepped(
            (STEP, "weight = weight - learning_rate * mean")
        ),
        "You stepped with 0.5 whatever the learning rate is: it is the third argument.": _stepped(
            ("learning_rate *", "0.5 *")
        ),
        "You left out the learning rate: it multiplies the mean.": _stepped(("learning_rate * ", "")),
        "The gradients were not cleared: backward adds to what is there from the step before.": _stepped(
            ("weight.grad = None", "pass")
        ),
        "You overwrote rank 0's gradient with the mean before the others had read it.": _stepped(
            (MEAN, "pass"), (STEP, OVERWRITTEN), ("weight.grad = None", "pass")
        ),
        "You went up the gradient: a step subtracts it.": _stepped(("-=", "+=")),
    },
)
"""Exercise 1: forward and backward on each rank, the mean of the gradients, the same step on all."""

# ---- the verdicts' demonstration, and exercise 2

Rows: TypeAlias = Sequence[tuple[str, float, float]]


def _idle_share(spans: Rows, lanes: Sequence[str]) -> float:
    return Trace((Span(lane, "", start, end) for lane, start, end in spans), lanes).bubble


def _otherwise(answer: Callable[[float, float, int], float]) -> Callable[[Rows, Sequence[str]], float]:
    """Make an idle share of seconds worked, makespan and number of lanes."""

    def share(spans: Rows, lanes: Sequence[str]) -> float:
        makespan = max(end for _, _, end in spans) - min(start for _, start, _ in spans)
        return answer(sum(end - start for _, start, end in spans), makespan, len(lanes))

    return share


def _own_makespans(spans: Rows, lanes: Sequence[str]) -> float:
    own = [[(start, end) for name, start, end in spans if name == lane] for lane in lanes]
    ends = [(max(end for _, end in lane) - min(start for start, _ in lane)) for lane in own if lane]
    return 1 - sum(end - start for _, start, end in spans) / sum(ends)


def _busiest(spans: Rows, lanes: Sequence[str]) -> float:
    worked = [sum(end - start for name, start, end in spans if name == lane) for lane in lanes]
    return _otherwise(lambda _, makespan, count: 1 - max(worked) / makespan)(spans, lanes)


check_makespan = Exercise(
    "makespan",
    reference=lambda times: Trace(Span("a", "", start, end) for start, end in times).makespan,
    cases=cases(
        "times",
        [[(0, 2)], [(0, 2), (2, 5)], [(1, 2), (4, 6)], [(3, 9), (4, 5)], [(5, 6), (0, 1), (2, 8)]],
    ),
    mistakes={
        "You added the durations up: that counts overlapping work twice and waiting not at all.": lambda times: (
            sum(end - start for start, end in times)
        ),
        "You took the last end: this timeline does not begin at 0.": lambda times: max(
            end for _, end in times
        ),
        "You took the first and last span of the list: spans need not be in order.": lambda times: (
            times[-1][1] - times[0][0]
        ),
    },
)
"""Not an exercise: on it the notebook shows what a check says to a wrong answer."""

check_idle_share = Exercise(
    "idle share",
    reference=_idle_share,
    cases=cases(
        "spans lanes",
        [
            ([("a", 0, 4), ("b", 0, 4)], ["a", "b"]),
            ([("a", 2, 4), ("b", 3, 6)], ["a", "b"]),
            ([("a", 0, 1), ("a", 1, 4), ("b", 0, 1)], ["a", "b"]),
            ([("b", 3, 6), ("c", 4, 5), ("a", 2, 4)], ["a", "b", "c"]),
            ([("a", 0, 1), ("c", 2, 3)], ["a", "b", "c", "d"]),
        ],
    ),
    view=lambda answer: lambda spans, lanes: answer(spans, lanes),  # whatever the reader calls them
    mistakes={
        "You compared with the time of one lane: all lanes together could have worked longer than the makespan.": (
            _otherwise(lambda worked, makespan, lanes: 1 - worked / makespan)
        ),
        "That is the busy share; the idle share is the rest.": _otherwise(
            lambda worked, makespan, lanes: worked / (lanes * makespan)
        ),
        "Those are idle seconds: the share divides them by the time that all lanes could have worked.": _otherwise(
            lambda worked, makespan, lanes: lanes * makespan - worked
        ),
        "You divided by the makespan alone: several lanes could have worked all that time.": _otherwise(
            lambda worked, makespan, lanes: lanes - worked / makespan
        ),
        "You divided the idle time by the busy time: divide it by both together.": _otherwise(
            lambda worked, makespan, lanes: lanes * makespan / worked - 1
        ),
        "That is in per cent: a share is a number from 0 to 1.": lambda spans, lanes: (
            100 * _idle_share(spans, lanes)
        ),
        "You measured from 0: the makespan begins with the first start.": lambda spans, lanes: (
            1 - sum(end - start for _, start, end in spans) / len(lanes) / max(end for _, _, end in spans)
        ),
        "You took each lane's own makespan: before a lane's first span and after its last it is idle, too.": (
            _own_makespans
        ),
        "That is the idle share of the busiest lane: count the time of all lanes.": _busiest,
        "You took the last span of the list for the last end: another lane may end later.": lambda spans, lanes: (
            1
            - sum(end - start for _, start, end in spans)
            / len(lanes)
            / (spans[-1][2] - min(start for _, start, _ in spans))
        ),
        "You counted spans for lanes: a lane may have several spans.": lambda spans, lanes: _otherwise(
            lambda worked, makespan, _: 1 - worked / (len(spans) * makespan)
        )(spans, lanes),
        "You counted only lanes that have spans: a lane without any is idle all the time.": lambda spans, lanes: (
            _idle_share(spans, sorted({lane for lane, _, _ in spans}))
        ),
    },
)
"""Exercise 2: the share of the lanes' time in which nothing ran."""
