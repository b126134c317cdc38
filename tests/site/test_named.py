"""What the text asks of an explorer, its page can do: the settings that it names are found, in whatever form."""

import json
from typing import Any

import pytest

from lib.show.explore import choice, explore, steps, switch, whole
from lib.show.style import describe, new_figure
from tests.site import small
from tests.support.test_explorers import all_shown
from tools.project import ROOT
from tools.site import atlas, stops
from tools.site.named import around, missing, named_settings


def toy(words: str = "some bars"):
    def draw(**values: Any):
        return describe(new_figure(2, 1)[0], f"{words} {values}")

    return explore(
        draw,
        chunks=whole(1, 16, 4, "m · micro-batches"),
        epoch=whole(0, 12, 0, "e · epoch"),
        overhead=steps((0.0, 0.1, 0.5), 0.1, "overhead of a task, ticks"),
        costs=choice(("all alike", "one heavy layer"), "all alike", "costs"),
        shuffle=switch(True, "shuffle"),
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("the gain grows up to $m = 3$ and falls beyond `m` = 9", {"chunks": (3, 9)}),
        ("take 12 micro-batches", {"chunks": (12,)}),
        ("put epoch 7 beside epoch 0", {"epoch": (0, 7)}),
        ("go to epoch 12", {"epoch": (12,)}),
        ("with an overhead of 0.5", {"overhead": (0.5,)}),
        ('"One heavy layer": what is best?', {"costs": ("one heavy layer",)}),
        ("m is large; 3 + 4 = 7, in 2026, am = 5", {}),
        ("m = 40 and epoch 99 are beyond what it can do", {}),
    ],
)
def test_a_number_beside_the_name_of_a_control_names_a_setting(text: str, expected: dict[str, tuple[Any, ...]]):
    assert named_settings(text, toy()) == expected


def test_the_best_setting_that_the_figure_tells_is_named_too():
    assert named_settings("", toy("4 micro-batches: 143 ticks; best 12: 126"))["chunks"] == (12,)


def test_what_the_page_lacks_is_listed():
    explorer = toy()
    asked = named_settings("Set m = 3 and epoch 12.", explorer)
    assert missing(asked, {"chunks": (1, 4, 16), "epoch": (0, 6, 12)}) == {"chunks": (3,)}
    assert missing(asked, atlas.stops_of(explorer, limit=40, keep=asked)) == {}


def test_the_text_of_an_explorer_is_the_cells_around_it_up_to_a_heading():
    cells = [
        small.text("## Before\n\nm = 1\n\n## Here\n\nm = 2"),
        small.code("shows", "explore(draw)"),
        small.text("m = 3\n\n```python\n# no heading\nm = 4\n```\n\n### Exercise\n\nm = 5"),
    ]
    assert named_settings(around(cells, 1), toy())["chunks"] == (2, 3)


ASKED = {  # which a reader of the pages could not do
    "03 draw_ranks": {"epoch": (12,)},
    "12 draw_balance": {"chunks": (3, 4)},
    "13 draw_chunks": {"chunks": (12,)},
}


@pytest.mark.parametrize("which", ASKED)
def test_texts_and_what_they_ask_for_are_understood(which: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stops, "changes_along", lambda explorer, name, tried: [1.0] * (len(tried) - 1))
    number, function = which.split()
    (shown,) = [each for each in all_shown() if each.number == number and function in each.call]
    (path,) = (ROOT / "notebooks").glob(f"{number}_*.ipynb")
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    (place,) = [
        place
        for place, cell in enumerate(cells)
        if f"({function}" in "".join(cell["source"]) and "explore(" in "".join(cell["source"])
    ]
    explorer = shown.build()
    found = named_settings(around(cells, place), explorer)
    for control, options in ASKED[which].items():
        assert {*options} <= {*found[control]}, control
    assert missing(found, atlas.stops_of(explorer, keep=found)) == {}
