"""The checks of notebook 15: the reference passes, an untouched stub is neutral, famous wrong answers are named."""

from __future__ import annotations

import pytest
from support.n15 import checks as n15
from support.n15.runs import make_plan

from lib.data import MetaFile, RankDataset, mini_epoch_loaders


def test_the_references_pass_and_stubs_are_neutral():
    def place_of(rank, ranks, partitions): ...

    def steps_in_epoch(size, batch, replicas, mini_epochs): ...

    assert n15.check_place(n15.true_place) and n15.check_steps(n15.true_steps)
    assert n15.check_place(place_of).status == n15.check_steps(steps_in_epoch).status == "open"
    assert n15.check_plan(None).status == "open"


@pytest.mark.parametrize(
    "wrong, says",
    [
        (n15.swapped, "swapped"),
        (n15.other_order, "counts down a column"),
        (n15.global_rank, "The rank is not the replica"),
        (lambda rank, ranks, partitions: (0, 0), "got 0"),
    ],
)
def test_wrong_places_are_named_with_the_first_rank_that_shows_it(wrong, says):
    verdict = n15.check_place(wrong)
    assert verdict.status == "wrong"
    assert "rank = " in verdict.message and says in verdict.message


@pytest.mark.parametrize(
    "wrong, says",
    [
        (n15.one_cut, "Every mini-epoch drops its own rest"),
        (n15.batch_of_each, "batch / replicas rows a step"),
        (n15.rest_kept, "a batch that is not full is no step"),
        (lambda size, batch, replicas, mini_epochs: 0, "got 0"),
    ],
)
def test_wrong_counts_of_steps_are_named(wrong, says):
    verdict = n15.check_steps(wrong)
    assert verdict.status == "wrong"
    assert "size = " in verdict.message and says in verdict.message


@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_the_count_is_that_of_real_loaders(tmp_path, replicas):
    (tmp_path / "rows.txt").write_text("".join(f'{i}.png "a"\n' for i in range(97)))
    dataset = RankDataset(MetaFile(tmp_path / "rows.txt"), replicas, 0, mini_epochs=3)
    loaders = mini_epoch_loaders(dataset, 0, batch_size=8 // replicas, drop_last=True)
    assert sum(1 for loader in loaders for _ in loader) == n15.true_steps(97, 8, replicas, 3)


@pytest.mark.parametrize(
    "plan, says",
    [
        ((1, 4), "weights alone are 454 MB"),
        ((8, 8), "the activations are too much"),
        ((8, 64), "micro-batches of 8 rows; at least 16"),
        ((16, 16), "of it is bubble"),
        ((3, 2), "64 ranks do not make pipelines of 3"),
        ((8, 3), "rows do not make"),
        ("eight", "is no plan"),
        (8, "is no plan"),
        ((8, 8, 8), "is no plan"),
    ],
)
def test_a_wrong_plan_is_told_what_it_breaks_or_wastes(plan, says):
    verdict = n15.check_plan(plan)
    assert verdict.status == "wrong"
    assert says in verdict.message


def test_every_plan_within_5_per_cent_of_the_best_is_right():
    best = n15.best_plan()
    assert n15.check_plan((best.partitions, best.micro_batches))
    assert n15.check_plan((8, 32))
    assert make_plan(64, 8, 32).seconds > best.seconds  # so there is more than one


@pytest.mark.parametrize(
    "comment, right, wrong",
    [
        (n15.guess_data_rank, 1, 5),
        (n15.guess_rows, 40, 320),
        (n15.guess_bubble, 20, 0),
        (n15.guess_order, "b", "A"),
        (n15.guess_loss, 2.3, 0.0),
    ],
)
def test_a_guess_is_only_commented_on(comment, right, wrong):
    assert comment(None).status == comment(right).status == comment(wrong).status == "note"
    assert "No guess yet" in comment(None).message
    assert "that is it" in comment(right).message
    assert "that is it" not in comment(wrong).message
