"""An atlas: every offered setting has its frame, equal pictures are one, and a picture in the cache is never stale."""

import base64
import gzip
import json
import math
import re
import threading
from functools import cache, lru_cache, partial

import numpy
import pytest
import torch

from lib.show.explore import choice, explore, switch, whole
from lib.show.style import alt_text, describe, new_figure
from lib.timeline import Span
from tools.site import atlas, capture
from tools.site.keys import Unkeyed, fingerprint

CONTROLS = {
    "count": whole(1, 9, 2, "bars"),
    "color": choice(("tab:blue", "tab:red"), "tab:blue", "colour <b>"),
    "even": switch(False, "even"),
}


def draw(count, color="tab:blue", even=False, heights=(3, 1, 2)):
    figure, axes = new_figure(3, 1)
    axes.bar(range(count), [1 if even else heights[k % 3] for k in range(count)], color=color)
    return describe(figure, f"{count} {color} bars{', all of one height' if even or count == 1 else ''} & <more>")


def unpacked(html):
    return json.loads(gzip.decompress(base64.b64decode(re.search(r'atlas">([^<]*)</script>', html)[1])))


def test_each_setting_of_the_page_has_the_frame_and_the_words_that_python_draws_for_it():
    explorer = explore(draw, **CONTROLS)
    stops = {**atlas.stops_of(explorer), "count": (2, 5), "color": ("tab:blue",)}
    html = atlas.fragment(explorer, stops, atlas.frames_of(explorer, stops, None, processes=1), "here")
    data = unpacked(html)
    assert len(data["s"]) == math.prod(map(len, stops.values())) == 4 and "Here 4 of 36 settings" in html
    for values, number in zip(atlas.settings_of(stops), data["s"], strict=True):
        runs, words, width = data["f"][number]
        ranges = zip(runs[::2], runs[1::2], strict=True)
        picture = [data["t"][k] for first, many in ranges for k in range(first, first + many)]
        figure = draw(**values)
        assert ("\n".join(picture), words, width) == ("\n".join(atlas.cut(atlas.svg(figure))), alt_text(figure), 288)
    assert 'alt="2 tab:blue bars &amp; &lt;more&gt;"' in html and "colour &lt;b&gt;" in html and "<b>" not in html
    assert 'aria-valuetext="2"' in html and re.findall(r"\bon\w+=|http", html) == []


def test_settings_that_give_the_same_picture_share_a_frame_and_elements_are_kept_once():
    explorer = explore(partial(draw, heights=[1, 1, 1]), count=whole(1, 3, 1, "n"), even=switch(False, "even"))
    explorer.draw = lambda count, even: describe(draw(count, even=even, heights=[1, 1, 1]), f"{count} bars")
    stops = atlas.stops_of(explorer)
    frames = atlas.frames_of(explorer, stops, None, processes=1)
    data = atlas.payload(explorer, stops, frames)
    assert data["s"] == [0, 0, 1, 1, 2, 2] and len(data["f"]) == 3
    assert len(set(data["t"])) == len(data["t"]) < sum(len(atlas.cut(atlas.svg(draw(n)))) for n in (1, 2, 3))


def test_a_picture_is_the_same_text_each_time_and_holds_no_date_no_font_and_no_foreign_address():
    first = atlas.svg(draw(3))
    second = atlas.svg(draw(3))
    assert first == second and "".join(atlas.cut(first)) == first.replace(">\n", ">").replace("\n", " ")
    assert "<metadata" not in first and "font-family" not in first
    assert {*re.findall(r"https?://[^\"]*", first)} <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}


@pytest.mark.parametrize("sample", [1, 3, 5])
def test_a_sample_is_small_and_has_the_start(sample):
    stops = atlas.stops_of(explore(draw, **CONTROLS), sample=sample)
    assert math.prod(map(len, stops.values())) <= sample
    assert all(CONTROLS[name].value in kept for name, kept in stops.items())


def test_a_frame_that_was_drawn_is_not_drawn_again_and_what_it_reads_is_part_of_its_key(tmp_path):
    drawn = []

    def drawing(heights):
        return lambda count: drawn.append(count) or draw(count, heights=heights)

    for heights, new in (([1, 2, 3], 2), ([1, 2, 3], 0), ([1, 2, 4], 2)):
        explorer = explore(drawing(heights), count=whole(1, 2, 1, "n"))
        explorer.draw.__closure__[0].cell_contents.clear()  # `drawn`: what was drawn is not what is drawn
        atlas.frames_of(explorer, atlas.stops_of(explorer), tmp_path, "house", processes=1)
        assert len(drawn) == new, heights
        drawn.clear()
    atlas.frames_of(explorer, atlas.stops_of(explorer), tmp_path, "another house", processes=1)
    assert len(drawn) == 2, "lib has changed"


