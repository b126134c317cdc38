"""A GPU that is not there: real code runs on it at once, on the CPU, and every stream operation is written down.

    gpu = PretendGPU()
    y = StreamPipeline(model, chunks=4, device=gpu)(gpu.host(x))     # the right result
    find_races(gpu.operations)                                       # what a real GPU would be free to do

Every operator is seen, those of backward and of optimizers as well, and which bytes it reads and writes. Code that asks
for "cuda" by name runs on it `with in_place_of_cuda(gpu)` (lib.streams.stand_in). All is launched by one thread.

It gives memory away as torch's caching allocator does: a freed block goes back to the pool of the stream it was
allocated on, and the next tensor of that size on that stream gets it at once; but if `record_stream` named other
streams, only after the host has heard that they are done. It is the slowest GPU there is: until the host waits for
something, nothing counts as done. It measures nothing: it has no time.

Backward runs as autograd runs it on a GPU: each operator in the stream of its forward (lib.streams.pretend_backward).
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from lib.arguments import integer, seconds_to_sleep
from lib.runtime.regions import Region
from lib.streams.pretend_backward import BackwardStreams
from lib.streams.pretend_memory import Block, Pools
from lib.streams.pretend_stream import EVERYTHING, PretendStream, need_own
from lib.streams.pretend_tensor import PretendTensor, asked_for, effects_of, operator_name
from lib.streams.races import HOST, Clocks, Operation

_UNIT = 512  # CUDA's allocator hands out multiples of this many bytes
_CPU = torch.device("cpu")
_LABELS = {"_local_scalar_dense": "item", "_to_copy": "to"}
_UNWRITTEN = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted"}


class PretendGPU:
    """Record what runs on it in `operations`. Use it where lib.streams takes a device.

    forgets: names of calls that do nothing, to plant a race: "wait_event", "wait_stream", "record_stream". Raises
    ValueError for others, TypeError for what is no list. count: of devices, cuda:0, cuda:1, …
    """

    device = torch.device("cuda")  # what it stands in for: code that says .to("cuda") runs on it

    def __init__(self, forgets: Collection[str] = (), count: int = 1) -> None:
        known = {"wait_event", "wait_stream", "record_stream"}
        if isinstance(forgets, str) or not isinstance(forgets, Collection):
            raise TypeError(f"forgets must be a list, such as ['wait_event'], not {forgets!r}")
        if not known.issuperset(forgets):
            raise ValueError(f"forgets is a list of {', '.join(sorted(known))}, not {[*forgets]!r}")
        self.operations: list[Operation] = []
        self.forgets = frozenset(forgets)
        self.count = integer("count", count, at_least=1)
        self.streams: list[PretendStream] = []
        self.default_streams = [self.new_stream("compute", index) for index in range(self.count)]
        self.current_device = 0
        self.in_use = list(self.default_streams)  # of each device; ask for current_stream
        self.backward = BackwardStreams(self)
        self.events = 0  # so far
        self.last: dict[str, str] = {}  # the last launch of each stream
        self._clocks = Clocks()
        self._staged = itertools.count(1)
        self._pools = Pools(self.operations, self._clocks)
        self._labels: list[str] = []
        self._open: int | None = None  # the number of the launch that a span is making

    def __repr__(self) -> str:
        forgets = f", forgets {', '.join(sorted(self.forgets))}" if self.forgets else ""
        return f"<PretendGPU: {len(self.operations)} operations in {len(self.streams)} streams{forgets}>"

    # ---- streams

    def new_stream(self, name: str = "side", index: int | None = None) -> PretendStream:
        """Return a stream of that name, with a number behind it where there is such a stream already."""
        device = torch.device("cuda", self.current_device if index is None else index)
        if device.index:
            name = f"{name} of {device}"
        taken = {stream.name for stream in self.streams}
        number = 2
        unique = name
        while unique in taken:
            unique = f"{name} {number}"
            number += 1
        self.streams.append(PretendStream(self, unique, device))
        return self.streams[-1]

    def current_stream(self, index: int | None = None) -> PretendStream:
        """Return the stream in use on a device; at first that is "compute"."""
        self.backward.look()
        return self.in_use[self.current_device if index is None else index]

    @contextmanager
    def use_stream(self, stream: PretendStream) -> Iterator[None]:
        """Make a stream the current one, and its device. Raises ValueError for that of another PretendGPU."""
        need_own(self, stream)
        index = stream.device.index
        outside = self.current_stream(index)
        with self.use_device(index):
            self.in_use[index] = stream
            try:
                yield
            finally:
                self.in_use[index] = outside

    @contextmanager
    def use_device(self, index: int) -> Iterator[None]:
        """Make a device the current one."""
        self.backward.look()
        outside = self.current_device
        self.current_device = index
        try:
            yield
        finally:
            self.current_device = outside

    def synchronize(self, index: int | None = None) -> None:
        """Let the host wait for all streams of a device."""
        index = self.current_device if index is None else index
        for stream in self.streams:
            if stream.device.index == index:
                event = stream.record_event()
                event.label = EVERYTHING
                event.synchronize()

    def sleep(self, seconds: float) -> None:
        """Keep the current stream busy; as there is no time here, only that it happened is noted.

        Raises TypeError for what is no number, ValueError for what no device sleeps: less than 0, more than a day.
        """
        seconds_to_sleep(seconds)
        self._access(self.current_stream().name, "sleep", [], [])

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

    # ---- memory

    def empty_like(self, x: Tensor) -> Tensor:
        """Return memory of the device."""
        return self.adopt(torch.empty(tuple(x.shape), dtype=x.dtype), self.located(self.device))

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return pinned memory of the host."""
        return self.adopt(torch.empty(shape, dtype=dtype), name="result", pinned=True)

    def host(self, x: Tensor, name: str = "input", *, pinned: bool = True) -> PretendTensor:
        """Return the tensor of the CPU as one that this GPU knows, in pinned memory unless told otherwise."""
        if not isinstance(x, PretendTensor):
            return self.adopt(x, name=name, pinned=pinned)
        return x.pin_memory() if pinned else x  # what is pinned already is the same tensor, as on a device

    def pin(self, x: PretendTensor) -> PretendTensor:
        """Return a pinned copy, which the host makes."""
        pinned = self.adopt(x.plain.clone(), pinned=True)
        self._access(HOST, "pin", [x.region], [pinned.region])
        return pinned

    def adopt(
        self, plain: Tensor, device: torch.device = _CPU, *, name: str = "", pinned: bool = False
    ) -> PretendTensor:
        """Return the tensor as one in new memory: of a device, or the host's, called so."""
        size = max(1, -(-plain.untyped_storage().nbytes() // _UNIT)) * _UNIT
        if device == _CPU:
            block = Block(self._pools.name_on_host(name), _CPU, size, HOST, pinned)
        else:
            block = self._pools.take(size, device, self.current_stream(device.index).name)
        return PretendTensor.of(plain, self, block)

    def note_made(self, x: PretendTensor) -> None:
        """Note in which stream autograd's node of a tensor is to run, that was made or written."""
        x.made_in = self.current_stream(x.block.device.index) if x.block.on_device else None

    def note_roots(self, tensors: Iterable[PretendTensor]) -> None:
        """Note in which streams autograd's nodes of these tensors are to run: backward is about to begin there."""
        self.backward.note(tensors)

    def made(self, plain: Tensor, device: torch.device, name: str) -> PretendTensor:
        """Return what torch's function of that name has made (zeros, randn, …) as made on a device."""
        new = self.adopt(plain, self.located(device))
        if name not in _UNWRITTEN:
            self._access(self.current_stream(new.block.device.index).name, name, [], [new.region])
        return new

    def located(self, device: torch.device) -> torch.device:
        """Return the device with its number. Raises ValueError for another kind, RuntimeError for one that isn't."""
        if device.type == "cpu":
            return _CPU
        if device.type != "cuda":
            raise ValueError(f"a PretendGPU has the devices cpu and cuda, not {str(device)!r}")
        index = self.current_device if device.index is None else device.index
        if index >= self.count:
            raise RuntimeError(f"there is no cuda:{index}: PretendGPU(count={self.count})")
        return torch.device("cuda", index)

    # ---- what is written down

    def issue(self, op: Operation) -> None:
        """Write down one operation."""
        self._open = None
        self._clocks.issue(op)
        self.operations.append(op)
        if op.kind == "launch":
            self.last[op.lane] = op.label

    def host_knows(self, event: int) -> bool:
        """Return whether all that an event stands for is known to be done, as far as the host has waited."""
        host = self._clocks.lanes[HOST]
        return all(host.get(lane, 0) >= time for lane, time in self._clocks.events.get(event, {}).items())

    def _access(self, lane: str, label: str, reads: list[Region], writes: list[Region]) -> None:
        label = self._labels[-1] if self._labels and lane != HOST else label  # a span is of what is launched
        if self._open is not None and self.operations[self._open].lane == lane:  # more of the same launch
            op = self.operations[self._open]
            reads = [r for r in reads if not any(r.meets(w) for w in op.writes)]  # its own results are no input
            self.operations[self._open] = replace(op, reads=_once(*op.reads, *reads), writes=_once(*op.writes, *writes))
            return
        self.issue(Operation("launch", lane, label, reads=_once(*reads), writes=_once(*writes)))
        self._open = len(self.operations) - 1 if self._labels else None

    def read_by_host(self, x: PretendTensor, label: str) -> None:
        """Note that the host reads a tensor now: from a device it is fetched first, and waited for."""
        if not x.block.on_device:
            self._access(HOST, label, [x.region], [])
            return
        stream = self.current_stream(x.block.device.index)
        self._access(stream.name, label, [x.region], [])
        stream.synchronize()

    # ---- copies

    def move(self, x: Tensor, device: torch.device, non_blocking: bool) -> Tensor:
        """Return the tensor on another device: x itself if it is there already."""
        to = self.located(device)
        place = x.block.device if isinstance(x, PretendTensor) else _CPU
        if to == place:
            return x
        moved: Tensor = _Move.apply(x, self, place, to, non_blocking)  # type: ignore[no-untyped-call]
        return moved

    def copied(self, x: Tensor, device: torch.device, non_blocking: bool) -> PretendTensor:
        """Copy a tensor to new memory of a device, or pinned memory of the host where `non_blocking` asks for it."""
        source = self._known(x)
        target = self.adopt(source.plain.clone(), device, pinned=non_blocking and device == _CPU)
        self._copy(source, target, non_blocking)
        return target

    def _known(self, x: Tensor) -> PretendTensor:
        """Return a tensor that this GPU knows: one of which it was told nothing is the host's, and not pinned."""
        return x if isinstance(x, PretendTensor) else self.adopt(x.detach())

    def _copy(self, source: PretendTensor, target: PretendTensor, non_blocking: bool) -> None:
        to_device = target.block.on_device
        from_device = source.block.on_device
        label = f"copy of {source.block.name}"
        reads = source.region
        if not (to_device or from_device):
            self._access(HOST, label, [reads], [target.region])
            return
        if to_device and from_device:
            self._copy_on_device(source, target, label)
            return
        stream = self.current_stream((target if to_device else source).block.device.index)
        if non_blocking and to_device and not source.block.pinned:
            # CUDA's call returns once pageable memory is read into a pinned buffer of its own: staged, not done. The
            # rest runs in the stream, and torch leaves out its own wait. (CUDA may wait for the stream: no promise.)
            reads = Region(f"staging {next(self._staged)}", reads.start, reads.stop, reads.steps)
            self._access(HOST, "stage", [source.region], [reads])
        self._access(stream.name, label, [reads], [target.region])
        if not (non_blocking and (to_device or target.block.pinned)):
            stream.synchronize()  # the host stands still until it is done

    def _copy_on_device(self, source: PretendTensor, target: PretendTensor, label: str) -> None:
        # Between two devices torch copies in the stream of the source, which waits for the target's before, and for
        # which that one waits behind it.
        stream = self.current_stream(source.block.device.index)
        other = self.current_stream(target.block.device.index)
        if other is not stream:
            stream.follow(other)
        self._access(stream.name, label, [source.region], [target.region])
        if other is not stream:
            other.follow(stream)

    # ---- operators

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator of torch on its tensors, and write down what it does to memory.

        Raises RuntimeError for tensors of two PretendGPUs.
        """
        ours = [x for x in tree_leaves((args, kwargs)) if isinstance(x, PretendTensor)]
        if any(x.gpu is not self for x in ours):
            raise RuntimeError(f"{operator_name(func)} would use memory of another PretendGPU, too")
        self.backward.note(ours)
        self.backward.look(ours)
        if torch.is_inference_mode_enabled():  # there torch does not take an operator apart that is made of others
            made = func.decompose(*args, **kwargs)
            if made is not NotImplemented:
                return made
        name = operator_name(func)
        if name == "copy_":
            return self._copy_in_place(*args, **kwargs)
        if name.startswith(("_foreach_", "_fused_")) and len(by_device := _by_device(args[0])) > 1:
            return self._run_on_each(by_device.values(), func, args, kwargs)
        place = self._place_of(args, kwargs)
        if kwargs.get("device") is not None:
            asked = self.located(asked_for(torch.device(kwargs["device"]), place))
            kwargs = {**kwargs, "device": _CPU}
            if name == "_to_copy" and asked != place:
                return self._moved_and_cast(args[0], asked, func, kwargs)
            place = asked
        return self._compute(func, place, args, kwargs)

    def _run_on_each(
        self, groups: Iterable[list[int]], func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[Any] | None:
        """Run an operator over lists once a device: an optimizer sorts its lists so, but takes ours to be of one."""
        size = len(args[0])
        results: list[Any] = [None] * size
        for places in groups:

            def chosen(value: Any, places: list[int] = places) -> Any:
                is_list = isinstance(value, (list, tuple)) and len(value) == size
                return [value[place] for place in places] if is_list else value

            made = self.run(func, tuple(map(chosen, args)), {name: chosen(value) for name, value in kwargs.items()})
            if made is None:  # in place
                continue
            for place, result in zip(places, made, strict=True):
                results[place] = result
        return None if results[0] is None else results

    def _place_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device:
        """Return where an operator runs. Raises RuntimeError for tensors of two GPUs."""
        ours = [x for x in tree_leaves((args, kwargs)) if isinstance(x, PretendTensor)]
        devices = {x.block.device for x in ours if x.block.on_device}
        if len(devices) > 1:
            found = " and ".join(sorted(map(str, devices)))
            raise RuntimeError(f"expected all tensors to be on the same device, but found {found}")
        return next(iter(devices), _CPU)

    def _moved_and_cast(self, x: PretendTensor, device: torch.device, func: Any, kwargs: dict[str, Any]) -> Any:
        moved = self.copied(x, device, bool(kwargs.get("non_blocking")))
        return moved if kwargs.get("dtype") in (None, x.dtype) else self._compute(func, device, (moved,), kwargs)

    def _copy_in_place(self, target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
        known = self._known(target)
        origin = self._known(source)
        known.plain.copy_(origin.plain)
        self._copy(origin, known, non_blocking)
        self.note_made(known)
        return target

    def _compute(self, func: Any, place: torch.device, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = operator_name(func)
        lane = HOST if place == _CPU else self.current_stream(place.index).name
        effects = effects_of(func, args, kwargs)
        ours = {id(x.plain): x for x in tree_leaves((args, kwargs)) if isinstance(x, PretendTensor)}
        blocks = {x.plain.untyped_storage()._cdata: x.block for x in ours.values()}
        layouts = [_layout(x.plain) for x in ours.values()]
        plain = {key: value for key, value in tree_map(_plain, kwargs).items() if key != "pin_memory"}
        result = func(*tree_map(_plain, args), **plain)
        of_host = result[1:] if name == "_pack_padded_sequence" else ()
        for x, layout in zip(ours.values(), layouts, strict=True):
            if _layout(x.plain) != layout:
                _follow(x, name)
        writes = [x.region for x in effects.writes]

        def wrap(y: Any) -> Any:
            if not isinstance(y, Tensor):
                return y
            if id(y) in ours:
                self.note_made(ours[id(y)])
                return ours[id(y)]
            if (block := blocks.get(y.untyped_storage()._cdata)) is not None:
                return PretendTensor.of(y, self, block)  # a view: no memory is touched
            new = self.adopt(y, _CPU if any(y is z for z in of_host) else place, pinned=bool(kwargs.get("pin_memory")))
            if name not in _UNWRITTEN and new.device == place:
                writes.append(new.region)
            return new

        result = tree_map(wrap, result)
        if writes or effects.synchronises:  # the others only made views
            label = _LABELS.get(name, name.strip("_") or "kernel")
            self._access(lane, label, [x.region for x in effects.reads], writes)
        if effects.synchronises and place != _CPU:
            self.current_stream(place.index).synchronize()
        return result


class _Move(torch.autograd.Function):
    """Move a tensor; in backward its gradient goes the other way."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gpu: PretendGPU, place: torch.device, device: torch.device, non_blocking: bool
    ) -> Tensor:
        """Return the copy."""
        ctx.way = (gpu, place, isinstance(x, PretendTensor))
        return gpu.copied(x, device, non_blocking)

    @staticmethod
    def backward(ctx: Any, *grads: PretendTensor) -> tuple[Tensor, None, None, None, None]:
        """Return the gradient where the tensor was; without the wrapping, if that one had none."""
        gpu, place, wrapped = ctx.way
        moved = gpu.copied(grads[0], place, False)
        return moved if wrapped else moved.plain, None, None, None, None


def _plain(x: Any) -> Any:
    return x.plain if isinstance(x, PretendTensor) else x


def _by_device(tensors: Iterable[Tensor]) -> dict[torch.device, list[int]]:
    """Return the places in a list of the tensors of each device."""
    places: dict[torch.device, list[int]] = {}
    for place, x in enumerate(tensors):
        places.setdefault(x.device, []).append(place)
    return places


def _layout(x: Tensor) -> tuple[Any, ...]:
    return x.shape, x.stride(), x.storage_offset()


def _follow(x: PretendTensor, name: str) -> None:
    """Give the tensor the layout that an operator such as t_ has given its memory."""
    if x.plain.untyped_storage()._cdata != x.untyped_storage()._cdata:
        raise NotImplementedError(f"{name} gives a tensor other memory, which a PretendGPU can't follow")
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.Python)):
        x.as_strided_(*_layout(x.plain))


def _once(*regions: Region) -> tuple[Region, ...]:
    return tuple(dict.fromkeys(regions))
