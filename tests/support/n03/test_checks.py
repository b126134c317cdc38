"""What is particular about the checks of notebook 03; what all exercises have in common is in test_exercises."""

import torch
from torch.utils.data import DistributedSampler as TorchSampler

from support.n03 import checks as n03


def mistake(start):
    return next(wrong for why, wrong in n03.check_indices.mistakes.items() if why.startswith(start))


def test_right_answers_that_ask_no_sampler_pass():
    def indices(size, num_replicas, rank, shuffle, seed, epoch, drop_last):
        order = list(range(size))
        if shuffle:
            order = torch.randperm(size, generator=torch.Generator().manual_seed(seed + epoch)).tolist()
        steps = size // num_replicas if drop_last else -(-size // num_replicas)
        order *= -(-steps * num_replicas // size)
        return order[: steps * num_replicas][rank::num_replicas]

    def length(size, num_replicas, rank, drop_last, pad):
        if drop_last:
            return size // num_replicas
        return -(-size // num_replicas) if pad else len(range(rank, size, num_replicas))

    assert n03.check_indices(indices) and n03.check_length(length)


def test_the_first_counterexample_has_rank_and_position_and_the_check_covers_the_promised_grid():
    message = n03.check_indices(mistake("You padded with 0, 1, 2")).message
    assert "size = 10, num_replicas = 3, shuffle = True" in message
    assert "rank = 1, position 3: expected 4, got 0" in message
    cases = list(n03.check_indices.cases())
    grid = {(case["size"], case["num_replicas"], case["rank"], case["drop_last"]) for case in cases}
    assert grid >= {(n, w, r, d) for n in range(1, 41) for w in range(1, 9) for r in range(w) for d in (False, True)}
    assert len({(case["seed"], case["epoch"]) for case in cases}) >= 4


def test_the_reference_is_torchs_own_sampler_and_padding_once_is_wrong_only_where_it_is_too_short():
    once, true = mistake("You appended the head once"), n03.check_indices.reference
    short = [case for case in n03.check_indices.cases() if once(**case) != true(**case)]
    assert short and all(case["num_replicas"] > 2 * case["size"] and not case["drop_last"] for case in short)
    sampler = TorchSampler(range(10), 3, 1, True, 0, False)
    case = dict(size=10, num_replicas=3, rank=1, shuffle=True, seed=0, epoch=0, drop_last=False)
    assert n03.check_indices.reference(**case) == list(sampler) == [1, 3, 8, 4]
