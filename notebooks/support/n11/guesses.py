"""Predictions of notebook 11, the order of backward."""

from __future__ import annotations

from typing import Any

from support.kit.exact import exact_number
from support.kit.guess import Guess, Tried, letter
from support.n11 import runs
from support.n11.runs import OLDER


def _pair(said: Any) -> Any:
    return tuple(said) if isinstance(said, list) else said


guess_first = Guess(
    "the chain that goes backward first",
    lambda: "A",
    read=letter,
    said={"B": "it was made later, and each thread counts for itself: its numbers are the low ones"},
    tried=Tried(right="a", wrong="b"),
)
guess_ticks = exact_number(
    "the end of the partition's backward in ticks",
    lambda copy, again, back: max(copy, again) + back,
    said={
        12: "4 + 3 + 5 lets the recomputation wait for the copy",
        7: "4 + 3 is when the recomputation ends if it waits for the copy; it need not",
        8: "3 + 5 forgets that the backward needs the gradient, too, and the copy takes longer",
    },
    tried=Tried(right=9, wrong=12, known=(4, 3, 5)),
)
guess_ages = Guess(
    "the most insides of partition 1 with a new worker and with an older one",
    lambda m: (
        runs.peaks(runs.order_of(m, 2, False))[1],
        runs.peaks(runs.order_of(m, 2, False, older=OLDER))[1],
    ),
    read=_pair,
    said={
        "(1, 8)": "swapped: asked is the new worker first; its numbers are the low ones, and the Recomputes go before "
        "them",
        "(8, 8)": "the older worker's numbers are the high ones: a Checkpoint of its own goes as soon as it is ready",
        "(1, 1)": "then no tie would be needed; which thread made the Recomputes, and is it older than the new worker?",
    },
    tried=Tried(right=(8, 1), wrong=(1, 8), known=(8,)),
)
guess_sequence = Guess(
    "whether both orders with ties are the same",
    lambda: "NO",
    read=letter,
    said={"YES": "edges fix the order within a partition, and leave open which partition goes on first"},
    tried=Tried(right="no", wrong="yes"),
)
guess_changes = exact_number(
    "the number of gradient entries that change",
    lambda: 0,
    said={
        600: "a tie carries no data: without it, too, the same gradients are added up, here in the same order"
    },
    tried=Tried(right=0, wrong=600),
)
MISSING = (2, 1)
guess_missing = Guess(
    "the pair (i, j) whose tie was forgotten",
    lambda: MISSING,
    read=_pair,
    said={
        "(1, 1)": "R11 does come too early; but the tie that would hold it back is that of the micro-batch behind, "
        "which must go backward first",
        "(1, 2)": "swapped: a pair is (micro-batch, partition)",
    },
    tried=Tried(right=(2, 1), wrong=(1, 1)),
)
