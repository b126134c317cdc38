"""lib.pipeline against a plain loop over micro-batches, torchgpipe and torch.utils.checkpoint, paired in one run.

    python -m tests.bench.bench_pipeline                     about 2 minutes on a calm machine
    python -m tests.bench.bench_pipeline --peer FOLDER       with torchgpipe from there:
    pip install --no-deps --target FOLDER torchgpipe         (else from the environment, if it is installed)

One intra-op thread throughout: a partition is a thread. Every way takes its turn in every round, and the fastest turn
counts: the one that neighbours on a shared machine disturbed least. Only numbers of one run can be compared.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import itertools
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as torch_checkpoint

MODES = ("never", "except_last", "always")
Work = Callable[[], Any]


@functools.cache
def libraries() -> dict[str, Any]:
    """The two that have a GPipe; torchgpipe only if it can be imported."""
    found = {"ours": importlib.import_module("lib.pipeline")}
    try:
        found["torchgpipe"] = importlib.import_module("torchgpipe")
    except ImportError as error:
        print(f"(without torchgpipe: {error}; see --peer)")
    return found


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


def linears(layers: int, width: int, relu: bool = False) -> nn.Sequential:
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential()
    for _ in range(layers):
        model.append(nn.Linear(width, width))
        if relu:
            model.append(nn.ReLU())
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -(width**-0.5), width**-0.5, generator=generator)
    return model


def plain(model: nn.Module, x: Tensor, chunks: int, *, again: bool = False) -> Tensor:
    """The loop that a pipeline replaces; `again`: with torch's checkpoint around each micro-batch."""
    parts = x.chunk(chunks)
    if again:
        return torch.cat([torch_checkpoint(model, part, use_reentrant=True) for part in parts])
    return torch.cat([model(part) for part in parts])


def backward(work: Callable[[], Tensor]) -> Work:
    return lambda: work().sum().backward()


def without_grad(work: Callable[[], Tensor]) -> Work:
    def run() -> Tensor:
        with torch.no_grad():
            return work()

    return run


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
        model = module.GPipe(
            linears(partitions, 8), [1] * partitions, devices=["cpu"] * partitions, chunks=chunks, checkpoint=mode
        )
        for name, wrap in passes.items():
            ways[name, mode, library] = wrap(lambda model=model: model(x))
    seconds = fastest(ways, rounds)
    print(f"{'µs a task above the plain loop':<34} {'ours':>8} {'torchgpipe':>11} {'ratio':>6}")
    for name, mode in itertools.product(passes, MODES):
        base = seconds[name, "", "plain"]
        each = [
            (seconds[name, mode, library] - base) / (partitions * chunks) * 1e6
            if (name, mode, library) in ways
            else None
            for library in ("ours", "torchgpipe")
        ]
        _line(f"{name}, {mode}", each, "8.0f")
    again = seconds["forward + backward", "always", "torch checkpoint"] - seconds["forward + backward", "", "plain"]
    print(f"(torch.utils.checkpoint in the loop: {again / chunks * 1e6:.0f} µs a micro-batch of 4 layers)")


def _line(name: str, pair: list[float | None], form: str) -> None:
    ours, theirs = pair
    other = f"{theirs:>{form}}   {ours / theirs:>6.2f}" if theirs and ours is not None else "       –"
    print(f"{name:<34} {ours:>{form}} {other}")


def real_work(rounds: int) -> None:
    """Speed over the plain loop of 8 × (Linear(1024) + ReLU), batch 512, in 4 partitions."""
    x = torch.randn(512, 1024, generator=torch.Generator().manual_seed(0))
    loop = linears(8, 1024, relu=True)
    print(f"\n{'speed over the plain loop':<34} {'ours':>8} {'torchgpipe':>11} {'ratio':>6}")
    for chunks in (1, 4, 8):
        for name, wrap in (("forward", without_grad), ("forward + backward", backward)):
            ways: dict[Any, Work] = {"plain": wrap(functools.partial(plain, loop, x, chunks))}
            modes = ("never",) if name == "forward" else MODES
            for (library, module), mode in itertools.product(libraries().items(), modes):
                model = module.GPipe(
                    linears(8, 1024, relu=True), [4] * 4, devices=["cpu"] * 4, chunks=chunks, checkpoint=mode
                )
                ways[mode, library] = wrap(lambda model=model: model(x))
            seconds = fastest(ways, rounds)
            for mode in modes:
                speeds = [
                    seconds["plain"] / seconds[mode, library] if (mode, library) in ways else None
                    for library in ("ours", "torchgpipe")
                ]
                _line(f"{name}, {mode}, {chunks} chunks", speeds, "8.2f")


def overlap(rounds: int) -> None:
    """Forward on 2 CPU partitions against one thread: 8 × Linear(512) + ReLU, batch 4096, 8 chunks."""
    x = torch.randn(4096, 512, generator=torch.Generator().manual_seed(0))
    loop = linears(8, 512, relu=True)
    ways: dict[Any, Work] = {"plain": without_grad(lambda: plain(loop, x, 8))}
    for library, module in libraries().items():
        model = module.GPipe(linears(8, 512, relu=True), [8, 8], devices=["cpu"] * 2, chunks=8, checkpoint="never")
        ways[library] = without_grad(lambda model=model: model(x))
    seconds = fastest(ways, rounds)
    print("\nforward in 2 CPU partitions, 8 chunks: at best 2 × 8/9 = 1.78 times the speed of one thread")
    _line(
        "speed over the plain loop",
        [seconds["plain"] / seconds[x] if x in seconds else None for x in ("ours", "torchgpipe")],
        "8.2f",
    )


def main(arguments: list[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", help="a folder in which torchgpipe is installed")
    parser.add_argument("--rounds", type=int, default=40)
    chosen = parser.parse_args([] if arguments is None else arguments)
    if chosen.peer:
        sys.path.insert(0, chosen.peer)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        overhead(chosen.rounds)
        overlap(max(2, chosen.rounds // 4))
        real_work(max(2, chosen.rounds // 8))
    finally:
        torch.set_num_threads(before)


if __name__ == "__main__":
    main(sys.argv[1:])
