"""Sliders that no text tells to move leave their starts a few at a time, and a page says so and has all it offers."""

import itertools
import math

import pytest

from lib.show.explore import choice, explore, switch, whole
from lib.show.style import describe, new_figure
from tools.site import atlas, capture, stops
from tools.site.near import FEWEST_AWAY, WHOLE, Near, near_start, settings_of

LOOSE = ("load", "pin", "copy", "send", "store")


def draw(**values):
    return describe(new_figure(1, 1)[0], f"{values}")


def many(count, **others):
    sliders = {name: whole(1, 3, 1 + place % 3, f"{name} (ms)") for place, name in enumerate(LOOSE[:count])}
    return explore(draw, **sliders, **others)


def near_of(explorer, ordered=(), whole=WHOLE):
    offered = {name: control.options for name, control in explorer.controls.items()}
    return near_start(explorer, offered, ordered, whole), offered


@pytest.mark.parametrize(
    ("count", "whole", "away"),
    [(5, 243, None), (5, 242, 4), (5, 211, 4), (5, 210, 3), (5, 131, 3), (5, 130, 2), (5, 1, 2), (2, 1, None)],
)
def test_as_many_sliders_leave_their_starts_as_frames_allow_and_two_at_least(count, whole, away):
    explorer = many(count)
    near, offered = near_of(explorer, whole=whole)
    assert (near and near.away) == away
    kept = settings_of(offered, near)
    assert len(kept) <= max(whole, math.comb(count, 2) * 4 + 2 * count + 1)
    moved = [sum(values[name] != control.value for name, control in explorer.controls.items()) for values in kept]
    assert max(moved) == (away or count) >= FEWEST_AWAY


def test_what_a_text_tells_to_move_goes_everywhere_and_so_does_what_is_no_slider():
    explorer = many(5, way=choice(("a", "b"), "a", "way"), on=switch(False, "on"))
    near, offered = near_of(explorer, {"load", "pin"}, whole=50)
    assert near == Near({"copy": 3, "send": 1, "store": 2}, 2)
    kept = [tuple(values.values()) for values in settings_of(offered, near)]
    for corner in itertools.product((1, 2, 3), (1, 2, 3), (2,), (3,), (2,), ("a", "b"), (False, True)):
        assert corner in kept
    assert (1, 1, 2, 3, 1, "a", False) not in kept
    assert len(kept) == 9 * 19 * 4


def test_each_slider_alone_and_each_two_of_them_have_all_their_stops():
    explorer = many(5)
    near, offered = near_of(explorer, whole=1)
    kept = settings_of(offered, near)
    for one, other in itertools.combinations(offered, 2):
        pairs = {(values[one], values[other]) for values in kept}
        assert pairs == {*itertools.product(offered[one], offered[other])}


def test_a_page_says_which_sliders_it_means_and_has_no_frame_where_it_says_so():
    explorer = many(4)
    near, offered = near_of(explorer, whole=40)
    frames = atlas.frames_of(explorer, offered, 1, near)
    html = atlas.fragment(explorer, offered, frames, "here", near)
    assert "Here 33 of 81 settings" in html
    assert "Of load (ms), pin (ms), copy (ms) and send (ms), two leave their start together" in html
    assert html.count(" data-near") == 4
    places = atlas.payload(explorer, offered, frames)["s"]
    assert [number >= 0 for number in places] == [near.has(values) for values in settings_of(offered)]
    assert sorted({*places}) == [-1, *range(33)]


def test_a_page_that_has_all_says_nothing():
    explorer = many(2)
    near, offered = near_of(explorer)
    html = atlas.fragment(explorer, offered, atlas.frames_of(explorer, offered, 1, near), "here", near)
    assert near is None
    assert "together" not in html
    assert "data-near" not in html
    few = {name: (control.value,) for name, control in explorer.controls.items()}
    frames = atlas.frames_of(explorer, few, 1)
    assert "together" not in atlas.fragment(explorer, few, frames, "here", Near({"load": 1, "pin": 2}, 1))


@pytest.mark.costly
def test_a_stop_is_dead_if_nothing_changes_there_in_all_that_is_drawn():
    explorer = explore(
        lambda load, pin, copy: describe(new_figure(1, 1)[0], f"{max(load, 2)} {pin} {copy}"),
        **many(3).controls,
    )
    near, offered = near_of(explorer, whole=20)
    frames = atlas.frames_of(explorer, offered, 1, near).frames
    assert stops.without_dead_stops(explorer, offered, frames, {}) == {**offered, "load": (1, 3)}


@pytest.mark.costly
def test_a_build_draws_what_is_near_and_counts_it(tmp_path, monkeypatch):
    explorer = many(5)
    noted = (explorer, atlas.svg(explorer.figure), "words")
    drawn = []
    monkeypatch.setattr(capture, "shown", {"cell": [noted]})
    monkeypatch.setattr(capture, "near_start", lambda *given: near_start(*given, whole=60))
    monkeypatch.setattr(
        atlas, "frames_of", lambda *given, real=atlas.frames_of, **more: real(*given, processes=1, **more)
    )
    monkeypatch.setattr(atlas, "fragment", lambda *given: drawn.append(len(given[2].frames)) or "")
    monkeypatch.setattr(capture, "alt_text", lambda figure: "words")
    monkeypatch.setattr(atlas, "alt_text", lambda figure: "words")
    capture.finish(str(tmp_path / "found.json"), {}, 400, None, "08_small")
    assert drawn == [51]
