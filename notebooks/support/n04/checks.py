"""Exercises of notebook 04, contiguous shards; its predictions stand in guesses.py, the solutions in solved.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from support.kit.exercise import Exercise
from support.kit.exercise import use as use
from support.kit.judged import judged
from support.kit.mistakes import Mistake, edited, famous, with_methods
from support.n04 import cutting, walking
from support.n04.cursor import STATE, fault_of_cursor
from support.n04.guesses import guess_ahead as guess_ahead
from support.n04.guesses import guess_block as guess_block
from support.n04.guesses import guess_longer as guess_longer
from support.n04.guesses import guess_page_reads as guess_page_reads
from support.n04.guesses import guess_rounds as guess_rounds
from support.n04.network import fault_of_positions, network_cases, positions_of
from support.n04.resuming import (
    MISSING,
    ONCE,
    PAIR,
    TURNS,
    even_deal,
    fault_of_resume,
    one_piece,
    padded_deal,
)
from support.n04.runs import block_shares
from support.n04.solved import Cursor, inverse, my_batches, resume, walk

# ---- exercise 1: a cut of the order


def _in_batches(share: list[int], batch_size: int) -> list[list[int]]:
    return [share[begin : begin + batch_size] for begin in range(0, len(share), batch_size)]


def _by_pages(size: int, world_size: int, rank: int, batch_size: int) -> list[list[int]]:
    """Deal pages, as far as there are enough, and go through them in batches."""
    return _in_batches(block_shares(size, world_size, cutting.ROWS_OF_A_PAGE)[rank], batch_size)


def _by_stride(size: int, world_size: int, rank: int, batch_size: int) -> list[list[int]]:
    steps = -(-size // (world_size * batch_size))
    share = list(range(rank, size, world_size))
    return [*_in_batches(share, batch_size), []][:steps]


def _in_rank_order(size: int, world_size: int, rank: int, batch_size: int) -> list[list[int]]:
    """Give the first ranks of the last step full batches, and the others what is left, if anything."""
    starts = range(rank * batch_size, size + rank * batch_size, world_size * batch_size)
    return [list(range(start, min(start + batch_size, size))) for start in starts]


_COUNT = "count = min(together, size - begin)"
_APPEND = "mine.append(list(range(first, end)))"

check_batches = Exercise(
    "my_batches",
    reference=my_batches,
    judge=judged(
        cutting.fault_of_batches,
        "every position once, in equal steps, what is used is a prefix after each of them, and few pages are read",
    ),
    mistakes={
        cutting.PAGES: _by_stride,
        cutting.HOLE: _by_pages,
        cutting.EVEN: _in_rank_order,
        **famous(
            my_batches,
            {
                cutting.ONCE: (
                    "list(range(first, end))",
                    "[place % size for place in range(first, end)]",
                    _COUNT,
                    "count = together",
                ),
                cutting.STRANGERS: (_COUNT, "count = together"),
                cutting.NOBODYS: (
                    _COUNT,
                    "count = together\n        if begin + together > size:\n            break",
                ),
                cutting.STEPS: (_APPEND, f"if end > first:\n            {_APPEND}"),
                cutting.LARGER: ("together = world_size * batch_size", "together = size"),
                cutting.SHORT: (
                    "together = world_size * batch_size",
                    "together = world_size * max(1, batch_size // 2)",
                ),
                cutting.FORM: (_APPEND, "mine += range(first, end)"),
            },
        ),
    },
)
"""Exercise 1: the batches of a rank, judged by what a restart must know and by the pages that are read."""


# ---- exercise 2: a cursor that can be saved

_PADDED = "[place % self.size for place in range(length * self.num_replicas)]"
_SHUFFLED = "std_shuffle(padded, self.epoch)[self.begin : self.begin + length]"
_LENGTH = "-(-self.size // self.num_replicas)"
_AT_BEGIN = "self.begin = self.position = self.rank * length"
_BATCH = "        batch = self.shard[self.position - self.begin :][:batch_size]\n"
_STOOD = "        stood = self.position\n        self.reset()\n        self.position = stood\n"
_PUT_BACK = "self.epoch, self.position = epoch, position"


def _saves_all(self: Any) -> Any:
    return dict(vars(self))


def _loads_all(self: Any, state: Any) -> None:
    vars(self).update(state)


check_cursor = Exercise(
    "Cursor",
    reference=Cursor,
    methods=("reset", "next", "save", "load"),
    judge=judged(
        fault_of_cursor, "the samples are libtorch's, and loaded it goes on as if nobody had stopped"
    ),
    mistakes={
        **famous(
            Cursor,
            {
                "This deals by stride; of the recorded order each rank has a piece.": (
                    _SHUFFLED,
                    "std_shuffle(padded, self.epoch)[self.rank :: self.num_replicas]",
                ),
                "This shuffles one piece only; the recorded pieces belong to one order.": (
                    _SHUFFLED,
                    "std_shuffle(padded[self.begin : self.begin + length], self.epoch)",
                ),
                "This is not shuffled by std_shuffle.": (
                    _SHUFFLED,
                    "padded[self.begin : self.begin + length]",
                ),
                "These are pieces of the shuffled samples, padded afterwards; where does the recorded padding stand?": (
                    _SHUFFLED,
                    "[std_shuffle(range(self.size), self.epoch)[place % self.size] for place in "
                    "range(self.begin, self.begin + length)]",
                ),
                "The samples that are left over belong to a shard, too: all shards are equally long.": (
                    _LENGTH,
                    "self.size // self.num_replicas",
                ),
                "All ranks get equally many: a shard that is too short is filled up with samples.": (
                    _PADDED,
                    "list(range(self.size))",
                ),
                "There are only the samples 0 to size - 1.": (
                    _PADDED,
                    "list(range(length * self.num_replicas))",
                ),
                "At the end of the shard next gives None, not an empty list.": ("batch or None", "batch"),
                "The last call gives what the shard still has, also where that is less than a batch.": (
                    "return batch or None",
                    "return batch if len(batch) == batch_size else None",
                ),
                "At the end the position stays where the shard ends.": ("len(batch)", "batch_size"),
                "position counts from the start of the epoch, so that it begins where the shard begins.": (
                    _AT_BEGIN,
                    "self.position = 0\n        self.begin = self.rank * length",
                    "self.position - self.begin :",
                    "self.position :",
                ),
                "reset puts the cursor back to the start of the shard.": (
                    _AT_BEGIN,
                    "self.begin = self.rank * length\n"
                    '        self.position = getattr(self, "position", self.begin)',
                ),
                "A new epoch counts from the next reset on, not at once.": (_BATCH, _STOOD + _BATCH),
                "reset makes the order of the epoch that is set, not of the first.": (
                    "(padded, self.epoch)",
                    '(padded, self.__dict__.setdefault("first", self.epoch))',
                ),
                "reset shuffles by the epoch that was set, however often it was called.": (
                    "(padded, self.epoch)",
                    '(padded, self.__dict__.setdefault("count", iter(range(99))).__next__())',
                ),
                "next hands out a list, as it does in the recorded calls.": (
                    "batch or None",
                    "tuple(batch) or None",
                ),
                "The loaded cursor stands where a new one does: the position is lost.": (
                    _PUT_BACK,
                    "self.epoch = epoch",
                ),
                "The loaded cursor has the order of another epoch than the saved one had.": (
                    "        self.epoch, epoch, position = state\n        self.reset()\n",
                    "        _, epoch, position = state\n",
                ),
                "The epoch that was set and waits for its reset is lost.": (
                    _PUT_BACK,
                    "self.position = position",
                ),
                "The epoch had been set and no reset had come: until then the order is still the old one.": (
                    "return self.epoch_of_shard, self.epoch",
                    "return self.epoch, self.epoch",
                ),
                "After a load, too, position counts from the start of the epoch.": (
                    _PUT_BACK,
                    "self.epoch, self.position = epoch, position - self.begin",
                ),
                "The loaded cursor is right, and its own state names another epoch than that of its order.": (
                    "        self.reset()\n        self.epoch, ",
                    "        self.reset()\n        self.epoch_of_shard = 0\n        self.epoch, ",
                ),
                "After a load the epoch that is set is taken for that of the order.": (
                    _PUT_BACK,
                    f"{_PUT_BACK}\n        self.epoch_of_shard = epoch",
                ),
                "To save changes the saver: its second state is another one.": (
                    "return self.epoch_of_shard, self.epoch, self.position",
                    "state = self.epoch_of_shard, self.epoch, self.position\n"
                    "        self.epoch_of_shard = self.epoch\n        return state",
                ),
            },
        ),
        STATE: with_methods(Cursor, save=_saves_all, load=_loads_all),
    },
)
"""Exercise 2: libtorch's random sampler, and a state that survives a pending epoch."""


