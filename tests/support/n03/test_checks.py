"""What is particular about the checks of notebook 03; what all exercises have in common is in test_detectors."""

import random

import numpy
import pytest
import torch
from torch.utils.data import DistributedSampler as TorchSampler

from lib.data.samplers import DistributedSampler
from support.built import MyDistributedSampler, my_share
from support.n03 import checks as n03
from support.n03 import stories
from tests.support.n03.answers import (
    Prepared,
    Written,
    in_order,
    in_order_by_places,
    share,
    share_by_places,
    written,
)


def mistake(exercise, start):
    return next(wrong for why, wrong in exercise.mistakes.items() if why.startswith(start))


@pytest.mark.costly
def test_right_answers_that_ask_no_sampler_pass_and_libs_class_and_the_reference_deals_as_torchs():
    for answer in (share, share_by_places):
        assert n03.check_share(answer)
    for kind in (Written, Prepared, DistributedSampler):
        assert n03.check_sampler(kind), n03.check_sampler(kind)
    for answer in (in_order, in_order_by_places):
        assert n03.check_in_order(answer)
    shares = [n03.check_share.reference([4, 1, 7, 5, 3, 9, 0, 8, 6, 2], 3, rank, False) for rank in range(3)]
    assert shares == [list(TorchSampler(range(10), 3, rank)) for rank in range(3)]
    assert shares == [[4, 5, 0, 2], [1, 3, 8, 4], [7, 9, 6, 1]]


def test_the_first_counterexample_of_a_share_is_told_and_padding_once_is_wrong_only_where_too_short():
    message = n03.check_share(mistake(n03.check_share, "You padded with 0, or")).message
    assert "world_size = 3, rank = 1, drop_last = False, item 3 is to be 80, from position 0 of the order" in message
    assert "and 0 stands nowhere in the order" in message
    cases = {(len(c["order"]), c["world_size"], c["rank"], c.get("drop_last", False)) for c in n03.check_share.cases()}
    assert cases >= {(n, w, r, d) for n in range(1, 25) for w in range(1, 10) for r in range(w) for d in (False, True)}
    assert all(c["order"] != sorted(c["order"]) for c in n03.check_share.cases() if len(c["order"]) > 5)
    once = mistake(n03.check_share, "You appended the head once")
    true = n03.check_share.reference
    short = [case for case in n03.check_share.cases() if once(**case) != true(**case)]
    assert short
    assert all(case["world_size"] > 2 * len(case["order"]) and not case.get("drop_last") for case in short)


def test_drop_last_is_false_where_it_is_not_given():
    def dropping(order, world_size, rank, drop_last=True):
        return share(order, world_size, rank, drop_last)

    message = n03.check_share(dropping).message
    assert "world_size = 3, rank = 1, of 10 indices each of 3 ranks gets 4" in message


def in_place(order, **how):
    order[:] = share(order, 1, 0, False)
    order += order[: -len(order) % how["world_size"]]
    return share(order, **how)


def emptied(gathered, size):
    answers = in_order(gathered, size)
    gathered.pop()
    return answers


def left_open(self, epoch): ...


def adds_to_the_seed(self, epoch):
    self.seed += epoch


def remembers(self):
    """The bug of the chapter, written by a reader: the first order for ever."""
    if not hasattr(self, "first"):
        self.first = [*Written.__iter__(self)]
    return iter(self.first)


def drawn_when_made(self, *arguments, **named):
    Written.__init__(self, *arguments, **named)
    self.drawn = [*Written.__iter__(self)]


def turns_as_lists(gathered, size):
    return [list(turn) for batch in gathered for turn in zip(*batch, strict=True)][:size]


@pytest.mark.parametrize(
    "check, answer, said, false",
    [
        (
            "check_sampler",
            written(__init__=drawn_when_made, __iter__=lambda self: iter(self.drawn)),
            "Epoch 0 for ever",
            "in the seed",  # it is
        ),
        ("check_in_order", turns_as_lists, "return one list of answers", "tuple"),
    ],
)
def test_a_famous_mistake_in_other_words_is_told_nothing_false(check, answer, said, false):
    message = getattr(n03, check)(answer).message
    assert said in message
    assert false not in message


def of_the_dataset(self, dataset, *arguments, **named):
    Written.__init__(self, dataset, *arguments, **named)
    self.data = dataset


def reads_items(self, dataset, *arguments, **named):
    """Right indices, by way of every item: `list(dataset)` in place of a length."""
    Written.__init__(self, dataset, *arguments, **named)
    self.size = len([*dataset])


