"""The figures of notebook 08: clocks, the bubble, runs by the reader's simulate, two laws, the ring of a deadlock."""

import itertools
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from lib.show.style import alt_text
from support.n08 import figures as n08
from support.n08 import timelines
from support.n08.guesses import with_recompute
from support.n08.runs import needed_by, pauses, played, rank_peak, run_of
from support.n08.solved import best_m, clock_cycles, gpipe, live_activations, simulate, turn_early


@pytest.mark.parametrize(("m", "n"), [(1, 1), (1, 4), (4, 3), (8, 4)])
def test_model_parallelism_takes_as_long_as_one_device_and_a_pipeline_m_plus_n_minus_1(m, n):
    alone, parallel, piped = n08.three_ways(m, n).values()
    assert alone.makespan == parallel.makespan == m * n
    assert piped.makespan == m + n - 1
    assert alone.bubble == 0
    assert parallel.bubble == pytest.approx((n - 1) / n)
    assert piped.bubble == pytest.approx((n - 1) / (m + n - 1))


def test_the_diagonals_tell_the_pairs_of_the_clock_and_one_beyond_the_last_is_the_last():
    draw = partial(n08.draw_diagonals, clock_cycles)
    of_arrays = n08.draw_diagonals(lambda m, n: map(np.array, clock_cycles(m, n)), 4, 3, 2)
    assert "pairs (i, j) with i + j = 2: (2, 0), (1, 1), (0, 2)" in alt_text(of_arrays)
    assert alt_text(draw(2, 2, 9)) == alt_text(draw(2, 2, 2))


def test_the_headings_of_both_grids_stand_apart():
    for m, n in ((7, 1), (7, 4), (1, 4), (1, 1)):
        figure = n08.draw_diagonals(clock_cycles, m, n, 0)
        figure.draw_without_rendering()
        left, right = (axes.title.get_window_extent() for axes in figure.axes)
        assert left.x1 < right.x0, (m, n)


@pytest.mark.parametrize(("m", "n"), [(4, 4), (1, 5), (12, 6), (7, 1)])
def test_the_bubble_is_counted_in_the_table_and_its_curves_go_through_the_formula(m, n):
    figure = n08.draw_bubble(clock_cycles, m, n)
    assert f"{n * (n - 1)} of {n * (m + n - 1)} cells are idle" in alt_text(figure)
    for several in (2, 4, n, 8, 16):
        formula = [pytest.approx(100 * (several - 1) / (2**k + several - 1)) for k in range(7)]
        assert any(formula == list(line.get_ydata()) for line in figure.axes[1].lines)


def test_another_table_has_another_bubble():
    one_by_one = lambda m, n: [[(i, j)] for i in range(m) for j in range(n)]  # noqa: E731
    assert "12 of 16 cells are idle, 75 %" in alt_text(n08.draw_bubble(one_by_one, 1, 4))


def test_runs_are_drawn_from_the_functions_given_with_an_arrow_for_each_wait_and_reason():
    orders = {"GPipe": gpipe(8, 4), "1F1B": turn_early(8, 4)}
    words = alt_text(timelines.draw_runs(orders, simulate, live_activations))
    assert words.startswith("Equally long; most activations held: GPipe 8, 1F1B 4.")
    assert "1F1B: 33 ticks, 27 % idle, holds 4, 3, 2, 1" in words
    as_tensor = lambda orders: torch.tensor(live_activations(orders))  # noqa: E731 (the check takes it, too)
    words = alt_text(timelines.draw_runs(orders, simulate, as_tensor, message=0.1))
    assert words.startswith("GPipe ends first; most activations held: GPipe 8, 1F1B 4.")
    assert "33.6 ticks" in words
    assert "34.6 ticks" in words
    dearer = lambda orders, costs, message: simulate(orders, costs, message + 0.1)  # noqa: E731
    assert "33.6 ticks" in alt_text(timelines.draw_runs({"GPipe": gpipe(8, 4)}, dearer, title="of another simulate"))
    figure = timelines.draw_runs({"both": turn_early(2, 2)}, simulate, arrows=True, title="arrows")
    ends = [tuple(patch._posA_posB[1]) for patch in figure.axes[0].patches if hasattr(patch, "_posA_posB")]
    assert sorted(ends) == [(1, 1), (4, 0), (7, 0)]
    mixed = [turn_early(3, 2)[0], [*gpipe(3, 2)[0][:3], ("B", 0), ("B", 1), ("B", 2)]]
    assert alt_text(timelines.draw_ring(mixed)) == (
        "A ring of 4 arrows: B0 on rank 0 waits for B0 on rank 1; B0 on rank 1 stands behind F2 on rank 1; "
        "F2 on rank 1 waits for F2 on rank 0; F2 on rank 0 stands behind B0 on rank 0."
    )


