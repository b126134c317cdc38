"""What answers of notebook 03 keep from an earlier call, or have for small cases only, and how a refusal is told."""

import itertools
import json
import re

import numpy
import pytest
import torch

from support.n03 import checks as n03
from tests.support.n03.answers import Written, in_order, share, written


def padded_with(times):
    def padded(order, world_size, rank, drop_last=False):
        steps = len(order) // world_size if drop_last else -(-len(order) // world_size)
        return (order * times)[: steps * world_size][rank::world_size]

    return padded


def uncut(order, world_size, rank, drop_last=False):
    return (order * 9)[rank::world_size]


def in_one_list():
    kept = []

    def shared(order, world_size, rank, drop_last=False):
        kept[:] = share(order, world_size, rank, drop_last)
        return kept

    return shared


def remembered_by(key):
    """Keeps what it has once made, for ever, under a key that does not say everything."""
    kept = {}

    def shared(order, world_size, rank, drop_last=False):
        found = kept.setdefault(key(order, world_size, rank, drop_last), share(order, world_size, rank, drop_last))
        return [*found]

    return shared


@pytest.mark.costly
def test_few_samples_on_very_many_ranks_are_asked_for():
    assert not n03.check_share(padded_with(10_000))
    verdict = n03.check_share(padded_with(9))
    assert "world_size = 64, rank = 32" in verdict.message, verdict
    assert "of 1 index each of 64 ranks gets 1, rank 32 [10]; you give 0: []" in verdict.message


