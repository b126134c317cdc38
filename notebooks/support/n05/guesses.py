"""Predictions of notebook 05, 400 million rows on a small machine."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from support.captions import ROW_BYTES, list_row_bytes, predict_holding
from support.kit.guess import Guess, Tried, guess, letter
from support.kit.values import near
from support.kit.verdict import Verdict

UNITS = {"MB": (1e6, 1e3, 1e-3), "%": (0.01,), "hours": (3600, 60)}  # how many of other units each of them is


class _Measure(Guess):
    """A guess at a quantity, which may be right in another unit. said: what to say of a famous wrong number."""

    def __call__(self, my_guess: Any, *known: Any, **named: Any) -> Verdict:
        truth = self.truth(*known, **named)
        is_other_number = isinstance(my_guess, (int, float)) and not near(my_guess, truth, self.tolerance)
        for wrong, why in self.said.items() if is_other_number else ():
            if math.isclose(my_guess, float(wrong), rel_tol=0.008, abs_tol=1e-9):
                return guess(my_guess, truth, what=str(self.what), unit=self.unit, why=why)
        for factor in UNITS[self.unit] if is_other_number and truth else ():
            if math.isclose(my_guess, truth * factor, rel_tol=self.tolerance):
                told = f"You said {my_guess:,g}, which is right in another unit; the question asks for {self.unit}"
                return Verdict("note", f"{told}: {self.what} = {truth} {self.unit}.")
        return super().__call__(my_guess, *known, **named)


def _naive_megabytes(rows: int, **machine: int) -> int:
    return round(predict_holding("naive", rows=rows, row_bytes=ROW_BYTES, **machine).total / 1e6)


def _copied_percent(rows: int) -> int:
    each = list_row_bytes(ROW_BYTES) - 8  # a list's own places stay shared
    return round(100 - 100 * float((15 / 16) ** (4096 / each)))


guess_list_megabytes = _Measure(
    "the size of the list",
    _naive_megabytes,
    "MB",
    0.1,
    said={"44": "the bytes of the file", "52": "the bytes of the file and 8 for each pointer"},
    tried=Tried(right=104, wrong=44, known=(1_000_000,)),
)
guess_peak_megabytes = _Measure(
    "the peak",
    partial(_naive_megabytes, world_size=2, workers=2),
    "MB",
    0.1,
    said={
        "104": "one list for everybody",
        "208": "a list for each rank, and workers that share it",
        "416": "a list for each worker, and none for the ranks",
        "88": "two files",
    },
    tried=Tried(right=624, wrong=208, known=(1_000_000,)),
)
guess_copied_percent = _Measure(
    "the share copied",
    _copied_percent,
    "%",
    0.05,
    said={
        "6": "one sixteenth, as if the rows were read in the order in which they lie",
        "6.25": "one sixteenth, as if the rows were read in the order in which they lie",
        "0": "reading writes nothing",
        "100": "a few pages too many: in these no row was read",
    },
    tried=Tried(right=94, wrong=6, known=(500_000,)),
)
guess_cold_hours = _Measure(
    "an epoch's reading",
    lambda: round(400e6 / 16_000 / 3600, 1),
    "hours",
    0.15,
    said=dict.fromkeys(
        ("0.02", "0.0195"),
        "17.6 GB at 250 MB a second: the file read front to back, and that is not what was asked",
    ),
    tried=Tried(right=6.9, wrong=0.02),
)
guess_saved_hours = _Measure(
    "what reading front to back saves of the epoch",
    lambda: 0,
    "hours",
    said={
        **dict.fromkeys(("6.9", "6.8", "6.7", "5.7"), "reading that is spared, as if training waited for it"),
        "13.9": "the whole training",
    },
    tried=Tried(right=0, wrong=6.8),
)
guess_crops = Guess(
    "the crops of two ranks",
    lambda: "SAME",
    read=letter,
    said={"DIFFERENT": "each process has a generator of its own, but both were given one seed"},
    tried=Tried(right="same", wrong="different"),
)
guess_received = Guess(
    "the epoch that the workers deal",
    lambda: "0",
    read=lambda said: str(said).lower().removeprefix("epoch").strip() if said is not None else said,
    said={"2": "the epoch that was loaded, in another process", "1": "one epoch late"},
    tried=Tried(right=0, wrong=2),
)
