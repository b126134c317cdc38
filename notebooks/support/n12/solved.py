"""The solutions of notebook 12, word for word: what its later cells run on where an exercise was left out."""

# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="index, var-annotated, arg-type"
# ruff: noqa: D101, D102, D103

from functools import cache, partial
from itertools import islice

import torch
from torch import nn

from lib.pipeline import Task as DeviceTask
from lib.runtime.device import current_stream
from support.built import (
    MyTwoNodeCheckpoint,
    Task,
    clock_cycles,
    depend,
    gather,
    my_tie,
    run_clock,
    scatter,
    spawn_workers,
)
from support.n12.given import Partitioned, copy_between, drawing_from, tie, wait_between, with_checkpoint


def flatten_sequential(module):
    layers = []
    for layer in module:
        layers += flatten_sequential(layer) if type(layer) is nn.Sequential else [layer]
    return nn.Sequential(*layers)


def cheapest_cut(costs, n):
    @cache
    def best(start, parts):
        if parts == 1:
            return sum(costs[start:]), [len(costs) - start]
        cuts = []
        for end in range(start + 1, len(costs) - parts + 2):
            slowest, sizes = best(end, parts - 1)
            cuts.append((max(sum(costs[start:end]), slowest), [end - start, *sizes]))
        return min(cuts)

    return best(0, n)[1]


class MiniGPipe(Partitioned):
    def __init__(self, layers, balance, chunks, checkpoint="except_last"):
        super().__init__()
        layers = iter(layers)
        self.partitions = nn.ModuleList(nn.Sequential(*islice(layers, size)) for size in balance)
        self.chunks, self.checkpoint = chunks, checkpoint

    def forward(self, x):
        batches = scatter(x, self.chunks)
        m, n = len(batches), len(self.partitions)
        stop = {"always": m, "except_last": m - 1, "never": 0}[self.checkpoint]
        with spawn_workers([torch.device("cpu")] * n) as queues:
            for clock in clock_cycles(m, n):
                tasks = {}
                for i, j in clock:
                    if i > 0:
                        tie(batches, i)
                    layer = self.layer(i, j)
                    if i < stop:
                        layer = partial(with_checkpoint, layer)
                    tasks[j] = Task(None, compute=partial(layer, batches[i]))
                done = run_clock(tasks, *queues)
                for i, j in clock:
                    batches[i] = done[j]
        return gather(batches)


class Numbers:
    def __init__(self, m, n):
        self.seeds = torch.randint(2**62, (m, n)).tolist()

    def wrap(self, layer, i, j):
        def run(x):
            with drawing_from(torch.Generator().manual_seed(self.seeds[i][j])):
                return layer(x)

        return run


def make_task(layer, x, again, stream, copy_stream):
    shared = {}

    def compute():
        if not again:
            return [layer(x)]
        phony = torch.empty(0, device=x.device, requires_grad=True)
        return [MyTwoNodeCheckpoint.apply(phony, shared, layer, x)]

    def finalize(batch):
        if copy_stream is not None:
            batch[0] = wait_between(stream, copy_stream, batch[0])
        if again:
            batch[0] = my_tie(batch[0], shared, layer, x)

    return DeviceTask(stream, compute=compute, finalize=finalize)


def run_pipeline(batches, partitions, devices, copy_streams, stop, queues):
    m, n = len(batches), len(partitions)
    for clock in clock_cycles(m, n):
        for i, j in clock:
            if i > 0:
                depend(batches, i)
            if j > 0:
                batches[i] = copy_between(copy_streams[j - 1][i], copy_streams[j][i], batches[i])
        tasks = {}
        for i, j in clock:
            stream = current_stream(devices[j])
            if j > 0:
                batches[i] = wait_between(copy_streams[j][i], stream, batches[i])
            copy_stream = copy_streams[j][i] if j < n - 1 else None
            tasks[j] = make_task(partitions[j], batches[i], i < stop, stream, copy_stream)
        done = run_clock(tasks, *queues)
        for i, j in clock:
            batches[i] = done[j][0]
