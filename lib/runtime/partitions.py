"""Partitions: which nn.Sequential can be cut into parts for several devices, and the cut itself."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from lib.arguments import integer

HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
"""Where a module has what is called beside its forward and its backward."""


class BalanceError(ValueError):
    """A balance that does not fit the module; the message ends with the way to one that does."""

    def __init__(self, problem: str) -> None:
        super().__init__(
            f"{problem}\n\nlib.pipeline.balance finds one:\n\n"
            "    from lib.pipeline import balance_by_time\n"
            "    balance = balance_by_time(partitions, module, sample)"
        )


def flatten_sequential(module: nn.Sequential) -> nn.Sequential:
    """Return the layers of nested Sequentials in one Sequential, so that a partition may end between any two of them.

    The layers are the same objects; "1.0" becomes "1_0". A Sequential with a forward or hooks of its own stays whole:
    it does something that its layers one after another would not do.
    Raises TypeError for what is no nn.Sequential.
    """
    if not isinstance(module, nn.Sequential):
        raise TypeError(f"module must be nn.Sequential to be flattened, not {type(module).__name__}")
    return nn.Sequential(OrderedDict(_layers_within(module, "")))


def _layers_within(sequential: nn.Sequential, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    # _modules, and not named_children: a layer that stands in it twice must come twice
    for name, child in sequential._modules.items():
        if _only_calls_its_layers(child):
            yield from _layers_within(cast(nn.Sequential, child), f"{prefix}{name}_")
        else:
            yield prefix + name, child


def _only_calls_its_layers(module: nn.Module) -> bool:
    if not isinstance(module, nn.Sequential):
        return False
    if type(module).forward is not nn.Sequential.forward:
        return False
    return not any(getattr(module, hooks) for hooks in HOOKS)


def verify_module(module: nn.Sequential) -> None:
    """Raise TypeError unless it is an nn.Sequential, ValueError for a layer, parameter or norm's buffer in it twice.

    What two partitions share can't be on two devices. Buffers of other layers may be shared: they are constants, of
    which each device gets a copy; the running statistics of a norm are written.
    """
    if not isinstance(module, nn.Sequential):
        raise TypeError(f"module must be nn.Sequential to be partitioned, not {type(module).__name__}")
    children = list(module.children())  # each object once
    _verify_distinct("children", [{child} for child in module])
    _verify_distinct("parameters in distinct children", [set(child.parameters()) for child in children])
    _verify_distinct("buffers of batch norms in distinct children", [_buffers_of_norms(child) for child in children])


def _buffers_of_norms(module: nn.Module) -> set[Tensor]:
    norms = [part for part in module.modules() if isinstance(part, _NormBase)]
    return {buffer for norm in norms for buffer in norm.buffers()}


def _verify_distinct(kind: str, members: Sequence[set[Any]]) -> None:
    apart = sum(len(part) for part in members)
    together = len(set().union(*members))
    if apart != together:
        raise ValueError(f"module with duplicate {kind} is not supported: {apart}, {together} different")


def split_module(
    module: nn.Sequential, balance: Iterable[int], devices: Iterable[torch.device]
) -> tuple[nn.ModuleList, list[int], list[torch.device]]:
    """Return (partitions, balance, devices): partition j has balance[j] layers, on devices[j]; the rest is dropped.

    Raises BalanceError if the numbers don't fit, IndexError if there are fewer devices than partitions.
    """
    balance = [integer("a number of the balance", layers) for layers in balance]
    devices = list(devices)
    if len(module) != sum(balance):
        raise BalanceError(
            f"module and sum of balance have different length (module: {len(module)}, sum of balance: {sum(balance)})"
        )
    if any(layers < 1 for layers in balance):
        raise BalanceError(f"all balance numbers must be positive integer (balance: {balance})")
    if len(balance) > len(devices):
        raise IndexError(
            "too few devices to hold given partitions "
            f"(devices: {len(devices)}, partitions: {len(balance)}); a device may be named again"
        )
    devices = devices[: len(balance)]
    layers_left = iter(module.named_children())
    partitions = nn.ModuleList()
    for size, device in zip(balance, devices, strict=True):
        partition = nn.Sequential(OrderedDict(islice(layers_left, size)))
        partitions.append(partition.to(device))
    return partitions, balance, devices
