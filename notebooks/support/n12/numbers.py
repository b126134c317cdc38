"""What answers to notebook 12's exercise on random numbers are tried with: masks that a pair draws, and draws again."""

# mypy: allow-untyped-calls, disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from threading import Thread
from typing import Any, TypeAlias

import torch
from torch import Tensor

from support.kit.raised import in_case
from support.kit.values import NO_RETURN
from support.n12.given import OwnDropout

M = 3
N = 4
SEED = 5
LENGTH = 64  # numbers in a mask: two masks are not equal by chance
_Pair: TypeAlias = tuple[int, int]


def fault_of_numbers(answer: Callable[[int, int], Any]) -> str:
    """Say which masks differ that should not, or are equal that should not be; "" if all are as they should."""
    torch.manual_seed(SEED)
    with in_case(f"making Numbers({M}, {N})"):
        step = answer(M, N)
        next_step = answer(M, N)
    masks: dict[_Pair, Tensor] = {}
    for i, j in _pairs():
        fault, masks[i, j] = _fault_of_pair(step, i, j)
        if fault:
            return fault
    fault = _fault_of_equal_pairs(masks)
    if fault:
        return fault
    same = [pair for pair in _pairs() if torch.equal(_drawn(next_step, *pair), masks[pair])]
    if same:
        return (
            f"in the next step, a new Numbers({M}, {N}), {_told(same[0])} draws the mask of this step again."
        )
    torch.manual_seed(SEED)
    again = answer(M, N)
    if not torch.equal(_drawn(again, 1, 2), masks[1, 2]):
        return f"after the same torch.manual_seed({SEED}) {_told((1, 2))} draws another mask: nobody can repeat a run."
    return ""


def _pairs() -> list[_Pair]:
    return list(product(range(M), range(N)))


def _told(pair: _Pair) -> str:
    return f"micro-batch {pair[0]} in partition {pair[1]}"


def _called(run: Callable[[Tensor], Any], layer: OwnDropout, pair: _Pair) -> tuple[str, Tensor]:
    """Call what `wrap` has returned; return what is wrong with it, and the mask that it has drawn."""
    x = torch.ones(LENGTH)
    with in_case(f"for {_told(pair)}"):
        output = run(x)
    if output is None:
        return f"for {_told(pair)}, what wrap returns {NO_RETURN}.", x
    if not layer.masks:
        return f"for {_told(pair)}, the layer was never called.", x
    mask = layer.masks[-1]
    if not isinstance(output, Tensor) or not torch.equal(output, x * mask * 2):
        return f"for {_told(pair)}, the output is not that of the layer.", x
    return "", mask


def _drawn(step: Any, i: int, j: int) -> Tensor:
    """Return the mask of a pair."""
    layer = OwnDropout()
    _, mask = _called(step.wrap(layer, i, j), layer, (i, j))
    return mask


def _fault_of_pair(step: Any, i: int, j: int) -> tuple[str, Tensor]:
    """Draw a pair's mask in one thread and once more in another, as forward and recompute do."""
    layer = OwnDropout()
    nothing = torch.empty(0)
    with in_case(f"for {_told((i, j))}"):
        run = step.wrap(layer, i, j)
    if run is None:
        return f"for {_told((i, j))}, wrap {NO_RETURN}.", nothing
    if not callable(run):
        return f"for {_told((i, j))}, wrap is to return a function of x, not {type(run).__name__}.", nothing
    before = torch.get_rng_state()
    fault, first = _called(run, layer, (i, j))
    if fault:
        return fault, first
    if not torch.equal(before, torch.get_rng_state()):
        return (
            f"for {_told((i, j))}, the call has moved the generator of the whole process, from which others draw, too.",
            first,
        )
    found: list[tuple[str, Tensor]] = []
    thread = Thread(target=lambda: found.append(_called(run, layer, (i, j))), daemon=True)
    thread.start()
    thread.join()
    if not found:
        return f"for {_told((i, j))}, the second call, in another thread, has raised an error.", first
    fault, second = found[0]
    if fault or torch.equal(first, second):
        return fault, first
    fresh = _drawn(step, i, j)
    why = "draws other numbers than the first"
    if torch.equal(fresh, first):
        why = "goes on where the first one ended"
    return f"for {_told((i, j))}, the second call, the recompute, {why}.", first


def _fault_of_equal_pairs(masks: dict[_Pair, Tensor]) -> str:
    found: dict[tuple[int, ...], _Pair] = {}
    shared = ""
    for pair, mask in masks.items():
        key = tuple(mask.int().tolist())
        if key in found and not shared:
            shared = f"{_told(found[key])} and {_told(pair)} draw the same mask"
        found.setdefault(key, pair)
    if not shared:
        return ""
    return f"{shared}; {len(masks)} pairs have {len(found)} masks."
