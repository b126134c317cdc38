"""Layers whose backward is cut in two, for exercise 3 of notebook 14: right ones that are not ours, and wrong ones."""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch

from support.n14 import solved


class Detached(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, later):
        ctx.save_for_backward(x, weight)
        ctx.put = later.append
        return torch.nn.functional.linear(x, weight)

    @staticmethod
    def backward(ctx, gradient):
        x, weight = (kept.detach() for kept in ctx.saved_tensors)
        real = ctx.saved_tensors[1]

        def do(x=x, gradient=gradient):
            if real.grad is None:
                real.grad = torch.zeros_like(real)
            real.grad += torch.einsum("ro,ri->oi", gradient, x)

        ctx.put(do)
        return gradient.mm(weight), None, None


class InPlace(Detached):
    """W adds its product in place, by one call."""

    @staticmethod
    def forward(ctx, x, weight, later):
        return Detached.forward(ctx, x, weight, later)

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors

        @torch.no_grad()
        def add_to_weight():
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
            weight.grad.addmm_(gradient.T, x)

        ctx.put(add_to_weight)
        return gradient @ weight, None, None


class InSinglePrecision(Detached):
    """Wrong: the gradient of the weights is of torch's usual type, whatever theirs is."""

    @staticmethod
    def forward(ctx, x, weight, later):
        return Detached.forward(ctx, x, weight, later)

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors

        @torch.no_grad()
        def add_to_weight():
            if weight.grad is None:
                weight.grad = torch.zeros(weight.shape)
            weight.grad += gradient.T @ x

        ctx.put(add_to_weight)
        return gradient @ weight, None, None


class MadeContiguous(solved.SplitLinear):
    """Wrong: a gradient that is expanded, as that of a sum is, gets memory of its own, which W keeps."""

    @staticmethod
    def forward(ctx, x, weight, later):
        return solved.SplitLinear.forward(ctx, x, weight, later)

    @staticmethod
    def backward(ctx, gradient):
        return solved.SplitLinear.backward(ctx, gradient.contiguous())


class ReadsCtx(Detached):
    """Right: its function reads ctx, which has the list, which has the function until somebody empties it."""

    @staticmethod
    def forward(ctx, x, weight, later):
        ctx.save_for_backward(x)
        ctx.weight = weight
        ctx.later = later
        return x @ weight.T

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors

        @torch.no_grad()
        def add_to_weight():
            product = gradient.T @ x
            ctx.weight.grad = product if ctx.weight.grad is None else ctx.weight.grad + product

        ctx.later.append(add_to_weight)
        return gradient @ ctx.weight, None, None


class IntoItsOwnList(solved.SplitLinear):
    """Wrong: backward puts its function into whatever list came last."""

    lists: ClassVar = []

    @staticmethod
    def forward(ctx, x, weight, later):
        IntoItsOwnList.lists.append(later)
        return solved.SplitLinear.forward(ctx, x, weight, later)

    @staticmethod
    def backward(ctx, gradient):
        ctx.later = IntoItsOwnList.lists[-1]
        return solved.SplitLinear.backward(ctx, gradient)


class KeepsTheOthers(solved.SplitLinear):
    """Wrong: a function holds those that were in the list before it, and all that they hold."""

    @staticmethod
    def forward(ctx, x, weight, later):
        return solved.SplitLinear.forward(ctx, x, weight, later)

    @staticmethod
    def backward(ctx, gradient):
        before = list(ctx.later)
        found = solved.SplitLinear.backward(ctx, gradient)
        ctx.later.append(partial(lambda work, unused: work(), ctx.later.pop(), before))
        return found


class AppendsInForward(torch.autograd.Function):
    """Wrong: the function is in the list before there is a gradient for it."""

    @staticmethod
    def forward(ctx, x, weight, later):
        ctx.save_for_backward(weight)
        gradients = ctx.gradients = []

        @torch.no_grad()
        def add_to_weight():
            part = gradients.pop().T @ x
            weight.grad = part if weight.grad is None else weight.grad + part

        later.append(add_to_weight)
        return x @ weight.T

    @staticmethod
    def backward(ctx, gradient):
        ctx.gradients.append(gradient)
        return gradient @ ctx.saved_tensors[0], None, None


class ZerosForWeight(solved.SplitLinear):
    """Wrong: I gives the weights a gradient of zeros."""

    @staticmethod
    def forward(ctx, x, weight, later):
        return solved.SplitLinear.forward(ctx, x, weight, later)

    @staticmethod
    def backward(ctx, gradient):
        found, _, _ = solved.SplitLinear.backward(ctx, gradient)
        return found, torch.zeros_like(ctx.saved_tensors[1]), None


def _keeper(keep):
    """Return SplitLinear whose backward also lets keep(ctx, something as large as x, the function) say what is put."""

    class Keeper(solved.SplitLinear):
        @staticmethod
        def forward(ctx, x, weight, later):
            return solved.SplitLinear.forward(ctx, x, weight, later)

        @staticmethod
        def backward(ctx, gradient):
            found = solved.SplitLinear.backward(ctx, gradient)
            ctx.later.append(keep(ctx, found[0].clone(), ctx.later.pop()))
            return found

    return Keeper


_elsewhere = []


def _in_a_list(ctx, extra, work):
    _elsewhere.append(extra)

    def then_forget():
        work()
        _elsewhere[:] = [one for one in _elsewhere if one is not extra]

    return then_forget


KEEPERS = [
    _keeper(lambda ctx, extra, work: partial(lambda unused: work(), extra)),
    _keeper(lambda ctx, extra, work: lambda unused=extra: work()),
    _keeper(_in_a_list),
]


@dataclass
class Work:
    """A function whose == asks its tensors, which have no one answer."""

    x: Any
    gradient: Any
    weight: Any

    @torch.no_grad()
    def __call__(self):
        part = self.gradient.T @ self.x
        self.weight.grad = part if self.weight.grad is None else self.weight.grad + part
