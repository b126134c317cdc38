"""Predictions and exercises of notebook 04, contiguous shards."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any, TypeAlias

import numpy as np

from lib.data.libtorch import DistributedRandomSampler, DistributedSequentialSampler
from lib.data.permutation import Permutation
from lib.data.samplers import DistributedSampler
from support.checks import Exercise, Guess, Tried, cases
from support.checks import use as use
from support.n04.runs import CHANCE, lag_surprise

DIGITS, ROW, PAGE = 1797, 64, 4096  # the file of section 1


# ---- predictions


def _page_reads() -> int:
    shares = [DistributedSampler(range(DIGITS), 8, rank, shuffle=False) for rank in range(8)]
    return sum(len({index * ROW // PAGE for index in share}) for share in shares)


def _fewest_rounds(size: int = 4096) -> int:
    """Return the fewest rounds of a Permutation that pass the lag test at every power of two."""
    lags = [2**k for k in range((size - 1).bit_length())]
    for rounds in range(1, 9):
        image = Permutation(size, 3, rounds=rounds)[np.arange(size)]
        if max(lag_surprise(image, lag) for lag in lags) < CHANCE:
            return rounds
    raise AssertionError


guess_page_reads = Guess("the page reads of 8 ranks", _page_reads, tried=Tried(right=229, wrong=29))
"""Section 1: pages that 8 ranks read by stride."""
guess_last_shard = Guess(
    "the last rank's shard",
    lambda: list(DistributedSequentialSampler(10, 3, 2)),
    read=lambda mine: list(mine) if isinstance(mine, (tuple, range)) else mine,
    tried=Tried(right=(8, 9, 0, 1), wrong=range(4)),
)
"""Section 2: the samples of the last of 3 ranks over 10 samples."""
guess_rest = Guess(
    "what each of the 3 ranks still gets",
    lambda: (36 - 3 * 4 * 2) // 3,
    unit="samples",
    tried=Tried(right=4, wrong=12),
)
"""Section 3: samples for each of 3 ranks after 3 steps of 4 ranks and 2 samples."""
guess_rounds = Guess(
    "the first number of rounds without a pattern",
    _fewest_rounds,
    unit="rounds",
    tried=Tried(right=5, wrong=1),
)
"""Section 4: the fewest rounds that leave no pattern at any lag."""


# ---- exercise 1: libtorch's cursor


def std_shuffle(order: Sequence[int], epoch: int) -> list[int]:
    """Return order as std::shuffle with std::mt19937(epoch) of libstdc++ leaves it."""
    whole = DistributedRandomSampler(len(order))
    whole.set_epoch(epoch)
    return [order[place] for place in whole]


class Cursor:
    """libtorch's two distributed samplers in one, faults included: shuffle chooses its Random, else Sequential."""

    def __init__(
        self, size: int, num_replicas: int, rank: int, shuffle: bool = False, allow_duplicates: bool = True
    ) -> None:
        self.size, self.num_replicas, self.rank = size, num_replicas, rank
        self.shuffle, self.allow_duplicates = shuffle, allow_duplicates
        self.epoch = 0
        self.reset()

    def reset(self, new_size: int | None = None) -> None:
        """Go back to the shard's start, in the order of the epoch set last; new_size cuts the shards anew."""
        self.size = self.size if new_size is None else new_size
        local = self.local()
        self.begin = self.position = self.rank * local
        self.end = self.begin + local
        self.indices = self.dealt()[self.begin : self.end]

    def local(self) -> int:
        """Return how many positions each rank owns."""
        return (self.size + (self.num_replicas - 1) * self.allow_duplicates) // self.num_replicas

    def dealt(self) -> list[int]:
        """Return the samples of all positions."""
        total = self.local() * self.num_replicas
        if self.shuffle:
            return std_shuffle([p if p < self.size else p - self.size for p in range(total)], self.epoch)
        return [p % self.size for p in range(total)]

    def next(self, batch_size: int) -> list[int] | None:
        """Return the next indices, `batch_size` of them or what is left; None at the end."""
        if self.position == self.end:
            return None
        start = self.position - self.begin
        self.position = min(self.position + batch_size, self.end)
        return self.indices[start : self.position - self.begin]


