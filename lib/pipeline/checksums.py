"""Checksums of parameters and buffers: they see every write, at the price of reading all of them."""

from __future__ import annotations

from collections.abc import Container, Iterable
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy

from lib.pipeline.structure import dotted


class Checksums:
    """Checksums of the parameters and buffers of modules: they see what was written through `.data`, too."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self.parameters: list[tuple[nn.Module, str]] = []
        self.buffers: list[tuple[nn.Module, str]] = []
        for module in modules:
            self.parameters += [(module, name) for name, x in module._parameters.items() if _can_be_read(x)]
            if isinstance(module, _NormBase) and module.training:
                continue  # in training it writes its statistics and does not read them
            self.buffers += [(module, name) for name, x in module._buffers.items() if _can_be_read(x)]
        self.sums = self._sums()

    def _sums(self) -> dict[tuple[nn.Module, str], int]:
        places = self.parameters + self.buffers
        if not places:
            return {}
        with torch.no_grad():
            sums = [checksum(getattr(module, name)) for module, name in places]
            together = torch.stack([one.to(sums[0].device) for one in sums])  # so that the host waits once
        return dict(zip(places, together.tolist(), strict=True))

    def changed(self) -> list[str]:
        """Return the names of those with other bits."""
        now = self._sums()
        return [dotted(*place) for place, value in now.items() if value != self.sums[place]]

    def written_buffers(self) -> set[tuple[nn.Module, str]]:
        """Return the buffers with other bits."""
        if not self.buffers:
            return set()
        now = self._sums()
        return {place for place in self.buffers if now[place] != self.sums[place]}

    def leave_out(self, places: Container[tuple[nn.Module, str]]) -> None:
        """Look no more at these buffers: their layers write them, and will do so again."""
        self.buffers = [place for place in self.buffers if place not in places]


def _can_be_read(x: Tensor | None) -> bool:
    return x is not None and not is_lazy(x)


_BLOCK = 1 << 16
# At most 32 bits each: of numbers of 64 the highest bit, the sign, would be gone from the sum when two of them change.
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int32, 16: torch.int32}


@cache
def _weights(device: torch.device) -> Tensor:
    """Return odd numbers that look random, one for each place in a block: no change is lost, nor an order."""
    mixed = torch.arange(1, _BLOCK + 1, device=device) * -0x61C8864680B583EB  # overflows, as all that follows
    mixed = (mixed ^ (mixed >> 29)) * -0x40A7B892E31B1A47
    return (mixed ^ (mixed >> 32)) | 1


def checksum(tensor: Tensor) -> Tensor:
    """Return a number of 64 bits, on the tensor's device, that other values would nearly surely have changed."""
    flat = tensor.detach().resolve_conj().resolve_neg().reshape(-1)
    numbers = flat.view(_INTEGERS[flat.element_size()])
    total = torch.zeros((), dtype=torch.int64, device=numbers.device)
    for block in numbers.split(_BLOCK):  # type: ignore[no-untyped-call]
        total = total * 31 + (block * _weights(numbers.device)[: len(block)]).sum()
    return total
