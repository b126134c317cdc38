"""Right answers and famous wrong ones to the exercises of notebook 12."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, TypeAlias

from lib.pipeline.balance.blockpartition import partition
from lib.pipeline.pipeline import clock_cycles

Balance: TypeAlias = Callable[[Sequence[float], int], Sequence[int]]
Step: TypeAlias = Callable[[Any, Any, Any, Any], Any]

# ---- exercise 1: a balance for given costs


def true_balance(costs: Sequence[float], partitions: int) -> list[int]:
    """Return the balance whose slowest partition costs least."""
    return partition(costs, partitions)


def same_layers(costs: Sequence[float], partitions: int) -> list[int]:
    """Give every partition as many layers as the next (wrong: they are not equally dear)."""
    size, longer = divmod(len(costs), partitions)
    return [size + (j < longer) for j in range(partitions)]


def greedy_below(costs: Sequence[float], partitions: int) -> list[int]:
    """Fill a partition as long as it stays below the mean, the last one takes the rest (wrong)."""
    mean, balance, k = sum(costs) / partitions, list[int](), 0
    for j in range(partitions - 1):
        size, filled = 1, costs[k]
        while k + size < len(costs) - (partitions - 1 - j) and filled + costs[k + size] <= mean:
            filled, size = filled + costs[k + size], size + 1
        balance, k = [*balance, size], k + size
    return [*balance, len(costs) - k]


def greedy_above(costs: Sequence[float], partitions: int) -> list[int]:
    """Fill a partition until it reaches the mean, the last one takes the rest (wrong)."""
    mean, balance, k = sum(costs) / partitions, list[int](), 0
    for j in range(partitions - 1):
        size, filled = 1, costs[k]
        while k + size < len(costs) - (partitions - 1 - j) and filled < mean:
            filled, size = filled + costs[k + size], size + 1
        balance, k = [*balance, size], k + size
    return [*balance, len(costs) - k]


def near_the_marks(costs: Sequence[float], partitions: int) -> list[int]:
    """Cut where the running sum is nearest to 1/n, 2/n … of the whole (wrong)."""
    sums, cuts = [0, *accumulate(costs)], [0]
    for j in range(1, partitions):
        allowed = range(cuts[-1] + 1, len(costs) - (partitions - j) + 1)
        mark = sums[-1] * j / partitions
        cuts.append(min(allowed, key=lambda k: abs(sums[k] - mark)))
    return [b - a for a, b in zip(cuts, [*cuts[1:], len(costs)], strict=True)]


# ---- exercise 2: a training step


def true_step(model: Any, loss_function: Any, x: Any, y: Any) -> Any:
    """Bring the input to the first device, the target to the last."""
    output = model(x.to(model.devices[0]))
    loss = loss_function(output, y.to(model.devices[-1]))
    loss.backward()
    return loss


def both_first(model: Any, loss_function: Any, x: Any, y: Any) -> Any:
    """Bring both to the first device (wrong)."""
    loss = loss_function(model(x.to(model.devices[0])), y.to(model.devices[0]))
    loss.backward()
    return loss


def both_last(model: Any, loss_function: Any, x: Any, y: Any) -> Any:
    """Bring both to the last device (wrong)."""
    loss = loss_function(model(x.to(model.devices[-1])), y.to(model.devices[-1]))
    loss.backward()
    return loss


def input_left(model: Any, loss_function: Any, x: Any, y: Any) -> Any:
    """Leave the input where it is (wrong)."""
    loss = loss_function(model(x), y.to(model.devices[-1]))
    loss.backward()
    return loss


def target_left(model: Any, loss_function: Any, x: Any, y: Any) -> Any:
    """Leave the target where it is (wrong)."""
    loss = loss_function(model(x.to(model.devices[0])), y)
    loss.backward()
    return loss


def output_back(model: Any, loss_function: Any, x: Any, y: Any) -> Any:
    """Bring the output back to the target (wrong: it is the larger one)."""
    loss = loss_function(model(x.to(model.devices[0])).to(y.device), y)
    loss.backward()
    return loss


def no_backward(model: Any, loss_function: Any, x: Any, y: Any) -> Any:
    """Compute the loss only (wrong)."""
    return loss_function(model(x.to(model.devices[0])), y.to(model.devices[-1]))


# ---- exercise 3: the makespan of unequal partitions


def true_makespan(seconds: Sequence[float], micro_batches: int) -> float:
    """Add up the slowest task of every clock."""
    clocks = clock_cycles(micro_batches, len(seconds))
    return float(sum(max(seconds[j] for _, j in clock) for clock in clocks))


def slowest_always(seconds: Sequence[float], micro_batches: int) -> float:
    """Take every clock to be as long as the slowest partition (wrong)."""
    return float((micro_batches + len(seconds) - 1) * max(seconds))


def no_barrier(seconds: Sequence[float], micro_batches: int) -> float:
    """Let each task begin when its input is there (wrong: that is a queue without clocks)."""
    return float(sum(seconds) + (micro_batches - 1) * max(seconds))


def without_filling(seconds: Sequence[float], micro_batches: int) -> float:
    """Count the slowest partition's work only (wrong)."""
    return float(micro_batches * max(seconds))


def mean_clock(seconds: Sequence[float], micro_batches: int) -> float:
    """Take every clock to be as long as the mean partition (wrong)."""
    return float((micro_batches + len(seconds) - 1) * sum(seconds) / len(seconds))


def one_after_another(seconds: Sequence[float], micro_batches: int) -> float:
    """Let nothing overlap (wrong)."""
    return float(micro_batches * sum(seconds))
