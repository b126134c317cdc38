"""CUDA's documented rules as programs, each written once, for a simulated device, a PretendGPU and a real GPU.

A rule says what a small program gives, and where that is documented:

RIGHT   what it reads is what was written: something brings the two into order. A PretendGPU finds no race.
WRONG   what it reads is not that, as one of the two is held up on purpose. A PretendGPU finds a race.
a bool  what the program itself returns: whether the host has waited, whether memory was used again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from lib.runtime.device import current_stream, new_stream, use_stream
from lib.streams import PretendGPU, find_races, in_place_of_cuda
from lib.streams.pretend_stream import PretendEvent

RIGHT = "right"
WRONG = "wrong"

#: Elements of each tensor.
SIZE = 1000


class Read(NamedTuple):
    """What a program has read, and what was written for it: this number in all places."""

    seen: Tensor
    written: float


class Device(Protocol):
    """What a program may ask of a device; all else it asks of torch."""

    def place(self, index: int = 0) -> torch.device:
        """Return the name of a device."""

    def stream(self, index: int = 0) -> Any:
        """Return a new stream."""

    def current(self, index: int = 0) -> Any:
        """Return the stream in use."""

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Use a stream within a `with`."""

    def event(self) -> Any:
        """Return an event in which nothing is recorded."""

    def busy(self) -> None:
        """Keep the current stream busy for a while."""

    def host(self, value: float, *, pinned: bool = True) -> Tensor:
        """Return memory of the host that holds a number."""

    def settle(self) -> None:
        """Let the host wait for all streams of all devices."""

    def address(self, x: Tensor) -> object:
        """Return which memory a tensor has."""

    def outcome(self, found: Read | bool) -> str | bool:
        """Return what a program gave."""


Program = Callable[[Any], Read | bool]


@dataclass(frozen=True)
class Rule:
    """A sentence, where it is documented, a program, and what that gives.

    unsafe: why it isn't tried on a real GPU. devices: how many the program needs.
    """

    name: str
    says: str
    source: str
    gives: str | bool
    program: Program
    unsafe: str = ""
    devices: int = 1


RULES: list[Rule] = []


def rule(says: str, source: str, gives: str | bool, **more: Any) -> Callable[[Program], Program]:
    """Put a program into the table."""

    def enter(program: Program) -> Program:
        RULES.append(Rule(program.__name__, says, source, gives, program, **more))
        return program

    return enter


# ---- where the rules stand

GUIDE = "CUDA C++ Programming Guide, Asynchronous Concurrent Execution"
EVENTS = "CUDA Runtime API, Event Management"
STREAMS = "CUDA Runtime API, Stream Management"
SYNC = "CUDA Runtime API, API synchronization behavior"
SEMANTICS = "PyTorch, CUDA semantics: Asynchronous execution, CUDA streams"
PINNED = "PyTorch, CUDA semantics: Use pinned memory buffers"
MEMORY = "PyTorch, CUDA semantics: Memory management"
BACKWARD = "PyTorch, CUDA semantics: Stream semantics of backward passes"
RECORD = "PyTorch, Tensor.record_stream"
TUNING = "PyTorch, Performance Tuning Guide: Avoid unnecessary CPU-GPU synchronization"
NONZERO = "PyTorch, torch.nonzero"


# ---- what programs share


def full(device: Device, value: float, index: int = 0) -> Tensor:
    """Return memory of a device that holds a number; all that was launched is done."""
    x = torch.full((SIZE,), value, device=device.place(index))
    device.settle()
    return x


def written_late(device: Device, stream: Any, value: float = 1.0, x: Tensor | None = None) -> Tensor:
    """Return memory that holds -1, until a stream, busy at first, writes a number."""
    if x is None:
        x = full(device, -1.0, stream.device.index)
    with device.on(stream):
        device.busy()
        x.fill_(value)
    return x


def read_on(device: Device, stream: Any, x: Tensor) -> Tensor:
    """Return what a stream reads."""
    with device.on(stream):
        return x + 0


# ---- the devices


class OfTorch:
    """A device that torch knows, simulated or real.

    Not lib.streams' Accelerator, which is one device: a rule speaks of several by number, of events and of addresses.
    """

    def __init__(self, kind: str, busy: Callable[[float], None]) -> None:
        self.kind = kind
        self.seconds = 0.1
        self._busy = busy

    def place(self, index: int = 0) -> torch.device:
        return torch.device(self.kind, index)

    def stream(self, index: int = 0) -> Any:
        return new_stream(self.place(index))

    def current(self, index: int = 0) -> Any:
        return current_stream(self.place(index))

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        return use_stream(stream)

    def event(self) -> Any:
        return torch.get_device_module(self.kind).Event()

    def busy(self) -> None:
        self._busy(self.seconds)

    def host(self, value: float, *, pinned: bool = True) -> Tensor:
        x = torch.full((SIZE,), value)
        return x.pin_memory() if pinned else x

    def settle(self) -> None:
        for index in range(torch.accelerator.device_count()):
            torch.accelerator.synchronize(index)

    def address(self, x: Tensor) -> object:
        return x.data_ptr()

    def outcome(self, found: Read | bool) -> str | bool:
        self.settle()
        if isinstance(found, bool):
            return found
        seen = found.seen.cpu()
        return RIGHT if torch.equal(seen, torch.full_like(seen, found.written)) else WRONG

    def gives(self, rule: Rule, expected: str | bool | None = None) -> str | bool:
        """Run a program; if it doesn't give what is expected, by default by the rule, again with a busier device.

        On a machine with much else to do, who was to be late may be done before who was to be early has begun.
        """
        expected = rule.gives if expected is None else expected
        for seconds in (0.1, 0.4, 1.6):
            self.seconds = seconds
            found = self.outcome(rule.program(self))
            if found == expected:
                break
        return found


class Pretended:
    """A PretendGPU: its numbers are always right, and its list tells what they could have been."""

    def __init__(self, forgets: Collection[str] = ()) -> None:
        self.gpu = PretendGPU(forgets, count=2)

    def place(self, index: int = 0) -> torch.device:
        return torch.device("cuda", index)

    def stream(self, index: int = 0) -> Any:
        return self.gpu.new_stream("side", index)

    def current(self, index: int = 0) -> Any:
        return self.gpu.current_stream(index)

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        return self.gpu.use_stream(stream)

    def event(self) -> Any:
        return PretendEvent(self.gpu)

    def busy(self) -> None:
        self.gpu.sleep(1.0)

    def host(self, value: float, *, pinned: bool = True) -> Tensor:
        return self.gpu.host(torch.full((SIZE,), value), f"host {value:g}", pinned=pinned)

    def settle(self) -> None:
        for stream in self.gpu.streams:
            stream.synchronize()

    def address(self, x: Any) -> object:
        return x.block.name

    def outcome(self, found: Read | bool) -> str | bool:
        if isinstance(found, bool):
            return found
        return WRONG if find_races(self.gpu.operations) else RIGHT

    def gives(self, rule: Rule) -> str | bool:
        """Run a program."""
        with in_place_of_cuda(self.gpu):
            return self.outcome(rule.program(self))
