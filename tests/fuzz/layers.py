"""The layers of a fuzzed model. A layer is data, ("linear", 3), of which tests.fuzz.kinds makes a module.

What runs through is a tensor of rows x WIDTH, or a tuple of such and of masks and indices. Every layer takes either, so
that any list of layers is a model: what a failure is shrunk to needs no rules.

    ("linear", 3), ("cut",), ("res", ("drop", 0.5), ("linear", 4)), ("pair", "same"), ("cut",), ("write", 1), ("merge",)

A container holds layers behind its own arguments: ("checkpoint", True, ("drop", 0.5)).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as torchs_checkpoint

from lib.pipeline import GPipe, is_recomputing

Layer = tuple[Any, ...]
WIDTH = 4


def inside(layer: Layer) -> tuple[Layer, ...]:
    """Return the layers that a container holds."""
    return tuple(part for part in layer if isinstance(part, tuple))


def arguments(layer: Layer) -> tuple[Any, ...]:
    """Return what a layer says of itself, without its kind and the layers inside."""
    return tuple(part for part in layer[1:] if not isinstance(part, tuple))


def every(layers: tuple[Layer, ...]) -> list[Layer]:
    """Return all layers, those inside of others as well."""
    found = []
    for layer in layers:
        found += [layer, *every(inside(layer))]
    return found


def first_float(lanes: list[Tensor]) -> int | None:
    """Return the lane that most layers work on."""
    return next((k for k, x in enumerate(lanes) if x.is_floating_point()), None)


def lanes_of(state: Any) -> list[Tensor]:
    return [state] if isinstance(state, Tensor) else list(state)


class OneLane(nn.Module):
    """Work on the first floating-point tensor of what comes; hand on the others as they are."""

    def forward(self, state: Any) -> Any:
        lanes = lanes_of(state)
        k = first_float(lanes)
        if k is None:
            return state
        lanes[k] = self.one(lanes[k])
        return lanes[0] if isinstance(state, Tensor) else tuple(lanes)

    def one(self, x: Tensor) -> Tensor:
        raise NotImplementedError


class Each(OneLane):
    """A function of one tensor."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def one(self, x: Tensor) -> Tensor:
        return self.function(x)


class Around(OneLane):
    """Do something with layers that work on one lane."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def inner_lane(self, x: Tensor) -> Tensor:
        """Return what the layers inside make of a tensor: a tensor, whatever they add to it."""
        lanes = lanes_of(self.inner(x))
        k = first_float(lanes)
        return x if k is None else lanes[k]


def numbers(seed: int, *shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 1.4 - 0.7


# ---- layers with parameters


class Linear(OneLane):
    def __init__(self, seed: int, weight: nn.Parameter | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(numbers(seed, WIDTH, WIDTH)) if weight is None else weight
        self.bias = nn.Parameter(numbers(seed + 1, WIDTH))

    def one(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class Unused(Linear):
    """Has a parameter that nothing uses."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.other = nn.Parameter(torch.ones(WIDTH))


