"""Predictions of notebook 07, micro-batches."""

# mypy: allow-untyped-calls

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import nn

from support.kit.exact import read_number
from support.kit.guess import Guess, Tried, letter


def _named(wrong: Mapping[float, str]) -> Callable[[object], object]:
    """Make the `read` of a guess that tells famous wrong numbers by their reason, and so never calls them close."""

    def read(said: object) -> object:
        value = read_number(said)
        return wrong.get(value, value) if isinstance(value, (int, float)) else value

    return read


def _way() -> float:
    norm = nn.BatchNorm1d(1)
    for _ in range(8):
        norm(torch.tensor([[0.0], [2.0]]))  # mean 1
    assert norm.running_mean is not None
    return round(100 * float(norm.running_mean), 1)


def _per_cent(said: object) -> object:
    famous_wrong: dict[float, str] = {
        10: "10, as in one update",
        43: "43, which is what is left",
        80: "80, as 8 · 10",
    }
    return _named(famous_wrong)(read_number(said, "%"))  # 0.57 is 57 %


def _price(said: object) -> object:
    return _named({100: "100, as if a step were its forward"})(read_number(said, "%"))


def _mean_over_two_ranks() -> float:
    """Give one rank 30 tokens and the other 10; each divides its sum by 40, and the mean of the two is taken."""
    tokens = torch.randn(40, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weight = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    (right,) = torch.autograd.grad(nn.functional.softplus(tokens @ weight).mean(), weight)
    own = [
        torch.autograd.grad(nn.functional.softplus(share @ weight).sum() / 40, weight)[0]
        for share in tokens.split([30, 10])
    ]
    mean = torch.stack(own).mean(0)
    return round(float(mean.norm() / right.norm()), 6)


def _one_image() -> str:
    """Return what nn.BatchNorm2d does with one image: "A" it raises, "B" only zeros, "C" other numbers."""
    try:
        normalised = nn.BatchNorm2d(1)(torch.arange(4.0).view(1, 1, 2, 2))
    except ValueError:
        return "A"
    return "C" if bool(normalised.abs().max() > 0) else "B"


guess_chunks = Guess(
    "the number of parts that chunk(4) makes of 5 rows",
    lambda: len(torch.arange(5).chunk(4)),
    read=_named({4: "4, which is what was asked for"}),
    tried=Tried(right=3, wrong=4),
)
"""Section 1: how many parts torch.chunk makes of 5 rows if 4 are asked for."""
guess_alike = Guess(
    "the distance",
    lambda measured: measured,
    unit="× the right gradient's length",
    tolerance=0.2,
    read=_named({0: "0, as if only what the sentences say mattered"}),
    tried=Tried(right=0.6, wrong=0, known=(0.6,)),
)
"""Section 4: how far the mean of means is off if short sentences say what long ones say; known: what was measured."""
guess_one_image = Guess("what it does", _one_image, read=letter, tried=Tried(right="C", wrong="A"))
"""Section 5: what BatchNorm2d makes of one image."""
guess_peak = Guess(
    "the peak",
    lambda measured: measured,
    unit="× that of the whole batch",
    read=_named({0.125: "0.125, as with one at a time"}),
    tried=Tried(right=1, wrong=0.125, known=(1.0,)),
)
"""Section 6: the peak with all 8 forwards first, as a multiple of the whole batch's; known: what was measured."""
guess_price = Guess(
    "the time that is added",
    lambda measured: measured,
    unit="%",
    tolerance=0.15,
    read=_price,
    tried=Tried(right=20, wrong=100, known=(20.0,)),
)
"""Section 7: what a second forward adds to a step, in per cent; known: what was measured."""
guess_way = Guess(
    "the part of the way that running_mean goes",
    _way,
    unit="%",
    tolerance=0.03,
    read=_per_cent,
    tried=Tried(right=57, wrong=80),
)
"""Encore: per cent of the way that running_mean goes in 8 updates of momentum 0.1."""
guess_world = Guess(
    "the length of the gradient",
    _mean_over_two_ranks,
    unit="× the right one",
    read=read_number,
    tried=Tried(right=0.5, wrong=1),
)
"""Encore: what the mean over two ranks makes of sums that were divided by the count of all ranks."""
