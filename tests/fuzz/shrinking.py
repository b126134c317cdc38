"""Make a failing case small: drop layers, open containers, take simpler options, as long as it fails alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from itertools import count

from tests.fuzz.cases import MODES, Case
from tests.fuzz.layers import Layer, arguments, inside


def shrink(case: Case, fails: Callable[[Case], bool], tries: int = 1000, seconds: float = 300.0) -> Case:
    """Return a case that fails and none of whose next smaller ones does, or what `tries` or `seconds` came to."""
    left = count(tries, -1)
    end = time.monotonic() + seconds
    found = True
    while found:
        found = False
        for candidate in smaller(case):
            if next(left) <= 0 or time.monotonic() > end:
                return case
            if fails(candidate):
                case = candidate
                found = True
                break
    return case


def smaller(case: Case) -> Iterator[Case]:
    """Yield the cases that are one step simpler, those that leave out most first."""
    half = len(case.layers) // 2
    if half > 1:
        yield replace(case, layers=case.layers[half:])
        yield replace(case, layers=case.layers[:half])
    for layers in fewer(case.layers):
        yield replace(case, layers=layers)
    yield from simpler_options(case)


def fewer(layers: tuple[Layer, ...]) -> Iterator[tuple[Layer, ...]]:
    """Yield these layers without one of them, with one opened, or with one made smaller inside."""
    for k, layer in enumerate(layers):
        before = layers[:k]
        after = layers[k + 1 :]
        yield before + after
        if inside(layer):
            yield before + inside(layer) + after
        for inner in fewer(inside(layer)):
            if inner:
                yield (*before, (layer[0], *arguments(layer), *inner), *after)


def simpler_options(case: Case) -> Iterator[Case]:
    for each in fields(Case):
        if each.name not in ("layers", "rows", "chunks") and getattr(case, each.name) != each.default:
            yield replace(case, **{each.name: each.default})
    for number in range(1, case.rows):
        yield replace(case, rows=number)
    for number in range(1, case.chunks):
        yield replace(case, chunks=number)
    if case.runner not in ("GPipe", "1F1B", "zero bubble (ZB-H1)"):
        yield replace(case, runner="1F1B")
        yield replace(case, runner="zero bubble (ZB-H1)")
    for mode in MODES[: MODES.index(case.mode)]:
        yield replace(case, mode=mode)
