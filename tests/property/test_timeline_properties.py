"""Interval arithmetic against brute force: paint the spans on a grid of whole seconds and count the cells."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.timeline import Span, Trace, Work, play

LANES = ("a", "b", "c")
KINDS = ("load", "copy", "step")
CELLS = 12


@st.composite
def spans(draw: st.DrawFn) -> Span:
    start = draw(st.integers(0, CELLS))
    end = draw(st.integers(start, CELLS))
    return Span(draw(st.sampled_from(LANES)), "x", start, end, draw(st.sampled_from(KINDS)))


traces = st.builds(Trace, st.lists(spans(), max_size=12), st.lists(st.sampled_from((*LANES, "idle")), unique=True))


def painted(trace: Trace, *, lane: str | None = None, kind: str | None = None) -> set[int]:
    """Return the grid cells [t, t + 1) in which a span of that lane or kind runs."""
    chosen = (s for s in trace if lane in (None, s.lane) and kind in (None, s.kind))
    return {cell for span in chosen for cell in range(int(span.start), int(span.end))}


@given(traces)
def test_busy_counts_the_cells_of_a_lane(trace: Trace) -> None:
    for lane in trace.lanes:
        assert trace.busy(lane) == len(painted(trace, lane=lane))


@given(traces)
def test_active_and_overlap_count_the_cells_of_kinds(trace: Trace) -> None:
    for a in KINDS:
        assert trace.active(a) == len(painted(trace, kind=a))
        for b in KINDS:
            assert trace.overlap(a, b) == len(painted(trace, kind=a) & painted(trace, kind=b))


@given(traces)
def test_the_bubble_is_the_unpainted_share_of_lanes_times_makespan(trace: Trace) -> None:
    area = len(trace.lanes) * trace.makespan
    cells = sum(len(painted(trace, lane=lane)) for lane in trace.lanes)
    assert trace.bubble == pytest.approx((1 - cells / area) if area else 0.0)
    assert 0.0 <= trace.bubble <= 1.0


@given(traces, st.integers(-50, 50), st.sampled_from((0.5, 2.0, 1024.0)))
def test_moving_and_scaling_change_no_share(trace: Trace, seconds: int, factor: float) -> None:
    moved = trace.shift(seconds).scale(factor)
    assert moved.bubble == pytest.approx(trace.bubble)
    assert moved.makespan == factor * trace.makespan
    assert moved.lanes == trace.lanes
    assert trace.shift(seconds).shift(-seconds) == trace


@given(traces, traces)
def test_merging_keeps_every_span_and_every_lane(one: Trace, other: Trace) -> None:
    both = one.merge(other)
    assert sorted(map(repr, both)) == sorted(map(repr, [*one, *other]))
    assert set(both.lanes) == {*one.lanes, *other.lanes}
    for lane in one.lanes:
        assert both.busy(lane) >= one.busy(lane)


names = st.text(max_size=8)
nanoseconds = st.integers(-(10**15), 10**15)


@given(st.lists(st.tuples(names, names, nanoseconds, st.integers(0, 10**12), names), max_size=8), st.sets(names))
def test_a_chrome_file_keeps_every_name_and_every_nanosecond(rows, lanes):
    spans = (Span(lane, label, t / 1e9, (t + length) / 1e9, kind) for lane, label, t, length, kind in rows)
    trace = Trace(spans, lanes)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        trace.to_chrome(path)
        assert Trace.from_chrome(path) == trace


@st.composite
def tasks(draw: st.DrawFn) -> list[Work]:
    """Draw tasks of whole seconds, each after some of those before it."""
    made: list[Work] = []
    for k in range(draw(st.integers(0, 8))):
        after = draw(st.lists(st.sampled_from([work.label for work in made]), unique=True, max_size=3)) if made else []
        seconds = draw(st.integers(0, 3))
        message = draw(st.integers(0, 3))
        made.append(Work(draw(st.sampled_from(LANES)), f"task {k}", seconds, after, message=message))
    return made


def watched(works: list[Work]) -> dict[str, tuple[int, int]]:
    """Watch the lanes second by second: whoever is free and has all its inputs begins. Return starts and ends."""
    lane_of = {work.label: work.lane for work in works}
    waiting = {lane: [work for work in works if work.lane == lane] for lane in LANES}
    times: dict[str, tuple[int, int]] = {}

    def has_its_inputs(work: Work, now: int) -> bool:
        ends = {label: times[label][1] for label in work.after if label in times}
        travel = {label: 0 if lane_of[label] == work.lane else work.message for label in ends}
        return len(ends) == len(work.after) and all(end + travel[label] <= now for label, end in ends.items())

    for now in range(sum(int(work.seconds + work.message) for work in works) + 1):
        going = True
        while going:  # a task of no seconds lets others begin in the second in which it ends
            going = False
            for lane, queue in waiting.items():
                busy = any(lane_of[label] == lane and end > now for label, (_, end) in times.items())
                if queue and not busy and has_its_inputs(queue[0], now):
                    work = queue.pop(0)
                    times[work.label] = (now, now + int(work.seconds))
                    going = True
    return times


@given(tasks())
def test_play_lets_each_task_begin_in_the_second_in_which_a_watchman_sees_it_begin(works):
    trace = play(works, LANES)
    assert {span.label: (span.start, span.end) for span in trace} == watched(works)
    assert {span.label: (span.lane, span.kind) for span in trace} == {w.label: (w.lane, w.kind) for w in works}
    assert set(trace.lanes) == set(LANES)
