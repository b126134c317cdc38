"""Does it cost accuracy that a rank sees only its own rows? A study of ways to deal them (notebook 16).

    deal            dealt to W ranks and E mini-epochs by                 in the next epoch

    full shuffle    DistributedSampler, from the order of all rows        anew
    rank            RankDataset                                           anew
    rank, once      RankDataset, then shuffled inside each part           as before
    blocks          cutting the file into W · E, shuffled inside each     as before

All ranks together do one step on W parts; as each sample's loss is its own, that step is the one of the whole batch.
So the batches of W ranks are put together here and trained on in one process: the same steps, and no ranks to start.
Equal seeds have equal first weights, so that deals can be compared in pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional as F

from lib.arguments import integer
from lib.data.meta import MetaFile
from lib.data.rank_dataset import RankDataset
from lib.data.samplers import DistributedSampler
from support.digits import Digits
from support.training import CAPTIONS, TinyClip

RowNumbers: TypeAlias = npt.NDArray[np.int64]
Dealing: TypeAlias = Literal["full shuffle", "rank", "rank, once", "blocks"]


@dataclass(frozen=True)
class Deal:
    """A way to deal the rows: `how` of the table above, E, and whether the file is sorted by class first."""

    how: Dealing
    mini_epochs: int = 1
    sorted_file: bool = False

    def __post_init__(self) -> None:
        if self.how not in get_args(Dealing):
            raise ValueError(f"how must be one of {', '.join(get_args(Dealing))}, not {self.how!r}")
        integer("mini_epochs", self.mini_epochs, at_least=1)
        if self.how == "full shuffle" and self.mini_epochs != 1:
            raise ValueError(f"a full shuffle has one mini-epoch, not {self.mini_epochs}")

    @property
    def name(self) -> str:
        """As it stands in a table: "rank, E = 8, sorted file"."""
        parts: list[str] = [self.how]
        if self.how != "full shuffle":
            parts.append(f"E = {self.mini_epochs}")
        if self.sorted_file:
            parts.append("sorted file")
        return ", ".join(parts)


FULL = Deal("full shuffle")
DEALS = (FULL, Deal("rank", 1), Deal("rank", 4), Deal("rank", 8))
MISTAKES = (Deal("rank, once", 8), Deal("blocks", 8), Deal("blocks", 8, sorted_file=True))
REPAIRED = Deal("rank", 8, sorted_file=True)


@dataclass(frozen=True)
class DecodedDigits:
    """The digits, decoded once: images (n, 1, 8, 8) and digits (n,), to train and to test on."""

    meta_file: MetaFile
    images: torch.Tensor
    digits: torch.Tensor
    test_images: torch.Tensor
    test_digits: torch.Tensor


def load_data(folder: str | Path = "data/digits") -> DecodedDigits:
    """Decode all images of a folder that write_digits made."""

    def stacked(split: str) -> tuple[torch.Tensor, torch.Tensor]:
        dataset = Digits(folder, split)
        images, digits = zip(*(dataset[i] for i in range(len(dataset))), strict=True)
        return torch.stack(images), torch.tensor(digits)

    return DecodedDigits(MetaFile(Path(folder) / "train.txt"), *stacked("train"), *stacked("test"))


def parts(
    deal: Deal, data: DecodedDigits, epoch: int, seed: int = 0, world_size: int = 2
) -> Iterator[RowNumbers]:
    """Yield the rows of each mini-epoch in the order in which all ranks together train on them; each row once."""
    size = len(data.meta_file)
    done = 0
    file = np.argsort(data.digits.numpy(), kind="stable") if deal.sorted_file else np.arange(size)
    random = np.random.default_rng((seed, epoch))
    for shares in _shares(deal, data.meta_file, epoch, seed, world_size):
        # the head that is repeated so that all ranks have equally many does not count, as in 06_train.py
        rows = _in_turns(shares)[: size - done]
        if deal.how in ("rank, once", "blocks"):
            rows = _in_turns([random.permutation(rows[rank::world_size]) for rank in range(world_size)])
        done += len(rows)
        yield file[rows]


def _shares(deal: Deal, meta: MetaFile, epoch: int, seed: int, world_size: int) -> Iterator[list[RowNumbers]]:
    """Yield the rows of each mini-epoch by rank."""
    ranks = range(world_size)
    if deal.how == "full shuffle":
        samplers = [DistributedSampler(range(len(meta)), world_size, rank, seed=seed) for rank in ranks]
        for sampler in samplers:
            sampler.set_epoch(epoch)
        yield [np.array([*sampler]) for sampler in samplers]
    elif deal.how == "blocks":  # rank r has E in a row
        blocks = np.array_split(np.arange(len(meta)), world_size * deal.mini_epochs)
        for mini_epoch in range(deal.mini_epochs):
            yield [blocks[rank * deal.mini_epochs + mini_epoch] for rank in ranks]
    else:
        datasets = [RankDataset(meta, world_size, rank, seed, mini_epochs=deal.mini_epochs) for rank in ranks]
        for dataset in datasets:
            dataset.set_epoch(epoch if deal.how == "rank" else 0)
        for mini_epoch in range(deal.mini_epochs):
            yield [np.concatenate([*dataset.ids(mini_epoch)]) for dataset in datasets]


def _in_turns(shares: Sequence[RowNumbers]) -> RowNumbers:
    """Return the rows of all ranks in turns: first of each, second of each, …"""
    turns = max(map(len, shares))
    dealt = [share[turn] for turn in range(turns) for share in shares if turn < len(share)]
    return np.array(dealt, np.int64)


def train_once(
    deal: Deal,
    data: DecodedDigits,
    seed: int = 0,
    *,
    epochs: int = 8,
    world_size: int = 2,
    batch_size: int = 64,
    learning_rate: float = 0.005,
) -> dict[str, float]:
    """Train once and return {"accuracy": on the test rows, "loss": mean over the training rows, afterwards}."""
    model = TinyClip(seed=seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate, fused=True)
    for epoch in range(epochs):
        for rows in parts(deal, data, epoch, seed, world_size):
            for batch in torch.split(torch.from_numpy(rows), batch_size):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(data.images[batch], CAPTIONS), data.digits[batch])
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
    with torch.no_grad():
        loss = F.cross_entropy(model(data.images, CAPTIONS), data.digits)
        right = model(data.test_images, CAPTIONS).argmax(dim=1) == data.test_digits
    return {"accuracy": right.float().mean().item(), "loss": loss.item()}


def study(
    data: DecodedDigits,
    seeds: Iterable[int] = range(3),
    deals: Sequence[Deal] = DEALS,
    *,
    on_result: Callable[[Deal, int, Mapping[str, float]], object] = lambda *_: None,
    **arguments: Any,
) -> dict[str, list[dict[str, float]]]:
    """Train every deal with every seed, on one thread; return the results by name of the deal, in order of seeds."""
    threads = torch.get_num_threads()
    results: dict[str, list[dict[str, float]]] = {deal.name: [] for deal in deals}
    torch.set_num_threads(1)
    try:
        for seed in seeds:
            for deal in deals:
                result = train_once(deal, data, seed, **arguments)
                results[deal.name].append(result)
                on_result(deal, seed, result)
    finally:
        torch.set_num_threads(threads)
    return results
