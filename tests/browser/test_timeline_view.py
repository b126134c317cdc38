"""The HTML timeline in a real browser: pointer, keys and buttons, and what remains without a script."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from lib.timeline import Span, Trace
from support.n00.timeline_html import timeline_html

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

STEPS = [("worker", "load 0", 0), ("worker", "load 1", 1), ("model", "step 0", 1), ("model", "step 1", 2)]
PREDICTED = Trace([Span(lane, label, start, start + 1, label[:4]) for lane, label, start in STEPS])
NASTY = "</script><img src=x onerror='document.title=1'>"


@pytest.fixture
def page(page: Page) -> Iterator[Page]:
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    nasty = timeline_html(Trace([Span("lane", NASTY, 0, 1, NASTY)]), title=NASTY)
    both = timeline_html(PREDICTED.scale(1.25), PREDICTED).html + nasty.html
    page.set_content("<!doctype html><meta charset='utf-8'>" + both)
    yield page
    assert complaints == []


@pytest.fixture
def view(page: Page) -> Locator:
    return page.locator(".idt-timeline[data-ready]").first


def middle(element: Locator) -> tuple[float, float]:
    box = element.bounding_box()
    assert box is not None
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def bar(view: Locator, name: str, number: int) -> Locator:
    return view.locator(f".idt-span[data-name={name}] rect").nth(number)


def tip(view: Locator) -> str:
    seen = "tip => getComputedStyle(tip).visibility == 'visible' ? tip.textContent : ''"
    return str(view.locator(".idt-tip").evaluate(seen))


def ticks(view: Locator) -> list[str]:
    return view.locator(".idt-ticks text").all_text_contents()


def test_pointing_and_arrow_keys_tell_a_span_and_go_from_one_to_another_and_across_lanes(page: Page, view: Locator):
    page.mouse.move(*middle(bar(view, "measured", 1)))
    assert tip(view) == "load 1\nworker · load · measured\n1.250 – 2.500 s · 1.25 s"
    page.mouse.move(1, 1)
    assert tip(view) == ""
    view.locator(".idt-plot").focus()
    told = []
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "ArrowUp", "ArrowLeft"):
        page.keyboard.press(key)
        told.append(tip(view).split("\n")[0])
    assert told == ["load 0", "load 1", "step 0", "load 1", "load 0"]
    page.keyboard.press("Escape")
    assert tip(view) == ""


def test_the_wheel_zooms_only_after_a_click_so_that_a_page_can_scroll_past(page: Page, view: Locator) -> None:
    everything = ticks(view)
    page.mouse.move(*middle(bar(view, "measured", 1)))
    page.mouse.wheel(0, -600)
    page.wait_for_timeout(100)
    assert ticks(view) == everything
    page.mouse.click(*middle(bar(view, "measured", 1)))
    page.mouse.wheel(0, -600)
    changed = "texts => document.querySelector('.idt-ticks').textContent != texts"
    page.wait_for_function(changed, arg="".join(everything))
    page.mouse.dblclick(*middle(bar(view, "measured", 1)))
    assert ticks(view) == everything


def test_buttons_and_keys_zoom_dragging_moves_and_reset_shows_everything(page: Page, view: Locator) -> None:
    everything = ticks(view)
    view.get_by_role("button", name="Zoom in").click()
    x, y = middle(bar(view, "measured", 1))
    assert ticks(view) != everything
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 40, y, steps=2)
    page.mouse.up()
    assert middle(bar(view, "measured", 1))[0] > x, "what is under the pointer follows it"
    page.keyboard.press("-")
    assert ticks(view) == everything
    page.keyboard.press("+")
    view.get_by_role("button", name="Show everything").click()
    assert ticks(view) == everything


def test_the_buttons_show_one_trace_or_both(view: Locator) -> None:
    half = bar(view, "measured", 0).get_attribute("height")
    for name, other in (("Measured", "predicted"), ("Predicted", "measured")):
        view.get_by_role("button", name=name).click()
        assert not bar(view, other, 0).is_visible()
        assert bar(view, name.lower(), 0).is_visible()
        assert view.get_by_role("button", name=name).get_attribute("aria-pressed") == "true"
        assert float(bar(view, name.lower(), 0).get_attribute("height") or 0) > float(half or 0)
    view.get_by_role("button", name="Both").click()
    assert bar(view, "measured", 0).is_visible()
    assert bar(view, "predicted", 0).is_visible()


def test_names_are_shown_as_they_are_and_never_run(page: Page) -> None:
    nasty = page.locator(".idt-timeline[data-ready]").nth(1)
    page.mouse.move(*middle(bar(nasty, "measured", 0)))
    assert tip(nasty).split("\n")[0] == NASTY
    assert page.title() == ""
    assert page.locator("img").count() == 0


def test_a_narrow_page_keeps_the_size_of_the_letters(page: Page, view: Locator) -> None:
    page.set_viewport_size({"width": 520, "height": 700})
    page.wait_for_function("document.querySelector('.idt-plot > svg').viewBox.baseVal.width < 520")
    assert (view.locator(".idt-lane").first.bounding_box() or {"height": 0})["height"] >= 12
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing sticks out"


def test_without_a_script_the_picture_is_whole_and_the_buttons_are_gone(browser: Browser) -> None:
    still = browser.new_context(java_script_enabled=False).new_page()
    still.set_content(timeline_html(PREDICTED.scale(1.25), PREDICTED).html)
    assert still.locator(".idt-span rect").count() == 8
    assert all(still.locator(".idt-span rect").nth(i).is_visible() for i in range(8))
    assert not still.get_by_role("button", name="Both").is_visible()