def _ask(cursor: type[Cursor]) -> Callable[..., list[Any]]:
    """Make the function of a case: what each call of `calls` gives, e.g. "next(3) epoch=1 reset() position"."""

    def answers(
        size: int, num_replicas: int, rank: int, shuffle: bool, allow_duplicates: bool, calls: str
    ) -> list[Any]:
        mine = cursor(size, num_replicas, rank, shuffle, allow_duplicates)
        got: list[Any] = []
        for call in calls.split():
            number = int("".join(filter(str.isdigit, call)) or 0)
            if call.startswith("next"):
                got.append(mine.next(number))
            elif call.startswith("epoch"):
                mine.epoch = number
            elif call.startswith("reset"):
                mine.reset() if call == "reset()" else mine.reset(number)
            else:
                got.append(mine.position)
        return got

    return answers


def _cursor_cases() -> Iterator[dict[str, Any]]:
    names = "size num_replicas rank shuffle allow_duplicates calls"
    whole, new_epoch = "position next(3) next(3) position next(3)", "next(2) epoch=1 next(1) reset() next(9)"
    easy = [
        *((12, 3, rank, False, True, whole) for rank in range(3)),
        *((10, 3, rank, False, True, whole) for rank in range(3)),
        *((10, 3, rank, False, False, whole) for rank in (1, 2)),
        *((10, 3, rank, True, True, whole) for rank in range(3)),
        *((10, 3, rank, True, False, whole) for rank in range(3)),
        (10, 3, 0, True, True, new_epoch),
        *((10, 3, 2, shuffle, True, "next(2) reset(20) next(9) position") for shuffle in (False, True)),
        (10, 3, 1, False, True, "reset(20) next(2) reset() position next(9)"),
        (10, 3, 1, False, True, "reset(0) next(3) position"),
        *((2, 5, r, False, True, "next(4)") for r in range(5)),  # more padding than samples: the remainder
    ]
    # libtorch's own fault comes last: more padding than samples
    grid = product((1, 7, 8), (1, 2, 4), (False, True), (True, False), (whole, new_epoch))
    many = [(n, w, r, *case) for n, w, *case in grid if w <= max(n, 1) for r in range(w)]
    return iter(cases(names, [*easy, *many, *((2, 5, r, True, True, "next(4)") for r in range(5))]))


def _but(**methods: Any) -> type[Cursor]:
    return type("Cursor", (Cursor,), methods)


def _own_slice_only(self: Cursor, new_size: int | None = None) -> None:
    Cursor.reset(self, new_size)
    own = [p % self.size for p in range(self.begin, self.end)]
    self.indices = std_shuffle(own, self.epoch) if self.shuffle else own


def _lazily(self: Cursor, batch_size: int) -> list[int] | None:
    self.indices = self.dealt()[self.begin : self.end]
    return Cursor.next(self, batch_size)


def _padded_later(self: Cursor, new_size: int | None = None) -> None:
    Cursor.reset(self, new_size)
    order = std_shuffle(range(self.size), self.epoch) if self.shuffle else list(range(self.size))
    self.indices = [order[p % self.size] for p in range(self.begin, self.end)]


def _seeded_by_rank(self: Cursor, new_size: int | None = None) -> None:
    Cursor.reset(self, new_size)
    if self.shuffle:
        positions = range(self.local() * self.num_replicas)
        order = [p if p < self.size else p - self.size for p in positions]
        self.indices = std_shuffle(order, self.epoch + self.rank)[self.begin : self.end]


def _keeping_the_cursor(self: Cursor, new_size: int | None = None) -> None:
    stood = getattr(self, "position", None)
    Cursor.reset(self, new_size)
    self.position = self.position if stood is None else min(stood, self.end)


def _first_size_again(self: Cursor, new_size: int | None = None) -> None:
    self.first = getattr(self, "first", self.size)  # type: ignore[attr-defined]
    Cursor.reset(self, self.first if new_size is None else new_size)  # type: ignore[attr-defined]


def _whole_batches(self: Cursor, batch_size: int) -> list[int] | None:
    return None if self.position + batch_size > self.end else Cursor.next(self, batch_size)


