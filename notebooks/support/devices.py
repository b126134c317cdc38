"""A device on which streams really run, for cells that need one: CUDA, else a simulated one, else a recording.

    device = start_device("early_read")        # says what it is; measured cells say it, so nbval ignores this one
    print(device.run(early_read, waits))       # the same on all three

`early_read` is a function of a GPU by the names that a PretendGPU has, so it runs on that, too, and find_races reads
what it did. A number of a simulated device is never called a GPU's.

To start a simulated device changes torch for the whole process (torch finds an accelerator from then on): a notebook
that calls start_device has a kernel of its own, also where others share one, and nothing but a cell calls it. It does
so before the first backward: autograd makes a queue for each device then, and has none for a device that comes later.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import ModuleType
from typing import Any, cast

import torch
from torch import Tensor

from lib.runtime.device import active_bytes, device_name, synchronize
from lib.simulated import BuildError, Kernel, Link, start
from lib.simulated.starting import NAME as SIMULATED_KIND
from lib.streams.gpu import Accelerator
from support import recordings

CUDA_CYCLES = 1.5e9
"""Of torch.cuda._sleep in a second, about: a GPU's clock."""

RELEASE_SECONDS = 2.0
"""So long a run's memory may be on its way back: autograd's thread lets go of a failed backward after its error."""

OnGPU = Callable[..., Tensor]


class RealStreams(Accelerator):
    """A torch device by the names that a PretendGPU has: lib's, and those that programs of a notebook need besides.

    count: of devices, where a program needs more than one; `device` is the first of `devices`. memory: bytes that each
    of them may give away, None for what there is.
    """

    def __init__(self, device: torch.device, count: int = 1, memory: int | None = None) -> None:
        super().__init__(device)
        self.is_simulated = device.type == SIMULATED_KIND
        self.memory = memory
        self.devices = (
            [device] if count == 1 else [torch.device(device.type, number) for number in range(count)]
        )

    def __str__(self) -> str:
        if not self.is_simulated:
            return " and ".join(device_name(device) for device in self.devices)
        count = len(self.devices)
        return recordings.SIMULATED if count == 1 else f"{count} simulated devices, no GPUs"

    def host(self, x: Tensor, name: str = "", *, pinned: bool = True) -> Tensor:
        """Return a tensor of the host, in pinned memory unless told otherwise."""
        return x.pin_memory() if pinned else x

    def sleep(self, seconds: float) -> None:
        """Keep the current stream busy; the host goes on at once."""
        module = torch.get_device_module(self.device)
        if self.is_simulated:
            module.sleep(seconds)
        else:
            module._sleep(int(seconds * CUDA_CYCLES))

    def synchronize(self) -> None:
        """Wait for all streams of all devices."""
        for device in self.devices:
            synchronize(device)

    def run(self, function: OnGPU, *arguments: object) -> Any:
        """Return what a function of this device and these arguments computes, as a number or a list."""
        before = self._in_use()
        try:
            return function(self, *arguments).tolist()
        finally:
            self.synchronize()  # nothing of it may still be on its way when the next one begins
            self._wait_for_release(before)

    def _in_use(self) -> int:
        if self.memory is None:
            return 0
        return sum(active_bytes(device, "current") for device in self.devices)

    def _wait_for_release(self, before: int) -> None:
        """Wait until no more bytes are in use than before a run, where the next one may need them all."""
        end = time.monotonic() + RELEASE_SECONDS
        while self._in_use() > before and time.monotonic() < end:
            time.sleep(0.001)

    def run_often(self, times: int, function: OnGPU, *arguments: object) -> list[Any]:
        """Return what so many runs give, one after the other."""
        return [self.run(function, *arguments) for _ in range(times)]

    def slow_copies(self, bandwidth: float) -> AbstractContextManager[None]:
        """Let copies from and to the host take time. Only a simulated device can: on CUDA they are as fast as ever."""
        return self._costing(host_link=Link(bandwidth=bandwidth))

    def slow(self, kernel: float, copy: float) -> AbstractContextManager[None]:
        """Let each kernel and each copy take so many seconds, on a simulated device: CUDA's are as fast as ever."""
        link = Link(latency=copy)
        return self._costing(kernel=Kernel(seconds=kernel), host_link=link, peer_link=link)

    @contextmanager
    def _costing(self, **costs: Any) -> Iterator[None]:
        self.synchronize()
        if self.is_simulated:
            start(len(self.devices), memory=self.memory, **costs)
        try:
            yield
        finally:
            self.synchronize()
            if self.is_simulated:
                start(len(self.devices), memory=self.memory)


