"""The table placed by hand, and words under the pointer, in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.n08.figures import SCHEDULE_CONTROLS, draw_schedule_explorer
from support.n08.hover import explore_hover, spots
from tests.browser.conftest import SCREENSHOTS, write
from tools.lab import Notebook, Server

if TYPE_CHECKING:
    from playwright.sync_api import Page

PLACE = "from support.n08.figures import place_it\n\nplace_it(micro_batches=1, partitions=2)"


@pytest.mark.timeout(120)
def test_a_click_places_an_action_and_an_illegal_one_is_explained(
    server: Server, open_notebook: Callable[[Path], Notebook]
) -> None:
    notebook = open_notebook(write(server.root / "place.ipynb", PLACE))
    notebook.run_all()
    game = notebook.page.locator(".idt-place")
    answer, frame = game.locator(".idt-answer"), game.locator("img.idt-frame")

    def press(name: str, said: str) -> str:
        game.get_by_role("button", name=name, exact=True).click()
        answer.get_by_text(said).wait_for()
        return frame.get_attribute("alt") or ""

    assert "1 of 4 actions placed" in press("0F0", "Placed 0F0.")
    assert "1 of 4 actions placed" in press("0B0", "Refused: 0B0 needs 1B0")
    press("1F0", "Placed 1F0.")
    press("1B0", "Placed 1B0.")
    assert press("0B0", "Placed 0B0. Complete").startswith("Complete: as fast as GPipe and 1F1B")
    game.screenshot(path=SCREENSHOTS / "place_it.png")
    assert "3 of 4 actions placed" in press("Undo", "Took back 0B0.")
    assert "0 of 4 actions placed" in press("Clear", "Empty.")
    assert notebook.errors() == []


def test_an_idle_slot_says_under_the_pointer_what_the_rank_waits_for(page: Page) -> None:
    explorer = explore_hover(draw_schedule_explorer, **SCHEDULE_CONTROLS)
    words = "idle for 0.5\nrank 1 waits for 0F0, to do 1F0"
    number = [spot.words for spot in spots(explorer.figure)].index(words)
    page.set_content(f"<!doctype html><meta charset='utf-8'><body style='margin:120px'>{explorer._frame()}")
    spot = page.locator(".idt-spot").nth(number)
    told = "element => getComputedStyle(element, '::after').content"
    assert spot.evaluate(told) == "none"
    spot.hover()
    assert "rank 1 waits for 0F0, to do 1F0" in str(spot.evaluate(told))
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / "hover.png")
