"""Predictions and exercises of notebook 08, the pipeline clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from itertools import count, islice
from typing import Any, TypeAlias

from lib.pipeline import clock_cycles
from lib.schedules import Action, Schedule, ScheduleError, gpipe, live_activations, one_f_one_b
from lib.schedules.simulate import simulate
from lib.schedules.table import validate
from lib.show.schedules import stuck
from support.checks import Exercise, Guess, Verdict, cases

# ---- predictions


def _idle(micro_batches: int, partitions: int) -> int:
    clocks = list(clock_cycles(micro_batches, partitions))
    return round(100 * (1 - sum(map(len, clocks)) / (len(clocks) * partitions)))


def _slowest(seconds: Iterable[float], micro_batches: int) -> float:
    costs = list(seconds)
    rows = [[Action("F", j, i) for i in range(micro_batches)] for j in range(len(costs))]
    return simulate(Schedule("forward", rows), forward=costs).makespan


guess_model_parallel = Guess(
    "the speed-up of model parallelism",
    lambda partitions: partitions / simulate(gpipe(1, partitions), forward=1.0, backward=0.0).makespan,
)
"""Section 1: the speed of model parallelism, one batch, against one device."""
guess_clocks = Guess(
    "the number of clocks", lambda micro_batches, partitions: len([*clock_cycles(micro_batches, partitions)])
)
"""Section 2: the number of clocks."""
guess_idle = Guess("the idle share", _idle, unit="%", tolerance=0.03)
"""Section 3: the idle share in per cent, counted in the clock table."""
guess_best = Guess("the best m on this machine", lambda best: best)
"""Section 4: the m that was fastest when it was measured here."""
guess_slowest = Guess("the time of the forward pass", _slowest, unit="ticks")
"""Section 5: the forward pass of unequal partitions, simulated."""
guess_with_backward = Guess(
    "the idle share",
    lambda micro_batches, partitions: round(
        100 * simulate(gpipe(micro_batches, partitions), forward=1, backward=2).bubble
    ),
    unit="%",
    tolerance=0.03,
)
"""Section 6: the idle share of GPipe when backward takes two ticks."""
guess_held = Guess(
    "the most activations held in 1F1B",
    lambda micro_batches, partitions: max(live_activations(one_f_one_b(micro_batches, partitions))),
)
"""Section 6: the most activations that a rank holds in 1F1B."""


# ---- exercise 1: clock_cycles

Pair: TypeAlias = tuple[int, int]
Clocks: TypeAlias = Callable[[int, int], Iterable[Iterable[Pair]]]


def _in_order(answer: Clocks) -> Any:
    """Return the function with each clock sorted by partition, and at most all clocks that a naive loop needs."""

    def clocks(m: int, n: int) -> list[list[Pair]] | None:
        found = answer(m, n)
        if found is None:
            return None
        return [sorted(map(_pair, clock), key=lambda pair: pair[::-1]) for clock in islice(found, m * n + 2)]

    return clocks


def _pair(pair: Any) -> Pair:
    try:
        i, j = pair
    except (TypeError, ValueError):
        raise TypeError(f"a clock is a list of pairs (i, j), but it holds {pair!r}") from None
    return i, j


def _diagonals(lowest: Callable[[int, int], int], end: Callable[[int, int], int]) -> Clocks:
    """Make the m + n - 1 clocks from the bounds of j: lowest(k, m) and end(k, n)."""

    def clocks(m: int, n: int) -> Iterator[list[Pair]]:
        return ([(k - j, j) for j in range(lowest(k, m), end(k, n))] for k in range(m + n - 1))

    return clocks


check_clock_cycles = Exercise(
    "clock_cycles",
    reference=clock_cycles,
    view=_in_order,
    cases=cases("m n", [(3, 3), (4, 3), (2, 4), (1, 3), (5, 2), (1, 1), (4, 1), (8, 4), (3, 6)]),
    mistakes={
        "That is model parallelism: one pair a clock, one device busy at a time. Pairs with the same i + j can share "
        "a clock.": lambda m, n: [[(i, j)] for i in range(m) for j in range(n)],
        "One partition after the other: pairs with the same i + j can share a clock.": lambda m, n: [
            [(i, j)] for j in range(n) for i in range(m)
        ],
        "All partitions take the same micro-batch at once: but partition 1 needs what 0 computes.": (
            lambda m, n: [[(k, j) for j in range(n)] for k in range(m)]
        ),
        "The last clock is missing: range(k) ends at k - 1, and there are m + n - 1 clocks.": (
            lambda m, n: [*clock_cycles(m, n)][:-1]
        ),
        "One clock too many: there are m + n - 1.": lambda m, n: [*clock_cycles(m, n), []],
        "You stop when partition 0 is done; the last micro-batch is still on its way: m + n - 1 clocks.": (
            lambda m, n: islice(clock_cycles(m, n), m)
        ),
        "i = k - j must stay below m: j starts at max(0, k - m + 1).": _diagonals(
            lambda k, m: 0, lambda k, n: min(k + 1, n)
        ),
        "j must stay below n: it ends before min(k + 1, n).": _diagonals(
            lambda k, m: max(0, k - m + 1), lambda k, n: k + 1
        ),
        "i = k - j must be at least 0 and below m: not every j has a micro-batch in every clock.": _diagonals(
            lambda k, m: 0, lambda k, n: n
        ),
        "A pair is (micro-batch, partition), in this order.": lambda m, n: [
            [(j, i) for i, j in clock] for clock in clock_cycles(m, n)
        ],
        "That is the order of backward: forward begins with pair (0, 0).": lambda m, n: [*clock_cycles(m, n)][
            ::-1
        ],
        "Micro-batches enter at partition 0, not at the last one.": lambda m, n: [
            [(i, n - 1 - j) for i, j in clock] for clock in clock_cycles(m, n)
        ],
    },
)
"""Exercise 1 for few and many micro-batches and partitions; the order within a clock is free."""


# ---- exercise 2: the fewest micro-batches

PARTITIONS, SHARE = 8, Fraction(1, 10)


def _fewest(bubble: Callable[[int], Fraction]) -> int:
    return next(m for m in count(1) if bubble(m) < SHARE)


_RIGHT = _fewest(lambda m: Fraction(PARTITIONS - 1, m + PARTITIONS - 1))

check_fewest = Exercise(
    "the smallest m with less than 10 % idle",
    reference=_RIGHT,
    mistakes={
        f"There the bubble is exactly {float(SHARE):.0%}, not below it.": _RIGHT - 1,
        "That is (n - 1) / m: compared with the work, not with the whole time.": _fewest(
            lambda m: Fraction(PARTITIONS - 1, m)
        ),
        "That is n / (m + n): of n partitions, each waits for n - 1.": _fewest(
            lambda m: Fraction(PARTITIONS, m + PARTITIONS)
        ),
        "That is n / m. Count the idle clocks of a partition, and all its clocks.": _fewest(
            lambda m: Fraction(PARTITIONS, m)
        ),
        "That is the number of clocks that a partition waits.": PARTITIONS - 1,
    },
)
"""Exercise 2: the smallest m with a bubble below 10 % at n = 8."""


# ---- exercise 3: which table can't run


def _rows(*lines: str) -> list[list[Action]]:
    return [[Action.parse(cell) for cell in line.split()] for line in lines]


TABLES = {
    "A": Schedule("A", _rows("0F0 0F1 0F2 0B2 0B1 0B0", "1F0 1F1 1F2 1B2 1B1 1B0")),
    "B": Schedule("B", one_f_one_b(3, 2).compact().ranks),
    "C": Schedule("C", _rows("0F0 0F1 0F2 0B1 0B0 0B2", "1F1 1B1 1F0 1B0 1F2 1B2")),
    "D": Schedule("D", _rows("0F0 0B0 0F1 0F2 0B1 0B2", "1F0 1F1 1B0 1B1 1F2 1B2")),
}
"""Four tables of 3 micro-batches on 2 ranks; one of them can't run."""