def test_what_nobody_can_look_through_is_drawn_each_time(tmp_path):
    numbers = iter(range(1, 99))
    explorer = explore(lambda count: draw(count + 0 * next(numbers)), count=whole(1, 2, 1, "n"))
    for _ in range(2):
        atlas.frames_of(explorer, atlas.stops_of(explorer), tmp_path, "house", processes=1)
    assert next(numbers) == 6 and list(tmp_path.rglob("*.atlas")) == []


def test_two_processes_draw_the_same_as_one():
    explorer = explore(draw, **CONTROLS)
    stops = atlas.stops_of(explorer, sample=9)
    one, two = (atlas.frames_of(explorer, stops, None, processes=processes) for processes in (1, 2))
    assert one == two and len(one.frames) > 8


def test_an_explorer_that_reads_what_a_later_cell_changed_is_noticed(tmp_path, monkeypatch):
    heights = [1, 2, 3]
    explorer = explore(lambda count: draw(count, heights=heights), count=whole(2, 3, 2, "n"))
    noted = (explorer, atlas.svg(explorer.figure), alt_text(explorer.figure))
    monkeypatch.setattr(capture, "shown", {"cell": [noted]})
    arguments = (str(tmp_path / "found.json"), str(tmp_path), "house", 400, None, "08_small")
    capture.finish(*arguments)
    assert len(json.loads((tmp_path / "found.json").read_text())["atlases"]["cell"]) == 1
    heights[1] = 5
    with pytest.raises(RuntimeError, match="another start now than where it was shown"):
        capture.finish(*arguments)


# ---- keys


class Holder:
    def __init__(self, held):
        self.held = held

    def method(self):
        return self.held


def closing(value):
    def inner(n):
        return [value for _ in range(n)]

    return inner


@cache
def remembered(n):
    return n


PAIRS = [  # made twice from the first they are equal, and from the second they are not
    (lambda: 1, lambda: 1.0),
    (lambda: 1, lambda: True),
    (lambda: "1", lambda: b"1"),
    (lambda: [1, 2], lambda: (1, 2)),
    (lambda: [[1], 2], lambda: [[1, 2]]),
    (lambda: {1: 2}, lambda: {2: 1}),
    (lambda: {3, 1}, lambda: {3, 2}),
    (lambda: closing(1), lambda: closing(2)),
    (lambda: closing([1]), lambda: closing([2])),
    (lambda: partial(draw, count=1), lambda: partial(draw, count=2)),
    (lambda: draw, lambda: unpacked),
    (lambda: lambda n: n + 1, lambda: lambda n: n + 2),
    (lambda: lambda n=1: n, lambda: lambda n=2: n),
    (lambda: Holder([1]), lambda: Holder([2])),
    (lambda: Holder([1]).method, lambda: Holder([2]).method),
    (lambda: torch.ones(3), lambda: torch.zeros(3)),
    (lambda: numpy.ones(3), lambda: numpy.ones(3, "float32")),
    (lambda: torch.nn.Linear(1, 1).eval(), lambda: torch.nn.Linear(1, 1)),
    (lambda: remembered, lambda: lru_cache(closing(3))),
    (lambda: Span("a", "b", 1, 2), lambda: Span("a", "b", 1, 3)),
]


@pytest.mark.parametrize("number", range(len(PAIRS)))
def test_a_key_tells_apart_what_may_draw_differently_and_nothing_else(number):
    one, other = PAIRS[number]
    torch.manual_seed(0)
    first = fingerprint(one())
    torch.manual_seed(0)
    assert first == fingerprint(one())
    torch.manual_seed(0)
    assert first != fingerprint(other())


def test_a_key_follows_a_circle_and_the_names_that_a_function_of_the_notebook_reads_and_refuses_the_rest():
    circle = [1]
    circle.append(circle)
    assert fingerprint(circle) != fingerprint([1, [1]])
    keys = set()
    for height in (1, 2, 2):
        space = {"__name__": "__main__", "height": height}
        exec("def inner(n):\n    return [height for _ in range(n)]\ndef draw(n):\n    return inner(n)", space)
        keys.add(fingerprint(space["draw"]))
    assert len(keys) == 2
    for opaque in (iter([1]), object(), [{"a": (1, threading.Lock())}], closing(iter([1]))):
        with pytest.raises(Unkeyed):
            fingerprint(opaque)