# ---- exercise 3: the resume rule

_DEALT = "list(range(consumed + rank, size, world_size))"
_EPOCHS_END = """\
            if consumed >= size:
                epoch, consumed = epoch + 1, 0
"""
_AFTER_THE_LAST_RUN = """\
    if consumed >= size:
        epoch, consumed = epoch + 1, 0
"""


def _dealt_by(deal: Callable[[list[int], int, int], list[int]]) -> Any:
    """Return `resume` with what is left dealt another way."""
    return edited(
        resume, (_DEALT, "deal(list(range(consumed, size)), world_size, rank)"), names={"deal": deal}
    )


_OTHER_POSITIONS = famous(
    resume,
    {
        "Each run had its own number of ranks: count with that, not with the new one.": (
            "ranks * batch_size",
            "world_size * batch_size",
        ),
        "The last step of an epoch is shorter; what it lacks is not taken from the next epoch.": (
            "epoch + 1, 0",
            "epoch + 1, consumed - size",
        ),
        "The last step of an epoch may be a short one, and it counts: before it the epoch is not over.": (
            "consumed >= size",
            "consumed + ranks * batch_size > size",
        ),
        "The rest is dealt over the ranks that there are now.": (
            "size, world_size))",
            "size, runs[-1][0] if runs else world_size))",
        ),
    },
)

