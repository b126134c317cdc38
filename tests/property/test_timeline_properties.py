"""Interval arithmetic against brute force: paint the spans on a grid of whole seconds and count the cells."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.timeline import Span, Trace

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
    assert moved.bubble == pytest.approx(trace.bubble) and moved.makespan == factor * trace.makespan
    assert moved.lanes == trace.lanes and trace.shift(seconds).shift(-seconds) == trace


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