@pytest.mark.costly
def test_two_laws_part_where_a_fast_rank_stands_between_slow_ones_and_nowhere_else():
    draw = partial(timelines.draw_two_laws, clock_cycles, simulate)
    words = alt_text(draw(3, 1, 3, 4))
    assert "costs 2 ticks" in words
    assert "Clock by clock: 18 ticks" in words
    assert "Data flow: 16 ticks" in words
    for ticks in itertools.product((1, 2, 4), repeat=3):
        between_slower = ticks[0] > ticks[1] < ticks[2]
        assert ("costs 0 ticks" not in alt_text(draw(*ticks, 4))) == between_slower


def test_a_step_over_m_names_both_best():
    words = alt_text(timelines.draw_steps({1: 0.3, 2: 0.2, 4: 0.25}, {1: 0.3, 2: 0.27, 4: 0.26}))
    assert words.startswith("One step on two ranks is shortest at m = 4; predicted: m = 2.")


def test_the_round_trip_is_computed_from_the_simulate_given_and_a_rank_beyond_the_last_is_the_last():
    draw = partial(timelines.draw_round_trip, simulate)
    for j, away in enumerate((12, 9, 6, 3)):
        assert alt_text(draw(4, j, 2, 0)).startswith(f"Rank {j}: {away} ticks there and back")
    assert alt_text(draw(4, 0, 2, 1)).startswith("Rank 0: 18 ticks")
    assert alt_text(draw(2, 5, 2, 0)).startswith("Rank 1: 3 ticks")
    dearer = lambda orders, costs, message: simulate(orders, costs, message + 1)  # noqa: E731
    assert alt_text(timelines.draw_round_trip(dearer, 4, 0, 2, 0)).startswith("Rank 0: 18 ticks")


def test_the_ranks_of_the_round_trip_share_no_list_for_a_deep_copy_would_share_it_too():
    rows = []
    timelines.draw_round_trip(lambda orders, *known: rows.extend(orders) or simulate(orders, *known), 4, 0, 2, 0)
    assert len({id(row) for row in rows}) == 4


@pytest.mark.parametrize("message", [0.1, 1, 1.5, 2, 3])
def test_one_further_for_each_rank_behind_is_enough_up_to_half_a_round_for_a_message_and_two_up_to_a_round(message):
    costs = {"F": [1] * 4, "B": [2] * 4}
    best = max(simulate(gpipe(16, 4), costs, message).values())
    took = [max(simulate(timelines.going_further(turn_early(16, 4), f), costs, message).values()) for f in (0, 1, 2)]
    assert took[0] > best + 1e-9
    assert (took[1] <= best + 1e-9) == (message <= 1.5)
    assert took[2] <= best + 1e-9


def test_going_further_by_nothing_changes_nothing():
    assert timelines.going_further(turn_early(8, 4), 0) == turn_early(8, 4)
    assert live_activations(timelines.going_further(turn_early(8, 4), 1)) == [7, 5, 3, 1]


WAYS = {
    "GPipe": gpipe,
    "GPipe, recompute": lambda m, n: with_recompute(gpipe(m, n)),
    "1F1B": turn_early,
    "1F1B, recompute": lambda m, n: with_recompute(turn_early(m, n)),
}


def test_who_holds_less_turns_round_with_m_and_n():
    draw = partial(timelines.draw_four, WAYS, simulate, live_activations)
    words = alt_text(draw(8, 4, 7, 0))
    assert "GPipe, recompute: 41 ticks, rank 0 holds 14 inputs; 1F1B: 33 ticks, rank 0 holds 28 inputs" in words
    words = alt_text(draw(32, 2, 7, 0))
    assert "rank 0 holds 38 inputs; 1F1B: 99 ticks, rank 0 holds 14 inputs" in words
    assert words.startswith("Fastest: GPipe and 1F1B; least memory: 1F1B, recompute")
    assert alt_text(draw(8, 4, 7, 1)).startswith("Fastest: GPipe; least memory")