def looks_at_the_first(self):
    self.data[0]
    return Written.__iter__(self)


def keeps_its_pass(self):
    self.passed = Written.__iter__(self)
    return self


@pytest.mark.parametrize(
    "check, answer, said",
    [
        ("check_share", in_place, "got a change of `order`"),
        ("check_share", lambda order, **how: iter(share(order, **how)), "got a list_iterator, not a list"),
        ("check_share", lambda order, **how: (index for index in share(order, **how)), "got a generator, not a list"),
        ("check_in_order", emptied, "got a change of `gathered`"),
        ("check_in_order", lambda gathered, size: tuple(in_order(gathered, size)), "got a tuple, not a list"),
        ("check_sampler", written(__iter__=lambda self: [*Written.__iter__(self)]), "got a list, which is no iterator"),
        (
            "check_sampler",
            written(__iter__=lambda self: iter(torch.tensor([*Written.__iter__(self)]))),
            "got indices of type Tensor",
        ),
        ("check_sampler", written(__iter__=lambda self: None), "__iter__ returned None (is a `return` missing?)"),
        ("check_sampler", written(set_epoch=adds_to_the_seed), "adds to what an earlier call has left"),
        ("check_sampler", written(__iter__=remembers), "order of the first pass is kept for ever"),
        (
            "check_sampler",
            written(
                __init__=of_the_dataset, __iter__=lambda self: (self.data[index] for index in Written.__iter__(self))
            ),
            "got indices of type str",
        ),
        ("check_sampler", written(__init__=reads_items), "an item of the dataset was asked for"),
        (
            "check_sampler",
            written(__init__=of_the_dataset, __iter__=looks_at_the_first),
            "You asked the dataset for its items",
        ),
        (
            "check_sampler",
            written(__iter__=keeps_its_pass, __next__=lambda self: next(self.passed)),
            "Your __iter__ returns the sampler itself",
        ),
        ("check_sampler", written(set_epoch=left_open), "MyDistributedSampler: still the stub: set_epoch"),
        ("check_sampler", written(set_epoch=lambda self, epoch: None), "Epoch 0 for ever"),  # whoever wrote that, began
    ],
)
def test_an_answer_that_has_the_right_indices_and_cannot_be_used_is_refused_and_told_why(check, answer, said):
    verdict = getattr(n03, check)(answer)
    assert not verdict
    assert said in verdict.message


def test_torchs_own_generator_is_as_before_whatever_a_sampler_does_to_it():
    before = torch.get_rng_state()
    verdict = n03.check_sampler(mistake(n03.check_sampler, "A pass touches torch's global"))
    assert stories.ALONE in verdict.message
    assert torch.equal(before, torch.get_rng_state())


# ---- right in every index that was asked for first, and wrong later in its life, or for others


def test_an_order_that_a_share_has_kept_from_an_earlier_call_is_noticed_and_so_are_other_ways_to_pad():
    kept = {}

    def remembered(order, world_size, rank, drop_last=False):
        key = (len(order), world_size, drop_last)
        return share(kept.setdefault(key, order), world_size, rank, drop_last)

    assert "You keep what an earlier call has made" in n03.check_share(remembered).message

    def backwards(order, world_size, rank, drop_last=False):
        padded = order if drop_last else order + order[::-1] * world_size
        steps = len(share(order, world_size, rank, drop_last))
        return padded[: steps * world_size][rank::world_size]

    assert "from the end of the order" in n03.check_share(backwards).message


@pytest.mark.costly
def test_the_check_leaves_pythons_and_numpys_generators_as_they_were_though_a_mistake_seeds_them():
    random.seed(20)
    numpy.random.seed(20)  # noqa: NPY002
    python_before = random.getstate()
    numpy_before = numpy.random.get_state()[1].tolist()  # noqa: NPY002
    assert n03.check_sampler(MyDistributedSampler)
    assert random.getstate() == python_before
    assert numpy.random.get_state()[1].tolist() == numpy_before  # noqa: NPY002


def test_no_samples_are_shared_out_as_torch_does_it_whatever_the_ranks():
    for drop_last in (False, True):
        assert my_share([], 3, 1, drop_last) == []
        ours, libs, torchs = (
            kind(range(0), 3, 1, drop_last=drop_last)
            for kind in (MyDistributedSampler, DistributedSampler, TorchSampler)
        )
        assert [*ours] == [*libs] == [*torchs] == []
        assert len(ours) == len(libs) == len(torchs) == 0


