"""An atlas: every offered setting has its frame, and equal pictures are one."""

import base64
import gzip
import json
import math
import os
import re
from functools import partial

import pytest

from lib.show.explore import choice, explore, switch, whole
from lib.show.style import alt_text, describe, new_figure
from tools.site import atlas, capture

CONTROLS = {
    "count": whole(1, 9, 2, "bars"),
    "color": choice(("tab:blue", "tab:red"), "tab:blue", "colour <b>"),
    "even": switch(False, "even"),
}
COLORS = ("red", "green", "blue", "black", "pink")


def draw(count, color="tab:blue", even=False, heights=(3, 1, 2)):
    figure, axes = new_figure(3, 1)
    axes.bar(range(count), [1 if even else heights[k % 3] for k in range(count)], color=color)
    return describe(figure, f"{count} {color} bars{', all of one height' if even or count == 1 else ''} & <more>")


def unpacked(html):
    return json.loads(gzip.decompress(base64.b64decode(re.search(r'atlas">([^<]*)</script>', html)[1])))


def test_each_setting_of_the_page_has_the_frame_and_the_words_that_python_draws_for_it():
    explorer = explore(draw, **CONTROLS)
    stops = {**atlas.stops_of(explorer), "count": (2, 5), "color": ("tab:blue",)}
    html = atlas.fragment(explorer, stops, atlas.frames_of(explorer, stops, processes=1), "here")
    data = unpacked(html)
    assert len(data["s"]) == math.prod(map(len, stops.values())) == 4
    assert "Here 4 of 36 settings" in html
    for values, number in zip(atlas.settings_of(stops), data["s"], strict=True):
        runs, words, width = data["f"][number]
        ranges = zip(runs[::2], runs[1::2], strict=True)
        picture = [data["t"][k] for first, many in ranges for k in range(first, first + many)]
        figure = draw(**values)
        assert ("\n".join(picture), words, width) == ("\n".join(atlas.cut(atlas.svg(figure))), alt_text(figure), 288)
    assert 'alt="2 tab:blue bars &amp; &lt;more&gt;"' in html
    assert "colour &lt;b&gt;" in html
    assert "<b>" not in html
    assert 'aria-valuetext="2"' in html
    assert re.findall(r"\bon\w+=|http", html) == []


def test_settings_that_give_the_same_picture_share_a_frame_and_elements_are_kept_once():
    explorer = explore(partial(draw, heights=[1, 1, 1]), count=whole(1, 3, 1, "n"), even=switch(False, "even"))
    explorer.draw = lambda count, even: describe(draw(count, even=even, heights=[1, 1, 1]), f"{count} bars")
    stops = atlas.stops_of(explorer)
    frames = atlas.frames_of(explorer, stops, processes=1)
    data = atlas.payload(explorer, stops, frames)
    assert data["s"] == [0, 0, 1, 1, 2, 2]
    assert len(data["f"]) == 3
    assert len(set(data["t"])) == len(data["t"]) < sum(len(atlas.cut(atlas.svg(draw(n)))) for n in (1, 2, 3))


@pytest.mark.parametrize("processes", [1, 2])
def test_a_figure_that_two_settings_share_is_written_once(processes, monkeypatch, tmp_path):
    written = tmp_path / "written"
    real = atlas.svg
    monkeypatch.setattr(atlas, "svg", lambda figure: written.open("a").write("x") and real(figure))
    low = partial(draw, heights=[1])
    explorer = explore(low, count=choice((1,), 1, "n"), even=switch(False, "even"), color=choice(COLORS, "red", "c"))
    settings = [{"count": 1, "even": even, "color": color} for color in COLORS for even in (False, True)]
    stops = {"count": (1,), "even": (False, True), "color": COLORS}
    frames = atlas.frames_of(explorer, stops, processes=processes)
    # two processes may begin the same figure at once, and in the first of each matplotlib has things to work out
    assert len(COLORS) <= len(written.read_text()) <= processes * (len(COLORS) + 1)
    for values in settings:
        name = repr({name: values[name] for name in stops})
        texts = [element for element, k in frames.elements.items() if k in frames.frames[name].elements]
        assert {*texts} == {*atlas.cut(real(low(1, values["color"])))}


@pytest.mark.parametrize(("alike", "looked_at"), [(False, atlas.TRIED), (True, atlas.TRIED + 6)])
def test_figures_are_compared_only_while_two_of_them_have_the_same_words(alike, looked_at, monkeypatch):
    asked = []
    monkeypatch.setattr(atlas, "fingerprint", lambda figure: asked.append(figure) or "")
    last = atlas.TRIED + 6
    explorer = explore(
        lambda count: describe(
            new_figure(1, 1)[0], f"{count} of {last}" if count != 2 or not alike else f"1 of {last}"
        ),
        count=whole(1, last, 1, "n"),
    )
    frames = atlas.frames_of(explorer, atlas.stops_of(explorer), processes=1)
    assert len(asked) == looked_at
    assert len(frames.frames) == last