class Ignores(OneLane):
    """Returns a parameter, whatever comes."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(numbers(seed, WIDTH))

    def one(self, x: Tensor) -> Tensor:
        return self.weight.to(x.dtype) + torch.zeros_like(x)


class Scale(OneLane):
    """Multiplies by a buffer; counts its calls, and what it has seen in one that it writes."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.register_buffer("scale", 1 + numbers(seed, WIDTH))
        self.register_buffer("total", torch.zeros(WIDTH))
        self.calls = 0
        self.last = None

    def one(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.last = x.detach()
        if not is_recomputing():
            self.total += x.detach().sum(0)
        return x * self.scale


class Attention(OneLane):
    """torch's block of a transformer, over the three tokens that a row is taken for."""

    def __init__(self, seed: int, p: float) -> None:
        super().__init__()
        self.block = nn.TransformerEncoderLayer(WIDTH, 2, 2 * WIDTH, dropout=p, batch_first=True)
        for k, parameter in enumerate(self.block.parameters()):
            parameter.data = numbers(seed + k, *parameter.shape)
        for norm in (self.block.norm1, self.block.norm2):
            norm.eps = 0.1

    def one(self, x: Tensor) -> Tensor:
        tokens = torch.stack([x, x.flip(1), x * 0.5], 1)
        return self.block(tokens).sum(1)


def tied(build: Any, seed: int) -> nn.Module:
    if seed not in build.tied:
        build.tied[seed] = nn.Parameter(numbers(seed, WIDTH, WIDTH))
    return Linear(seed + 7, build.tied[seed])


def frozen(seed: int, what: str) -> nn.Module:
    made = Linear(seed)
    for name, parameter in made.named_parameters():
        parameter.requires_grad_(what not in (name, "all"))
    return made


def norm(_: Any, seed: int) -> nn.Module:
    made = nn.LayerNorm(WIDTH, eps=0.1)  # the usual 1e-5 would make rounding 300 times larger
    made.weight.data = 1 + numbers(seed, WIDTH)
    return Each(made)


# ---- layers without


class Stops(Around):
    """Computes its inside without a graph."""

    def one(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return self.inner_lane(x)


class Fills(torch.autograd.Function):
    """Makes zeros of None, as a function does that says nothing of it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1.5

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 1.5


def noise(x: Tensor) -> Tensor:
    shift = torch.normal(0.0, 0.1, (WIDTH,), dtype=torch.float64)
    return x * torch.bernoulli(torch.full_like(x, 0.7)) + torch.rand_like(x) + shift.to(x.dtype)


def one_hot(x: Tensor) -> Tensor:
    return F.one_hot(x.argmax(1), WIDTH).to(x.dtype)


EACH: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "sin": torch.sin,
    "detach": torch.Tensor.detach,
    "one_hot": one_hot,
    "relu_": torch.relu_,
    "mul_": lambda x: x.mul_(1.5),
    "add_": lambda x: x.add_(0.5),
    "noise": noise,
    "same": lambda x: x,
    "flatten": lambda x: x.flatten(1),
    "half": lambda x: x[:, :2].repeat(1, 2),
    # a copy in any case: of a single row, contiguous() makes none, and a layer would do something else in micro-batches
    "columns": lambda x: x.t().clone(memory_format=torch.contiguous_format).t(),
    "view": lambda x: x.view(-1).view(x.shape) if x.is_contiguous() else x[:],
    "zero": lambda x: x * 0,
    "fills": Fills.apply,
}


# ---- containers


class Residual(Around):
    def one(self, x: Tensor) -> Tensor:
        return x + self.inner_lane(x)


class Whole(Around):
    def one(self, x: Tensor) -> Tensor:
        return self.inner_lane(x)


class Again(Around):
    """torch.utils.checkpoint around layers, where there is a gradient to go back for."""

    def __init__(self, inner: nn.Module, use_reentrant: bool) -> None:
        super().__init__(inner)
        self.use_reentrant = use_reentrant

    def one(self, x: Tensor) -> Tensor:
        if not (torch.is_grad_enabled() and x.requires_grad):  # a reentrant one would lose the parameters' gradients
            return self.inner_lane(x)
        return torchs_checkpoint(self.inner_lane, x, use_reentrant=self.use_reentrant)


DRAWS_ITS_OWN_WAY = ("aot_eager_decomp_partition", "inductor")
"""Backends whose code draws other numbers than the layer itself: beside them the plain model is compiled, too."""


def compiled(build: Any, backend: str, *inner: Layer) -> nn.Module:
    made = Whole(build.together(inner))
    # The plain model that has torch's checkpoint as well is compiled as well: of None, which a reentrant one hands
    # on, a compiled layer makes zeros.
    is_plain = build.plain and not build.again
    if is_plain and backend not in DRAWS_ITS_OWN_WAY:
        return made
    return torch.compile(made, backend=backend)


def again(build: Any, use_reentrant: bool, *inner: Layer) -> nn.Module:
    made = build.together(inner)
    return Whole(made) if build.plain and not build.again else Again(made, use_reentrant)


def pipeline(build: Any, chunks: int, mode: str, *inner: Layer) -> nn.Module:
    made = build.together(inner)
    if build.plain or not inner:
        return Whole(made)
    return Whole(GPipe(made, [1] * len(made), devices=["cpu"] * len(made), chunks=chunks, checkpoint=mode))


# ---- hooks


def hook(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Any]:
    """Return what hooks a tensor. A pipeline may call it with None, where there is no gradient."""
    return lambda y: y.register_hook(lambda g: g if g is None else function(g))


TENSOR_HOOKS: dict[str, Callable[[Tensor], Any]] = {
    "halves": hook(lambda g: g * 0.5),
    "clips": hook(lambda g: g.clamp(-0.2, 0.2)),
    "adds": hook(lambda g: g + 0.5),
    "before": lambda y: y.grad_fn.register_prehook(lambda grads: tuple(g if g is None else g * 0.5 for g in grads)),
    "after": lambda y: y.grad_fn.register_hook(lambda grads, _: tuple(g if g is None else g * 2 for g in grads)),
    "keeps": lambda y: y.retain_grad(),
}


class Hooked(OneLane):
    """A hook of a tensor that this layer makes with a weight of its own."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.weight = nn.Parameter(numbers(len(how), WIDTH) + 1)

    def one(self, x: Tensor) -> Tensor:
        y = x * self.weight
        if y.requires_grad:
            TENSOR_HOOKS[self.how](y)
        return y


def scaled(grads: Any) -> Any:
    return tuple(g if g is None else g * 0.5 for g in grads)


MODULE_HOOKS: dict[str, Callable[[nn.Module], Any]] = {
    "forward": lambda m: m.register_forward_hook(lambda _, __, y: y * 1.5 if isinstance(y, Tensor) else None),
    "pre": lambda m: m.register_forward_pre_hook(lambda _, given: (given[0] * 1.5,)),
    "backward": lambda m: m.register_full_backward_hook(lambda _, grads, __: scaled(grads)),
    "backward pre": lambda m: m.register_full_backward_pre_hook(lambda _, grads: scaled(grads)),
}


def module_hook(build: Any, how: str, *inner: Layer) -> nn.Module:
    made = build.together(inner)
    MODULE_HOOKS[how](made)
    return Whole(made)


def parameter_hook(seed: int, how: str) -> nn.Module:
    made = Linear(seed)
    if how == "halves":
        hook(lambda g: g * 0.5)(made.weight)
    else:
        made.bias.register_post_accumulate_grad_hook(lambda p: None)
    return made
