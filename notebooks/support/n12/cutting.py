"""What answers to notebook 12's first two exercises are tried with: nested models, and layers that cost unequally."""

# mypy: allow-untyped-calls, disable-error-code="no-any-return, unused-ignore"

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from numbers import Integral
from typing import Any

from torch import Tensor, nn

from lib.pipeline.balance import partition
from support.kit.judged import Fault
from support.kit.raised import in_case
from support.kit.threads import Aside
from support.kit.values import NO_RETURN, short

# ---- exercise 1: flatten_sequential


class _DoubledSequential(nn.Sequential):
    """A Sequential with a forward of its own: it is more than its layers."""

    def forward(self, input: Tensor) -> Tensor:
        """Return what the layers make of the input, twice."""
        return 2 * super().forward(input)


class _Residual(nn.Module):
    """A layer that has a Sequential inside, and does more with it."""

    def __init__(self, inside: nn.Sequential) -> None:
        super().__init__()
        self.inside = inside

    def forward(self, x: Tensor) -> Tensor:
        """Add the input to what the inside makes of it."""
        return x + self.inside(x)  # type: ignore[no-any-return]


def nested() -> Iterator[tuple[str, nn.Sequential, list[nn.Module]]]:
    """Yield Sequentials: what they are, the module, and its layers when it is flat."""
    a, b, c, d = (nn.Linear(4, 4) for _ in range(4))
    relu = nn.ReLU()
    yield "two layers, nothing nested", nn.Sequential(a, relu), [a, relu]
    yield "a Sequential among layers", nn.Sequential(a, nn.Sequential(relu, b), c), [a, relu, b, c]
    inner = nn.Sequential(nn.Sequential(a, relu), nn.Sequential(b, nn.Sequential(c)))
    yield "Sequentials three levels deep", nn.Sequential(inner, d), [a, relu, b, c, d]
    yield "one layer, which has a name", nn.Sequential(OrderedDict(only=a)), [a]
    residual = _Residual(nn.Sequential(a, relu, b))
    yield "a residual layer, which has a Sequential inside", nn.Sequential(residual, c), [residual, c]
    yield (
        "one ReLU object in three places",
        nn.Sequential(nn.Sequential(a, relu), b, relu, c, relu),
        [*(a, relu, b, relu, c, relu)],
    )
    doubled = _DoubledSequential(a, relu)
    yield "a subclass of Sequential with a forward of its own", nn.Sequential(doubled, b), [doubled, b]
    namesake = type("Sequential", (_DoubledSequential,), {})(a, relu)
    yield "a subclass that does more and is named Sequential, too", nn.Sequential(namesake, b), [namesake, b]
    listed = nn.ModuleList([a, relu])
    yield "an nn.ModuleList among layers", nn.Sequential(listed, b), [listed, b]
    twice = nn.Sequential(a, relu)
    yield (
        "one nested Sequential object in two places",
        nn.Sequential(twice, b, twice),
        [*(a, relu, b, a, relu)],
    )
    yield "an empty Sequential between two layers", nn.Sequential(a, nn.Sequential(), b), [a, b]
    yield "one layer twice in a row", nn.Sequential(nn.Sequential(a, a), b), [a, a, b]
    same = nn.Identity()
    yield "an Identity among layers", nn.Sequential(a, nn.Sequential(same), b), [a, same, b]
    deep = nn.Sequential(a, relu)
    for _ in range(20):
        deep = nn.Sequential(deep, b)
    yield "Sequentials twenty levels deep", deep, [a, relu, *[b] * 20]
    others = [residual, doubled, b]
    yield "a residual layer and a subclass inside a Sequential", nn.Sequential(nn.Sequential(*others)), others
    row = [relu] * 8
    yield (
        "eleven layers, the second one a Sequential",
        nn.Sequential(a, nn.Sequential(b, c), *row, d),
        [a, b, c, *row, d],
    )


def fault_of_flatten(answer: Callable[[nn.Sequential], Any]) -> str:
    """Compare the layers, model by model: the same objects, in the same order."""
    came_back = ""
    for what, module, layers in nested():
        layers[-1].eval()  # in another mode than the others
        before = [*module.modules()]
        modes = [layer.training for layer in layers]
        with in_case(f"for {what}"):
            flat = answer(module)
        if [*module.modules()] != before:
            return f"for {what}, the given module was changed: make a new nn.Sequential."
        fault = _fault_of_layers(flat, layers)
        if fault:
            return f"for {what}, {fault}."
        if [layer.training for layer in layers] != modes:
            return f"for {what}, a layer's `training` was changed: it is to stay as it is."
        if flat is module and not came_back:
            came_back = f"for {what}, the given module itself came back: make a new nn.Sequential."
    return came_back


def _fault_of_layers(flat: Any, layers: list[nn.Module]) -> str:
    if flat is None:
        return f"your function {NO_RETURN}"
    if not isinstance(flat, nn.Sequential):
        return f"an nn.Sequential is expected, not {type(flat).__name__}"
    found = [*flat]
    if len(found) == len(layers) and all(x is y for x, y in zip(found, layers, strict=True)):
        return ""
    mine = [type(x).__name__.lstrip("_") for x in found]
    right = [type(x).__name__.lstrip("_") for x in layers]
    if mine == right:
        return "these are copies: the layers must be the same objects, or their weights are not"
    return f"{right} is expected, yours has {mine}"


