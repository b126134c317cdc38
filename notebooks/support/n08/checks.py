"""Predictions and exercises of notebook 08, the pipeline clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from itertools import islice
from typing import Any, TypeAlias

from lib.pipeline import clock_cycles
from lib.schedules import Action, Schedule, ScheduleError, gpipe, live_activations, one_f_one_b
from lib.schedules.simulate import simulate
from lib.schedules.table import validate

from support.checks import Verdict, check_function, check_value, guess, not_attempted, untouched
from support.n08 import checks as answers

# ---- Right answers and famous wrong ones to the exercises of notebook 08.

Pair: TypeAlias = tuple[int, int]
Clocks: TypeAlias = Callable[[int, int], Iterable[Iterable[Pair]]]

# ---- exercise 1: clock_cycles


def true_clock_cycles(m: int, n: int) -> Iterator[list[Pair]]:
    """Yield the pairs of each clock: those with i + j = k."""
    return clock_cycles(m, n)


def one_pair_a_clock(m: int, n: int) -> Iterator[list[Pair]]:
    """Let a micro-batch pass all partitions before the next starts: model parallelism (wrong)."""
    return ([(i, j)] for i in range(m) for j in range(n))


def partition_by_partition(m: int, n: int) -> Iterator[list[Pair]]:
    """Let all micro-batches pass a partition before the next one starts (wrong)."""
    return ([(i, j)] for j in range(n) for i in range(m))


def all_at_once(m: int, n: int) -> Iterator[list[Pair]]:
    """Let all partitions work on the same micro-batch at the same time (wrong)."""
    return ([(k, j) for j in range(n)] for k in range(m))


def one_clock_short(m: int, n: int) -> Iterator[list[Pair]]:
    """Forget the last clock (wrong)."""
    return (clock for k, clock in enumerate(clock_cycles(m, n)) if k < m + n - 2)


def one_clock_long(m: int, n: int) -> Iterator[list[Pair]]:
    """Add a clock in which nothing runs (wrong)."""
    yield from clock_cycles(m, n)
    yield []


def only_m_clocks(m: int, n: int) -> Iterator[list[Pair]]:
    """Stop when the first partition is done (wrong)."""
    return (clock for k, clock in enumerate(clock_cycles(m, n)) if k < m)


def no_lower_bound(m: int, n: int) -> Iterator[list[Pair]]:
    """Let j begin at 0 in every clock, so that micro-batches beyond the last appear (wrong)."""
    return ([(k - j, j) for j in range(min(k + 1, n))] for k in range(m + n - 1))


def no_upper_bound(m: int, n: int) -> Iterator[list[Pair]]:
    """Let j run on to k, so that partitions beyond the last appear (wrong)."""
    return ([(k - j, j) for j in range(max(0, k - m + 1), k + 1)] for k in range(m + n - 1))


def no_bounds(m: int, n: int) -> Iterator[list[Pair]]:
    """Take every j in every clock, so that negative micro-batches appear (wrong)."""
    return ([(k - j, j) for j in range(n)] for k in range(m + n - 1))


def swapped(m: int, n: int) -> Iterator[list[Pair]]:
    """Give (j, i) (wrong)."""
    return ([(j, i) for i, j in clock] for clock in clock_cycles(m, n))


def backwards(m: int, n: int) -> Iterator[list[Pair]]:
    """Begin with the last clock (wrong: that is how backward goes)."""
    return reversed(list(clock_cycles(m, n)))


def last_partition_first(m: int, n: int) -> Iterator[list[Pair]]:
    """Let micro-batches enter at the last partition (wrong)."""
    return ([(i, n - 1 - j) for i, j in clock] for clock in clock_cycles(m, n))


CLOCK_MISTAKES: dict[str, Clocks] = {
    "That is model parallelism: one pair a clock, one device busy at a time. Pairs with the same i + j can share a "
    "clock.": one_pair_a_clock,
    "One partition after the other: pairs with the same i + j can share a clock.": partition_by_partition,
    "All partitions take the same micro-batch at once: but partition 1 needs what 0 computes.": all_at_once,
    "The last clock is missing: range(k) ends at k - 1, and there are m + n - 1 clocks.": one_clock_short,
    "One clock too many: there are m + n - 1.": one_clock_long,
    "You stop when partition 0 is done; the last micro-batch is still on its way: m + n - 1 clocks.": only_m_clocks,
    "i = k - j must stay below m: j starts at max(0, k - m + 1).": no_lower_bound,
    "j must stay below n: it ends before min(k + 1, n).": no_upper_bound,
    "i = k - j must be at least 0 and below m: not every j has a micro-batch in every clock.": no_bounds,
    "A pair is (micro-batch, partition), in this order.": swapped,
    "That is the order of backward: forward begins with pair (0, 0).": backwards,
    "Micro-batches enter at partition 0, not at the last one.": last_partition_first,
}


# ---- exercise 2: the fewest micro-batches


def fewest(partitions: int, share: Fraction) -> int:
    """Return the smallest m whose bubble is below `share`."""
    m = 1
    while Fraction(partitions - 1, m + partitions - 1) >= share:
        m += 1
    return m


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

LEGAL = {
    "A": "A goes back in the opposite order, the last micro-batch first. torchgpipe does that; it is legal.",
    "B": "B is 1F1B; it is legal.",
    "C": "C takes micro-batches in an odd order, but each action finds what it needs: 1F1 waits for 0F1, no more.",
}


# ---- Checks of notebook 08: predictions about clocks and bubbles, clock_cycles, the fewest micro-batches, a
# deadlock.

# ---- predictions


def guess_model_parallel(my_guess: object, partitions: int) -> Verdict:
    """Comment on the guess of section 1: the speed of model parallelism, one batch, against one device."""
    ticks = simulate(gpipe(1, partitions), forward=1.0, backward=0.0).makespan
    return guess(my_guess, partitions / ticks, what="the speed-up of model parallelism")


def guess_clocks(my_guess: object, micro_batches: int, partitions: int) -> Verdict:
    """Comment on the guess of section 2: the number of clocks."""
    return guess(my_guess, len(list(clock_cycles(micro_batches, partitions))), what="the number of clocks")


def guess_idle(my_guess: object, micro_batches: int, partitions: int) -> Verdict:
    """Comment on the guess of section 3: the idle share in per cent, counted in the clock table."""
    clocks = list(clock_cycles(micro_batches, partitions))
    share = 100 * (1 - sum(map(len, clocks)) / (len(clocks) * partitions))
    return guess(my_guess, round(share), what="the idle share", unit="%", tolerance=0.03)


def guess_best(my_guess: object, best: int) -> Verdict:
    """Comment on the guess of section 4 with what was measured here."""
    return guess(my_guess, best, what="the best m on this machine")


def guess_slowest(my_guess: object, seconds: Iterable[float], micro_batches: int) -> Verdict:
    """Comment on the guess of section 5: the forward pass of unequal partitions, simulated."""
    costs = list(seconds)
    rows = [[Action("F", j, i) for i in range(micro_batches)] for j in range(len(costs))]
    ticks = simulate(Schedule("forward", rows), forward=costs).makespan
    return guess(my_guess, ticks, what="the time of the forward pass", unit="ticks")


def guess_with_backward(my_guess: object, micro_batches: int, partitions: int) -> Verdict:
    """Comment on the guess of section 6: the idle share of GPipe when backward takes two ticks."""
    share = 100 * simulate(gpipe(micro_batches, partitions), forward=1, backward=2).bubble
    return guess(my_guess, round(share), what="the idle share", unit="%", tolerance=0.03)


def guess_held(my_guess: object, micro_batches: int, partitions: int) -> Verdict:
    """Comment on the guess of section 6: the most activations that a rank holds in 1F1B."""
    most = max(live_activations(one_f_one_b(micro_batches, partitions)))
    return guess(my_guess, most, what="the most activations held in 1F1B")


# ---- exercise 1: clock_cycles


def check_clock_cycles(answer: Clocks) -> Verdict:
    """Check exercise 1 for few and many micro-batches and partitions; the order within a clock is free."""
    what = "clock_cycles"
    if untouched(answer):
        return not_attempted(what)
    mistakes = {why: _in_order(wrong) for why, wrong in answers.CLOCK_MISTAKES.items()}
    cases = [
        {"m": m, "n": n} for m, n in ((3, 3), (4, 3), (2, 4), (1, 3), (5, 2), (1, 1), (4, 1), (8, 4), (3, 6))
    ]
    return check_function(
        _in_order(answer), _in_order(answers.true_clock_cycles), cases, what=what, mistakes=mistakes
    )


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


# ---- exercise 2: the fewest micro-batches

PARTITIONS, SHARE = 8, Fraction(1, 10)


def check_fewest(answer: object) -> Verdict:
    """Check exercise 2: the smallest m with a bubble below 10 % at n = 8."""
    truth = answers.fewest(PARTITIONS, SHARE)
    wrong = {
        truth - 1: f"There the bubble is exactly {float(SHARE):.0%}, not below it.",
        71: "That is (n - 1) / m: compared with the work, not with the whole time.",
        73: "That is n / (m + n): of n partitions, each waits for n - 1.",
        81: "That is n / m. Count the idle clocks of a partition, and all its clocks.",
        7: "That is the number of clocks that a partition waits.",
    }
    return check_value(answer, truth, what="the smallest m with less than 10 % idle", wrong=wrong)


# ---- exercise 3: which table can't run

N08_TABLES = answers.TABLES


def check_illegal(table: object, stuck_at: object) -> Verdict:
    """Check exercise 3: the letter of the table that can't run, and an action at which a rank is stuck."""
    what = "the table that can't run, and where it is stuck"
    if any(part is None or part is ... for part in (table, stuck_at)):
        return not_attempted(what)
    letter = table.strip().upper() if isinstance(table, str) else table
    if letter not in N08_TABLES:
        return Verdict("wrong", f"{what}: {table!r} is none of {', '.join(N08_TABLES)}.")
    schedule = N08_TABLES[str(letter)]
    try:
        validate(schedule)
    except ScheduleError as error:
        return _check_stuck(schedule, str(stuck_at).strip(), str(error))
    return Verdict("wrong", f"{what}: {letter} runs to its end. {answers.LEGAL[str(letter)]}")


