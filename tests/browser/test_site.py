"""The small site in chromium with the network off: the check finds nothing, and finds each fault that is planted."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.site import small
from tools.site import check, pdf
from tools.site.build import Site
from tools.site.check import Report, opened

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return small.site(tmp_path_factory.mktemp("course"))


def test_everything_on_the_small_site_works_without_a_network(site: Site, browser: Browser):
    report = check.check_site(site.folder, browser)
    assert report.faults == []
    tried = {name: report.counts[name] for name in ("pages", "explorers", "controls", "predictions", "solutions")}
    assert tried == {"pages": 5, "explorers": 1, "controls": 2, "predictions": 1, "solutions": 2}
    assert report.counts["exercises in pages"] == 1
    assert report.counts["verdicts in pages"] == 24
    assert report.counts["odd codes"] == 6


FAULTS = {
    "the picture data:, has no alt text": '<img src="data:,">',
    "the link #gone names a heading that is not there": '<a href="#gone">gone</a>',
    "color-contrast": '<p style="color: #999; background: #fff">pale</p>',
    "it fetches https://example.org/a.js from outside": '<script src="https://example.org/a.js"></script>',
    "asks for https://example.org/b": "<script>fetch('https://example.org/b').catch(() => {})</script>",
    "a script failed: nowhere is not defined": "<script>nowhere()</script>",
    "pixels wider than the window": '<div style="width: 3000px; height: 1px"></div>',
    "the id 'twice' stands there 2 times": '<i id="twice"></i><i id="twice"></i>',
}


def test_every_planted_fault_is_found(site: Site, browser: Browser, tmp_path: Path):
    folder = tmp_path / "site"
    report = Report()
    shutil.copytree(site.folder, folder)
    page = folder / "01_other.html"
    page.write_text(page.read_text("utf-8").replace("</article>", f"{''.join(FAULTS.values())}</article>"), "utf-8")
    check.check_files(folder, report)
    check.look(browser, folder, [page.name], report)
    assert {found.partition(":")[0].partition(",")[0] for found in report.faults} == {page.name}
    assert [fault for fault in FAULTS if not any(fault in found for found in report.faults)] == []


def test_a_frame_that_says_something_else_is_found(site: Site, browser: Browser, tmp_path: Path):
    shutil.copytree(site.folder, tmp_path / "site")
    script = tmp_path / "site" / "static" / "atlas.js"
    script.write_text(script.read_text("utf-8").replace('place ? "" : alt', "`${alt}!`"), "utf-8")
    report = Report()
    with opened(browser, report) as page:
        page.goto((tmp_path / "site" / "00_small.html").as_uri())
        check.explorers(page, report, patience=100)
    assert "it says 1 squares, on!, not 1 squares, on" in report.faults[0]


def test_theme_and_memory_last_from_page_to_page(site: Site, browser: Browser):
    with opened(browser, Report(), color_scheme="light") as page:
        page.goto((site.folder / "index.html").as_uri())
        page.locator("#theme").click()
        page.goto((site.folder / "00_small.html").as_uri())
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(21, 25, 30)"
        assert page.locator("#theme").inner_text() == "Light"
        page.locator(".guess input").fill("5")
        page.keyboard.press("Enter")
        assert "one too many" in page.locator(".guess-answer").inner_text()
        page.reload()
        assert page.locator(".guess input").input_value() == "5"


def test_nothing_below_a_figure_moves_while_its_slider_is_dragged(site: Site, browser: Browser):
    with opened(browser, Report()) as page:
        page.goto((site.folder / "00_small.html").as_uri())
        page.locator("figure.atlas[data-ready]").scroll_into_view_if_needed()
        page.locator(".atlas-stage[style*=min-height]").wait_for()
        slider = page.locator(".atlas-slider input")
        heights = {}
        for place in range(3):
            slider.fill(str(place))
            page.wait_for_function("document.querySelector('.atlas-picture').complete")
            heights[page.locator(".atlas-picture").bounding_box()["height"]] = True
            assert page.locator("figure.atlas").bounding_box()["height"] == pytest.approx(
                heights.setdefault("figure", page.locator("figure.atlas").bounding_box()["height"])
            )
        assert len(heights) == 3, "one picture is higher than the others"


def test_nothing_below_a_figure_moves_on_a_phone_either_from_the_first_move_on(site: Site, browser: Browser):
    with opened(browser, Report(), viewport=check.PHONE) as page:
        page.goto((site.folder / "00_small.html").as_uri())
        figure = page.locator("figure.atlas")
        figure.scroll_into_view_if_needed()
        page.locator(".atlas-stage[data-measured]").wait_for()
        first = figure.bounding_box()["height"]
        panels = set()
        for place in (2, 0, 1):
            page.locator(".atlas-slider input").fill(str(place))
            page.wait_for_function("[...document.querySelectorAll('.atlas-stage img')].every(each => each.complete)")
            panels.add(page.locator(".atlas-stage img").first.bounding_box()["height"])
            assert figure.locator(".atlas-error").count() == 0, "a frame in which nothing has an area stops the figure"
            assert figure.bounding_box()["height"] == pytest.approx(first, abs=1)
        assert len(panels) > 1, "one picture is higher than the others"


def test_what_a_phone_cuts_fades_at_its_edge_until_it_is_scrolled_there(site: Site, browser: Browser):
    with opened(browser, Report(), viewport=check.PHONE) as page:
        page.goto((site.folder / "00_small.html").as_uri())
        code = page.locator("pre", has_text="a line that is wider").first
        code.scroll_into_view_if_needed()
        page.wait_for_selector("pre[data-more='right']")
        assert "linear-gradient" in code.evaluate("each => getComputedStyle(each).maskImage")
        code.evaluate("each => { each.scrollLeft = each.scrollWidth; }")
        page.wait_for_selector("pre[data-more='left']")
        assert page.locator("nav.course").is_visible()


def test_a_phone_shows_the_finding_as_text_and_panels_one_below_the_other(site: Site, browser: Browser):
    with opened(browser, Report(), viewport=check.PHONE) as page:
        page.goto((site.folder / "00_small.html").as_uri())
        page.locator("figure.atlas").scroll_into_view_if_needed()
        page.locator(".atlas-finding:visible").wait_for()
        assert page.locator(".atlas-finding").inner_text() == "2 squares are on"
        first, second = (each.bounding_box() for each in page.locator(".atlas-stage img").all())
        assert first["y"] + first["height"] <= second["y"]
        assert [each.get_attribute("alt") for each in page.locator(".atlas-stage img").all()] == ["2 squares, on", ""]
        page.locator(".atlas-slider input").fill("2")
        assert page.locator(".atlas-finding").inner_text() == "3 squares are on"
        page.set_viewport_size(check.DESK)
        page.locator(".atlas-finding").wait_for(state="hidden")
        assert page.locator(".atlas-stage img").count() == 1


def test_keys_reach_the_text_and_the_search(site: Site, browser: Browser):
    with opened(browser, Report()) as page:
        page.goto((site.folder / "01_other.html").as_uri())
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the text"
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "content"
        page.keyboard.press("/")
        page.keyboard.type("begin with one")
        page.locator("#found a").first.wait_for()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        page.wait_for_url(re.compile(r"00_small\.html#exercise-1-write-f$"))


def test_on_paper_hints_are_open_solutions_and_controls_away(site: Site, browser: Browser):
    with opened(browser, Report()) as page:
        page.goto((site.folder / "00_small.html").as_uri())
        hint = page.get_by_text("Begin with").first
        solution = page.get_by_text("It doubles").first
        assert not hint.is_visible()
        assert page.locator(".guess").is_visible()
        page.emulate_media(media="print")
        assert hint.is_visible()
        assert not solution.is_visible()
        assert page.locator(".atlas-picture").is_visible()
        gone = page.locator(".solution, .practice, .atlas-controls, .guess, .top, .contents, .turn, .done").all()
        assert len(gone) == 10
        assert not any(each.is_visible() for each in gone)


def test_the_pdf_holds_all_pages_and_leads_inside_itself(site: Site, browser: Browser):
    whole = pdf.whole_site(site)
    assert "<script" not in whole
    assert whole.count('<article id="') == 4
    reader = check.Reader()
    reader.feed(whole)
    assert max(reader.ids.values()) == 1
    assert [link for link in reader.links if link.startswith("#") and link[1:] not in reader.ids] == []
    assert "#01_other--a-second-idea" in reader.links
    assert pdf.make_pdf(site, browser).read_bytes().startswith(b"%PDF")
    assert not (site.folder / "print.html").exists()
