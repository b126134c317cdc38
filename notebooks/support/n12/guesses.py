"""Predictions of notebook 12: each truth is computed, and famous wrong guesses are named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from support.kit.exact import exact_number, read_number
from support.kit.guess import Guess, Tried, letter
from support.kit.verdict import Verdict
from support.n12.balance import forward_gain

CLOSE = 0.1  # of the fastest time


def _per_cent(my_guess: object) -> object:
    """Read whole per cents as text, also of a share; 1.17 is a number of times."""
    value = read_number(my_guess, "%")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return value
    return f"{value:g} (in per cent, please)" if 1 < value < 3 and value % 1 else f"{value:.0f}"


guess_step = Guess(
    "the gain of a step",
    lambda: f"{100 * (3 / (1 / forward_gain([1.0, 1.0], 8) + 2) - 1):.0f}",
    unit="%",
    read=_per_cent,
    said={
        "39": "that is the mean of 78 and 0; but a step spends twice as long in the part that gains nothing"
    },
    tried=Tried(right=17, wrong=78),
)
"""Section 5: by how many per cent a step is faster whose backward takes two forwards and gains nothing."""


def _fastest(seconds: Mapping[int, float]) -> int:
    return min(seconds, key=seconds.__getitem__)


class _FastestOrBeside(Guess):
    """A guess of the fastest m: times that are measured close together change places from run to run."""

    def __call__(self, my_guess: object, *known: Any, **named: Any) -> Verdict:
        """Say how much longer a neighbour of the fastest m took; it counts if that is little."""
        verdict = super().__call__(my_guess, *known, **named)
        mine = self.read(my_guess)
        ms = sorted(known[0])
        best = ms.index(_fastest(known[0]))
        beside = [*ms[max(best - 1, 0) : best], *ms[best + 1 : best + 2]]
        if not isinstance(mine, (int, float)) or mine not in beside:
            return verdict
        slower = known[0][mine] / known[0][ms[best]] - 1
        said = f"You said {mine:g}: beside the fastest here, m = {ms[best]}, and {slower:.0%} longer"
        counts = ", so it counts" if round(slower, 2) <= CLOSE else ""
        return Verdict("note", f"{said}{counts}.")


guess_m = _FastestOrBeside(
    "the fastest m of forward",
    _fastest,
    read=read_number,
    tried=Tried(right=16, wrong=4, known=({4: 0.03, 8: 0.02, 16: 0.01, 32: 0.02},)),
)
"""Section 7: the number of micro-batches with which forward on four devices is fastest, as measured."""


guess_peak = Guess(
    "what is left at the peak of what always saves after forward",
    lambda: "NONE",
    read=letter,
    said={
        "ALL": "the peak comes in backward, when what was not kept has been computed again",
        "HALF": "what is computed again is there in full while backward goes through it",
    },
    tried=Tried(right="none", wrong="all"),
)
"""Section 8: always beside except_last, m = 8, on devices of their own."""
guess_counted = exact_number(
    "num_batches_tracked after one step",
    lambda: 4 + 3,
    said={8: "that is `always`: here the last is not computed again"},
    tried=Tried(right=7, wrong=1),
)
"""Section 10: what a BatchNorm counts in one step, 4 micro-batches, except_last."""
