"""Count what autograd keeps for backward, and what is alive at all, while it is.

    with LiveTensors() as live, SavedTensors(model.parameters()) as saved:
        loss = model(x).mean()
        print(saved.count, saved.bytes)
        loss.backward()
    print(saved.peak_bytes, live.peak)

autograd hands every tensor that it saves to a pair of hooks (torch.autograd.graph.saved_tensors_hooks). Ours puts it
into a box; when the graph lets go of the last box of a storage, the storage is no longer counted. Why storages: a saved
slice keeps all the memory that it was cut from, and two views of one memory keep it once.

LiveTensors says what an allocator would have to provide. On a GPU the allocator knows (lib.memory.device_peak); on a
CPU nobody counts, so every operation's outputs are noted as torch dispatches it, and crossed out when their storage
dies.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class _Box:
    """What the graph holds in place of a tensor."""

    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


class SavedTensors:
    """Count the different storages that graphs built inside the `with` keep for backward: now, and at the peak.

    Not counted: the memory of `parameters` (it is there anyway), tensors without elements, and what a Python object
    keeps by itself. A tensor saved twice, detached, cut or expanded counts once, with all its memory. Hooks belong to a
    thread, and an inner pair hides an outer one: not seen are the workers of a pipeline, and what
    torch.utils.checkpoint(use_reentrant=False) recomputes; the latter counts in LiveTensors. history: the bytes after
    each change, from 0 on.
    """

    def __init__(self, parameters: Iterable[Tensor] = ()) -> None:
        self.count = self.bytes = 0
        self.peak = self.peak_bytes = 0
        self.history = [0]
        self._ignored: set[int] = set()
        self.ignore(parameters)
        self._boxes: dict[int, int] = {}  # by storage, how many boxes hold a tensor that looks at it
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)

    def ignore(self, parameters: Iterable[Tensor]) -> None:
        """Don't count the memory of these tensors, as long as it lives."""
        for x in parameters:
            storage = x.untyped_storage()
            self._ignored.add(storage._cdata)
            # Afterwards another storage may be the object at this address.
            weakref.finalize(storage, self._ignored.discard, storage._cdata).atexit = False

    def __enter__(self) -> SavedTensors:
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._hooks.__exit__(*error)

    def _pack(self, tensor: Tensor) -> Tensor | _Box:
        storage = tensor.untyped_storage()
        key = storage._cdata  # the address of the storage's own object: all its tensors share it
        size = storage.nbytes()
        if not tensor.numel() or key in self._ignored:
            return tensor  # the graph holds it as it would without us
        self._boxes[key] = self._boxes.get(key, 0) + 1
        if self._boxes[key] == 1:  # no other box holds it
            self.count += 1
            self.bytes += size
            self.peak = max(self.peak, self.count)
            self.peak_bytes = max(self.peak_bytes, self.bytes)
            self.history.append(self.bytes)
        # Detached: an output that knew its graph would keep the graph alive, and the graph the box.
        box = _Box(tensor.detach())
        # The box is the last to go: while it lives, no other storage can have this key.
        weakref.finalize(box, self._drop, key, size).atexit = False
        return box

    def _unpack(self, packed: Tensor | _Box) -> Tensor:
        return packed.tensor if isinstance(packed, _Box) else packed

    def _drop(self, key: int, size: int) -> None:
        self._boxes[key] -= 1
        if not self._boxes[key]:
            del self._boxes[key]
            self.count -= 1
            self.bytes -= size
            self.history.append(self.bytes)


class LiveTensors(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Count the bytes of the storages made inside the `with`, in this thread, also by backward: now, at the peak.

    block: an allocator hands out multiples of so many bytes, and each storage counts as such a multiple.
    """

    def __init__(self, block: int = 1) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.block = block
        self.now = self.peak = 0
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and note what it returns."""
        result = func(*args, **(kwargs or {}))
        # by the address of the storage's own object: views and outputs in place share it with what went in
        known = {x.untyped_storage()._cdata for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        for x in tree_leaves(result):
            if isinstance(x, Tensor):
                self._note(x, known)
        return result

    def _note(self, x: Tensor, known: set[int]) -> None:
        storage = x.untyped_storage()
        key = storage._cdata
        blocks = math.ceil(storage.nbytes() / self.block)
        size = blocks * self.block
        if key in self._sizes or key in known or not size:  # in place, a view, or nothing
            return
        self._sizes[key] = size
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._forget, key).atexit = False

    def _forget(self, key: int) -> None:
        self.now -= self._sizes.pop(key)
