"""Rows of a meta file as datasets: all of them in every process, or only those that this rank uses now.

    NaiveDataset         every row as a Python string, in every rank                    memory M and more
    RankDataset          a rank's rows of one mini-epoch, as bytes                      memory M / (W · E)

RankDataset: length of the file -> the epoch's order of all rows, computed, not stored -> this rank's places in it, one
of W -> of these the ones of this mini-epoch, one part of E -> those rows, read from the file in one sweep.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import Dataset, get_worker_info

from lib.arguments import integer, rank_of
from lib.data.meta import MetaFile, Packed
from lib.data.permutation import Ids, Permutation
from lib.data.progress import progress_bar
from lib.data.samplers import Order, check_state, deal, shuffled
from lib.memory import return_freed

STATE_VERSION = 1


class NaiveDataset(Dataset[str]):
    """Hold all rows of a meta file as a list of strings, as one would write it first: `rows`."""

    def __init__(self, meta_file: MetaFile) -> None:
        with open(meta_file.path, encoding="utf-8", errors="surrogateescape", newline="\n") as file:
            # without a byte order mark; "utf-8-sig" takes half of one for it, too
            first = next(file, "").removeprefix("\ufeff")
            lines = itertools.chain([first], file)
            kept = (line for line in lines if not line.startswith("#") and line.strip(" \t\r\n\v\f"))
            self.rows = [line.removesuffix("\n").removesuffix("\r") for line in kept]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> str:
        return self.rows[index]

    def __repr__(self) -> str:
        return f"<NaiveDataset: {len(self)} rows>"


class RankDataset(Dataset[Any]):
    """Hold the rows of one rank and one mini-epoch in memory, packed, and nothing else.

    The epoch's order of all N rows is dealt to the W ranks in turns, as by DistributedSampler: this rank gets places
    rank, rank + W, rank + 2 W, … Its turns are cut into E mini-epochs as even as can be (if E > turns, some are empty).
    All ranks get equally many rows: the head of the order is repeated for at most W - 1 of them, or with drop_last the
    tail is left out. Otherwise every row is used once an epoch. `load(mini_epoch)` reads a part, `len` is its size;
    item i is the i-th row *of the order*, so an ordinary loader without shuffle already goes through a full shuffle.

    order: "feistel", a `Permutation` of (seed, epoch), stores nothing; "torch" is that of torch's DistributedSampler,
    which takes 4 N bytes while a mini-epoch is loaded. transform: applied to a row (a str) when it is taken.

    Load before a DataLoader starts its workers: forked, they share the rows. (Spawned ones read them again, each for
    itself: a payload a worker.) They hold what was loaded when they started, so every mini-epoch needs new ones; and a
    DataLoader without workers takes what is loaded at that moment, whatever it began with. `mini_epoch_loaders` deals
    loaders that are right, or say that they no longer are.

    Raises ValueError for a rank outside 0..W-1, W < 1, mini_epochs < 1, an unknown order, and what MetaFile raises;
    TypeError for the name of a file in its place.

    Example:
        dataset = RankDataset(MetaFile("captions.txt"), world_size=8, rank=3, mini_epochs=8)
        for loader in mini_epoch_loaders(dataset, epoch=0, batch_size=256, num_workers=2):
            for rows in loader: ...
    """

    def __init__(
        self,
        meta_file: MetaFile,
        world_size: int,
        rank: int,
        seed: int = 0,
        *,
        mini_epochs: int = 1,
        drop_last: bool = False,
        transform: Callable[[str], Any] | None = None,
        order: Order = "feistel",
    ) -> None:
        if order not in ("torch", "feistel"):
            raise ValueError(f"order must be 'torch' or 'feistel', not {order!r}")
        if isinstance(meta_file, (str, bytes, os.PathLike)):  # a name has a length, too: that of its letters
            raise TypeError(f"meta_file must be a MetaFile: write MetaFile({os.fspath(meta_file)!r})")
        self.meta_file = meta_file
        self.size = len(meta_file)
        self.world_size = integer("world_size", world_size, at_least=1)
        self.rank = rank_of(rank, self.world_size)
        self.seed = integer("seed", seed, at_least=-(2**62), below=2**62)
        self.mini_epochs = integer("mini_epochs", mini_epochs, at_least=1)
        self.drop_last = bool(drop_last)
        self.transform = transform
        self.order = order
        self.epoch = 0
        self.mini_epoch = 0
        # After a restart, the first rows of the order are used and the rest goes to the mini-epochs from _first on.
        self._consumed = 0
        self._first = 0
        self._packed: Packed | None = None
        self.deals = 0  # how often epoch or state were changed: a loop over the mini-epochs compares it
        self._may_load_in_worker = False

    # ---- which rows

    @property
    def first_mini_epoch(self) -> int:
        """The first mini-epoch that there is: 0, or later where a loaded state has left the earlier ones behind."""
        return self._first

    @property
    def num_samples(self) -> int:
        """How many rows this rank gets in all mini-epochs from the first on; the same for every rank."""
        return self._turns_of(self.size - self._consumed)

    def turns(self, mini_epoch: int) -> range:
        """Return which of this rank's turns a mini-epoch is; the same for every rank."""
        part = mini_epoch - self._first
        parts = self.mini_epochs - self._first
        if not 0 <= part < parts:  # used before a restart
            return range(0)
        return range(self.num_samples * part // parts, self.num_samples * (part + 1) // parts)

    def ids(self, mini_epoch: int) -> Iterator[Ids]:
        """Return the ids of a mini-epoch's rows in the order of its items, in blocks."""
        lookup: Permutation | Ids
        if self.order == "torch":
            lookup = shuffled(self.size, torch.Generator().manual_seed(self.seed + self.epoch)).numpy()
        else:
            lookup = Permutation(max(1, self.size), seed=self.seed % 2**64, epoch=self.epoch)
        return deal(lookup, self.turns(mini_epoch), self.rank, self.world_size, self._consumed, self.size)

    def __len__(self) -> int:
        return len(self.turns(self.mini_epoch))

    def __repr__(self) -> str:
        loaded = "" if self._packed is None else ", loaded"
        return (
            f"<RankDataset rank {self.rank} of {self.world_size}: {len(self)} of {self.size} rows, epoch {self.epoch}, "
            f"mini-epoch {self.mini_epoch} of {self.mini_epochs}{loaded}>"
        )

    # ---- the rows themselves

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, and with it the order: rows of another epoch are let go, and mini-epoch 0 is next."""
        epoch = integer("epoch", epoch, at_least=0, below=2**62)
        if epoch != self.epoch:
            self.epoch = epoch
            self.mini_epoch = 0
            self._consumed = 0
            self._first = 0
            self._packed = None
            self.deals += 1

    def load(self, mini_epoch: int) -> None:
        """Let the rows in memory go, then read those of a mini-epoch; nothing if they are the ones that are there."""
        mini_epoch = integer("mini_epoch", mini_epoch, at_least=0, below=self.mini_epochs)
        if mini_epoch < self._first:
            raise ValueError(
                f"mini-epoch {mini_epoch} of epoch {self.epoch} was used before the restart; what is left of it is in "
                f"{list(range(self._first, self.mini_epochs)) or 'the next epoch: call set_epoch'}"
            )
        if self._packed is None or mini_epoch != self.mini_epoch:
            self._packed = None  # before the next rows are read: there is memory for one mini-epoch only
            self.mini_epoch = mini_epoch
            return_freed()  # measured with 6 million rows a part: else 40 MB above the payload stay for good
            self._packed = self.read(mini_epoch)

    def read(self, mini_epoch: int, check: Callable[[], object] | None = None) -> Packed:
        """Return the rows of a mini-epoch, beside those in memory; check: called often, may raise to stop it."""
        if check is None:
            check = _nothing

        def ids() -> Iterator[Ids]:
            for block in self.ids(mini_epoch):
                check()
                yield block

        def step(rows: int) -> None:
            check()
            progress(rows)

        count = len(self.turns(mini_epoch))
        label = f"epoch {self.epoch} mini-epoch {mini_epoch}"
        with progress_bar(label, count, " rows", show=self.rank == 0) as progress:
            return self.meta_file.pack(count, ids(), step)

    def swap(self, mini_epoch: int, packed: Packed) -> None:
        """Make rows that `read` returned those in memory."""
        self.mini_epoch = mini_epoch
        self._packed = packed

    def holds(self, packed: Packed | None) -> bool:
        """Say whether these are the rows in memory."""
        return packed is not None and packed is self._packed

    @property
    def packed(self) -> Packed:
        """The rows in memory; where there are none yet, they are loaded now."""
        if self._packed is None:
            if get_worker_info() is not None and not self._may_load_in_worker:
                raise RuntimeError(
                    "nothing was loaded when this DataLoader worker started, and each worker would load its own copy: "
                    f"call load({self.mini_epoch}) before the loader is iterated, or use mini_epoch_loaders"
                )
            self._packed = self.read(self.mini_epoch)
        return self._packed

    def __getitem__(self, index: int) -> Any:
        packed = self._packed
        if packed is None:
            packed = self.packed
        row = packed[index]
        return row if self.transform is None else self.transform(row)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return the items of one batch, which is what torch's DataLoader asks for."""
        rows = self.packed.rows(indices)
        return rows if self.transform is None else [self.transform(row) for row in rows]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_packed": None, "_may_load_in_worker": self._packed is not None}

    # ---- stop and resume

    def state_dict(self, consumed: int | None = None) -> dict[str, Any]:
        """Return what a restart needs; the same on every rank, and JSON as well as torch.save can hold it.

        consumed: rows that all ranks together have used since this epoch began, across restarts; they must have taken
        their items in order. None: all before the mini-epoch that is loaded. In the state of an epoch that is over it
        is the number of all rows. Raises ValueError for fewer than before the restart, or more than there are.
        """
        if consumed is None:
            consumed = self._consumed + self.turns(self.mini_epoch).start * self.world_size
        most = self._consumed + self.num_samples * self.world_size
        consumed = integer("consumed", consumed, at_least=self._consumed)
        if consumed > max(most, self.size):
            raise ValueError(
                f"consumed is {consumed}, but all ranks together use only {most} rows an epoch; count each row once, "
                "from the start of the epoch"
            )
        if consumed >= min(most, self.size):  # over, and so is what drop_last leaves out
            mini_epoch = self.mini_epochs
            consumed = self.size
        else:
            turn = (consumed - self._consumed) // self.world_size
            mini_epoch = next(k for k in range(self._first, self.mini_epochs) if turn < self.turns(k).stop)
        place = {"epoch": self.epoch, "mini_epoch": mini_epoch, "consumed": consumed}
        return {**self._identity(), "mini_epochs": self.mini_epochs, **place}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken: what was left of the epoch is dealt anew over this dataset's ranks.

        It goes to the mini-epochs that are left: `first_mini_epoch` and those after it. Another world size or number of
        mini-epochs is fine. Raises ValueError for a state of another file, seed or order, one that is not complete, or
        one that contradicts itself, and TypeError for what is no mapping; the dataset is then as it was.
        """
        more = ("mini_epochs", "epoch", "mini_epoch", "consumed")
        state = check_state(self, state, self._identity(), more)
        epoch = integer("epoch", state["epoch"], at_least=0, below=2**62)
        consumed = integer("consumed", state["consumed"], at_least=0, below=self.size + 1)
        parts = integer("mini_epochs", state["mini_epochs"], at_least=1)
        first = integer("mini_epoch", state["mini_epoch"], at_least=0, below=parts + 1)
        over = first == parts
        if over != (consumed == self.size):
            raise ValueError(
                f"the state contradicts itself: {consumed} of {self.size} rows are used, but its epoch is "
                f"{'over' if over else 'not over'} (mini_epoch {first} of {parts}); take it anew with state_dict()"
            )
        if over:
            first = self.mini_epochs
        elif parts == self.mini_epochs:
            # not fewer mini-epochs than were left, so that a state at the start of one goes on with that one
            first = min(first, self._first_for(consumed))
        else:
            first = self._first_for(consumed)
        self.epoch = epoch
        self._consumed = consumed
        self._first = first
        self.mini_epoch = first
        self._packed = None
        self.deals += 1

    def _first_for(self, consumed: int) -> int:
        """Return the first of as few mini-epochs as the rest can have if each is as small as in a whole epoch."""
        rest = self._turns_of(self.size - consumed)
        most = self._turns_of(self.size, parts=self.mini_epochs)
        needed = -(-rest // max(1, most))
        return self.mini_epochs - needed

    def _turns_of(self, rows: int, parts: int = 1) -> int:
        """Return how many turns a rank has when so many rows are dealt, or how many the largest of its parts has."""
        turns = rows // self.world_size if self.drop_last else -(-rows // self.world_size)
        return -(-turns // parts)

    def _identity(self) -> dict[str, Any]:
        return {"version": STATE_VERSION, "size": self.size, "seed": self.seed, "order": self.order}


def _nothing() -> None:
    """Check nothing."""
