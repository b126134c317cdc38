"""The figures of notebook 00: the map of the course, a step that ranks share, a month that devices share."""

import re

import pytest

from lib.show.style import alt_text
from support import course
from support.n00.days import MONTH, SAME_BATCH, SAME_SHARE, days
from support.n00.figures import (
    DAYS_CONTROLS,
    SHARED_STEP_CONTROLS,
    draw_both,
    draw_course,
    draw_days,
    draw_shared_step,
)
from support.n00.shared_step import as_profiled, shared_step
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
    "ranks, slow, message, makespan, bubble",
    [(4, 1, 0, 5, 0), (4, 2, 0, 8, 9 / 32), (8, 2, 0, 8, 21 / 64), (1, 4, 2, 14, 0), (2, 3, 0, 11, 6 / 22),
        (4, 1, 2, 7, 2 / 7), (4, 2, 2, 10, 17 / 40)],
)  # fmt: skip
def test_all_ranks_wait_for_the_slowest_and_for_messages(ranks, slow, message, makespan, bubble):
    trace = shared_step(ranks, slow, message)
    assert trace.makespan == makespan
    assert trace.bubble == pytest.approx(bubble)
    assert trace.lanes == tuple(f"rank {rank}" for rank in range(ranks))
    ready = [span.end for span in trace if span.label == "backward"]
    travelling = message if ranks > 1 else 0
    assert {span.start for span in trace if span.label == "mean"} == {max(ready) + travelling}
    assert len(ready) == ranks


def test_a_profiler_draws_the_wait_inside_the_mean_so_the_slow_ranks_is_the_shortest_and_nobody_looks_idle():
    shown = as_profiled(shared_step(4, 2.0))
    means = [span.duration for span in shown if span.label == "mean"]
    assert sorted(means) == [0.5, 3.5, 3.5, 3.5]
    assert [span.lane for span in shown if span.label == "mean" and span.duration == 0.5] == ["rank 3"]
    assert shown.bubble == 0
    assert shown.makespan == shared_step(4, 2.0).makespan


def legend(figure):
    return [text.get_text() for text in figure.axes[0].get_legend().get_texts()]


def test_the_legend_explains_the_dots_of_idle_time_only_where_there_are_some():
    assert "idle" in legend(draw_shared_step(4, 2.0, 0.0, False))
    assert "idle" not in legend(draw_shared_step(4, 2.0, 0.0, True)), "the mean covers the wait"
    assert "idle" not in legend(draw_shared_step(4, 1.0, 0.0, False)), "nobody waits"


@pytest.mark.costly
def test_the_title_says_who_waits_for_what_only_where_somebody_does():
    for values, alt in told(draw_shared_step, SHARED_STEP_CONTROLS, 20):
        several = values["ranks"] > 1
        trace = shared_step(values["ranks"], values["slow"], values["message"])
        assert ("for the slow one" in alt) == (several and values["slow"] > 1)
        assert ("for messages" in alt) == (several and values["message"] > 0)
        assert f"{trace.bubble:.0%} idle" in alt or not trace.bubble
    figure = draw_shared_step(4, 2.0, 0.0, False)
    assert figure.axes[0].get_xlabel() == "time (ticks)"
    assert "makespan 8 ticks" in alt_text(figure)
    named = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert "mean (M)" in named
    assert "clock" not in alt_text(figure)


def test_where_messages_take_time_the_slow_rank_waits_too_and_the_title_says_so():
    trace = shared_step(4, 1.5, 4.0)
    lanes = {lane: sum(span.duration for span in trace if span.lane == lane) for lane in trace.lanes}
    assert lanes["rank 3"] < trace.makespan
    assert "the 3 others wait for the slow one, and all for messages, 49% idle" in alt_text(
        draw_shared_step(4, 1.5, 4.0, False)
    )
    assert "the other waits for the slow one, and both for messages" in alt_text(draw_shared_step(2, 1.5, 4.0, False))


@pytest.mark.parametrize(
    "values", [(4, 2.0, 0.0, True), (8, 4.0, 4.0, True), (8, 1.5, 0.5, False), (8, 1.0, 0.5, True)]
)
def test_no_title_is_cut_off(values):
    figure = draw_shared_step(*values)
    axes = figure.axes[0]
    figure.draw_without_rendering()
    ends = [text.get_window_extent().x1 for text in axes.get_children() if getattr(text, "get_text", str)()]
    assert axes.get_title(loc="left") or axes.get_title()
    assert max(ends) <= figure.bbox.x1


def test_busy_shares_stand_beside_grey_that_ends_with_their_own_trace():
    shown = draw_both(shared_step(2, 3.0), shared_step(2, 1.0), finding="two")
    white = [part.get_datalim(shown.axes[0].transData) for part in shown.axes[0].collections if part.zorder == 0.5]
    starts = [round(area.x0, 3) for area in white if area.width > 1e-6]
    assert starts == [5, 5], "the predicted rows end after 5 s of 11"


def test_the_month_is_a_share_only_where_messages_cost_nothing():
    for values, alt in told(draw_days, DAYS_CONTROLS, 20):
        ways = {"batch": values["batch"], "hidden": values["hidden"], "update": values["update"]}
        taken = days(values["devices"], values["message"], **ways)
        without_messages = days(values["devices"], 0.0, **ways)
        free = taken == pytest.approx(without_messages)
        assert ("messages cost no time" in alt) == free
        assert ("a step proper of 1.0%" in alt) == (values["update"] == 0.01)
        found = re.search(r": ([\d.]+) days, not ([\d.]+) days", alt)
        assert bool(found) == (taken != pytest.approx(MONTH / values["devices"]))
        assert not found or found[1] != found[2], "what differs is written so that one sees it"
        assert f"{taken:.3g} days" in alt or f"{taken:.4g} days" in alt
    assert "6.75 days, not 3.75 days" in alt_text(draw_days(8, 0.1, SAME_BATCH, False, 0.0))
    assert "3.94 days" in alt_text(draw_days(8, 0.05, SAME_SHARE, False, 0.0))
    assert "a step proper of 1.0%: 4.01 days, not 3.75 days; messages cost no time" in alt_text(
        draw_days(8, 0.0, SAME_BATCH, False, 0.01)
    )
    assert "0.471 days, not 0.469 days" in alt_text(draw_days(64, 0.005, SAME_SHARE, False, 0.0))
    assert "1.884 days, not 1.875 days" in alt_text(draw_days(16, 0.005, SAME_SHARE, False, 0.0))