# ---- what runs


def test_a_rank_that_recomputes_holds_inputs_and_one_inside_and_otherwise_whole_activations():
    partition = nn.Sequential(*(part for _ in range(6) for part in (nn.Linear(32, 32), nn.Tanh())))
    unit = 256 * 32 * 4

    def arriving():
        return torch.ones(256, 32, requires_grad=True)

    for order, held in ((gpipe(8, 4)[0], 8), (turn_early(8, 4)[0], 4)):
        whole, inputs = (rank_peak(order, partition, arriving, recompute) / unit for recompute in (False, True))
        assert 7 * held <= whole < 7 * held + 2
        assert held + 6 <= inputs < held + 8


def test_played_is_data_flow_with_the_durations_of_a_run_and_nothing_between():
    for orders in (gpipe(4, 3), turn_early(4, 3)):
        trace = run_of(orders, simulate, forward=[1, 2, 1.5], backward=[2, 1, 3], message=0.5).trace
        without = run_of(orders, simulate, forward=[1, 2, 1.5], backward=[2, 1, 3]).trace
        assert played(orders, trace) == pytest.approx(without.makespan)
        assert played(orders, trace) < trace.makespan


def test_a_pause_is_what_passes_from_rank_to_rank_and_not_on_one():
    one_by_one = [[("F", 0), ("B", 0), ("F", 1), ("B", 1)]] * 2
    trace = run_of(one_by_one, simulate, message=0.25).trace
    assert pauses(trace) == pytest.approx([0.25] * 4)


def test_a_recompute_needs_no_other_rank():
    assert needed_by("R", 0, 0, 3) is None
    assert needed_by("B", 0, 2, 3) == ("F", 0, 2)


def test_a_slower_rank_turns_the_pair_round_unless_it_is_the_last_and_one_beyond_it_is_the_last():
    draw = partial(timelines.draw_pair, {"GPipe": gpipe, "1F1B": turn_early}, simulate, live_activations, 8, 4, 2, 0, 0)
    for slower, ends in ((0, 36.75), (1, 37.5), (2, 38.25)):
        words = alt_text(draw(slower))
        assert words.startswith("1F1B ends first")
        assert f"1F1B: {ends} ticks" in words
    assert alt_text(draw(3)).startswith("Equally long")
    assert alt_text(draw(5)) == alt_text(draw(3))
    assert alt_text(draw(5)).endswith("rank 3 takes 1.25 × as long.)")


@pytest.mark.parametrize("message", [0, 0.1, 1.5, 3, 10, 30])
def test_furthest_ahead_1f1b_is_no_slower_than_gpipe_with_or_without_recompute(message):
    costs = {"F": [1] * 4, "B": [2] * 4, "R": [1] * 4}
    for m, change in itertools.product((4, 8, 32), (list, with_recompute)):
        ours = change(timelines.going_further(turn_early(m, 4), m))
        theirs = change(gpipe(m, 4))
        both = [max(simulate(orders, costs, message).values()) for orders in (ours, theirs)]
        assert both[0] <= both[1] + 1e-9


def test_a_latency_keeps_the_best_m_of_1f1b_small():
    sizes = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
    seconds = {m: (0.5 + 20 / m, 0.5 + 40 / m, 3) for m in sizes}
    assert [best_m(turn_early, seconds, n) for n in (2, 32)] == [4, 16]


@pytest.mark.parametrize(("m", "n"), [(16, 4), (32, 8), (5, 2), (9, 6)])
def test_a_recompute_before_the_gradient_saves_one_recompute_at_each_border(m, n):
    costs = {"F": [1] * n, "B": [2] * n, "R": [1] * n}
    early = max(simulate(with_recompute(gpipe(m, n)), costs).values())
    behind = max(simulate(gpipe(m, n), costs | {"B": [3] * n}).values())
    assert behind - early == n - 1
