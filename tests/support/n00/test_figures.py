"""The figures of notebook 00: the map of the course, and work shared between lanes."""

import pytest

from lib.show.style import alt_text
from support.n00.figures import COURSE, SHARED_WORK_CONTROLS, draw_course, draw_shared_work, share_work
from tests.pictures import told


def test_the_map_has_sixteen_stops_in_order_no_two_at_one_place_and_names_the_tracks():
    assert [stop.number for stop in COURSE] == list(range(16)) and len({stop.at for stop in COURSE}) == 16
    told = alt_text(draw_course())
    assert "16 notebooks. The data track runs 00 to 06, the pipeline track 00 and 07 to 12" in told


@pytest.mark.parametrize(
    "tasks, workers, longest, longest_first, makespan",
    [(8, 3, 4, False, 6), (8, 3, 4, True, 4), (1, 6, 8, False, 8), (6, 2, 1, False, 3)],
)
def test_each_task_goes_to_the_worker_that_is_free_first(tasks, workers, longest, longest_first, makespan):
    trace = share_work(tasks, workers, longest, longest_first)
    assert (trace.makespan, len(trace), len(trace.lanes)) == (makespan, tasks, workers)


def test_no_share_of_work_beats_the_longest_task_or_the_mean_and_the_words_state_it():
    for values, alt in told(draw_shared_work, SHARED_WORK_CONTROLS, 50):
        trace = share_work(**values)
        work = values["tasks"] - 1 + values["longest"]
        assert trace.makespan >= max(values["longest"], work / values["workers"])
        assert sum(trace.busy(lane) for lane in trace.lanes) == pytest.approx(work)
        assert f"{trace.makespan:g} clocks instead of" in alt and f"{trace.bubble:.0%} idle" in alt
