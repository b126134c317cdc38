"""How an error of the dataset, of `batches` or of `collate` leaves a loader of one process: exercise 1."""

from contextlib import suppress

import pytest

from support.n01 import alone
from support.n01.checks import check_alone


def looping(loop):
    """Return a right loader with another `__iter__`, as a reader writes it."""

    class Loader:
        def __init__(self, dataset, batches, collate):
            self.dataset = dataset
            self.batches = batches
            self.collate = collate

        def __len__(self):
            return len(self.batches)

        __iter__ = loop

    return Loader


def leaves_out_what_is_broken(self):
    for indices in self.batches:
        try:
            batch = self.collate([self.dataset[index] for index in indices])
        except Exception:
            continue
        yield batch


def leaves_out_what_fits_no_batch(self):
    for indices in self.batches:
        items = [self.dataset[index] for index in indices]
        try:
            batch = self.collate(items)
        except Exception:
            continue
        yield batch


def raises_another(self):
    try:
        for indices in self.batches:
            yield self.collate([self.dataset[index] for index in indices])
    except Exception as error:
        raise OSError("broken") from error


def ends_behind(kind):
    def loop(self):
        try:
            for indices in self.batches:
                yield self.collate([self.dataset[index] for index in indices])
        except kind:
            return

    return loop


def ends_behind_an_index_error(self):
    for indices in self.batches:
        items = []
        for index in indices:
            try:
                items.append(self.dataset[index])
            except IndexError:
                return
        yield self.collate(items)


def keeps_an_error_to_the_end(self):
    kept = None
    for indices in self.batches:
        try:
            batch = self.collate([self.dataset[index] for index in indices])
        except Exception as error:
            kept = error
            continue
        yield batch
    if kept is not None:
        raise kept


def until_the_sampler_raises(self):
    lists = iter(self.batches)
    while True:
        try:
            indices = next(lists)
        except Exception:
            return
        yield self.collate([self.dataset[index] for index in indices])


def gives_an_empty_batch_for_the_broken_one(self):
    for indices in self.batches:
        try:
            batch = self.collate([self.dataset[index] for index in indices])
        except Exception as error:
            yield self.collate([])
            raise error
        yield batch


@pytest.mark.parametrize(
    "loop, says",
    [
        (
            leaves_out_what_is_broken,
            f"where an item raises BrokenError, 2 batches came and no error. {alone.SWALLOWED}",
        ),
        (
            leaves_out_what_fits_no_batch,
            f"where `collate` raises BrokenError, 2 batches came and no error. {alone.SWALLOWED}",
        ),
        (raises_another, "where an item raises BrokenError: your code raised OSError: broken"),
        (
            ends_behind_an_index_error,
            f"where an item raises IndexError, 0 batches came and no error. {alone.SWALLOWED}",
        ),
        (
            ends_behind(RuntimeError),
            f"where an item raises RuntimeError, 0 batches came and no error. {alone.SWALLOWED}",
        ),
        (
            ends_behind(MemoryError),
            f"where an item raises MemoryError, 0 batches came and no error. {alone.SWALLOWED}",
        ),
        (
            until_the_sampler_raises,
            f"where `batches` raises BrokenError, 2 batches came and no error. {alone.SWALLOWED}",
        ),
        (
            keeps_an_error_to_the_end,
            f"where an item raises BrokenError, 2 batches came before the error, due are 0. {alone.LATE}",
        ),
        (
            gives_an_empty_batch_for_the_broken_one,
            f"where an item raises BrokenError, 1 batch came before the error, due are 0. {alone.LATE}",
        ),
    ],
)
def test_an_error_comes_out_of_the_loop_at_the_turn_of_its_batch(loop, says):
    verdict = check_alone(looping(loop))
    assert verdict.status == "wrong"
    assert says in verdict.message


@pytest.mark.parametrize("kind", [FileNotFoundError, NotImplementedError, UnicodeDecodeError, IndexError])
def test_no_item_is_left_out_for_its_error_nor_for_its_index(kind):
    def skips(loader):
        for indices in loader.batches:
            with suppress(kind if kind is not IndexError else ()):
                size = len(loader.dataset) if kind is IndexError else 99
                yield loader.collate([loader.dataset[index] for index in indices if index < size])

    assert ("item 2 of 2" if kind is IndexError else f"raises {kind.__name__}") in check_alone(looping(skips)).message
