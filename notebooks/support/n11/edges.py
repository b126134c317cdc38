"""What MyFork and MyJoin of notebook 11 are tried with: values, memory, gradients, and the order of two chains."""

# mypy: allow-untyped-calls

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from support.kit.raised import in_case
from support.kit.values import kind_of
from support.n11 import runs
from support.n11.memory import NewMemory
from support.n11.runs import far_ahead, step
from support.n11.trials import MEANINGS, elsewhere


def fault_of_fork_join(answer: tuple[runs.AutogradFunction, runs.AutogradFunction]) -> str:
    """Look at the phony, the values, the gradients, and the order that the edge forces."""
    fork, join = answer
    for case, x in _inputs():
        fault = _fault_of_fork(fork, case, x)
        fault = fault or _fault_of_what_join_gives(join, case, *fork.apply(x))
        if fault:
            return fault
    if fork.apply(_strided(1.0))[1].untyped_storage().nbytes():
        return "The phony has no elements and keeps memory alive: torch.empty(0) keeps none."
    return (
        _fault_of_whole_numbers(fork, join)
        or _fault_of_join(fork, join)
        or _fault_of_what_is_kept(fork, join)
        or _fault_of_copies(fork, join)
    )


def _strided(value: float) -> Tensor:
    """Return a leaf that is no row of floats: a copy that is made only of other memory formats or types shows, too."""
    return torch.arange(1.0, 7.0, dtype=torch.float64).reshape(2, 3).t().mul(value).requires_grad_()


def _inputs() -> Iterator[tuple[str, Tensor]]:
    """Yield tensors of several shapes and types, each with its name."""
    yield "", _strided(1 / 3) * 2
    yield " for a single number", torch.tensor(0.5, requires_grad=True) * 2
    halves = torch.arange(4.0, dtype=torch.bfloat16).reshape(1, 4, 1).requires_grad_() * 2
    yield " for one row of half floats", halves[:, 1:]  # it begins inside other memory


def _told_change(name: str, x: Tensor, y: Tensor) -> str:
    """Say what this function has changed of x, "" for nothing."""
    if y.shape != x.shape:
        return f"{name} must not change x: what came out has shape {(*y.shape,)} in place of {(*x.shape,)}."
    if y.dtype != x.dtype:
        return f"{name} must not change x: it was of {x.dtype} and is of {y.dtype}."
    if not torch.equal(y, x):
        return f"{name} must not change x: what came out has other numbers."
    if y.data_ptr() != x.data_ptr():
        return f"{name} copies x, number by number. Nothing is to be copied: give the same memory out again."
    return ""


def _fault_of_fork(fork: runs.AutogradFunction, case: str, x: Tensor) -> str:
    with in_case(f"in MyFork.forward{case}"):
        forked = fork.apply(x)
        fork.apply(x)  # a second one must not take the first one's edge
    if not isinstance(forked, tuple) or len(forked) != 2 or not all(isinstance(y, Tensor) for y in forked):
        given = kind_of(forked)
        if isinstance(forked, tuple):
            given = f"({', '.join(type(y).__name__ for y in forked)})"
        return f"MyFork.forward must return two tensors, (x, phony), not {given}."
    y, phony = forked
    fault = _told_change("MyFork", x, y)
    if fault:
        return fault
    if phony.numel():
        return (
            f"The phony has {phony.numel()} elements. It carries an edge, no data: torch.empty(0) has none."
        )
    if y.grad_fn is x.grad_fn:
        return "x and what came out have one node: leave x as it is, and give out a tensor that a Fork node made."
    if not phony.is_floating_point():
        return f"The phony is of {phony.dtype}: only floating-point numbers have gradients, so it carries no edge."
    if not phony.requires_grad or phony.grad_fn is not y.grad_fn:
        return (
            "The phony does not lead to this Fork: it must be an output of MyFork.forward, made there in each "
            "call and not outside, and not marked non-differentiable."
        )
    return ""


def _fault_of_what_join_gives(join: runs.AutogradFunction, case: str, x: Tensor, phony: Tensor) -> str:
    with in_case(f"in MyJoin.forward{case}", MEANINGS):
        y = join.apply(x, phony)
    if not isinstance(y, Tensor):
        return f"MyJoin.forward must return one tensor, not {kind_of(y)}."
    return _told_change("MyJoin", x, y)


def _fault_of_whole_numbers(fork: runs.AutogradFunction, join: runs.AutogradFunction) -> str:
    """Say what becomes of a tensor that can have no gradient."""
    x = torch.arange(3)
    with in_case("in MyFork.forward for whole numbers"):
        forked = fork.apply(x)[0]
    with in_case("in MyJoin.forward for whole numbers"):
        joined = join.apply(x, fork.apply(_strided(1.0))[1])
    return _told_change("MyFork", x, forked) or _told_change("MyJoin", x, joined)


