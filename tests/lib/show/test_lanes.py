"""The picture of a trace shows what is in it, and says it in words."""

from typing import Any

import pytest

pytest.importorskip("matplotlib")

from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.text import Text

from lib.show.lanes import bar, draw_timeline, labels_for, lane_bars, lane_rows, lay_out, ticks
from lib.show.style import BLUE, GREEN, PAPER, alt_text, color_of, new_figure, png
from lib.timeline import Span, Trace

LANES = ("worker", "load", 0), ("model", "step", 1)  # lane, kind, start
PREDICTED = Trace(Span(lane, f"{kind} {i}", i + k, i + k + 1, kind) for lane, kind, k in LANES for i in (0, 1))
MEASURED = PREDICTED.scale(1.25)
LOTS = Trace([Span(f"rank {r}", f"F{i}", i + r, i + r + 0.9, "forward") for r in range(8) for i in range(250)])


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


def bars(figure: Figure) -> list[PolyCollection]:
    """Return the collections of bars, without the tracks of the lanes (which have no edge)."""
    (axes,) = figure.axes
    return [c for c in axes.collections if isinstance(c, PolyCollection) and c.get_linewidths()[0] > 0]  # type: ignore[index]


def test_the_words_tell_all_and_rows_can_be_chosen_that_are_idle_in_one_of_the_traces() -> None:
    words = lay_out(None, PREDICTED, None, None).words
    assert words == (
        "Timeline of 2 lanes. Predicted: 4 spans (load, step), makespan 3.00 s, bubble 33 %. "
        "Busy: worker 67 %, model 67 %."
    )
    both = lay_out(MEASURED, PREDICTED, None, None)
    assert both.finding == "Predicted 3.00 s, measured 3.75 s, 33 % idle"
    assert "Predicted: 4 spans" in both.words
    assert "Measured: 4 spans" in both.words
    layout = lay_out(Trace([Span("worker", "load 0", 0, 1)]), PREDICTED, None, None)
    assert (layout.rows, layout.busy_share("model", "measured")) == (("worker", "model"), "0 %")
    assert layout.traces["measured"].bubble == 0.5
    assert lay_out(PREDICTED, None, ["model"], None).words.startswith("Timeline of 1 lane.")
    assert lay_out(PREDICTED, None, ["model", "worker"], None).rows == ("model", "worker")
    with pytest.raises(KeyError, match=r"no lane 'gpu' in what is drawn; its lanes are worker, model"):
        draw_timeline(PREDICTED, lanes=["gpu"])
    with pytest.raises(ValueError, match="nothing to draw: give a measured trace, a predicted one, or both"):
        lay_out(None, None, None, None)


def test_every_kind_has_a_letter_and_a_colour_and_labels_get_shorter_until_they_fit() -> None:
    kinds = ["copy", "compute", "cast", "load", "transfer", "weight", "forward", "step", "unheard of", "neither"]
    layout = lay_out(Trace([Span("a", "x", i, i + 1, kind) for i, kind in enumerate(kinds)]), None, None, None)
    assert layout.letters["copy"] == "C"
    assert layout.letters["compute"] == "O"
    assert layout.colors["copy"] == color_of("copy"), "the first that has a colour keeps it"
    assert len(set(layout.letters.values())) == len(set(layout.colors.values())) == len(kinds)
    assert labels_for(Span("a", "load 13", 0, 1, "load"), "L") == ("load 13", "L13", "L")
    assert labels_for(Span("a", "all-reduce", 0, 1), "C") == ("all-reduce", "C", "C")
    assert labels_for(Span("a", "2B13", 0, 1), "B") == ("2B13", "B13", "B"), "an action: stage 2, micro-batch 13"
    assert labels_for(Span("a", "7", 0, 1), "C") == ("7", "C7", "C")
    assert labels_for(Span("a", "2,1", 0, 1), "F") == ("2,1", "F", "F"), "which of the two numbers would F1 mean?"
    trace = Trace([Span("a", "load 0", 0, 10, "load"), Span("a", "load 1", 10, 10.35, "load")])
    shown = texts(draw_timeline(trace))
    assert "load 0" in shown
    assert "L1" in shown
    assert "load 1" not in shown


@pytest.mark.parametrize("end, whole, shown", [
    (3, False, "0.0 0.5 1.0 1.5 2.0 2.5 3.0"), (3, True, "0 1 2 3"), (55.7, False, "10 20 30 40 50"),
])  # fmt: skip
def test_ticks_are_round_and_whole_where_half_a_clock_means_nothing(end: float, whole: bool, shown: str) -> None:
    assert [text for _, text in ticks(0.1 * (end > 3), end, whole=whole)] == shown.split()


def test_the_unit_fits_the_makespan_unless_it_is_given() -> None:
    assert lay_out(PREDICTED.scale(1e-3), None, None, None).axis_label == "time (ms)"
    assert lay_out(PREDICTED.scale(1e-3), None, None, "µs").end == pytest.approx(3000)
    clock = lay_out(None, PREDICTED, None, "clock")
    assert (clock.axis_label, clock.end, clock.finding) == ("time (clock ticks)", 3.0, "2 lanes, 3 clocks, 33 % idle")
    assert lay_out(None, PREDICTED, None, "tick").axis_label == "time (ticks)"


