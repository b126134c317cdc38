"""An exercise done in chromium from file://, network off: what is typed stays, a loop ends, the page goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.n00.checks import check_idle_share
from tests.site import small
from tools.site.check import Report, opened
from tools.site.check_practice import verdict_by_hand

if TYPE_CHECKING:
    from playwright.sync_api import Browser

#: Outside of all functions: the page ends it. The one below is called by the check, which ends it by itself.
LOOP = "import in_page\nin_page.SECONDS = 0.3\nwhile True:\n    pass"
LOOP_IN_ANSWER = "def my_idle_share(spans, lanes):\n    while True:\n        pass"
#: Right, and written with much of what Python has: a page's Python lacks none of it.
FOREIGN = """
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Work:
    lane: object
    start: float
    end: float


def my_idle_share(spans, lanes):
    first, *others = sorted((Work(*span) for span in spans), key=lambda work: (work.end, work.start))
    every = [*others, first]
    busy = Counter()
    for work in every:
        busy[work.lane] += Fraction(work.end) - Fraction(work.start)
    match [min(work.start for work in every), max(work.end for work in every)]:
        case [begin, end]:
            return float(1 - sum(busy.values()) / ((Fraction(end) - Fraction(begin)) * len([*lanes])))
"""
#: In it Python's own code goes on and on, and nothing of the reader's is asked for the time.
DEAF = "def my_idle_share(spans, lanes):\n    return sum(iter(int, 1))"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    return small.site(tmp_path_factory.mktemp("course"))


def test_what_is_typed_is_judged_stays_and_goes_and_no_loop_ends_the_page(site, browser: Browser):
    report = Report()
    with opened(browser, report) as page:
        page.goto((site.folder / "00_small.html").as_uri())
        assert page.locator('script[src$="python.js"]').count() == 0  # not before it is needed
        page.evaluate("window.course.patience = 60_000")
        box = page.locator(".practice")
        box.scroll_into_view_if_needed()
        box.locator(".cm-content").wait_for()
        assert box.locator(".cm-content").get_attribute("aria-label") == "Write exercise 2 here: Python, my_idle_share"
        status, said = verdict_by_hand(page, box, FOREIGN)
        in_the_notebook = check_idle_share(*check_idle_share.references).message
        assert (status, said) == ("right", f"✓ {in_the_notebook}")
        status, said = verdict_by_hand(page, box, f"print(1, 2)\n{LOOP}")
        assert status == "failed"
        assert "has not ended; it was stopped in line 4: `while True:`" in said
        assert box.locator(".practice-output").inner_text().strip() == "1 2"
        status, said = verdict_by_hand(page, box, LOOP_IN_ANSWER)
        assert status == "wrong"
        assert "lines and has not ended (in my_idle_share, line 2: `while True:`)" in said
        page.evaluate("window.course.patience = 400")
        status, said = verdict_by_hand(page, box, DEAF)
        assert (status, said[:19]) == ("failed", "✗ Your code goes on")
        page.evaluate("window.course.patience = 60_000")
        page.reload()
        box.scroll_into_view_if_needed()
        box.locator(".cm-content").wait_for()
        assert "iter(int, 1)" in box.locator(".cm-content").inner_text()
        box.locator(".practice-again").click()
        assert box.locator(".cm-content").inner_text().strip() == "def my_idle_share(spans, lanes): ..."
        box.locator(".practice-run").click()
        box.get_by_text("Not attempted yet: idle share.").wait_for(timeout=60_000)
        page.keyboard.press("Escape")
    assert report.faults == []


def test_keys_go_through_an_editor_and_out_of_it(site, browser: Browser):
    with opened(browser, Report()) as page:
        page.goto((site.folder / "00_small.html").as_uri())
        box = page.locator(".practice")
        box.scroll_into_view_if_needed()
        editor = box.locator(".cm-content")
        editor.wait_for()
        box.evaluate("(box) => box.practice.write('')")
        editor.focus()
        page.keyboard.type("if x:\n")
        page.keyboard.press("Tab")
        page.keyboard.type("y")
        assert box.evaluate("(box) => box.practice.text()") == "if x:\n        y"
        page.keyboard.press("Escape")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "practice-run"