def _fault_of_join(fork: runs.AutogradFunction, join: runs.AutogradFunction) -> str:
    ran: list[str] = []
    x, y = (_strided(1.0) for _ in range(2))
    to_a, to_b = (torch.full_like(x, value).detach() for value in (0.2, 0.3))  # as x lies: columns, not rows
    far_ahead()
    with in_case("in forward or backward", MEANINGS):
        a, phony = fork.apply(step(step(x, "a0", ran), "a1", ran))
        start = join.apply(y, phony)
        b = elsewhere(lambda: step(step(start, "b0", ran), "b1", ran))
        handed = [_note_handed(y) for y in (a, start)]
        (to_a * a + to_b * b).sum().backward()
    for name, function, grad, want, seen in (
        ("a", "MyFork", x.grad, to_a, handed[0]),
        ("b", "MyJoin", y.grad, to_b, handed[1]),
    ):
        if grad is None or not grad.any():
            given = "Return grad_x; the phony's is not needed." if name == "a" else "Return grad_x, None."
            if not seen and grad is None:
                return f"{function}.backward is not called: chain {name} gets no gradient."
            what = "None" if "None" in seen else "zeros"
            return f"{function}.backward returns {what}: chain {name} gets no gradient. {given}"
        if not torch.allclose(grad, want, rtol=1e-5):
            told = f"{grad.flatten()[0].item():g}, not {want.flatten()[0].item():g}"
            return f"The gradient of chain {name} is {told}: {function} must not change it."
        if "elsewhere" in seen:
            return (
                f"What {function}.backward returns lies in other memory than the gradient that it got. Nothing is to "
                "be copied or computed: hand on that gradient itself."
            )
    if ran != ["b1", "b0", "a1", "a0"]:
        return (
            f"Backward ran {' '.join(ran)}, so nothing holds a back. Join must take the phony as an input of apply "
            "and return a tensor that a Join node made."
        )
    return ""


def _fault_of_copies(fork: runs.AutogradFunction, join: runs.AutogradFunction) -> str:
    """Say what copies a tensor or its gradient, also where the copy is thrown away or kept."""
    for case, x in _inputs():
        gradient = torch.full_like(x, 0.5).detach()
        phony = fork.apply(_strided(1.0))[1]
        for name, function, more in (("MyFork", fork, ()), ("MyJoin", join, (phony,))):
            written = x._version + gradient._version
            with in_case(f"in {name}{case}", MEANINGS), NewMemory(x.numel()) as new:
                given = function.apply(x, *more)
                y = given if name == "MyJoin" else given[0]
                (back,) = torch.autograd.grad(y, x, gradient)
            if new.operators:
                return f"In {name}{case} {new.operators[0]!r} gives new memory, as large as x: nothing is to be copied."
            if x._version + gradient._version > written:
                return f"In {name}{case} a tensor is written in place: backward raises where it was saved."
            if back.data_ptr() != gradient.data_ptr():
                return f"{name}.backward{case} returns a copy of the gradient. Nothing is to be copied."
    return ""


def _note_handed(output: Tensor) -> list[str]:
    """Note, when the node of this tensor has run, what it hands on: "None", the "same" memory, or some "elsewhere"."""
    noted: list[str] = []

    def note(given: tuple[Tensor | None, ...], got: tuple[Tensor | None, ...]) -> None:
        if given[0] is None:
            noted.append("None")
        elif got[0] is not None:
            noted.append("same" if given[0].data_ptr() == got[0].data_ptr() else "elsewhere")

    if output.grad_fn is not None:
        output.grad_fn.register_hook(note)
    return noted


class _Lent(torch.autograd.Function):
    """Give out the memory of an array, so that one can see when nobody holds it any longer."""

    @staticmethod
    def forward(ctx: Any, leaf: Tensor, array: Any) -> Tensor:
        return torch.from_numpy(array)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient, None


def _noting(saved: list[int]) -> saved_tensors_hooks:
    """Note the size of each tensor that is saved meanwhile, and leave it as it is."""

    def note(x: Tensor) -> Tensor:
        saved.append(x.numel())
        return x

    return saved_tensors_hooks(note, lambda x: x)


def _fault_of_what_is_kept(fork: runs.AutogradFunction, join: runs.AutogradFunction) -> str:
    """Say which of both holds what it got, or gave, until backward."""
    leaf = torch.ones(3, requires_grad=True)
    for name in ("MyFork", "MyJoin"):
        array = np.ones(3, dtype=np.float32)
        memory = weakref.ref(array)
        saved: list[int] = []
        with _noting(saved):
            x, phony = fork.apply(_Lent.apply(leaf, array))
            loss = (x if name == "MyFork" else join.apply(x, phony)).sum()
        carrier = weakref.ref(phony)
        del array, x, phony
        if memory() is not None:
            return f"From forward to backward {name} keeps its tensor, and so its memory; it needs nothing of it there."
        if carrier() is not None or saved:
            return (
                f"From forward to backward {name} keeps a tensor; the edge is in the graph, and needs none."
            )
        del loss
    return ""