class InPlaceOfADevice:
    """What a recording holds of the runs of a cell, by their arguments; of several functions, by their names first.

    module: where the functions stand that were recorded, by their names. Without it nobody is asked what he runs.
    """

    def __init__(self, record: recordings.Record, module: ModuleType | None = None) -> None:
        self.results: dict[str, Any] = record["results"]
        self.module = module

    def run(self, function: OnGPU, *arguments: object) -> Any:
        """Return what was recorded. Raises LookupError for arguments, or a function, that were not."""
        return self._recorded(function, key_of(*arguments))

    def run_often(self, times: int, function: OnGPU, *arguments: object) -> list[Any]:
        """Return what so many runs gave when they were recorded. Raises LookupError as run does."""
        found: list[Any] = self._recorded(function, key_of_often(times, *arguments))
        return found

    def slow_copies(self, bandwidth: float) -> AbstractContextManager[object]:
        """Do nothing: what was recorded was recorded with the copies that it had."""
        return nullcontext()

    def slow(self, kernel: float, copy: float) -> AbstractContextManager[object]:
        """Do nothing, as slow_copies."""
        return nullcontext()

    def _recorded(self, function: OnGPU, asked: str) -> Any:
        if self.module and not same_program(function, getattr(self.module, function.__name__, None)):
            raise LookupError(
                f"{function.__name__} is not the function that was recorded: what it gives needs a GPU, or a C++ "
                "compiler for the simulated one"
            )
        own = self.results.get(function.__name__, self.results)  # several functions: a table each
        if asked not in own:
            raise LookupError(
                f"{function.__name__} is recorded for ({'), ('.join(own)}), not for ({asked}): "
                "that needs a GPU, or a C++ compiler for the simulated one"
            )
        return own[asked]


def same_program(one: object, other: object) -> bool:
    """Return whether two functions are the same, word for word but for comments and blank lines."""
    read = _program(one)
    return bool(read) and read == _program(other)


def _program(function: object) -> str:
    """Return what Python reads in the text of a function; "" where there is no such text."""
    try:
        text = inspect.getsource(cast("Any", function))
    except (OSError, TypeError):
        return ""
    return ast.dump(ast.parse(textwrap.dedent(text)))


def key_of(*arguments: object) -> str:
    """Return the name under which a recording keeps the result of these arguments."""
    return ", ".join(map(repr, arguments))


def key_of_often(times: int, *arguments: object) -> str:
    """Return the name under which a recording keeps the results of so many runs."""
    return f"{times} times {key_of(*arguments)}"


_started: RealStreams | None = None


def started() -> RealStreams | None:
    """Return the device that a cell of this process has started; None without one."""
    return _started


def _limit_cuda(memory: int) -> None:
    """Let torch's allocator have so many bytes beside what CUDA's libraries took for a first product of matrices."""
    ones = torch.ones(64, 64, device="cuda")
    torch.mm(ones, ones)
    allowed = torch.cuda.memory_reserved() + memory
    _, total = torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction(min(1.0, allowed / total))


def start_device(recording: str, count: int = 1, memory: int | None = None) -> RealStreams | InPlaceOfADevice:
    """Return a device on which streams really run, and print what it is; where there is none, what was recorded.

    count: of devices. memory: bytes beyond which torch.OutOfMemoryError is raised; None: what there is. The first time
    on a machine the simulated device is built, which takes 20 to 60 seconds. Raises FileNotFoundError where there is
    neither a device nor a recording of that name.
    """
    global _started
    if torch.cuda.is_available() and (count == 1 or torch.cuda.device_count() >= count):
        if memory is not None:
            _limit_cuda(memory)
        _started = RealStreams(torch.device("cuda"), count, memory)
    else:
        try:
            with warnings.catch_warnings():
                # a notebook that goes backward on its device starts it first; the others may have gone backward before
                warnings.filterwarnings("ignore", "this process has gone backward before", RuntimeWarning)
                start(count, memory=memory)
        except (BuildError, RuntimeError) as error:
            reason = str(error).splitlines()[0].split(". ")[0]
            record = recordings.load(recording)
            print(f"Nothing can run on a device here: {reason}.\n{recordings.provenance(record)}")
            return InPlaceOfADevice(record, recordings.module_of(recording))
        _started = RealStreams(torch.device(SIMULATED_KIND, 0), count, memory)
    print(f"Streams really run here, on {_started}.")
    return _started
