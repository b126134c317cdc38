"""Layers of a fuzzed model that have to do with several tensors: tuples, views of one memory, skips."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lib.pipeline import pop, skippable, stash
from tests.fuzz.layers import WIDTH, first_float, lanes_of


class Lanes(nn.Module):
    """A function of all lanes."""

    def __init__(self, function: Callable[[list[Tensor]], list[Tensor]]) -> None:
        super().__init__()
        self.function = function

    def forward(self, state: Any) -> Any:
        lanes = self.function(lanes_of(state))
        return tuple(lanes)


def parts(x: Tensor, begin: int) -> list[Tensor]:
    """Return two views of one memory: they overlap but for begin = WIDTH."""
    wide = torch.cat([x, x.sin()], 1)
    return [wide[:, :WIDTH], wide[:, begin : begin + WIDTH]]


PAIRS: dict[str, Callable[[Tensor], list[Tensor]]] = {
    "sin": lambda x: [x, x.sin()],
    "same": lambda x: [x, x],
    "overlap": lambda x: parts(x, 2),
    "apart": lambda x: parts(x, WIDTH),
    "view": lambda x: [x, x.view(x.shape)],
    "mask": lambda x: [x, x > 0],
    "index": lambda x: [x.argmax(1), x],
    "constant": lambda x: [x, torch.ones_like(x)],
    "detached": lambda x: [x.detach(), x * 0.5],
}


def pair(how: str) -> nn.Module:
    def function(lanes: list[Tensor]) -> list[Tensor]:
        k = first_float(lanes)
        return lanes if k is None else [*lanes[:k], *PAIRS[how](lanes[k]), *lanes[k + 1 :]]

    return Lanes(function)


def write(number: int) -> nn.Module:
    def function(lanes: list[Tensor]) -> list[Tensor]:
        x = lanes[number % len(lanes)]
        if x.is_floating_point():
            x.mul_(1.5)
        return lanes

    return Lanes(function)


class Merge(nn.Module):
    """Sum up the lanes: one tensor."""

    def forward(self, state: Any) -> Any:
        lanes = lanes_of(state)
        k = first_float(lanes)
        if k is None:
            return lanes[0]
        total = lanes[k] * 1
        for other in lanes[:k] + lanes[k + 1 :]:
            if other.dim() == 1:
                other = other[:, None] % 2
            total = total + other * 0.5
        return total


class OfLane(nn.Module):
    """A layer for one of the lanes."""

    def __init__(self, number: int, inner: nn.Module) -> None:
        super().__init__()
        self.number = number
        self.inner = inner

    def forward(self, state: Any) -> Any:
        lanes = lanes_of(state)
        k = self.number % len(lanes)
        if lanes[k].is_floating_point():
            lanes[k] = lanes_of(self.inner(lanes[k]))[0]
        return lanes[0] if isinstance(state, Tensor) else tuple(lanes)


def lose(lanes: list[Tensor]) -> list[Tensor]:
    return lanes[:-1] if len(lanes) > 1 else lanes


def swap(lanes: list[Tensor]) -> list[Tensor]:
    return [*lanes[1:], lanes[0]]


# ---- skips


STASHED: dict[str, Callable[[Tensor], Tensor | None]] = {
    "x": lambda x: x,
    "cos": torch.cos,
    "view": lambda x: x[:],
    "mask": lambda x: x > 0,
    "detached": torch.Tensor.detach,
    "none": lambda x: None,
}


@skippable(stash=["s"])
class Stash(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def forward(self, state: Any) -> Any:
        lanes = lanes_of(state)
        k = first_float(lanes)
        yield stash("s", None if k is None else STASHED[self.how](lanes[k]))
        return state


@skippable(pop=["s"])
class Pop(nn.Module):
    """Takes what was stashed. how: added, written first, in the place of what comes, as a lane more, or not used."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def forward(self, state: Any) -> Any:
        found = yield pop("s")
        lanes = lanes_of(state)
        k = first_float(lanes)
        if found is None or self.how == "unused":
            return state
        if self.how == "lane":
            return (*lanes, found)
        if self.how == "write" and found.is_floating_point():
            found.mul_(1.5)
        if k is None:
            return state
        if self.how == "write input":
            lanes[k].mul_(1.5)
        lanes[k] = found.to(lanes[k].dtype) * 1 if self.how == "instead" else lanes[k] + found * 0.7
        return lanes[0] if isinstance(state, Tensor) else tuple(lanes)