# ---- exercise 2: cheapest_cut

LARGE = 60, 8  # layers and partitions: 341 million cuts
#: Answers that fail alike in all of these follow one rule. The layers divide evenly: nobody has to round.
TELLING: tuple[tuple[list[float], int], ...] = (
    ([1, 1, 5, 1, 1, 1], 2),
    ([3, 1, 1, 1], 2),
    ([1, 1, 1, 3], 2),
    ([2, 5, 1, 1, 4, 3], 3),
)


def costs_to_try() -> Iterator[tuple[list[float], int]]:
    """Yield costs of layers and a number of partitions: small ones, seconds, random ones, many layers.

    Seconds are multiples of a power of two: their sums are exact. Tiny layers beside large ones ask for a fine search.
    """
    yield from TELLING
    yield [5], 1
    yield [2, 2, 2], 3
    yield [6, 5, 4, 3, 2, 2, 1, 1, 1, 1], 3
    yield [0, 0, 7, 0], 3
    yield [4 / 1024, 3 / 1024, 3 / 1024, 2 / 1024, 1 / 1024], 3
    yield [3.5, 1.25, 2.25, 0.5, 3.0], 3
    yield [9_000_000_003, 5, 9_000_000_000], 2  # nanoseconds
    yield [1.0, 5 / 2**30, 1 + 3 / 2**30], 2  # seconds of more digits than a float32 has
    yield [1 + 3 / 2**30, 5 / 2**30, 1.0], 2
    chance = random.Random(0)
    for unit in (2**10, 2**34) * 5:  # milliseconds, and fractions of a nanosecond
        layers = chance.randint(2, 12)
        yield [chance.randint(1, 40) / unit for _ in range(layers)], chance.randint(1, layers)
    for _ in range(60):
        layers = chance.randint(1, 12)
        yield [chance.choice((1, 1, 2, 3, 9)) for _ in range(layers)], chance.randint(1, layers)
    for _ in range(60):
        layers = chance.randint(3, 8)
        tiny = chance.choices((2**8, 2**12, 2**17), k=layers)
        yield [chance.randint(1, most) / 2**20 for most in tiny], chance.randint(2, layers - 1)
    layers, parts = LARGE
    yield [chance.randint(1, 30) for _ in range(layers)], parts


def slowest_of(costs: Sequence[float], sizes: Sequence[int]) -> float:
    """Return what the slowest of partitions of these sizes costs."""
    return max(sum(costs[a:b]) for a, b in pairwise([0, *accumulate(sizes)]))


def fault_of_cheapest_cut(answer: Callable[[list[float], int], Any], patience: float) -> str:
    """Compare the slowest partition with the least possible one, case by case: any of the cheapest cuts will do."""
    for costs, n in costs_to_try():
        told = f"for costs = {short(costs)}, n = {n}"
        given = list(costs)
        with Aside(lambda given=given, n=n: answer(given, n)) as aside:  # type: ignore[misc]
            if not aside.over(patience):
                return f"{told}, nothing has come back after {patience:g} seconds."
        if aside.error is not None:
            with in_case(told):
                raise aside.error
        fault = _fault_of_sizes(aside.runs[0].result, costs, n)
        if fault:
            return Fault(f"{told}, {fault}.", f"{told}, {fault}; {_telling(answer, patience)}")
        if given != costs:
            return f"{told}, the list of costs was changed: it belongs to whoever calls you."
    return ""


def _telling(answer: Callable[[list[float], int], Any], patience: float) -> list[str]:
    """Return the fault in each telling case, up to one in which nothing comes back."""
    faults: list[str] = []
    for costs, n in TELLING:
        with Aside(lambda costs=costs, n=n: answer([*costs], n)) as aside:  # type: ignore[misc]
            if not aside.over(patience):
                break
        faults.append(repr(aside.error) if aside.error else _fault_of_sizes(aside.runs[0].result, costs, n))
    return faults


def _fault_of_sizes(sizes: Any, costs: list[float], n: int) -> str:
    if sizes is None:
        return f"your function {NO_RETURN}"
    if not isinstance(sizes, (list, tuple)) or not all(isinstance(size, Integral) for size in sizes):
        return f"a list of {n} numbers of layers is expected, not {short(sizes)}"
    if len(sizes) != n:
        return f"{n} partitions are expected, and {short(list(sizes))} has {len(sizes)}"
    if sum(sizes) != len(costs):
        return f"there are {len(costs)} layers, and {short(list(sizes))} has {sum(sizes)}"
    if min(sizes) < 1:
        return f"every partition has a layer at least, not so in {short(list(sizes))}"
    least = slowest_of(costs, partition(costs, n))
    mine = slowest_of(costs, sizes)
    if mine > least:
        return f"the slowest partition of {short(list(sizes))} costs {mine:.10g}; {least:.10g} is possible"
    return ""
