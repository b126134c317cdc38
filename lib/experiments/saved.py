"""Count what autograd keeps for backward, tensor by tensor, while it keeps it.

    with SavedTensors(model.parameters()) as saved:
        loss = model(x).mean()
        print(saved.count, saved.bytes)
        loss.backward()
    print(saved.peak)

autograd hands every tensor that it saves to a pair of hooks (torch.autograd.graph.saved_tensors_hooks). Ours puts it
into a box; when the graph lets go of the last box of a tensor, the tensor is no longer counted.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from types import TracebackType

import torch
from torch import Tensor


class _Box:
    """What the graph holds in place of a tensor."""

    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


class SavedTensors:
    """Count the different tensors that graphs built inside the `with` keep for backward: now, and at the peak.

    Not counted: `parameters` (they are there anyway), tensors without elements, and what a Python object keeps by
    itself. A tensor saved twice, or saved and detached, counts once. Hooks belong to a thread, and an inner pair hides
    an outer one: not seen are the workers of a pipeline, and what torch.utils.checkpoint(use_reentrant=False)
    recomputes; the latter counts in `live.LiveTensors`. history: the bytes after each change, from 0 on.
    """

    def __init__(self, parameters: Iterable[Tensor] = ()) -> None:
        self.count = self.bytes = 0
        self.peak = self.peak_bytes = 0
        self.history = [0]
        self._ignored: set[int] = set()
        self.ignore(parameters)
        self._boxes: dict[int, int] = {}  # by address, how many boxes hold this tensor
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)

    def ignore(self, parameters: Iterable[Tensor]) -> None:
        """Don't count these tensors from now on."""
        self._ignored.update(x.data_ptr() for x in parameters)

    def __enter__(self) -> SavedTensors:
        self._hooks.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hooks.__exit__(kind, error, trace)

    def _pack(self, tensor: Tensor) -> Tensor | _Box:
        address, size = tensor.data_ptr(), tensor.numel() * tensor.element_size()
        if not size or address in self._ignored:
            return tensor
        self._boxes[address] = self._boxes.get(address, 0) + 1
        if self._boxes[address] == 1:
            self.count, self.bytes = self.count + 1, self.bytes + size
            self.peak, self.peak_bytes = max(self.peak, self.count), max(self.peak_bytes, self.bytes)
            self.history.append(self.bytes)
        box = _Box(tensor.detach())  # an output that knew its graph would keep it alive, and that the box
        # the box is the last to go: while it lives, no other tensor can have this address
        weakref.finalize(box, self._drop, address, size).atexit = False
        return box

    def _unpack(self, packed: Tensor | _Box) -> Tensor:
        return packed.tensor if isinstance(packed, _Box) else packed

    def _drop(self, address: int, size: int) -> None:
        self._boxes[address] -= 1
        if not self._boxes[address]:
            del self._boxes[address]
            self.count, self.bytes = self.count - 1, self.bytes - size
            self.history.append(self.bytes)


def step_in_parts(
    model: torch.nn.Module, parts: Iterable[Tensor], order: str = "one at a time"
) -> SavedTensors:
    """Run forward and backward of each part and return what was saved meanwhile.

    order: "one at a time" (forward, backward, forward, backward …) or "all forwards first", as a pipeline does.
    """
    orders = ("one at a time", "all forwards first")
    if order not in orders:
        raise ValueError(f"order must be one of {', '.join(orders)}, not {order!r}")
    with SavedTensors(model.parameters()) as saved:
        if order == orders[0]:
            for part in parts:
                model(part).sum().backward()
        else:
            for loss in [model(part).sum() for part in parts]:
                loss.backward()
    return saved
