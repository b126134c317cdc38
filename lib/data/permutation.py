"""A random order of range(n), beyond n = 1024 computed and never stored: a Feistel network with cycle walking.

An index of b bits is cut in two halves. A round scrambles one half by a keyed hash of the other:

    high ^= F(low, key 0)     low ^= F(high, key 1)     high ^= F(low, key 2)     …

Whatever F is, a round is undone by repeating it, so all of them together are a bijection of 0..2^b - 1. Where
n is no power of two, an image >= n is sent through the network again until it falls below n (at most two passes
on average): that skips the foreign part of each cycle, and what remains is a bijection of range(n).

Sources: Luby and Rackoff 1988 (the rounds); Black and Rogaway 2002 (cycle walking).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from lib.arguments import integer, integers

Ids: TypeAlias = npt.NDArray[np.int64]
IntArray: TypeAlias = npt.NDArray[np.integer[Any]]

_WORD = 2**32
_MIX = 0x9E3779B1  # odd, bits evenly spread: the golden ratio times 2^32
_TABLE = 1024  # up to here the order is an exact draw, held as a table: halves of under 5 bits mix badly
_BLOCK = 32_768  # ids per pass: its few work arrays of 128 and 256 KB stay in the level 2 cache


@dataclass(frozen=True)
class Permutation:
    """Map each position of range(n) to another, one to one, as (seed, epoch) decide, in O(1) memory.

    `p[i]` is the id at position i, an int. `p[positions]` takes an integer array (numpy, a CPU tensor, a list) or
    a slice and returns an int64 array of its shape. `p.inverse(…)` goes back. A position outside 0..n - 1 raises
    IndexError, a negative one too: only slices count from the end. Iterating yields all ids as ints, by blocks.

    n: 1..2^48. seed, epoch: any int >= 0, and two separate keys: seed 0 epoch 5 is not seed 5 epoch 0.
    rounds: 1..64; 4 leave a pattern at distance 2^(bits / 2), 8 leave none that our tests find. Up to n = 1024 the
    order is an exact draw from a table, and rounds are not used. These four decide the order, on every machine.
    Raises ValueError or TypeError for any other value.

    Example:
        order = Permutation(400_000_000, seed=0, epoch=7)  # nothing is stored
        row = order[123]
        order.inverse(row)  # 123
    """

    n: int
    seed: int = 0
    epoch: int = 0
    rounds: int = 8

    def __post_init__(self) -> None:
        set_field = object.__setattr__  # frozen: nobody else may
        set_field(self, "n", integer("n", self.n, at_least=1, below=2**48 + 1))
        set_field(self, "seed", integer("seed", self.seed, at_least=0))
        set_field(self, "epoch", integer("epoch", self.epoch, at_least=0))
        set_field(self, "rounds", integer("rounds", self.rounds, at_least=1, below=65))

    def __len__(self) -> int:
        return self.n

    def __iter__(self) -> Iterator[int]:
        for start in range(0, self.n, _BLOCK):
            yield from self[start : start + _BLOCK].tolist()

    @overload
    def __getitem__(self, positions: int) -> int: ...
    @overload
    def __getitem__(self, positions: slice | Sequence[int] | IntArray) -> Ids: ...
    def __getitem__(self, positions: Any) -> int | Ids:
        """Return the id at a position, or the ids at an array of positions. Raises IndexError outside 0..n - 1."""
        if isinstance(positions, slice):
            positions = np.arange(*positions.indices(self.n))
        return self._map(positions, inverse=False)

    @overload
    def inverse(self, ids: int) -> int: ...
    @overload
    def inverse(self, ids: Sequence[int] | IntArray) -> Ids: ...
    def inverse(self, ids: Any) -> int | Ids:
        """Return the position of an id, or the positions of an array of ids: p.inverse(p[i]) == i."""
        return self._map(ids, inverse=True)

    def _map(self, index: Any, *, inverse: bool) -> int | Ids:
        if isinstance(index, int) or np.ndim(index) == 0:
            number = integer("a position", index)
            self._check_range(number, number)
            return self._walk_one(number, inverse)
        array = integers("positions", index)
        if array.size == 0:
            return np.empty(array.shape, np.int64)
        self._check_range(int(array.min()), int(array.max()))
        flat = array.reshape(-1)
        out = np.empty(flat.size, np.int64)
        for start in range(0, flat.size, _BLOCK):
            out[start : start + _BLOCK] = self._walk(flat[start : start + _BLOCK].astype(np.int64), inverse)
        return out.reshape(array.shape)

    def _check_range(self, low: int, high: int) -> None:
        if low < 0 or high >= self.n:
            wrong = low if low < 0 else high
            raise IndexError(f"index {wrong} is out of range for n {self.n}; they are 0..{self.n - 1}")

    # ---- cycle walking: arrays, and the same for one int

    def _walk(self, ids: Ids, inverse: bool) -> Ids:
        if self.n <= _TABLE:
            return self._tables[inverse][ids]
        ids = self._network(ids, inverse)
        outside = np.flatnonzero(ids >= self.n)
        while outside.size:
            again = self._network(ids[outside], inverse)
            ids[outside] = again
            outside = outside[again >= self.n]
        return ids

    def _walk_one(self, number: int, inverse: bool) -> int:
        if self.n <= _TABLE:
            return int(self._tables[inverse][number])
        number = self._network_one(number, inverse)
        while number >= self.n:
            number = self._network_one(number, inverse)
        return number

    # ---- the network: F is the top bits of ((half * odd + key) folded by its own high half) * constant

    def _network(self, ids: Ids, inverse: bool) -> Ids:
        low_bits, high_bits = self._bits
        low = (ids & (2**low_bits - 1)).astype(np.uint32)
        high = (ids >> low_bits).astype(np.uint32)
        word = np.empty_like(low)
        folded = np.empty_like(low)
        for factor, key, into_high in self._schedule[inverse]:
            source, target, bits = (low, high, high_bits) if into_high else (high, low, low_bits)
            np.multiply(source, np.uint32(factor), out=word)
            np.add(word, np.uint32(key), out=word)
            np.right_shift(word, np.uint32(16), out=folded)
            np.bitwise_xor(word, folded, out=word)
            np.multiply(word, np.uint32(_MIX), out=word)
            np.right_shift(word, np.uint32(32 - bits), out=word)
            np.bitwise_xor(target, word, out=target)
        ids = high.astype(np.int64)
        ids <<= low_bits
        ids |= low
        return ids

    def _network_one(self, number: int, inverse: bool) -> int:
        low_bits, high_bits = self._bits
        low = number & (1 << low_bits) - 1
        high = number >> low_bits
        for factor, key, into_high in self._schedule[inverse]:
            source = low if into_high else high
            word = (source * factor + key) % _WORD
            word = (word ^ word >> 16) * _MIX % _WORD
            if into_high:
                high ^= word >> 32 - high_bits
            else:
                low ^= word >> 32 - low_bits
        return high << low_bits | low

    # ---- everything that (n, seed, epoch) decides

    @cached_property
    def _bits(self) -> tuple[int, int]:
        bits = (self.n - 1).bit_length()  # an odd number is cut unevenly, which the rounds don't mind
        return bits - bits // 2, bits // 2

    @cached_property
    def _schedule(self) -> tuple[list[tuple[int, int, bool]], list[tuple[int, int, bool]]]:
        """(factor, key, into_high) of each round; and in reverse, which is the inverse."""
        words = np.frombuffer(self._random_bytes(8 * self.rounds), "<u4").tolist()
        rounds = [(words[2 * k] | 1, words[2 * k + 1], k % 2 == 0) for k in range(self.rounds)]
        return rounds, rounds[::-1]

    @cached_property
    def _tables(self) -> tuple[Ids, Ids]:
        """The order of n random 64-bit numbers, each n! order equally likely; and its inverse."""
        order = np.argsort(np.frombuffer(self._random_bytes(8 * self.n), "<u8"), kind="stable")
        return order, np.argsort(order)

    def _random_bytes(self, count: int) -> bytes:
        # Hashing text keeps n, seed and epoch apart, however large. Hex: Python limits decimal digits.
        text = f"Permutation n={self.n:x} seed={self.seed:x} epoch={self.epoch:x}"
        return hashlib.shake_128(text.encode()).digest(count)