def made_as(**changed):
    """Return an __init__ with other defaults than torch's."""
    own = dict(shuffle=True, seed=0, drop_last=False) | changed

    def __init__(
        self, dataset, num_replicas, rank, shuffle=own["shuffle"], seed=own["seed"], drop_last=own["drop_last"]
    ):
        Written.__init__(self, dataset, num_replicas, rank, shuffle, seed, drop_last)

    return __init__


def named_otherwise(self, dataset, W, r, shuf=True, sd=0, dl=False):
    Written.__init__(self, dataset, W, r, shuf, sd, dl)


def seeded_below(limit):
    def __init__(self, dataset, num_replicas, rank, shuffle=True, seed=0, drop_last=False):
        Written.__init__(self, dataset, num_replicas, rank, shuffle, seed % limit, drop_last)

    return __init__


def epochs_below(limit):
    def set_epoch(self, epoch):
        self.epoch = epoch % limit

    return set_epoch


def of_the_class(self, *arguments, **named):
    Written.__init__(self, *arguments, **named)
    type(self).epoch = 0
    del self.epoch


def told_to_the_class(self, epoch):
    type(self).epoch = epoch


def one_buffer(self):
    buffer = self.__dict__.setdefault("buffer", [])
    buffer[:] = Written.__iter__(self)
    return iter(buffer)


def refills(self, epoch):
    """One list for ever, filled again: whoever reads it reads the new epoch."""
    self.epoch = epoch
    self.__dict__.setdefault("drawn", [])[:] = Written.__iter__(self)


def drawn_once_at_least(self):
    if not hasattr(self, "drawn"):
        self.set_epoch(self.epoch)
    return self.drawn


def drawn_when_made(self, *arguments, **named):
    Written.__init__(self, *arguments, **named)
    torch.rand(1)


def seeds_torch(self, epoch):
    self.epoch = epoch
    torch.manual_seed(epoch)


def seeds_torch_for_its_length(self):
    torch.manual_seed(0)
    return Written.__len__(self)


def seeds_python(self):
    random.seed(0)
    return Written.__iter__(self)


def seeds_numpy(self):
    numpy.random.seed(0)  # noqa: NPY002
    return Written.__iter__(self)


def open_to_all(self, dataset, num_replicas, rank, shuffle=True, seed=0, drop_last=False):
    Written.__init__(self, dataset, num_replicas, 0, shuffle, seed, drop_last)
    self.rank = rank


def refused_when_listed(self):
    if self.rank not in range(self.world_size):
        raise ValueError("no such rank")
    return Written.__iter__(self)


def refused_next_door(self, dataset, num_replicas, rank, *others, **named):
    if rank in (-1, num_replicas):
        raise ValueError("no such rank")
    Written.__init__(self, dataset, num_replicas, rank % num_replicas, *others, **named)


def reseeds_torch(self):
    """Leaves torch's generator as it was when it was seeded, not as it was."""
    seed = torch.initial_seed()
    torch.manual_seed(self.seed + self.epoch)
    order = torch.randperm(self.size).tolist() if self.shuffle else list(range(self.size))
    torch.manual_seed(seed)
    return iter(share(order, self.world_size, self.rank, self.drop_last))


def seeds_its_own(self, epoch):
    self.generator = torch.Generator().manual_seed(self.seed + epoch)


def goes_on(self):
    if not hasattr(self, "generator"):
        self.set_epoch(0)
    order = torch.randperm(self.size, generator=self.generator).tolist() if self.shuffle else list(range(self.size))
    return iter(share(order, self.world_size, self.rank, self.drop_last))


