"""Predictions of notebook 00, start here."""

from __future__ import annotations

from support.kit.exact import exact_number, read_number
from support.kit.guess import Guess, Tried, letter
from support.n00.days import days
from support.n00.shared_step import shared_step

guess_weight = exact_number(
    "the factor of rank 0's gradient",
    lambda rows: rows[0] / sum(rows),
    said={
        0.5: "right only if both ranks had equally many rows",
        1: "then the two gradients would be added, but each of them is a mean already",
        6: "its number of rows; but the whole batch's loss is a mean over 8 rows",
        3: "three times as much as rank 1, yes, but the two factors must add up to 1",
        0.25: "that is the factor of rank 1",
    },
    tried=Tried(right=0.75, wrong=0.5, known=((6, 2),)),
)
"""Unequal shares: a gradient that is a mean over more rows weighs more."""
guess_weights = Guess(
    "when both means train the same model",
    lambda: "B",
    read=letter,
    said={
        "A": "true of a step that is a number times the gradient; is Adam's?",
        "C": "Adam divides by the size of each rank's own gradient before anything is averaged",
        "D": "try it on paper: what is the mean of w − lr · g₀ and w − lr · g₁?",
    },
    tried=Tried(right="b", wrong="A"),
)
"""Averaging weights after each rank's own step: the same only where the step is linear in the gradient."""
guess_python_speedup = exact_number(
    "the speed-up by two threads that count",
    lambda: 1.0,
    "×",
    {2: "that is what threads get while they multiply in torch"},
    tried=Tried(right=1, wrong=2),
)
"""Threads that run Python: the interpreter's lock lets one of them run at a time."""
guess_slow_rank = exact_number(
    "the whole step",
    lambda ranks, slow: shared_step(ranks, slow).makespan,
    "ticks",
    {
        5: "as if rank 3 worked on alone; but the mean needs its gradient",
        5.75: "the 3 extra ticks are not shared out over four ranks: all wait for them",
        6.5: "forward takes 1 tick longer and backward 2, and all wait for both",
        6: "forward takes 1 tick longer, but backward 2 more, and all wait for both",
        7: "there the slow rank ends its backward; the mean and the step still follow",
        10: "twice everything; but loading, the mean and the step take as long as before",
    },
    tried=Tried(right=8, wrong=5, known=(4, 2)),
)
"""All wait for the slowest."""


def _read_rank(my_guess: object) -> object:
    """Read a rank as it was meant: 0, "0", "rank 0" and "Rank 0's" are rank 0."""
    text = my_guess.lower().replace("rank", "").removesuffix("'s") if isinstance(my_guess, str) else my_guess
    number = read_number(text)
    return f"rank {number:g}" if isinstance(number, (int, float)) else my_guess


guess_longer_mean = Guess(
    "the rank whose all-reduce takes longer",
    lambda: "rank 0",
    read=_read_rank,
    said={"rank 1": "it is slow at computing; when its gradient comes, the other's has long been there"},
    tried=Tried(right=0, wrong=1),
)
"""Rank 1 is slow: the one that waits inside the exchange is the other."""
guess_days = exact_number(
    "the month on eight devices",
    lambda devices, message: days(devices, message),
    "days",
    {
        3.75: "a month divided by eight: then messages would take no time at all",
        4: "close to a month divided by eight; but the message takes as long as it did, whatever eight share",
        4.125: "that makes the eighth a tenth longer; but the message is a tenth of the whole step, not of its eighth",
        4.13: "that makes the eighth a tenth longer; but the message is a tenth of the whole step, not of its eighth",
        4.1: "that makes the eighth a tenth longer; but the message is a tenth of the whole step, not of its eighth",
        33: "that is one device which also sends messages; eight share the computing",
    },
    tried=Tried(right=6.75, wrong=3.75, known=(8, 0.1)),
)
"""Eight devices share the computing, and none of the messages."""
