"""What is particular about the checks of notebook 03; what all exercises have in common is in test_detectors."""

import pytest
import torch
from torch.utils.data import DistributedSampler as TorchSampler

from lib.data.samplers import DistributedSampler
from support.n03 import checks as n03


def mistake(exercise, start):
    return next(wrong for why, wrong in exercise.mistakes.items() if why.startswith(start))


def share(order, world_size, rank, drop_last):
    steps = len(order) // world_size if drop_last else -(-len(order) // world_size)
    while len(order) < steps * world_size:
        order = order + order
    return order[: steps * world_size][rank::world_size]


class Written:
    """As a reader may write it: no torch sampler in it, not even its base class."""

    def __init__(self, data, world_size, its_rank, shuffle=True, seed=0, drop_last=False):
        self.size = len(data)
        self.drop_last = drop_last
        self.world_size = world_size
        self.rank = its_rank
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0

    def __iter__(self):
        order = list(range(self.size))
        if self.shuffle:
            order = torch.randperm(self.size, generator=torch.Generator().manual_seed(self.seed + self.epoch)).tolist()
        return iter(share(order, self.world_size, self.rank, self.drop_last))

    def __len__(self):
        return len(share(list(range(self.size)), self.world_size, self.rank, self.drop_last))

    def set_epoch(self, epoch):
        self.epoch = epoch


def in_order(gathered, size):
    return [answer for batch in gathered for step in zip(*batch, strict=True) for answer in step][:size]


def test_right_answers_that_ask_no_sampler_pass_and_libs_class_and_the_reference_deals_as_torchs():
    assert n03.check_share(share) and n03.check_sampler(Written) and n03.check_in_order(in_order)
    assert n03.check_sampler(DistributedSampler)
    shares = [n03.check_share.reference([4, 1, 7, 5, 3, 9, 0, 8, 6, 2], 3, rank, False) for rank in range(3)]
    assert shares == [list(TorchSampler(range(10), 3, rank)) for rank in range(3)]
    assert shares == [[4, 5, 0, 2], [1, 3, 8, 4], [7, 9, 6, 1]]


def test_the_first_counterexample_of_a_share_is_told_and_padding_once_is_wrong_only_where_too_short():
    message = n03.check_share(mistake(n03.check_share, "You padded with 0, or")).message
    assert "world_size = 3, rank = 1, drop_last = False, position 3: expected 80, got 0" in message
    cases = {(len(c["order"]), c["world_size"], c["rank"], c["drop_last"]) for c in n03.check_share.cases()}
    assert cases >= {(n, w, r, d) for n in range(1, 25) for w in range(1, 10) for r in range(w) for d in (False, True)}
    assert all(c["order"] != sorted(c["order"]) for c in n03.check_share.cases() if len(c["order"]) > 5)
    once = mistake(n03.check_share, "You appended the head once")
    true = n03.check_share.reference
    short = [case for case in n03.check_share.cases() if once(**case) != true(**case)]
    assert short and all(case["world_size"] > 2 * len(case["order"]) and not case["drop_last"] for case in short)


def in_place(order, **how):
    order[:] = share(order, 1, 0, False)
    order += order[: -len(order) % how["world_size"]]
    return share(order, **how)


def emptied(gathered, size):
    answers = in_order(gathered, size)
    gathered.pop()
    return answers


def counted(before, after):
    def epoch(self):
        self.epoch = before(self.epoch)
        share = Written.__iter__(self)
        self.epoch = after(self.epoch)
        return share

    return written(__iter__=epoch)


def written(**methods):
    return type("Written", (Written,), methods)


@pytest.mark.parametrize(
    "check, answer, said",
    [
        ("check_share", in_place, "got a change of `order`"),
        ("check_share", lambda order, **how: iter(share(order, **how)), "got a list_iterator, not a list"),
        ("check_in_order", emptied, "got a change of `gathered`"),
        ("check_in_order", lambda gathered, size: tuple(in_order(gathered, size)), "got a tuple, not a list"),
        ("check_sampler", written(__iter__=lambda self: [*Written.__iter__(self)]), "got a list, which is no iterator"),
        (
            "check_sampler",
            written(__iter__=lambda self: iter(torch.tensor([*Written.__iter__(self)]))),
            "got indices of type Tensor",
        ),
        ("check_sampler", counted(int, lambda epoch: epoch + 1), "counts its passes: only set_epoch"),
        ("check_sampler", counted(lambda epoch: epoch + 1, int), "so it begins with epoch 1: only set_epoch"),
        ("check_sampler", counted(int, lambda epoch: 0), "A pass puts the epoch back to 0"),
        (
            "check_sampler",
            written(set_epoch=lambda self, epoch: None),
            "MyDistributedSampler: still the stub: set_epoch",
        ),
    ],
)
def test_an_answer_that_has_the_right_indices_and_cannot_be_used_is_refused_and_told_why(check, answer, said):
    verdict = getattr(n03, check)(answer)
    assert not verdict and said in verdict.message


def test_a_sampler_that_decides_late_or_seeds_the_global_generator_is_told_what_was_asked_of_it():
    asked = {"Your __iter__ is a generator": n03.LATE, "You seeded torch's global": n03.GLOBAL}
    for start, ask in asked.items():
        assert f"ask = {ask}" in n03.check_sampler(mistake(n03.check_sampler, start)).message
    before = torch.get_rng_state()
    n03.check_sampler(mistake(n03.check_sampler, "You seeded torch's global"))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("plain, normalised, truth", [(0.0, 0.1, "B"), (0.1, 0.1, "AB"), (0.0, 0.0, "NONE")])
def test_who_is_harmed_is_read_off_the_measurement_and_can_be_the_opposite(plain, normalised, truth):
    noise = [0.01, -0.02, 0.015, -0.005]
    losses = {"A, plain": plain, "B, normalised": normalised}
    found = {f"{name}, told": {"test loss": [0.3] * 4} for name in losses}
    for name, rise in losses.items():
        found[f"{name}, forgotten"] = {"test loss": [0.3 + rise + off for off in noise]}
    assert n03.guess_harmed(truth.lower(), found).message.endswith(
        f"that is it, the networks that lose by it = {truth}."
    )


def test_a_guess_that_is_no_choice_is_told_so_and_the_limit_of_the_missed_share_is_not_the_answer():
    for share in ("[1]", "1", (1,), [1], 1):  # in any way of writing it
        assert "that is it" in n03.guess_last_of_eight(share).message
    found = {f"{name}, {way}": {"test loss": [0.3, 0.31]} for name in "AB" for way in ("told", "forgotten")}
    assert "You said C, which is none of A, B, AB and none" in n03.guess_harmed("C", found).message
    assert "that is it" in n03.guess_harmed(" none", found).message
    said = {guess: "that is it" in n03.guess_missed_percent(guess).message for guess in (33, 34, 35, 36, 37)}
    assert said == {33: False, 34: True, 35: True, 36: False, 37: False}
