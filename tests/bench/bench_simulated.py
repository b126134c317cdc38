"""The simulated device beside what it was asked for, and GPipe on four of them beside its own clock.

    python -m tests.bench.bench_simulated        about half a minute on a calm machine with 2 cores

Kernels and copies are asked to take a time: how long do they take, by the device's events and by the host's clock? A
launch costs the host something: how much? And a pipeline of 4 devices and 8 micro-batches takes (8 + 4 - 1) times as
long as a micro-batch on one device, whose kernels take t each and cost o beside: o is fitted from two values of t, and
predicts the makespan at the third. What this shows is what the host, hand-overs and waits cost. A kernel that sleeps
for a modelled time is our assumption: no number here is a GPU's, nor says which schedule wins on one.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from itertools import combinations

import torch
from torch import Tensor, nn

from lib.pipeline import GPipe
from lib.simulated import Kernel, Link, counters, profile, start
from lib.text import table

#: Seconds on a calm machine with 2 cores.
TAKES = 30

DEVICES = 4
MICRO_BATCHES = 8
CLOCKS = MICRO_BATCHES + DEVICES - 1
LAYERS = 2  # a device
MILLISECONDS = (0.25, 1.0, 4.0)
REPEATS = 5


def synchronize() -> None:
    """Wait for all devices."""
    for index in range(DEVICES):
        torch.accelerator.synchronize(index)


def host_seconds(work: Callable[[], object]) -> float:
    """Return how long a call takes by the host's clock, until all devices are done."""
    synchronize()
    begin = time.perf_counter()
    work()
    synchronize()
    return time.perf_counter() - begin


def device_seconds(work: Callable[[], object]) -> float:
    """Return how long what a call launches takes by the events of the current stream."""
    first, last = (torch.Event("simgpu", enable_timing=True) for _ in range(2))
    synchronize()
    first.record()
    work()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last)) / 1000


def repeated(work: Callable[[], object], times: int) -> Callable[[], None]:
    """Return a function that does something so many times."""

    def all_of_it() -> None:
        for _ in range(times):
            work()

    return all_of_it


# ---- what was asked for, and what it took


def asked_and_taken(asked: float, work: Callable[[], object], times: int) -> tuple[float, float, float]:
    """Return the seconds asked for, by the device's events, and by the host's clock, of one of several calls."""
    many = repeated(work, times)
    many()
    return asked, device_seconds(many) / times, host_seconds(many) / times


def kernels(milliseconds: Sequence[float] = MILLISECONDS) -> dict[str, tuple[float, float, float]]:
    """Time kernels."""
    x = torch.ones(1000, device="simgpu")
    found = {}
    for ms in milliseconds:
        start(DEVICES, kernel=Kernel(seconds=ms / 1000))
        found[f"kernel, {ms:g} ms"] = asked_and_taken(ms / 1000, lambda: x.add_(1.0), 20)
        synchronize()
    start(DEVICES, kernel=Kernel())
    return found


def copies(megabytes: Sequence[float] = (0.1, 1.0, 10.0)) -> dict[str, tuple[float, float, float]]:
    """Time copies from pinned memory and back at 1 GB/s and a latency of 0.1 ms."""
    start(DEVICES, host_link=Link(latency=1e-4, bandwidth=1e9))
    found = {}
    for size in megabytes:
        here = torch.ones(int(size * 250_000)).pin_memory()
        there = torch.empty(here.shape, device="simgpu")
        asked = 1e-4 + here.nbytes / 1e9

        def copy_in(here: Tensor = here, there: Tensor = there) -> None:
            there.copy_(here, non_blocking=True)

        def copy_out(here: Tensor = here, there: Tensor = there) -> None:
            here.copy_(there, non_blocking=True)

        found[f"copy in, {size:g} MB"] = asked_and_taken(asked, copy_in, 10)
        found[f"copy out, {size:g} MB"] = asked_and_taken(asked, copy_out, 10)
    synchronize()
    start(DEVICES, host_link=Link())
    return found


def microseconds_a_launch(times: int = 2000) -> dict[str, float]:
    """Return what a small kernel costs the host: to launch it, and until the device is done; and on the CPU itself."""
    start(DEVICES, kernel=Kernel())
    x = torch.ones(8, device="simgpu")
    on_cpu = torch.ones(8)
    launch = repeated(lambda: x.add_(1.0), times)
    launch()
    synchronize()
    begin = time.perf_counter()
    launch()
    launched = time.perf_counter() - begin
    done = host_seconds(launch)
    begin = time.perf_counter()
    repeated(lambda: on_cpu.add_(1.0), times)()
    directly = time.perf_counter() - begin
    seconds = {"launch": launched, "launch, until it is done": done, "the same on the CPU": directly}
    return {what: 1e6 * took / times for what, took in seconds.items()}


