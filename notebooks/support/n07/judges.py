"""What accumulate and join of notebook 07 are tried with: unequal micro-batches, and torch's own whole batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from support.kit.judged import Fault
from support.kit.raised import in_case
from support.kit.values import NO_RETURN

NONE = f"your function {NO_RETURN}."


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return normally distributed numbers, the same on every call with the same seed."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


# ---- accumulate

PADDING = -100
PLACES = 5
Labelled: TypeAlias = list[tuple[Tensor, Tensor]]
Lengths: TypeAlias = tuple[tuple[int, ...], ...]

#: How many tokens each row has, micro-batch by micro-batch.
LENGTHS: tuple[Lengths, ...] = (
    ((4, 1), (2,)),
    ((3,), (3,)),
    ((5, 2), (4,)),
    ((3,),),
    ((1,), (2, 2), (3,), (4,)),
    ((4,), (0, 0), (1,)),
    ((2, 3), (2, 3), (2, 3)),
)
#: What torch says when it takes places for classes.
CLASSES = "F.cross_entropy looks for the classes in dimension 1. Flatten rows and places into one."


def _labelled(lengths: Lengths) -> Labelled:
    parts = []
    for i, rows in enumerate(lengths):
        y = torch.arange(len(rows) * PLACES).view(len(rows), PLACES) % 3
        for row, length in enumerate(rows):
            y[row, length:] = PADDING
        parts.append((random(len(rows), PLACES, 2, seed=10 + i), y))
    return parts


def fault_of_accumulate(answer: Callable[[nn.Module, Labelled], Any]) -> str:
    """Compare gradient, loss and order of work with the whole batch."""
    for lengths in LENGTHS:
        told = " | ".join(", ".join(map(str, rows)) for rows in lengths)
        fault = _fault_of_gradient(answer, lengths, f"micro-batches with rows of {told} tokens")
        if fault:
            return fault
    return ""


def _fault_of_gradient(answer: Callable[[nn.Module, Labelled], Any], lengths: Lengths, case: str) -> str:
    model = nn.Linear(2, 3, bias=False).double()
    model.weight.data = random(3, 2, seed=7)
    parts = _labelled(lengths)
    scores = torch.cat([model(x).flatten(0, 1) for x, _ in parts])
    loss = F.cross_entropy(scores, torch.cat([y.flatten() for _, y in parts]))
    (due,) = torch.autograd.grad(loss, [model.weight])
    model.weight.grad = torch.ones_like(due)  # of the step before
    events: list[str] = []
    model.register_forward_hook(lambda *_: events.append("F"))
    model.weight.register_hook(lambda _: events.append("B"))  # type: ignore[no-untyped-call]
    where = f"{case}: "
    with in_case(case, {"Expected target size": CLASSES}):
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
        return (
            f"{where}right gradient, but the loss is {float(got):.4f}, the whole batch's {loss.item():.4f}."
        )
    empty = sum(not sum(rows) for rows in lengths)
    if not len(parts) - empty <= events.count("F") <= len(parts):
        calls = "once" if events.count("F") == 1 else f"{events.count('F')} times"
        return f"{where}right gradient, but the model was called {calls} for {len(parts)} micro-batches."
    if "FF" in "".join(events) and not empty:
        order = " ".join(events)
        return f"{where}right gradient, but the order is {order}: forwards wait for a backward."
    return ""


# ---- join


def fault_of_join(answer: Any) -> str:
    """Ask for the statistics that nn.BatchNorm finds in the whole batch, of two channels in float32."""
    found: list[str] = []
    transcript: list[str] = []
    for sizes, offset in (
        ((3, 2, 2), 3.0),
        ((4, 4), 0.0),
        ((5,), 1.0),
        ((2, 7, 3), -2.0),
        ((2,) * 4, 1e4),
        ((90, 2), 1.0),
    ):
        x = (random(sum(sizes), 2, seed=len(sizes)) + offset).sort(0).values
        parts = torch.split(x.float(), list(sizes))
        case = f"micro-batches of {', '.join(map(str, sizes))} values a channel, near {offset:g}"
        means = tuple(part.mean(0) for part in parts)
        variances = tuple(part.var(0) for part in parts)
        with in_case(case):
            got = answer(sizes, means, variances)
        norm = nn.BatchNorm1d(2, momentum=1.0).double()
        norm(x)
        said = _fault_of_statistics(got, norm)
        transcript.append(f"{said} {_digits(got)}")
        if said:
            found.append(said if said == NONE else f"{case}: {said}")
    return Fault(found[0], "\n".join(transcript)) if found else ""


def _digits(got: Any) -> str:
    """Return an answer in a few digits: by them two answers are known to be the same."""
    if not isinstance(got, (tuple, list)):
        return ""
    return str(
        [[f"{value:.2g}" for value in torch.as_tensor(each).double().flatten().tolist()] for each in got]
    )


def _fault_of_statistics(got: Any, norm: nn.BatchNorm1d) -> str:
    if got is None:
        return NONE
    if not isinstance(got, (tuple, list)) or len(got) != 2:
        return f"expected two tensors, mean and variance, got {type(got).__name__}."
    judged_by = (("mean", norm.running_mean, 1e-6), ("variance", norm.running_var, 1e-2))
    for found, (name, due, share) in zip(got, judged_by, strict=True):
        assert due is not None
        near = torch.as_tensor(found).double().reshape(-1)
        if near.shape != due.shape or not torch.allclose(near, due, rtol=share, atol=1e-6):
            shown = ", ".join(f"{value:.3f}" for value in near.tolist())
            return f"the {name} is {shown}, nn.BatchNorm has {due[0]:.3f}, {due[1]:.3f}."
    return ""
