"""How the loader of one process is tried: other right ones pass, and what is wrong is told by its first batch."""

import copy

import pytest
import torch

from support.kit import outside
from support.n01 import alone
from support.n01.checks import check_alone


class ByMap:
    """No generator function: a generator expression, made anew by each loop."""

    def __init__(self, dataset, batches, collate):
        self.batches = batches
        self.collate = collate
        self.item = dataset.__getitem__

    def __iter__(self):
        return (self.collate([*map(self.item, indices)]) for indices in self.batches)

    def __len__(self):
        return self.batches.__len__()


class Place:
    def __init__(self, loader):
        self.loader = loader
        self.lists = iter(loader.batches)

    def __iter__(self):
        return self

    def __next__(self):
        indices = next(self.lists)
        items = []
        for index in indices:
            items.append(self.loader.dataset[index])
        return self.loader.collate(items)


class ByClass:
    """The place in the data is an object of its own."""

    def __init__(self, dataset, batches, collate):
        self.dataset = dataset
        self.batches = batches
        self.collate = collate

    def __iter__(self):
        return Place(self)

    def __len__(self):
        return len(self.batches)


class ByZip:
    """Items by a loop, one at a time, and the end by an exception."""

    def __init__(self, dataset, batches, collate):
        self.parts = dataset, batches, collate

    def __iter__(self):
        dataset, batches, collate = self.parts
        places = iter(batches)
        while True:
            try:
                indices = next(places)
            except StopIteration:
                return
            yield collate(list(map(dataset.__getitem__, indices)))

    def __len__(self):
        return len(self.parts[1])


@pytest.mark.parametrize("answer", [ByMap, ByClass, ByZip])
def test_a_loader_that_is_built_otherwise_is_right(answer):
    assert check_alone(answer).status == "right"


def test_a_batch_is_told_with_its_case_and_number():
    class Short(ByMap):
        def __iter__(self):
            return iter([*super().__iter__()][:-1])

    assert (
        "5 items, batches of 2: in the first epoch before the first batch is asked for, 5 items came from the dataset"
        in check_alone(Short).message
    )
    assert alone.fault_of_alone(ByMap) == ""


def looping(loop):
    """Return a right loader with another `__iter__`, as a reader writes it."""

    class Loader(ByMap):
        def __init__(self, dataset, batches, collate):
            super().__init__(dataset, batches, collate)
            self.dataset = dataset

        __iter__ = loop

    return Loader


def makes_tensors(self):
    for indices in self.batches:
        yield self.collate([torch.as_tensor(self.dataset[index]) for index in indices])


def begins_too_soon(self):
    lists = iter(self.batches)
    first = next(lists, None)

    def rest(indices):
        while indices is not None:
            yield self.collate([self.dataset[index] for index in indices])
            indices = next(lists, None)

    return rest(first)


def gives_a_generator(self):
    for indices in self.batches:
        yield self.collate(self.dataset[index] for index in indices)


def loads_twice(self):
    for indices in self.batches:
        list(map(self.dataset.__getitem__, indices))
        yield self.collate([self.dataset[index] for index in indices])


def empties_the_lists(self):
    for indices in self.batches:
        yield self.collate([self.dataset[indices.pop(0)] for _ in range(len(indices))])


def loads_all(self):
    items = [*self.dataset]
    for indices in self.batches:
        yield self.collate([items[index] for index in indices])


def by_place(self):
    for place in range(len(self.batches)):
        yield self.collate([self.dataset[index] for index in self.batches[place]])


def sorts(self):
    for indices in self.batches:
        yield self.collate([self.dataset[index] for index in sorted(indices)])


def uses_a_map_up(self):
    for indices in self.batches:
        items = map(self.dataset.__getitem__, indices)
        assert len(list(items)) == len(indices)
        yield self.collate(list(items))


def never_ends(self):
    while True:
        for indices in self.batches:
            yield self.collate([self.dataset[index] for index in indices])


def gives_nothing(self):
    yield from ()


def by_names(self):
    for indices in self.batches:
        yield self.collate([self.dataset[str(index)] for index in indices])


def one_list_for_all(self):
    items = []
    for indices in self.batches:
        items.clear()
        items += [self.dataset[index] for index in indices]
        yield self.collate(items)


def empties_what_it_gave(self):
    for indices in self.batches:
        items = [self.dataset[index] for index in indices]
        yield self.collate(items)
        items.clear()


def caches(self):
    kept = self.__dict__.setdefault("kept", {})
    for indices in self.batches:
        for index in indices:
            if index not in kept:
                kept[index] = self.dataset[index]
        yield self.collate([kept[index] for index in indices])


def caches_for_an_epoch(self):
    kept = {}
    for indices in self.batches:
        for index in indices:
            if index not in kept:
                kept[index] = self.dataset[index]
        yield self.collate([kept[index] for index in indices])


def without_false_batches(self):
    for indices in self.batches:
        batch = self.collate([self.dataset[index] for index in indices])
        if batch is not None:
            yield batch


def until_a_batch_is_false(self):
    lists = iter(self.batches)
    while batch := self.collate([self.dataset[index] for index in next(lists, [])]):
        yield batch


def without_false_items(self):
    for indices in self.batches:
        yield self.collate([item for index in indices if (item := self.dataset[index]) is not None])


def without_empty_lists(self):
    for indices in self.batches:
        if not indices:
            continue
        yield self.collate([self.dataset[index] for index in indices])


def empty_lists_as_they_are(self):
    for indices in self.batches:
        yield self.collate([self.dataset[index] for index in indices]) if indices else []


def until_an_empty_list(self):
    lists = iter(self.batches)
    while indices := next(lists, None):
        yield self.collate([self.dataset[index] for index in indices])


