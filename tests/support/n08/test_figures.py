"""The figures of notebook 08: clocks, the bubble, the best m, timelines of schedules, the explorer, a deadlock."""

from __future__ import annotations

import itertools

import pytest
from matplotlib.collections import PolyCollection
from matplotlib.patches import FancyArrowPatch
from support.n08.figures import (
    BEST_M_CONTROLS,
    BUBBLE_CONTROLS,
    DIAGONALS_CONTROLS,
    THREE_WAYS_CONTROLS,
    best_m,
    draw_best_m,
    draw_bubble,
    draw_clocks,
    draw_diagonals,
    draw_three_ways,
    early,
    step_seconds,
    three_ways,
)

from lib import schedules
from lib.pipeline import clock_cycles
from lib.schedules import Schedule, gpipe, live_activations, one_f_one_b, simulate, waits_for
from lib.show.explore import explore, explore_hover, hovering, mark, spots
from lib.show.schedules import (
    MAKERS,
    NAMES,
    SCHEDULE_CONTROLS,
    draw_refused,
    draw_schedule,
    draw_schedule_explorer,
    draw_schedules,
    held,
    make,
    name_of,
    stuck,
)
from lib.show.sheet import drawn_cells
from lib.show.style import RED, alt_text, new_figure
from tests.pictures import assert_each_control_changes_the_picture

FIRST = {name: control.value for name, control in SCHEDULE_CONTROLS.items()}
EAGER = Schedule.from_text("eager", "0F0 0B0 0F1 0B1\n1F0 1F1 1B0 1B1")


