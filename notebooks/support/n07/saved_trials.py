"""What saved_bytes of notebook 07 is tried with: networks and views of which it is known what autograd keeps."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from numbers import Real
from random import Random
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from lib.saved import LiveTensors
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
            "a.T.exp(), a there",
            lambda: a.T.exp(),
            [a],
            a.nbytes,
            "the result of exp, which is also returned",
        ),
        KnownBytes(
            "a * a and a.exp()", lambda: (a * a, a.exp()), [], 2 * a.nbytes, "a, and the result of exp"
        ),
        _of_places(),
        *_of_weights(),
        *map(_drawn, range(12)),
    ]


def _of_places() -> KnownBytes:
    """Return a case in which a mask is saved, and whole numbers: at which rows of a table somebody looked."""
    table = random(10, 4).requires_grad_()
    places = torch.arange(10).repeat(3)
    mask = (places > 4)[:, None]
    return KnownBytes(
        "F.embedding(places, table).masked_fill(mask, 0), table there",
        lambda: F.embedding(places, table).masked_fill(mask, 0),
        [table],
        places.nbytes + mask.nbytes,
        "places, 30 numbers of int64, and mask, 30 of bool",
    )


def _of_weights() -> list[KnownBytes]:
    """Return cases in which two weights share a memory, as in FSDP, and neither has a `_base`."""
    flat = random(10, 6)
    first = nn.Parameter(flat[:4])
    last = nn.Parameter(flat[6:])
    told = "first * last, two weights in one memory"

    def product() -> Tensor:
        return first * last

    return [
        KnownBytes(f"{told}, nothing there", product, [], flat.nbytes, "the memory, once"),
        KnownBytes(f"{told}, the first there", product, [first], 0, "all of it is there"),
    ]


ROWS = 8
Slice: TypeAlias = tuple[str, int]
"""Of which memory, and from which row on."""


def _drawn(seed: int) -> KnownBytes:
    """Return products of slices and exponentials as chance has them; for what is there stand two slices of it."""
    chance = Random(seed)
    dtype = chance.choice((torch.float32, torch.float64))
    memories = {
        name: random(ROWS, 6, seed=seed + i, dtype=dtype).requires_grad_() for i, name in enumerate("abc")
    }
    rows = chance.randint(1, 4)
    works = [
        [(chance.choice("abc"), chance.randint(0, ROWS - rows)) for _ in range(chance.randint(1, 2))]
        for _ in range(chance.randint(2, 4))
    ]
    known = {name: chance.randint(1, 5) for name in chance.sample("abc", chance.randint(0, 2))}

    def cut(one: Slice) -> Tensor:
        name, start = one
        return memories[name][start : start + rows]

    def forward() -> tuple[Tensor, ...]:
        return tuple(cut(work[0]) * cut(work[1]) if len(work) == 2 else cut(work[0]).exp() for work in works)

    factors = sorted({name for work in works if len(work) == 2 for name, _ in work} - known.keys())
    results = sum(len(work) == 1 for work in works)
    return KnownBytes(
        _told(works, rows, known),
        forward,
        [memories[name][first : first + 2] for name, start in known.items() for first in (start, start + 1)],
        len(factors) * memories["a"].nbytes + results * cut(("a", 0)).nbytes,
        ", and ".join([*factors, *[f"{results} × the result of exp"] * (results > 0)]) or "nothing",
    )


def _told(works: list[list[Slice]], rows: int, known: dict[str, int]) -> str:
    """Return the case as code: "a[1:3] * b[0:2], c[4:6].exp(); a[3:5] and a[4:6] there"."""
    cut = [[f"{name}[{start}:{start + rows}]" for name, start in work] for work in works]
    said = ", ".join(" * ".join(each) if len(each) == 2 else f"{each[0]}.exp()" for each in cut)
    there = " and ".join(
        f"{name}[{first}:{first + 2}]" for name, start in known.items() for first in (start, start + 1)
    )
    return f"{said}; {there or 'nothing'} there"


def _called(answer: Any, forward: Callable[[], Any], there: list[Tensor]) -> tuple[Any, int]:
    """Return what an answer returns, and how many pairs of hooks it has left on: they are taken off."""
    ours = list[Tensor]()

    def pack(tensor: Tensor) -> Tensor:
        ours.append(tensor)
        return tensor.detach()

    left = 0
    with saved_tensors_hooks(pack, lambda packed: packed):
        try:
            got = answer(forward, there)
        finally:
            while not _is_asked(ours):
                torch._C._autograd._pop_saved_tensors_default_hooks()
                left += 1
    return got, left


def _is_asked(ours: list[Tensor]) -> bool:
    """Save a tensor, and say whether our own hook got it: it is hidden by one that was left on."""
    ours.clear()
    with suppress(Exception):  # of a hook that was left on
        torch.ones(1, requires_grad=True).exp()
    return bool(ours)


def known_forwards() -> list[KnownBytes]:
    """Return every forward of which the bytes are known."""
    return [
        _of_network(1, torch.float32),
        _of_network(3, torch.float32),
        _of_network(2, torch.float64),
        _of_network(2, torch.float32, 4),
        _of_network(2, torch.float32, input_is_there=False),
        *_of_views(),
    ]


def fault_of_saved(answer: Any) -> str:
    """Let it count; then backward must work, the graph must die with its loss, and nothing may be copied."""
    found: list[str] = []
    transcript: list[str] = []
    left = 0
    changed = False
    flagged = False
    for case in known_forwards():
        there = list(case.there)
        trained = [each.requires_grad for each in there]
        with in_case(case.told):
            got, still_on = _called(answer, case.forward, there)
        left += still_on
        if got is None:
            return NONE
        transcript.append(str(got))
        if not isinstance(got, Real):
            kind = "tensor" if isinstance(got, Tensor) else type(got).__name__
            return f"{case.told}: expected a number, {case.due}, got a {kind}."
        if got != case.due:
            found.append(f"{case.told}: expected {case.due} bytes ({case.why}), got {got}.")
        changed = changed or [id(each) for each in there] != [id(each) for each in case.there]
        flagged = flagged or [each.requires_grad for each in case.there] != trained
    if found:
        return Fault(found[0], "\n".join(transcript))
    if changed:
        return "right count, but the list `there` is no longer what it was."
    if flagged:
        return "right count, but `requires_grad` of a tensor in `there` is no longer what it was."
    if left:
        return (
            "right count, but your hooks are still on after the return: they would hold whatever any later "
            "cell saves. Leave the `with` block."
        )
    return (
        _fault_of_graph(answer)
        or _fault_of_address(answer)
        or _fault_of_halves(answer)
        or _fault_of_dead(answer)
        or _fault_of_broken(answer)
    )


def _fault_of_graph(answer: Any) -> str:
    """Say whether forward was called once, backward still works, and what was saved dies with the loss."""
    model = _network(3, torch.float32)
    x = random(8, 6, dtype=torch.float32)
    weights = [next(model.parameters())]
    (right,) = torch.autograd.grad(model(x).sum(), weights)
    held = list[Any]()
    alive = list[Any]()
    inner = model[1].register_forward_hook(
        lambda *seen: alive.extend([weakref.ref(seen[2]), weakref.ref(seen[2].untyped_storage())])
    )

    def forward() -> Tensor:
        held.append(model(x).sum())
        return held[-1]  # type: ignore[no-any-return]

    answer(forward, [*model.parameters(), x])
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
    tensor, storage = (ref() is not None for ref in alive)
    if tensor:
        return "right count, but the saved tensors never die, even when the loss is deleted."
    if storage:
        return "right count, but something outside your function still holds the memory when the loss is deleted."
    return ""


def _fault_of_address(answer: Any) -> str:
    """Look up what backward will find, of a result and of views drawn by chance, and what else is new in memory."""
    copied = "right count, but what backward will find is a copy of the saved tensor, at another address"
    a = random(32, 32).requires_grad_()
    kept = list[Tensor]()

    def forward() -> Tensor:
        kept.append(a.exp())
        return kept[0]

    with LiveTensors() as live:
        answer(forward, [])
    node: Any = kept[0].grad_fn
    if node._saved_result.data_ptr() != kept[0].data_ptr():
        return f"{copied}."
    if live.peak > 1.5 * a.nbytes:
        return (
            f"right count, but {live.peak} bytes of new tensors are alive at a time, "
            f"of which forward makes only {a.nbytes}."
        )
    for seed in range(12):
        view, told = _drawn_view(seed)
        results = list[Tensor]()
        answer(lambda view=view, results=results: results.append(view.sin()), [])
        found: Any = results[0].grad_fn
        if found._saved_self.data_ptr() != view.data_ptr():
            return f"{copied}: {told}.sin(), a of 4 × 6."
        if found._saved_self.stride() != view.stride():
            return (
                f"right count, but what backward will find reads the memory in another order: {told}.sin()."
            )
    return ""


def _fault_of_halves(answer: Any) -> str:
    """Let backward go through two views of one memory: it counts once, and each view is saved for itself."""
    a = random(8, 6).requires_grad_()
    results = list[Tensor]()
    answer(lambda: results.append(a[:4] * a[4:]), [])
    (found,) = torch.autograd.grad(results[0].sum(), [a])
    if not torch.equal(found, a.detach().roll(4, 0)):
        return "right count, but backward() of a[:4] * a[4:] now gives another gradient."
    return ""


def _drawn_view(seed: int) -> tuple[Tensor, str]:
    """Return a view of a matrix as chance has it, and its code; the first one is the transposed."""
    chance = Random(seed)
    view = random(4, 6, seed=seed).requires_grad_()
    told = "a"
    cuts: dict[str, Callable[[Tensor], Tensor]] = {
        ".T": lambda x: x.T,
        "[1:]": lambda x: x[1:],
        "[:, 1:]": lambda x: x[:, 1:],
        "[::2]": lambda x: x[::2],
        "[None]": lambda x: x[None],
    }
    for name in [".T"] if seed == 0 else chance.sample([*cuts], chance.randint(1, 2)):
        if view.dim() == 2:
            view = cuts[name](view)
            told += name
    return view, told


class _Broken(Exception):
    """Raised in the middle of a forward."""


def _fault_of_broken(answer: Any) -> str:
    """Let forward raise: the hooks must be off all the same, and the error must arrive."""
    arrived = list[_Broken]()

    def breaks() -> None:
        raise _Broken

    def tried(forward: Callable[[], Any], there: list[Tensor]) -> None:
        try:
            answer(forward, there)
        except _Broken as error:
            arrived.append(error)

    _, left = _called(tried, breaks, [])
    if left:
        return (
            "right count, but if forward() raises, your hooks stay on, and hold whatever any later cell saves. "
            "A `with` block is left in any case."
        )
    if not arrived:
        return "right count, but if forward() raises, its error does not reach the caller."
    return ""


def _fault_of_dead(answer: Any) -> str:
    """Let it count what is freed before forward ends: its memory goes to the next tensor."""
    a = random(32, 32).requires_grad_()

    def forget() -> None:
        for _ in range(100):
            a.exp()

    got = answer(forget, [])
    if got != 100 * a.nbytes:
        many = "more" if got > 100 * a.nbytes else "fewer"  # how many depends on where memory was free
        return f"100 × exp() of which no result is kept: expected {100 * a.nbytes} bytes, got {many}."
    return ""
