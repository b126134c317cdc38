"""Our executor against torch.distributed.pipelining: the same tables, stages, micro-batches and numbers, in pairs.

    python -m tests.bench.bench_engine --runs 3              about 2 minutes on a calm machine with 2 cores

Ours: two threads of this process, which hand tensors over as they are and share one interpreter lock (GIL). torch's:
two processes, as users start it, with a lock each, which send every activation and gradient through Gloo's loopback
connection. Each thread and each rank computes with one intra-op thread. The table is the same: torch's class is taken
by `engine_for`, which looks that it makes ours; losses and gradients of both must be those of the plain model.

A step begins at zero_grad and ends when the last rank has all its gradients. Counted are, for ours, two new threads a
step, scattering, wake-ups, waits for the lock and the trace that it records; for torch's messages, their copies and
wake-ups. Not counted: starting processes, connecting them, the first round, torch's merging of outputs. A measurement
is so many steps one after the other; ours and torch's follow each other at once, now the one first, now the other, and
what is told is the median and the quartiles of their ratios, pair by pair: above 1, ours is ahead. CPU seconds are of
all threads and both ranks; on a machine that does other things as well they are the steadier half. What bounds our
lead: matrix products are the same, so with large layers it is at most what torch's messages cost, here 1 to 20 % of the
CPU seconds, less the more rows there are.
"""

import functools
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.nn.functional import mse_loss

from lib.schedules import gpipe, one_f_one_b
from lib.schedules.distributed import engine_for
from lib.schedules.executor import Executor
from lib.text import table
from tests.bench.bench_pipelines import LAYERS, MICRO_BATCHES, data, stages
from tests.bench.common import arguments

#: Seconds on a calm machine with 2 cores.
TAKES = 45

TABLES = {"GPipe": gpipe(MICRO_BATCHES, 2), "1F1B": one_f_one_b(MICRO_BATCHES, 2)}
SIZES = {(8, 64): (20, 30), (512, 1024): (1, 40)}  # width, rows: steps a measurement, pairs


class Found(NamedTuple):
    """What one step came to: each micro-batch's mean loss, all gradients in order, and how often each stage ran."""

    losses: list[float]
    gradients: list[Tensor]
    forwards: list[int]


def timed(step: Callable[[], Any], modules: list[nn.Module], steps: int) -> tuple[float, float]:
    """Return seconds and CPU seconds of so many steps."""
    wall = time.perf_counter()
    cpu = time.process_time()
    for _ in range(steps):
        for module in modules:
            module.zero_grad()
        step()
    wall = time.perf_counter() - wall
    cpu = time.process_time() - cpu
    return wall, cpu


def once(step: Callable[[], Sequence[Tensor]], modules: list[nn.Module]) -> Found:
    """Do one step that is not timed; `step` returns the losses that are known here."""
    forwards = [0] * len(modules)

    def count(k: int) -> Callable[..., None]:
        def ran(*_: Any) -> None:
            forwards[k] += 1

        return ran

    hooks = [module.register_forward_hook(count(k)) for k, module in enumerate(modules)]
    for module in modules:
        module.zero_grad()
    losses = [float(loss.detach()) for loss in step()]
    for hook in hooks:
        hook.remove()
    grads = [p.grad.clone() for module in modules for p in module.parameters() if p.grad is not None]
    return Found(losses, grads, forwards)


def plain(size: tuple[int, int]) -> Found:
    """Return what the model comes to that is not cut: as many forwards of each half as one engine needs."""
    halves = stages(size[0])
    x, target = data(*size)
    losses = [
        mse_loss(halves[1](halves[0](part)), wanted)
        for part, wanted in zip(x.chunk(MICRO_BATCHES), target.chunk(MICRO_BATCHES), strict=True)
    ]
    torch.stack(losses).mean().backward()
    grads = [p.grad for half in halves for p in half.parameters() if p.grad is not None]
    return Found([loss.item() for loss in losses], grads, [MICRO_BATCHES] * 2)


