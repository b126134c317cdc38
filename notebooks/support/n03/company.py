"""What a forgotten set_epoch costs: small networks by the dozen, normalised with the company of their batch.

    orders   int64 (networks, epochs, steps, groups, rows): which images meet, and where
    images[rows of a step]  (networks, groups, rows, 64)  →  hidden (…, 32)  →  normalised, or not  →  ReLU  →  (…, 10)

A group is what batch normalisation normalises together: the batch of one rank, or, with SyncBatchNorm, that of a few.
`descend`, `train` and `dealt` are notebook 03's, word for word (tests/support/n03/test_company.py compares).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DistributedSampler

Data = tuple[Tensor, Tensor]
TestLosses = dict[str, list[float]]
"""The test loss of each seed, by the way in which the images were dealt."""

RANKS = 8
BATCH = 4
SIZES = (4, 8, 16, 32)
RATES = (0.01, 0.05, 0.1, 0.3, 0.6)
# those of torch.nn.BatchNorm1d
EPSILON = 1e-5
MOMENTUM = 0.1


class Networks:
    """One network 64 → 32 → 10 for each seed, its initial weights drawn from it; all compute in one tensor program."""

    def __init__(self, seeds: Sequence[int], batch_norm: bool, pixels: int = 64, hidden: int = 32) -> None:
        def drawn(rows: int, columns: int, seed: int) -> Tensor:
            generator = torch.Generator().manual_seed(seed)
            return torch.randn(rows, columns, generator=generator).mul((2 / rows) ** 0.5)

        count = len(seeds)
        self._first = torch.stack([drawn(pixels, hidden, 2 * seed) for seed in seeds])
        self._second = torch.stack([drawn(hidden, 10, 2 * seed + 1) for seed in seeds])
        self._scale = torch.ones(count, 1, hidden)
        self._shift = torch.zeros(count, 1, hidden)
        self._bias = torch.zeros(count, 1, 10)
        self.weights = [self._first, self._scale, self._shift, self._second, self._bias]
        for weight in self.weights:
            weight.requires_grad_()
        self.batch_norm = batch_norm
        self.mean = torch.zeros(count, 1, hidden)
        self.variance = torch.ones(count, 1, hidden)

    def hidden(self, x: Tensor) -> Tensor:
        """Return the first layer of (networks, groups, rows, pixels)."""
        networks, groups, rows, _ = x.shape
        return (x.flatten(1, 2) @ self._first).view(networks, groups, rows, -1)

    def losses(self, hidden: Tensor, y: Tensor) -> Tensor:
        """Return each network's mean cross-entropy; hidden: the first layer, normalised or not."""
        logits = self._logits(hidden)
        each = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none")
        return each.view(len(logits), -1).mean(1)

    def _logits(self, hidden: Tensor) -> Tensor:
        active = torch.relu(hidden.flatten(1, 2) * self._scale + self._shift)
        return torch.baddbmm(self._bias, active, self._second)

    def remember(self, mean: Tensor, variance: Tensor, rows: int) -> None:
        """Move the running averages towards group 0's mean and variance: in evaluation, DDP takes those of rank 0."""
        with torch.no_grad():
            self.mean.lerp_(mean[:, 0], MOMENTUM)
            self.variance.lerp_(variance[:, 0] * rows / (rows - 1), MOMENTUM)

    @torch.no_grad()
    def settle(self, images: Tensor) -> None:
        """Replace the running averages by the exact mean and variance of the first layer over all these images."""
        hidden = images @ self._first
        self.variance, self.mean = torch.var_mean(hidden, dim=1, keepdim=True)

    @torch.no_grad()
    def test_losses(self, images: Tensor, labels: Tensor) -> list[float]:
        """Return each network's loss, normalised by its running averages as torch's eval() does."""
        hidden = self._evaluated(images)
        losses: list[float] = self.losses(hidden, labels.expand(len(hidden), -1)).tolist()
        return losses

    @torch.no_grad()
    def wrong_shares(self, images: Tensor, labels: Tensor) -> list[float]:
        """Return the share of wrong answers of each network, normalised likewise."""
        answers = self._logits(self._evaluated(images)).argmax(2)
        shares: list[float] = (answers != labels).double().mean(1).tolist()
        return shares

    def _evaluated(self, images: Tensor) -> Tensor:
        hidden = images @ self._first
        if self.batch_norm:
            hidden = (hidden - self.mean) / (self.variance + EPSILON).sqrt()
        return hidden[:, None]


def descend(nets: Networks, x: Tensor, y: Tensor, rate: float = 0.1) -> None:
    """Make one step of plain gradient descent; x: (networks, groups, rows, pixels), y: one label for each row."""
    hidden = nets.hidden(x)
    if nets.batch_norm:  # dim 2: the rows of a group, which are each other's company
        variance, mean = torch.var_mean(hidden, dim=2, correction=0, keepdim=True)
        hidden = (hidden - mean) / (variance + 1e-5).sqrt()
        nets.remember(mean, variance, rows=x.shape[2])
    losses = nets.losses(hidden, y)
    gradients = torch.autograd.grad(losses.sum(), nets.weights)
    with torch.no_grad():
        for weight, gradient in zip(nets.weights, gradients, strict=True):
            weight -= rate * gradient


def train(nets: Networks, orders: Tensor, data: Data, rate: float = 0.1) -> None:
    """Train on int64 orders (networks, epochs, steps, groups, rows)."""
    images, labels = data
    for epoch in orders.unbind(1):
        for rows in epoch.unbind(1):
            descend(nets, images[rows], labels[rows], rate)


