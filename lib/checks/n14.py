"""Checks of notebook 14: predictions; 1F1B placed by hand, a rank's order under a limit, the choice of a schedule."""

from __future__ import annotations

from typing import Any

from lib.checks import n14_answers as answers
from lib.checks.base import Verdict, check_function, guess, not_attempted
from lib.checks.n14_answers import Choose, Order
from lib.figures.schedule_trade import all_schedules, time_and_memory
from lib.pipeline.schedule import (
    Schedule,
    ScheduleError,
    bubble_share,
    gpipe,
    live_activations,
    one_f_one_b,
    simulate,
    validate,
    zero_bubble_h1,
)

# ---- predictions


def guess_last_rank(my_guess: object, micro_batches: int, partitions: int) -> Verdict:
    """Comment on the guess of section 1: the activations that the last rank holds in 1F1B."""
    held = live_activations(one_f_one_b(micro_batches, partitions))[-1]
    return guess(my_guess, held, what="what the last rank holds", unit="activation" + "s" * (held != 1))


def guess_interleaved(my_guess: object, micro_batches: int, partitions: int, stages_per_rank: int) -> Verdict:
    """Comment on the guess of section 3: the idle share of interleaved 1F1B, in per cent."""
    share = round(100 * bubble_share(micro_batches, partitions, stages_per_rank))
    return guess(my_guess, share, what="the idle share", unit="%", tolerance=0.04)


def guess_half(my_guess: object, share: float) -> Verdict:
    """Comment on the guess of section 4: which share of the work of B is in I, in per cent."""
    return guess(my_guess, round(100 * share), what="the share of I", unit="%")


def guess_zero_bubble(my_guess: object, micro_batches: int, partitions: int) -> Verdict:
    """Comment on the guess of section 5: the ticks that a rank idles in ZB-H1; forward, I and W take one each."""
    trace = simulate(zero_bubble_h1(micro_batches, partitions))
    idle = round(trace.makespan - trace.busy("rank 0"), 6)
    return guess(my_guess, idle, what="the idle time of a rank", unit="ticks")


# ---- exercise 1: 1F1B by hand

SIZE = 4, 3


def check_table(text: str) -> Verdict:
    """Check exercise 1: any legal table that holds as little as 1F1B on every rank, and is as fast."""
    what, (m, n) = f"1F1B by hand, m = {SIZE[0]}, n = {SIZE[1]}", SIZE
    if not isinstance(text, str) or "..." in text:
        return not_attempted(what)
    try:
        table = Schedule.from_text("yours", text)
        if len(table.ranks) != n:
            return Verdict("wrong", f"{what}: there are {len(table.ranks)} rows; one for each of {n} ranks.")
        validate(table, stages=n, micro_batches=m)
    except ScheduleError as error:
        return Verdict("wrong", f"{what}: it can't run. {error}.")
    except ValueError as error:
        return Verdict("wrong", f"{what}: {error}.")
    if split := [str(action) for _, action in table if action.op in "IW"]:
        return Verdict("wrong", f"{what}: {split[0]} is half of a backward; here a backward is whole, B.")
    wanted, ticks = one_f_one_b(m, n), simulate(table).makespan
    peaks, least = live_activations(table), live_activations(wanted)
    is_gpipe = table.compact().ranks == gpipe(m, n).compact().ranks
    for rank, (peak, limit) in enumerate(zip(peaks, least, strict=True)):
        if peak > limit:
            why = " That is GPipe: all forwards first." if is_gpipe else ""
            text = f"it runs, but rank {rank} holds {peak} at once; {limit} are enough there."
            return Verdict("wrong", f"{what}: {text}{why}")
    best = simulate(wanted).makespan
    if ticks > best:
        text = f"it runs and holds {', '.join(map(str, peaks))}, but takes {ticks:g} ticks; {best:g} are possible."
        return Verdict("wrong", f"{what}: {text} Which rank could go further ahead?")
    return Verdict(
        "right", f"{what}: {ticks:g} ticks, as GPipe; held {', '.join(map(str, peaks))} instead of {m}."
    )


# ---- exercise 2: a rank's order under a limit


def check_order(answer: Order) -> Verdict:
    """Check exercise 2 for few and many micro-batches, and limits below and above n."""
    cases: list[dict[str, Any]] = [
        {"rank": rank, "micro_batches": m, "partitions": n, "limit": limit}
        for m, n, limit in ((7, 3, 3), (6, 4, 2), (5, 4, 9), (2, 4, 3), (4, 1, 1), (3, 3, 1))
        for rank in range(n)
    ]
    return check_function(answer, answers.true_order, cases, what="order", mistakes=answers.ORDER_MISTAKES)


# ---- exercise 3: the fastest that fits


def check_choose(answer: Choose) -> Verdict:
    """Check exercise 3 with the schedules of several sizes and prices of a message."""
    cases: list[dict[str, Any]] = []
    for m, n, communicate in ((8, 4, 0.0), (8, 2, 0.25), (12, 4, 0.1)):
        points = time_and_memory(all_schedules(m, n, tight=True), communicate)
        sizes = sorted({held for _, held in points.values()})
        cases += [{"points": points, "limit": limit} for limit in (*sizes, sizes[-1] + 1, sizes[0] - 0.5)]
    return check_function(answer, answers.true_choose, cases, what="choose", mistakes=answers.CHOICE_MISTAKES)
