"""Wrong answers to notebook 02 that were refused with a sentence that was not true of them, or named no case."""

from itertools import islice

import pytest
from torch.utils.data import get_worker_info

from support.kit.mistakes import with_methods
from support.n02 import buffering, dealing, pools, solved
from support.n02 import checks as n02
from tests.support.n02.told import is_told


def kept_in_the_object(iterate):
    def takes_from_the_object(self):
        self.kept = [*iterate(self)]
        for _ in range(len(self)):
            yield self.kept.pop(0)

    return takes_from_the_object


@pytest.mark.parametrize(
    "check, solution", [(n02.check_shuffled, solved.Shuffled), (n02.check_pooled, solved.PooledBatches)]
)
def test_what_is_raised_while_two_passes_are_open_names_that_case(check, solution):
    answer = with_methods(solution, __iter__=kept_in_the_object(solution.__iter__))
    is_told(check, [answer], "With two passes at once: your code raised IndexError")


def test_workers_that_stand_k_apart_are_told_so_where_no_two_have_one_number():
    def k_apart(self):
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        return islice(self.read(), self.rank + workers * worker, None, self.world_size * workers)

    said = "From one worker of a rank to its next it is W places, not K."
    is_told(n02.check_dealt, [with_methods(solved.Dealt, __iter__=k_apart)], said)


def test_whoever_deals_by_where_an_equal_item_stood_first_is_not_told_to_leave_items_out():
    def by_first_place(self):
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        places = {}
        for place, item in enumerate(self.read()):
            first = places.setdefault(repr(item), place)
            if first % (self.world_size * workers) == self.rank + self.world_size * worker:
                yield item

    answer = with_methods(solved.Dealt, __iter__=by_first_place)
    is_told(n02.check_dealt, [answer], dealing.VALUES)
    assert "left out" not in n02.check_dealt(answer).message


def forgets_the_one_just_read(items, size, generator):
    waiting = []
    for item in items:
        if len(waiting) < size:
            waiting.append(item)
        else:
            yield waiting.pop(generator.integers(size))
    generator.shuffle(waiting)
    yield from waiting


def to_the_first_false_one(items, size, generator):
    def true_ones():
        left = iter(items)
        while item := next(left, None):
            yield item

    return solved.buffered(true_ones(), size, generator)


def as_texts(items, size, generator):
    return solved.buffered(map(str, items), size, generator)


def draws_a_thousand_numbers_beforehand(items, size, generator):
    left = iter(items)
    waiting = [*islice(left, size)]
    for place, item in zip(generator.integers(size, size=1000), left, strict=False):
        yield waiting[place]
        waiting[place] = item
    generator.shuffle(waiting)
    yield from waiting


def hands_on_the_thousandth_twice(items, size, generator):
    for turn, item in enumerate(solved.buffered(items, size, generator)):
        yield item
        if turn == 999:
            yield item


@pytest.mark.parametrize(
    "buffered, said",
    [
        (draws_a_thousand_numbers_beforehand, buffering.LOST),
        (hands_on_the_thousandth_twice, buffering.LOST),
        (forgets_the_one_just_read, buffering.LOST),
        (to_the_first_false_one, buffering.FALSE),
        (as_texts, "What leaves must have come from the stream; '33' has not."),
    ],
)
def test_what_is_lost_or_changed_is_not_called_held_or_undrawn(buffered, said):
    is_told(n02.check_buffered, [buffered], said)


def handed_out_by_the_object(solution):
    """An iterator of the old kind: the object is its own pass, and each `for` begins it anew."""

    def begins(self):
        self.left = list(solution.__iter__(self))
        return self

    def hands_out(self):
        if not self.left:
            raise StopIteration
        return self.left.pop(0)

    return with_methods(solution, __iter__=begins, __next__=hands_out)


def test_an_object_that_is_its_own_pass_is_told_of_two_passes_and_not_of_readings_that_it_did_not_make():
    is_told(n02.check_pooled, [handed_out_by_the_object(solved.PooledBatches)], pools.TOGETHER)
