"""The checks of notebook 03 accept the right answers, ignore stubs, and tell famous mistakes apart."""

import pytest
import torch
from torch.utils.data import DistributedSampler as TorchSampler

from lib.checks import n03
from lib.checks import n03_answers as answers


def indices_of_the_solution(size, num_replicas, rank, shuffle, seed, epoch, drop_last):
    order = list(range(size))
    if shuffle:
        order = torch.randperm(size, generator=torch.Generator().manual_seed(seed + epoch)).tolist()
    steps = size // num_replicas if drop_last else -(-size // num_replicas)
    order *= -(-steps * num_replicas // size)
    return order[: steps * num_replicas][rank::num_replicas]


def length_of_the_solution(size, num_replicas, rank, drop_last, pad):
    if drop_last:
        return size // num_replicas
    return -(-size // num_replicas) if pad else len(range(rank, size, num_replicas))


def accuracy_of_the_solution(correct, counted):
    return sum(correct) / sum(counted)


def stub(**arguments):
    """Do nothing yet."""


EXERCISES = [
    (n03.check_indices, indices_of_the_solution),
    (n03.check_length, length_of_the_solution),
    (n03.check_accuracy, accuracy_of_the_solution),
]


@pytest.mark.parametrize("check, solution", EXERCISES)
def test_a_right_answer_turns_green(check, solution):
    assert check(solution)


@pytest.mark.parametrize("check, solution", EXERCISES)
def test_an_untouched_stub_is_neither_right_nor_wrong(check, solution):
    assert check(stub).status == "open"


@pytest.mark.parametrize("sentence", n03.INDEX_MISTAKES)
def test_every_famous_mistake_with_indices_is_called_by_its_name(sentence):
    verdict = n03.check_indices(n03.INDEX_MISTAKES[sentence])
    assert verdict.status == "wrong"
    assert sentence in verdict.message


def test_the_first_counterexample_names_rank_and_position():
    message = n03.check_indices(answers.padded_with_unshuffled_head).message
    assert "size = 10, num_replicas = 3, shuffle = True" in message
    assert "rank = 1, position 3: expected 4, got 0" in message


def test_the_check_covers_the_promised_grid():
    cases = list(n03.index_cases())
    grid = {(case["size"], case["num_replicas"], case["rank"], case["drop_last"]) for case in cases}
    assert grid >= {
        (n, w, r, d) for n in range(1, 41) for w in range(1, 9) for r in range(w) for d in (False, True)
    }
    assert len({(case["seed"], case["epoch"]) for case in cases}) >= 4


def test_padding_repeated_only_once_passes_until_the_padding_is_longer_than_the_dataset():
    short = [
        case for case in n03.index_cases() if answers.padded_once(**case) != answers.true_indices(**case)
    ]
    assert short
    assert all(case["num_replicas"] > 2 * case["size"] and not case["drop_last"] for case in short)


def test_the_reference_is_torchs_own_sampler():
    sampler = TorchSampler(range(10), 3, 1, True, 0, False)
    case = dict(size=10, num_replicas=3, rank=1, shuffle=True, seed=0, epoch=0, drop_last=False)
    assert answers.true_indices(**case) == list(sampler) == [1, 3, 8, 4]


@pytest.mark.parametrize(
    "mistake, said",
    [
        (answers.always_rounded_up, "always round up"),
        (answers.always_rounded_down, "always round down"),
        (answers.one_too_many, "not floor + 1"),
        (answers.rest_to_the_last, "first N % W ranks"),
        (answers.all_rest_to_one, "the whole rest"),
    ],
)
def test_every_famous_mistake_with_lengths_is_called_by_its_name(mistake, said):
    verdict = n03.check_length(mistake)
    assert verdict.status == "wrong"
    assert said in verdict.message


@pytest.mark.parametrize(
    "mistake, said",
    [
        (answers.mean_of_means, "mean of the ranks' means"),
        (answers.by_first_rank, "rank 0's count by W"),
        (answers.rank_zero_only, "others' samples are missing"),
    ],
)
def test_every_famous_mistake_with_scores_is_called_by_its_name(mistake, said):
    verdict = n03.check_accuracy(mistake)
    assert verdict.status == "wrong"
    assert said in verdict.message


@pytest.mark.parametrize(
    "guess, truth",
    [
        (n03.guess_share_length, 4),
        (n03.guess_holder, 1),
        (n03.guess_messages, 0),
        (n03.guess_first_index, 1),
        (n03.guess_epochs_until_all_seen, 4),
        (n03.guess_exact_gradient, "A"),
        (n03.guess_repeats, 4),
        (n03.guess_missed_percent, 34.4),
        (n03.guess_orders, 11),
    ],
)
def test_a_guess_is_commented_on_and_never_fails(guess, truth):
    assert "that is it" in guess(truth).message
    assert "Read on" in guess(1000).message
    assert "No guess yet" in guess(None).message
