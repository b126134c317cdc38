"""Predictions and exercises of notebook 12, GPipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, TypeAlias

from lib.pipeline.balance import partition
from lib.pipeline.pipeline import clock_cycles
from support.checks import Exercise, Guess, cases
from support.n12.figures import block_costs, predicted_forward

# ---- predictions

guess_partitions = Guess("the most partitions after flattening", lambda layers: layers, unit="partitions")
"""Section 1: partitions that the flattened model can be cut into."""
guess_idle = Guess(
    "the idle share with one micro-batch",
    lambda: round(100 * predicted_forward([1, 1, 1, 1], 1).bubble),
    unit="%",
    tolerance=0.02,
)
"""Section 3: per cent of the lanes idle for 4 equal partitions and 1 micro-batch."""
guess_speed = Guess(
    "the speed of three devices",
    lambda: round(8 * 8 / predicted_forward([6, 1, 1], 8).makespan, 2),
    unit="× one device",
    tolerance=0.05,
)
"""Section 4: the speed of three devices, costs 6, 1, 1, 8 micro-batches."""
guess_counted = Guess("num_batches_tracked after one step", lambda: 4 + 3)
"""Section 7: BatchNorms counted in one step, 4 micro-batches, except_last."""
guess_tasks = Guess("the recomputes of a step", lambda: 4 * (8 - 1), unit="tasks")
"""Section 5: recomputes of a step, 4 partitions, 8 micro-batches, except_last."""


# ---- exercise 1: a balance for given costs

Balance: TypeAlias = Callable[[Sequence[float], int], Sequence[int]]


def _as_integers(answer: Balance) -> Callable[..., list[int] | None]:
    def balance(costs: Sequence[float], partitions: int) -> list[int] | None:
        sizes = answer(list(costs), partitions)
        return None if sizes is None else [int(size) for size in sizes]

    return balance


def _too_slow(got: list[int], expected: list[int], case: Mapping[str, Any]) -> str:
    costs, n = case["costs"], case["partitions"]
    if len(got) != n or sum(got) != len(costs) or min(got) < 1:
        return f"{got} is no balance: GPipe needs {n} numbers from 1 up whose sum is {len(costs)}"
    slowest, least = (max(block_costs(costs, sizes)) for sizes in (got, expected))
    if slowest <= least:
        return ""
    return f"the slowest partition of {got} costs {slowest:g}; {expected} has {least:g}"


def _same_layers(costs: Sequence[float], partitions: int) -> list[int]:
    size, longer = divmod(len(costs), partitions)
    return [size + (j < longer) for j in range(partitions)]


def _greedy(takes: Callable[[float, float, float], bool]) -> Balance:
    """Fill a partition as long as takes(filled, next layer, mean); the last one gets the rest."""

    def balance(costs: Sequence[float], partitions: int) -> list[int]:
        mean, sizes, k = sum(costs) / partitions, list[int](), 0
        for j in range(partitions - 1):
            size, filled = 1, costs[k]
            while k + size < len(costs) - (partitions - 1 - j) and takes(filled, costs[k + size], mean):
                filled, size = filled + costs[k + size], size + 1
            sizes, k = [*sizes, size], k + size
        return [*sizes, len(costs) - k]

    return balance


def _near_the_marks(costs: Sequence[float], partitions: int) -> list[int]:
    sums, cuts = [0, *accumulate(costs)], [0]
    for j in range(1, partitions):
        allowed = range(cuts[-1] + 1, len(costs) - (partitions - j) + 1)
        mark = sums[-1] * j / partitions
        cuts.append(min(allowed, key=lambda k: abs(sums[k] - mark)))
    return [b - a for a, b in zip(cuts, [*cuts[1:], len(costs)], strict=True)]


check_balance = Exercise(
    "best_balance",
    reference=partition,
    view=_as_integers,
    fault=_too_slow,
    praise="none is slower than it must be in all {count} cases",
    cases=cases(
        "costs partitions",
        [
            ([6, 5, 4, 3, 2, 2, 1, 1, 1, 1], 3),
            ([4, 4, 4], 3),
            ([30, 25, 14, 21, 30], 3),
            ([1, 2, 3, 4, 5, 6], 3),
            ([1, 1, 1, 9], 2),
            ([9, 1, 1, 1], 3),
            ([2, 2, 2, 3, 3, 3], 2),
            ([5, 3, 4, 1, 1, 6, 2], 4),
            ([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], 4),
            ([7], 1),
        ],
    ),
    mistakes={
        "Equal numbers of layers are not equal costs.": _same_layers,
        "Greedy, each partition below the mean: what is left over piles up in the last one.": _greedy(
            lambda filled, layer, mean: filled + layer <= mean
        ),
        "Greedy, each until it reaches the mean: one dear layer too many.": _greedy(
            lambda filled, layer, mean: filled < mean
        ),
        "Cuts near 1/n, 2/n … of the sum: each is near, their distances are not.": _near_the_marks,
    },
)
"""Exercise 1: any balance is right whose slowest partition costs as little as it can."""


# ---- exercise 2: the training step, with devices that are names: nothing has to be there

Step: TypeAlias = Callable[[Any, Any, Any, Any], Any]


class Parcel:
    """Stand in for a tensor: it knows where it is, and what was done to it."""

    def __init__(self, name: str, device: str, log: list[str]) -> None:
        self.name, self.device, self.log = name, device, log

    def to(self, device: object, *args: object, **kwargs: object) -> Parcel:
        """Move, as a tensor does."""
        if str(device) != self.device:
            self.log.append(f"{self.name} to {device}")
        return Parcel(self.name, str(device), self.log)

    def backward(self) -> None:
        """Note that backward was called."""
        self.log.append("backward")


class Wrapper:
    """Stand in for a GPipe on several devices, which takes its input where the first partition is."""

    def __init__(self, devices: Sequence[str], log: list[str]) -> None:
        self.devices, self.log = list(devices), log

    def __call__(self, x: Parcel) -> Parcel:
        """Return the output, on the last device. Raises RuntimeError for an input elsewhere, as torch does."""
        if x.device != self.devices[0]:
            raise RuntimeError(f"the input is on {x.device}, partition 0 on {self.devices[0]}")
        return Parcel("output", self.devices[-1], self.log)


def _loss(output: Parcel, target: Parcel) -> Parcel:
    if output.device != target.device:
        raise RuntimeError(f"the output is on {output.device}, the target on {target.device}")
    return Parcel("loss", output.device, output.log)


def _journey(answer: Step) -> Callable[..., str]:
    """Turn an answer into a function from devices to the sentence of what it did."""

    def journey(devices: Sequence[str]) -> str:
        log: list[str] = []
        x, y = Parcel("input", "cpu", log), Parcel("target", "cpu", log)
        try:
            loss = answer(Wrapper(devices, log), _loss, x, y)
        except RuntimeError as error:
            return f"RuntimeError: {error}"
        moves = sorted(entry for entry in log if entry != "backward")
        end = f"backward {log.count('backward')} ×, returns {getattr(loss, 'name', loss)}"
        return "; ".join([*moves, end])

    return journey


def _step(input_to: int | None = 0, target_to: int | None = -1, *, backward: bool = True) -> Step:
    """Make an answer that brings input and target to the devices with these indices; None: they stay."""

    def step(model: Any, loss_function: Any, x: Any, y: Any) -> Any:
        output = model(x if input_to is None else x.to(model.devices[input_to]))
        loss = loss_function(output, y if target_to is None else y.to(model.devices[target_to]))
        if backward:
            loss.backward()
        return loss

    return step


def _output_back(model: Any, loss_function: Any, x: Any, y: Any) -> Any:
    loss = loss_function(model(x.to(model.devices[0])).to(y.device), y)
    loss.backward()
    return loss


check_step = Exercise(
    "train_step",
    reference=_step(),
    view=_journey,
    cases=cases(
        "devices",
        [["cuda:0", "cuda:1", "cuda:2"], ["cuda:1", "cuda:0"], ["cuda:0"], ["cpu", "cuda:0"], ["cpu", "cpu"]],
    ),
    mistakes={
        "The output is on devices[-1], so the target must go there.": _step(target_to=0),
        "Partition 0 takes the input, and it is on devices[0].": _step(input_to=-1),
        "The input stays where the loader put it: partition 0 is on devices[0].": _step(input_to=None),
        "The target stays where the loader put it: the loss is computed on devices[-1].": _step(
            target_to=None
        ),
        "Move the target, not the output: that way its gradient travels, too.": _output_back,
        "No backward, no gradients.": _step(backward=False),
    },
)
"""Exercise 2: where input and target go, and that backward is called."""


# ---- exercise 3: the makespan of unequal partitions


def _makespan(seconds: Sequence[float], micro_batches: int) -> float:
    clocks = clock_cycles(micro_batches, len(seconds))
    return sum(max(seconds[j] for _, j in clock) for clock in clocks)


check_makespan = Exercise(
    "makespan",
    reference=_makespan,
    cases=[
        {"seconds": seconds, "micro_batches": m}
        for seconds in (
            [3.0, 1.0, 2.0],
            [2.0, 2.0],
            [1.0, 5.0, 1.0],
            [4.0, 1.0, 4.0],
            [6.0],
            [1.0, 2.0, 3.0, 4.0],
        )
        for m in (3, 1, 2, 8)
    ],
    mistakes={
        "The slowest is not in every clock: while the pipeline fills or drains, others decide.": (
            lambda seconds, micro_batches: (micro_batches + len(seconds) - 1) * max(seconds)
        ),
        "So it would be without clocks (as on CUDA): here a clock ends with its slowest task.": (
            lambda seconds, micro_batches: sum(seconds) + (micro_batches - 1) * max(seconds)
        ),
        "The pipeline must be filled and drained, too.": lambda seconds, micro_batches: (
            micro_batches * max(seconds)
        ),
        "A clock ends with its slowest task, not with the mean one.": lambda seconds, micro_batches: (
            (micro_batches + len(seconds) - 1) * sum(seconds) / len(seconds)
        ),
        "That is one task after another: nothing overlaps.": lambda seconds, micro_batches: (
            micro_batches * sum(seconds)
        ),
    },
)
"""Exercise 3 for equal and unequal partitions, also for more of them than micro-batches."""
