"""What is particular about the checks of notebook 15; what all exercises have in common is in test_exercises."""

import pytest

from lib.data import MetaFile, RankDataset, mini_epoch_loaders
from support.n15 import checks as n15
from support.n15.runs import make_plan


def test_any_wrong_answer_is_told_the_first_case_and_every_plan_near_the_best_is_right():
    place = n15.check_place(lambda rank, ranks, partitions: (0, 0))
    assert "for rank = 7, ranks = 8, partitions = 2, position 0: expected 3, got 0" in place.message
    steps = n15.check_steps(lambda size, batch, replicas, mini_epochs: 0)
    assert "for size = 1437, batch = 320, replicas = 1, mini_epochs = 1, expected 4, got 0" in steps.message
    best = n15.best_plan()
    assert n15.check_plan.reference == (best.partitions, best.micro_batches) and n15.check_plan((8, 32))
    assert make_plan(64, 8, 32).seconds > best.seconds  # so there is more than one


@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_the_count_of_steps_is_that_of_real_loaders(tmp_path, replicas):
    (tmp_path / "rows.txt").write_text("".join(f'{i}.png "a"\n' for i in range(97)))
    dataset = RankDataset(MetaFile(tmp_path / "rows.txt"), replicas, 0, mini_epochs=3)
    loaders = mini_epoch_loaders(dataset, 0, batch_size=8 // replicas, drop_last=True)
    assert sum(1 for loader in loaders for _ in loader) == n15.check_steps.reference(97, 8, replicas, 3)


@pytest.mark.parametrize("plan, says", [
    ((1, 4), "weights alone are 454 MB"), ((8, 8), "the activations are too much"),
    ((8, 64), "micro-batches of 8 rows; at least 16"), ((16, 16), "of it is bubble"),
    ((3, 2), "64 ranks do not make pipelines of 3"), ((8, 3), "rows do not make"), ("eight", "is no plan"),
    (8, "is no plan"), ((8, 8, 8), "is no plan"),
])  # fmt: skip
def test_a_wrong_plan_is_told_what_it_breaks_or_wastes(plan, says):
    verdict = n15.check_plan(plan)
    assert verdict.status == "wrong" and says in verdict.message
