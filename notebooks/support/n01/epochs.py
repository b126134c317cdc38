"""Epochs in which a loader with workers of notebook 01 is tried: data, batch samplers, and what goes wrong in them."""

from __future__ import annotations

import os
import pickle
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lib.text import plural
from support.kit.raised import Finding
from support.n01.alone import Undecided
from support.n01.watched import WatchedTeam

NEVER = 10**6  # the number of a batch that no epoch has
AT_ONCE = -1  # in place of the number of a list: before the first


class NoListError(IndexError, KeyError, ValueError, RuntimeError):
    """What a batch sampler raises that can't go on, be it an error of this class or of that."""


class UnknownError(Exception):
    """What an item raises where nobody has thought of it."""


class UnwritableError(Exception):
    """What pickle can't write, as an error that holds an open file, a lock, or a function without a name."""

    why: type[Exception] = TypeError

    def __reduce__(self) -> Any:
        raise self.why("it can't be written")

    def __copy__(self) -> UnwritableError:
        return self

    def __deepcopy__(self, memo: object) -> UnwritableError:
        return self


def unwritable(why: type[Exception]) -> type[UnwritableError]:
    """Return a class of errors over which pickle raises `why` when it writes them."""
    return type(UnwritableError.__name__, (UnwritableError,), {"why": why})


def _raise(why: type[Exception]) -> None:
    raise why("it can't be read again")


class OnceReadError(Exception):
    """What pickle writes, and over which it raises `why` when it reads it again."""

    why: type[Exception] = TypeError

    def __reduce__(self) -> Any:
        return _raise, (self.why,)


def unreadable(why: type[Exception]) -> type[OnceReadError]:
    """Return a class of errors over which pickle raises `why` when it reads them again."""
    return type(OnceReadError.__name__, (OnceReadError,), {"why": why})


class UnreadableError(Exception):
    """What pickle writes and can't read again: it would call the class with nothing."""

    def __init__(self, item: str, why: str) -> None:
        super().__init__()
        self.text = f"{item} {why}"

    def __str__(self) -> str:
        return self.text

    @classmethod
    def of(cls, text: str) -> UnreadableError:
        """Make one of a text."""
        item, what = text.split(" has ")
        return cls(item, f"has {what}")


class FalseError(Exception):
    """An error that is false, as one that holds a list of reasons, here of none."""

    def __bool__(self) -> bool:
        return False


class HoldingError(Exception):
    """An error that holds what equals no copy of it, as a record: pickle carries it all the same."""

    def __init__(self, text: str, held: object = None) -> None:
        super().__init__(text, held or object())
        self.held = self.args[1]


TRAVELLING: tuple[type[Exception], ...] = (
    UnknownError,
    KeyError,
    ValueError,
    IndexError,
    TypeError,
    AttributeError,
    OSError,
    FileNotFoundError,
    EOFError,
    AssertionError,
    RuntimeError,
    MemoryError,
    queue.Empty,
    pickle.PicklingError,
    FalseError,
    HoldingError,
)
#: What pickle raises over an error that it can't carry.
OVER_IT: tuple[type[Exception], ...] = (
    TypeError,
    AttributeError,
    ValueError,
    RuntimeError,
    pickle.PicklingError,
    pickle.UnpicklingError,
)


class Made(list[Any]):
    """A collated batch; a plain list of the same items is none."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Made) and list(self) == list(other)

    def __ne__(self, other: object) -> bool:
        """Say the opposite: a list's own would know only the items."""
        return not self == other


class Column(Made):
    """A batch that a list or None may equal or not; whether it equals anything else can't be told, as of a tensor."""

    def __eq__(self, other: object) -> Any:
        return super().__eq__(other) if other is None or isinstance(other, list) else Undecided()


def to_nothing(items: Any) -> None:
    """Collate: a batch that is None, as of a collate that only counts."""


def to_text(items: Any) -> str:
    """Collate: a batch that is a text."""
    return f"items {items}"


