"""Predictions and exercises of notebook 12, GPipe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, TypeAlias

from lib.pipeline.balance import partition
from lib.pipeline.pipeline import clock_cycles

from support.checks import Verdict, check_function, guess, not_attempted, untouched
from support.n12 import checks as answers
from support.n12.figures import block_costs, predicted_forward

# ---- Right answers and famous wrong ones to the exercises of notebook 12.

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


# ---- Checks of notebook 12: a balance for given costs, the training step, the makespan of unequal partitions.

# ---- predictions


def guess_partitions(my_guess: object, layers: int) -> Verdict:
    """Comment on the guess of section 1: partitions that the flattened model can be cut into."""
    return guess(my_guess, layers, what="the most partitions after flattening", unit="partitions")


def guess_idle(my_guess: object) -> Verdict:
    """Comment on the guess of section 3: per cent of the lanes idle for 4 equal partitions and 1 micro-batch."""
    truth = round(100 * predicted_forward([1, 1, 1, 1], 1).bubble)
    return guess(my_guess, truth, what="the idle share with one micro-batch", unit="%", tolerance=0.02)


def guess_speed(my_guess: object) -> Verdict:
    """Comment on the guess of section 4: the speed of three devices, costs 6, 1, 1, 8 micro-batches."""
    truth = round(8 * 8 / predicted_forward([6, 1, 1], 8).makespan, 2)
    return guess(my_guess, truth, what="the speed of three devices", unit="× one device", tolerance=0.05)


def guess_counted(my_guess: object) -> Verdict:
    """Comment on the guess of section 7: BatchNorms counted in one step, 4 micro-batches, except_last."""
    return guess(my_guess, 4 + 3, what="num_batches_tracked after one step")


def guess_tasks(my_guess: object) -> Verdict:
    """Comment on the guess of section 5: recomputes of a step, 4 partitions, 8 micro-batches, except_last."""
    return guess(my_guess, 4 * (8 - 1), what="the recomputes of a step", unit="tasks")


# ---- exercise 1: a balance for given costs

BALANCE_CASES: tuple[tuple[tuple[float, ...], int], ...] = (
    ((6, 5, 4, 3, 2, 2, 1, 1, 1, 1), 3),
    ((4, 4, 4), 3),
    ((30, 25, 14, 21, 30), 3),
    ((1, 2, 3, 4, 5, 6), 3),
    ((1, 1, 1, 9), 2),
    ((9, 1, 1, 1), 3),
    ((2, 2, 2, 3, 3, 3), 2),
    ((5, 3, 4, 1, 1, 6, 2), 4),
    ((3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5), 4),
    ((7,), 1),
)


def check_balance(answer: Balance) -> Verdict:
    """Check exercise 1: any balance is right whose slowest partition costs as little as it can."""
    what = "best_balance"
    if untouched(answer):
        return not_attempted(what)
    mistakes: dict[str, Balance] = {
        "Equal numbers of layers are not equal costs.": answers.same_layers,
        "Greedy, each partition below the mean: what is left over piles up in the last one.": answers.greedy_below,
        "Greedy, each until it reaches the mean: one dear layer too many.": answers.greedy_above,
        "Cuts near 1/n, 2/n … of the sum: each is near, their distances are not.": answers.near_the_marks,
    }
    for costs, n in BALANCE_CASES:
        where = f"{what}: for costs = {list(costs)}, partitions = {n}, "
        try:
            got = answer(list(costs), n)
            balance = None if got is None else [int(size) for size in got]
        except Exception as error:
            return Verdict("wrong", f"{where}your code raised {type(error).__name__}: {error}")
        if balance is None:
            return Verdict("wrong", f"{where}your function returned None (is a `return` missing?).")
        if len(balance) != n or sum(balance) != len(costs) or min(balance) < 1:
            need = f"{n} numbers from 1 up whose sum is {len(costs)}"
            return Verdict("wrong", f"{where}{balance} is no balance: GPipe needs {need}.")
        mistakes = {text: wrong for text, wrong in mistakes.items() if list(wrong(costs, n)) == balance}
        best = answers.true_balance(costs, n)
        slowest, least = (max(block_costs(costs, cut)) for cut in (balance, best))
        if slowest > least:
            why = next(iter(mistakes), "")
            text = f"the slowest partition of {balance} costs {slowest:g}; {best} has {least:g}. {why}"
            return Verdict("wrong", where + text.strip())
    return Verdict("right", f"{what}: none is slower than it must be in all {len(BALANCE_CASES)} cases.")


# ---- exercise 2: the training step


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


def check_step(answer: Step) -> Verdict:
    """Check exercise 2 with devices that are names: nothing has to be there."""
    if untouched(answer):
        return not_attempted("train_step")
    mistakes: dict[str, Step] = {
        "The output is on devices[-1], so the target must go there.": answers.both_first,
        "Partition 0 takes the input, and it is on devices[0].": answers.both_last,
        "The input stays where the loader put it: partition 0 is on devices[0].": answers.input_left,
        "The target stays where the loader put it: the loss is computed on devices[-1].": answers.target_left,
        "Move the target, not the output: that way its gradient travels, too.": answers.output_back,
        "No backward, no gradients.": answers.no_backward,
    }
    cases: list[dict[str, Any]] = [
        {"devices": devices}
        for devices in (
            ["cuda:0", "cuda:1", "cuda:2"],
            ["cuda:1", "cuda:0"],
            ["cuda:0"],
            ["cpu", "cuda:0"],
            ["cpu", "cpu"],
        )
    ]
    told = {why: _journey(wrong) for why, wrong in mistakes.items()}
    return check_function(
        _journey(answer), _journey(answers.true_step), cases, what="train_step", mistakes=told
    )


# ---- exercise 3: the makespan


def check_makespan(answer: Callable[[Sequence[float], int], float]) -> Verdict:
    """Check exercise 3 for equal and unequal partitions, also for more of them than micro-batches."""
    mistakes: dict[str, Callable[..., float]] = {
        "The slowest is not in every clock: while the pipeline fills or drains, others decide.": answers.slowest_always,
        "So it would be without clocks (as on CUDA): here a clock ends with its slowest task.": answers.no_barrier,
        "The pipeline must be filled and drained, too.": answers.without_filling,
        "A clock ends with its slowest task, not with the mean one.": answers.mean_clock,
        "That is one task after another: nothing overlaps.": answers.one_after_another,
    }
    cases = [
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
    ]
    return check_function(answer, answers.true_makespan, cases, what="makespan", mistakes=mistakes)