def record(fixed, row=1.0, rows=64):
    """A machine on which a micro-batch of s rows takes `fixed` plus s times `row` seconds."""
    sizes = [rows // 2**k for k in range(7)]
    return {"rows": rows, "size": sizes, "rows_per_second": [s / (fixed + s * row) for s in sizes]}


def texts(figure):
    found = [text.get_text() for axes in figure.axes for text in axes.texts]
    return [*found, figure.get_suptitle(), *(axes.get_title("left") for axes in figure.axes)]


# ---- clocks


@pytest.mark.parametrize(
    ("draw", "controls"),
    [(draw_three_ways, THREE_WAYS_CONTROLS), (draw_diagonals, DIAGONALS_CONTROLS), (draw_bubble, BUBBLE_CONTROLS)],
)
def test_every_setting_of_the_clock_figures_draws_and_each_control_is_seen(draw, controls):
    for values in explore(draw, **controls).corners():
        assert alt_text(draw(**values))
    assert_each_control_changes_the_picture(draw, controls)


@pytest.mark.parametrize(("m", "n"), [(1, 1), (1, 4), (4, 3), (8, 4)])
def test_model_parallelism_takes_as_long_as_one_device_and_a_pipeline_m_plus_n_minus_1(m, n):
    alone, parallel, piped = three_ways(m, n).values()
    assert alone.makespan == parallel.makespan == m * n
    assert piped.makespan == m + n - 1
    assert alone.bubble == 0
    assert parallel.bubble == pytest.approx((n - 1) / n)
    assert piped.bubble == pytest.approx((n - 1) / (m + n - 1))


def test_the_diagonals_light_up_the_pairs_of_the_clock_in_both_halves():
    figure = draw_diagonals(4, 3, 2)
    strong = [patch for patch in drawn_cells(figure) if patch.cell.mark == "plain"]
    grid = {patch.at for patch in strong if patch.axes is figure.axes[0]}
    table = {patch.at for patch in strong if patch.axes is figure.axes[1]}
    assert grid == {(0, 2), (1, 1), (2, 0)}  # (partition, micro-batch)
    assert table == {(2, 0), (2, 1), (2, 2)}  # (clock, partition)
    arrows = [patch for patch in figure.axes[0].patches if isinstance(patch, FancyArrowPatch)]
    assert len(arrows) == 4  # (2, 0) and (0, 2) have one predecessor, (1, 1) has two
    assert "pairs (i, j) with i + j = 2: (2, 0), (1, 1), (0, 2)" in alt_text(figure)


def test_a_clock_beyond_the_last_is_the_last():
    assert alt_text(draw_diagonals(2, 2, 9)) == alt_text(draw_diagonals(2, 2, 2))


@pytest.mark.parametrize(("m", "n"), [(4, 4), (1, 5), (12, 6), (7, 1)])
def test_the_bubble_has_n_times_n_minus_1_idle_cells(m, n):
    figure = draw_bubble(m, n)
    idle = [cell for cell in figure.axes[0].collections if cell.get_hatch()]
    busy = drawn_cells(figure)
    assert len(idle) == n * (n - 1)
    assert len(busy) == m * n
    assert f"{n * (n - 1)} of {n * (m + n - 1)} cells are idle" in alt_text(figure)


def test_the_bubble_curves_go_through_the_formula():
    (plot,) = draw_bubble(4, 6).axes[1:]
    heights = {tuple(line.get_ydata()) for line in plot.lines}
    several = [2**k for k in range(7)]
    for n in (2, 4, 6, 8, 16):
        assert any(tuple(pytest.approx(100 * (n - 1) / (m + n - 1)) for m in several) == line for line in heights)


def test_what_runs_before_its_input_is_there_is_red():
    at_once = [[(k, j) for j in range(3)] for k in range(4)]
    assert early(at_once) == {(k, k, j) for k in range(4) for j in (1, 2)}
    red = [patch for patch in drawn_cells(draw_clocks(at_once)) if patch.cell.color == RED]
    assert len(red) == 8
    assert "8 of them run before their input is there" in alt_text(draw_clocks(at_once))


def test_the_clocks_of_a_pipeline_have_nothing_red():
    for m, n in itertools.product((1, 4, 7), (1, 3, 5)):
        assert not early(list(clock_cycles(m, n)))
    assert "each runs after its input is there" in alt_text(draw_clocks(clock_cycles(4, 3)))
    assert alt_text(draw_clocks([]))


# ---- the best m


def test_where_small_operators_cost_nothing_more_the_most_micro_batches_are_best():
    assert best_m(record(fixed=0.0), partitions=4) == 64


def test_where_a_micro_batch_costs_the_same_whatever_its_rows_one_is_best():
    assert best_m(record(fixed=1.0, row=0.0), partitions=4) == 1


@pytest.mark.parametrize("fixed", [0.5, 2.0, 9.0])
def test_the_best_m_is_near_the_root_of_the_closed_form(fixed):
    for n in BEST_M_CONTROLS["partitions"].options:
        times = step_seconds(record(fixed), n)
        assert times == {m: pytest.approx((m + n - 1) * (fixed + 64 / m)) for m in times}
        ideal = ((n - 1) * 64 / fixed) ** 0.5  # where the derivative of that is 0
        assert min(1, ideal) / 2 <= best_m(record(fixed), n) <= 2 * ideal


def test_the_figure_marks_the_best_m():
    figure = draw_best_m(record(2.0), 4)
    best = best_m(record(2.0), 4)
    assert f"m = {best}" in [text.get_text() for text in figure.axes[0].texts]
    assert f"Best: m = {best}" in alt_text(figure)
    assert_each_control_changes_the_picture(lambda partitions: draw_best_m(record(2.0), partitions), BEST_M_CONTROLS)


# ---- timelines of schedules


def bars(axes):
    """Return the extents (start, end, rank) of the bars of actions: what has an edge or a colour of its own."""
    found = []
    for collection in axes.collections:
        if isinstance(collection, PolyCollection) and not collection.get_hatch():
            for path in collection.get_paths():
                (x0, y0), (x1, y1) = path.get_extents().get_points()
                found.append((round(x0, 6), round(x1, 6), round((y0 + y1) / 2)))
    return sorted(found)


@pytest.mark.parametrize("maker", MAKERS)
def test_the_bars_are_the_simulated_spans_and_the_hatches_are_the_waits(maker):
    schedule, _ = make(maker, 5, 3, 2)
    costs = {"forward": 1.0, "backward": 2.0, "communicate": 0.5}
    figure = draw_schedule(schedule, **costs)
    spans = [(s.start, s.end, int(s.lane.split()[1])) for s in simulate(schedule, **costs)]
    assert bars(figure.axes[0]) == sorted(spans)
    hatched = [c for c in figure.axes[0].collections if c.get_hatch()]
    assert sum(len(c.get_paths()) for c in hatched) == len(waits_for(schedule, **costs))
    assert f"held by rank: {', '.join(f'{peak:g}' for peak in held(schedule))}" in alt_text(figure)


def test_several_schedules_stand_on_one_time_axis_and_the_title_compares_them():
    figure = draw_schedules([gpipe(8, 4), one_f_one_b(8, 4)])
    assert figure.get_suptitle() == "GPipe and 1F1B take equally long; 1F1B holds at most 4, not 8"
    assert len({axes.get_xlim() for axes in figure.axes[::2]}) == 1
    slower = draw_schedules([schedules.model_parallel(4, 3), gpipe(4, 3)])
    assert slower.get_suptitle() == "GPipe is fastest; model parallel holds at most 1, not 4"


def test_stages_count_as_parts_of_a_rank_and_a_forward_only_table_holds_nothing():
    interleaved = schedules.interleaved_one_f_one_b(8, 4, 2)
    assert held(interleaved) == [peak / 2 for peak in live_activations(interleaved)]
    forward = Schedule("forward", [row[:3] for row in gpipe(3, 1).compact().ranks])
    figure = draw_schedule(forward)
    assert "hold" not in alt_text(figure) and "held" not in " ".join(texts(figure))


def test_every_makers_table_has_a_name_for_pictures():
    for maker in MAKERS:
        schedule, _ = make(maker, 4, 2, 2)
        assert name_of(schedule) == maker
    assert {getattr(schedules, name)(4, 2).name for name in ("gpipe", "one_f_one_b", "zbv")} <= set(NAMES)


# ---- the pointer


def test_a_region_lies_where_it_was_drawn_and_its_words_are_escaped():
    figure, axes = new_figure(4, 2)
    axes.set(xlim=(0, 10), ylim=(0, 1))
    mark(axes, (0, 5, 0, 1), '<b>"half"</b>')
    (spot,) = spots(figure)
    box = axes.get_position()
    assert (spot.left, spot.width) == (pytest.approx(box.x0), pytest.approx(box.width / 2))
    assert (spot.top, spot.height) == (pytest.approx(1 - box.y1), pytest.approx(box.height))
    html = hovering("<img>", figure)
    assert "&lt;b&gt;&quot;half&quot;&lt;/b&gt;" in html and "<b>" not in html
    assert spots(new_figure(4, 2)[0]) == []


def test_every_idle_slot_of_the_explorer_tells_what_it_waits_for():
    explorer = explore_hover(draw_schedule_explorer, **SCHEDULE_CONTROLS)
    words = [spot.words for spot in spots(explorer.figure)]
    idle = [text for text in words if text.startswith("idle for")]
    waits = waits_for(schedules.interleaved_one_f_one_b(8, 4, 2), forward=0.5, backward=1.0)
    assert sorted(text.split("\n")[1] for text in idle) == sorted(map(str, waits))
    assert "idle for 0.5\nrank 1 waits for 0F0, to do 1F0" in idle
    assert sum("backward of micro-batch" in text for text in words) == 8 * 4 * 2
    assert explorer._frame().count("idt-spot") >= len(words)


# ---- the explorer


@pytest.mark.parametrize("maker", MAKERS)
def test_every_combination_makes_a_schedule_that_runs_and_what_differs_is_said(maker):
    for m, n, v in itertools.product((1, 2, 7, 12), range(1, 7), (1, 2, 3)):
        schedule, changed = make(maker, m, n, v)
        assert simulate(schedule).makespan > 0
        assert len(schedule.ranks) == n
        assert changed or (schedule.micro_batches, schedule.stages) == (m, n * v)


def test_each_control_changes_the_picture_and_comes_with_an_alt_text():
    assert_each_control_changes_the_picture(draw_schedule_explorer, SCHEDULE_CONTROLS)


@pytest.mark.parametrize("maker", MAKERS)
def test_the_largest_and_the_smallest_setting_of_every_maker_draw(maker):
    for end in (0, -1):
        values = {name: control.options[end] for name, control in SCHEDULE_CONTROLS.items()}
        figure = draw_schedule_explorer(**{**values, "maker": maker})
        assert alt_text(figure).startswith(maker)


def test_what_a_maker_does_not_take_is_said_in_the_title():
    assert "(always v = 1)" in draw_schedule_explorer(**{**FIRST, "maker": "GPipe"}).get_suptitle()
    dual = {**FIRST, "maker": "DualPipeV", "micro_batches": 2, "stages": 3}
    title = draw_schedule_explorer(**dual).get_suptitle().replace("\n", " ")
    assert "m = 8, n = 4, v = 2 (it takes m ≥ 2n, so m = 8, always v = 2)" in title


def test_the_dashed_line_is_the_end_of_gpipe_with_the_same_costs():
    figure = draw_schedule_explorer(**{**FIRST, "communicate": 0.5, "slow": 2})
    costs = {"forward": [1, 1, 2, 1], "backward": [2, 2, 4, 2], "communicate": 0.5}
    end = simulate(gpipe(8, 4), **costs).makespan
    (line,) = (line for line in figure.axes[0].lines if line.get_linestyle() == "--")
    assert line.get_xdata()[0] == end
    assert f"GPipe takes {end:g} ticks" in alt_text(figure)


# ---- a table that can't run


def test_the_first_illegal_action_is_red_and_arrows_show_who_is_stuck():
    figure = draw_refused(EAGER)
    red = [patch.cell.index for patch in drawn_cells(figure) if patch.cell.color == RED]
    assert red == ["0B0"]
    assert [(str(a), str(b)) for a, b in stuck(EAGER)] == [("0B0", "1B0"), ("1F1", "0F1")]
    assert sum(isinstance(patch, FancyArrowPatch) for patch in figure.axes[0].patches) == 2
    assert "0B0 needs 1B0" in figure.get_suptitle()


def test_a_table_that_can_run_has_nothing_red():
    figure = draw_refused(one_f_one_b(3, 2))
    assert not [patch for patch in drawn_cells(figure) if patch.cell.color == RED]
    assert figure.get_suptitle() == "1F1B: it can run"
    assert not stuck(one_f_one_b(3, 2))
