"""Pictures of schedules: timelines, what an idle slot waits for, all makers by name, a table that can't run."""

import itertools

import pytest
from matplotlib.collections import PolyCollection

from lib import schedules
from lib.schedules import Schedule, gpipe, live_activations, model_parallel, one_f_one_b, simulate, waits_for
from lib.show.schedule_table import MAKERS, draw_refused, draw_schedule, draw_schedules, held, make, stuck
from lib.show.sheet import drawn_cells
from lib.show.style import RED, alt_text

EAGER = Schedule.from_text("eager", "0F0 0B0 0F1 0B1\n1F0 1F1 1B0 1B1")


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
def test_every_table_runs_its_bars_are_the_simulated_spans_and_its_hatches_the_waits(maker):
    schedule, _ = make(maker, 5, 3, 2)
    costs = {"forward": 1.0, "backward": 2.0, "communicate": 0.5}
    figure = draw_schedule(schedule, **costs)
    spans = [(s.start, s.end, int(s.lane.split()[1])) for s in simulate(schedule, **costs)]
    assert bars(figure.axes[0]) == sorted(spans)
    hatched = [c for c in figure.axes[0].collections if c.get_hatch()]
    assert sum(len(c.get_paths()) for c in hatched) == len(waits_for(schedule, **costs))
    assert f"held by rank: {', '.join(f'{peak:g}' for peak in held(schedule))}" in alt_text(figure)
    for m, n, v in itertools.product((1, 2, 7, 12), range(1, 7), (1, 2, 3)):
        schedule, changed = make(maker, m, n, v)
        assert simulate(schedule).makespan > 0
        assert len(schedule.ranks) == n
        assert changed or (schedule.micro_batches, schedule.stages) == (m, n * v)


def test_several_schedules_are_compared_on_one_time_axis_and_stages_count_as_parts_of_a_rank():
    figure = draw_schedules([gpipe(8, 4), one_f_one_b(8, 4)])
    assert figure.get_suptitle() == "GPipe and 1F1B take equally long; 1F1B holds at most 4, not 8"
    assert len({axes.get_xlim() for axes in figure.axes[::2]}) == 1
    slower = draw_schedules([model_parallel(4, 3), gpipe(4, 3)])
    assert slower.get_suptitle() == "GPipe is fastest; model parallel holds at most 1, not 4"
    interleaved = schedules.interleaved_one_f_one_b(8, 4, 2)
    assert held(interleaved) == [peak / 2 for peak in live_activations(interleaved)]
    forward = Schedule("forward", [row[:3] for row in gpipe(3, 1).compact().ranks])
    figure = draw_schedule(forward)
    assert "hold" not in alt_text(figure)
    assert "held" not in figure.axes[0].get_title("left")


@pytest.mark.parametrize("maker", [schedules.dualpipe_v, schedules.zbv, schedules.gpipe])
def test_what_explains_the_colours_ends_inside_the_picture(maker):
    figure = draw_schedule(maker(8, 4))
    figure.canvas.draw()
    (found,) = figure.legends
    assert [text.get_text() for text in found.get_texts()][-1] == "idle"
    assert found.get_window_extent().x1 <= figure.bbox.x1


def test_the_first_illegal_action_is_red_and_arrows_show_who_is_stuck():
    figure = draw_refused(EAGER)
    red = [patch.cell.index for patch in drawn_cells(figure) if patch.cell.color == RED]
    assert red == ["0B0"]
    assert [(str(a), str(b)) for a, b in stuck(EAGER)] == [("0B0", "1B0"), ("1F1", "0F1")]
    assert "0B0 needs 1B0" in figure.get_suptitle()
    assert draw_refused(one_f_one_b(3, 2)).get_suptitle() == "1F1B: it can run"
    assert not stuck(one_f_one_b(3, 2))