class Remark(Exception):
    """An exception that is data, as of a dataset of errors: equal to one with the same text."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Remark) and self.args == other.args

    __hash__ = Exception.__hash__


def to_remark(items: Any) -> Remark:
    """Collate: a batch that is an exception, which nobody has raised."""
    return Remark(f"items {items}")


def to_remarks(items: Any) -> Made:
    """Collate: a batch that is a list with an exception in it."""
    return Made([Remark(items)])


class Word(Remark):
    """An exception in a batch, equal to all words: whatever word a reader marks an error with, it may stand there."""

    def __eq__(self, other: object) -> bool:
        return super().__eq__(other) or isinstance(other, str)

    __hash__ = Exception.__hash__


def to_words(items: Any) -> tuple[Word, ...]:
    """Collate: a batch that is a tuple of words."""
    return tuple(map(Word, items))


def to_bytes(items: Any) -> bytes:
    """Collate: a batch that is bytes, as a reader may write an error."""
    return pickle.dumps(items)


def to_a_dictionary(items: Any) -> dict[str, Any]:
    """Collate: a batch that is a dictionary with the words by which a reader may mark an error."""
    return dict.fromkeys(("error", "exception", "err", "exc"), items)


AS_MADE: Mapping[Callable[[Any], Any], str] = {
    to_remark: "an exception",
    to_remarks: "an exception in a list",
    to_nothing: "None",
    to_text: "a text",
    to_words: "a tuple",
    to_bytes: "bytes",
    to_a_dictionary: "a dictionary",
}
"""Each `collate` whose batch may be taken for an error that is none, and what such a batch is."""


@dataclass(frozen=True)
class EpochCase:
    """An epoch to try: what is loaded by whom, and what goes wrong in it.

    late: batches that are ready only after so many results. in_turn: it and those behind are ready only when those
    before have been handed over. bad: the item that raises; and_behind: those behind it raise, too. torn: the item with
    which no batch can be collated. no_list: the list at which the sampler raises. empty: the list that names no item.
    shuffled: each pass has another order, in which one item comes twice. stop: the number of batches after which the
    loop breaks off. hollow: the item that is None. kind: makes what the item raises, of a text.
    """

    size: int
    batch: int
    workers: int = 1
    prefetch: int = 2
    late: Mapping[int, int] = field(default_factory=dict)
    bad: int | None = None
    and_behind: bool = False
    torn: int | None = None
    in_turn: int = NEVER
    no_list: int = NEVER
    empty: int = NEVER
    shuffled: bool = False
    stop: int = NEVER
    hollow: int | None = None
    epochs: int = 1
    kind: Callable[[str], Exception] = KeyError
    collate: Callable[[Any], Any] = Made

    def __str__(self) -> str:
        batches = -(-self.size // self.batch) + (self.empty < NEVER)
        return f"{plural(self.workers, 'worker')}, prefetch {self.prefetch}, {plural(batches, 'batch', 'batches')}"

    def item_of(self, index: int) -> int | None:
        """Return item i, which is i; the hollow one is None."""
        return None if index == self.hollow else index

    @property
    def bad_batch(self) -> int:
        """Return the number of the batch whose item, or whose collating, raises."""
        wrong = [item for item in (self.bad, self.torn) if item is not None]
        return min(wrong) // self.batch if wrong else NEVER

    @property
    def raised(self) -> Exception:
        """Return what an item or collating raises; it carries the item, too."""
        if self.torn is not None:
            error = self.kind(f"item {self.torn} fits no batch")
            vars(error)["item"] = self.torn
            return error
        return self.error_of(self.bad)

    def error_of(self, item: int | None) -> Exception:
        """Return what this item raises, if it is a bad one."""
        error = self.kind(f"item {item} has no file")
        vars(error)["item"] = item
        return error

    def is_bad(self, item: int) -> bool:
        """Say whether an item raises."""
        return self.bad is not None and (item == self.bad or (self.and_behind and item > self.bad))

    def is_raised(self, error: BaseException) -> bool:
        """Say whether an exception looks like what is raised: it may have lost what that carries."""
        return (type(error), error.args[:1]) == (type(self.raised), self.raised.args[:1])

    @property
    def travels(self) -> bool:
        """Say whether pickle carries what is raised there and back."""
        return isinstance(self.raised, TRAVELLING)


IN_ORDER: Sequence[EpochCase] = (
    EpochCase(size=12, batch=2),
    EpochCase(size=20, batch=3, workers=3, late={0: 2, 4: 6}),
    EpochCase(size=24, batch=2, workers=2, prefetch=3, late={0: 3, 1: 1, 6: 8}),
    # worker 0 has two orders left when the next goes out, and worker 1 none
    EpochCase(size=16, batch=2, workers=2, prefetch=3, late={0: 3, 2: 5}),
    EpochCase(size=5, batch=1, workers=2, prefetch=1, collate=sum),
    EpochCase(size=5, batch=1, workers=2, prefetch=1, collate=Column),
    EpochCase(size=3, batch=2, workers=4),
    EpochCase(size=0, batch=2, workers=2),
    EpochCase(size=12, batch=3, workers=2, shuffled=True, epochs=2),
    EpochCase(size=12, batch=2, workers=2, empty=2),
    EpochCase(size=12, batch=2, workers=2, hollow=3),
    EpochCase(size=12, batch=2, workers=2, in_turn=5),
    EpochCase(size=12, batch=2, workers=2, in_turn=1),
)
TO_THE_END: Sequence[EpochCase] = (
    *IN_ORDER,
    EpochCase(size=12, batch=2, workers=2, bad=7),
    EpochCase(size=8, batch=2, workers=2, bad=0),
    EpochCase(size=12, batch=2, workers=2, bad=2, late={0: 1}),
    EpochCase(size=12, batch=2, workers=2, torn=7, kind=ValueError),
    EpochCase(size=12, batch=2, workers=2, no_list=1),
    EpochCase(size=12, batch=2, workers=2, no_list=5),
    EpochCase(size=12, batch=2, workers=2, no_list=AT_ONCE),
    EpochCase(size=12, batch=2, workers=1, stop=2),
    EpochCase(size=12, batch=2, workers=3, stop=1),
    EpochCase(size=12, batch=2, workers=2, bad=4, stop=1),  # an error is on its way, and nobody asks for it
    # batches 1, 2, 4 and 5 fail before the turn of 1, which is not the first of them to arrive
    EpochCase(size=12, batch=2, workers=3, bad=3, and_behind=True, late={0: 4, 1: 1}),
    EpochCase(size=15, batch=3, workers=2),
    *(EpochCase(size=12, batch=2, workers=2, bad=7, kind=kind) for kind in TRAVELLING),
    EpochCase(size=12, batch=2, workers=2, bad=7, kind=UnreadableError.of),
    *(
        EpochCase(size=12, batch=2, workers=2, bad=7, kind=kind(over_it))
        for kind in (unwritable, unreadable)
        for over_it in OVER_IT
    ),
    *(EpochCase(size=6, batch=2, workers=2, collate=collate) for collate in AS_MADE),
    # a worker's error is on its way when the sampler raises
    EpochCase(size=12, batch=2, workers=2, bad=2, no_list=3),
    EpochCase(size=12, batch=2, workers=2, torn=7, kind=unwritable(TypeError)),
)


class Items:
    """Item i is i, loaded by whom? Batches in `late` are ready only after `late[b]` results; item `bad` raises."""

    def __init__(self, team: WatchedTeam, case: EpochCase) -> None:
        self.team = team
        self.case = case
        self.by: set[int] = set()
        self.raised: set[tuple[threading.Thread, int]] = set()  # by whom, and which item
        self.handed_over: Callable[[], int] = int  # how many batches have been
        self.process = os.getpid()

    def __len__(self) -> int:
        return self.case.size if self.case.bad is None else self.case.bad

    def __getitem__(self, index: int) -> int | None:
        me = threading.get_ident()
        self.by.add(me)
        if index >= self.case.size:  # so that a loop over all items has an end
            raise IndexError(f"there is no item {index}")
        if os.getpid() != self.process:  # in a process that isn't the team's nobody is watched
            return self.case.item_of(index)
        attempt = threading.current_thread(), index  # an identifier may be another thread's later
        if self.case.is_bad(index) and attempt not in self.raised:  # once: who tries again would hide it
            self.raised.add(attempt)
            raise self.case.error_of(index)
        begins_a_batch = index % self.case.batch == 0
        after = self.case.late.get(index // self.case.batch, 0)
        if after and begins_a_batch and me != self.team.trainer:
            with self.team.changed:
                self.team.wait_at_gate(lambda: self.team.results >= after)
        if begins_a_batch and index >= self.case.in_turn * self.case.batch and me != self.team.trainer:
            with self.team.changed:
                self.team.wait_at_gate(lambda: self.handed_over() >= self.case.in_turn)
        return self.case.item_of(index)


class Batches:
    """Lists of indices; as a shuffling sampler, it gives another order each time it is iterated over."""

    def __init__(self, case: EpochCase) -> None:
        self.case = case
        self.passes = 0
        self.drawn = 0
        self.raised = False

    def lists(self, turn: int) -> list[list[int]]:
        """Return all lists of a pass."""
        size = self.case.size
        batch = self.case.batch
        order = [(index + turn * self.case.shuffled) % size for index in range(size)]
        if self.case.shuffled:
            order[1] = order[0]
        lists = [order[k : k + batch] for k in range(0, size, batch)]
        if self.case.empty < NEVER:
            lists.insert(self.case.empty, [])
        return lists

    def __iter__(self) -> Iterator[list[int]]:
        if self.case.no_list == AT_ONCE:
            raise NoListError("the sampler has no lists")
        return self._pass()

    def _pass(self) -> Iterator[list[int]]:
        self.passes += 1
        self.drawn = 0
        for number, indices in enumerate(self.lists(self.passes)):
            if number == self.case.no_list:
                self.raised = True
                raise NoListError(f"the sampler has no list {number}")
            self.drawn += 1
            yield indices

    def __len__(self) -> int:
        return len(self.lists(0))

    def __getitem__(self, place: object) -> Any:
        raise Finding(
            f"`batches[{place!r}]` was asked for. A batch sampler has no places: go through it, once."
        )
