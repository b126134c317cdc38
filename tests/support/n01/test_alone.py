"""How the loader of one process is tried: other right ones pass, and what is wrong is told by its first batch."""

import pytest

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


@pytest.mark.parametrize("answer", [ByMap, ByClass])
def test_a_loader_that_is_built_otherwise_is_right(answer):
    assert check_alone(answer).status == "right"


def test_a_batch_is_told_with_its_case_and_number():
    class Short(ByMap):
        def __iter__(self):
            return iter([*super().__iter__()][:-1])

    assert (
        "5 items, batches of 2: in the first epoch when batch 0 comes, 5 items are loaded" in check_alone(Short).message
    )
    assert alone.fault_of_alone(ByMap) == ""
