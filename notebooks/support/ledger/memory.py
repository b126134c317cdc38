"""Claims about memory and recompute: what a checkpoint costs, and what it leaves."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential
from torch.utils.flop_counter import FlopCounterMode

from lib.saved import LiveTensors
from lib.text import format_share
from support.ledger.book import Observation, claim

SUBLINEAR = "https://arxiv.org/abs/1604.06174"


def _layers(count: int, width: int) -> nn.Sequential:
    generator = torch.Generator().manual_seed(0)
    layers = [nn.Linear(width, width, bias=False) for _ in range(count)]
    for layer in layers:
        with torch.no_grad():
            layer.weight.copy_(torch.randn(width, width, generator=generator) / math.sqrt(width))
    return nn.Sequential(*(part for layer in layers for part in (layer, nn.Tanh())))


@claim(
    "Recompute costs one forward",
    "Chen et al., Training deep nets with sublinear memory cost (2016), abstract",
    SUBLINEAR,
    "Memory that grows more slowly costs one more forward per mini-batch.",
)
def recompute_costs_one_forward(layers: int = 8, share: float = 1.0, near: float = 0.02) -> Observation:
    """Count the floating-point operations of a step with and without a checkpoint around a `share` of the layers."""
    model = _layers(layers, 16)
    cut = round(2 * layers * (1 - share))
    x = torch.ones(4, 16, requires_grad=True)  # a middle stage: its input needs a gradient, too

    def operations(step: Callable[[], Tensor], *, backward: bool = True) -> int:
        with FlopCounterMode(display=False) as counter:
            y = step()
            if backward:
                y.sum().backward()  # type: ignore[no-untyped-call]
        return int(counter.get_total_flops())

    forward = operations(lambda: model(x), backward=False)
    plain = operations(lambda: model(x))
    # all of it again, also what nobody needs: torch would stop early
    again = operations(lambda: checkpoint(model[cut:], model[:cut](x), use_reentrant=True))
    more = (again - plain) / forward
    speed = plain / again
    saw = (
        f"A step is {plain / forward:.3g} forwards of work, and {again / forward:.3g} if {share:.0%} of the layers are "
        f"computed again, {more:.3g} more. At as many operations a second the speed is {speed:.0%} of what it was."
    )
    held = abs(more - 1) <= near and abs(speed - 0.75) <= near
    return Observation(
        saw.replace("%", " %"), {"operations decide the time": held}, {"forwards more": more, "speed": speed}
    )


@claim(
    "Memory grows as the root of the layers",
    "Chen et al., Training deep nets with sublinear memory cost (2016), abstract",
    SUBLINEAR,
    "A net of n layers can be trained in memory that grows as the square root of n.",
    slack=0.02,
)
def memory_grows_as_root(sizes: Sequence[int] = (9, 81), near: float = 0.25) -> Observation:
    """Take the peak of all tensors that a step makes: nine times the layers should need three times the memory."""

    def peak(layers: int, segments: int) -> int:
        model = _layers(layers, 8)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)  # there before, so that it does not count
        x = torch.ones(512, 8, requires_grad=True)
        with LiveTensors() as live:
            y = checkpoint_sequential(model, segments, x, use_reentrant=True)  # type: ignore[no-untyped-call]
            y.sum().backward()
        return int(live.peak)

    small, large = sizes
    growth = math.sqrt(large / small)
    ways = {
        "segments grow as the root of n": peak(large, math.isqrt(large)) / peak(small, math.isqrt(small)),
        "segments keep their number": peak(large, math.isqrt(small)) / peak(small, math.isqrt(small)),
    }
    rooted, fixed = ways.values()
    saw = (
        f"From {small} to {large} layers the peak grows {rooted:.2f} times with √n segments, and {fixed:.2f} times "
        f"with {math.isqrt(small)} segments throughout; the root would be {growth:g}. Up to {format_share(near)} off "
        "counts as the root."
    )
    holds = {setting: abs(ratio / growth - 1) <= near for setting, ratio in ways.items()}
    return Observation(saw, holds, {"root": rooted, "fixed": fixed})


@claim(
    "Backward costs twice as much as forward",
    "Kaplan et al., Scaling laws for neural language models (2020), section 2.1",
    "https://arxiv.org/abs/2001.08361",
    "A backward needs about twice the compute of a forward.",
)
def backward_is_twice_forward(
    layers: int = 3, rows: int = 64, width: int = 32, twice: tuple[float, float] = (1.6, 2.7)
) -> Observation:
    """Count the FLOPs of matrix products in both: of layers that learn, and of frozen ones behind one that learns."""
    ratios = {
        "all weights learn": _backward_over_forward(layers, rows, width, frozen=False),
        "most weights are frozen": _backward_over_forward(layers, rows, width, frozen=True),
    }
    first, second = ratios.values()
    saw = (
        f"Backward takes {first:.1f} times the FLOPs of forward where all of {layers} layers learn, "
        f"and {second:.1f} times where only the first does."
    )
    low, high = twice
    return Observation(
        saw, {setting: low <= ratio <= high for setting, ratio in ratios.items()}, {"learning": first}
    )


def _backward_over_forward(layers: int, rows: int, width: int, frozen: bool) -> float:
    """Return FLOPs of backward over those of forward; the data itself wants a gradient, as a layer's input does."""
    x = torch.ones(rows, width, requires_grad=True)
    weights = [torch.ones(width, width, requires_grad=k == 0 or not frozen) for k in range(layers)]
    with FlopCounterMode(display=False) as forward:
        y = x
        for weight in weights:
            y = y @ weight
    with FlopCounterMode(display=False) as backward:
        y.backward(y.detach())  # type: ignore[no-untyped-call]
    return float(backward.get_total_flops() / forward.get_total_flops())
