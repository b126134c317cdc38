"""The figures of notebook 00: the map of the course, and a step that ranks share."""

import pytest

from lib.show.style import alt_text
from support import course
from support.n00.figures import SHARED_STEP_CONTROLS, draw_both, draw_course, draw_shared_step, shared_step
from tests.pictures import told


def test_the_map_shows_every_notebook_by_number_and_name_and_says_which_lie_on_which_track():
    drawn = draw_course()
    written = [text.get_text() for text in drawn.axes[0].texts]
    assert [text for text in written if text.isdigit()] == [chapter.label for chapter in course.COURSE]
    assert {chapter.short for chapter in course.COURSE} <= {*written}
    both = course.enumerated([chapter.label for chapter in course.on(course.TOGETHER)])
    assert f"{len(course.COURSE)} notebooks. The data track runs 00 to " in alt_text(drawn)
    assert alt_text(drawn).endswith(f"both meet in {both}.")


@pytest.mark.parametrize(
    "ranks, slow, count, makespan, bubble",
    [(4, 1, 1, 5, 0), (4, 2, 1, 8, 9 / 32), (8, 2, 1, 8, 21 / 64), (1, 4, 2, 28, 0), (2, 3, 2, 22, 12 / 44)],
)
def test_all_ranks_wait_for_the_slowest_in_each_step(ranks, slow, count, makespan, bubble):
    trace = shared_step(ranks, slow, count)
    assert trace.makespan == makespan and trace.bubble == pytest.approx(bubble)
    ready = [span.end for span in trace if span.label == "backward 0"]
    assert {span.start for span in trace if span.label == "mean 0"} == {max(ready)} and len(ready) == ranks


def test_the_title_says_who_waits_only_where_somebody_does_in_one_word_for_unit_and_for_exchange():
    for values, alt in told(draw_shared_step, SHARED_STEP_CONTROLS, 20):
        waits = values["ranks"] > 1 and values["slow"] > 1
        assert ("for the slow one" in alt) == (shared_step(**values).bubble > 0) == waits
    figure = draw_shared_step(4, 2.0, 1)
    assert figure.axes[0].get_xlabel() == "time (ticks)" and "makespan 8 ticks" in alt_text(figure)
    named = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert "mean (M)" in named and "clock" not in alt_text(figure)


def test_busy_shares_stand_beside_grey_that_ends_with_their_own_trace():
    shown = draw_both(shared_step(2, 3.0), shared_step(2, 1.0), title="two")
    white = [part.get_datalim(shown.axes[0].transData) for part in shown.axes[0].collections if part.zorder == 0.5]
    starts = [round(area.x0, 3) for area in white if area.width > 1e-6]
    assert starts == [5, 5], "the predicted rows end after 5 s of 11"
