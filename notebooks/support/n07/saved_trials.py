"""What saved_bytes of notebook 07 is tried with: networks and views of which it is known what autograd keeps."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from support.kit.judged import Fault
from support.kit.raised import in_case, named
from support.n07.judges import NONE, random


@dataclass(frozen=True)
class KnownBytes:
    """A forward of which the bytes are known. why: what they are."""

    told: str
    forward: Callable[[], Any]
    there: list[Tensor]
    due: int
    why: str


def _network(layers: int, dtype: torch.dtype) -> nn.Sequential:
    model = nn.Sequential(*(part for _ in range(layers) for part in (nn.Linear(6, 6), nn.ReLU())))
    for number, parameter in enumerate(model.parameters()):
        parameter.data = random(*parameter.shape, seed=number, dtype=dtype)
    return model


def _of_network(
    layers: int, dtype: torch.dtype, chunks: int = 1, *, input_is_there: bool = True
) -> KnownBytes:
    """Return the case of one network, whose forward takes its batch in so many parts."""
    model = _network(layers, dtype)
    x = random(8, 6, dtype=dtype)
    kind = str(dtype).removeprefix("torch.")
    parts = "" if chunks == 1 else f", in {chunks} parts"
    told = f"{layers} × (Linear(6, 6), ReLU) in {kind}, 8 rows{parts}"
    outputs = f"{'each' if layers > 1 else 'the'} ReLU's output"
    there: list[Tensor] = [*model.parameters()]
    if input_is_there:
        there.append(x)
    return KnownBytes(
        told if input_is_there else f"{told}; x not in `there`",
        lambda: sum(model(part).sum() for part in x.tensor_split(chunks)),
        there,
        layers * x.nbytes if input_is_there else (1 + layers) * x.nbytes,
        outputs if input_is_there else f"x, and {outputs}",
    )


def _of_views() -> list[KnownBytes]:
    """Return cases in which what is saved is a view of something else."""
    a = random(8, 6, dtype=torch.float32).requires_grad_()
    row = random(1, 64, dtype=torch.float32).requires_grad_()
    many = random(16, 64, dtype=torch.float32).requires_grad_()
    return [
        KnownBytes(
            "(a @ a.T)[:1].sin(), a there",
            lambda: (a @ a.T)[:1].sin(),
            [a],
            8 * 8 * 4,
            "all 8 rows of a @ a.T",
        ),
        KnownBytes(
            "row.exp().expand(16, 64) * many, row and many there",
            lambda: row.exp().expand(16, 64) * many,
            [row, many],
            64 * 4,
            "64 numbers, however often they are read",
        ),
        KnownBytes(
            "h = a.exp(); h[:4] * h[4:], a there",
            lambda: (lambda h: h[:4] * h[4:])(a.exp()),
            [a],
            a.nbytes,
            "h, in both halves and as the result of exp",
        ),
        KnownBytes(
            "a * a and a.exp()", lambda: (a * a, a.exp()), [], 2 * a.nbytes, "a, and the result of exp"
        ),
    ]


def fault_of_saved(answer: Any) -> str:
    """Let it count; then backward must work, the graph must die with its loss, and nothing may be copied."""
    found: list[str] = []
    transcript: list[str] = []
    for case in (
        _of_network(1, torch.float32),
        _of_network(3, torch.float32),
        _of_network(2, torch.float64),
        _of_network(2, torch.float32, 4),
        _of_network(2, torch.float32, input_is_there=False),
        *_of_views(),
    ):
        with in_case(case.told):
            got = answer(case.forward, case.there)
        if got is None:
            return NONE
        transcript.append(str(got))
        if isinstance(got, Tensor):
            return f"{case.told}: expected a number, {case.due}, got a tensor."
        if got != case.due:
            found.append(f"{case.told}: expected {case.due} bytes ({case.why}), got {got}.")
    if found:
        return Fault(found[0], "\n".join(transcript))
    return _fault_of_graph(answer) or _fault_of_address(answer) or _fault_of_dead(answer)


def _fault_of_graph(answer: Any) -> str:
    """Say whether forward was called once, backward still works, and the saved tensors die with the loss."""
    model = _network(3, torch.float32)
    x = random(8, 6, dtype=torch.float32)
    weights = [next(model.parameters())]
    (right,) = torch.autograd.grad(model(x).sum(), weights)
    held = list[Any]()
    alive = list[Any]()
    inner = model[1].register_forward_hook(lambda *seen: alive.append(weakref.ref(seen[2])))
    answer(lambda: held.append(model(x).sum()), [*model.parameters(), x])
    inner.remove()
    if len(held) != 1:
        return f"right count, but forward() was called {len(held)} times; once is enough."
    try:
        (gradient,) = torch.autograd.grad(held[0], weights, retain_graph=True)
    except Exception as error:
        return f"right count, but backward() no longer works: {named(error)}."
    if not torch.allclose(gradient, right):
        return "right count, but backward() now gives another gradient."
    held.clear()
    if any(ref() is not None for ref in alive):
        gc.collect()  # a cycle in Python would be harmless, and is rare enough to be worth the wait
    if any(ref() is not None for ref in alive):
        return "right count, but the saved tensors never die, even when the loss is deleted."
    return ""


def _fault_of_address(answer: Any) -> str:
    a = random(3, 3).requires_grad_()
    kept = list[Tensor]()
    answer(lambda: kept.append(a.exp()), [])
    node: Any = kept[0].grad_fn
    if node._saved_result.data_ptr() != kept[0].data_ptr():
        return "right count, but what backward will find is a copy of the saved tensor, at another address."
    return ""


def _fault_of_dead(answer: Any) -> str:
    """Let it count what is freed before forward ends: its memory goes to the next tensor."""
    a = random(64, 64).requires_grad_()

    def forget() -> None:
        for _ in range(20):
            a.exp()

    got = answer(forget, [])
    if got != 20 * a.nbytes:
        many = "more" if got > 20 * a.nbytes else "fewer"  # how many depends on where memory was free
        return f"20 × exp() of which no result is kept: expected {20 * a.nbytes} bytes, got {many}."
    return ""
