"""Every interactive figure is a pure function with controls around it; the still frame and the live one are equal."""

import base64
import math

import matplotlib
import pytest

from lib.show.explore import WIDGET_VIEW, choice, explore, steps, switch, whole
from lib.show.style import alt_text, describe, ink_on, new_figure, png, shown_size, styled, title
from support.setup import figure_bundle
from tests.lib.refusal import refuses


@styled
def draw_bars(count, color, hatched):
    if count == 7:
        raise RuntimeError("seven bars cannot be drawn")
    figure, axes = new_figure(6, 2)
    axes.bar(range(count), range(count), color=color, hatch="//" if hatched else None)
    title(axes, f"{count} bars")
    return describe(figure, f"{count} {color} bars{', hatched' if hatched else ''}")


CONTROLS = {"count": whole(1, 9, 3, "bars"), "color": choice(["red", "blue"], "red", "colour")}
CONTROLS["hatched"] = switch(False, "hatched")


def controls_of(explorer):
    return explorer.widget.children[0].children


def frame_of(explorer):
    return explorer.widget.children[1].value


def test_the_first_frame_is_drawn_at_once_or_its_error_raised_and_one_output_carries_all():
    assert alt_text(explore(draw_bars, **CONTROLS).figure) == "3 red bars"
    refuses(RuntimeError, "seven", explore, draw_bars, **{**CONTROLS, "count": whole(1, 9, 7, "bars")})
    refuses(ValueError, "starts at 40", whole, 1, 9, 40, "bars")
    explorer = explore(draw_bars, **CONTROLS)
    data, metadata = explorer._repr_mimebundle_()
    assert data[WIDGET_VIEW]["model_id"] == explorer.widget.model_id
    assert data["text/plain"] == metadata["image/png"]["alt"] == "3 red bars"
    assert base64.b64decode(data["image/png"]) == png(explorer.figure)
    assert 'alt="3 red bars"' in frame_of(explorer)


def test_moving_each_control_changes_the_figure():
    explorer = explore(draw_bars, **CONTROLS)
    count, color, hatched = controls_of(explorer)
    frames = [frame_of(explorer)]
    for widget, value in ((count, 4), (color, "blue"), (hatched, True)):
        widget.value = value
        frames.append(frame_of(explorer))
    assert len(set(frames)) == 4
    assert alt_text(explorer.figure) == "4 blue bars, hatched"


def test_a_grid_has_all_settings_of_a_small_explorer_and_of_a_large_one_ends_start_and_every_choice():
    small = explore(draw_bars, **CONTROLS)
    assert small.grid() == {name: control.options for name, control in small.controls.items()}
    wide = {**CONTROLS, "count": whole(1, 500, 37, "n")}
    for limit in (40, 61, 200):
        grid = explore(draw_bars, **wide).grid(limit)
        count = grid["count"]
        assert {1, 37, 500} <= {*count}
        assert list(count) == sorted(count)
        assert grid["color"] == CONTROLS["color"].options
        assert grid["hatched"] == (False, True)
        assert limit - 4 < math.prod(map(len, grid.values())) <= limit


@pytest.mark.parametrize(("count", "stops"), [(2, (0, 7, 19)), (3, (0, 7, 19)), (4, (0, 7, 13, 19)), (99, range(20))])
def test_stops_are_evenly_spread_and_the_one_nearest_to_the_start_gives_way(count, stops):
    assert whole(0, 19, 7, "n").stops(count) == tuple(stops)


def test_a_slider_that_moves_back_draws_nothing_twice_until_many_frames_were_seen(monkeypatch):
    monkeypatch.setattr("lib.show.explore.KEPT", 3)
    drawn = []
    explorer = explore(lambda n: drawn.append(n) or draw_bars(n, "red", False), n=whole(1, 6, 1, "n"))
    (slider,) = controls_of(explorer)
    first = frame_of(explorer)
    for n in (2, 3, 1, 2):
        slider.value = n
    assert drawn == [1, 2, 3]
    assert 'alt="2 red bars"' in frame_of(explorer)
    for n in (4, 1):  # the fourth frame takes the place of the first
        slider.value = n
    assert drawn == [1, 2, 3, 4, 1]
    assert frame_of(explorer) == first


def test_an_error_at_a_later_position_is_shown_and_raised():
    explorer = explore(draw_bars, **CONTROLS)
    with pytest.raises(RuntimeError, match="seven"):
        controls_of(explorer)[0].value = 7
    assert "idt-error" in frame_of(explorer)
    assert "seven bars" in frame_of(explorer)
    controls_of(explorer)[0].value = 8
    assert "idt-frame" in frame_of(explorer), "and the next position works again"


def test_controls_become_the_widgets_they_look_like():
    draw = lambda **values: draw_bars(2, "red", False)  # noqa: E731
    controls = whole(0, 1, 0, "a"), steps([1, 2, 4, 8], 2, "b"), choice("xy", "x", "c"), switch(True, "d")
    explorer = explore(draw, **dict(zip("abcd", controls, strict=True)), e=whole(0, 10, 5, "e", 5))
    kinds = [type(widget).__name__ for widget in controls_of(explorer)]
    assert kinds == ["IntSlider", "SelectionSlider", "Dropdown", "Checkbox", "IntSlider"]
    assert controls_of(explorer)[4].step == 5


def test_a_figure_is_a_picture_with_its_words_with_the_same_bytes_and_matplotlib_as_it_was():
    figure, axes = new_figure(4, 2)
    axes.set_xlabel("seconds")
    title(axes, "Loading waits")
    assert alt_text(figure) == "Figure: Loading waits, seconds"
    figure = draw_bars(3, "red", False)
    data, metadata = figure_bundle(figure)
    assert set(data) == {"image/png", "text/plain"}
    assert metadata["image/png"]["alt"] == data["text/plain"] == "3 red bars"
    assert (metadata["image/png"]["width"], metadata["image/png"]["height"]) == shown_size(figure)
    before = dict(matplotlib.rcParams)
    assert png(draw_bars(3, "red", True)) == png(draw_bars(3, "red", True))
    assert dict(matplotlib.rcParams) == before
    assert ink_on("#0072b2") == "#ffffff" != ink_on("#f0e442"), "ink can be read on every colour"