def dealt(samples: int, seed: int, epochs: int, told: bool = True) -> Tensor:
    """Return what 8 ranks read, 4 at a time: int64 (epochs, steps, 8, 4). told: whether set_epoch is called.

    ValueError: a rank's share is no multiple of 4.
    """
    samplers = [DistributedSampler(range(samples), RANKS, rank, seed=seed) for rank in range(RANKS)]  # type: ignore[arg-type, var-annotated]
    if len(samplers[0]) % BATCH:
        raise ValueError(
            f"each rank has {len(samplers[0])} of {samples} samples, which {BATCH} does not divide"
        )
    found = []
    for epoch in range(epochs):
        for sampler in samplers:
            if told:
                sampler.set_epoch(epoch)
        shares = torch.tensor([list(sampler) for sampler in samplers])
        found.append(shares.view(RANKS, -1, BATCH).transpose(0, 1))
    return torch.stack(found)


def grouped(orders: Tensor, size: int) -> Tensor:
    """Join neighbouring ranks' batches to groups of `size` rows: the same images in the same steps, other company."""
    return orders.reshape(*orders.shape[:-2], -1, size)


Redeal = Callable[[Tensor, torch.Generator], Tensor]
Trainer = Callable[[Networks, Tensor, Data], None]


def controlled(orders: Tensor, control: Redeal, seed: int) -> Tensor:
    """Return the first epoch, then in each later epoch what a control makes of it: int64 as `orders`."""
    generator = torch.Generator().manual_seed(seed)
    first = orders[0]
    later = [control(first, generator) for _ in orders[1:]]
    return torch.stack([first, *later])


@contextmanager
def one_thread() -> Iterator[None]:
    """While its `with` lasts, torch computes in one thread: threads for small tensors wait more than they work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def train_ways(
    ways: Mapping[str, Tensor],
    train_set: Data,
    test_set: Data,
    *,
    batch_norm: bool,
    train: Trainer = train,
    exact: bool = False,
) -> TestLosses:
    """Train a network for each way and seed, with equal initial weights in all ways; return the test losses by way.

    ways: by name int64 (seeds, epochs, steps, groups, rows). train: the notebook hands over its own. exact: evaluate
    with mean and variance of all training images, not with the running averages.
    """
    nets = _trained(ways, train_set, batch_norm, train)
    if exact:
        nets.settle(train_set[0])
    return _by_way(ways, nets.test_losses(*test_set))


def _trained(ways: Mapping[str, Tensor], train_set: Data, batch_norm: bool, train: Trainer) -> Networks:
    """Train a network for each way and seed, all at once. Raises ValueError unless all have as many seeds."""
    counts = {way: len(orders) for way, orders in ways.items()}
    if len(set(counts.values())) > 1:
        raise ValueError(
            f"each way needs as many seeds as the others: {counts}; run the cells again that deal them"
        )
    orders = torch.cat(list(ways.values()))
    seeds = len(orders) // len(ways)
    nets = Networks([*range(seeds)] * len(ways), batch_norm)
    with one_thread():
        train(nets, orders, train_set)
    return nets


def _by_way(ways: Mapping[str, Tensor], losses: Sequence[float]) -> TestLosses:
    """Give each way its losses, one for each seed."""
    seeds = len(losses) // len(ways)
    return {way: [*losses[k * seeds :][:seeds]] for k, way in enumerate(ways)}


def recorded_at(
    record: Mapping[str, Any], rate: float, epochs: int, batch_norm: bool, exact: bool
) -> tuple[TestLosses, TestLosses]:
    """Return test losses and shares of wrong answers, by way: one rank's batch, and {} for what was not recorded.

    Answers were counted with the running averages alone: with exact statistics there are none.
    """
    if epochs != record["epochs"]:
        return {}, {}
    size = str(BATCH) if batch_norm else "none"
    losses = record["exact" if batch_norm and exact else "results"]
    found, wrong = (kept.get(f"{rate:g}", {}).get(size, {}) for kept in (losses, record["wrong"]))
    return found, wrong if losses is record["results"] else {}


def measure_company(
    train_set: Data,
    test_set: Data,
    controls: Mapping[str, Redeal],
    *,
    seeds: int,
    size: str,
    rate: float,
    epochs: int = 30,
) -> dict[str, TestLosses]:
    """Measure all ways with many seeds: test losses ("results"), wrong answers, losses by exact statistics.

    size: "none" (no normalisation) or the rows of a group; the controls are tried where a group is one rank's batch.
    """
    samples = len(train_set[0])
    rows = BATCH if size == "none" else int(size)
    told, forgotten = (
        torch.stack([dealt(samples, epochs * seed, epochs, told) for seed in range(seeds)])
        for told in (True, False)
    )
    ways = {"told": grouped(told, rows), "forgotten": grouped(forgotten, rows)}
    if rows == BATCH:
        for name, control in controls.items():
            made = [controlled(order, control, seed) for seed, order in enumerate(forgotten)]
            ways[name] = torch.stack(made)

    def at_rate(nets: Networks, orders: Tensor, data: Data) -> None:
        train(nets, orders, data, rate)

    nets = _trained(ways, train_set, size != "none", at_rate)
    found = {"results": nets.test_losses(*test_set), "wrong": nets.wrong_shares(*test_set)}
    if nets.batch_norm:
        nets.settle(train_set[0])
        found["exact"] = nets.test_losses(*test_set)
    return {what: _by_way(ways, each) for what, each in found.items()}
