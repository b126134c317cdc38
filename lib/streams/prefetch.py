"""DevicePrefetcher: the next batches are copied to the GPU on a stream of their own while it computes on this one.

pinned memory   [ 0 ][ 1 ][ 2 ]
copy stream     [C0 ][C1 ][C2 ][C3 ]
your stream          [   F0  ][   F1  ][   F2  ]        F1 waits for C1, and for nothing else
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from lib.arguments import integer
from lib.streams.gpu import GPU, find_gpu, pinned

T = TypeVar("T")


class DevicePrefetcher(Generic[T]):
    """Iterate over a loader, with its batches on `device`, copied ahead of their use.

    A batch is a tensor or any nesting of tuples, lists and mappings of tensors; what is no tensor is handed on as it
    is. The items are the loader's, in its order; an exception of the loader comes when its batch would have. On a CPU
    the loader's own items are handed on, and nothing is read ahead.

    depth: batches on the device, the one in use included: 1 still overlaps as long as the host runs ahead, 2 also if
    each step ends in `.item()`. The host is kept from running more than `depth` steps ahead of the device, so the
    device holds 2 · depth batches, and one more where the copy of the next is still under way when a step is done.
    A batch is to be used in the stream that is current when it is asked for; for the next one it may be another.
    Give the loader pin_memory=True: what is not pinned is pinned here, which takes the time of the calling thread. A
    loader must not write into a tensor that it has handed out.

    Raises ValueError for a depth below 1 or a device without streams, RuntimeError for a device that is not there,
    TypeError for what is no iterable.

    Example:
        loader = DataLoader(dataset, batch_size=256, pin_memory=True)
        for images, labels in DevicePrefetcher(loader, device="cuda"): ...
    """

    def __init__(self, loader: Iterable[T], device: str | int | torch.device | GPU, depth: int = 2) -> None:
        if not isinstance(loader, Iterable):
            raise TypeError(f"loader must be iterable, such as a DataLoader, not {type(loader).__name__}")
        self.loader = loader
        self.depth = integer("depth", depth, at_least=1)
        self._gpu = find_gpu(device)
        self._stream: Any = None if self._gpu is None else self._gpu.new_stream("copy")

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def __repr__(self) -> str:
        ahead = "nothing ahead, on a CPU" if self._gpu is None else f"depth {self.depth}"
        return f"<DevicePrefetcher of a {type(self.loader).__name__}: {ahead}>"

    def __iter__(self) -> Iterator[T]:
        if self._gpu is None:
            return iter(self.loader)
        return self._prefetch(self._gpu)

    def _prefetch(self, gpu: GPU) -> Iterator[T]:
        batches = self._copies(gpu)
        ready = deque[_Ready]()  # copied ahead, or on their way
        used = deque[Any]()  # an event behind each step that may still run
        more = True
        while True:
            while more and len(ready) < self.depth:
                ready.append(next(batches))
                more = ready[-1].copied is not None
            if ready[0].copied is None:
                _raise(ready.popleft().batch)
                return
            user = gpu.current_stream()  # when the user asks for the next batch, another one may be current
            yield _hand_over(ready.popleft(), user)  # no name here may keep the batch alive
            used.append(user.record_event())
            if len(used) > self.depth:
                # Each copy takes its memory when it is launched. A host that launches a whole epoch at once would
                # need memory for all of it: so it waits here until an earlier step is done.
                used.popleft().synchronize()

    def _copies(self, gpu: GPU) -> Iterator[_Ready]:
        """Yield what the loader gives, on its way to the device; last of all its exception or None."""
        try:
            for i, batch in enumerate(self.loader):
                # before the span: it is the host's work, and no copy
                batch = each_tensor(lambda x: pinned(x, gpu), batch)
                with gpu.use_stream(self._stream), gpu.span(self._stream, "copy", f"C{i}", "copy"):
                    batch = each_tensor(lambda x: x.to(gpu.device, non_blocking=True), batch)
                yield _Ready(batch, self._stream.record_event())
                del batch
        except Exception as error:
            yield _Ready(error, None)
        else:
            yield _Ready(None, None)


class _Ready(NamedTuple):
    batch: Any
    copied: Any  # the event after its copy; None at the end, with the loader's exception as batch


def _raise(error: Exception | None) -> None:
    """Raise what the loader raised, if it did."""
    if error is not None:
        try:
            raise error
        finally:
            del error  # its traceback holds this frame: the circle would keep the loader's workers alive


def _hand_over(ready: _Ready, user: Any) -> Any:
    # The device, not the host, waits: for the copy of this batch. wait_stream would wait for those after it, too.
    user.wait_event(ready.copied)

    def used_by(x: Tensor) -> Tensor:
        # The memory belongs to the copy stream's pool. When you drop the batch, the next copy may take it at once,
        # while your stream still reads: unless the allocator knows of your stream.
        x.record_stream(user)
        return x

    return each_tensor(used_by, ready.batch)


def each_tensor(change: Callable[[Tensor], Tensor], batch: Any) -> Any:
    """Return the batch with each tensor changed: in tuples, namedtuples, lists, mappings, at any depth."""
    if isinstance(batch, Tensor):
        return change(batch)
    if isinstance(batch, Mapping):
        changed: Any = {key: each_tensor(change, value) for key, value in batch.items()}
        if isinstance(batch, MappingProxyType):
            return MappingProxyType(changed)
        if type(batch) is dict or not isinstance(batch, MutableMapping):
            return changed
        same = copy.copy(batch)  # an OrderedDict, a defaultdict or a UserDict stays what it is
        same.update(changed)
        return same
    if isinstance(batch, PackedSequence):
        data, sizes, *order = batch
        return PackedSequence(change(data), sizes, *each_tensor(change, order))  # sizes stay on the host
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(each_tensor(change, value) for value in batch))
    if type(batch) is tuple:
        return tuple(each_tensor(change, value) for value in batch)
    if isinstance(batch, list):
        items = copy.copy(batch)  # a subclass may be made of other things than of its items
        items[:] = [each_tensor(change, value) for value in batch]
        return items
    if isinstance(batch, tuple):
        return tuple.__new__(type(batch), [each_tensor(change, value) for value in batch])
    return batch
