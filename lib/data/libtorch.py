"""The two distributed samplers of libtorch (C++): contiguous shards, and a cursor in place of a list.

    size 10, 3 replicas, duplicates allowed: local = ceil(10 / 3) = 4

    position   0  1  2  3 | 4  5  6  7 | 8  9 10 11    rank r owns r·local .. (r+1)·local - 1
    sequential 0  1  2  3 | 4  5  6  7 | 8  9  0  1    past the end it wraps
    random     0  2  1  5 | 9  1  4  7 | 6  0  3  8    the wrapped list, shuffled whole by mt19937(epoch)

Sources: torch/csrc/api/src/data/samplers/distributed.cpp; bits/stl_algo.h and bits/uniform_int_dist.h of GCC 11
and newer.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sized

import numpy as np
import numpy.typing as npt

from lib.arguments import NotAnIntegerError, integer, rank_of

_WORD = 2**32  # mt19937 yields 0.._WORD - 1


class _DistributedSampler:
    """A cursor over this rank's contiguous shard of the positions 0..local·num_replicas - 1.

    There is one cursor: `next`, `index` and every iterator share it, as in C++.
    """

    def __init__(self, size: int, num_replicas: int = 1, rank: int = 0, allow_duplicates: bool = True) -> None:
        if not isinstance(allow_duplicates, bool):
            raise TypeError(f"allow_duplicates must be True or False, not {allow_duplicates!r}")
        self._num_replicas = integer("num_replicas", num_replicas, at_least=1)
        self._rank = rank_of(rank, self._num_replicas, world="num_replicas")
        self._allow_duplicates = allow_duplicates
        self._size = self._checked_size(size)
        self._epoch = 0
        self.reset()

    def reset(self, new_size: int | None = None) -> None:
        """Go back to the start of the shard; with `new_size` the shards of that many samples are cut anew."""
        if new_size is not None:
            self._size = self._checked_size(new_size)
        self._index = self._rank * len(self)
        self._end = self._index + len(self)
        self._loaded = False

    def next(self, batch_size: int) -> list[int] | None:
        """Return the next indices, `batch_size` of them or what is left of the shard; None at its end."""
        batch_size = integer("batch_size", batch_size, at_least=1)
        start = self._index
        if start >= self._end:
            return None
        self._index = min(start + batch_size, self._end)
        return self._indices_at(start, self._index)

    def index(self) -> int:
        """Return the absolute position of the cursor: from rank·local to (rank + 1)·local."""
        return self._index

    def epoch(self) -> int:
        """Return the epoch that was set last."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that the next `reset`, or the next pass of a loop or DataLoader, shuffles by."""
        self._epoch = integer("epoch", epoch, at_least=0, below=2**64)

    def __len__(self) -> int:
        """Return the number of samples of one pass over this rank's shard."""
        return self._local(self._size)

    def __iter__(self) -> Iterator[int]:
        """Start a pass: `reset`, then every index of the shard.

        After `load_state_dict` in mid-shard, the first pass yields only what is left; `len` stays the whole shard.
        """
        if not self._loaded:
            self.reset()
        self._loaded = False
        return (index for (index,) in iter(lambda: self.next(1), None))

    def state_dict(self) -> dict[str, int]:
        """Return the position of the cursor, and the size and shard that it is true for.

        The cursor counts what was handed out. A DataLoader with workers asks ahead of the training loop.
        """
        return {**self._position(), **self._shard()}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on where `state_dict` was taken, by `next` or by one pass over what is left.

        Raises ValueError, and changes nothing, if the state is from another size or shard, or not complete.
        """
        if not isinstance(state, Mapping):
            raise TypeError(f"a state is a mapping made by state_dict(), not {state!r}")
        for name in self._position():
            if name not in state:
                raise ValueError(f"the state has no {name}: it is not one of a {type(self).__name__}")
        for name, mine in self._shard().items():
            if state.get(name, mine) != mine:
                way_out = "reset(new_size) first" if name == "size" else "load it into a sampler built alike"
                raise ValueError(f"the state has {name}={state[name]}, this sampler has {name}={mine}; {way_out}")
        index = integer("the state's index", state["index"], at_least=self._end - len(self), below=self._end + 1)
        self.set_epoch(state.get("epoch", self._epoch))
        self.reset()
        self._index = index
        self._loaded = index < self._end  # a state from the end of a shard leaves nothing: the next pass is a whole one

    def _position(self) -> dict[str, int]:
        return {"index": self._index}

    def _shard(self) -> dict[str, int]:
        return {name: getattr(self, f"_{name}") for name in ("size", "num_replicas", "rank", "allow_duplicates")}

    def __repr__(self) -> str:
        shard = ", ".join(f"{name}={value}" for name, value in self._shard().items())
        return f"{type(self).__name__}({shard})"

    def _local(self, size: int) -> int:
        if self._allow_duplicates:  # rounded up: the last shards wrap
            return -(-size // self._num_replicas)
        return size // self._num_replicas

    def _checked_size(self, size: int) -> int:
        try:
            return integer("size", size, at_least=0)
        except NotAnIntegerError as error:
            if isinstance(size, Sized):  # the first argument of DistributedSampler
                raise NotAnIntegerError(f"{error}; of a dataset pass its number of samples, len(dataset)") from None
            raise

    def _indices_at(self, start: int, stop: int) -> list[int]:
        raise NotImplementedError


class DistributedSequentialSampler(_DistributedSampler):
    """Yield rank·local .. (rank + 1)·local - 1 in order, modulo `size`.

    `local` is ceil(size / num_replicas), or floor without `allow_duplicates`: the last size % num_replicas ids are
    then never seen. The epoch changes nothing and is not part of the state.
    Raises ValueError or TypeError for a bad argument. Source: torch::data::samplers::DistributedSequentialSampler.
    """

    def _indices_at(self, start: int, stop: int) -> list[int]:
        return [position % self._size for position in range(start, stop)]


class DistributedRandomSampler(_DistributedSampler):
    """Yield this rank's slice of one shuffled list, in the order of libtorch with libstdc++ (GCC 11 and newer).

    Without `allow_duplicates` only the ids below floor(size / num_replicas)·num_replicas are shuffled; the rest is
    never seen, in any epoch. The epoch is the only seed, modulo 2^32. The shuffle, half a second for a million
    indices, holds 8 bytes each while it runs; the sampler then keeps its own slice.

    One repair: libtorch pads with position - size. Where there is more padding than data, that is an index that
    does not exist: size 2 over 5 replicas yields 0|2|1|0|1. Ours is position modulo size, so 0|0|1|0|1, and the
    same as libtorch's wherever that is right.

    Raises ValueError or TypeError for a bad argument. Source: torch::data::samplers::DistributedRandomSampler.
    """

    _drawing: tuple[int, int] | None = None  # (size, epoch) that _slice is for
    _slice: npt.NDArray[np.int64] | None = None

    def reset(self, new_size: int | None = None) -> None:
        """Go back to the start of the shard, in the order of the epoch set last; `new_size` cuts it anew."""
        super().reset(new_size)
        # Drawn at first use: the constructor is instant, and the reset that begins a loop is no second shuffle.
        if self._drawing != (self._size, self._epoch):
            self._drawing = (self._size, self._epoch)
            self._slice = None

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that the next `reset`, or the next pass of a loop or DataLoader, shuffles by."""
        before = self._epoch
        super().set_epoch(epoch)
        self._loaded = self._loaded and before == self._epoch  # another epoch is a whole pass again

    def _position(self) -> dict[str, int]:
        # As in libtorch: an epoch that no reset has made the order yet counts, the loaded sampler is in it.
        return {**super()._position(), "epoch": self._epoch}

    def _checked_size(self, size: int) -> int:
        size = super()._checked_size(size)
        if self._local(size) * self._num_replicas >= _WORD:
            raise ValueError(f"size {size} is too large: std::mt19937 shuffles fewer than 2^32 positions at a time")
        return size

    def _indices_at(self, start: int, stop: int) -> list[int]:
        begin = self._end - len(self)
        if self._slice is None:
            assert self._drawing is not None  # reset has run
            order = _shuffled(len(self) * self._num_replicas, seed=self._drawing[1])
            shard = np.frombuffer(order, dtype=np.int64)[begin : self._end]
            self._slice = shard % self._size
        indices: list[int] = self._slice[start - begin : stop - begin].tolist()
        return indices


