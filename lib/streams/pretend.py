"""A GPU that is not there: real code runs on it at once, on the CPU, and every stream operation is written down.

    gpu = PretendGPU()
    y = StreamPipeline(model, chunks=4, device=gpu)(gpu.host(x))     # the right result
    find_races(gpu.operations)                                       # what a real GPU would be free to do

It gives memory away as torch's caching allocator does: a freed block goes back to the pool of the stream it was
allocated on, and the next tensor of that size on that stream gets it at once; but if `record_stream` named other
streams, only after the host has heard that they are done. It is the slowest GPU there is: until the host waits for
something, nothing counts as done. It measures nothing: it has no time.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count, product
from string import ascii_uppercase
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from lib.streams.races import HOST, Clocks, Operation, Region, VectorClock


class PretendTensor(Tensor):
    """A tensor of the CPU that belongs to a PretendGPU: what is done with it is written down there."""

    gpu: PretendGPU
    block: Block

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run a function of torch at once, and note which memory it reads and writes."""
        kwargs = kwargs or {}
        ours = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, PretendTensor)]
        with torch._C.DisableTorchFunctionSubclass():
            return ours[0].gpu.run(func, ours, args, kwargs)

    def record_stream(self, stream: Any) -> None:
        """Tell the allocator that this stream uses the tensor."""
        if "record_stream" not in self.gpu.forgets:
            self.block.users.add(stream.name)


class Block:
    """A piece of memory: its name, its place, its bytes, and the streams that `record_stream` named."""

    def __init__(self, name: str, on_device: bool, size: int, stream: str, pinned: bool = False) -> None:
        self.name = name
        self.on_device = on_device
        self.size = size
        self.stream = stream  # to whose pool it goes back
        self.pinned = pinned
        self.users: set[str] = set()


class PretendEvent:
    """Stand in for torch.Event."""

    def __init__(self, gpu: PretendGPU, number: int, label: str) -> None:
        self.gpu = gpu
        self.number = number
        self.label = label

    def synchronize(self) -> None:
        """Let the host wait."""
        self.gpu.issue(Operation("synchronize", HOST, self.label, self.number))


class PretendStream:
    """Stand in for torch.Stream."""

    def __init__(self, gpu: PretendGPU, name: str) -> None:
        self.gpu = gpu
        self.name = name

    def record_event(self) -> PretendEvent:
        """Put an event behind what is in the stream now."""
        self.gpu.events += 1
        last = self.gpu.last.get(self.name)
        event = PretendEvent(self.gpu, self.gpu.events, f"{last} ({self.name})" if last else self.name)
        self.gpu.issue(Operation("record", self.name, event.label, event.number))
        return event

    def wait_event(self, event: PretendEvent) -> None:
        """Let the stream wait."""
        if "wait_event" not in self.gpu.forgets:
            self.gpu.issue(Operation("wait", self.name, event.label, event.number))

    def wait_stream(self, stream: PretendStream) -> None:
        """Let this stream wait for what is in the other one now."""
        if "wait_stream" not in self.gpu.forgets:
            event = stream.record_event()  # waited for here, as only calls of wait_event itself may be forgotten
            self.gpu.issue(Operation("wait", self.name, event.label, event.number))

    def synchronize(self) -> None:
        """Let the host wait for what is in the stream now."""
        self.record_event().synchronize()

    def __repr__(self) -> str:
        return f"PretendStream({self.name!r})"


# ---- the GPU itself

_UNIT = 512  # CUDA's allocator hands out multiples of this many bytes
_READERS = {"item", "tolist", "numpy", "equal", "allclose", "__bool__", "__float__", "__int__", "__repr__"}
_IS_CPU = Tensor.is_cpu.__get__  # type: ignore[attr-defined]
_IS_CUDA = Tensor.is_cuda.__get__  # type: ignore[attr-defined]