def test_words_that_two_pictures_share_are_found_and_words_of_one_picture_for_two_settings_are_not():
    def payload_of(words):
        explorer = explore(lambda count: describe(draw(count), words(count)), count=whole(1, 3, 1, "bars"))
        stops = atlas.stops_of(explorer)
        return atlas.payload(explorer, stops, atlas.frames_of(explorer, stops, processes=1))

    assert atlas.told_alike(payload_of(lambda count: f"{count} bars")) == []
    assert atlas.told_alike(payload_of(lambda count: f"{min(count, 2)} bars")) == ["2 bars"]
    explorer = explore(lambda count: draw(2), count=whole(1, 3, 1, "bars"))
    stops = atlas.stops_of(explorer)
    same = atlas.payload(explorer, stops, atlas.frames_of(explorer, stops, processes=1))
    assert atlas.told_alike(same) == []


def test_a_picture_is_the_same_text_each_time_and_holds_no_date_no_font_and_no_foreign_address():
    first = atlas.svg(draw(3))
    second = atlas.svg(draw(3))
    assert first == second
    assert "".join(atlas.cut(first)) == first.replace(">\n", ">").replace("\n", " ")
    assert "<metadata" not in first
    assert {*re.findall(r'xlink:href="#([^"]*)"|url\(#([^)]*)\)', first)} != set()
    assert {a or b for a, b in re.findall(r'xlink:href="#([^"]*)"|url\(#([^)]*)\)', first)} <= {
        *re.findall(r'id="([^"]*)"', first)
    }
    assert re.findall(r' d="[^"]*\.\d{3}|translate\([^)]*\.\d{3}', first) == []
    assert "font-family" not in first
    assert {*re.findall(r"https?://[^\"]*", first)} <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}


@pytest.mark.parametrize("sample", [1, 3, 5])
def test_a_sample_is_small_and_has_the_start(sample):
    stops = atlas.stops_of(explore(draw, **CONTROLS), sample=sample)
    assert math.prod(map(len, stops.values())) <= sample
    assert all(CONTROLS[name].value in kept for name, kept in stops.items())


def test_a_setting_that_the_text_names_is_a_stop_however_thinned_the_slider_is():
    controls = {**CONTROLS, "count": whole(1, 500, 37, "bars")}
    explorer = explore(lambda count, color, even: draw(count % 7, color, even), **controls)
    assert 123 not in atlas.stops_of(explorer, limit=40)["count"]
    stops = atlas.stops_of(explorer, limit=40, keep={"count": (123, 2)})["count"]
    assert {1, 2, 37, 123, 500} <= {*stops}
    assert list(stops) == sorted(stops)


def test_two_processes_draw_the_same_as_one():
    explorer = explore(draw, **CONTROLS)
    stops = atlas.stops_of(explorer, sample=9)
    one, two = (atlas.frames_of(explorer, stops, processes=processes) for processes in (1, 2))
    assert one == two
    assert len(one.frames) > 8


def test_what_cannot_be_drawn_in_a_fork_is_drawn_here_and_other_errors_are_raised():
    here = os.getpid()
    errors = [RuntimeError("Unable to handle autograd's threading in combination with fork-based multiprocessing")]

    def own(count):
        if os.getpid() != here and count > 5:
            raise errors[-1]
        return draw(count)

    explorer = explore(own, count=whole(1, 9, 2, "bars"))
    stops = atlas.stops_of(explorer)
    assert atlas.frames_of(explorer, stops) == atlas.frames_of(explorer, stops, processes=1)
    errors.append(RuntimeError("a fault of the figure"))
    with pytest.raises(RuntimeError, match="a fault of the figure"):
        atlas.frames_of(explorer, stops)


@pytest.mark.costly
def test_an_explorer_that_reads_what_a_later_cell_changed_is_noticed(tmp_path, monkeypatch):
    heights = [1, 2, 3]
    explorer = explore(lambda count: draw(count, heights=heights), count=whole(2, 3, 2, "n"))
    noted = (explorer, atlas.svg(explorer.figure), alt_text(explorer.figure))
    monkeypatch.setattr(capture, "shown", {"cell": [noted]})
    arguments = (str(tmp_path / "found.json"), {}, 400, None, "08_small")
    capture.finish(*arguments)
    assert len(json.loads((tmp_path / "found.json").read_text())["atlases"]["cell"]) == 1
    heights[1] = 5
    with pytest.raises(RuntimeError, match="another start now than where it was shown"):
        capture.finish(*arguments)