def _shuffled(count: int, seed: int) -> array[int]:
    """Return 0..count - 1 as std::shuffle(first, last, std::mt19937(seed)) of libstdc++ leaves them."""
    order = array("q", range(count))
    for i, j in enumerate(_swap_positions(count, _mt19937(seed).__next__), start=1):
        # a swap; nobody has touched place i yet, so i is what stands there
        order[i] = order[j]
        order[j] = i
    return order


def _swap_positions(count: int, draw: Callable[[], int]) -> Iterator[int]:
    """Yield for i = 1..count - 1 the position in 0..i that is swapped with i."""

    def below(bound: int) -> int:
        # Lemire: multiply and keep the high word; a few low words would bias it, they are drawn again.
        product = draw() * bound
        if product % _WORD < bound:
            threshold = _WORD % bound
            while product % _WORD < threshold:
                product = draw() * bound
        return product // _WORD

    if count * count >= _WORD:
        for i in range(1, count):
            yield below(i + 1)
    elif count > 1:  # two positions from one number; an even count has an odd one, which goes first
        if count % 2 == 0:
            yield below(2)
        for i in range(2 - count % 2, count, 2):
            yield from divmod(below((i + 1) * (i + 2)), i + 2)


def _mt19937(seed: int) -> Iterator[int]:
    # RandomState, not Generator: its seeding is the one of std::mt19937.
    words = np.random.RandomState(seed % _WORD)
    while True:
        yield from words.randint(0, _WORD, size=4096, dtype=np.uint32).tolist()
