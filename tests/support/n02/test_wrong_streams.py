"""Wrong deals and wrong buffers that once passed exercises 3 and 4 of notebook 02, and what they are told now."""

import copy
import heapq
from itertools import islice

import numpy as np
import pytest
from torch.utils.data import get_worker_info

from support.kit.mistakes import with_methods
from support.n02 import buffering, dealing, solved
from support.n02 import checks as n02
from tests.support.n02.told import is_told


# ---- exercise 3
def place_kept_in_the_object(self):
    info = get_worker_info()
    worker, workers = (info.id, info.num_workers) if info else (0, 1)
    self.place = getattr(self, "place", 0)
    for item in self.read():
        mine = self.place % (self.world_size * workers) == self.rank + self.world_size * worker
        self.place += 1
        if mine:
            yield item
    self.place = 0


def ahead_but_in_the_first_process(self):
    info = get_worker_info()
    share = solved.Dealt.__iter__(self)
    if self.rank == 0 and (info is None or info.id == 0):
        yield from share
    while block := list(islice(share, 2)):
        yield from block


@pytest.mark.parametrize(
    "iterate, said",
    [(place_kept_in_the_object, dealing.BROKEN_OFF), (ahead_but_in_the_first_process, dealing.AHEAD)],
)
def test_a_pass_may_be_broken_off_and_all_processes_hand_on_at_once(iterate, said):
    is_told(n02.check_dealt, [with_methods(solved.Dealt, __iter__=iterate)], said)


def for_ever(self):
    while True:
        yield from solved.Dealt.__iter__(self)


def test_whoever_begins_again_for_ever_is_told_before_a_stream_is_empty():
    is_told(n02.check_dealt, [with_methods(solved.Dealt, __iter__=for_ever)], "0 hands on 50 items or more of 14.")


def worker_noted_once(self):
    if not hasattr(self, "worker"):
        info = get_worker_info()
        self.worker, self.workers = (info.id, info.num_workers) if info else (0, 1)
    first = self.rank + self.world_size * self.worker
    return islice(self.read(), first, None, self.world_size * self.workers)


def none_ends_it(self):
    for item in solved.Dealt.__iter__(self):
        if item is None:
            return
        yield item


def none_is_taken_for_the_end(self):
    share = solved.Dealt.__iter__(self)
    return iter(lambda: next(share, None), None)


def without_what_is_empty(self):
    return (item for item in solved.Dealt.__iter__(self) if not hasattr(item, "__len__") or len(item))


def one_iterator_for_all(self):
    self.share = solved.Dealt.__iter__(self)
    while True:
        try:
            yield next(self.share)
        except StopIteration:
            return


def no_more_than(ranks, workers):
    def iterate(self):
        info = get_worker_info()
        worker, number = (info.id, info.num_workers) if info else (0, 1)
        world = min(self.world_size, ranks)
        return islice(self.read(), self.rank + world * worker, None, world * min(number, workers))

    return iterate


@pytest.mark.parametrize("ranks, workers", [(99, 3), (99, 6), (3, 99), (6, 99)])
def test_a_deal_holds_for_any_number_of_ranks_and_workers(ranks, workers):
    is_told(n02.check_dealt, [with_methods(solved.Dealt, __iter__=no_more_than(ranks, workers))], dealing.ONCE)


def a_copy_of_each(self):
    return map(copy.copy, solved.Dealt.__iter__(self))


@pytest.mark.parametrize(
    "iterate, said",
    [
        (a_copy_of_each, dealing.THING),
        (worker_noted_once, dealing.NOTED),
        (none_ends_it, dealing.VALUES),
        (none_is_taken_for_the_end, dealing.VALUES),
        (without_what_is_empty, dealing.VALUES),
        (one_iterator_for_all, dealing.TOGETHER),
    ],
)
def test_a_copy_asks_who_it_is_and_any_item_is_an_item(iterate, said):
    is_told(n02.check_dealt, [with_methods(solved.Dealt, __iter__=iterate)], said)


def by_next(self):
    info = get_worker_info()
    worker, workers = (info.id, info.num_workers) if info else (0, 1)
    first = self.rank + self.world_size * worker
    items = self.read()
    for place in range(10**9):
        try:
            item = next(items)
        except StopIteration:
            return
        if place % (self.world_size * workers) == first:
            yield item


def test_a_stream_may_be_a_list_as_well_as_an_iterator():
    said = n02.check_dealt(with_methods(solved.Dealt, __iter__=by_next)).message
    assert "your code raised TypeError: 'list' object is not an iterator" in said
    assert "`read()` gives a list here." in said