def be_a_rank(rank: int, size: tuple[int, int], meeting: str, orders: Connection) -> None:
    """Do what comes through the connection, time many steps or show what one comes to, until None comes."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    module = stages(size[0])[rank]
    x, target = data(*size)
    stage = functools.partial(PipelineStage, module, rank, 2, torch.device("cpu"))
    engines = {name: engine_for(schedule, [stage()], mse_loss) for name, schedule in TABLES.items()}
    losses: list[Tensor] = []
    given: dict[str, Any] = {"target": target, "losses": losses} if rank else {}
    while (order := orders.recv()) is not None:
        what, name = order
        step = functools.partial(engines[name].step, *([] if rank else [x]), **given, return_outputs=False)
        dist.barrier()
        if what == "time":
            orders.send(timed(step, [module], SIZES[size][0]))
            continue

        def known(step: Callable[[], Any] = step) -> Sequence[Tensor]:
            step()
            return losses

        orders.send(tuple(once(known, [module])))
    dist.destroy_process_group()


class Pair:
    """Both engines on one model: ours in this process, torch's on two ranks that stay until the `with` ends."""

    def __init__(self, size: tuple[int, int]) -> None:
        self.size = size
        self.x, self.target = data(*size)
        self.executors = {name: Executor(schedule, stages(size[0])) for name, schedule in TABLES.items()}
        self._open = ExitStack()

    def __enter__(self) -> "Pair":
        folder = self._open.enter_context(tempfile.TemporaryDirectory())
        context = multiprocessing.get_context("spawn")
        ends = [context.Pipe() for _ in range(2)]
        self._lines = [here for here, _ in ends]
        self._ranks = []
        for rank, (_, there) in enumerate(ends):
            given = (rank, self.size, f"file://{folder}/meeting", there)
            process = context.Process(target=be_a_rank, args=given, daemon=True)
            process.start()
            there.close()  # so that `recv` raises EOFError where a rank has ended
            self._ranks.append(process)
        return self

    def __exit__(self, *_: object) -> None:
        for line, process in zip(self._lines, self._ranks, strict=True):
            with suppress(OSError):
                line.send(None)
            process.join(10)
            process.kill()
        self._open.close()

    def _ask(self, what: str, name: str) -> list[Any]:
        for line in self._lines:
            line.send((what, name))
        return [line.recv() for line in self._lines]

    def time_theirs(self, name: str) -> list[float]:
        """Return seconds of the slower rank, and CPU seconds of both."""
        walls, cpus = zip(*self._ask("time", name), strict=True)
        return [max(walls), sum(cpus)]

    def time_ours(self, name: str) -> list[float]:
        """Return seconds, and CPU seconds of both threads."""
        executor = self.executors[name]
        work = functools.partial(executor.run, self.x, self.target, mse_loss)
        return [*timed(work, executor.stages, SIZES[self.size][0])]

    def once_theirs(self, name: str) -> Found:
        """Return what a step of torch's engine comes to."""
        (_, front, first), (losses, back, last) = self._ask("once", name)
        return Found(losses, front + back, first + last)

    def once_ours(self, name: str) -> Found:
        """Return what a step of our executor comes to."""
        executor = self.executors[name]

        def step() -> Sequence[Tensor]:
            losses, _ = executor.run(self.x, self.target, mse_loss)
            return [MICRO_BATCHES * loss.detach() for loss in losses]  # ours are shares of the batch's mean

        return once(step, executor.stages)


def differs(found: Found, wanted: Found) -> str:
    """Say what of a step is not the plain model's, "" if nothing."""
    if found.forwards != wanted.forwards:
        return f"forwards {found.forwards}, not {wanted.forwards}"
    if not torch.allclose(torch.tensor(found.losses), torch.tensor(wanted.losses), rtol=1e-5):
        return f"losses {found.losses}, not {wanted.losses}"
    if len(found.gradients) != len(wanted.gradients):
        return f"{len(found.gradients)} gradients, not {len(wanted.gradients)}"
    for k, (got, right) in enumerate(zip(found.gradients, wanted.gradients, strict=True)):
        if not torch.allclose(got, right, rtol=1e-4, atol=1e-7):
            return f"gradient {k} is {float((got - right).norm() / right.norm()):.1e} of its length away"
    return ""


def measure(size: tuple[int, int]) -> list[tuple[str, ...]]:
    """Return the rows of the table for a model of this width and a batch of so many rows."""
    steps, pairs = SIZES[size]
    right = plain(size)
    rows = []
    with Pair(size) as pair:
        for name in TABLES:
            pair.once_theirs(name)  # torch's first step finds out shapes, by a forward more
            for found in (pair.once_ours(name), pair.once_theirs(name)):
                assert not differs(found, right), differs(found, right)
            both = []
            for k in range(pairs + 1):  # the first warms up
                ways = (pair.time_ours, pair.time_theirs) if k % 2 else (pair.time_theirs, pair.time_ours)
                first = [way(name) for way in ways]
                both.append(first if k % 2 else first[::-1])
            row = [f"{2 * LAYERS} x Linear({size[0]}), {size[1]} rows", name]
            for what in range(2):
                seconds = [[two[way][what] / steps for two in both[1:]] for way in range(2)]
                low, middle, high = statistics.quantiles((b / a for a, b in zip(*seconds, strict=True)), n=4)
                row += [f"{statistics.median(each) * 1e3:.2f}" for each in seconds]
                row.append(f"{middle:.2f} ({low:.2f}–{high:.2f})")
            rows.append(tuple(row))
    return rows


def main(given: Any = ()) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--runs", type=int, default=1)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for run in range(parser.parse_args(given).runs):
            rows = [("model, batch", "table", "ours ms", "torch ms", "torch / ours", "CPU ms", "torch", "torch / ours")]
            for size in SIZES:
                rows += measure(size)
            print(f"run {run + 1}", table(rows), "", sep="\n", flush=True)
        print("Large layers: both do the same matrix products, so no more can be gained than messages cost.")
    finally:
        torch.set_num_threads(before)


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