def _check_stuck(schedule: Schedule, stuck_at: str, reason: str) -> Verdict:
    from lib.show.schedules import stuck

    heads = {str(action): str(needed) for action, needed in stuck(schedule)}
    if stuck_at in heads:
        return Verdict("right", f"{schedule.name} can't run. {reason}.")
    every = {str(action) for _, action in schedule}
    if stuck_at not in every:
        return Verdict("wrong", f"{schedule.name} can't run, but {stuck_at!r} is no action of it.")
    if stuck_at in heads.values():
        head = next(head for head, needed in heads.items() if needed == stuck_at)
        return Verdict(
            "wrong",
            f"{schedule.name} can't run. {stuck_at} is what {head} waits for: who can't begin, is {head}.",
        )
    done = _before(schedule, heads)
    where = "it is done before anything is stuck" if stuck_at in done else "its rank does not even come to it"
    return Verdict("wrong", f"{schedule.name} can't run, but not because of {stuck_at}: {where}.")


def _before(schedule: Schedule, heads: Iterable[str]) -> set[str]:
    done: set[str] = set()
    for rank in range(len(schedule.ranks)):
        row = [str(action) for action in schedule.actions(rank)]
        place = next((k for k, action in enumerate(row) if action in set(heads)), len(row))
        done.update(row[:place])
    return done