# ---- exercise 4
def with_waiting(items, size, generator, fill=None, draw=None):
    """Do it right, but for how many wait (`fill`) and of how many places one is drawn (`draw`)."""
    waiting = []
    for item in items:
        if len(waiting) < (fill or size):
            waiting.append(item)
        else:
            place = generator.integers(draw or size)
            yield waiting[place]
            waiting[place] = item
    generator.shuffle(waiting)
    yield from waiting


def until_one_is_false(items, size, generator):
    items = iter(items)
    waiting = [*islice(items, size)]
    while item := next(items, None):
        place = generator.integers(size)
        yield waiting[place]
        waiting[place] = item
    generator.shuffle(waiting)
    yield from waiting


def none_that_is_false(items, size, generator):
    return solved.buffered(filter(None, items), size, generator)


def rest_by_permutation(items, size, generator):
    waiting = []
    for item in items:
        waiting.append(item)
        if len(waiting) == size:
            yield waiting.pop(int(generator.integers(size)))
    yield from generator.permutation(waiting)


def drawn_by_value(items, size, generator):
    waiting = []
    for item in items:
        waiting.append(item)
        if len(waiting) == size:
            chosen = generator.choice(waiting)
            waiting.remove(chosen)
            yield chosen
    generator.shuffle(waiting)
    yield from waiting


def in_a_set(items, size, generator):
    waiting = set()
    for item in items:
        waiting.add(item)
        if len(waiting) == size:
            chosen = sorted(waiting)[generator.integers(size)]
            waiting.remove(chosen)
            yield chosen
    rest = sorted(waiting)
    generator.shuffle(rest)
    yield from rest


def in_an_array(items, size, generator):
    waiting = np.zeros(size, dtype=int)
    filled = 0
    for item in items:
        place = filled if filled < size else generator.integers(size)
        if filled == size:
            yield waiting[place]
        filled = min(size, filled + 1)
        waiting[place] = item
    yield from waiting[generator.permutation(filled)]


def with_a_copy_of_the_generator(items, size, generator):
    return solved.buffered(items, size, copy.deepcopy(generator))


def with_a_child_of_the_generator(items, size, generator):
    return solved.buffered(items, size, generator.spawn(1)[0])


def eight_at_most(items, size, generator):
    return with_waiting(items, size, generator, draw=min(size, 8))


def one_too_few(items, size, generator):
    few = max(1, size - 1)
    return with_waiting(items, size, generator, fill=few, draw=few)


