"""Checks of notebook 06: the factor before DDP's mean, the steps that count after a kill, the ring all-reduce."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from lib.checks.base import Verdict, check_function, guess, not_attempted, untouched
from lib.figures.allreduce import Choice, ring
from lib.figures.calendar import simulate
from lib.figures.overlap import of_rank
from lib.timeline import Trace
from lib.training.comparison import against_first
from lib.training.steps import surviving

Line: TypeAlias = tuple[int, int, list[int]]
"""(attempt, step, rows)"""


# ---- predictions


def guess_lone(my_guess: object) -> Verdict:
    """Comment on the guess of section 2: what a sample of the short share weighs, by one of the long share."""
    return guess(my_guess, 24 / 8, what="the weight of a sample of rank 1, by one of rank 0")


def guess_ring(my_guess: object) -> Verdict:
    """Comment on the guess of section 3: GB that each of 8 ranks sends to average a gradient of 1 GB."""
    return guess(my_guess, 2 * 7 / 8, what="what each rank sends", unit="GB")


def guess_first_call(my_guess: object, trace: Trace) -> Verdict:
    """Comment on the guess of section 3: per cent of backward that was over when the first all-reduce began."""
    own = of_rank(trace, 0)
    backward = own.only(kind="backward")
    begin, end = min(span.start for span in backward), max(span.end for span in backward)
    share = round(100 * (own.only(kind="transfer")[0].start - begin) / (end - begin))
    return guess(my_guess, share, what="what was over of backward", unit="%", tolerance=0.2)


def guess_redone(my_guess: object) -> Verdict:
    """Comment on the guess of section 4: steps done again after a kill in step 9, saved every 5 steps."""
    return guess(my_guess, 9 - 9 // 5 * 5, what="what is done again", unit="steps")


def guess_cost(my_guess: object, results: Mapping[str, Sequence[Mapping[str, float]]]) -> Verdict:
    """Comment on the guess of section 5: points of accuracy between the full shuffle and RankDataset with E = 8."""
    row = next(row for row in against_first(results) if row.name == "rank, E = 8")
    return guess(
        my_guess,
        round(100 * row.difference, 1) + 0.0,
        what="the mean difference",
        unit="points",
        tolerance=0.2,
    )


def guess_hang(my_guess: object) -> Verdict:
    """Comment on the guess of "Break it": what rank 0 does when rank 1 has no batch left."""
    letter = my_guess.strip().upper() if isinstance(my_guess, str) else my_guess
    return guess(letter, "B", what="what rank 0 does")


# ---- exercise 1: loss_factor


def true_factor(counts: Sequence[int], rank: int) -> float:
    """Return what a rank multiplies its mean loss by, so that DDP's mean is the gradient of the whole batch."""
    return counts[rank] * len(counts) / sum(counts)


def no_world(counts: Sequence[int], rank: int) -> float:
    """Weigh by the share alone (wrong: DDP divides by W as well)."""
    return counts[rank] / sum(counts)


def upside_down(counts: Sequence[int], rank: int) -> float:
    """Weigh small shares more (wrong)."""
    return sum(counts) / (counts[rank] * len(counts))


def unchanged(counts: Sequence[int], rank: int) -> float:
    """Leave the loss as it is (wrong)."""
    return 1.0


def by_largest(counts: Sequence[int], rank: int) -> float:
    """Weigh by the largest share (wrong)."""
    return counts[rank] / max(counts)


def check_loss_factor(answer: Callable[[Sequence[int], int], float]) -> Verdict:
    """Check exercise 1 over several shares, an empty one among them."""
    mistakes = {
        "That is the sample's fair share, but DDP divides by the number of ranks as well.": no_world,
        "Upside down: a rank with few samples must count less, not more.": upside_down,
        "Unchanged, every rank weighs the same, however few samples it has.": unchanged,
        "The ratios between ranks are right, the length of the gradient is not.": by_largest,
    }
    shares = ([24, 8], [16, 16], [3, 3, 1], [5], [4, 0], [7, 2, 2, 1])
    cases = [{"counts": counts, "rank": rank} for counts in shares for rank in reversed(range(len(counts)))]
    return check_function(answer, true_factor, cases, what="loss_factor", mistakes=mistakes)


# ---- exercise 2: counted_rows


def true_counted(lines: Sequence[Line]) -> list[int]:
    """Return the rows, sorted, that no later attempt has made void."""
    first: dict[int, int] = {}
    for attempt, step, _ in lines:
        first[attempt] = min(step, first.get(attempt, step))
    return sorted(
        row
        for attempt, step, rows in lines
        if all(step < begin for other, begin in first.items() if other > attempt)
        for row in rows
    )


def all_lines(lines: Sequence[Line]) -> list[int]:
    """Count every line (wrong)."""
    return sorted(row for _, _, rows in lines for row in rows)


def last_attempt(lines: Sequence[Line]) -> list[int]:
    """Count the last attempt alone (wrong)."""
    last = max((attempt for attempt, _, _ in lines), default=0)
    return sorted(row for attempt, _, rows in lines if attempt == last for row in rows)