class _FromZero(Cursor):
    """A cursor that counts from the start of its shard."""

    def reset(self, new_size: int | None = None) -> None:
        Cursor.reset(self, new_size)
        self.begin, self.position, self.end = 0, 0, self.end - self.begin

    def next(self, batch_size: int) -> list[int] | None:
        if self.position == self.end:
            return None
        start, self.position = self.position, min(self.position + batch_size, self.end)
        return self.indices[start : self.position]


def _past_the_end(self: Cursor, batch_size: int) -> list[int] | None:
    if self.position >= self.end:
        return None
    start, self.position = self.position, self.position + batch_size
    return self.dealt()[start : self.position]


check_cursor = Exercise(
    "Cursor",
    reference=Cursor,
    view=_ask,
    methods=("reset", "next"),
    cases=_cursor_cases,
    praise="the same as libtorch, call by call, in all {count} cases",
    mistakes={
        "Each rank shuffles its own shard only: libtorch shuffles the whole list and then cuts it.": _but(
            reset=_own_slice_only
        ),
        "Without allow_duplicates a shard has floor(size / num_replicas) positions.": _but(
            local=lambda self: -(-self.size // self.num_replicas)
        ),
        "Past the end of the data a position wraps: it is no index yet.": _but(
            dealt=lambda self: (
                std_shuffle(range(self.local() * self.num_replicas), self.epoch)
                if self.shuffle
                else list(range(self.local() * self.num_replicas))
            )
        ),
        "At the end of the shard next gives None, not an empty list.": _but(
            next=lambda self, batch_size: Cursor.next(self, batch_size) or []
        ),
        "The last call must stop at the end of this rank's shard.": _but(next=_past_the_end),
        "A new epoch counts from the next reset() on, not at once.": _but(next=_lazily),
        "reset(new_size) must cut the shards of the new size.": _but(
            reset=lambda self, new_size=None: Cursor.reset(self)
        ),
        "reset() without a number keeps the size that the last reset(new_size) has set.": _but(
            reset=_first_size_again
        ),
        "0 is a number, too: reset(0) cuts the shards of an empty dataset.": _but(
            reset=lambda self, new_size=None: Cursor.reset(self, new_size or None)
        ),
        "reset puts the cursor back to the start of the shard.": _but(reset=_keeping_the_cursor),
        "position counts from the start of the epoch, so that it begins at begin, not at 0.": _FromZero,
        "The last call gives what the shard still has, also where that is less than a batch.": _but(
            next=_whole_batches
        ),
        "libtorch pads first and shuffles then: you shuffle the N samples and pad afterwards.": _but(
            reset=_padded_later
        ),
        "The seed is the epoch alone: with a seed of its own each rank cuts another order.": _but(
            reset=_seeded_by_rank
        ),
        "Sequential takes the remainder, p % size; only Random subtracts.": _but(
            dealt=lambda self: (
                Cursor.dealt(self)
                if self.shuffle
                else [p if p < self.size else p - self.size for p in range(self.local() * self.num_replicas)]
            )
        ),
        "You repaired a fault: libtorch's Random pads with position - size, though that index may not exist.": (
            _but(
                dealt=lambda self: (
                    std_shuffle([p % self.size for p in range(self.local() * self.num_replicas)], self.epoch)
                    if self.shuffle
                    else Cursor.dealt(self)
                )
            )
        ),
    },
)
"""Exercise 1: reset and next of libtorch's two samplers, call by call."""


# ---- exercise 2: the resume rule

Run: TypeAlias = tuple[int, int, int]  # ranks, batch size, steps


def _counted(size: int, runs: Sequence[Run]) -> tuple[int, int]:
    epoch = consumed = 0
    for ranks, batch_size, steps in runs:
        for _ in range(steps):
            consumed += ranks * batch_size
            if consumed >= size:
                epoch, consumed = epoch + 1, 0
    return epoch, consumed


def _resume(size: int, runs: Sequence[Run], world_size: int, rank: int) -> tuple[int, list[int]]:
    epoch, consumed = _counted(size, runs)
    return epoch, list(range(consumed + rank, size, world_size))


def _rest(size: int, runs: Sequence[Run], own: Callable[[list[int]], list[int]]) -> tuple[int, list[int]]:
    epoch, consumed = _counted(size, runs)
    return epoch, own(list(range(consumed, size)))


def _total(runs: Sequence[Run]) -> int:
    return sum(ranks * batch_size * steps for ranks, batch_size, steps in runs)


def _resume_cases() -> list[dict[str, Any]]:
    histories: list[tuple[int, list[Run]]] = [
        (36, [(4, 2, 3)]),
        (36, []),
        (25, [(4, 2, 2)]),
        (36, [(4, 2, 3), (3, 1, 2)]),  # the second restart
        (24, [(4, 2, 3)]),  # at an epoch's end
        (24, [(4, 2, 4)]),
        (25, [(4, 2, 5)]),  # the last step of the epoch is shorter
        (25, [(4, 2, 3), (3, 2, 1), (2, 1, 2)]),
        (10, [(2, 1, 3), (3, 1, 7)]),
    ]
    asked = [(size, runs, world, r) for size, runs in histories for world in (3, 4, 2) for r in range(world)]
    return cases("size runs world_size rank", asked)


check_resume = Exercise(
    "resume",
    reference=_resume,
    cases=_resume_cases,
    mistakes={
        "This deals the whole epoch again: what the runs have used comes twice.": (
            lambda size, runs, world_size, rank: (0, list(range(rank, size, world_size)))
        ),
        "steps * batch_size is what one rank has used; all ranks of that run together have used more.": (
            lambda size, runs, world_size, rank: _resume(
                size, [(1, b, s) for _, b, s in runs], world_size, rank
            )
        ),
        "Each run had its own number of ranks: count with that, not with the new one.": (
            lambda size, runs, world_size, rank: _resume(
                size, [(world_size, b, s) for _, b, s in runs], world_size, rank
            )
        ),
        "You count the last run only: the runs before it have used samples of this epoch, too.": (
            lambda size, runs, world_size, rank: _resume(size, runs[-1:], world_size, rank)
        ),
        "The epoch has ended: the next one begins, with nothing consumed.": (
            lambda size, runs, world_size, rank: (0, list(range(_total(runs) + rank, size, world_size)))
        ),
        "The last step of an epoch is shorter; what it lacks is not taken from the next epoch.": (
            lambda size, runs, world_size, rank: (
                _total(runs) // size,
                list(range(_total(runs) % size + rank, size, world_size)),
            )
        ),
        "The rest is dealt by stride, as the positions before it were: every world_size-th, not a piece.": (
            lambda size, runs, world_size, rank: _rest(
                size,
                runs,
                lambda rest: rest[-(-len(rest) // world_size) * rank :][: -(-len(rest) // world_size)],
            )
        ),
        "Nothing is repeated to make the ranks equal here: a rank may get one sample less.": (
            lambda size, runs, world_size, rank: _rest(
                size,
                runs,
                lambda rest: (rest + rest[: -len(rest) % world_size])[rank::world_size],
            )
        ),
        "The stride begins at the first position that is left, not at a multiple of world_size.": (
            lambda size, runs, world_size, rank: _rest(
                size, runs, lambda rest: [p for p in rest if p % world_size == rank]
            )
        ),
        "Nothing is dropped to make the ranks equal here: every position that is left is somebody's.": (
            lambda size, runs, world_size, rank: _rest(
                size,
                runs,
                lambda rest: rest[: len(rest) // world_size * world_size][rank::world_size],
            )
        ),
        "An epoch can end within an earlier run: look for it after every step, not after the last run only.": (
            lambda size, runs, world_size, rank: (
                (0, list(range(_total(runs) + rank, size, world_size)))
                if _total(runs) < size
                else (1, list(range(rank, size, world_size)))
            )
        ),
        "Return two things, the epoch and the list of positions.": (lambda **case: _resume(**case)[1]),
        "The rest is dealt over the ranks that there are now.": (
            lambda size, runs, world_size, rank: (
                _counted(size, runs)[0],
                list(range(_counted(size, runs)[1] + rank, size, runs[-1][0] if runs else world_size)),
            )
        ),
    },
)
"""Exercise 2: the epoch and the positions that a rank still gets, after any history of runs."""


# ---- exercise 3: the inverse of Permutation's network

Key: TypeAlias = tuple[int, int]
Inverse: TypeAlias = Callable[[int, int, Sequence[Key]], int]


class Keys(list[Key]):
    """The keys of a network's rounds, which end a walk that would never end: they count how often they are read."""

    reads = 0

    def _read(self) -> None:
        self.reads += 1
        if self.reads > 3000:
            raise RecursionError(
                "more passes than any walk back needs: send the last result through the rounds again, not the "
                "first id, and walk back from the id instead of trying the positions one by one"
            )

    def __iter__(self) -> Iterator[Key]:
        self._read()
        return super().__iter__()

    def __reversed__(self) -> Iterator[Key]:
        self._read()
        return super().__reversed__()

    def __getitem__(self, place: Any) -> Any:
        self._read()
        return super().__getitem__(place)

    def __len__(self) -> int:
        self._read()
        return super().__len__()


def round_keys(n: int, seed: int, rounds: int = 8) -> list[Key]:
    """Return (factor, key) of each round of Permutation(n, seed)."""
    text = f"Permutation n={n:x} seed={seed:x} epoch=0"
    words = np.frombuffer(hashlib.shake_128(text.encode()).digest(8 * rounds), "<u4").tolist()
    return [(words[2 * k] | 1, words[2 * k + 1]) for k in range(rounds)]


def _scramble(half: int, factor: int, key: int, bits: int) -> int:
    word = (half * factor + key) % 2**32
    return ((word ^ word >> 16) * 0x9E3779B1 % 2**32) >> 32 - bits


def passed(number: int, n: int, keys: Sequence[Key], *, order: int = 1, swapped: bool = False) -> int:
    """Send a number through the rounds once, forwards or (order -1) backwards."""
    bits = (n - 1).bit_length()
    low_bits, high_bits = (bits - bits // 2, bits // 2)[:: -1 if swapped else 1]
    high, low = divmod(number, 1 << low_bits)
    for k, (factor, key) in list(enumerate(keys))[::order]:
        if k % 2 == 0:
            high ^= _scramble(low, factor, key, high_bits)
        else:
            low ^= _scramble(high, factor, key, low_bits)
    return high << low_bits | low


def walked(number: int, n: int, keys: Sequence[Key], **how: Any) -> int:
    """Send a number through the rounds until it lands inside range(n)."""
    number = passed(number, n, keys, **how)
    while number >= n:
        number = passed(number, n, keys, **how)
    return number


def _inverse(number: int, n: int, keys: Sequence[Key]) -> int:
    return walked(number, n, keys, order=-1)


def _positions(inverse: Inverse) -> Callable[[int, int], list[int] | None]:
    def of_ids(n: int, seed: int) -> list[int] | None:
        places = [inverse(number, n, Keys(round_keys(n, seed))) for number in range(min(n, 64))]
        return None if None in places else places

    return of_ids


check_inverse = Exercise(
    "the positions of the ids 0, 1, 2, …",
    name="inverse",
    reference=_inverse,
    view=_positions,
    cases=cases("n seed", [(4096, 0), (2048, 0), (5000, 0), (1500, 3), (1025, 1), (3000, 2), (70_000, 5)]),
    praise="the same as Permutation.inverse in all {count} cases",
    mistakes={
        "These are the rounds as they were: what the last round did must be undone first.": walked,
        "The right order of keys, but a round must change the half that it changed on the way there.": (
            lambda number, n, keys: walked(number, n, list(keys)[::-1])
        ),
        "This is the id itself: nothing has been undone.": lambda number, n, keys: number,
        "For an odd number of bits the low half is the longer one: halves(n) gives low first, then high.": (
            lambda number, n, keys: walked(number, n, keys, order=-1, swapped=True)
        ),
        "A remainder is no walk: two ids would share a position.": (
            lambda number, n, keys: passed(number, n, keys, order=-1) % n
        ),
        "One pass can end outside range(n): go on, as the way there did.": (
            lambda number, n, keys: passed(number, n, keys, order=-1)
        ),
    },
)
"""Exercise 3: the position of an id, by the rounds of Permutation's network in reverse."""
