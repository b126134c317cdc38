"""The primitives of lib.show: what each puts on the canvas, and that its table of contents is true."""

import importlib
import re

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex

import lib.show
from lib.show import charts, lanes, sheet, style


def pixels(figure):
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3]


def shows(figure, color):
    """Say whether a colour is anywhere in the picture."""
    wanted = [int(color[i : i + 2], 16) for i in (1, 3, 5)]
    return bool((pixels(figure) == wanted).all(axis=-1).any())


def test_the_table_of_contents_names_what_is_there():
    module = ""
    found = []
    missing = []
    for line in lib.show.__doc__.splitlines():
        if match := re.match(r"([a-z_]+)  +\S", line):
            module = match.group(1)
            line = line.removeprefix(module)
        if module:
            names = re.findall(r"\b[a-z0-9]+_\w+", line)
            home = importlib.import_module(f"lib.show.{module}")
            found += names
            missing += [name for name in names if not hasattr(home, name)]
    assert len(found) > 25
    assert missing == []


def test_a_mix_with_white_is_pale_a_headline_wrapped_and_a_source_of_another_machine_framed():
    assert style.mixed(style.BLUE, style.RED, 0) == style.BLUE
    assert style.mixed(style.BLUE, style.RED, 1) == style.RED
    assert style.pale(style.BLUE, 0.3) == style.mixed(style.BLUE, style.PAPER, 0.7)
    figure, _ = style.new_figure(9, 3)
    style.headline(figure, "word " * 30)
    assert "\n" in figure.get_suptitle()
    style.source_note(figure, "here")
    another, _ = style.new_figure(9, 3)
    style.source_note(another, "there", recorded=True)
    assert figure._supxlabel.get_bbox_patch() is None
    assert another._supxlabel.get_bbox_patch() is not None


@pytest.mark.parametrize("names", ["a", "a lane with a long name"])
@pytest.mark.parametrize("word", ["many", "WIDE", "ill"])
@pytest.mark.parametrize("rows", [1, 2])
def test_a_title_ends_inside_the_figure_however_far_in_the_axes_begin(names, word, rows):
    @style.styled
    def drawn():
        figure, axes = style.new_figure(9, 5, rows=rows, squeeze=False)
        lanes.lane_rows(axes[-1, 0], [names, "b"], 0, 2)
        style.title(axes[0, 0], f"{word} " * 40)
        figure.draw_without_rendering()
        return figure, axes[0, 0]._left_title

    figure, shown = drawn()
    assert shown.get_window_extent().x1 <= figure.bbox.x1
    assert shown.get_text().split() == [word] * 40
    assert shown.get_text().count("\n") < 6, "lines are about as long as there is room"


@pytest.mark.parametrize("track_first", [True, False])
def test_a_track_lies_below_what_the_lane_does_whichever_is_drawn_first(track_first):
    figure, axes = style.new_figure(9, 2)
    if track_first:
        lanes.lane_rows(axes, ["a"], 0, 2, track=True)
    lanes.bar(axes, 0, 0, 1, style.ORANGE, "work")
    if not track_first:
        lanes.lane_rows(axes, ["a"], 0, 2, track=True)
    assert shows(figure, style.ORANGE)
    assert shows(figure, style.TRACK)


def test_lanes_have_their_names_idle_its_sign_a_box_text_and_a_strip_is_cells_side_by_side():
    _, axes = style.new_figure(9, 2)
    lanes.lane_rows(axes, ["first", "second"], 1, 5)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["first", "second"]
    low, high = axes.get_ylim()
    assert low > high, "the first lane is on top"
    assert axes.get_xlim() == (1, 5)
    _, axes = style.new_figure(9, 2)
    lanes.idle(axes, 0, [(0, 1), (2, 1)])
    (drawn,) = axes.collections
    assert len(drawn.get_paths()) == 2
    assert drawn.get_hatch() == style.IDLE["hatch"]
    assert to_hex(drawn.get_facecolor()[0]) == style.IDLE["facecolor"]
    _, axes = sheet.inch_sheet(2)
    for face in (style.INK, style.PAPER):
        sheet.box(axes, 1, 1, 2, 1, "text", face=face)
        assert axes.texts[-1].get_color() == style.ink_on(face)
    assert sheet.box(axes, 3, 1, 2, 1).get_bbox().bounds == (2, 0.5, 2, 1)
    figure, axes = sheet.inch_sheet(1)
    sheet.draw_strip(axes, 1.0, 0.5, [sheet.Cell(i) for i in range(3)], side=0.4)
    places = [(round(x, 6), y) for x, y in (patch.at for patch in sheet.drawn_cells(figure))]
    assert places == [(1.2, 0.5), (1.6, 0.5), (2.0, 0.5)]


def test_an_axis_of_powers_writes_each_value_and_where_nothing_was_measured_it_is_the_predicted_one():
    _, axes = style.new_figure(9, 2)
    charts.log2_axis(axes, (1, 2, 4), lambda value: f"m{value}")
    assert [label.get_text() for label in axes.get_xticklabels()] == ["m1", "m2", "m4"]
    assert axes.get_xscale() == "log"
    _, axes = style.new_figure(9, 3)
    charts.bars(axes, [1.0, 2.0], None, style.BLUE)
    assert [text.get_text() for text in axes.texts] == ["1", "2"]
    assert not any(patch.get_facecolor()[3] for patch in axes.patches)
    assert [entry.get_label() for entry in charts.legend_pair(False)] == ["predicted"]


@pytest.mark.parametrize("across", [True, False])
def test_a_prediction_inside_a_longer_measured_bar_is_seen_and_the_number_is_the_measured_one(across):
    _, axes = style.new_figure(9, 3)
    charts.bars(axes, [1.0], [3.0], style.BLUE, across=across)
    measured, predicted = axes.patches
    assert to_hex(predicted.get_edgecolor()) != to_hex(measured.get_facecolor())
    assert predicted.get_zorder() > measured.get_zorder()
    assert [text.get_text() for text in axes.texts] == ["3"]


def test_bars_in_rows_say_their_words_beside_their_ends_and_the_first_is_on_top():
    _, axes = style.new_figure(9, 3)
    drawn = charts.row_bars(axes, [3, 1], ["three", "one"], ["first", "second"], [style.INK, style.GREY])
    assert [(text.get_text(), text.xy) for text in axes.texts] == [("three", (3, 0)), ("one", (1, 1))]
    assert [to_hex(bar.get_facecolor()) for bar in drawn] == [style.INK, style.GREY]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["first", "second"]
    low, high = axes.get_ylim()
    assert low > high
    assert list(axes.get_xticks()) == []
