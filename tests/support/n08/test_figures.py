"""The figures of notebook 08: clocks, the bubble, runs by the reader's simulate, two laws, the ring of a deadlock."""

import itertools
from functools import partial

import pytest

from lib.show.style import alt_text
from support.n08 import figures as n08
from support.n08.solved import clock_cycles, gpipe, live_activations, one_f_one_b, simulate


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
    assert "pairs (i, j) with i + j = 2: (2, 0), (1, 1), (0, 2)" in alt_text(draw(4, 3, 2))
    assert alt_text(draw(2, 2, 9)) == alt_text(draw(2, 2, 2))


@pytest.mark.parametrize(("m", "n"), [(4, 4), (1, 5), (12, 6), (7, 1)])
def test_the_bubble_is_counted_in_the_table_and_its_curves_go_through_the_formula(m, n):
    figure = n08.draw_bubble(clock_cycles, m, n)
    assert f"{n * (n - 1)} of {n * (m + n - 1)} cells are idle" in alt_text(figure)
    for several in (2, 4, n, 8, 16):
        formula = [pytest.approx(100 * (several - 1) / (2**k + several - 1)) for k in range(7)]
        assert any(formula == list(line.get_ydata()) for line in figure.axes[1].lines)


def test_what_runs_before_its_input_is_there_is_red_and_another_table_has_another_bubble():
    at_once = [[(k, j) for j in range(3)] for k in range(4)]
    assert n08.early(at_once) == {(k, k, j) for k in range(4) for j in (1, 2)}
    assert "8 of them run before their input is there" in alt_text(n08.draw_clocks(at_once))
    for m, n in itertools.product((1, 4, 7), (1, 3, 5)):
        assert not n08.early(clock_cycles(m, n))
    assert "each runs after its input is there" in alt_text(n08.draw_clocks(clock_cycles(4, 3)))
    assert alt_text(n08.draw_clocks([]))
    one_by_one = lambda m, n: [[(i, j)] for i in range(m) for j in range(n)]  # noqa: E731
    assert "12 of 16 cells are idle, 75 %" in alt_text(n08.draw_bubble(one_by_one, 1, 4))


def test_runs_are_drawn_from_the_functions_given_with_an_arrow_for_each_wait_and_reason():
    orders = {"GPipe": gpipe(8, 4), "1F1B": one_f_one_b(8, 4)}
    words = alt_text(n08.draw_runs(orders, simulate, live_activations))
    assert words.startswith("Equally long; most activations held: GPipe 8, 1F1B 4.")
    assert "1F1B: 33 ticks, 27 % idle, holds 4, 3, 2, 1" in words
    words = alt_text(n08.draw_runs(orders, simulate, live_activations, message=0.1))
    assert words.startswith("GPipe ends first")
    assert "33.6 ticks" in words
    assert "34.6 ticks" in words
    dearer = lambda orders, costs, message: simulate(orders, costs, message + 0.1)  # noqa: E731
    assert "33.6 ticks" in alt_text(n08.draw_runs({"GPipe": gpipe(8, 4)}, dearer, title="of another simulate"))
    figure = n08.draw_runs({"both": one_f_one_b(2, 2)}, simulate, arrows=True, title="arrows")
    ends = [tuple(patch._posA_posB[1]) for patch in figure.axes[0].patches if hasattr(patch, "_posA_posB")]
    assert sorted(ends) == [(1, 1), (4, 0), (7, 0)]
    mixed = [one_f_one_b(3, 2)[0], [*gpipe(3, 2)[0][:3], ("B", 0), ("B", 1), ("B", 2)]]
    assert alt_text(n08.draw_ring(mixed)) == (
        "A ring of 4 arrows: B0 on rank 0 waits for B0 on rank 1; B0 on rank 1 stands behind F2 on rank 1; "
        "F2 on rank 1 waits for F2 on rank 0; F2 on rank 0 stands behind B0 on rank 0."
    )


def test_two_laws_part_for_unequal_tasks_only_and_a_step_over_m_names_both_best():
    words = alt_text(n08.draw_two_laws([3, 1, 3], 4, clock_cycles, simulate))
    assert "costs 2 ticks" in words
    assert "Clock by clock: 18 ticks" in words
    assert "Data flow: 16 ticks" in words
    assert "costs 0 ticks" in alt_text(n08.draw_two_laws([2, 2, 2], 4, clock_cycles, simulate))
    words = alt_text(n08.draw_steps({1: 0.3, 2: 0.2, 4: 0.25}, {1: 0.3, 2: 0.27, 4: 0.26}))
    assert words.startswith("One step on two ranks is shortest at m = 4; predicted: m = 2.")
