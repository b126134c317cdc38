"""Start simulated devices in this process, give them costs, look at what they do."""

from __future__ import annotations

import atexit
import time
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch

from lib.arguments import integer
from lib.simulated import simgpu
from lib.simulated.build import build_library
from lib.simulated.modelled_time import Kernel, Link
from lib.timeline import Span, Trace

NAME = "simgpu"
MOST_DEVICES = 64
FORGETS = ("wait_event", "wait_stream", "record_stream")


class _Started(NamedTuple):
    devices: int
    memory: int  # bytes of each; 0: no limit


_started: _Started | None = None


def start(
    count: int = 2,
    *,
    memory: int | None = None,
    kernel: Kernel = Kernel(),  # noqa: B008  (it is frozen)
    host_link: Link = Link(),  # noqa: B008
    peer_link: Link = Link(),  # noqa: B008
    forgets: Collection[str] = (),
) -> None:
    """Make torch.device("simgpu:0") … exist in this process; again: change what they cost.

    count: of devices. memory: bytes of each, beyond which torch.OutOfMemoryError is raised; None: no limit. kernel,
    host_link, peer_link: what kernels cost, copies from and to the host (each direction has an engine of its own), and
    copies between devices. forgets: calls that do nothing from now on, to plant a race: "wait_event", "wait_stream"
    (torch tells the device no difference: either name means both), "record_stream".

    The first call builds the device, which takes 20 to 60 seconds once on a machine. It changes the process: torch
    finds an accelerator from then on. So it is refused, with RuntimeError, where a real one is (but for Apple's). A
    later call raises ValueError for another count or memory, RuntimeError while a device is at work. BuildError: no C++
    compiler. TypeError: a cost that is no Kernel or Link, or `forgets` that is no list.

    Call it before the first backward of the process: autograd then makes a queue for each device that there is, and
    can't go back on one that comes later. It warns where that has happened; all but backward works there.
    """
    wanted = _checked(count, memory)
    _check_costs(kernel=kernel, host_link=host_link, peer_link=peer_link)
    forgotten = _names(forgets)
    _begin(wanted)
    torch.ops.simgpu.configure(
        wanted.devices,
        wanted.memory,
        [kernel.seconds, kernel.flops, kernel.bandwidth, kernel.launch],
        [host_link.latency, host_link.bandwidth],
        [peer_link.latency, peer_link.bandwidth],
        "wait_event" in forgotten or "wait_stream" in forgotten,
        "record_stream" in forgotten,
    )
    _register(wanted)


def stop() -> None:
    """Raise RuntimeError: torch keeps a device for as long as the process lives."""
    raise RuntimeError("a simulated device can't be stopped: torch keeps it until the process ends")


class Counters(NamedTuple):
    """What the devices have done. overruns: for so many tasks the CPU took longer than their modelled time.

    latest: seconds by which a stream was behind its own clock at worst; the machine was busy with something else.
    """

    tasks: int
    overruns: int
    latest: float


def counters(*, reset: bool = False) -> Counters:
    """Return how much was done and how often the CPU was too slow for the modelled times; then count anew, if asked.

    Raises RuntimeError before start; so does profile.
    """
    simgpu.need_start()
    found = Counters(*torch.ops.simgpu.counters())
    if reset:
        torch.ops.simgpu.reset_counters()
    return found


@contextmanager
def profile() -> Iterator[list[Trace]]:
    """Write down what each stream does within a `with`; the list holds a Trace at its end.

        with profile() as found:
            y = model(x)
        found[0].headline()

    A lane a stream, "simgpu:0 stream 3"; kinds are "compute", "copy" and "wait"; seconds on the devices' own clock,
    from 0 on. At its end it waits for all devices.
    """
    simgpu.need_start()
    _synchronize()
    torch.ops.simgpu.start_profile()
    found: list[Trace] = []
    try:
        yield found
    finally:
        _synchronize()
        found.append(_trace(*torch.ops.simgpu.end_profile()))


def _trace(names: list[str], times: list[float]) -> Trace:
    spans = []
    lanes = set()
    for name, start_time, end_time in zip(names, times[::2], times[1::2], strict=True):
        device, stream, kind, label = name.split("\t")
        lane = (int(device), int(stream))
        lanes.add(lane)
        spans.append(Span(_lane_name(*lane), label, start_time, max(start_time, end_time), kind))
    return Trace(spans, [_lane_name(*lane) for lane in sorted(lanes)]).from_zero()


def _lane_name(device: int, stream: int) -> str:
    return f"{NAME}:{device} stream {stream}"


def _synchronize() -> None:
    for index in range(torch.accelerator.device_count()):
        torch.accelerator.synchronize(index)


