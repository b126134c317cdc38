"""Answers to the exercises of notebook 05: the right ones, and the famous wrong ones that the checks know by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.utils.data import DataLoader

from lib.data.permutation import Permutation
from lib.data.rank_dataset import RankDataset, mini_epoch_loaders

# ---- exercise 1: mini_epoch_ids


def true_ids(
    size: int, world_size: int, rank: int, mini_epochs: int, mini_epoch: int, epoch: int
) -> Sequence[int]:
    """Return the ids of one rank's mini-epoch, as RankDataset deals them."""
    order = Permutation(size, seed=0, epoch=epoch)
    turns = -(-size // world_size)
    begin, end = turns * mini_epoch // mini_epochs, turns * (mini_epoch + 1) // mini_epochs
    return [order[(rank + world_size * turn) % size] for turn in range(begin, end)]


def contiguous_ids(
    size: int, world_size: int, rank: int, mini_epochs: int, mini_epoch: int, epoch: int
) -> Sequence[int]:
    """Take a contiguous piece of the order (wrong)."""
    order, turns = Permutation(size, seed=0, epoch=epoch), -(-size // world_size)
    begin, end = turns * mini_epoch // mini_epochs, turns * (mini_epoch + 1) // mini_epochs
    return [order[(rank * turns + turn) % size] for turn in range(begin, end)]


def same_epoch_ids(
    size: int, world_size: int, rank: int, mini_epochs: int, mini_epoch: int, epoch: int
) -> Sequence[int]:
    """Forget the epoch (wrong)."""
    return true_ids(size, world_size, rank, mini_epochs, mini_epoch, 0)


def parts_first_ids(
    size: int, world_size: int, rank: int, mini_epochs: int, mini_epoch: int, epoch: int
) -> Sequence[int]:
    """Cut the order into E parts, then deal each over the ranks (wrong where it does not divide)."""
    order = Permutation(size, seed=0, epoch=epoch)
    places = range(size * mini_epoch // mini_epochs, size * (mini_epoch + 1) // mini_epochs)
    return [order[place] for place in places[rank::world_size]]


def unpadded_ids(
    size: int, world_size: int, rank: int, mini_epochs: int, mini_epoch: int, epoch: int
) -> Sequence[int]:
    """Deal what is there: the last ranks get a row less (wrong)."""
    mine = [Permutation(size, seed=0, epoch=epoch)[place] for place in range(rank, size, world_size)]
    return mine[len(mine) * mini_epoch // mini_epochs : len(mine) * (mini_epoch + 1) // mini_epochs]


def dropped_ids(
    size: int, world_size: int, rank: int, mini_epochs: int, mini_epoch: int, epoch: int
) -> Sequence[int]:
    """Leave the tail of the order to nobody (wrong)."""
    order, turns = Permutation(size, seed=0, epoch=epoch), size // world_size
    begin, end = turns * mini_epoch // mini_epochs, turns * (mini_epoch + 1) // mini_epochs
    return [order[rank + world_size * turn] for turn in range(begin, end)]


def floored_ids(
    size: int, world_size: int, rank: int, mini_epochs: int, mini_epoch: int, epoch: int
) -> Sequence[int]:
    """Give every mini-epoch turns // E turns: what is left comes in none (wrong)."""
    order, turns = Permutation(size, seed=0, epoch=epoch), -(-size // world_size)
    part = range(turns // mini_epochs * mini_epoch, turns // mini_epochs * (mini_epoch + 1))
    return [order[(rank + world_size * turn) % size] for turn in part]


def every_nth_ids(
    size: int, world_size: int, rank: int, mini_epochs: int, mini_epoch: int, epoch: int
) -> Sequence[int]:
    """Take every E-th turn (covers all, but in another order)."""
    order, turns = Permutation(size, seed=0, epoch=epoch), -(-size // world_size)
    return [order[(rank + world_size * turn) % size] for turn in range(mini_epoch, turns, mini_epochs)]


# ---- exercise 2: MyRankDataset


class ReferenceDataset:
    """Do what exercise 2 asks for."""

    def __init__(self, meta_file: Any, world_size: int, rank: int, mini_epochs: int) -> None:
        self.meta_file, self.world_size, self.rank, self.mini_epochs = (
            meta_file,
            world_size,
            rank,
            mini_epochs,
        )

    def ids(self, epoch: int, mini_epoch: int) -> Sequence[int]:
        """Return the ids of this rank's mini-epoch."""
        return true_ids(len(self.meta_file), self.world_size, self.rank, self.mini_epochs, mini_epoch, epoch)

    def load(self, epoch: int, mini_epoch: int) -> None:
        """Hold the rows of a mini-epoch, and no others."""
        self.rows: list[str] = list(self.meta_file.rows(self.ids(epoch, mini_epoch)))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> str:
        return self.rows[index]


class HoldsAll(ReferenceDataset):
    """Hold the whole file (wrong)."""

    def load(self, epoch: int, mini_epoch: int) -> None:
        """Read all rows."""
        self.rows = list(self.meta_file.rows(range(len(self.meta_file))))


class KeepsOld(ReferenceDataset):
    """Add to what is there (wrong)."""

    def load(self, epoch: int, mini_epoch: int) -> None:
        """Read more rows."""
        new = list(self.meta_file.rows(self.ids(epoch, mini_epoch)))
        self.rows = getattr(self, "rows", []) + new


class LoadsOnce(ReferenceDataset):
    """Keep the first mini-epoch for ever (wrong)."""

    def load(self, epoch: int, mini_epoch: int) -> None:
        """Read rows the first time."""
        if not hasattr(self, "rows"):
            super().load(epoch, mini_epoch)


class RowsOfTheFile(ReferenceDataset):
    """Take index for the number of a row in the file (wrong)."""

    def __getitem__(self, index: int) -> str:
        return str(self.meta_file.rows([index])[0])


class ForgetsTheEpoch(ReferenceDataset):
    """Deal epoch 0 for ever (wrong)."""

    def load(self, epoch: int, mini_epoch: int) -> None:
        """Read rows of epoch 0."""
        super().load(0, mini_epoch)


# ---- exercise 3: memory_of


def true_memory(
    way: str,
    rows: int,
    list_bytes: int,
    packed_bytes: int,
    world_size: int,
    workers: int,
    mini_epochs: int,
) -> float:
    """Return the bytes on the whole machine."""
    if way == "naive":
        return world_size * (1 + workers) * rows * list_bytes
    return rows * packed_bytes / (1 if way == "server" else mini_epochs)


def _variant(**changes: Callable[[dict[str, Any]], float]) -> Callable[..., float]:
    def wrong(**case: Any) -> float:
        change = changes.get(case["way"])
        return true_memory(**case) if change is None else change(case)

    return wrong


one_rank_only = _variant(rank=lambda c: c["rows"] * c["packed_bytes"] / (c["world_size"] * c["mini_epochs"]))
workers_copy = _variant(rank=lambda c: (1 + c["workers"]) * c["rows"] * c["packed_bytes"] / c["mini_epochs"])
no_workers = _variant(naive=lambda c: c["world_size"] * c["rows"] * c["list_bytes"])
only_workers = _variant(naive=lambda c: c["world_size"] * c["workers"] * c["rows"] * c["list_bytes"])
as_in_the_file = _variant(
    naive=lambda c: c["world_size"] * (1 + c["workers"]) * c["rows"] * c["packed_bytes"]
)
no_mini_epochs = _variant(rank=lambda c: float(c["rows"] * c["packed_bytes"]))


# ---- exercise 4: rows_of_epochs


def right_loop(dataset: RankDataset, epochs: int) -> list[list[str]]:
    """Return the rows of every epoch, through a new loader for every mini-epoch."""
    return [
        [
            row
            for loader in mini_epoch_loaders(dataset, epoch, batch_size=4, num_workers=1)
            for batch in loader
            for row in batch
        ]
        for epoch in range(epochs)
    ]


def kept_loader(dataset: RankDataset, epochs: int, persistent: bool = True) -> list[list[str]]:
    """Tell the dataset the epoch and load; one loader, whose workers are kept (wrong)."""
    dataset.load(0)
    loader: DataLoader[str] = DataLoader(dataset, batch_size=4, num_workers=1, persistent_workers=persistent)
    received = []
    for epoch in range(epochs):
        dataset.set_epoch(epoch)
        dataset.load(0)
        received.append([row for batch in loader for row in batch])
    return received


def first_part_only(dataset: RankDataset, epochs: int) -> list[list[str]]:
    """Load mini-epoch 0 only, rightly (wrong)."""
    return kept_loader(dataset, epochs, persistent=False)


def no_set_epoch(dataset: RankDataset, epochs: int) -> list[list[str]]:
    """Deal epoch 0 in every epoch (wrong)."""
    return right_loop(dataset, 1) * epochs


def kept_over_parts(dataset: RankDataset, epochs: int) -> list[list[str]]:
    """Load every mini-epoch, but through one loader whose workers are kept (wrong)."""
    dataset.load(0)
    loader: DataLoader[str] = DataLoader(dataset, batch_size=4, num_workers=1, persistent_workers=True)
    received: list[list[str]] = []
    for epoch in range(epochs):
        dataset.set_epoch(epoch)
        received.append([])
        for part in range(dataset.mini_epochs):
            dataset.load(part)
            received[-1] += [row for batch in loader for row in batch]
    return received


def true_rows(dataset: RankDataset, epochs: int) -> list[list[str]]:
    """Return the rows of every epoch without any loader."""
    received: list[list[str]] = []
    for epoch in range(epochs):
        dataset.set_epoch(epoch)
        received.append([])
        for part in range(dataset.mini_epochs):
            dataset.load(part)
            received[-1] += dataset.packed.rows(range(len(dataset)))
    return received
