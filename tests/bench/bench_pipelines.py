"""Our pipelines against the plain model, the micro-batch loop and torchgpipe (bench_engine has torch's engine).

    python -m tests.bench.bench_pipelines                    about 2 minutes on a calm machine with 2 cores
    python -m tests.bench.bench_pipelines --peer FOLDER      with torchgpipe from there:
    pip install --no-deps --target FOLDER torchgpipe         (else from the environment, if it is installed)

Forward and backward of 8 x Linear(512), batch 8192, in 2 stages of 4 layers and 8 micro-batches; then of 8 x Linear(8),
batch 64, where what a task costs beside its work shows. Every thread computes with one intra-op thread, and every way
takes its turn in every round. Speed is the median over the rounds of the ratio to the plain model in the same round:
what slows the machine for a while cancels out.
"""

import functools
import itertools
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.utils.checkpoint import checkpoint

from lib.pipeline import GPipe, scatter
from lib.schedules import gpipe, one_f_one_b, simulate, zero_bubble_h1
from lib.schedules.costs import measure_costs
from lib.schedules.executor import Executor
from lib.text import table
from tests.bench.common import linears, peer, run_beside_a_peer

#: Seconds on a calm machine with 2 cores.
TAKES = 120

MICRO_BATCHES = 8
LAYERS = 4
WORK = (512, 8192)  # width, rows
SMALL = (8, 64)
PLAIN = "plain model, 1 thread"


def stages(width: int) -> list[nn.Sequential]:
    """The two halves of the model, always the same."""
    model = linears(2 * LAYERS, width)
    return [model[:LAYERS], model[LAYERS:]]


def data(width: int, rows: int) -> tuple[Tensor, Tensor]:
    """A batch and its targets."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(rows, width, generator=generator), torch.randn(rows, width, generator=generator)


def ways_here(x: Tensor, target: Tensor) -> tuple[dict[str, Callable[[], Any]], dict[str, Any]]:
    """Return what each way does, in this process; and the executors, by name."""
    width = x.shape[1]
    model = nn.Sequential(*stages(width))

    def plain() -> None:
        mse_loss(model(x), target).backward()

    def loop(run: Callable[[Tensor], Tensor]) -> None:
        for part, wanted in zip(scatter(x, MICRO_BATCHES), scatter(target, MICRO_BATCHES), strict=True):
            (mse_loss(run(part.tensor), wanted.tensor) / MICRO_BATCHES).backward()

    again = functools.partial(checkpoint, model, use_reentrant=False)
    ways: dict[str, Callable[[], Any]] = {PLAIN: plain, "micro-batch loop, 1 thread": lambda: loop(model)}
    ways["the same, torch's checkpoint"] = lambda: loop(again)
    executors: dict[str, Any] = {}
    for make in (gpipe, one_f_one_b, zero_bubble_h1):
        executor = Executor(make(MICRO_BATCHES, 2), stages(width))
        executors[executor.schedule.name] = executor
        ways[f"executor, {executor.schedule.name}"] = lambda executor=executor: executor.run(x, target, mse_loss)
    libraries = {"lib.pipeline.GPipe": GPipe, **{name: module.GPipe for name, module in peer().items()}}
    for (name, library), mode in itertools.product(libraries.items(), ("never", "except_last", "always")):
        options = {"devices": ["cpu"] * 2, "chunks": MICRO_BATCHES, "checkpoint": mode}
        piped = library(linears(2 * LAYERS, width), [LAYERS] * 2, **options)
        ways[f"{name}, {mode}"] = lambda piped=piped: mse_loss(piped(x), target).backward()
    return ways, executors


def measure(rounds: int) -> None:
    """Print the tables of both sizes; where a round is short there are more of them."""
    measure_size(WORK, rounds)
    measure_size(SMALL, 8 * rounds)


def measure_size(size: tuple[int, int], rounds: int) -> None:
    """Run all ways in turn and print both tables."""
    x, target = data(*size)
    ways, executors = ways_here(x, target)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    bubbles: dict[str, list[tuple[float, float]]] = {name: [] for name in executors}
    for round in range(rounds + 1):  # the first warms up
        took: dict[str, float] = {}
        for name, work in ways.items():
            began = time.perf_counter()
            result = work()
            took[name] = time.perf_counter() - began
            if name.startswith("executor, "):
                executor = executors[name.removeprefix("executor, ")]
                costs = measure_costs(executor.schedule, executor.stages, x, target, mse_loss, repeats=1)
                pair = result[1].bubble, simulate(executor.schedule, *costs).bubble
                bubbles[executor.schedule.name] += [pair] if round else []
        for name, value in took.items():
            seconds.setdefault(name, []).extend([value] if round else [])
    rows = [(f"8 x Linear({size[0]}), batch {size[1]}, m = {MICRO_BATCHES}", "median s", "speed", "µs more a task")]
    for name, each in seconds.items():
        pairs = [*zip(seconds[PLAIN], each, strict=False)]
        speed = statistics.median(base / value for base, value in pairs)
        more = statistics.median(value - base for base, value in pairs) / (2 * MICRO_BATCHES)
        rows.append((name, f"{statistics.median(each):.4f}", f"{speed:.2f} x", f"{more * 1e6:.0f}"))
    idle = [("idle share of the two ranks", "measured", "simulated with measured costs")]
    for name, both in bubbles.items():
        measured, simulated = (f"{statistics.median(values):.3f}" for values in zip(*both, strict=True))
        idle.append((name, measured, simulated))
    print(f"medians of {rounds} rounds", table(rows), "", table(idle), "", sep="\n")


main = functools.partial(run_beside_a_peer, __doc__, measure, 5)


if __name__ == "__main__":
    main(sys.argv[1:])