def never_the_newest(items, size, generator):
    waiting = []
    for item in items:
        waiting.append(item)
        if len(waiting) == size:
            yield waiting.pop(int(generator.integers(max(1, size // 2))))
    generator.shuffle(waiting)
    yield from waiting


def removed_by_value(items, size, generator):
    waiting = []
    for item in items:
        waiting.append(item)
        if len(waiting) == size:
            chosen = waiting[int(generator.integers(size))]
            waiting.remove(chosen)
            yield chosen
    generator.shuffle(waiting)
    yield from waiting


def found_by_value(items, size, generator):
    waiting = []
    for item in items:
        if len(waiting) < size:
            waiting.append(item)
        else:
            leaves = waiting[generator.integers(size)]
            waiting[waiting.index(leaves)] = item
            yield leaves
    generator.shuffle(waiting)
    yield from waiting


def with_weights(weights):
    """Draw places with these chances, the last one for all further places."""

    def buffered(items, size, generator):
        chances = np.array([*weights, *[weights[-1]] * size][:size], dtype=float)
        waiting = []
        for item in items:
            if len(waiting) < size:
                waiting.append(item)
            else:
                place = generator.choice(size, p=chances / chances.sum())
                yield waiting[place]
                waiting[place] = item
        generator.shuffle(waiting)
        yield from waiting

    return buffered


@pytest.mark.parametrize("weights", [(2, 1), (1, 2), (1, 2, 1), (1, 1, 2, 1), (1, 1, 1, 2), (2, 2, 1, 2)])
def test_a_place_that_has_twice_the_chance_of_another_is_seen(weights):
    is_told(n02.check_buffered, [with_weights(weights)], buffering.CHANCE)


@pytest.mark.parametrize(
    "buffered, said",
    [
        (removed_by_value, buffering.EQUAL),
        (found_by_value, buffering.EQUAL),
        (until_one_is_false, buffering.FALSE),
        (none_that_is_false, buffering.FALSE),
        (rest_by_permutation, buffering.THING),
        (drawn_by_value, buffering.THING),
        (in_an_array, buffering.THING),
        (in_a_set, buffering.EQUAL),
        (with_a_copy_of_the_generator, buffering.MOVES_ON),
        (with_a_child_of_the_generator, buffering.MOVES_ON),
        (eight_at_most, buffering.CHANCE),
        (one_too_few, buffering.NEWEST),
        (never_the_newest, buffering.NEWEST),
    ],
)
def test_a_buffer_of_any_size_hands_on_whatever_comes(buffered, said):
    is_told(n02.check_buffered, [buffered], said)


def with_a_chance_drawn_once(items, size, generator):
    """Draw for each item when it comes, and let the least leave: who has drawn high waits to the end."""
    waiting = []
    for number, item in enumerate(items):
        if len(waiting) == size:
            yield heapq.heappop(waiting)[-1]
        heapq.heappush(waiting, (generator.random(), number, item))
    while waiting:
        yield heapq.heappop(waiting)[-1]


def front_of_a_list_twice(items, size, generator):
    waiting = [*islice(items, size)]
    for item in items:
        place = generator.integers(size)
        yield waiting[place]
        waiting[place] = item
    generator.shuffle(waiting)
    yield from waiting


def as_it_came_if_just_full(items, size, generator):
    waiting = []
    for item in items:
        waiting.append(item)
        if len(waiting) > size:
            place = generator.integers(size)
            waiting[place], waiting[-1] = waiting[-1], waiting[place]
            yield waiting.pop()
    if len(waiting) != size:
        generator.shuffle(waiting)
    yield from waiting


def unshuffled_if_nothing_was_drawn(items, size, generator):
    waiting = []
    drawn_from = False
    for item in items:
        if len(waiting) < size:
            waiting.append(item)
        else:
            drawn_from = True
            place = generator.integers(size)
            yield waiting[place]
            waiting[place] = item
    if drawn_from or len(waiting) < size:
        generator.shuffle(waiting)
    yield from waiting


def drawn_by_rounding(items, size, generator):
    """Draw the first and the last place half as often as the others."""
    waiting = []
    for item in items:
        if len(waiting) < size:
            waiting.append(item)
        else:
            place = round(generator.random() * (size - 1))
            yield waiting[place]
            waiting[place] = item
    generator.shuffle(waiting)
    yield from waiting


def with_a_naive_end(items, size, generator):
    waiting = []
    for item in items:
        if len(waiting) < size:
            waiting.append(item)
        else:
            place = generator.integers(size)
            yield waiting[place]
            waiting[place] = item
    for place in range(len(waiting)):
        other = generator.integers(len(waiting))
        waiting[place], waiting[other] = waiting[other], waiting[place]
    yield from waiting


def default_that_all_share(items, size, generator, waiting=[]):  # noqa: B006 the mistake
    for item in items:
        if len(waiting) < size:
            waiting.append(item)
        else:
            place = generator.integers(size)
            yield waiting[place]
            waiting[place] = item
    generator.shuffle(waiting)
    yield from waiting


def default_that_is_emptied_at_the_end(items, size, generator, waiting=[]):  # noqa: B006 the mistake
    for item in items:
        if len(waiting) < size:
            waiting.append(item)
        else:
            place = generator.integers(size)
            yield waiting[place]
            waiting[place] = item
    generator.shuffle(waiting)
    while waiting:
        yield waiting.pop()


@pytest.mark.parametrize(
    "buffered, said",
    [
        (front_of_a_list_twice, buffering.FRONT),
        (as_it_came_if_just_full, buffering.TAIL),
        (unshuffled_if_nothing_was_drawn, buffering.TAIL),
        (drawn_by_rounding, buffering.CHANCE),
        (with_a_chance_drawn_once, buffering.CHANCE),
        (with_a_naive_end, buffering.TAIL),
        (default_that_all_share, buffering.LEFT),
        (default_that_is_emptied_at_the_end, buffering.LEFT),
    ],
)
def test_a_buffer_takes_lists_shuffles_every_end_and_keeps_nothing(buffered, said):
    is_told(n02.check_buffered, [buffered], said)


def with_a_draw_that_is_not_used(items, size, generator):
    waiting = []
    for item in items:
        waiting.append(item)
        if len(waiting) == size:
            generator.permutation(waiting)
            yield waiting.pop(0)
    yield from waiting


def test_whoever_draws_and_does_not_use_it_is_not_told_to_draw_nothing():
    is_told(n02.check_buffered, [with_a_draw_that_is_not_used], buffering.SAME)
    assert "nothing is drawn" not in n02.check_buffered(with_a_draw_that_is_not_used).message
