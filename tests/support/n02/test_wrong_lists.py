"""Deals of notebook 02's exercise 3 that are right for an iterator and wrong for a list, and what they are told."""

import pytest
from torch.utils.data import get_worker_info

from support.kit.mistakes import with_methods
from support.n02 import checks as n02
from support.n02 import dealing, solved
from tests.support.n02.told import is_told


def rank_by_rank(items, rank, world, worker, workers):
    return items[rank * workers + worker :: world * workers]


def in_equal_blocks(items, rank, world, worker, workers):
    each = len(items) // (world * workers)
    first = (rank + world * worker) * each
    return items[first : first + each]


def in_whole_rounds(items, rank, world, worker, workers):
    return items[: len(items) // (world * workers) * world * workers][rank + world * worker :: world * workers]


def to_ranks_only(items, rank, world, worker, workers):
    return items[rank::world]


def in_slices(items, rank, world, worker, workers):
    return items[rank + world * worker :: world * workers]


def in_lists(deal):
    def iterate(self):
        items = self.read()
        if not isinstance(items, list):
            return solved.Dealt.__iter__(self)
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        return iter(deal(items, self.rank, self.world_size, worker, workers))

    return with_methods(solved.Dealt, __iter__=iterate)


@pytest.mark.parametrize(
    "deal, said",
    [
        (rank_by_rank, dealing.UNEVEN),
        (in_equal_blocks, dealing.ONCE),
        (in_whole_rounds, dealing.ONCE),
        (to_ranks_only, dealing.WORKERS),
    ],
)
def test_a_list_is_dealt_as_evenly_as_an_iterator(deal, said):
    is_told(n02.check_dealt, [in_lists(deal)], said)


def test_a_list_that_is_dealt_unevenly_is_called_a_list():
    assert "`read()` gives a list here. W = 2, 2 workers" in n02.check_dealt(in_lists(rank_by_rank)).message


def test_a_list_is_dealt_without_workers_too():
    def iterate(self):
        items = self.read()
        if not isinstance(items, list):
            return solved.Dealt.__iter__(self)
        info = get_worker_info()
        return iter(items[self.rank + self.world_size * info.id :: self.world_size * info.num_workers])

    said = n02.check_dealt(with_methods(solved.Dealt, __iter__=iterate)).message
    assert "get_worker_info() is None without workers." in said


def test_a_list_may_be_dealt_in_slices():
    assert n02.check_dealt(in_lists(in_slices))
