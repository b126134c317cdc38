"""What may happen to a model between forward and backward; the same to the plain one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from lib.pipeline import Skippable
from tests.fuzz.layers import Linear

Partitions = Sequence[nn.Sequential]


def parameters(partitions: Partitions) -> list[nn.Parameter]:
    """Return each parameter once."""
    return [*nn.ModuleList(partitions).parameters()]


def stepped(make: type[torch.optim.Optimizer], **how: bool) -> Callable[[Partitions, int], None]:
    """Return a change by a step of an optimizer with the gradients of the step before."""

    def step(partitions: Partitions, _: int) -> None:
        make(parameters(partitions), lr=0.1, **how).step()

    return step


def of(partitions: Partitions, kind: type[nn.Module]) -> list[nn.Module]:
    return [module for module in nn.ModuleList(partitions).modules() if isinstance(module, kind)]


def write_data(partitions: Partitions, place: int) -> None:
    found = parameters(partitions)
    if found:
        found[place % len(found)].data.mul_(0.8)


def replace_layer(partitions: Partitions, place: int) -> None:
    partition = partitions[place % len(partitions)]
    k = place % len(partition)
    if not isinstance(partition[k], Skippable):
        partition[k] = Linear(777).to(_dtype(partitions))


def _dtype(partitions: Partitions) -> torch.dtype:
    return next((p.dtype for p in parameters(partitions)), torch.float64)


def add_hook(partitions: Partitions, place: int) -> None:
    partition = partitions[place % len(partitions)]
    partition[place % len(partition)].register_forward_hook(
        lambda _, __, y: y * 1.5 if isinstance(y, Tensor) and y.is_floating_point() else None
    )


def set_p(partitions: Partitions, _: int) -> None:
    for layer in of(partitions, nn.Dropout):
        layer.p = 0.2


def freeze(partitions: Partitions, place: int) -> None:
    layers = of(partitions, Linear)
    if layers:
        layers[place % len(layers)].requires_grad_(False)


def unfreeze(partitions: Partitions, _: int) -> None:
    for parameter in parameters(partitions):
        parameter.requires_grad_(True)


def to_eval(partitions: Partitions, _: int) -> None:
    for partition in partitions:
        partition.eval()


CHANGES: dict[str, Callable[[Partitions, int], None]] = {
    "fused SGD": stepped(torch.optim.SGD, fused=True),
    "fused Adam": stepped(torch.optim.Adam, fused=True),
    "fused AdamW": stepped(torch.optim.AdamW, fused=True),
    "fused Adagrad": stepped(torch.optim.Adagrad, fused=True),
    "SGD": stepped(torch.optim.SGD, foreach=True),
    "data": write_data,
    "replaced": replace_layer,
    "hook": add_hook,
    "p": set_p,
    "frozen": freeze,
    "unfrozen": unfreeze,
    "eval": to_eval,
}
