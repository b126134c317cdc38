"""The checks of notebook 06 pass the reference, leave the stub alone, and reject famous wrong answers by name."""

from __future__ import annotations

import pytest

from lib.checks import n06
from lib.figures.allreduce import chunk_to_send, ring
from lib.figures.overlap import LANES
from lib.timeline import Span, Trace


def stub(*arguments): ...


@pytest.mark.parametrize(
    "check, reference",
    [
        (n06.check_loss_factor, n06.true_factor),
        (n06.check_counted_rows, n06.true_counted),
        (n06.check_ring, chunk_to_send),
    ],
)
def test_the_reference_passes_and_the_stub_is_neutral(check, reference):
    assert check(reference).status == "right"
    assert check(stub).status == "open"


def test_with_the_reference_factor_the_mean_over_ranks_is_the_mean_over_samples():
    samples = [[1.0, 5.0, 3.0], [10.0], [], [2.0, 2.0]]
    counts = [len(share) for share in samples]
    ranks = [
        sum(share) / max(1, len(share)) * n06.true_factor(counts, rank) for rank, share in enumerate(samples)
    ]
    assert sum(ranks) / 4 == pytest.approx(sum(map(sum, samples)) / 6)


def test_the_reference_of_exercise_2_is_what_the_library_does():
    assert n06.agrees_with_library()


@pytest.mark.parametrize(
    "wrong, says",
    [
        (n06.no_world, "DDP divides by the number of ranks as well"),
        (n06.upside_down, "Upside down"),
        (n06.unchanged, "every rank weighs the same"),
        (n06.by_largest, "the length of the gradient is not"),
        (lambda counts, rank: 7.0, "expected 0.5, got 7"),
    ],
)
def test_wrong_factors_are_named(wrong, says):
    verdict = n06.check_loss_factor(wrong)
    assert verdict.status == "wrong"
    assert "rank = 1" in verdict.message
    assert says in verdict.message


@pytest.mark.parametrize(
    "wrong, says",
    [
        (n06.all_lines, "Every line counts here"),
        (n06.last_attempt, "what came before that state counts too"),
        (n06.each_row_once, "lost and not done again yet"),
        (n06.latest_of_step, "even if no later attempt has come that far"),
        (n06.first_come, "counts as it was done last"),
    ],
)
def test_wrong_counts_are_named(wrong, says):
    verdict = n06.check_counted_rows(wrong)
    assert verdict.status == "wrong"
    assert says in verdict.message


@pytest.mark.parametrize("why", n06.RING_MISTAKES)
def test_wrong_rings_are_named_and_shown_a_chunk(why):
    verdict = n06.check_ring(n06.RING_MISTAKES[why])
    assert verdict.status == "wrong"
    assert why in verdict.message
    assert "2 ranks, after all 2 steps" in verdict.message or "3 ranks" in verdict.message


def test_a_ring_that_begins_elsewhere_is_right_too():
    assert n06.check_ring(lambda rank, step, world_size: (rank + 1 - step) % world_size)


def test_a_chunk_that_does_not_exist_is_told():
    verdict = n06.check_ring(lambda rank, step, world_size: rank - step)
    assert verdict.status == "wrong"
    assert "at least 0, not -1" in verdict.message


def test_after_half_of_its_steps_each_rank_of_the_ring_has_one_complete_chunk():
    for world_size in range(2, 7):
        complete = [[len(parts) == world_size for parts in row] for row in ring(world_size, world_size - 1)]
        assert [sum(row) for row in complete] == [1] * world_size


TRACE = Trace(
    [
        Span(f"rank 0 {LANES[0]}", "layer 1", 0, 1, "backward"),
        Span(f"rank 0 {LANES[0]}", "layer 0", 1, 4, "backward"),
        Span("rank 0 bucket 0", "bucket 0", 1, 2, "transfer"),
    ]
)
RESULTS = {
    "full shuffle": [{"accuracy": 0.90}, {"accuracy": 0.92}],
    "rank, E = 8": [{"accuracy": 0.89}, {"accuracy": 0.92}],
}


@pytest.mark.parametrize(
    "comment, right, wrong",
    [
        (n06.guess_lone, 3, 1),
        (n06.guess_ring, 1.75, 8),
        (lambda mine: n06.guess_first_call(mine, TRACE), 25, 100),
        (n06.guess_redone, 4, 9),
        (lambda mine: n06.guess_cost(mine, RESULTS), -0.5, 5),
        (n06.guess_hang, "b", "A"),
    ],
)
def test_a_guess_is_only_commented_on(comment, right, wrong):
    assert comment(None).status == comment(right).status == comment(wrong).status == "note"
    assert "No guess yet" in comment(None).message
    assert "that is it" in comment(right).message
    assert "that is it" not in comment(wrong).message
