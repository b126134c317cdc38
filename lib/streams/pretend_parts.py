"""What a PretendGPU is made of: tensors, blocks of memory, streams and events that tell it what is done with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

from lib.streams.operations import HOST, Operation

if TYPE_CHECKING:
    from lib.streams.pretend import PretendGPU


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
        self.name, self.on_device, self.size, self.stream, self.pinned = name, on_device, size, stream, pinned
        self.users: set[str] = set()


class PretendEvent:
    """Stand in for torch.cuda.Event."""

    def __init__(self, gpu: PretendGPU, number: int, label: str) -> None:
        self.gpu, self.number, self.label = gpu, number, label

    def synchronize(self) -> None:
        """Let the host wait."""
        self.gpu.issue(Operation("synchronize", HOST, self.label, self.number))


class PretendStream:
    """Stand in for torch.cuda.Stream."""

    def __init__(self, gpu: PretendGPU, name: str) -> None:
        self.gpu, self.name = gpu, name

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
            event = stream.record_event()
            self.gpu.issue(Operation("wait", self.name, event.label, event.number))

    def synchronize(self) -> None:
        """Let the host wait for what is in the stream now."""
        self.record_event().synchronize()

    def __repr__(self) -> str:
        return f"PretendStream({self.name!r})"