def _check_illegal(exercise: Exercise, answer: tuple[object, object]) -> Verdict:
    """Try a letter of TABLES and an action at which a rank is stuck; any rank that is stuck will do."""
    table, stuck_at = answer
    letter = table.strip().upper() if isinstance(table, str) else table
    if letter not in TABLES:
        return exercise.wrong(f"{table!r} is none of {', '.join(TABLES)}.")
    schedule = TABLES[str(letter)]
    try:
        validate(schedule)
    except ScheduleError as error:
        return _check_stuck(schedule, str(stuck_at).strip(), str(error))
    legal = next(why for why, (wrong, _) in exercise.mistakes.items() if wrong == letter)
    return exercise.wrong(f"{letter} runs to its end. {legal}")


def _check_stuck(schedule: Schedule, stuck_at: str, reason: str) -> Verdict:
    heads = {str(action): str(needed) for action, needed in stuck(schedule)}
    if stuck_at in heads:
        return Verdict("right", f"{schedule.name} can't run. {reason}.")
    if stuck_at in heads.values():
        head = next(head for head, needed in heads.items() if needed == stuck_at)
        said = f". {stuck_at} is what {head} waits for: who can't begin, is {head}."
        return Verdict("wrong", f"{schedule.name} can't run{said}")
    rows = [[str(action) for action in schedule.actions(rank)] for rank in range(len(schedule.ranks))]
    row = next((row for row in rows if stuck_at in row), None)
    if row is None:
        return Verdict("wrong", f"{schedule.name} can't run, but {stuck_at!r} is no action of it.")
    done = not heads.keys() & row[: row.index(stuck_at)]
    where = "it is done before anything is stuck" if done else "its rank does not even come to it"
    return Verdict("wrong", f"{schedule.name} can't run, but not because of {stuck_at}: {where}.")


check_illegal = Exercise(
    "the table that can't run, and where it is stuck",
    reference=("D", "0B0"),
    answers=2,
    judge=_check_illegal,
    mistakes={
        "A goes back in the opposite order, the last micro-batch first. torchgpipe does that; it is legal.": (
            "A",
            "0B2",
        ),
        "B is 1F1B; it is legal.": ("B", "1B0"),
        "C takes micro-batches in an odd order, but each action finds what it needs: 1F1 waits for 0F1, no more.": (
            "C",
            "1F1",
        ),
    },
)
"""Exercise 3: the letter of the table that can't run, and an action at which a rank is stuck."""
