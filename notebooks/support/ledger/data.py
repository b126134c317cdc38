"""Claims about which rows a rank or a worker sees, and with which random numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, RandomSampler

from support.built import all_gather, reduce_scatter
from support.imitated import in_threads
from support.ledger.book import Observation, claim


@claim(
    "A resampled epoch meets 63.2 %",
    "Efron and Tibshirani, The .632+ bootstrap method (1997); webdataset/webdataset#453 meets it with shards",
    "https://doi.org/10.1080/01621459.1997.10474007",
    "A sample that is drawn with replacement, as large as the data, contains 63.2 % of it.",
)
def a_resampled_epoch_meets_632(
    rows: int = 2000, shards: Sequence[int] = (500, 8), epochs: int = 200, near: float = 0.01
) -> Observation:
    """Draw rows by torch's RandomSampler with replacement, then whole shards, and count what an epoch meets."""

    def share(units: int) -> float:
        seeds = [torch.Generator().manual_seed(seed) for seed in range(epochs)]
        met = [len(set(RandomSampler(range(units), replacement=True, generator=seed))) for seed in seeds]
        return sum(met) / (epochs * units)

    shares = {"rows are drawn": share(rows)}
    shares |= {f"whole shards are drawn, of {count}": share(count) for count in shards}
    told = ", ".join(f"{met:.1%} if {setting}".replace("%", " %") for setting, met in shares.items())
    saw = f"The mean of {epochs} epochs: {told}."
    holds = {setting: abs(met - 0.632) <= near for setting, met in shares.items()}
    return Observation(saw, holds, dict(shares))


class _Frozen(DistributedSampler[int]):
    """A sampler as most jobs forget it: nobody calls set_epoch."""

    def set_epoch(self, epoch: int) -> None:
        """Do nothing."""


@claim(
    "Without set_epoch every epoch is the same",
    "torch's documentation of DistributedSampler, the warning",
    "https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler",
    "Without set_epoch every epoch has the same order; with it each has another.",
)
def the_same_order_without_set_epoch(rows: int = 1000, epochs: int = 5, called: bool = True) -> Observation:
    """Compare the orders of a few epochs, of two samplers that differ in set_epoch alone."""
    rows_of_data: Any = range(rows)

    def orders(kind: type[DistributedSampler[int]]) -> int:
        sampler = kind(rows_of_data, num_replicas=2, rank=0, seed=3)
        different = set()
        for epoch in range(epochs):
            sampler.set_epoch(epoch)
            different.add(tuple(sampler))
        return len(different)

    without = orders(_Frozen)
    with_it = orders(DistributedSampler if called else _Frozen)
    saw = f"In {epochs} epochs there are {with_it} orders if set_epoch is called, and {without} if it is not."
    holds = {"set_epoch is not called": without == 1, "set_epoch is called": with_it == epochs}
    return Observation(saw, holds, {"with": with_it, "without": without})


class NumpyNoise(Dataset[float]):
    """Random numbers as an augmentation would draw them: from NumPy's global generator, or from one of its own."""

    def __init__(self, own: bool) -> None:
        self.own = np.random.default_rng(0) if own else None

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> float:
        return float(np.random.rand() if self.own is None else self.own.random())  # noqa: NPY002


def seeded_by_worker(worker: int) -> None:
    """Give the dataset of a worker a generator that only this worker has."""
    info: Any = torch.utils.data.get_worker_info()
    info.dataset.own = np.random.default_rng(info.seed)


@claim(
    "NumPy repeats itself in workers",
    "Pärnamaa, Using PyTorch + NumPy? You're making a mistake (2021); he adds that torch has repaired it",
    "https://tanelp.github.io/posts/a-bug-that-plagues-thousands-of-open-source-ml-projects/",
    "Augmentations that draw from NumPy are the same in all workers of a DataLoader.",
)
def numpy_repeats_in_workers(workers: int = 2, init: Callable[[int], None] | None = None) -> Observation:
    """Let each worker draw, and compare: a generator that the dataset has is copied into each of them."""
    same = {}
    for setting, own in (
        ("they use NumPy's global generator", False),
        ("the dataset has a generator of its own", True),
    ):
        loader = DataLoader(
            NumpyNoise(own), batch_size=1, num_workers=workers, worker_init_fn=init if own else None
        )
        drawn = [round(float(value), 9) for value in loader]
        same[setting] = len(set(drawn)) <= len(drawn) / workers
    shared, own_one = same.values()
    words = {True: "the same numbers", False: "numbers of its own"}
    saw = (
        f"A worker draws {words[shared]} from NumPy's global generator, which torch seeds in each, and "
        f"{words[own_one]} from a default_rng that was made with the dataset."
    )
    return Observation(saw, same)


@claim(
    "A ring costs the same on any number of ranks",
    "Gibiansky, Bringing HPC techniques to deep learning (Baidu, 2017)",
    "https://andrew.gibiansky.com/blog/machine-learning/baidu-allreduce/",
    "A ring's all-reduce costs about the same however many ranks there are, if only bandwidth counts.",
)
def a_ring_costs_the_same(
    ranks: Sequence[int] = (2, 4, 8), values: int = 840, latency_is_worth: int = 500
) -> Observation:
    """Run notebook 06's ring on imitated ranks; count what rank 0 sends, and how often."""
    sent = []
    messages = []
    for size in ranks:

        def ring(dist: Any) -> None:
            gradient = torch.ones(values)
            reduce_scatter(gradient, dist)  # type: ignore[no-untyped-call]
            all_gather(gradient, dist)  # type: ignore[no-untyped-call]

        _, world = in_threads(ring, size)
        sent.append(world.sent[0] / values)
        messages.append(sum(source == 0 for source, _ in world.posted))
    costs = [part * values + latency_is_worth * count for part, count in zip(sent, messages, strict=True)]
    saw = (
        f"On {', '.join(map(str, ranks))} ranks each sends {', '.join(f'{part:g}' for part in sent)} times the "
        f"gradient, never more than twice, in {', '.join(map(str, messages))} messages. With {values} values "
        f"and a message worth {latency_is_worth}, the last ring costs {costs[-1] / costs[0]:.1f} times the first. "
        "We call up to twice as much the same."
    )
    holds = {
        "only bandwidth counts": max(sent) <= 2 * min(sent),
        f"a message is worth {latency_is_worth} values": max(costs) <= 2 * min(costs),
    }
    return Observation(saw, holds, {"sent": sent[-1], "messages": messages[-1]})
