"""What is particular about the checks of notebook 06; what all exercises have in common is in test_exercises."""

import pytest

from support.n06 import checks as n06
from support.n06.figures import ring, simulate
from support.training import surviving


def test_the_references_are_the_mean_over_samples_and_what_the_library_does():
    factor = n06.check_loss_factor.reference
    samples = [[1.0, 5.0, 3.0], [10.0], [], [2.0, 2.0]]
    counts = [len(share) for share in samples]
    ranks = [sum(share) / max(1, len(share)) * factor(counts, rank) for rank, share in enumerate(samples)]
    assert sum(ranks) / 4 == pytest.approx(sum(map(sum, samples)) / 6)
    steps = simulate(96, 12, 2, 3, 5, 3)
    lines = [(step.attempt, step.step, list(step.rows)) for step in steps]
    surviving_rows = sorted(row for step in surviving(steps) for row in step.rows)
    assert n06.check_counted_rows.reference(lines) == surviving_rows


def test_a_factor_that_is_not_famous_is_shown_the_first_counterexample_and_no_reason():
    assert n06.check_loss_factor(lambda counts, rank: 7.0).message.endswith("rank = 1, expected 0.5, got 7.")


@pytest.mark.parametrize("why", n06.check_ring.mistakes)
def test_a_wrong_ring_is_shown_a_chunk_of_the_smallest_ring_that_fails(why):
    message = n06.check_ring(n06.check_ring.mistakes[why]).message
    assert "2 ranks, after all 2 steps" in message or "3 ranks" in message


def test_a_ring_that_begins_elsewhere_is_right_and_a_chunk_that_does_not_exist_is_told():
    assert n06.check_ring(lambda rank, step, world_size: (rank + 1 - step) % world_size)
    assert "at least 0, not -1" in n06.check_ring(lambda rank, step, world_size: rank - step).message
    for world_size in range(2, 7):
        complete = [[len(parts) == world_size for parts in row] for row in ring(world_size, world_size - 1)]
        assert [sum(row) for row in complete] == [1] * world_size