def each_row_once(lines: Sequence[Line]) -> list[int]:
    """Count every row that was ever used, once (wrong: some were lost and not done again)."""
    return sorted({row for _, _, rows in lines for row in rows})


def first_come(lines: Sequence[Line]) -> list[int]:
    """Let the first attempt at a step count (wrong)."""
    kept: dict[int, int] = {}
    for attempt, step, _ in lines:
        kept[step] = min(attempt, kept.get(step, attempt))
    return sorted(row for attempt, step, rows in lines if kept[step] == attempt for row in rows)


def latest_of_step(lines: Sequence[Line]) -> list[int]:
    """Let the last attempt at a step count (wrong where a later attempt did not get as far)."""
    kept: dict[int, int] = {}
    for attempt, step, _ in lines:
        kept[step] = max(attempt, kept.get(step, attempt))
    return sorted(row for attempt, step, rows in lines if kept[step] == attempt for row in rows)


def _logs() -> Iterator[list[Line]]:
    """Yield logs of runs that were killed: complete ones, and ones of which the second attempt was stopped early."""
    first = [(0, 0, [0, 1, 2]), (0, 1, [3, 4, 5]), (0, 2, [6, 7, 8])]  # 3 ranks, a row each
    yield [*first, (1, 1, [3, 4]), (1, 2, [5, 6]), (1, 3, [7, 8])]  # 2 ranks
    yield [*first, (1, 1, [3, 4])]  # rows 5 to 8: lost, and not done again yet
    for before, after, kill_at, save_every in ((2, 3, 5, 3), (3, 1, 7, 4), (1, 2, 0, 1), (4, 2, 6, 2)):
        steps = simulate(96, 12, before, after, kill_at, save_every)
        for end in (99, kill_at, kill_at - 1):
            yield [
                (step.attempt, step.step, list(step.rows))
                for step in steps
                if step.attempt == 0 or step.step < end
            ]
    yield []


def check_counted_rows(answer: Callable[[list[Line]], list[int]]) -> Verdict:
    """Check exercise 2 over logs of one or two attempts."""
    mistakes = {
        "Every line counts here, also those whose weights were lost.": all_lines,
        "The last attempt goes on from a saved state: what came before that state counts too.": last_attempt,
        "A step that was done again counts as it was done last; the first time is lost.": first_come,
        "A row that was lost and not done again yet does not count.": each_row_once,
        "A step after the saved state is lost even if no later attempt has come that far.": latest_of_step,
    }
    cases = [{"lines": lines} for lines in _logs()]
    return check_function(answer, true_counted, cases, what="counted_rows", mistakes=mistakes)


def agrees_with_library() -> bool:
    """Say whether the reference of exercise 2 and lib.training.surviving are the same: a test asks."""
    steps = simulate(96, 12, 2, 3, 5, 3)
    lines = [(step.attempt, step.step, list(step.rows)) for step in steps]
    return true_counted(lines) == sorted(row for step in surviving(steps) for row in step.rows)


# ---- exercise 3: chunk_to_send


def check_ring(answer: Choice) -> Verdict:
    """Check exercise 3 by running the ring for 2 to 6 ranks; any order of chunks that works is right."""
    if untouched(answer):
        return not_attempted("chunk_to_send")
    for world_size in range(2, 7):
        try:
            held = ring(world_size, choose=answer)
        except Exception as error:
            where = f"for world_size = {world_size} your code raised {type(error).__name__}: {error}"
            return Verdict("wrong", f"chunk_to_send: {where}")
        want = Counter(range(world_size))
        for rank, row in enumerate(held):
            for chunk, parts in enumerate(row):
                if parts != want:
                    got = " + ".join(str(part) for part in sorted(parts.elements()))
                    why = _ring_mistake(answer, world_size)
                    return Verdict(
                        "wrong",
                        f"chunk_to_send: {world_size} ranks, after all {2 * (world_size - 1)} steps chunk {chunk} of "
                        f"rank {rank} is the sum of the parts {got}, not of {', '.join(map(str, sorted(want)))}.{why}",
                    )
    return Verdict("right", "chunk_to_send: for 2 to 6 ranks every chunk is complete on every rank.")


RING_MISTAKES: dict[str, Choice] = {
    "A rank that sends its own number every time never passes on what it has received.": (
        lambda rank, step, world_size: rank
    ),
    "The wrong way round: what has just arrived has the number of the left neighbour's chunk, one less.": (
        lambda rank, step, world_size: (rank + step) % world_size
    ),
    "If all send the same chunk, the other chunks wait.": lambda rank, step, world_size: step % world_size,
}


def _ring_mistake(answer: Choice, world_size: int) -> str:
    def sends(choose: Choice) -> list[Any]:
        return [choose(r, s, world_size) for r in range(world_size) for s in range(2 * (world_size - 1))]

    return next((f" {why}" for why, wrong in RING_MISTAKES.items() if sends(wrong) == sends(answer)), "")
