"""Count the bytes of all tensors that were made and are still alive: what an allocator would have to provide.

    with LiveTensors() as live:
        model(x).sum().backward()
    print(live.peak)

On a GPU torch.cuda.max_memory_allocated says it; on a CPU nobody counts, so here every operation's outputs are noted as
torch dispatches it, and crossed out when their storage dies.
"""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveTensors(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Count the bytes of the storages made inside the `with`, in this thread, also by backward: now, at the peak."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and note what it returns."""
        result = func(*args, **(kwargs or {}))
        known = {x.untyped_storage()._cdata for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        for x in tree_leaves(result):
            if isinstance(x, Tensor):
                self._note(x, known)
        return result

    def _note(self, x: Tensor, known: set[int]) -> None:
        storage = x.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._sizes or key in known or not size:  # in place, a view, or nothing
            return
        self._sizes[key] = size
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._forget, key).atexit = False

    def _forget(self, key: int) -> None:
        self.now -= self._sizes.pop(key)
