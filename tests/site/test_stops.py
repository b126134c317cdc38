"""Stops lie where a figure changes, a stop at which nothing changes is none, and what a text orders is obeyed."""

import json
import math
from typing import Any
from unittest import mock

import pytest
from matplotlib.figure import Figure

from lib.show.explore import explore, steps, switch, whole
from lib.show.style import alt_text, describe, new_figure
from tests.site import small
from tools.site import asked, atlas, build, capture, stops
from tools.site.named import impossible, named_settings, ordered_sliders


def toy(draw: Any = None):
    def plain(**values: Any) -> Figure:
        return describe(new_figure(2, 1)[0], f"bars {values}")

    return explore(
        draw or plain,
        chunks=whole(1, 16, 4, "m · chunks"),
        ranks=steps((1, 2, 3, 4, 6, 8), 2, "n · ranks of a node"),
        layers=whole(1, 12, 1, "layers"),
        first=whole(1, 12, 1, "layers in the first part"),
        shuffle=switch(True, "shuffle"),
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Set chunks to 6.", {"chunks": (6,)}),
        ("Now drag *m* to 8, and look at the last row.", {"chunks": (8,)}),
        ("It is slow. Move the number of `ranks` to eight: what happens?", {"ranks": (8,)}),
        ("Set m to 3, 5 and 12.", {"chunks": (3, 5, 12)}),
        ("Move the chunks to 16 and back to 2.", {"chunks": (2, 16)}),
        ("Set `layers = 7`.", {"layers": (7,)}),
        ("Go on with three ranks.", {"ranks": (3,)}),
        ("Three ranks would be slower.", {}),
    ],
)
def test_orders_name_settings_in_digits_and_in_words(text: str, expected: dict[str, tuple[Any, ...]]):
    assert named_settings(text, toy()) == expected
    assert impossible(text, toy()) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Set m to 40 and see.", ["m 40"]),
        ("Go to 5 ranks.", ["rank 5", "ranks 5"]),
        ("With 5 ranks it would be slower.", []),
        ("Set layers to 12.", []),
    ],
)
def test_an_order_that_no_control_can_obey_is_found(text: str, expected: list[str]):
    assert sorted(impossible(text, toy())) == expected


def test_sliders_that_orders_speak_of_are_told_from_those_in_passing():
    assert ordered_sliders("Move m. A rank waits for other ranks, whatever the layers.", toy()) == {"chunks"}
    assert ordered_sliders("It gains most at $m = 3$ and $n = 7$, with 12 layers.", toy()) == {"chunks"}
    assert asked.instructions("Switch shuffle off, go to step 1,200, and look: it turns.") == [
        "Switch shuffle off",
        "go to step 1200",
    ]


def test_a_slider_that_the_text_names_keeps_six_stops_however_many_settings_there_are():
    counts = stops.stop_counts(toy().controls, 100, {"ranks": (1,)}, {"chunks"})
    assert counts == {"chunks": 6, "ranks": 3, "layers": 3, "first": 3, "shuffle": 2}
    counts = stops.stop_counts(toy().controls, 400, {"ranks": (1,)}, {"chunks"})
    assert counts["chunks"] == counts["ranks"] == 6
    assert math.prod(counts.values()) <= stops.MORE * 400


def at_seven(count: int) -> Figure:
    """Nothing happens up to 70, then a bar comes with each step up to 80."""
    figure, axes = new_figure(2, 1)
    bars = min(10, max(0, count - 70))
    axes.bar(range(bars), [1] * bars)
    return describe(figure, f"{bars} bars")


def test_stops_lie_where_the_figure_changes_and_few_drawings_find_them():
    drawn: list[int] = []

    def draw(count: int) -> Figure:
        drawn.append(count)
        return at_seven(count)

    explorer = explore(draw, count=whole(1, 120, 1, "bars"))
    found = stops.chosen_stops(explorer, 8, {"count": (33,)}, drawings=60)["count"]
    assert len(drawn) <= 62
    assert {1, 33, 120} <= {*found}
    assert sum(69 <= stop <= 81 for stop in found) >= 4
    assert len(found) == 8


def test_a_stop_at_which_nothing_changes_goes_unless_it_is_the_start_or_named():
    explorer = explore(
        lambda count, even: describe(new_figure(2, 1)[0], f"{max(count, 4) if even else max(count, 3)}"),
        count=whole(1, 6, 2, "n"),
        even=switch(True, "even"),
    )
    offered = atlas.stops_of(explorer)
    frames = {repr(values): alt_text(explorer.draw(**values)) for values in atlas.settings_of(offered)}
    alive = stops.without_dead_stops(explorer, offered, frames, {})
    assert alive == {"count": (2, 4, 5, 6), "even": (False, True)}
    assert stops.without_dead_stops(explorer, offered, frames, {"count": (1, 3)})["count"] == (1, 2, 3, 4, 5, 6)


def test_the_build_stops_at_a_setting_that_the_page_lacks_and_says_which(tmp_path, monkeypatch):
    explorer = explore(at_seven, count=whole(71, 74, 72, "bars"))
    noted = (explorer, atlas.svg(explorer.figure), alt_text(explorer.figure))
    monkeypatch.setattr(capture, "shown", {"cell": [noted]})
    found = tmp_path / "found.json"
    with pytest.raises(RuntimeError, match=r"08_small: the text at cell cell names .*bars 90"):
        capture.finish(str(found), {"cell": "Set the bars to 90."}, 400, None, "08_small")
    capture.finish(str(found), {"cell": "Set the bars to 73."}, 400, None, "08_small")
    assert json.loads(found.read_text())["settings"] == 4


@pytest.mark.parametrize(("most", "said"), [("MOST_SETTINGS", "6 settings are drawn"), ("MOST_BYTES", "MB, 0 may be")])
@pytest.mark.costly
def test_a_site_with_too_many_frames_or_bytes_is_there_and_the_build_fails(tmp_path, most: str, said: str):
    executed = small.executed()
    six = type(executed)(executed.notebook, executed.atlases, executed.guesses, settings=6)
    few = mock.patch.object(build, most, 5)
    many = mock.patch.object(small, "executed", return_value=six)
    with few, many, pytest.raises(ValueError, match=said):
        small.site(tmp_path)
    assert (tmp_path / "site" / "index.html").exists()