def _checked(count: int, memory: int | None) -> _Started:
    devices = integer("count", count, at_least=1)
    if devices > MOST_DEVICES:
        raise ValueError(f"count must be at most {MOST_DEVICES}, not {devices}")
    if memory is None:
        return _Started(devices, 0)
    return _Started(devices, integer("memory", memory, at_least=1))


def _check_costs(kernel: object, **links: object) -> None:
    """Raise TypeError for a cost that is not of its kind, with the call that a bare number may mean."""
    _check_cost("kernel", kernel, Kernel, "seconds", 0.001)
    for name, link in links.items():
        _check_cost(name, link, Link, "bandwidth", 1e8)


def _check_cost(name: str, cost: object, kind: type[Kernel] | type[Link], field: str, example: float) -> None:
    if isinstance(cost, kind):
        return
    is_number = isinstance(cost, (int, float)) and not isinstance(cost, bool)
    value = cost if is_number else example
    raise TypeError(f"{name} must be a {kind.__name__}, such as {kind.__name__}({field}={value!r}), not {cost!r}")


def _names(forgets: object) -> list[str]:
    """Return the calls to forget. Raises TypeError for what is no list of them, ValueError for a name that is none."""
    if isinstance(forgets, str) or not isinstance(forgets, Collection):
        raise TypeError(f"forgets must be a list, such as ['wait_event'], not {forgets!r}")
    unknown = [name for name in forgets if name not in FORGETS]
    if unknown:
        raise ValueError(f"forgets: {unknown[0]!r} is none of {', '.join(FORGETS)}")
    return list(forgets)


def _begin(wanted: _Started) -> None:
    """Load the library the first time; later see that nothing else is asked for than what can change."""
    if _started is None:
        _refuse_beside_a_real_one()
        load = cast("Callable[[Path], None]", torch.ops.load_library)
        load(build_library())
    elif wanted != _started:
        raise ValueError(
            f"{_described(_started)} were started in this process, and torch keeps them: {_call_of(_started)} goes on "
            f"with them; {_described(wanted)} need a process of their own (restart the kernel)"
        )
    elif not _idle():
        raise RuntimeError("a simulated device is at work: torch.accelerator.synchronize(), then change its costs")


def _idle() -> bool:
    # A tensor that was freed just now leaves a moment's work behind: that is not what is meant by "at work".
    deadline = time.monotonic() + 0.05
    while not torch.ops.simgpu.idle():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True


def _call_of(started: _Started) -> str:
    memory = f", memory={started.memory}" if started.memory else ""
    return f"start({started.devices}{memory})"


def _described(started: _Started) -> str:
    memory = f" of {started.memory} bytes" if started.memory else " without a limit of memory"
    return f"{started.devices} simulated device(s){memory}"


def _refuse_beside_a_real_one() -> None:
    # torch asks for a PrivateUse1 device first, even beside CUDA: what is written for the real one would land here.
    # Apple's GPU can't be hidden from a process; it has one stream, and what names it, "mps", still finds it.
    real = torch.accelerator.current_accelerator(check_available=True)
    if real is not None and real.type != "mps":
        raise RuntimeError(
            f"torch has a real accelerator here ({real.type}), and would take the simulated one in its place. Start it "
            "in a process of its own that doesn't see it: set CUDA_VISIBLE_DEVICES='' before torch is imported"
        )


def _register(wanted: _Started) -> None:
    """Tell torch the name, the module and the methods (x.simgpu()) of the device, once."""
    global _started
    if _started is not None:
        return
    backend = cast("Any", torch.utils)  # torch exports these two without saying so
    backend.rename_privateuse1_backend(NAME)
    simgpu.default_generators = tuple(torch.ops.simgpu.default_generator(k) for k in range(wanted.devices))
    cast("Any", torch)._register_device_module(NAME, simgpu)
    backend.generate_methods_for_privateuse1_backend()
    atexit.register(torch.ops.simgpu.end)
    _started = wanted
    # torch.accelerator.synchronize waits for nothing before the first tensor: torch takes the device for unused.
    torch.empty(0, device=NAME)
    # The shapes of results come from torch's meta device, whose first use imports hundreds of modules: now, rather than
    # between two launches that somebody measures.
    torch.ones(1, device="meta").mul(2)
    _warn_if_autograd_came_first(wanted.devices - 1)


def _warn_if_autograd_came_first(last: int) -> None:
    """Go backward on the last device, which autograd has no queue for if it began without the devices."""
    x = torch.ones(1, device=f"{NAME}:{last}", requires_grad=True)
    try:
        torch.autograd.backward([x.mul(1)])
    except RuntimeError as error:
        if "device_ready_queues_" not in str(error):
            raise
        warnings.warn(
            "this process has gone backward before, and torch's autograd has no queues for devices that come later: a "
            "backward on a simulated device will end in its INTERNAL ASSERT. Call lib.simulated.start before the first "
            "backward (restart the kernel)",
            RuntimeWarning,
            stacklevel=4,
        )
