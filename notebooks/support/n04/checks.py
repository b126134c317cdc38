"""Exercises of notebook 04, contiguous shards; its predictions stand in guesses.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from support.kit.exercise import Exercise
from support.kit.exercise import use as use
from support.kit.mistakes import edited, famous
from support.n04.cursor import ask_cursor, cursor_cases
from support.n04.guesses import guess_last_shard as guess_last_shard
from support.n04.guesses import guess_page_reads as guess_page_reads
from support.n04.guesses import guess_rest as guess_rest
from support.n04.guesses import guess_rounds as guess_rounds
from support.n04.network import network_cases, positions_of
from support.n04.resuming import by_remainder, even_deal, one_piece, padded_deal, resume_cases
from support.n04.solved import Cursor, inverse, resume

# ---- exercise 1: libtorch's cursor

_SIZE = "self.size if new_size is None else new_size"
_TO_BEGIN = "self.begin = self.position = self.rank * length"
_OWN = "indices[self.begin : self.end]"
_SUBTRACTED = "p if p < self.size else p - self.size"
_REMAINDER = "p % self.size"
_NEXT = "    def next(self, batch_size):\n"

check_cursor = Exercise(
    "Cursor",
    reference=Cursor,
    view=ask_cursor,
    methods=("reset", "next"),
    cases=cursor_cases,
    praise="the same as libtorch, call by call, in all {count} cases",
    mistakes=famous(
        Cursor,
        {
            "Each rank shuffles its own shard only: libtorch shuffles the whole list and then cuts it.": (
                "for p in positions",
                "for p in range(self.begin, self.end)",
                _OWN,
                "indices",
            ),
            "Without allow_duplicates a shard has floor(size / num_replicas) positions.": (
                " * self.allow_duplicates",
                "",
            ),
            "Past the end of the data a position wraps: it is no index yet.": (
                _SUBTRACTED,
                "p",
                _REMAINDER,
                "p",
            ),
            "At the end of the shard next gives None, not an empty list.": ("return None", "return []"),
            "The last call must stop at the end of this rank's shard.": (
                _OWN,
                "indices",
                "self.position == self.end",
                "self.position >= self.end",
                "min(self.position + batch_size, self.end)",
                "self.position + batch_size",
                "start - self.begin : self.position - self.begin",
                "start : self.position",
            ),
            "A new epoch counts from the next reset() on, not at once.": (
                _NEXT,
                f"{_NEXT}        stood = self.position\n        self.reset()\n        self.position = stood\n",
            ),
            "reset(new_size) must cut the shards of the new size.": (_SIZE, "self.size"),
            "reset() without a number keeps the size that the last reset(new_size) has set.": (
                f"self.size = {_SIZE}",
                "self.first = getattr(self, 'first', self.size)\n"
                "        self.size = self.first if new_size is None else new_size",
            ),
            "0 is a number, too: reset(0) cuts the shards of an empty dataset.": (
                _SIZE,
                "new_size or self.size",
            ),
            "reset puts the cursor back to the start of the shard.": (
                _TO_BEGIN,
                "self.begin = self.rank * length\n"
                "        self.position = getattr(self, 'position', self.begin)",
            ),
            "position counts from the start of the epoch, so that it begins at begin, not at 0.": (
                _TO_BEGIN,
                "self.begin = self.position = 0",
                _OWN,
                "indices[self.rank * length :][:length]",
            ),
            "The last call gives what the shard still has, also where that is less than a batch.": (
                "self.position == self.end",
                "self.position + batch_size > self.end",
            ),
            "libtorch pads first and shuffles the whole list then: you shuffle the N samples alone.": (
                f"[{_SUBTRACTED} for p in positions]",
                "range(self.size)",
                _OWN,
                "[indices[p % self.size] for p in range(self.begin, self.end)]",
            ),
            "The seed is the epoch alone: with a seed of its own each rank cuts another order.": (
                "self.epoch)",
                "self.epoch + self.rank)",
            ),
            "Sequential takes the remainder, p % size; only Random subtracts.": (_REMAINDER, _SUBTRACTED),
            "You repaired a fault: libtorch's Random pads with position - size, though that index may not "
            "exist.": (_SUBTRACTED, _REMAINDER),
        },
    ),
)
"""Exercise 1: reset and next of libtorch's two samplers, call by call."""


# ---- exercise 2: the resume rule

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


check_resume = Exercise(
    "resume",
    reference=resume,
    cases=resume_cases,
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
                "Each run had its own number of ranks: count with that, not with the new one.": (
                    "ranks * batch_size",
                    "world_size * batch_size",
                ),
                "You count the last run only: the runs before it have used samples of this epoch, too.": (
                    "in runs",
                    "in runs[-1:]",
                ),
                "The epoch has ended: the next one begins, with nothing consumed.": (_EPOCHS_END, ""),
                "The last step of an epoch is shorter; what it lacks is not taken from the next epoch.": (
                    "epoch + 1, 0",
                    "epoch + 1, consumed - size",
                ),
            },
        ),
        "The rest is dealt by stride, as the positions before it were: every world_size-th, not a piece.": (
            _dealt_by(one_piece)
        ),
        "Nothing is repeated to make the ranks equal here: a rank may get one sample less.": (
            _dealt_by(padded_deal)
        ),
        "The stride begins at the first position that is left, not at a multiple of world_size.": (
            _dealt_by(by_remainder)
        ),
        "Nothing is dropped to make the ranks equal here: every position that is left is somebody's.": (
            _dealt_by(even_deal)
        ),
        **famous(
            resume,
            {
                "An epoch can end within an earlier run: look for it after every step, not after the last run "
                "only.": (_EPOCHS_END, _AFTER_THE_LAST_RUN),
                "Return two things, the epoch and the list of positions.": ("return epoch, ", "return "),
                "The rest is dealt over the ranks that there are now.": (
                    "size, world_size))",
                    "size, runs[-1][0] if runs else world_size))",
                ),
            },
        ),
    },
)
"""Exercise 2: the epoch and the positions that a rank still gets, after any history of runs."""


# ---- exercise 3: the inverse of Permutation's network

_BACKWARDS = "reversed(list(enumerate(keys)))"
_WALK = """\
        if number < n:
            return number"""

check_inverse = Exercise(
    "the positions of the ids 0, 1, 2, …",
    name="inverse",
    reference=inverse,
    view=positions_of,
    cases=network_cases,
    praise="the same as Permutation.inverse in all {count} cases",
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
        "This is the id itself: nothing has been undone.": lambda number, n, keys: number,
        **famous(
            inverse,
            {
                "For an odd number of bits the low half is the longer one: halves(n) gives low first, then high.": (
                    "low_bits, high_bits = halves(n)",
                    "high_bits, low_bits = halves(n)",
                ),
                "A remainder is no walk: two ids would share a position.": (
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
                "One pass can end outside range(n): go on, as the way there did.": (
                    _WALK,
                    "        return number",
                ),
            },
        ),
    },
)
"""Exercise 3: the position of an id, by the rounds of Permutation's network in reverse."""
