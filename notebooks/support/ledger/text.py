"""Claims about padding and packing, tried on a text of our own: the sentences of the course's notebooks."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch

from lib.text import format_share
from support.ledger.book import Observation, claim

NOTEBOOKS = Path(__file__).resolve().parents[2]
OURS = 0.15  # the share by which a factor may move while the notebooks are written on


@cache
def sentence_words() -> tuple[int, ...]:
    """Return how many words each sentence of the course's Markdown has."""
    counts = []
    for path in sorted(NOTEBOOKS.glob("[0-9]*.ipynb")):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            if cell["cell_type"] == "markdown":
                text = re.sub(
                    r"\$\$.*?\$\$|<[^>]*>|\]\([^)]*\)|^\|.*$",
                    " ",
                    "".join(cell["source"]),
                    flags=re.DOTALL | re.M,
                )
                counts += [len(sentence.split()) for sentence in re.split(r"[.?!:]\s|\n\s*\n", text)]
    return tuple(count for count in counts if count)


def places(lengths: Sequence[int], batch: int, pool: int) -> int:
    """Return how many places all batches have, each as wide as its longest sentence.

    pool: so many batches' worth of shuffled sentences are sorted by length before they are cut.
    """
    order = torch.randperm(len(lengths), generator=torch.Generator().manual_seed(0)).tolist()
    total = 0
    for start in range(0, len(order), batch * pool):
        some = sorted(lengths[i] for i in order[start : start + batch * pool])
        rows = [some[k : k + batch] for k in range(0, len(some), batch)]
        total += sum(len(row) * max(row) for row in rows)
    return total


@claim(
    "Packing doubles the throughput",
    "Hugging Face, Improving training efficiency through packing with Flash Attention 2 (2024)",
    "https://huggingface.co/blog/packing-with-FA2",
    "Packing examples instead of padding them can double the throughput. It gains less where lengths differ less.",
    slack=OURS,
)
def packing_doubles(batch: int = 32, factor: float = 2.0, pool: int = 16) -> Observation:
    """Compare places with words: the most that packing can gain where the time goes with the places."""
    lengths = sentence_words()
    gains = [places(lengths, batch, size) / sum(lengths) for size in (1, pool)]
    saw = (
        f"In batches of {batch} of our sentences there are {gains[0]:.1f} places for a word if they are shuffled, and "
        f"{gains[1]:.2f} if pools of {pool} batches are sorted by length. So much packing can gain."
    )
    settings = ("batches are shuffled", "batches are pooled by length")
    return Observation(
        saw,
        {s: g >= factor for s, g in zip(settings, gains, strict=True)},
        dict(zip(settings, gains, strict=True)),
    )


@claim(
    "Half of all tokens are padding",
    "Krell et al., Efficient sequence packing without cross-contamination (2021)",
    "https://arxiv.org/abs/2107.02027",
    "Half of all tokens can be padding, where every sequence is filled up to the longest that is allowed.",
    slack=OURS,
)
def half_is_padding(batch: int = 32, half: float = 0.5) -> Observation:
    """Fill up to the longest of all sentences, to the longest of a batch, and none."""
    lengths = sentence_words()
    words = sum(lengths)
    shares = {
        "all are filled up to the longest of all": 1 - words / (len(lengths) * max(lengths)),
        "a batch is filled up to its longest": 1 - words / places(lengths, batch, 1),
        "batches are pooled by length": 1 - words / places(lengths, batch, 16),
    }
    whole, own, pooled = shares.values()
    saw = (
        f"Of the places of our sentences {format_share(whole)} are padding if all are as long as the longest, "
        f"{format_share(own)} if a batch of {batch} is as long as its own, {format_share(pooled)} with pools."
    )
    return Observation(
        saw, {setting: share >= half for setting, share in shares.items()}, {"own": own, "whole": whole}
    )


@claim(
    "Batches of one length keep padding small",
    "Hugging Face, documentation of TrainingArguments: group_by_length",
    "https://huggingface.co/docs/transformers/main_classes/trainer",
    "Batches of roughly the same length keep padding small.",
    slack=1.0,
)
def same_length_small_padding(batch: int = 32, pool: int = 16, small: float = 0.25) -> Observation:
    """Sort within pools of batches, as group_by_length does with pools of 50 batches at most."""
    lengths = sentence_words()
    padding = 1 - sum(lengths) / places(lengths, batch, pool)
    saw = (
        f"With pools of {pool} batches of {batch}, {format_share(padding)} of the places are padding. "
        f"We call up to {format_share(small)} small."
    )
    return Observation(saw, {f"pools have {pool} batches": padding <= small}, {"padding": padding})