def test_measured_spans_are_filled_predicted_ones_are_outlines_and_each_bar_lies_where_its_span_lies() -> None:
    filled = {to_hex(color) for c in bars(draw_timeline(PREDICTED)) for color in c.get_facecolor()}
    assert filled == {color_of("load"), color_of("step")}
    outlines = bars(draw_timeline(predicted=PREDICTED))
    assert {to_hex(color) for c in outlines for color in c.get_edgecolor()} == filled
    assert filled.isdisjoint({to_hex(color) for c in outlines for color in c.get_facecolor()})
    assert len(bars(draw_timeline(MEASURED, PREDICTED))) == 4
    (collection,) = bars(draw_timeline(Trace([Span("a", "x", 0.002, 0.005), Span("b", "later", 0.01, 0.02)])[:1]))
    box = collection.get_paths()[0].get_extents()
    assert (box.x0, box.x1) == (pytest.approx(2), pytest.approx(5))


def test_lanes_run_from_top_to_bottom_bubbles_are_hatched_when_asked_for_and_the_words_say_it() -> None:
    figure = draw_timeline(MEASURED, PREDICTED)
    (axes,) = figure.axes
    assert to_hex(figure.get_facecolor()) == PAPER
    assert [label.get_text() for label in axes.get_yticklabels()] == ["worker", "model"]
    assert axes.yaxis_inverted()
    assert axes.get_xlabel() == "time (s)"
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["load (L)", "step (S)", "predicted", "measured"]
    for bubbles, gaps in ((False, []), (True, [(0, 1), (2, 3)])):
        (axes,) = draw_timeline(PREDICTED, bubbles=bubbles).axes
        hatched = [path.get_extents() for c in axes.collections if c.get_hatch() for path in c.get_paths()]
        assert sorted((round(box.x0), round(box.x1)) for box in hatched) == gaps
    figure = draw_timeline(MEASURED, PREDICTED, title="A finding", recorded="NVIDIA H200, torch 2.13")
    text = alt_text(figure)
    assert text.startswith("A finding. Timeline of 2 lanes. Predicted: 4 spans (load, step), makespan 3.00 s")
    assert "Measured: 4 spans (load, step), makespan 3.75 s, bubble 33 %." in text
    assert text.endswith("Recorded: NVIDIA H200, torch 2.13.")
    assert any("Recorded on another machine: NVIDIA H200" in shown for shown in texts(figure))


DEGENERATE = {
    "nothing": Trace(),
    "idle": Trace((), ("rank 0",)),
    "an instant": Trace([Span("a", "an instant", 1, 1)]),
    "60 lanes": Trace([Span(f"a lane with a very long name {i}", r"$\nonsense$", 0, 1) for i in range(60)]),
}


@pytest.mark.parametrize(
    "drawn",
    [
        *({"measured": trace} for trace in DEGENERATE.values()),
        {"measured": PREDICTED, "bubbles": True, "recorded": "a machine"},
        {"measured": MEASURED, "predicted": PREDICTED, "title": "A finding that is so long, it takes two lines " * 2},
        {"measured": LOTS},
        {"measured": LOTS.shift(1e6), "predicted": LOTS.shift(1e6), "unit": "clock"},
        {"measured": Trace([Span("a", "half a tick", 0.2, 0.7)]), "unit": "clock"},
    ],
)
def test_every_text_is_legible_and_inside_the_figure(drawn: dict[str, Any]) -> None:
    figure = draw_timeline(**drawn)
    figure.canvas.draw()
    for text in figure.findobj(Text):
        if text.get_text() and text.get_visible():
            assert text.get_fontsize() >= 9
            box = text.get_window_extent(figure.canvas.get_renderer())
            page = figure.bbox
            inside = box.x0 >= -1 and box.y0 >= -1 and box.x1 <= page.x1 + 1 and box.y1 <= page.y1 + 1
            assert inside, f"{text.get_text()!r} is cut off: {box}"


def test_the_bars_of_a_lane_are_one_artist_and_look_like_bars_one_by_one() -> None:
    places = [(0, 2), (2, 1), (3, 3)]
    colors = [BLUE, GREEN, BLUE]
    texts = ["F0", "", "B0"]
    pictures = []
    for together in (True, False):
        figure, axes = new_figure(4, 1)
        if together:
            lane_bars(axes, 0, places, colors, texts)
            assert len(axes.collections) == 1
        else:
            for (start, width), color, text in zip(places, colors, texts, strict=True):
                bar(axes, 0, start, width, color, text)
            assert len(axes.collections) == 3
        lane_rows(axes, ["rank 0"], 0, 6)
        pictures.append(png(figure))
    assert pictures[0] == pictures[1]