def times_as_often_as_needed(order, world_size, rank, drop_last=False):
    """Asks how often the order goes into the total: no samples at all go into nothing."""
    total = world_size * (len(order) // world_size if drop_last else -(-len(order) // world_size))
    return (order * -(-total // len(order)))[:total][rank::world_size]


def with_whole_rows(order, world_size, rank, drop_last=False):
    """Drops each row that has something false in it."""
    if not drop_last:
        return share(order, world_size, rank)
    return [row[rank] for row in itertools.zip_longest(*[iter(order)] * world_size) if all(row)]


def dealt_by_hand(order, world_size, rank, drop_last=False):
    """Right, in time that grows with the square of the ranks."""
    hands = [order[number::world_size] for number in range(world_size)]
    if drop_last:
        return hands[rank][: len(hands[-1])]
    turn = len(order)
    while any(len(hand) < len(hands[0]) for hand in hands):
        hands[turn % world_size].append(order[turn % len(order)])
        turn += 1
    return hands[rank]


def test_no_samples_are_samples_and_index_0_is_an_index():
    assert "order = []" in n03.check_share(times_as_often_as_needed).message
    assert not n03.check_share(with_whole_rows)


@pytest.mark.costly
def test_a_share_may_take_turns_for_every_rank_of_a_very_large_world():
    assert n03.check_share(dealt_by_hand)


def test_a_share_that_is_too_long_is_not_told_of_another_mistake_with_as_many():
    verdict = n03.check_share(uncut)
    assert "you give more" in verdict.message
    assert "floor" not in verdict.message


@pytest.mark.parametrize(
    "key",
    [
        lambda order, *case: case,
        lambda order, *case: (len(order), *case),
        lambda order, *case: (sum(order), *case),
        lambda order, *case: (order[0], len(order), *case),
        lambda order, *case: (order[0], order[-1], len(order), *case),
        lambda order, world_size, rank, drop_last: (tuple(order), world_size, rank),
    ],
)
def test_a_share_that_is_kept_under_too_short_a_key_is_refused(key):
    assert not n03.check_share(remembered_by(key))


def test_a_share_that_is_kept_under_all_it_depends_on_is_right_and_one_that_changes_later_is_not():
    assert n03.check_share(remembered_by(lambda order, *case: (tuple(order), *case)))
    verdict = n03.check_share(in_one_list())
    assert "a change of what an earlier call has returned" in verdict.message


def remembering(*what):
    """Make a sampler whose class keeps orders for ever, under a key that does not say everything."""
    kept = {}

    def order_of(self):
        key = tuple(getattr(self, name) for name in what)
        return iter(kept.setdefault(key, [*Written.__iter__(self)]))

    return written(__iter__=order_of)


def of_the_class(*names):
    """Make a sampler that keeps these in its class: the one that is made last has its way with all."""

    def made(self, *arguments, **named):
        Written.__init__(self, *arguments, **named)
        for name in names:
            setattr(type(self), name, vars(self).pop(name))

    return written(__init__=made)


@pytest.mark.parametrize("name", ["size", "world_size", "rank", "shuffle", "seed", "drop_last"])
def test_a_sampler_that_is_made_otherwise_changes_nothing_in_another(name):
    verdict = n03.check_sampler(of_the_class(name))
    assert not verdict
    assert "make another sampler otherwise" in verdict.message, verdict


@pytest.mark.parametrize("rounded", [numpy.ceil, lambda length: torch.tensor(length).ceil().item()])
def test_a_length_that_len_refuses_is_refused(rounded):
    def length(self):
        return self.size // self.world_size if self.drop_last else rounded(self.size / self.world_size)

    verdict = n03.check_sampler(written(__len__=length))
    assert re.search(r"got a float(64)?, which len\(\) refuses: a length is an int", verdict.message), verdict


def test_a_length_may_be_anything_that_len_takes_and_an_index_any_whole_number():
    methods = dict(
        __len__=lambda self: numpy.int64(Written.__len__(self)),
        __iter__=lambda self: map(numpy.int64, Written.__iter__(self)),
    )
    assert n03.check_sampler(written(**methods))


def one_place(self):
    """Has a list for each pass, and one place in it for all passes, set when the first index is asked for."""
    own = [*Written.__iter__(self)]

    def walked():
        self.place = 0
        while self.place < len(own):
            yield own[self.place]
            self.place += 1

    return walked()


def one_list_from_the_first_index_on(self):
    own = [*Written.__iter__(self)]

    def walked():
        self.own = own
        for place in range(len(own)):
            yield self.own[place]

    return walked()


@pytest.mark.parametrize("passed", [one_place, one_list_from_the_first_index_on])
def test_a_pass_that_has_given_an_index_goes_on_whatever_comes_between(passed):
    verdict = n03.check_sampler(written(__iter__=passed))
    assert not verdict
    assert "take one index, set_epoch(1), list, list the pass begun" in verdict.message, verdict


def test_torchs_global_generator_is_left_alone_also_where_nothing_is_shuffled():
    def seeded(self):
        if not self.shuffle:
            torch.manual_seed(self.seed)
        return Written.__iter__(self)

    assert not n03.check_sampler(written(__iter__=seeded))


def test_a_share_is_made_of_whole_numbers():
    for kind in (float, torch.tensor):
        verdict = n03.check_share(lambda kind=kind, **case: [kind(index) for index in share(**case)])
        assert "which is no index" in verdict.message, verdict
    assert n03.check_share(lambda **case: [*map(numpy.int64, share(**case))])


ALL = ("size", "world_size", "rank", "shuffle", "seed", "epoch", "drop_last")


@pytest.mark.parametrize("missing", ALL)
def test_samplers_that_share_what_they_keep_are_refused_whatever_the_key_lacks(missing):
    verdict = n03.check_sampler(remembering(*(name for name in ALL if name != missing)))
    assert not verdict
    told = [why for why in n03.check_sampler.mistakes if why in verdict.message]
    assert [why for why in told if "share what they keep" not in why] == [], verdict


@pytest.mark.costly
def test_samplers_that_share_what_they_keep_under_all_it_depends_on_are_right():
    assert n03.check_sampler(remembering(*ALL))


def test_orders_kept_by_length_and_epoch_are_told_that_another_seed_gets_them():
    kept = {}

    def by_length_and_epoch(self):
        order = list(range(self.size))
        if self.shuffle:
            generator = torch.Generator().manual_seed(self.seed + self.epoch)
            order = kept.setdefault((self.size, self.epoch), torch.randperm(self.size, generator=generator).tolist())
        return iter(share(order, self.world_size, self.rank, self.drop_last))

    verdict = n03.check_sampler(written(__iter__=by_length_and_epoch))
    assert "an order drawn for one seed is given out for another" in verdict.message, verdict


@pytest.mark.parametrize(
    "answer, said",
    [
        (
            lambda gathered, size: [*zip(*gathered, strict=True)][:size],
            "sample 0 has the answer a0, and at place 0 of your list",
        ),
        (
            lambda gathered, size: in_order(gathered, size)[:-1],
            "8 answers are due, one for each sample, and you give 7",
        ),
        (lambda gathered, size: in_order(gathered, size)[::-1], "sample 0 has the answer a0, and at place 0"),
        (
            lambda gathered, size: [str(answer) for answer in in_order(gathered, size)],
            "sample 0 has the answer True, and at place 0 of your list stands True, a str:",
        ),
        (
            lambda gathered, size: in_order(json.loads(json.dumps(gathered)), size),
            "sample 0 has the answer (1, 2), and at place 0 of your list stands [1, 2], a list:",
        ),
    ],
)
def test_answers_out_of_order_are_told_by_the_sample_that_has_not_its_own(answer, said):
    assert said in n03.check_in_order(answer).message


def test_a_false_answer_made_a_zero_is_not_told_that_one_was_left_out():
    verdict = n03.check_in_order(lambda gathered, size: [answer or 0 for answer in in_order(gathered, size)])
    assert "stands 0, a int:" in verdict.message, verdict
    assert "left out" not in verdict.message, verdict


@pytest.mark.parametrize("most", [9, 12, 30, 60])
def test_a_share_is_asked_for_on_any_number_of_ranks(most):
    def right_on_few_ranks(order, world_size, rank, drop_last=False):
        due = share(order, world_size, rank, drop_last)
        return due if world_size <= most or len(order) < world_size else due[: len(order) // world_size]

    verdict = n03.check_share(right_on_few_ranks)
    assert not verdict
    assert "you give" in verdict.message, verdict


@pytest.mark.parametrize("change", [abs, lambda seed: max(seed, 0), lambda seed: seed % 2**31])
@pytest.mark.costly
def test_seeds_may_be_below_zero(change):
    def made(self, dataset, num_replicas, rank, shuffle=True, seed=0, drop_last=False):
        Written.__init__(self, dataset, num_replicas, rank, shuffle, change(seed), drop_last)

    verdict = n03.check_sampler(written(__init__=made))
    assert not verdict
    assert "seed = -3" in verdict.message
    assert [why for why in n03.check_sampler.mistakes if why in verdict.message] == []
