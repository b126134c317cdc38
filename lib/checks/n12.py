"""Checks of notebook 12: a balance for given costs, the training step, the makespan of unequal partitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lib.checks import n12_answers as answers
from lib.checks.base import Verdict, check_function, guess, not_attempted, untouched
from lib.checks.n12_answers import Balance, Step
from lib.figures.n12 import block_costs, predicted_forward

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