check_resume = Exercise(
    "resume",
    reference=resume,
    judge=judged(
        fault_of_resume,
        "after every history the ranks get the rest of the epoch, once, and can be stopped again anywhere",
    ),
    mistakes={
        **famous(
            resume,
            {
                "This deals the whole epoch again: what the runs have used comes twice.": (
                    "consumed + rank",
                    "rank",
                ),
                "steps * batch_size is what one rank has used; all ranks of that run together have used more.": (
                    "ranks * batch_size",
                    "batch_size",
                ),
                "A step is a batch for each rank: count its samples, not the ranks.": (
                    "ranks * batch_size",
                    "ranks",
                ),
                "In a step every rank uses a batch: that is ranks times batch_size samples.": (
                    "ranks * batch_size",
                    "(ranks + batch_size)",
                ),
                "The last run is counted as if it began at position 0; those before it have used samples, too.": (
                    "in runs",
                    "in runs[-1:]",
                ),
                "The epoch has ended: the next one begins, with nothing consumed.": (_EPOCHS_END, ""),
                "An epoch that is used up exactly has ended.": ("consumed >= size", "consumed > size"),
                "The epoch counts on from run to run; it is not that of the last run.": (
                    "for ranks, batch_size, steps in runs:\n",
                    "for ranks, batch_size, steps in runs:\n        epoch = 0\n",
                ),
            },
        ),
        TURNS: _dealt_by(one_piece),
        ONCE: _dealt_by(padded_deal),
        MISSING: _dealt_by(even_deal),
        **{why: Mistake(answer, contains=(MISSING, ONCE)) for why, answer in _OTHER_POSITIONS.items()},
        **famous(
            resume,
            {
                "An epoch can end in the middle of a run, which goes on in the next: look for it after every "
                "step.": (_EPOCHS_END, _AFTER_THE_LAST_RUN),
                PAIR: ("return epoch, ", "return "),
            },
        ),
    },
)
"""Exercise 3: the epoch and the positions that a rank still gets, after any history of runs."""


