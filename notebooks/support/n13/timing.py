"""Exercise 2 of notebook 13: the time of some work on the device, asked of one that has a clock and nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import FunctionType, SimpleNamespace
from typing import Any, TypeAlias

from support.kit.raised import Finding

DeviceTimer: TypeAlias = Callable[[Callable[[], object], Any], float]

LAUNCH = 0.01  # ms of the host for a launch


class ModelGPU:
    """A device with two streams, in ms: `host` is the host's clock. side: not the default stream is current."""

    def __init__(self, side: bool = False) -> None:
        self.host = 0.0
        self.default = ModelStream(self)
        self.current = ModelStream(self) if side else self.default
        self.others = list[ModelStream]()
        self.marks = list[bool]()  # of each mark, whether work() had been called before
        self.worked = False

    def launch(self, ms: float) -> None:
        """Put a kernel into the current stream: the host pays for the launch only."""
        self.host += LAUNCH
        self.current.busy = max(self.current.busy, self.host) + ms

    def synchronize(self) -> None:
        """Let the host wait until all is done."""
        self.host = max(self.host, *(stream.busy for stream in (self.default, self.current, *self.others)))


class ModelStream:
    """Stand in for torch.cuda.Stream; busy: when all that is in it will be done, in ms."""

    def __init__(self, gpu: ModelGPU) -> None:
        self._gpu = gpu
        self._uses = list[UseStream]()
        self.busy = 0.0

    def record_event(self, event: ModelEvent | None = None) -> ModelEvent:
        """Put an event into the stream, a new one if none is given."""
        event = ModelEvent(self._gpu, False) if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: ModelEvent) -> None:
        """Let the stream wait: what is launched into it from now on starts behind the event."""
        self._gpu.host += LAUNCH
        self.busy = max(self.busy, event.at)

    def wait_stream(self, stream: ModelStream) -> None:
        """Let this stream wait for what is in the other one now."""
        self.wait_event(stream.record_event())

    def query(self) -> bool:
        """Return whether all that is in it is done."""
        self._gpu.host += LAUNCH
        return self.busy <= self._gpu.host

    def __enter__(self) -> ModelStream:
        self._uses.append(UseStream(self._gpu, self))
        self._uses[-1].__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._uses.pop().__exit__()

    def synchronize(self) -> None:
        """Let the host wait until all that is in it is done."""
        self._gpu.host = max(self._gpu.host, self.busy)


class ModelEvent:
    """Stand in for torch.cuda.Event: reached when the device gets to it."""

    def __init__(self, gpu: ModelGPU, enable_timing: bool) -> None:
        self.gpu = gpu
        self.timed = enable_timing
        self.at = -1.0

    def record(self, stream: ModelStream | None = None) -> None:
        """Put the event into a stream, the current one if none is given; that is a launch, too."""
        self.gpu.host += LAUNCH
        stream = self.gpu.current if stream is None else stream
        self.at = max(self.gpu.host, stream.busy)
        self.gpu.marks.append(self.gpu.worked)

    def wait(self, stream: ModelStream | None = None) -> None:
        """Let a stream wait, the current one if none is given."""
        (self.gpu.current if stream is None else stream).wait_event(self)

    def query(self) -> bool:
        """Return whether it is reached; who asks again and again gets on a little."""
        self.gpu.host += LAUNCH
        return 0 <= self.at <= self.gpu.host

    def synchronize(self) -> None:
        """Let the host wait until it is reached."""
        self.gpu.host = max(self.gpu.host, self.at)

    def elapsed_time(self, end_event: ModelEvent) -> float:
        """Return ms between two events; RuntimeError without enable_timing, or before both are reached.

        Who asks again and again gets on a little here, too.
        """
        self.gpu.host += LAUNCH
        end = end_event
        if not (self.timed and end.timed):
            raise RuntimeError("both events must be made with enable_timing=True")
        if min(self.at, end.at) < 0:
            raise RuntimeError("both events must be recorded")
        if max(self.at, end.at) > self.gpu.host:
            raise RuntimeError(
                "elapsed_time needs both marks reached: first let the host wait for the later event"
            )
        return end.at - self.at


class UseStream:
    """Stand in for torch.cuda.stream: who enters and never leaves has made another stream the current one."""

    def __init__(self, gpu: ModelGPU, stream: ModelStream) -> None:
        self._gpu = gpu
        self._stream = stream
        self._outside = gpu.current

    def __enter__(self) -> None:
        self._outside = self._gpu.current
        self._gpu.current = self._stream

    def __exit__(self, *_: object) -> None:
        self._gpu.current = self._outside


class ModelCuda:
    """What an answer gets as torch.cuda: events, streams and waits, and nothing that tells how the model works."""

    def __init__(self, gpu: ModelGPU) -> None:
        def event(enable_timing: bool = False, *_: object, **__: object) -> ModelEvent:
            return ModelEvent(gpu, enable_timing)

        def made(*_: object, **__: object) -> ModelStream:
            gpu.others.append(ModelStream(gpu))
            return gpu.others[-1]

        self.Event = event
        self.Stream = made
        self.stream = partial(UseStream, gpu)
        self.current_device = lambda: 0
        self.synchronize = lambda device=None: gpu.synchronize()
        self.current_stream = lambda device=None: gpu.current
        self.default_stream = lambda device=None: gpu.default


