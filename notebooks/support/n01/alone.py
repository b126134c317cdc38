"""How a reader's loader of one process is tried, exercise 1 of notebook 01: batch by batch, and what it asked for."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from random import Random
from typing import Any

from lib.text import plural
from support.kit.outside import remembering
from support.kit.raised import Finding, in_case

INDICES = "The batch holds the indices; dataset[index] is the item."
RAW = "These are the items; `collate` makes a batch of them."
OWN_COLLATE = "The batch was not made by the `collate` that the loader was given."
EAGER_ITEMS = "Items are loaded ahead: load those of a batch when it is asked for."
EAGER_LISTS = "Lists are taken ahead: take a batch's list when it is asked for."
NOT_TAKEN = "Each `for` takes its lists from `batches` itself, one by one."
ONCE = "The iterator is kept and used up: `__iter__` begins anew each time."
ONE_FOR_ALL = "Two loops at once share one iterator: `__iter__` makes a new one each time."
EATS = "`len` goes through `batches`: a sampler that shuffles has then used up an order."
ITEMS = "`len` counts batches, not items."
WHOLE_LISTS = "A dataset knows one index at a time, not a list of them."
OWN_LISTS = "The lists in `batches` say which items come, and you made your own."
LAZY = "`collate` was given something that can be gone through only once: it takes the items themselves, in a list."
NO_LIST = "`collate` is given a list, which it may keep or add to."
AT_THE_START = (
    "`batches` is gone through when the loader is made: each `for` takes an order of its own, list by list."
)
ANY_ITEM = "An item may be anything, also None."
REPEATED = "An index may stand in a list twice, and then its item comes twice."
ANY_BATCH = "What `collate` makes may be anything, also None: it says nothing of the end."
EMPTY_LIST = "An empty list of indices is one of the lists, too: `collate([])` makes its batch."
CACHED = (
    "An item is loaded whenever a list names it: a dataset that augments gives another picture each time."
)
REUSED = "`collate` may keep the list that it is given: nobody else changes it."
SHARED = "Each loader has a dataset, lists and a place of its own."
SWALLOWED = (
    "An error of the dataset, of `batches` or of `collate` is the caller's to hear of, and yours disappears."
)
LATE = "An error comes at the turn of its batch, and no later batch before it."
STALE = "A sampler may give another number of lists in the next epoch: ask it for its `len` each time."
LOADED_TWICE = "An item is loaded once for its batch, not again."
CHANGED = "A list of indices was changed: it belongs to the sampler, which may give it again."

CASES = ((5, 2), (9, 4), (1, 1), (4, 1), (0, 2))
"""Items, and how many of them a batch has."""

END = object()


class TimesTen:
    """Item i is 10 · i, so that no index is taken for an item; keeps what was loaded."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.loaded: list[int] = []

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        if isinstance(index, (list, tuple, slice)):
            raise Finding(f"dataset[{index!r}] was asked for. {WHOLE_LISTS}")
        if not isinstance(index, int):
            raise Finding(f"dataset[{index!r}] was asked for, which is no index of the lists.")
        if not 0 <= index < self.size:  # whoever goes through the items one by one comes to their end
            raise IndexError(f"dataset[{index}]: there are {plural(self.size, 'item')}")
        self.loaded.append(index)
        return 10 * index


