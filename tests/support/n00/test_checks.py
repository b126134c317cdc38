"""The step of all ranks may be written in several ways; what no real rank could do is refused and told."""

import copy

import pytest
import torch
from torch.nn import functional as F

from support.built import my_step
from support.n00.checks import check_idle_share, check_step, guess_python_speedup, guess_slow_rank, guess_weight


def locally(replicas, batches, learning_rate):
    for replica, (rows, labels) in zip(replicas, batches, strict=True):
        replica.zero_grad()
        F.cross_entropy(replica(rows), labels).backward()
        torch.optim.SGD(replica.parameters(), learning_rate).step()


def averaging_weights(replicas, batches, lr):
    locally(replicas, batches, lr)
    for same in zip(*(replica.parameters() for replica in replicas), strict=True):
        mean = sum(weight.data for weight in same) / len(same)
        for weight in same:
            weight.data = mean.clone()


def rank_0_sends_weights(replicas, batches, lr):
    for replica, (rows, labels) in zip(replicas, batches, strict=True):
        (F.cross_entropy(replica.forward(rows), labels) / len(batches)).backward()
    for first, *others in zip(*(replica.parameters() for replica in replicas), strict=True):
        first.data -= lr * (first.grad + sum(other.grad for other in others))
        for weight in (first, *others):
            weight.data.copy_(first.data)
            weight.grad = None


@pytest.mark.parametrize("answer", [my_step, averaging_weights, rank_0_sends_weights])
def test_every_way_that_real_ranks_could_go_is_right(answer):
    assert check_step(answer), check_step(answer)


def sharing(replicas, batches, lr):
    averaging_weights(replicas, batches, lr)
    for same in zip(*(replica.parameters() for replica in replicas), strict=True):
        for weight in same:
            weight.data = same[0].data


def twice_forward(replicas, batches, lr):
    for replica, (rows, _) in zip(replicas, batches, strict=True):
        replica(rows)
    my_step(replicas, batches, lr)


def swapped(replicas, batches, lr):
    my_step(replicas, batches[::-1], lr)


def on_copies(replicas, batches, lr):
    copies = copy.deepcopy(replicas)
    my_step(copies, batches, lr)
    for replica, own in zip(replicas, copies, strict=True):
        replica.load_state_dict(own.state_dict())


@pytest.mark.parametrize("answer, told", [
    (sharing, "ranks 0 and 1 share one tensor as their weight"),
    (twice_forward, "rank 0 did 2 forwards on its rows"),
    (swapped, "rank 0 saw rank 1's rows"),
    (on_copies, "rank 0 did no forward on its own rows"),
])  # fmt: skip
def test_right_weights_reached_as_no_rank_could_are_refused(answer, told):
    verdict = check_step(answer)
    assert verdict.status == "wrong" and told in verdict.message


@pytest.mark.parametrize(
    "comment, wrong, told",
    [
        *((guess_weight, weight, {"rows": (6, 2)}) for weight in (0.25, 0.5, 1, 3, 6)),
        *((guess_slow_rank, ticks, {"ranks": 4, "slow": 2}) for ticks in (5, 5.75, 6, 6.5, 7)),
        (guess_slow_rank, "10 ticks", {"ranks": 4, "slow": 2}),
        (guess_python_speedup, 2.0, {}),
    ],
)
def test_a_famous_wrong_guess_is_not_called_close_and_its_reason_is_told(comment, wrong, told):
    message = comment(wrong, **told).message
    assert "close" not in message and "(" in message and "…" not in message, "told, and not cut off"


def test_arguments_are_named_as_the_reader_likes_and_a_guess_may_be_a_fraction():
    assert check_idle_share(lambda rows, names: check_idle_share.reference(rows, names))
    assert "that is it" in guess_weight("3/4", rows=(6, 2)).message
