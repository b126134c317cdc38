"""Who decides the order: a sampler yields dataset indices, one after the other, and a DataLoader fetches them.

    SequentialSampler     0, 1, 2, …
    RandomSampler         every index once, in a new order each pass
    DistributedSampler    the share of one rank: every W-th position of an order that all ranks agree on

An order of N indices is kept as one tensor, never as N Python ints: those cost 32 bytes each, a tensor's four.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import Sampler

from lib.arguments import integer, rank_of
from lib.data.permutation import Ids, Permutation

Order: TypeAlias = Literal["torch", "feistel"]

BLOCK = 1 << 15  # indices that are computed, and turned into Python ints, at a time
STATE_VERSION = 1


def dataset_size(dataset: object) -> int:
    """Return len(dataset); raises TypeError for a dataset without a length, at once rather than at the first epoch."""
    if not isinstance(dataset, Sized):
        raise TypeError(
            f"a sampler must know how many samples there are, but {type(dataset).__name__} has no len(); "
            "give a map-style dataset, or use an IterableDataset without a sampler"
        )
    return len(dataset)


def shuffled(size: int, generator: torch.Generator) -> torch.Tensor:
    """Return torch.randperm(size, generator=generator), in four bytes an index where they suffice.

    The draws do not depend on the type of the result, so the order is the same and the memory is half.
    """
    return torch.randperm(size, generator=generator, dtype=torch.int32 if size < 2**31 else torch.int64)


def check_state(owner: object, state: object, identity: Mapping[str, Any], more: Iterable[str]) -> Mapping[str, Any]:
    """Return `state` if it is a complete state of something that was made as `owner` was.

    identity: what must be equal, by name. more: the names that must be there besides. Raises TypeError for what is no
    mapping, ValueError for one that is not complete or has another identity, naming both values.
    """
    kind = type(owner).__name__
    if not isinstance(state, Mapping):
        raise TypeError(f"a state is a mapping made by state_dict(), not {type(state).__name__}")
    missing = [name for name in (*identity, *more) if name not in state]
    if missing:
        raise ValueError(f"not a state of a {kind}: {', '.join(missing)} missing")
    for name, value in identity.items():
        if state[name] != value:
            raise ValueError(
                f"the state was taken with {name}={state[name]!r}, this {kind} has {name}={value!r}; "
                "make it with the same data and arguments to continue its epoch"
            )
    return state


def deal(
    lookup: Permutation | Ids | None, turns: range, rank: int, world_size: int, used: int, size: int
) -> Iterator[Ids]:
    """Yield, in blocks, the indices that a rank gets in its turns: turn t is place used + rank + t · world_size.

    lookup: the order, which has `size` places; None for 0, 1, 2, … A turn past its end starts over at place `used`.
    """
    for start in range(turns.start, turns.stop, BLOCK):
        turn = np.arange(start, min(turns.stop, start + BLOCK), dtype=np.int64)
        places = used + (rank + turn * world_size) % (size - used)
        yield places if lookup is None else lookup[places]


class SequentialSampler(Sampler[int]):
    """Yield 0, 1, … len(dataset) - 1.

    Raises TypeError for a dataset without a length. As torch.utils.data.SequentialSampler.
    """

    def __init__(self, dataset: Sized) -> None:
        dataset_size(dataset)
        self.dataset = dataset

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.dataset)))

    def __len__(self) -> int:
        return len(self.dataset)

    def __repr__(self) -> str:
        return f"<SequentialSampler: {len(self):,} indices>"


class RandomSampler(Sampler[int]):
    """Yield every index once, in a new random order at each pass.

    seed None: each pass draws its seed from torch's global generator, so `torch.manual_seed` governs it. A seed: a
    private generator, so that equal seeds give equal passes whatever else draws numbers. Both give what
    torch.utils.data.RandomSampler gives, without and with `generator=torch.Generator().manual_seed(seed)`.
    Raises TypeError for a dataset without a length, ValueError for a negative seed.
    """

    def __init__(self, dataset: Sized, seed: int | None = None) -> None:
        dataset_size(dataset)
        self.dataset = dataset
        self.seed = None if seed is None else integer("seed", seed, at_least=0, below=2**63)
        self._generator = None if self.seed is None else torch.Generator().manual_seed(self.seed)

    def __iter__(self) -> Iterator[int]:
        generator = self._generator
        if generator is None:
            seed = int(torch.empty((), dtype=torch.int64).random_().item())
            generator = torch.Generator().manual_seed(seed)
        size = len(self.dataset)
        for block in torch.split(shuffled(size, generator), BLOCK):
            yield from block.tolist()
        if self._generator is not None:
            # torch draws a second order for the zero samples that remain: without it, later passes would differ
            shuffled(size, generator)

    def __len__(self) -> int:
        return len(self.dataset)

    def __repr__(self) -> str:
        return f"<RandomSampler: {len(self):,} indices, seed {self.seed}>"


class DistributedSampler(Sampler[int]):
    """Yield one rank's share of an order that all ranks compute alike, without talking to each other.

    With the same arguments it is torch.utils.data.DistributedSampler, index for index: the order is that of a
    generator seeded with seed + epoch (or 0, 1, 2 … without shuffle), padded with its own head (or cut, drop_last) to
    a multiple of the number of replicas; the rank takes positions rank, rank + W, rank + 2 W, … `len()` counts them.

    dataset: anything with a length. num_replicas, rank: taken from the default process group where not given.
    order: "torch" as above; "feistel" is a `Permutation` of (seed, epoch), which needs no memory for any size.
    pad: False leaves the shares uneven by one at most: nothing twice, nothing dropped, for exact evaluation. Under DDP,
        ranks with fewer batches need `torch.distributed.algorithms.Join`, or a loop without collectives.

    Resuming: `state_dict(consumed)` with the number of samples that all ranks together have used since the epoch
    began (across restarts too); after `load_state_dict` the next pass deals the rest of that epoch over the world size
    that this sampler has, and later passes are whole again. All ranks advance alike, so what is used is a prefix.

    Raises ValueError for a rank outside 0..W-1, W < 1, a negative epoch, an unknown order, or pad=False with
    drop_last=True (which contradict each other); TypeError for a dataset without a length.

    Example:
        sampler = DistributedSampler(range(10), num_replicas=4, rank=1, shuffle=False)
        list(sampler)  # [1, 5, 9]: of 10 padded to 12

        for epoch in range(3):
            sampler.set_epoch(epoch)  # on every rank, or all epochs are alike
            for batch in DataLoader(dataset, batch_size=32, sampler=sampler): ...
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        *,
        order: Order = "torch",
        pad: bool = True,
    ) -> None:
        if num_replicas is None or rank is None:
            group_size, group_rank = _process_group()
            num_replicas = group_size if num_replicas is None else num_replicas
            rank = group_rank if rank is None else rank
        if order not in ("torch", "feistel"):
            raise ValueError(f"order must be 'torch' or 'feistel', not {order!r}")
        if drop_last and not pad:
            raise ValueError("drop_last=True drops samples and pad=False promises to drop none; choose one of them")
        self.dataset = dataset
        self.size = dataset_size(dataset)
        self.num_replicas = integer("num_replicas", num_replicas, at_least=1)
        self.rank = rank_of(rank, self.num_replicas, world="num_replicas")
        # seed + epoch must be a seed that torch takes
        self.seed = integer("seed", seed, at_least=-(2**62), below=2**62)
        self.shuffle = bool(shuffle)
        self.drop_last = bool(drop_last)
        self.order = order
        self.pad = bool(pad)
        self.epoch = 0
        self._consumed = 0
        self._rest_dealt = False

    @property
    def consumed(self) -> int:
        """How many samples of the epoch the next pass leaves out, because a loaded state says they were used."""
        return 0 if self._rest_dealt else self._consumed

    @property
    def num_samples(self) -> int:
        """How many indices this rank yields in the next pass."""
        return self._share_of(self.size - self.consumed)

    def _share_of(self, rest: int) -> int:
        """Return how many of so many indices this rank yields."""
        if not self.pad:
            return max(0, -(-(rest - self.rank) // self.num_replicas))
        if self.drop_last:
            return rest // self.num_replicas
        return -(-rest // self.num_replicas)

    @property
    def total_size(self) -> int:
        """How many indices all ranks together yield in the next pass."""
        return self._dealt_of(self.size - self.consumed)

    def _dealt_of(self, rest: int) -> int:
        """Return how many indices all ranks together yield, of so many that there are."""
        return self._share_of(rest) * self.num_replicas if self.pad else rest

    def __len__(self) -> int:
        return self.num_samples

    def __repr__(self) -> str:
        ways = f"{self.order} order" if self.shuffle else "no shuffle"
        uneven = "" if self.pad else ", no padding"
        dropped = ", drop_last" if self.drop_last else ""
        resumed = f", {self.consumed:,} used before" if self.consumed else ""
        return (
            f"<DistributedSampler rank {self.rank} of {self.num_replicas}: {len(self):,} of {self.size:,} indices, "
            f"epoch {self.epoch}, seed {self.seed}, {ways}{uneven}{dropped}{resumed}>"
        )

    def __iter__(self) -> Iterator[int]:
        if self._rest_dealt:  # the rest of the interrupted epoch was for one pass only
            self._forget_state()
        return self._deal(self._blocks(), (self.epoch, self._consumed))

    def _deal(self, blocks: Iterable[list[int]], begun_at: tuple[int, int]) -> Iterator[int]:
        for block in blocks:
            yield from block
        if begun_at == (self.epoch, self._consumed):
            self._rest_dealt = self._consumed > 0

    def _blocks(self) -> Iterable[list[int]]:
        """Return this rank's indices, a block at a time; the order is fixed now, whatever set_epoch says later."""
        if self.shuffle and self.order == "torch":
            return (block.tolist() for block in torch.split(self._share(), BLOCK))
        permutation = None
        if self.shuffle:
            permutation = Permutation(max(1, self.size), seed=self.seed % 2**64, epoch=self.epoch)
        blocks = deal(permutation, range(self.num_samples), self.rank, self.num_replicas, self._consumed, self.size)
        return (block.tolist() for block in blocks)

    def _share(self) -> torch.Tensor:
        order = shuffled(self.size, torch.Generator().manual_seed(self.seed + self.epoch))
        order = order[self._consumed :]
        share = order[self.rank :: self.num_replicas][: self.num_samples]
        missing = self.num_samples - len(share)
        if missing:  # padding starts over at the head of the order, more than once if it must
            turns = torch.arange(len(share), self.num_samples)
            places = (self.rank + turns * self.num_replicas) % len(order)
            share = torch.cat([share, order[places]])
        return share.contiguous()  # a copy of the share alone: the whole order is freed before the epoch runs

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the next pass; call it on every rank before each epoch, or all epochs are alike.

        A different epoch than that of a loaded state begins from its first sample.
        """
        epoch = integer("epoch", epoch, at_least=0, below=2**62)
        if epoch != self.epoch:
            self._forget_state()
        self.epoch = epoch

    def state_dict(self, consumed: int) -> dict[str, Any]:
        """Return what a restart needs; the same on every rank, and JSON as well as torch.save can hold it.

        consumed: samples that all ranks together have used since this epoch began (padding included, across restarts).
        Raises ValueError for fewer than a loaded state says, and for more than there are.
        """
        consumed = integer("consumed", consumed, at_least=0)
        if consumed < self._consumed:
            raise ValueError(
                f"consumed is {consumed}, but {self._consumed} samples of this epoch were used before the restart; "
                "count across restarts, from the start of the epoch"
            )
        most = max(self.size, self._consumed + self._dealt_of(self.size - self._consumed))
        if consumed > most:
            raise ValueError(
                f"consumed is {consumed}, but all ranks together use only {most} samples an epoch; "
                "count each sample once, from the start of the epoch"
            )
        return {**self._identity(), "epoch": self.epoch, "consumed": min(consumed, self.size)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken, with this sampler's own rank and number of replicas.

        Raises ValueError if the state belongs to another dataset size, seed, shuffle or order, or is not complete;
        the sampler is then as it was.
        """
        state = check_state(self, state, self._identity(), ("epoch", "consumed"))
        epoch = integer("epoch", state["epoch"], at_least=0, below=2**62)
        consumed = integer("consumed", state["consumed"], at_least=0, below=self.size + 1)
        self.epoch = epoch
        self._consumed = consumed
        self._rest_dealt = False

    def _forget_state(self) -> None:
        """Make the next pass a whole one, whatever state was loaded."""
        self._consumed = 0
        self._rest_dealt = False

    def _identity(self) -> dict[str, Any]:
        same = {"size": self.size, "seed": self.seed, "shuffle": self.shuffle, "order": self.order}
        return {"version": STATE_VERSION, **same}


def _process_group() -> tuple[int, int]:
    """Return (world size, rank) of the default process group; raises as torch does where there is none."""
    if not dist.is_available():
        raise RuntimeError("this torch has no distributed package: pass num_replicas and rank")
    try:
        return dist.get_world_size(), dist.get_rank()
    except (RuntimeError, ValueError) as error:  # which of them depends on torch's version
        raise type(error)(f"{error} Without a process group, pass both num_replicas and rank.") from None