class Lists:
    """Lists of indices, backwards, and in each pass another order, as of a sampler that shuffles."""

    def __init__(self, size: int, batch: int) -> None:
        self.order = list(range(size))[::-1]
        self.batch = batch
        self.passes = 0
        self.taken = 0
        self.given: list[tuple[list[int], list[int]]] = []  # each list as it was, and the one that was given

    def of_pass(self, number: int) -> list[list[int]]:
        """Return all lists of a pass; the first is 1."""
        turn = number % len(self.order) if self.order else 0
        order = self.order[turn:] + self.order[:turn]
        return [order[k : k + self.batch] for k in range(0, len(order), self.batch)]

    def __iter__(self) -> Iterator[list[int]]:
        self.passes += 1
        for indices in self.of_pass(self.passes):
            self.taken += 1
            self.given.append((list(indices), indices))
            yield indices

    def __len__(self) -> int:
        return -(-len(self.order) // self.batch)

    def __getitem__(self, place: object) -> Any:
        raise Finding(f"`batches[{place!r}]` was asked for. A batch sampler has no places: go through it.")

    def changed(self) -> bool:
        """Say whether somebody has changed a list that was given."""
        return any(before != after for before, after in self.given)


def to_tuple(items: Any) -> tuple[Any, ...]:
    """Collate: make a tuple of items that are there, all at once."""
    if not isinstance(items, list):
        why = LAZY if isinstance(items, Iterator) else NO_LIST
        raise Finding(f"`collate` was given a {type(items).__name__}. {why}")
    return tuple(items)


class Fresh(TimesTen):
    """Gives a new object whenever an item is loaded, as a dataset that augments."""

    def __getitem__(self, index: int) -> Any:
        return [super().__getitem__(index)]


class BrokenError(Exception):
    """What a dataset or `collate` raises, which no loader can know."""


#: What a dataset or `collate` raises. StopIteration is none of them: in a generator Python makes another error of it.
#: Those of a file, as FileNotFoundError, are classes of their own.
ERRORS: tuple[type[Exception], ...] = (
    BrokenError,
    *(
        kind
        for kind in vars(builtins).values()
        if isinstance(kind, type)
        and issubclass(kind, Exception)
        and not issubclass(kind, (StopIteration, ExceptionGroup))
    ),
)
#: What some of them want before their text.
BEFORE_THE_TEXT: dict[type[Exception], tuple[Any, ...]] = {
    UnicodeDecodeError: ("utf-8", b"2", 0, 1),
    UnicodeEncodeError: ("utf-8", "2", 0, 1),
    UnicodeTranslateError: ("2", 0, 1),
}


class Broken(TimesTen):
    """Item 2 can't be loaded."""

    def __init__(self, size: int, error: Exception) -> None:
        super().__init__(size)
        self.error = error
        self.is_raised = False

    def __getitem__(self, index: int) -> int:
        if index == 2 and not self.is_raised:  # once: who tries again would hide it
            self.is_raised = True
            raise self.error
        return super().__getitem__(index)


class BrokenLists(Lists):
    """The sampler can't go on behind its second list."""

    def __init__(self, size: int, batch: int, error: Exception) -> None:
        super().__init__(size, batch)
        self.error = error

    def __iter__(self) -> Iterator[list[int]]:
        yield from list(super().__iter__())[:2]
        raise self.error


def to_broken(error: Exception) -> Callable[[Any], Any]:
    """Return a `collate` that makes tuples, but for item 2, which fits no batch."""

    def collate(items: Any) -> tuple[Any, ...]:
        if 20 in items:
            raise error
        return to_tuple(items)

    return collate


class Undecided:
    """Neither true nor false, nor is what comes of asking whether it equals another: as a tensor of two elements."""

    def __eq__(self, other: object) -> Any:
        return self

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise RuntimeError("Boolean value of Tensor with more than one value is ambiguous")

    def __repr__(self) -> str:
        return "a tensor of two elements"


ANYTHING: tuple[Any, ...] = (None, 0, False, "", (), {}, 7, Undecided())


class Plain:
    """A batch sampler whose lists are given."""

    def __init__(self, lists: list[list[int]]) -> None:
        self.lists = lists

    def __iter__(self) -> Iterator[list[int]]:
        yield from map(list, self.lists)

    def __len__(self) -> int:
        return len(self.lists)


def items_alone(items: Any) -> Any:
    """Collate: the items themselves are the batch."""
    return items


def fault_of_alone(loader: Any) -> str:
    """Say what is wrong with a OneProcessLoader, "" if nothing."""
    return remembering(_fault_in_all_cases)(loader)


def _fault_in_all_cases(loader: Any) -> str:
    for size, batch in CASES:
        case = f"{plural(size, 'item')}, batches of {batch}"
        with in_case(case):
            said = _fault(loader, size, batch)
        if said:
            return f"{case}: {said}"
    return (
        _fault_of_two(loader)
        or _fault_of_lists(loader)
        or _fault_of_errors(loader)
        or _fault_of_values(loader)
    )


def _fault_of_two(loader: Any) -> str:
    """Say whether two loaders, which take turns, know of each other."""
    two = [loader(TimesTen(size), Lists(size, 2), to_tuple) for size in (4, 3)]
    got = list(zip(*two, strict=True))
    due = [((20, 10), (10, 0)), ((0, 30), (20,))]
    return "" if got == due else f"two loaders that take turns give {got}, due is {due}. {SHARED}"


def _fault_of_lists(loader: Any) -> str:
    """Say whether a batch changes behind the one that was handed over."""
    lists = Lists(4, 2)
    batches = list(loader(TimesTen(4), lists, items_alone))
    got = [list(batch) for batch in batches]
    due = [[10 * index for index in indices] for indices in lists.of_pass(lists.passes)]
    if got == due:
        return ""
    return f"with a `collate` that returns its list as it is, the epoch is {got}, due is {due}. {REUSED}"


def _fault_of_errors(loader: Any) -> str:
    """Say whether an error comes out of the loop, as it was raised."""
    for kind in ERRORS:
        error = kind(*BEFORE_THE_TEXT.get(kind, ()), "item 2 can't be used")
        for what, due, dataset, lists, collate in (
            ("an item", 0, Broken(5, error), Lists(5, 2), to_tuple),
            ("`collate`", 0, TimesTen(5), Lists(5, 2), to_broken(error)),
            ("`batches`", 2, TimesTen(5), BrokenLists(5, 2, error), to_tuple),
        ):
            where = f"where {what} raises {kind.__name__}"
            with in_case(where):
                came, is_raised = _came_before(error, loader(dataset, lists, collate))
            told = f"{where}, {plural(came, 'batch', 'batches')} came"
            if not is_raised:
                return f"{told} and no error. {SWALLOWED}"
            if came != due:
                return f"{told} before the error, due are {due}. {LATE}"
    with suppress(IndexError):
        came = len(list(loader([10, 20], [[0], [1, 2]], to_tuple)))
        told = plural(came, "batch", "batches")
        return f"where a list names item 2 of 2 items, {told} came and no error. {SWALLOWED}"
    return ""


def _came_before(error: Exception, loader: Any) -> tuple[int, bool]:
    """Return how many batches came, and whether this error came behind them."""
    came = 0
    try:
        for _ in loader:
            came += 1
    except Exception as raised:
        if raised is not error:
            raise
        return came, True
    return came, False


def _fault_of_values(loader: Any) -> str:
    """Say whether items, batches and lists that say nothing by their value are taken for more than that."""
    for lists, why in (([[3, 2], [0, 1]], ""), ([[3, 3], [0, 1]], REPEATED)):
        said = _fault_of_batches(loader, [10, 20, 30, 40], lists, None)
        if said:
            return f"lists {lists}: {said} {why}".strip()
    random = Random(1)
    for _ in range(12):
        items = random.choices(ANYTHING, k=5)
        lists = [[random.randrange(5) for _ in range(random.randrange(1, 4))] for _ in range(4)]
        made = random.choices(ANYTHING, k=4)
        with_an_empty = [*lists[:2], [], *lists[2:]]
        for kind, indices, batches, why in (
            ("items", lists, None, ANY_ITEM),
            ("batches", lists, made, ANY_BATCH),
            ("lists", with_an_empty, None, EMPTY_LIST),
            ("lists", with_an_empty, [*made, made[0]], EMPTY_LIST),
        ):
            case = f"items {items}, lists {indices}"
            if kind == "batches":
                case = f"a `collate` that makes {batches}"
            with in_case(case, {"ambiguous": ANY_BATCH if kind == "batches" else ANY_ITEM}):
                said = _fault_of_batches(loader, items, indices, batches)
            if said:
                return f"{case}: {said} {why}"
    return _fault_of_loads(loader)


def _fault_of_loads(loader: Any) -> str:
    """Say whether an item that is named again is loaded again."""
    lists = [[3, 3], [0, 3]]
    items = [item for batch in loader(Fresh(4), Plain(lists), items_alone) for item in batch]
    different = len(set(map(id, items)))
    if different == len(items):
        return ""
    return f"lists {lists}: of {len(items)} items {different} are different objects. {CACHED}"


def _fault_of_batches(loader: Any, items: list[Any], lists: list[list[int]], made: list[Any] | None) -> str:
    """Compare an epoch with what is due, object by object; made: what `collate` returns, None for the items."""
    waiting = iter(made or ())

    def collate(given: Any) -> Any:
        return list(given) if made is None else next(waiting, None)

    got = list(loader(items, Plain(lists), collate))
    due = [[items[index] for index in indices] for indices in lists] if made is None else made
    if len(got) != len(due):
        return f"{plural(len(got), 'batch', 'batches')} came, due are {len(due)}."
    for number, (mine, theirs) in enumerate(zip(got, due, strict=True)):
        if not _same(mine, theirs, of_items=made is None):
            return f"batch {number} is {mine!r}, due is {theirs!r}."
    return ""


def _same(mine: Any, theirs: Any, of_items: bool) -> bool:
    """Say whether two batches are the same object; of_items: whether they are lists of the same objects."""
    if not of_items:
        return mine is theirs
    return len(mine) == len(theirs) and all(one is other for one, other in zip(mine, theirs, strict=True))


def _fault(loader: Any, size: int, batch: int) -> str:
    dataset = TimesTen(size)
    lists = Lists(size, batch)
    made = loader(dataset, lists, to_tuple)
    if lists.passes:
        return AT_THE_START
    count = len(made)
    if lists.passes:
        return EATS
    if count != len(lists):
        said = f"len is {count}, and there are {plural(len(lists), 'batch', 'batches')}."
        return f"{said} {ITEMS if count == size else ''}".strip()
    for epoch in ("first", "second"):
        said = _fault_of_epoch(made, dataset, lists, again=epoch == "second")
        if said:
            return f"in the {epoch} epoch {said}"
    if lists.changed():
        return CHANGED
    due = count * count
    pairs = sum(1 for _ in islice((1 for _ in made for _ in made), due + 1))
    if pairs != due:
        told = f"more than {plural(due, 'pair')}" if pairs > due else plural(pairs, "pair")
        return f"a loop inside a loop gives {told}, due are {due}. {ONE_FOR_ALL}"
    return _fault_of_more(made, lists)


def _fault_of_more(made: Any, lists: Lists) -> str:
    """Say whether the loader knows it, when the sampler has more lists than it had."""
    lists.batch = 1
    due = len(lists)
    if len(made) != due:
        return f"then the sampler has {plural(due, 'list')}, and len is {len(made)}. {STALE}"
    came = sum(1 for _ in islice(made, due + 1))
    told = plural(came, "batch", "batches")
    return "" if came == due else f"then the sampler has {plural(due, 'list')}, and {told} came. {STALE}"


def _fault_of_epoch(loader: Any, dataset: TimesTen, lists: Lists, again: bool) -> str:
    """Take an epoch, batch by batch; say what is wrong."""
    dataset.loaded.clear()
    lists.taken = 0
    due = lists.of_pass(lists.passes + 1)
    iterator = iter(loader)
    if dataset.loaded:
        loaded = plural(len(set(dataset.loaded)), "item")
        return f"before the first batch is asked for, {loaded} came from the dataset. {EAGER_ITEMS}"
    if lists.taken:
        return f"before the first batch is asked for, {plural(lists.taken, 'list')} came from `batches`. {EAGER_LISTS}"
    asked: list[int] = []
    for number, indices in enumerate(due):
        got = next(iterator, END)
        if got is END:
            used_up = f" {ONCE}" if again and number == 0 else ""
            return f"{plural(number, 'batch', 'batches')} came, due are {len(due)}.{used_up}"
        wanted = tuple(10 * index for index in indices)
        if type(got) is not tuple or got != wanted:
            return f"batch {number} is {got!r}, due is {wanted!r}. {_of_another(got, indices, lists)}".strip()
        asked += indices
        if len(dataset.loaded) != len(asked):
            when = f"when batch {number} comes, items were loaded {plural(len(dataset.loaded), 'time')}"
            why = EAGER_ITEMS if set(dataset.loaded) - set(asked) else LOADED_TWICE
            if len(dataset.loaded) < len(asked):
                why = CACHED
            return f"{when}, due are {len(asked)}. {why}"
        if lists.taken != number + 1:
            why = EAGER_LISTS if lists.taken > number else NOT_TAKEN
            return f"when batch {number} comes, {lists.taken} lists are taken, due are {number + 1}. {why}"
    left = next(iterator, END)
    return "" if left is END else f"a batch comes after the last: {left!r}."


def _of_another(got: Any, indices: list[int], lists: Lists) -> str:
    """Say what came in place of a batch, "" if it is unknown."""
    items = [10 * index for index in indices]
    if isinstance(got, tuple) and list(got) == indices and got != tuple(items):
        return INDICES
    if isinstance(got, list) and got == items:
        return RAW
    if hasattr(got, "tolist") and got.tolist() == items:
        return OWN_COLLATE
    if isinstance(got, tuple) and got and got == tuple(10 * index for index in range(len(got))):
        return OWN_LISTS
    return ""