class PretendGPU:
    """Record what runs on it in `operations`. Use it where lib.streams takes a device.

    forgets: names of calls that do nothing, to plant a race: "wait_event", "wait_stream", "record_stream". Raises
    ValueError for others.
    """

    device = torch.device("cuda")  # what it stands in for: code that says .to("cuda") runs on it

    def __init__(self, forgets: Collection[str] = ()) -> None:
        known = {"wait_event", "wait_stream", "record_stream"}
        if isinstance(forgets, str) or not known.issuperset(forgets):
            given = forgets if isinstance(forgets, str) else [*forgets]
            raise ValueError(f"forgets is a list of {', '.join(sorted(known))}, not {given!r}")
        self.operations: list[Operation] = []
        self.forgets = frozenset(forgets)
        self._current = PretendStream(self, "compute")
        self.events = 0  # so far
        self.last: dict[str, str] = {}  # the last launch of each stream
        self._clocks = Clocks()
        self._names = _letters()
        self._staged = count(1)
        self._free: list[tuple[Block, VectorClock]] = []  # with what its users must have done
        self._labels: list[str] = []
        self._open: int | None = None  # the number of the launch that a span is making

    def new_stream(self, name: str = "side") -> PretendStream:
        """Return a stream of that name."""
        return PretendStream(self, name)

    def current_stream(self) -> PretendStream:
        """Return the stream in use; at first that is "compute"."""
        return self._current

    @contextmanager
    def use_stream(self, stream: PretendStream) -> Iterator[None]:
        """Make a stream the current one."""
        outside = self._current
        self._current = stream
        try:
            yield
        finally:
            self._current = outside

    @contextmanager
    def span(self, stream: PretendStream, lane: str, label: str, kind: str = "compute") -> Iterator[None]:
        """Call what the body launches into one stream by this label, and count it as one launch."""
        self._labels.append(label)
        self._open = None
        try:
            yield
        finally:
            self._labels.pop()
            self._open = None

    def empty_like(self, x: Tensor) -> Tensor:
        """Return memory of the device."""
        with torch._C.DisableTorchFunctionSubclass():
            return self._new(torch.empty(x.shape, dtype=x.dtype), on_device=True)

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return pinned memory of the host."""
        return self._new(torch.empty(shape, dtype=dtype), on_device=False, name="result", pinned=True)

    def host(self, x: Tensor, name: str = "input", *, pinned: bool = True) -> Tensor:
        """Return the tensor of the CPU as one that this GPU knows, in pinned memory unless told otherwise."""
        return self._new(x, on_device=False, name=name, pinned=pinned)

    def _new(self, data: Tensor, *, on_device: bool, name: str = "", pinned: bool = False) -> PretendTensor:
        size = max(1, -(-data.untyped_storage().nbytes() // _UNIT)) * _UNIT
        if on_device:
            return self._wrap(data, self._take(size))
        return self._wrap(data, Block(name or f"host {next(self._names)}", False, size, HOST, pinned))

    def _wrap(self, data: Tensor, block: Block) -> PretendTensor:
        tensor = data.as_subclass(PretendTensor)
        tensor.gpu = self
        tensor.block = block
        return tensor

    def _take(self, size: int) -> Block:
        block = self._reused(size)
        if block is None:
            block = Block(next(self._names), True, size, self._current.name)
        # the tensors hold this one: when the last of them is gone, the block goes back
        handle = Block(block.name, True, size, block.stream)
        self.operations.append(Operation("allocate", block.stream, block.name))
        weakref.finalize(handle, self._give_back, block, handle.users)
        return handle

    def _reused(self, size: int) -> Block | None:
        """Take a block of the current stream's pool whose users the host knows to be done; None without one."""
        host = self._clocks.lanes[HOST]
        for place, (block, users) in enumerate(self._free):
            done = all(host.get(lane, 0) >= time for lane, time in users.items())
            if block.size == size and block.stream == self._current.name and done:
                del self._free[place]
                return block
        return None

    def _give_back(self, block: Block, users: set[str]) -> None:
        self.operations.append(Operation("free", HOST, block.name))
        until: VectorClock = {}  # how far the other streams must be, before the block may be given away
        for lane in users - {block.stream}:
            until[lane] = self._clocks.lanes.get(lane, {}).get(lane, 0)
        self._free.append((block, until))

    def issue(self, op: Operation) -> None:
        """Write down one operation."""
        self._open = None
        self._clocks.issue(op)
        self.operations.append(op)
        if op.kind == "launch":
            self.last[op.lane] = op.label

    def _access(self, lane: str, label: str, reads: list[Region], writes: list[Region]) -> None:
        label = self._labels[-1] if self._labels and lane != HOST else label  # a span is of what is launched
        if self._open is not None and self.operations[self._open].lane == lane:  # more of the same launch
            op = self.operations[self._open]
            reads = [r for r in reads if not any(r.meets(w) for w in op.writes)]  # its own results are no input
            self.operations[self._open] = replace(op, reads=_once(*op.reads, *reads), writes=_once(*op.writes, *writes))
            return
        self.issue(Operation("launch", lane, label, reads=_once(*reads), writes=_once(*writes)))
        self._open = len(self.operations) - 1 if self._labels else None

    def run(self, func: Any, ours: list[PretendTensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function of torch on these tensors, and write down what it does to memory."""
        name = getattr(func, "__name__", "")
        x = ours[0]
        if func == _IS_CPU:
            return not x.block.on_device
        if func == _IS_CUDA:
            return x.block.on_device
        if name == "is_pinned":
            return x.block.pinned
        if name == "pin_memory":
            pinned = self._new(x.clone(), on_device=False, pinned=True)
            self._access(HOST, "pin", [_region(x)], [_region(pinned)])
            return pinned
        if name in ("to", "cuda", "cpu") and (target := _target(name, args, kwargs)) is not None:
            if target == x.block.on_device:
                return x
            non_blocking = bool(kwargs.get("non_blocking"))
            moved = self._new(torch.Tensor.clone(x).as_subclass(Tensor), on_device=target, pinned=non_blocking)
            self._copy(x, moved, non_blocking)
            return moved
        if name == "copy_" and isinstance(args[0], PretendTensor) and isinstance(args[1], PretendTensor):
            func(*args, **kwargs)
            self._copy(args[1], args[0], bool(kwargs.get("non_blocking")))
            return args[0]
        return self._compute(func, name, ours, args, kwargs)

    def _copy(self, source: PretendTensor, target: PretendTensor, non_blocking: bool) -> None:
        to_device = target.block.on_device
        from_device = source.block.on_device
        lane = self._current.name if to_device or from_device else HOST
        label = f"copy of {source.block.name}"
        reads = _region(source)
        if non_blocking and to_device and not (from_device or source.block.pinned):
            # CUDA's call returns once pageable memory is read into a pinned buffer of its own: staged, not done. The
            # rest runs in the stream, and torch leaves out its own wait. (CUDA may wait for the stream: no promise.)
            reads = reads._replace(block=f"staging {next(self._staged)}")
            self._access(HOST, "stage", [_region(source)], [reads])
        self._access(lane, label, [reads], [_region(target)])
        if to_device != from_device and not (non_blocking and (to_device or target.block.pinned)):
            self._current.synchronize()  # the host stands still until it is done

    def _compute(
        self, func: Any, name: str, ours: list[PretendTensor], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        lane = self._current.name if any(x.block.on_device for x in ours) else HOST
        if name in _READERS and lane != HOST:
            self._current.synchronize()
        result = func(*args, **kwargs)
        blocks = {x.untyped_storage().data_ptr(): x.block for x in ours}
        in_place = name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))
        writes = [_region(args[0])] if in_place and isinstance(args[0], PretendTensor) else []

        def wrap(y: Any) -> Any:
            if not isinstance(y, Tensor) or isinstance(y, PretendTensor):
                return y
            block = blocks.get(y.untyped_storage().data_ptr())
            if block is not None:
                return self._wrap(y, block)  # a view: no memory is touched
            new = self._new(y, on_device=lane != HOST)
            writes.append(_region(new))
            return new

        result = tree_map(wrap, result)
        if writes or name in _READERS:  # the others only made views
            self._access(lane, name.strip("_") or "kernel", [_region(x) for x in ours], writes)
        return result


def _region(x: PretendTensor) -> Region:
    with torch._C.DisableTorchFunctionSubclass():
        start = x.storage_offset() * x.element_size()
        last = sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True))  # its distance from the first
        size = last + 1 if x.numel() else 0
        return Region(x.block.name, int(start), int(start + size * x.element_size()))


def _target(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool | None:
    """Return True for a move to the device, False for one to the host, None where .to() only changes the dtype."""
    if name != "to":
        return name != "cpu"
    asked = [*args[1:2], kwargs.get("device")]
    place = next((x for x in asked if isinstance(x, (str, torch.device))), None)
    return None if place is None else torch.device(place).type != "cpu"


def _letters() -> Iterator[str]:
    """Yield A to Z, AA, AB and so on."""
    for size in count(1):
        for letters in product(ascii_uppercase, repeat=size):
            yield "".join(letters)


def _once(*regions: Region) -> tuple[Region, ...]:
    return tuple(dict.fromkeys(regions))
