"""What the answers of notebook 07 are judged by where comparing results is not enough."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from support.kit.raised import in_case, named
from support.kit.values import NO_RETURN

NONE = f"your function {NO_RETURN}."


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return normally distributed numbers, the same on every call with the same seed."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


PADDING = -100
Labelled: TypeAlias = list[tuple[Tensor, Tensor]]


def fault_of_accumulate(answer: Callable[[nn.Module, Labelled], Any]) -> str:
    """Compare gradient, loss and order of work with the whole batch; tokens[i] labels of part i count."""
    for tokens in ((4, 1, 2), (4, 4), (5, 4), (3,), (1, 2, 3, 4), (4, 0, 1), (2, 2, 2)):
        model = nn.Linear(2, 3, bias=False).double()
        model.weight.data = random(3, 2, seed=7)
        parts = []
        for i, number in enumerate(tokens):
            rows = 5 if i == 0 else 4
            y = torch.arange(rows) % 3
            y[number:] = PADDING
            parts.append((random(rows, 2, seed=10 + i), y))
        xs, ys = (torch.cat(each) for each in zip(*parts, strict=True))
        loss = F.cross_entropy(model(xs), ys, ignore_index=PADDING)
        (due,) = torch.autograd.grad(loss, [model.weight])
        model.weight.grad = torch.ones_like(due)  # of the step before
        events: list[str] = []
        model.register_forward_hook(lambda *_, events=events: events.append("F"))
        model.weight.register_hook(lambda _, events=events: events.append("B"))  # type: ignore[no-untyped-call]
        case = f"micro-batches of {', '.join(map(str, tokens))} tokens"
        where = f"{case}: "
        with in_case(case):
            got = answer(model, parts)
        if got is None:
            return NONE
        found = model.weight.grad
        if found is None:
            return f"{where}nothing is in .grad; was backward() called?"
        off = float((found - due).norm() / due.norm())
        times = float(found.norm() / due.norm())
        if not off < 1e-9:
            length = f"{times:.2f} times as long as" if abs(times - 1) >= 0.005 else "as long as"
            return f"{where}the gradient is {length} the whole batch's, and {100 * off:.0f} % of its length away."
        if isinstance(got, Tensor) and got.requires_grad:
            return f"{where}the loss you return still has its graph; return a number (`.item()`)."
        if not abs(float(got) - loss.item()) < 1e-9:
            return f"{where}right gradient, but the loss is {float(got):.4f}, the whole batch's {loss.item():.4f}."
        if not len(parts) - tokens.count(0) <= events.count("F") <= len(parts):
            calls = "once" if events.count("F") == 1 else f"{events.count('F')} times"
            return f"{where}right gradient, but the model was called {calls} for {len(parts)} micro-batches."
        if "FF" in "".join(events) and 0 not in tokens:
            order = " ".join(events)
            return f"{where}right gradient, but the order is {order}: forwards wait for a backward."
    return ""


def _fault_of_count(answer: Any, layers: int, dtype: torch.dtype, chunks: int) -> str:
    """Let it count one network of so many layers, whose forward takes its batch in so many parts."""
    model = nn.Sequential(*(part for _ in range(layers) for part in (nn.Linear(6, 6), nn.ReLU())))
    for number, parameter in enumerate(model.parameters()):
        parameter.data = random(*parameter.shape, seed=number, dtype=dtype)
    x = random(8, 6, dtype=dtype)
    due = (1 + layers) * x.nbytes
    weights = [next(model.parameters())]
    (right,) = torch.autograd.grad(model(x).sum(), weights)
    held = list[Any]()
    alive = list[Any]()
    inner = model[1].register_forward_hook(lambda *seen: alive.append(weakref.ref(seen[2])))

    def forward() -> Any:
        held.append(sum(model(part).sum() for part in x.tensor_split(chunks)))
        return held[0]

    kind = str(dtype).removeprefix("torch.")
    parts = "" if chunks == 1 else f", in {chunks} parts"
    case = f"{layers} × (Linear(6, 6), ReLU) in {kind}, 8 rows{parts}"
    where = f"{case}: "
    with in_case(case):
        got = answer(forward, model.parameters())
    inner.remove()
    if got is None:
        return NONE
    if isinstance(got, Tensor):
        return f"{where}expected a number, {due}, got a tensor."
    if got != due:
        return f"{where}expected {due} bytes (the input, and each ReLU's output), got {got}."
    if len(held) != 1:
        return f"{where}forward() was called {len(held)} times; once is enough."
    try:
        (gradient,) = torch.autograd.grad(held[0], weights, retain_graph=True)
    except Exception as error:
        return f"{where}right count, but backward() no longer works: {named(error)}."
    if not torch.allclose(gradient, right):
        return f"{where}right count, but backward() now gives another gradient."
    held.clear()
    if any(ref() is not None for ref in alive):
        gc.collect()  # a cycle in Python would be harmless, and is rare enough to be worth the wait
    if any(ref() is not None for ref in alive):
        return f"{where}right count, but the saved tensors never die, even when the loss is deleted."
    return ""


def fault_of_saved(answer: Any) -> str:
    """Let it count networks whose saved tensors are known; backward must work, and the graph must die with its loss."""
    for layers, dtype, chunks in (
        (1, torch.float32, 1),
        (3, torch.float32, 1),
        (2, torch.float64, 1),
        (2, torch.float32, 4),
    ):
        fault = _fault_of_count(answer, layers, dtype, chunks)
        if fault:
            return fault
    a = random(3, 3).requires_grad_()
    kept = list[Tensor]()
    with in_case("a * a and a.exp()"):
        got = answer(lambda: kept.extend((a * a, a.exp())), [])
    if got != 2 * a.nbytes:
        return f"a * a and a.exp(): expected {2 * a.nbytes} bytes (a, and the result of exp), got {got}."
    node: Any = kept[1].grad_fn
    if node._saved_result.data_ptr() != kept[1].data_ptr():
        return "right count, but what backward will find is a copy of the saved tensor, at another address."

    a = random(64, 64).requires_grad_()

    def forget() -> None:
        for _ in range(20):
            a.exp()

    with in_case("20 × exp() of which no result is kept"):
        got = answer(forget, [])
    if got != 20 * a.nbytes:
        many = "more" if got > 20 * a.nbytes else "fewer"  # how many depends on where memory was free
        return f"20 × exp() of which no result is kept: expected {20 * a.nbytes} bytes, got {many}."
    return ""


def fault_of_join(answer: Any) -> str:
    """Ask for the statistics that nn.BatchNorm finds in the whole batch, of two channels in float32."""
    for sizes, offset in ((3, 2, 2), 3.0), ((4, 4), 0.0), ((5,), 1.0), ((2, 7, 3), -2.0), ((2,) * 4, 1e4):
        x = (random(sum(sizes), 2, seed=len(sizes)) + offset).sort(0).values
        parts = torch.split(x.float(), list(sizes))
        case = f"micro-batches of {', '.join(map(str, sizes))} rows, values near {offset:g}"
        where = f"{case}: "
        means = tuple(part.mean(0) for part in parts)
        variances = tuple(part.var(0) for part in parts)
        with in_case(case):
            got = answer(sizes, means, variances)
        norm = nn.BatchNorm1d(2, momentum=1.0).double()
        norm(x)
        if got is None:
            return NONE
        if not isinstance(got, (tuple, list)) or len(got) != 2:
            return f"{where}expected two tensors, mean and variance, got {type(got).__name__}."
        judged_by = (("mean", norm.running_mean, 1e-6), ("variance", norm.running_var, 1e-2))
        for found, (name, due, share) in zip(got, judged_by, strict=True):
            assert due is not None
            near = torch.as_tensor(found).double().reshape(-1)
            if near.shape != due.shape or not torch.allclose(near, due, rtol=share, atol=1e-6):
                shown = ", ".join(f"{value:.3f}" for value in near.tolist())
                return f"{where}the {name} is {shown}, nn.BatchNorm has {due[0]:.3f}, {due[1]:.3f}."
    return ""