# ---- GPipe on four devices


class Pipeline:
    """Eight layers of one product each on four devices, and a batch of eight micro-batches for them."""

    def __init__(self, *, backward: bool) -> None:
        layers = [nn.Linear(32, 32, bias=False) for _ in range(LAYERS * DEVICES)]
        places = [f"simgpu:{number}" for number in range(DEVICES)]
        model = nn.Sequential(*layers)
        self.model = GPipe(model, [LAYERS] * DEVICES, devices=places, chunks=MICRO_BATCHES, checkpoint="never")
        self.x = torch.randn(64, 32, device=places[0])
        self.ones = torch.ones(64, 32, device=places[-1])
        self.backward = backward

    def step(self) -> None:
        """Run the batch through, and back if asked to."""
        y = self.model(self.x)
        if self.backward:
            y.backward(self.ones)

    def kernels_a_micro_batch(self) -> float:
        """Return how many kernels a device runs for each micro-batch, the mean over the devices."""
        self.step()
        with profile() as found:
            self.step()
        return len(found[0].only(kind="compute")) / (DEVICES * MICRO_BATCHES)

    def makespan(self, milliseconds: float, repeats: int = REPEATS) -> float:
        """Return the least seconds of several steps whose kernels take so long."""
        synchronize()
        start(DEVICES, kernel=Kernel(seconds=milliseconds / 1000))
        self.step()
        return min(host_seconds(self.step) for _ in range(repeats))


def overhead(path: float, measured: dict[float, float]) -> float:
    """Fit what a kernel costs beside its own time: the mean over runs of makespan / kernels on the path - t."""
    return sum(seconds / path - ms / 1000 for ms, seconds in measured.items()) / len(measured)


def predictions(path: float, measured: dict[float, float]) -> dict[float, tuple[float, float]]:
    """Return for each kernel time the overhead that the others give, and the makespan that it predicts there."""
    found = {}
    for others in combinations(measured, len(measured) - 1):
        (left_out,) = set(measured) - set(others)
        fitted = overhead(path, {ms: measured[ms] for ms in others})
        found[left_out] = (fitted, path * (left_out / 1000 + fitted))
    return found


def gpipe(*, backward: bool) -> tuple[float, dict[float, float]]:
    """Return how many kernels lie on the way from the first to the last clock, and the makespans in seconds."""
    pipeline = Pipeline(backward=backward)
    path = CLOCKS * pipeline.kernels_a_micro_batch()
    return path, {ms: pipeline.makespan(ms) for ms in MILLISECONDS}


def table_of_gpipe(*, backward: bool) -> str:
    """Return the table of one pipeline."""
    path, measured = gpipe(backward=backward)
    rows = [("t, ms", "kernels alone, s", "measured, s", "o of the other two, µs", "predicted, s", "error")]
    for ms, (fitted, predicted) in sorted(predictions(path, measured).items()):
        error = f"{predicted / measured[ms] - 1:+.0%}"
        alone = f"{path * ms / 1000:.4f}"
        rows.append((f"{ms:g}", alone, f"{measured[ms]:.4f}", f"{1e6 * fitted:.0f}", f"{predicted:.4f}", error))
    what = "forward and backward" if backward else "forward"
    title = f"GPipe, {DEVICES} simulated devices, {MICRO_BATCHES} micro-batches, {what}: {path:g} kernels on the path"
    return f"{title}\n{table(rows)}\n"


def main(given: Sequence[str] = ()) -> None:
    """Print all tables; with "json" their numbers, for a test."""
    torch.set_num_threads(1)
    start(DEVICES)
    if list(given) == ["json"]:
        pipelines = {name: gpipe(backward=name != "forward") for name in ("forward", "and backward")}
        print(json.dumps({"taken": {**kernels(), **copies()}, "us": microseconds_a_launch(200), **pipelines}))
        return
    print("Simulated devices; no number here is a GPU's.\n")
    rows = [("", "asked, ms", "by events, ms", "by the host's clock, ms")]
    for what, times in {**kernels(), **copies()}.items():
        rows.append((what, *(f"{1000 * seconds:.3f}" for seconds in times)))
    print(table(rows), "", sep="\n")
    launches = [("a small kernel", "µs"), *((what, f"{us:.1f}") for what, us in microseconds_a_launch().items())]
    print(table(launches), "", sep="\n")
    counters(reset=True)
    for backward in (False, True):
        print(table_of_gpipe(backward=backward))
    found = counters()
    print(f"For {found.overruns} of {found.tasks} tasks the CPU took longer than their modelled time.")


if __name__ == "__main__":
    main(sys.argv[1:])
