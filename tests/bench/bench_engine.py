"""Our executor against torch.distributed.pipelining: the same tables, stages, micro-batches and numbers, in pairs.

    python -m tests.bench.bench_engine --runs 3              about 2 minutes on a calm machine with 2 cores

Ours: two threads of this process, which hand tensors over as they are and share one interpreter lock (GIL). torch's:
two processes, as users start it, with a lock each, which send every activation and gradient through Gloo's loopback
connection. Each thread and each rank computes with one intra-op thread. The table is the same: torch's class is taken
by `engine_for`, which looks that it makes ours; the norms of the gradients must agree, too.

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
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

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


def timed(step: Callable[[], Any], modules: list[nn.Module], steps: int) -> tuple[float, float, float]:
    """Return seconds and CPU seconds of so many steps, and the square of the norm of the last one's gradients."""
    wall = time.perf_counter()
    cpu = time.process_time()
    for _ in range(steps):
        for module in modules:
            module.zero_grad()
        step()
    wall = time.perf_counter() - wall
    cpu = time.process_time() - cpu
    grads: list[Tensor] = [p.grad for module in modules for p in module.parameters() if p.grad is not None]
    return wall, cpu, float(sum(g.square().sum() for g in grads))


def be_a_rank(rank: int, size: tuple[int, int], meeting: str, orders: Connection) -> None:
    """Measure what comes through the connection, answer with the times, end at None."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    module = stages(size[0])[rank]
    x, target = data(*size)
    stage = functools.partial(PipelineStage, module, rank, 2, torch.device("cpu"))
    engines = {name: engine_for(schedule, [stage()], mse_loss) for name, schedule in TABLES.items()}
    given: dict[str, Any] = {"target": target, "losses": []} if rank else {}
    while (name := orders.recv()) is not None:
        step = functools.partial(engines[name].step, *([] if rank else [x]), **given, return_outputs=False)
        dist.barrier()
        orders.send(timed(step, [module], SIZES[size][0]))
    dist.destroy_process_group()


def measure(size: tuple[int, int]) -> list[tuple[str, ...]]:
    """Return the rows of the table for a model of this width and a batch of so many rows."""
    steps, pairs = SIZES[size]
    x, target = data(*size)
    executors = {name: Executor(schedule, stages(size[0])) for name, schedule in TABLES.items()}
    context = multiprocessing.get_context("spawn")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        ends = [context.Pipe() for _ in range(2)]
        starts = [(rank, size, f"file://{folder}/meeting", there) for rank, (_, there) in enumerate(ends)]
        ranks = [context.Process(target=be_a_rank, args=args, daemon=True) for args in starts]
        for rank, (_, there) in zip(ranks, ends, strict=True):
            rank.start()
            there.close()  # so that `recv` raises EOFError where a rank has ended

        def theirs(name: str) -> list[float]:
            for here, _ in ends:
                here.send(name)
            (*times, norm), (*others, more) = (here.recv() for here, _ in ends)
            return [max(times[0], others[0]), times[1] + others[1], norm + more]

        def ours(name: str) -> list[float]:
            executor = executors[name]
            return [*timed(lambda: executor.run(x, target, mse_loss), executor.stages, steps)]

        for name in TABLES:
            both = []
            for k in range(pairs + 1):  # the first warms up
                first = [(ours if k % 2 else theirs)(name), (theirs if k % 2 else ours)(name)]
                both.append(first if k % 2 else first[::-1])
            assert abs(both[-1][0][2] / both[-1][1][2] - 1) < 1e-3, "other gradients"
            row = [f"{2 * LAYERS} x Linear({size[0]}), {size[1]} rows", name]
            for what in range(2):
                seconds = [[pair[way][what] / steps for pair in both[1:]] for way in range(2)]
                low, middle, high = statistics.quantiles((b / a for a, b in zip(*seconds, strict=True)), n=4)
                row += [f"{statistics.median(each) * 1e3:.2f}" for each in seconds]
                row.append(f"{middle:.2f} ({low:.2f}–{high:.2f})")
            rows.append(tuple(row))
        for here, _ in ends:
            here.send(None)
        for rank in ranks:
            rank.join()
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