CLOCKS = ("perf_counter", "monotonic", "time", "process_time", "thread_time")


def by_this_clock(timing: DeviceTimer, gpu: ModelGPU) -> DeviceTimer:
    """Return the answer with the model's host in place of every clock of Python's that it has by name."""
    if not isinstance(timing, FunctionType):
        return timing

    def now() -> float:
        return gpu.host / 1000

    def now_ns() -> int:
        return round(gpu.host * 1e6)

    clocks: dict[str, Callable[[], float]] = dict.fromkeys(CLOCKS, now)
    clocks |= {f"{name}_ns": now_ns for name in CLOCKS}
    originals = {id(getattr(time, name)): clock for name, clock in clocks.items()}
    space = dict(timing.__globals__)
    for name, value in space.items():
        if value is time:
            space[name] = SimpleNamespace(**(vars(time) | clocks))
        elif id(value) in originals:
            space[name] = originals[id(value)]
    same = FunctionType(timing.__code__, space, timing.__name__, timing.__defaults__, timing.__closure__)
    same.__kwdefaults__ = timing.__kwdefaults__
    return same


def ask_time(timing: DeviceTimer) -> Callable[..., float | None]:
    """Return the function that times kernels behind `waiting` ms of other work, all in the current stream."""

    def timed(waiting: float, kernels: Sequence[float], side: bool = False) -> float | None:
        gpu = ModelGPU(side)
        calls = []
        if waiting:
            gpu.launch(waiting)

        given = gpu.current

        def work() -> None:
            calls.append(1)
            gpu.worked = True
            if gpu.current is not given:
                raise Finding(
                    "work() launches into the stream that is current when it is called. You have made another one "
                    "current."
                )
            for ms in kernels:
                gpu.launch(ms)

        got = by_this_clock(timing, gpu)(work, ModelCuda(gpu))
        if gpu.current is not given:
            raise Finding(
                "Behind your timer another stream is current: there goes what the caller launches next."
            )
        if isinstance(got, str):
            raise Finding(f"The milliseconds are a number, and {got!r} is a str.")
        if got is not None and not calls:
            raise Finding("work() was never called.")
        if len(calls) > 1:
            raise Finding(
                f"work() was called {len(calls)} times: what it does to the program's data, it would do again."
            )
        if got == 0 and kernels and len(gpu.marks) > 1 and len(set(gpu.marks)) == 1:
            raise Finding("Both marks lie on the same side of the work.")
        return got if got is None else round(float(got), 6)

    return timed


def fault_of_time(got: object, expected: object, case: Mapping[str, Any]) -> str:
    """Say in the exercise's own terms what a wrong time is."""
    if got == expected:
        return ""
    waiting = case["waiting"]
    kernels = case["kernels"]
    what = f"{len(kernels)} kernels of {kernels[0]:g} ms" if kernels else "work() that launches nothing"
    before = f" behind {waiting:g} ms of other work" if waiting else ""
    where = " in a side stream" if case["side"] else ""
    return f"{what}{before}{where}: the device needs {expected} ms, you say {got}"


# ---- the answer, and ways to go wrong


def device_ms(work: Callable[[], object], cuda: Any) -> float:
    """Return the device's milliseconds for what work() launches."""
    start = cuda.Event(enable_timing=True)
    end = cuda.Event(enable_timing=True)
    start.record()
    work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))


def by_the_hosts_clock(work: Callable[[], object], cuda: Any) -> float:
    """Time the launches."""
    began = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - began)


def by_the_hosts_clock_and_a_wait(work: Callable[[], object], cuda: Any) -> float:
    """Time all that was in the stream."""
    began = time.perf_counter()
    work()
    cuda.synchronize()
    return 1000 * (time.perf_counter() - began)


def on_an_empty_device(work: Callable[[], object], cuda: Any) -> float:
    """Let the device run empty, twice."""
    cuda.synchronize()
    began = time.perf_counter()
    work()
    cuda.synchronize()
    return 1000 * (time.perf_counter() - began)


def in_the_hosts_seconds(work: Callable[[], object], cuda: Any) -> float:
    """Forget that perf_counter gives seconds, too."""
    began = time.perf_counter()  # by name in this very function: only such clocks are the model's
    work()
    return time.perf_counter() - began


def with_a_wait_inside(work: Callable[[], object], cuda: Any) -> float:
    """Record the second event when the host has waited."""

    def work_and_wait() -> None:
        work()
        cuda.synchronize()

    return device_ms(work_and_wait, cuda)


def in_the_default_stream(work: Callable[[], object], cuda: Any) -> float:
    """Record both events in the default stream, whichever is current."""
    start = cuda.Event(enable_timing=True)
    end = cuda.Event(enable_timing=True)
    start.record(cuda.default_stream())
    work()
    end.record(cuda.default_stream())
    end.synchronize()
    return float(start.elapsed_time(end))


def with_both_marks_behind(work: Callable[[], object], cuda: Any) -> float:
    """Record both events when all is launched."""
    work()
    return device_ms(lambda: None, cuda)


def with_both_marks_before(work: Callable[[], object], cuda: Any) -> float:
    """Record both events, then launch."""
    between = device_ms(lambda: None, cuda)
    work()
    return between
