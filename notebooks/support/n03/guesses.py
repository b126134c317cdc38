"""Predictions of notebook 03: each truth is computed, from the samplers themselves or from what has been measured."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

from torch.utils.data import DistributedSampler as TorchSampler

from support.kit.exact import exact_number, read_number
from support.kit.guess import Guess, Tried

Losses = Mapping[str, Sequence[float]]


def clearly(losses: Losses, way: str) -> str:
    """Say whether a way's test loss is "higher" or "lower" than when told, or the "same" within two standard errors."""
    rises = [after - before for before, after in zip(losses["told"], losses[way], strict=True)]
    spread = 2 * stdev(rises) / len(rises) ** 0.5
    if abs(fmean(rises)) <= spread:
        return "same"
    return "higher" if fmean(rises) > 0 else "lower"


def _harmful(losses: Losses) -> str:
    """Name what alone makes the loss clearly higher: the same company, the same steps, both or none."""
    found = []
    if clearly(losses, "new steps") == "higher":
        found.append("company")
    if clearly(losses, "new company") == "higher":
        found.append("steps")
    return {0: "none", 1: "".join(found), 2: "both"}[len(found)]


def _numbers(my_guess: object) -> object:
    """Read 1, (1,) and "[1]" as [1]."""
    return [int(number) for number in re.findall(r"-?\d+", str(my_guess))] or my_guess


def _word(my_guess: object) -> object:
    return my_guess.strip().lower() if isinstance(my_guess, str) else my_guess


guess_last_of_eight = Guess(
    "what rank 7 gets of 3 samples on 8 ranks",
    lambda: list(TorchSampler(range(3), 8, 7, shuffle=False)),  # type: ignore[arg-type]
    read=_numbers,
    tried=Tried(right=[1], wrong=[7]),
)
guess_orders = exact_number(
    "the number of different orders",
    lambda: len({s + e for s in range(6) for e in range(6)}),
    said={
        36: "one for each run and epoch",
        6: "one for each epoch, or for each seed",
        12: "six seeds and six epochs, added",
    },
    tried=Tried(right=11, wrong=36),
)
guess_plain = Guess(
    "the test loss of the plain network without set_epoch",
    lambda losses: clearly(losses, "forgotten"),
    read=_word,
    tried=Tried(
        right="Same ", wrong="higher", known=({"told": [0.3, 0.31, 0.33], "forgotten": [0.31, 0.3, 0.33]},)
    ),
)
guess_harmful = Guess(
    "what it is that harms",
    _harmful,
    read=_word,
    tried=Tried(
        right="company",
        wrong="steps",
        known=(
            {
                "told": [0.3, 0.31, 0.32],
                "new steps": [0.4, 0.42, 0.41],
                "new company": [0.31, 0.3, 0.32],
            },
        ),
    ),
)
guess_left_out = exact_number(
    "how many images are never read",
    lambda: 1437 - 8 * 128,
    said={
        0: "what the padding leaves out",
        29: "what one process alone would drop: 1437 mod 64",
        52: "what one rank drops",
        416: "eight times 52, the three repeated ones among them",
    },
    tried=Tried(right=413, wrong=52),
)
# a per cent more or less: 37, the limit of ever more ranks, is another answer
guess_missed_percent = Guess(
    "the share of samples without a holder, in per cent",
    lambda: 100 * (7 / 8) ** 8,
    unit="%",
    tolerance=0.029,
    read=lambda my_guess: read_number(my_guess, "%"),
    tried=Tried(right=34.4, wrong=0),
)
guess_broadcasts = exact_number(
    "how many of the four forwards broadcast",
    lambda sent: sum("broadcast" in what for what in sent),
    said={0: "eval() switches it off", 2: "no_grad switches it off", 4: "nothing switches it off"},
    tried=Tried(right=3, wrong=2, known=(["broadcast", "broadcast", "broadcast", "nothing"],)),
)
