"""How a backward in two halves is tried: by values, by matrix products, and by what stays alive in between.

    F   forward            I   the input's gradient            W   the weights' gradient, from `later`

Two micro-batches: both F's, both I's, then the W of the later one first, so that each must know its own.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from support.kit.raised import InCaseError, in_case
from support.n14.products import with_flops

ROWS = 5
INPUTS = 4
OUTPUTS = 3
#: Floating point operations of one matrix product of this size.
PRODUCT = 2 * ROWS * INPUTS * OUTPUTS
GRAD_CHANGED_IN_F = "after F `weight.grad` has changed: only W adds to it."
SET_TO_NONE = "{} has set `weight.grad` to None: only W changes it, and adds to it."
IN_W = "in W (what I put into `later`)"


def fault_of_split(answer: Any) -> str:
    """Say what is wrong with a layer whose backward is cut in two, "" if nothing."""
    _products(lambda: torch.ones(2, 2).mm)  # the first count in a process imports much, and keeps it
    gc.collect(0)
    gc.disable()  # so that new objects stay in the youngest generation, where `_storages` looks
    try:
        trial = _Trial(answer)
        with torch.enable_grad():  # whoever switches it off does so for this trial only
            return (
                trial.fault_of_forward_and_input()
                or trial.fault_between()
                or trial.fault_of_weights()
                or trial.fault_one_by_one()
                or trial.fault_of_shared_list()
                or trial.fault_in_another_order()
                or trial.fault_of_doubles()
                or trial.fault_on_another_device()
                or trial.fault_while_the_output_lives()
                or trial.fault_while_another_waits()
                or trial.fault_at_the_end()
            )
    finally:
        gc.enable()


def _products(work: Callable[[], Any]) -> tuple[Any, float]:
    """Return what `work` returns, and how many matrix products it has cost."""
    result, flops = with_flops(work)
    return result, flops / PRODUCT


def _storages() -> dict[int, torch.UntypedStorage]:
    """Return the storages of the tensors made since gc was disabled, and of a few older ones, by address."""
    found = [one for one in gc.get_objects(generation=0) if type(one) in (Tensor, nn.Parameter)]
    kept = [one.untyped_storage() for one in found if one.layout == torch.strided]
    return {each.data_ptr(): each for each in kept}


def _holds(things: list[Any], thing: Any) -> bool:
    return any(one is thing for one in things)


def _let_go(tensor: Tensor) -> Callable[[], bool]:
    """Return what says whether nobody holds this memory any more, neither by the tensor nor by a view of it."""
    weak: Any = StorageWeakRef  # torch gives it no types
    storage = weak(tensor.untyped_storage())
    return lambda: bool(storage.expired())


class _Trial:
    """Two micro-batches through one layer; each method goes on where the one before has stopped."""

    def __init__(self, answer: Any) -> None:
        # Held: none of them goes while we count, and none of ours comes at its address.
        self.others = _storages()
        draw = torch.Generator().manual_seed(0)
        self.answer = answer
        self.weight = torch.randn(OUTPUTS, INPUTS, generator=draw).requires_grad_()
        self.xs = [torch.randn(ROWS, INPUTS, generator=draw).requires_grad_() for _ in range(2)]
        self.gradients = [torch.randn(ROWS, OUTPUTS, generator=draw) for _ in range(2)]
        self.later: list[list[Any]] = [[], []]
        self.outputs: list[weakref.ref[Tensor]] = []
        self.before = self.alive()
        self.came = self.values()

    def alive(self) -> int:
        """Return the bytes of the tensors made since this trial began, each storage once."""
        return sum(each.nbytes() for address, each in _storages().items() if address not in self.others)

    def values(self) -> dict[str, Any]:
        """Return the values of what an answer may read, and must leave as they came."""
        return {
            "x": [x.tolist() for x in self.xs],
            "weight": self.weight.tolist(),
            "the gradient of y": [gradient.tolist() for gradient in self.gradients],
        }

    def fault_in_place(self, op: str) -> str:
        """Say what `op` has changed: what comes after compares with it."""
        changed = [name for name, values in self.values().items() if values != self.came[name]]
        return f"{op} has changed {changed[0]} in place, and others may hold it." if changed else ""

    def fault_of_forward_and_input(self) -> str:
        """F and I of both; the outputs are let go of at the end."""
        with in_case("in forward"):
            ys = [
                self.answer.apply(x, self.weight, owed) for x, owed in zip(self.xs, self.later, strict=True)
            ]
        fault = self.fault_in_place("F")
        if fault:
            return fault
        for x, y in zip(self.xs, ys, strict=True):
            if not isinstance(y, Tensor):
                return f"forward returned {y}, expected a tensor."
            if y.shape != (ROWS, OUTPUTS) or not torch.allclose(y, x @ self.weight.T):
                return f"forward doesn't return x @ weight.T, of shape {(ROWS, OUTPUTS)}."
        if any(self.later):
            return "after F there is something in `later` already, and no gradient yet: backward appends the function."
        if self.weight.grad is not None:
            return GRAD_CHANGED_IN_F
        more = self.alive() - self.before - sum(y.nbytes for y in ys)
        if more > 0:
            return f"after F {more} bytes are kept beside x and y: W needs no copy, only x and the gradient."
        self.outputs = [weakref.ref(y) for y in ys]
        for k, y in enumerate(ys):
            fault = self.fault_of_input(k, y)
            if fault:
                return fault
        return ""

    def fault_of_input(self, k: int, y: Tensor) -> str:
        """I of micro-batch k."""
        gradient = self.gradients[k]
        backward = partial(torch.autograd.grad, y, self.xs[k], gradient, allow_unused=True)
        with in_case("in I (backward)"):
            (found,), cost = _products(backward)
        fault = self.fault_in_place("I")
        if fault:
            return fault
        if found is None:
            return "backward returned None for x: the stage before waits for that gradient."
        if found.shape != self.xs[k].shape or not torch.allclose(found, gradient @ self.weight):
            return "the gradient of x is wrong: if y = x Wᵀ, it is gradient @ weight."
        owed = self.later[k]
        if len(owed) != 1:
            return (
                f"after I there are {len(owed)} functions in `later`, expected 1: the W of this micro-batch. "
                f"Matrix products in I: {cost:g}."
            )
        if not callable(owed[0]):
            return f"`later` holds a {type(owed[0]).__name__}, which cannot be called: append the function itself."
        if cost > 1.5:
            with in_case(IN_W):
                _, rest = _products(owed[0])
            return f"I costs {cost:g} matrix products and W {rest:g}, expected 1 each."
        if cost < 0.5:
            return (
                "torch counts no matrix product in I, expected 1: write the sum as one, with tensors and @."
            )
        if found.requires_grad:
            return "the gradient of x requires a gradient itself, which autograd's doesn't."
        if found.is_inference():
            return (
                "the gradient of x is an inference tensor: who changes it in place later gets a RuntimeError. "
                "Autograd runs backward without a graph anyway."
            )
        if self.weight.grad is not None:
            return "after I `weight.grad` is there already: that is for W to compute."
        return ""

    def fault_between(self) -> str:
        """Between I and W x and the gradient are all that is kept."""
        if any(output() is not None for output in self.outputs):
            return "after I the output is still alive: W needs x and the gradient only, so keep nothing else."
        more = self.alive() - self.before
        if more > 0:
            return f"between I and W {more} bytes are kept beside x and the gradient."
        return ""

    def fault_of_weights(self) -> str:
        """W of both, the later micro-batch first."""
        total = torch.zeros_like(self.weight)
        for k in (1, 0):
            first = self.weight.grad is None
            part = self.gradients[k].T @ self.xs[k].detach()
            work = self.later[k].pop()
            try:
                _, cost = _products(work)
            except (Exception, SystemExit) as error:
                at_first = "`weight.grad` is None at first: then set it, and add only later."
                raise InCaseError(
                    IN_W, error, at_first if first and self.runs_from_zeros(work) else ""
                ) from error
            del work
            if not torch.is_grad_enabled():
                return (
                    "W leaves autograd switched off for everybody: use `with torch.no_grad():`, which ends."
                )
            if not self.weight.requires_grad:
                return "after W `weight.requires_grad` is False: use `with torch.no_grad():`, which ends."
            fault = self.fault_in_place("W")
            if fault:
                return fault
            total += part
            found = self.weight.grad
            if found is None:
                return "after W `weight.grad` is None."
            if found.requires_grad and found.is_leaf:
                return "after W `weight.grad` requires a gradient itself, which autograd's doesn't."
            if found.requires_grad:
                return "after W `weight.grad` has a graph of its own, which keeps x alive."
            if found.is_inference():
                return (
                    "after W `weight.grad` is an inference tensor: who changes it in place later, as clipping does, "
                    "gets a RuntimeError. torch.no_grad() is enough."
                )
            if not torch.allclose(found, total):
                which = "of the first W" if k == 1 else "of two micro-batches (they add up)"
                return f"the gradient of the weights {which} is not autograd's."
            if cost > 1.5:
                return f"W costs {cost:g} matrix products, expected 1."
            if cost < 0.5:
                return (
                    "torch counts no matrix product in W, expected 1: write the sum over the rows as one, "
                    "with tensors and @."
                )
        return ""

    def runs_from_zeros(self, work: Callable[[], Any]) -> bool:
        """Say whether a function that has failed runs where `weight.grad` is set already."""
        self.weight.grad = torch.zeros_like(self.weight)
        try:
            work()
        except (Exception, SystemExit):
            return False
        return True

    def fault_one_by_one(self) -> str:
        """F, I and W of one micro-batch, then of the next, which is data: its x needs no gradient.

        In between somebody changes the gradient in place, as clipping does.
        """
        self.weight.grad = None
        for x, gradient in zip((self.xs[0], self.xs[1].detach()), self.gradients, strict=True):
            waiting: list[Any] = []
            with in_case("in the order F0 I0 W0 F1 I1 W1"):
                before = self.weight.grad
                y = self.answer.apply(x, self.weight, waiting)
                if self.weight.grad is None and before is not None:
                    return SET_TO_NONE.format("F")
                if self.weight.grad is not before:
                    return GRAD_CHANGED_IN_F
                torch.autograd.backward(y, gradient)
                if not (waiting or x.requires_grad):
                    return "where x needs no gradient, `later` is empty after I: W is owed all the same."
                if self.weight.grad is None and before is not None:
                    return SET_TO_NONE.format("I")
                if self.weight.grad is not before:
                    return "after I `weight.grad` has changed: return None for weight, W adds to it."
                waiting.pop()()
            if before is None and self.weight.grad is not None:
                self.weight.grad.mul_(2)
        first, second = (g.T @ x.detach() for g, x in zip(self.gradients, self.xs, strict=True))
        found: Tensor | None = self.weight.grad
        if found is None or not torch.allclose(found, 2 * first + second):
            return (
                "in the order F0 I0 W0 F1 I1 W1, where somebody doubles `weight.grad` in place after W0, "
                "it is wrong after W1: W adds to what is there."
            )
        return ""

    def fault_of_shared_list(self) -> str:
        """F, I of two layers with one list, then everything in it, as the notebook does."""
        draw = torch.Generator().manual_seed(1)
        weights = [torch.randn(OUTPUTS, INPUTS, generator=draw).requires_grad_() for _ in range(2)]
        x = torch.randn(ROWS, INPUTS, generator=draw).requires_grad_()
        waiting: list[Any] = []
        with in_case("with two layers that share `later`"):
            sums = [self.answer.apply(x, weight, waiting).sum() for weight in weights]
            torch.autograd.grad(sums, x)
            count = len(waiting)
            runs = 0
            for work in waiting:
                work()
                runs += 1
        expected = torch.ones(ROWS, OUTPUTS).T @ x.detach()
        for weight in weights:
            if weight.grad is None and count != 2:
                functions = "1 function" if count == 1 else f"{count} functions"
                return f"two layers share `later`: {functions} in it after both I's, expected 2."
            if weight.grad is None and runs == count:
                return (
                    "two layers share `later`, both functions have run, and one weight is without a gradient: "
                    "each adds to the weight of its own layer."
                )
            if weight.grad is None:
                return (
                    "two layers share `later`, and `for work in later: work()` leaves one weight without a "
                    "gradient: whoever runs the functions empties the list."
                )
            if not torch.allclose(weight.grad, expected):
                return "where two layers share `later`, the gradient of a weight is not autograd's."
        return ""

    def fault_in_another_order(self) -> str:
        """F0 F1 I1 F2 I0 I2 W0 W2 W1 of one layer, with one list: no queue or stack gives each W its own."""
        draw = torch.Generator().manual_seed(2)
        weight = torch.randn(OUTPUTS, INPUTS, generator=draw).requires_grad_()
        xs = [torch.randn(ROWS, INPUTS, generator=draw).requires_grad_() for _ in range(3)]
        waiting: list[Any] = []
        ys: dict[int, Tensor] = {}
        works: dict[int, Any] = {}
        with in_case("in the order F0 F1 I1 F2 I0 I2"):
            for op, i in ("F0", "F1", "I1", "F2", "I0", "I2"):
                k = int(i)
                before = list(waiting)
                if op == "I":
                    torch.autograd.grad(ys[k], xs[k], torch.full((ROWS, OUTPUTS), k + 1.0))
                    # where in the list it stands is the answer's own, and so is what == says of two
                    works[k] = next((one for one in waiting if not _holds(before, one)), waiting[-1])
                else:
                    ys[k] = self.answer.apply(xs[k], weight, waiting)
                if not all(_holds(waiting, one) for one in before):
                    return f"{op} takes out of `later` what another micro-batch owes."
        total = torch.zeros_like(weight)
        for k in (0, 2, 1):
            waiting[:] = [one for one in waiting if one is not works[k]]
            with in_case(f"in W{k} of the order F0 F1 I1 F2 I0 I2 W0 W2 W1"):
                works.pop(k)()
            total += (k + 1) * torch.ones(OUTPUTS, ROWS) @ xs[k].detach()
            if weight.grad is None or not torch.allclose(weight.grad, total):
                return (
                    f"in the order F0 F1 I1 F2 I0 I2 W0 W2 W1 the sum after W{k} is not autograd's: "
                    "each W needs its own x and gradient."
                )
        return ""

    def fault_of_doubles(self) -> str:
        """One micro-batch in float64: a square weight, a transposed x, a gradient that is one number, expanded."""
        draw = torch.Generator().manual_seed(3)
        weight = torch.randn(INPUTS, INPUTS, generator=draw, dtype=torch.float64).requires_grad_()
        x = torch.randn(INPUTS, ROWS, generator=draw, dtype=torch.float64).T.requires_grad_()
        waiting: list[Any] = []
        before = self.alive()
        with in_case("in float64, with a square weight"):
            y = self.answer.apply(x, weight, waiting)
            more = self.alive() - before - y.untyped_storage().nbytes()
            if more > 0:
                return f"after F {more} bytes are kept beside x, a transposed tensor, and y."
            if not torch.allclose(y, x @ weight.T, rtol=0, atol=1e-12):
                return "in float64, with a square weight, forward doesn't return x @ weight.T."
            gradient = torch.ones((), dtype=y.dtype).expand_as(y)
            before = self.alive()
            (found,) = torch.autograd.grad(y, x, gradient)
            more = self.alive() - before - found.untyped_storage().nbytes()
            if more > 0:
                return f"from I to W {more} bytes are kept beside x and a gradient that is expanded, as after a sum."
            waiting.pop()()
        of_x = gradient @ weight.detach()
        of_weights = gradient.T @ x.detach()
        for whose, got, expected in (("x", found, of_x), ("the weights", weight.grad, of_weights)):
            if got is None or not torch.allclose(got, expected, rtol=0, atol=1e-12):
                return f"in float64, with a square weight, the gradient of {whose} is not autograd's."
        return ""

    def fault_on_another_device(self) -> str:
        """F, I and W on torch's device "meta", which knows shapes and no values: nothing may be on another."""
        weight = torch.empty(OUTPUTS, INPUTS, device="meta").requires_grad_()
        x = torch.empty(ROWS, INPUTS, device="meta").requires_grad_()
        waiting: list[Any] = []
        try:
            y = self.answer.apply(x, weight, waiting)
            torch.autograd.grad(y, x, torch.empty_like(y))
            waiting.pop()()
        except RuntimeError as error:
            if "same device" in str(error) or "device meta" in str(error):
                raise InCaseError(
                    'where x and weight are on another device (torch\'s "meta")', error
                ) from error
        except Exception:
            return ""  # who asks for values, as an assert does, is right all the same
        return ""

    def fault_while_the_output_lives(self) -> str:
        """Nobody keeps anything after W, also where somebody still has y.

        x is no leaf, for autograd keeps its leaves; and what we watch is nobody's but the answer's.
        """
        x = self.xs[0].detach().clone().requires_grad_().mul(2)
        gradient = self.gradients[0].clone()
        waiting: list[Any] = []
        y = self.answer.apply(x, self.weight, waiting)
        (found,) = torch.autograd.grad(y, x, gradient)
        waiting.pop()()
        watched = {"x": x, "the gradient that came in": gradient, "the gradient of x": found}
        gone = {name: _let_go(each) for name, each in watched.items()}
        del x, gradient, found, watched
        kept = [name for name, is_gone in gone.items() if not is_gone()]
        del y
        if not kept:
            return ""
        name = kept[0]
        if not gone[name]():
            return f"{name} is still alive when I and W are done, and y is gone: something of yours still holds it."
        return f"while somebody has y, {name} is still alive when I and W are done: y or its node keeps it."

    def fault_while_another_waits(self) -> str:
        """Two micro-batches in one list: the first function that is done and forgotten lets its x go."""
        waiting: list[Any] = []
        gone: list[dict[str, Callable[[], bool]]] = []
        for leaf, came in zip(self.xs, self.gradients, strict=True):
            x = leaf.detach().mul(2).requires_grad_()
            gradient = came.clone()
            gone.append({"x": _let_go(x), "the gradient": _let_go(gradient)})
            y = self.answer.apply(x, self.weight, waiting)
            torch.autograd.grad(y, x, gradient)
            del x, y, gradient
        if any(each["x"]() for each in gone):
            return "x is gone between I and W: keep x itself."
        waiting.pop(0)()
        for name in ("x", "the gradient"):
            if not any(each[name]() for each in gone):
                return f"{name} of a micro-batch whose W is done is still alive while another W waits in the same list."
        return ""

    def fault_at_the_end(self) -> str:
        """Nobody keeps x."""
        inputs = [weakref.ref(x) for x in self.xs]
        self.xs.clear()
        gc.collect(0)
        if any(x() is not None for x in inputs):
            return "x is still alive when I and W are done: somebody keeps it."
        return ""