def until_a_batch_equals_the_end(self):
    end = object()
    for indices in self.batches:
        batch = self.collate([self.dataset[index] for index in indices])
        if batch == end:
            return
        yield batch


def without_items_that_are_a_word(self):
    for indices in self.batches:
        yield self.collate([item for index in indices if (item := self.dataset[index]) != "missing"])


def each_index_once(self):
    for indices in self.batches:
        yield self.collate([self.dataset[index] for index in dict.fromkeys(indices)])


def gives_a_tuple(self):
    for indices in self.batches:
        yield self.collate(tuple(self.dataset[index] for index in indices))


def gives_a_map(self):
    for indices in self.batches:
        yield self.collate(map(self.dataset.__getitem__, indices))


@pytest.mark.parametrize(
    "loop, says",
    [
        (begins_too_soon, f"before the first batch is asked for, 1 list came from `batches`. {alone.EAGER_LISTS}"),
        (gives_a_generator, alone.LAZY),
        (loads_twice, f"when batch 0 comes, items were loaded 4 times, due are 2. {alone.LOADED_TWICE}"),
        (empties_the_lists, alone.CHANGED),
        (loads_all, f"when batch 0 comes, items were loaded 5 times, due are 2. {alone.EAGER_ITEMS}"),
        (by_place, "`batches[0]` was asked for. A batch sampler has no places"),
        (sorts, "batch 0 is (20, 30), due is (30, 20)."),
        (uses_a_map_up, "in the first epoch batch 0 is (), due is (30, 20)."),
        (never_ends, "a batch comes after the last: (20, 10)"),
        (gives_nothing, "in the first epoch 0 batches came, due are 3."),
        (by_names, "dataset['3'] was asked for"),
        (
            empties_what_it_gave,
            "the epoch is [[], []], due is [[20, 10], [0, 30]]. `collate` may keep the list that it is given: "
            "nobody else changes it.",
        ),
        (one_list_for_all, f"the epoch is [[0, 30], [0, 30]], due is [[20, 10], [0, 30]]. {alone.REUSED}"),
        (without_false_batches, alone.ANY_BATCH),
        (until_a_batch_is_false, alone.ANY_BATCH),
        (without_false_items, alone.ANY_ITEM),
        (without_empty_lists, alone.EMPTY_LIST),
        (until_a_batch_equals_the_end, alone.ANY_BATCH),
        (without_items_that_are_a_word, alone.ANY_ITEM),
        (empty_lists_as_they_are, "batch 2 is [], due is "),
        (each_index_once, f"batch 0 is [40], due is [40, 40]. {alone.REPEATED}"),
        (until_an_empty_list, alone.EMPTY_LIST),
        (gives_a_tuple, f"`collate` was given a tuple. {alone.NO_LIST}"),
        (gives_a_map, f"`collate` was given a map. {alone.LAZY}"),
        (makes_tensors, "lists [[3, 2], [0, 1]]: batch 0 is [tensor(40), tensor(30)], due is [40, 30]."),
        (caches, f"items were loaded 0 times, due are 2. {alone.CACHED}"),
        (caches_for_an_epoch, f"lists [[3, 3], [0, 3]]: of 4 items 2 are different objects. {alone.CACHED}"),
    ],
)
def test_a_wrong_loop_is_told_what_it_did(loop, says):
    verdict = check_alone(looping(loop))
    assert verdict.status == "wrong"
    assert says in verdict.message
    assert (alone.REPEATED in verdict.message) == (loop is each_index_once)
    assert alone.OWN_LISTS not in verdict.message or alone.OWN_LISTS in says


def test_a_length_is_that_of_the_sampler_when_it_is_asked_for():
    class Stale(ByMap):
        def __init__(self, dataset, batches, collate):
            super().__init__(dataset, batches, collate)
            self.count = len(batches)

        def __len__(self):
            return self.count

    assert alone.STALE in check_alone(Stale).message


def test_a_loop_that_never_gave_anything_is_not_told_that_it_is_used_up():
    assert alone.ONCE not in check_alone(looping(gives_nothing)).message


class InTheClass:
    """What a loader is given is kept in the class, where the next loader finds its own."""

    def __init__(self, dataset, batches, collate):
        InTheClass.dataset = dataset
        InTheClass.batches = batches
        InTheClass.collate = staticmethod(collate)

    def __iter__(self):
        for indices in self.batches:
            yield self.collate([self.dataset[index] for index in indices])

    def __len__(self):
        return len(self.batches)


def test_two_loaders_that_keep_in_their_class_what_they_are_given_are_told_so():
    verdict = check_alone(InTheClass)
    assert verdict.status == "wrong"
    assert f"in `dataset`, `batches`. {outside.REMEMBERED}" in verdict.message


class ListedAtTheStart(ByMap):
    """The lists are gone through once, when the loader is made."""

    def __init__(self, dataset, batches, collate):
        super().__init__(dataset, list(batches), collate)


def test_whoever_lists_the_batches_at_the_start_is_not_told_of_len():
    message = check_alone(ListedAtTheStart).message
    assert alone.AT_THE_START in message
    assert alone.EATS not in message


class OfACopy(ByMap):
    """The loops go through a copy of the sampler."""

    def __init__(self, dataset, batches, collate):
        super().__init__(dataset, copy.copy(batches), collate)


def test_whoever_goes_through_a_copy_is_not_told_that_lists_are_taken_ahead():
    message = check_alone(OfACopy).message
    assert f"0 lists are taken, due are 1. {alone.NOT_TAKEN}" in message
    assert alone.EAGER_LISTS not in message
