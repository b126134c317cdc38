"""Exercise 1 of notebook 01, the loader of one process: its check, and famous wrong answers."""

from __future__ import annotations

from functools import partial
from itertools import chain, islice
from typing import Any

from torch.utils.data import default_collate

from support.kit.exercise import Exercise
from support.kit.judged import judged
from support.kit.mistakes import Mistake, with_methods
from support.n01 import alone
from support.n01.alone import fault_of_alone
from support.n01.solved import OneProcessLoader


def _kept(loader: Any) -> Any:
    """Return the iterator of the first loop, whoever asks."""
    return loader.__dict__.setdefault("kept", OneProcessLoader.__iter__(loader))


def _itself(loader: Any) -> Any:
    """Begin anew in each loop, and return the loader itself, as an iterator."""
    loader.place = OneProcessLoader.__iter__(loader)
    return loader


def _ahead(loader: Any) -> Any:
    """Load each batch while the one before is handed over."""
    batches = OneProcessLoader.__iter__(loader)
    ready = list(islice(batches, 1))
    for batch in batches:
        yield ready.pop()
        ready.append(batch)
    yield from ready


def _first_list(loader: Any) -> Any:
    """Take the first list of indices before the first batch is asked for."""
    lists = iter(loader.batches)
    first = list(islice(lists, 1))
    made = OneProcessLoader(loader.dataset, chain(first, lists), loader.collate)
    return OneProcessLoader.__iter__(made)


def _popped(loader: Any) -> Any:
    """Empty each list of indices."""
    for indices in loader.batches:
        yield loader.collate([loader.dataset[indices.pop(0)] for _ in range(len(indices))])


def _again(loader: Any) -> Any:
    """Load each item twice."""
    for indices in loader.batches:
        items = [[loader.dataset[index] for index in indices] for _ in range(2)]
        yield loader.collate(items[0])


def _ends_behind_an_index_error(loader: Any) -> Any:
    """Take an IndexError for the end of the data."""
    for indices in loader.batches:
        try:
            items = [loader.dataset[index] for index in indices]
        except IndexError:
            return
        yield loader.collate(items)


def _until_none(loader: Any) -> Any:
    """Take a batch that is None for the end."""
    for batch in OneProcessLoader.__iter__(loader):
        if batch is None:
            return
        yield batch


def _each_index_once(loader: Any) -> Any:
    """Load each index of a list once."""
    for indices in loader.batches:
        yield loader.collate([loader.dataset[index] for index in dict.fromkeys(indices)])


def _without_none(loader: Any) -> Any:
    """Leave out items that are None."""
    for indices in loader.batches:
        items = [loader.dataset[index] for index in indices]
        yield loader.collate([item for item in items if item is not None])


def _lists_at_the_start(loader: Any, dataset: Any, batches: Any, collate: Any) -> None:
    """Go through the lists when the loader is made."""
    OneProcessLoader.__init__(loader, dataset, list(batches), collate)


_loader = partial(with_methods, OneProcessLoader)

check_alone = Exercise(
    "OneProcessLoader",
    reference=OneProcessLoader,
    methods=("__iter__", "__len__"),
    judge=judged(
        fault_of_alone,
        "the right batches, in two epochs and in a loop inside a loop, each loaded when it is asked for, and len().",
    ),
    mistakes={
        alone.RAW: _loader(
            __iter__=lambda self: ([self.dataset[i] for i in batch] for batch in self.batches)
        ),
        alone.INDICES: _loader(__iter__=lambda self: map(self.collate, self.batches)),
        alone.OWN_COLLATE: _loader(
            __iter__=lambda self: OneProcessLoader.__iter__(
                OneProcessLoader(self.dataset, self.batches, default_collate)
            )
        ),
        alone.WHOLE_LISTS: _loader(
            __iter__=lambda self: (self.collate(self.dataset[indices]) for indices in self.batches)
        ),
        alone.OWN_LISTS: _loader(
            __iter__=lambda self: (
                self.collate([self.dataset[place] for place in range(len(one))]) for one in self.batches
            )
        ),
        alone.EAGER_ITEMS: _loader(__iter__=lambda self: iter(list(OneProcessLoader.__iter__(self)))),
        "A batch is loaded while the one before is handed over: load it when it is asked for.": Mistake(
            _loader(__iter__=_ahead), contains=(alone.EAGER_ITEMS,)
        ),
        alone.EAGER_LISTS: _loader(
            __iter__=lambda self: OneProcessLoader.__iter__(
                OneProcessLoader(self.dataset, [*self.batches], self.collate)
            )
        ),
        "The first list is taken by `iter(loader)`: nothing is taken before the first `next`.": Mistake(
            _loader(__iter__=_first_list), contains=(alone.EAGER_LISTS,)
        ),
        alone.LAZY: _loader(
            __iter__=lambda self: (
                self.collate(self.dataset[index] for index in indices) for indices in self.batches
            )
        ),
        alone.NO_LIST: _loader(
            __iter__=lambda self: (
                self.collate(tuple(self.dataset[index] for index in indices)) for indices in self.batches
            )
        ),
        alone.AT_THE_START: _loader(__init__=_lists_at_the_start),
        alone.SWALLOWED: _loader(__iter__=_ends_behind_an_index_error),
        alone.ANY_BATCH: _loader(__iter__=_until_none),
        alone.REPEATED: _loader(__iter__=_each_index_once),
        alone.ANY_ITEM: _loader(__iter__=_without_none),
        alone.EMPTY_LIST: _loader(
            __iter__=lambda self: (
                self.collate([self.dataset[index] for index in indices])
                for indices in self.batches
                if indices
            )
        ),
        alone.LOADED_TWICE: _loader(__iter__=_again),
        alone.CHANGED: _loader(__iter__=_popped),
        alone.ONCE: _loader(__iter__=_kept),
        alone.ONE_FOR_ALL: _loader(__iter__=_itself, __next__=lambda self: next(self.place)),
        alone.EATS: _loader(__len__=lambda self: len(list(self.batches))),
        alone.ITEMS: _loader(__len__=lambda self: len(self.dataset)),
    },
)
"""Exercise 1: the loader of one process."""
