"""The figures of notebook 00: the map of the course, and work shared between lanes."""

import pytest
from support.n00.figures import COURSE, SHARED_WORK_CONTROLS, draw_course, draw_shared_work, share_work

from lib.show.explore import explore
from lib.show.style import alt_text


def test_the_map_has_sixteen_stops_in_order_and_no_two_at_one_place():
    assert [stop.number for stop in COURSE] == list(range(16))
    assert len({stop.at for stop in COURSE}) == 16


def test_the_map_names_every_notebook_and_its_alt_text_the_tracks():
    figure = draw_course()
    assert "16 notebooks. The data track runs 00 to 06, the pipeline track 00 and 07 to 12" in alt_text(figure)
    drawn = [text.get_text() for text in figure.axes[0].texts]
    assert [text for text in drawn if text.isdigit()] == [f"{number:02d}" for number in range(16)]


@pytest.mark.parametrize(
    "tasks, workers, longest, longest_first, makespan",
    [(8, 3, 4, False, 6), (8, 3, 4, True, 4), (1, 6, 8, False, 8), (6, 2, 1, False, 3)],
)
def test_each_task_goes_to_the_worker_that_is_free_first(tasks, workers, longest, longest_first, makespan):
    trace = share_work(tasks, workers, longest, longest_first)
    assert trace.makespan == makespan
    assert len(trace) == tasks
    assert len(trace.lanes) == workers


def test_no_share_of_work_beats_the_longest_task_or_the_mean():
    for values in explore(draw_shared_work, **SHARED_WORK_CONTROLS).corners():
        trace = share_work(**values)
        work = values["tasks"] - 1 + values["longest"]
        assert trace.makespan >= max(values["longest"], work / values["workers"])
        assert sum(trace.busy(lane) for lane in trace.lanes) == pytest.approx(work)


def test_every_position_of_its_sliders_draws_and_states_the_finding():
    for values in explore(draw_shared_work, **SHARED_WORK_CONTROLS).corners():
        trace = share_work(**values)
        alt = alt_text(draw_shared_work(**values))
        assert f"{trace.makespan:g} clocks instead of" in alt
        assert f"{trace.bubble:.0%} idle" in alt
