"""Predictions and exercises of notebook 06, data parallel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from lib.timeline import Trace
from support.checks import Exercise, Guess, Verdict, cases, letter
from support.n06.figures import Choice, chunk_to_send, of_rank, ring, simulate
from support.n06.runs import against_first

# ---- predictions


def _first_call(trace: Trace) -> int:
    own = of_rank(trace, 0)
    backward = own.only(kind="backward")
    begin, end = min(span.start for span in backward), max(span.end for span in backward)
    return round(100 * (own.only(kind="transfer")[0].start - begin) / (end - begin))


def _cost(results: Mapping[str, Sequence[Mapping[str, float]]]) -> float:
    row = next(row for row in against_first(results) if row.name == "rank, E = 8")
    return round(100 * row.difference, 1) + 0.0


guess_lone = Guess("the weight of a sample of rank 1, by one of rank 0", lambda: 24 / 8)
"""Section 2: what a sample of the short share weighs, by one of the long share."""
guess_ring = Guess("what each rank sends", lambda: 2 * 7 / 8, unit="GB")
"""Section 3: GB that each of 8 ranks sends to average a gradient of 1 GB."""
guess_first_call = Guess("what was over of backward", _first_call, unit="%", tolerance=0.2)
"""Section 3: per cent of backward that was over when the first all-reduce began."""
guess_redone = Guess("what is done again", lambda: 9 - 9 // 5 * 5, unit="steps")
"""Section 4: steps done again after a kill in step 9, saved every 5 steps."""
guess_cost = Guess("the mean difference", _cost, unit="points", tolerance=0.2)
"""Section 5: points of accuracy between the full shuffle and RankDataset with E = 8."""
guess_hang = Guess("what rank 0 does", lambda: "B", read=letter)
"""Of "Break it": what rank 0 does when rank 1 has no batch left."""


# ---- exercise 1: loss_factor

check_loss_factor = Exercise(
    "loss_factor",
    reference=lambda counts, rank: counts[rank] * len(counts) / sum(counts),
    cases=cases(
        "counts rank",
        (
            (counts, rank)
            for counts in ([24, 8], [16, 16], [3, 3, 1], [5], [4, 0], [7, 2, 2, 1])
            for rank in reversed(range(len(counts)))
        ),
    ),
    mistakes={
        "That is the sample's fair share, but DDP divides by the number of ranks as well.": lambda counts, rank: (
            counts[rank] / sum(counts)
        ),
        "Upside down: a rank with few samples must count less, not more.": lambda counts, rank: (
            sum(counts) / (counts[rank] * len(counts))
        ),
        "Unchanged, every rank weighs the same, however few samples it has.": lambda counts, rank: 1.0,
        "The ratios between ranks are right, the length of the gradient is not.": lambda counts, rank: (
            counts[rank] / max(counts)
        ),
    },
)
"""Exercise 1: what a rank multiplies its mean loss by, so that DDP's mean is the gradient of the whole batch."""


# ---- exercise 2: counted_rows

Line: TypeAlias = tuple[int, int, list[int]]
"""(attempt, step, rows)"""


def _counted(lines: Sequence[Line]) -> list[int]:
    """Return the rows, sorted, that no later attempt has made void."""
    first: dict[int, int] = {}
    for attempt, step, _ in lines:
        first[attempt] = min(step, first.get(attempt, step))
    return _rows_if(
        lambda attempt, step: all(step < begin for other, begin in first.items() if other > attempt), lines
    )


def _rows_if(counts: Callable[[int, int], bool], lines: Sequence[Line]) -> list[int]:
    return sorted(row for attempt, step, rows in lines if counts(attempt, step) for row in rows)


def _one_attempt_at_each(lines: Sequence[Line], chosen: Callable[[int, int], int]) -> list[int]:
    """Count, of all attempts at a step, the one that `chosen` (min or max) picks."""
    kept: dict[int, int] = {}
    for attempt, step, _ in lines:
        kept[step] = chosen(attempt, kept.get(step, attempt))
    return _rows_if(lambda attempt, step: kept[step] == attempt, lines)


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


check_counted_rows = Exercise(
    "counted_rows",
    reference=_counted,
    cases=lambda: cases("lines", _logs()),
    mistakes={
        "Every line counts here, also those whose weights were lost.": lambda lines: sorted(
            row for _, _, rows in lines for row in rows
        ),
        "The last attempt goes on from a saved state: what came before that state counts too.": lambda lines: (
            _rows_if(lambda attempt, step: attempt == max(line[0] for line in lines), lines)
        ),
        "A step that was done again counts as it was done last; the first time is lost.": lambda lines: (
            _one_attempt_at_each(lines, min)
        ),
        "A row that was lost and not done again yet does not count.": lambda lines: sorted(
            {row for _, _, rows in lines for row in rows}
        ),
        "A step after the saved state is lost even if no later attempt has come that far.": lambda lines: (
            _one_attempt_at_each(lines, max)
        ),
    },
)
"""Exercise 2: the rows of the steps that count, over logs of one or two attempts."""


# ---- exercise 3: chunk_to_send


def _run_ring(exercise: Exercise, answer: Choice) -> Verdict:
    """Run the ring for 2 to 6 ranks; any order of chunks that works is right."""
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
                    known = (f" {why}" for why, wrong in exercise.mistakes.items()
                             if _sends(wrong, world_size) == _sends(answer, world_size))  # fmt: skip
                    return Verdict(
                        "wrong",
                        f"chunk_to_send: {world_size} ranks, after all {2 * (world_size - 1)} steps chunk {chunk} of "
                        f"rank {rank} is the sum of the parts {got}, not of {', '.join(map(str, sorted(want)))}."
                        + next(known, ""),
                    )
    return Verdict("right", "chunk_to_send: for 2 to 6 ranks every chunk is complete on every rank.")


def _sends(choose: Choice, world_size: int) -> list[Any]:
    return [choose(r, s, world_size) for r in range(world_size) for s in range(2 * (world_size - 1))]


check_ring = Exercise(
    "chunk_to_send",
    reference=chunk_to_send,
    judge=_run_ring,
    mistakes={
        "A rank that sends its own number every time never passes on what it has received.": (
            lambda rank, step, world_size: rank
        ),
        "The wrong way round: what has just arrived has the number of the left neighbour's chunk, one less.": (
            lambda rank, step, world_size: (rank + step) % world_size
        ),
        "If all send the same chunk, the other chunks wait.": lambda rank, step, world_size: (
            step % world_size
        ),
    },
)
"""Exercise 3: any order of chunks that works is right."""