def divided_by_its_length(self):
    order = [*Written.__iter__(self)]
    return iter((order * -(-len(self) // len(order)))[: len(self)])


def asserted(self, dataset, num_replicas, rank, shuffle=True, seed=0, drop_last=False):
    assert rank in range(num_replicas)
    Written.__init__(self, dataset, num_replicas, rank, shuffle, seed, drop_last)


def seeds_torch_when_made(self, dataset, num_replicas, rank, shuffle=True, seed=0, drop_last=False):
    Written.__init__(self, dataset, num_replicas, rank, shuffle, seed, drop_last)
    self.generator = torch.default_generator.manual_seed(seed)  # not the sampler's own


#: True whether the pass waits for its first index or reads a list that is filled again.
FOLLOWS = "A pass that has begun follows a later set_epoch"


@pytest.mark.parametrize(
    "methods, said",
    [
        (dict(__init__=made_as(shuffle=False)), "Where shuffle is not given, it is True."),
        (dict(__init__=made_as(seed=1)), "Where the seed is not given, it is 0."),
        (dict(__init__=made_as(drop_last=True)), "Where drop_last is not given, it is False."),
        (dict(__init__=named_otherwise), "Scripts name the arguments"),
        (dict(set_epoch=epochs_below(8)), "You take the epoch modulo something"),
        (dict(set_epoch=epochs_below(100)), "You take the epoch modulo something"),
        (dict(__init__=seeded_below(8)), "You take the seed modulo something"),
        (dict(__init__=of_the_class, set_epoch=told_to_the_class), "Two samplers share an epoch"),
        (dict(__iter__=one_buffer), "A second pass disturbs the one that runs"),
        (dict(set_epoch=refills, __iter__=lambda self: iter(drawn_once_at_least(self))), FOLLOWS),
        (dict(set_epoch=refills, __iter__=lambda self: (i for i in drawn_once_at_least(self))), FOLLOWS),
        (dict(__iter__=lambda self: (yield from Written.__iter__(self))), FOLLOWS),
        (dict(__init__=drawn_when_made), "Making a sampler of yours touches"),
        (dict(set_epoch=seeds_torch), "set_epoch touches torch's global generator"),
        (dict(__len__=seeds_torch_for_its_length), "len() touches torch's global generator"),
        (dict(__iter__=seeds_python), "the global generator of Python's random"),
        (dict(__iter__=seeds_numpy), "NumPy's are not"),
        (dict(set_epoch=seeds_its_own, __iter__=goes_on), "The generator goes on from pass to pass"),
        (dict(__init__=seeds_torch_when_made, __iter__=goes_on), "The generator goes on from pass to pass"),
        (dict(__iter__=reseeds_torch), "A pass touches torch's global generator"),
        (dict(__init__=open_to_all, __iter__=refused_when_listed), "refused too late"),
        (dict(__init__=asserted), "refused by AssertionError, which is no ValueError"),
        (dict(__init__=refused_next_door), "expected 4 refused, got 4 taken"),
        (dict(__iter__=divided_by_its_length), "size = 0, num_replicas = 3"),
        (dict(set_epoch=lambda self, e: Written.set_epoch(self, e)), "unexpected keyword argument 'epoch'"),
        (dict(__init__=lambda self, data, *how: Written.__init__(self, data or [], *how)), "a dataset may be a tensor"),
    ],
)
def test_a_sampler_that_goes_wrong_late_or_for_others_is_refused_and_told_where(methods, said):
    for state in (0, 1):  # whatever torch's generator has been seeded with before
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(state)
            verdict = n03.check_sampler(written(**methods))
        assert not verdict
        assert said in verdict.message, verdict
        assert "No rank is refused" not in verdict.message


# ---- answers may be anything


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda answers: [answer for answer in answers if answer is not None], "You left out answers that are None"),
        (lambda answers: [answer for answer in answers if answer], "You left out answers that count as false"),
        (
            lambda answers: [part for one in answers for part in (one if isinstance(one, (list, tuple)) else [one])],
            "You opened an answer that is a list or tuple",
        ),
        (lambda answers: sorted(answers, key=by_number), "You sorted the answers"),
    ],
)
def test_answers_are_neither_left_out_nor_opened_nor_sorted(change, said):
    verdict = n03.check_in_order(lambda gathered, size: change(in_order(gathered, None))[:size])
    assert not verdict
    assert said in verdict.message, verdict


def by_number(answer):
    """Read a name such as a7 by its number."""
    return (int(answer[1:]), "") if answer[1:].isdigit() else (0, answer)


# ---- predictions


def test_a_famous_wrong_guess_is_named_and_the_limit_of_the_missed_share_is_not_the_answer():
    for share_of_seven in ("[1]", "1", (1,), [1], 1):  # in any way of writing it
        assert "that is it" in n03.guess_last_of_eight(share_of_seven).message
    assert "that is it" not in n03.guess_last_of_eight(-1).message
    assert "one for each run and epoch" in n03.guess_orders(36).message
    assert "six seeds and six epochs" in n03.guess_orders(12).message
    assert "one process alone" in n03.guess_left_out(1437 % 64).message
    assert "no_grad switches it off" in n03.guess_broadcasts(2, ["broadcast", "broadcast, x", "broadcast", "x"]).message
    said = {guess: "that is it" in n03.guess_missed_percent(guess).message for guess in (33, 34, 0.344, 35, 36, 37)}
    assert said == {33: False, 34: True, 0.344: True, 35: True, 36: False, 37: False}