# ---- exercise 4: the inverse of Permutation's network

_BACKWARDS = "reversed(list(enumerate(keys)))"
_WALK = """\
        if number < n:
            return number"""

check_inverse = Exercise(
    "inverse",
    fault=fault_of_positions,
    reference=inverse,
    view=positions_of,
    cases=network_cases,
    praise="right in all {count} cases",
    mistakes={
        **famous(
            inverse,
            {
                "These are the rounds as they were: what the last round did must be undone first.": (
                    _BACKWARDS,
                    "enumerate(keys)",
                ),
                "The right order of keys, but a round must change the half that it changed on the way there.": (
                    _BACKWARDS,
                    "enumerate(reversed(keys))",
                ),
            },
        ),
        "This is the number itself: nothing has been undone.": lambda number, n, keys: number,
        **famous(
            inverse,
            {
                "For an odd number of bits the low half is the longer one: halves(n) gives low first, then high.": (
                    "low_bits, high_bits = halves(n)",
                    "high_bits, low_bits = halves(n)",
                ),
                "F of a half is to have as many bits as the other half, which it changes.": (
                    "key, high_bits)",
                    "key, low_bits )",
                    "key, low_bits)",
                    "key, high_bits)",
                ),
                "A remainder is no walk: two numbers would share a position.": (
                    _WALK,
                    "        return number % n",
                ),
                "With an odd number of rounds, too, a round must change the half that it changed on the way there: "
                "k is its number on that way.": (
                    _BACKWARDS,
                    "enumerate(reversed(keys))",
                    "k % 2 == 0",
                    "k % 2 == 1",
                ),
                "There are as many rounds as keys, and not always 8.": (
                    _BACKWARDS,
                    "[(k, keys[k % len(keys)]) for k in range(7, -1, -1)]",
                ),
                "One pass can end outside range(n): go on, as the way there did.": (
                    _WALK,
                    "        return number",
                ),
                "n itself is outside range(n).": ("number < n", "number <= n"),
            },
        ),
    },
)
"""Exercise 4: the position of a number, by the rounds of Permutation's network in reverse."""


# ---- exercise 5: walks that cost less

_OUTSIDE = "        outside = outside[images[outside] >= n]\n"


def _one_block_after_the_other(ids: Any, n: int, network: Any, block: int) -> Any:
    """Walk a block to its end before the next one begins."""
    whole: walking.Walk = walk
    images = ids.copy()
    for begin in range(0, len(ids), block):
        images[begin : begin + block] = whole(ids[begin : begin + block], n, network, block)
    return images


check_walk = Exercise(
    "walk",
    reference=walk,
    judge=judged(
        walking.fault_of_walk,
        "every id in its place, no call above the block, and few calls",
    ),
    mistakes={
        walking.CALLS: _one_block_after_the_other,
        **famous(
            walk,
            {
                walking.LARGE: (
                    "len(outside), block)",
                    "len(outside), len(outside))",
                    "begin + block",
                    "begin + len(ids)",
                ),
                walking.INSIDE: (_OUTSIDE, "        outside = outside[:0]\n"),
                walking.ORDER: ("return images", "return np.sort(images)"),
                walking.OWN: ("ids.copy()", "ids"),
            },
        ),
    },
)
"""Exercise 5: cycle walks of many ids in full calls."""
