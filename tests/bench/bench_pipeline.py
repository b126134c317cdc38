"""lib.pipeline against a plain loop over micro-batches, torchgpipe and torch.utils.checkpoint, paired in one run.

    python -m tests.bench.bench_pipeline                     about 2 minutes on a calm machine
    python -m tests.bench.bench_pipeline --peer FOLDER       with torchgpipe from there:
    pip install --no-deps --target FOLDER torchgpipe         (else from the environment, if it is installed)

One intra-op thread throughout: a partition is a thread. Every way takes its turn in every round, and the fastest turn
counts: the one that neighbours on a shared machine disturbed least. Only numbers of one run can be compared.
"""

import functools
import itertools
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from lib import pipeline
from lib._values import table
from tests.bench.common import linears, peer, run_beside_a_peer

MODES = ("never", "except_last", "always")
Work = Callable[[], Any]


@functools.cache
def libraries() -> dict[str, Any]:
    """The two that have a GPipe; torchgpipe only if it can be imported."""
    return {"ours": pipeline, **peer()}


def fastest(ways: dict[Any, Work], rounds: int) -> dict[Any, float]:
    """Seconds of each way: all in turn, `rounds` times, after one turn that does not count."""
    seconds = dict.fromkeys(ways, float("inf"))
    for round in range(rounds + 1):
        for way, work in ways.items():
            start = time.perf_counter()
            work()
            if round:
                seconds[way] = min(seconds[way], time.perf_counter() - start)
    return seconds


def plain(model: nn.Module, x: Tensor, chunks: int, *, again: bool = False) -> Tensor:
    """The loop that a pipeline replaces; `again`: with torch's checkpoint around each micro-batch."""
    parts = x.chunk(chunks)
    if again:
        return torch.cat([torch_checkpoint(model, part, use_reentrant=True) for part in parts])
    return torch.cat([model(part) for part in parts])


def piped(library: Any, model: nn.Module, balance: list[int], chunks: int, mode: str) -> Any:
    """The same model as a pipeline of threads."""
    return library.GPipe(model, balance, devices=["cpu"] * len(balance), chunks=chunks, checkpoint=mode)


def backward(work: Callable[[], Tensor]) -> Work:
    return lambda: work().sum().backward()


def without_grad(work: Callable[[], Tensor]) -> Work:
    return torch.no_grad()(work)


def overhead(rounds: int) -> None:
    """Microseconds a task above the plain loop: 4 partitions × 32 micro-batches of Linear(8, 8)."""
    partitions, chunks = 4, 32
    x = torch.ones(chunks * 4, 8, requires_grad=True)
    loop = linears(partitions, 8)
    passes: dict[str, Callable[[Callable[[], Tensor]], Work]] = {
        "forward": lambda work: work,
        "forward, no_grad": without_grad,
        "forward + backward": backward,
    }
    ways: dict[Any, Work] = {}
    for name, wrap in passes.items():
        ways[name, "", "plain"] = wrap(lambda: plain(loop, x, chunks))
    ways["forward + backward", "always", "torch checkpoint"] = backward(lambda: plain(loop, x, chunks, again=True))
    for (library, module), mode in itertools.product(libraries().items(), MODES):
        model = piped(module, linears(partitions, 8), [1] * partitions, chunks, mode)
        for name, wrap in passes.items():
            ways[name, mode, library] = wrap(lambda model=model: model(x))
    seconds = fastest(ways, rounds)
    rows = [("µs a task above the plain loop", "ours", "torchgpipe", "ratio")]
    for name, mode in itertools.product(passes, MODES):
        base, tasks = seconds[name, "", "plain"], partitions * chunks
        rows.append(row(f"{name}, {mode}", [1e6 * (seconds[name, mode, x] - base) / tasks for x in libraries()], ".0f"))
    print(table(rows))
    again = seconds["forward + backward", "always", "torch checkpoint"] - seconds["forward + backward", "", "plain"]
    print(f"(torch.utils.checkpoint in the loop: {again / chunks * 1e6:.0f} µs a micro-batch of 4 layers)")


def row(name: str, values: list[float], form: str) -> tuple[str, str, str, str]:
    """Return the cells of a line: ours, torchgpipe's if it is there, and their ratio."""
    ours, *theirs = values
    return name, f"{ours:{form}}", *((f"{theirs[0]:{form}}", f"{ours / theirs[0]:.2f}") if theirs else ("-", "-"))


def real_work(rounds: int) -> None:
    """Speed over the plain loop of 8 × (Linear(1024) + ReLU), batch 512, in 4 partitions."""
    x = torch.randn(512, 1024, generator=torch.Generator().manual_seed(0))
    loop = linears(8, 1024, relu=True)
    rows = [("speed over the plain loop", "ours", "torchgpipe", "ratio")]
    for chunks in (1, 4, 8):
        for name, wrap in (("forward", without_grad), ("forward + backward", backward)):
            ways: dict[Any, Work] = {"plain": wrap(functools.partial(plain, loop, x, chunks))}
            modes = ("never",) if name == "forward" else MODES
            for (library, module), mode in itertools.product(libraries().items(), modes):
                model = piped(module, linears(8, 1024, relu=True), [4] * 4, chunks, mode)
                ways[mode, library] = wrap(lambda model=model: model(x))
            seconds = fastest(ways, rounds)
            for mode in modes:
                speeds = [seconds["plain"] / seconds[mode, library] for library in libraries()]
                rows.append(row(f"{name}, {mode}, {chunks} chunks", speeds, ".2f"))
    print(f"\n{table(rows)}")


def measure(rounds: int) -> None:
    """Print the tables: the more a round does, the fewer there are."""
    overhead(rounds)
    real_work(max(2, rounds // 8))


main = functools.partial(run_beside_a_peer, __doc__, measure, 40)


if __name__ == "__main__":
    main(sys.argv[1:])
