"""Checks of notebook 08: predictions about clocks and bubbles, clock_cycles, the fewest micro-batches, a deadlock."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from itertools import islice
from typing import Any

from lib.checks import n08_answers as answers
from lib.checks.base import Verdict, check_function, check_value, guess, not_attempted, untouched
from lib.checks.n08_answers import Clocks, Pair
from lib.pipeline import clock_cycles
from lib.pipeline.schedule import (
    Action,
    Schedule,
    ScheduleError,
    gpipe,
    live_activations,
    one_f_one_b,
    simulate,
    validate,
)

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

TABLES = answers.TABLES


def check_illegal(table: object, stuck_at: object) -> Verdict:
    """Check exercise 3: the letter of the table that can't run, and an action at which a rank is stuck."""
    what = "the table that can't run, and where it is stuck"
    if any(part is None or part is ... for part in (table, stuck_at)):
        return not_attempted(what)
    letter = table.strip().upper() if isinstance(table, str) else table
    if letter not in TABLES:
        return Verdict("wrong", f"{what}: {table!r} is none of {', '.join(TABLES)}.")
    schedule = TABLES[str(letter)]
    try:
        validate(schedule)
    except ScheduleError as error:
        return _check_stuck(schedule, str(stuck_at).strip(), str(error))
    return Verdict("wrong", f"{what}: {letter} runs to its end. {answers.LEGAL[str(letter)]}")


def _check_stuck(schedule: Schedule, stuck_at: str, reason: str) -> Verdict:
    from lib.figures.refused import stuck

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
