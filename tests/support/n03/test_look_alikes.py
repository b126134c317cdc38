"""Answers of notebook 03 that look like a famous mistake in their first wrong case, and are none."""

import pytest
import torch

from support.n03 import checks as n03
from tests.support.n03.answers import Written, in_order, share, written


def rounded_down(order, world_size, rank, drop_last=False):
    return order[rank::world_size][: len(order) // world_size]


def the_wrong_way_round(order, world_size, rank, drop_last=False):
    return share(order, world_size, rank, not drop_last)


def padded_backwards(order, world_size, rank, drop_last=False):
    """Pads with the head in reverse: among 10 samples on 3 ranks that looks like a rank's own first index."""
    missing = 0 if drop_last else -len(order) % world_size
    dealt = order if missing else order[: len(order) // world_size * world_size]
    return [*dealt, *(order * (missing + 1))[:missing][::-1]][rank::world_size]


def length_to_the_nearest(self):
    return self.size // self.world_size if self.drop_last else round(self.size / self.world_size)


def rank_wrapped(self, dataset, num_replicas, rank, *others, **named):
    Written.__init__(self, dataset, num_replicas, rank % num_replicas, *others, **named)


def seed_last(self, dataset, num_replicas, rank, shuffle=True, drop_last=False, seed=0):
    Written.__init__(self, dataset, num_replicas, rank, shuffle, seed, drop_last)


class Multiplied(Written):
    """Seeds with seed × epoch: in epoch 0 that looks like a seed without effect."""

    def __iter__(self):
        order = list(range(self.size))
        if self.shuffle:
            generator = torch.Generator().manual_seed(self.seed * self.epoch)
            order = torch.randperm(self.size, generator=generator).tolist()
        return iter(share(order, self.world_size, self.rank, self.drop_last))


def instead_of_the_seed(self, epoch):
    self.seed = epoch


def length_the_wrong_way_round(self):
    return len(share(list(range(self.size)), self.world_size, self.rank, not self.drop_last))


def drawn_with_a_slip(self, *arguments, **named):
    """Draws when it is made, and hands on no generator."""
    Written.__init__(self, *arguments, **named)
    if self.shuffle:
        torch.randperm(self.size, generator=self.seed)


def of_all(self, epoch):
    """Keeps the epoch at the level of the module."""
    EPOCHS[:] = [epoch]


EPOCHS = [0]


def first_of_all(self, *arguments, **named):
    Written.__init__(self, *arguments, **named)
    EPOCHS[:] = [0]


def drawn_of_all(self):
    self.epoch = EPOCHS[0]
    return Written.__iter__(self)


def read_through_itself(self):
    """Makes a list for each pass, and reads whatever list is the last."""
    self.indices = [*Written.__iter__(self)]
    return (self.indices[turn] for turn in range(len(self.indices)))


class DropsInItsLengthAlone(Written):
    """Rounds len() as drop_last says, and gives out as if there were none."""

    def __iter__(self):
        whole = Written(range(self.size), self.world_size, self.rank, self.shuffle, self.seed)
        whole.epoch = self.epoch
        return iter(whole)


def as_they_arrived(gathered, size):
    """Cuts nothing."""
    return [answer for batch in gathered for own in batch for answer in own]


def repeats_taken_off(gathered, size):
    """Takes off what equals the first answer, from the end."""
    answers = in_order(gathered, None)
    while len(answers) > 1 and answers[-1] == answers[0]:
        answers.pop()
    return answers


def one_taken_off(gathered, size):
    answers = in_order(gathered, None)
    return answers if len(answers) == size else answers[:-1]


@pytest.mark.parametrize(
    "check, answer, said, not_said",
    [
        ("check_sampler", written(__init__=drawn_with_a_slip), "your code raised TypeError", "Scripts name"),
        (
            "check_sampler",
            written(__init__=first_of_all, set_epoch=of_all, __iter__=drawn_of_all),
            "Two samplers share an epoch",
            "class",
        ),
        ("check_sampler", written(__iter__=read_through_itself), "Give each pass a list of its own", "new"),
        ("check_sampler", DropsInItsLengthAlone, "drop_last has no effect on what is given out", "no effect:"),
        ("check_in_order", as_they_arrived, "still in the order of arrival: a batch", "cut"),
        ("check_in_order", repeats_taken_off, "the padding is still there", "each batch"),
        ("check_in_order", one_taken_off, "the padding is still there", "each batch"),
        ("check_share", rounded_down, "Without drop_last you round down", "nearest"),
        ("check_share", the_wrong_way_round, "drop_last is the wrong way round", "nearest"),
        ("check_share", padded_backwards, "and 50 stands at position 1", "its own first index"),
        ("check_sampler", written(__len__=length_to_the_nearest), "expected 4, got 3", "rounded down"),
        ("check_sampler", written(__init__=rank_wrapped), "No rank is refused", "a part of rank 0's share"),
        ("check_sampler", written(__init__=seed_last), "seed = 4", "the order of seed 0"),
        ("check_sampler", written(set_epoch=instead_of_the_seed), "seed = 4", "the order of seed 0"),
        ("check_sampler", Multiplied, "In epoch 0 seed 4 gives the order of seed 0", "no effect"),
        ("check_sampler", written(__len__=length_the_wrong_way_round), "len() is rounded down without", "too"),
    ],
)
def test_an_answer_that_looks_like_another_mistake_in_its_first_wrong_case_is_not_told_that_one(
    check, answer, said, not_said
):
    message = getattr(n03, check)(answer).message
    assert said in message
    assert not_said not in message
