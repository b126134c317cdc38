"""What the autograd function of notebook 10 is given: inputs of all kinds, and gradients that come from two places."""

# mypy: allow-untyped-calls

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from support.kit.raised import Finding, in_case

OFF = 1e-4  # a share of a gradient; a matrix product in 16 bits is off by more


def fault_of_inputs(answer: Any) -> str:
    """Say with which inputs, or ways that a gradient takes, something differs from a run without a checkpoint."""
    return (
        _fault_of_kinds(answer)
        or _fault_of_float64(answer)
        or _fault_of_unused(answer)
        or _fault_of_other_paths(answer)
    )


def is_off(got: Tensor | None, want: Tensor | None) -> bool:
    """Say whether a gradient is missing or differs by more than rounding in 32 bits explains."""
    if got is None or want is None:
        return got is not want
    return float((got - want).norm()) > OFF * float(want.norm())


_MAKES: dict[str, Callable[[Tensor], Tensor]] = {
    "a layer's output": lambda part: part,
    "a layer's output in bfloat16": lambda part: part.bfloat16(),
    "data": lambda part: part.detach() + 1,
    "a mask": lambda part: part.detach() > 0,
}


def _fault_of_kinds(answer: Any) -> str:
    """Try inputs in any number and order: parts of one layer's output, data, masks."""
    for seed in range(8):
        chance = random.Random(seed)
        kinds = [
            "a layer's output",
            *chance.choices((*_MAKES,), k=chance.randint(1, 3)),
        ]
        chance.shuffle(kinds)
        wanted, _ = _gradients_of_inputs(lambda function, *inputs: function(*inputs), kinds, seed)
        with in_case(f"inputs: {', '.join(kinds)}, one layer before them all"):
            got, required = _gradients_of_inputs(answer.apply, kinds, seed)
        if any(map(is_off, got, wanted)):
            return f"inputs: {', '.join(kinds)}; the layer before has another gradient than without a checkpoint."
        for position, (kind, requires) in enumerate(zip(kinds, required, strict=True), 1):
            if requires != kind.startswith("a layer's output"):
                what = "requires a gradient" if requires else "requires no gradient"
                which = f"in the second forward input {position} {what}"
                return f"inputs: {', '.join(kinds)}; {which}, unlike the caller's."
    return ""


def _fault_of_float64(answer: Any) -> str:
    """Compute in float64: a gradient that was cast on its way is off by more than float64 rounds."""
    generator = torch.Generator().manual_seed(8)
    gradient, data = torch.randn(2, 6, generator=generator, dtype=torch.float64)
    found = list[Tensor]()
    for call in (answer.apply, lambda function, x: function(x)):
        x = data.clone().requires_grad_()
        with in_case("inputs in float64"):
            call(torch.sin, x).backward(gradient)
        found.append(torch.zeros_like(x) if x.grad is None else x.grad)
    if not torch.allclose(found[0], found[1], rtol=1e-12, atol=1e-15):
        return "inputs in float64: an input has another gradient than without a checkpoint."
    return ""


def _fault_of_unused(answer: Any) -> str:
    """Let functions use some of three inputs, the last of them data: the others get no gradient, not even zeros."""
    for use in ((0,), (1,), (2,), (0, 1), (0, 2), (1, 2)):
        inputs = [torch.ones(3, requires_grad=requires) for requires in (True, True, False)]
        answer.apply(lambda *given, use=use: sum(given[k].sin() for k in use), *inputs).sum().backward()
        for position, x in enumerate(inputs):
            if position not in use and x.grad is not None:
                unused = f"3 inputs, and the function does not use input {position + 1}"
                return f"{unused}: its .grad must stay None, and it was filled."
    return ""


def _fault_of_other_paths(answer: Any) -> str:
    """Let the gradient of an input come from two places."""
    ways: dict[str, Callable[..., Any]] = {
        "one tensor is passed as two inputs": lambda call, x: call(lambda a, b: a * b.sin(), x, x),
        "the function returns its input as it is": lambda call, x: call(nn.Identity(), x),
        "the gradient is zero": lambda call, x: call(torch.relu, -x),
        "the output is added to the input": lambda call, x: x + call(torch.sin, x),
    }
    for way, forward in ways.items():
        found = list[Tensor | None]()
        for call in (answer.apply, lambda function, *inputs: function(*inputs)):
            x = torch.ones(3, requires_grad=True)
            with in_case(way):
                (forward(call, x * 2) ** 2).sum().backward()
            found.append(x.grad)
        if is_off(*found):
            return f"{way}: it has another gradient than without a checkpoint."
    return ""


def _gradients_of_inputs(
    call: Callable[..., Any], kinds: list[str], seed: int
) -> tuple[list[Tensor | None], list[bool]]:
    """Return the gradients of the layer before, and which inputs required one when the function ran last."""
    generator = torch.Generator().manual_seed(seed)
    layer = nn.Linear(4, 4 * len(kinds))
    layer.weight.data.normal_(generator=generator)
    layer.bias.data.normal_(generator=generator)
    parts = layer(torch.randn(5, 4, generator=generator)).chunk(len(kinds), -1)
    inputs = [_MAKES[kind](part) for kind, part in zip(kinds, parts, strict=True)]
    required = list[bool]()
    types = [x.dtype for x in inputs]

    def function(*given: Tensor) -> Tensor:
        for position, (x, first) in enumerate(zip(given, types, strict=True), 1):
            if x.dtype != first:
                raise Finding(
                    f"in the second forward input {position} is of type {x.dtype}, in the first of type {first}."
                )
        required[:] = [x.requires_grad for x in given]
        return torch.stack([(number + 1) * x.float().sin() for number, x in enumerate(given)]).sum(0).tanh()

    output = call(function, *inputs)
    output.backward(torch.randn(output.shape, generator=generator))  # of ones a cast loses nothing
    return [layer.weight.grad, layer.bias.grad], required
