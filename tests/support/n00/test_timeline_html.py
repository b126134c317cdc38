"""The timeline as HTML shows what is in its traces, says it in words, and lets nothing of a label become markup."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from lib.show.lanes import lay_out
from lib.timeline import Span, Trace
from support.n00.timeline_html import timeline_html
from tests.lib.show.test_lanes import DEGENERATE, LOTS, MEASURED, PREDICTED


class Page(HTMLParser):
    """Collect the elements of a piece of HTML, with their attributes and texts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in ("rect", "line"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.words.append(data)

    def all(self, tag: str, name: str) -> list[dict[str, str | None]]:
        return [attrs for found, attrs in self.elements if found == tag and name in (attrs.get("class") or "")]


def test_the_view_is_one_string_that_needs_nothing_else_and_has_the_alt_text_of_its_data() -> None:
    view = timeline_html(MEASURED, PREDICTED, recorded="NVIDIA H200")
    page = Page(view.html)
    assert page.open == []
    assert view._repr_html_() == view.html
    for element, attrs in page.elements:
        assert "id" not in attrs, element
        assert "href" not in attrs, element
        assert "src" not in attrs, element
    without_names = view.html.replace("http://www.w3.org/2000/svg", "")  # a name, not an address that is fetched
    assert not re.search(r"https?:|@import|url\(", without_names)
    view = timeline_html(PREDICTED, title="A finding", recorded="NVIDIA H200")
    (picture,) = (attrs for tag, attrs in Page(view.html).elements if attrs.get("role") == "img")
    assert picture["aria-label"] == view.alt == repr(view)
    assert view.alt == f"A finding. {lay_out(PREDICTED, None, None, None).words} Recorded: NVIDIA H200."


def test_the_still_picture_shows_every_span_without_the_script_and_buttons_tell_two_traces_apart() -> None:
    page = Page(timeline_html(MEASURED, PREDICTED).html)
    spans = page.all("g", "idt-span")
    assert [(s["data-name"], s["data-row"], s["data-a"], s["data-b"])
        for s in spans[:3]] == [("predicted", "0", "0.0", "1.0"), ("predicted", "0", "1.0", "2.0"),
        ("measured", "0", "0.0", "1.25")]  # fmt: skip
    assert len(spans) == 8
    assert "load 1\nworker · load · measured\n1.250 – 2.500 s · 1.25 s" in page.words
    assert {"67 % busy", "time (s)", "worker", "model", "predicted", "measured"} <= set(page.words)
    for traces, buttons in (((MEASURED, PREDICTED), "both predicted measured out in all"), ((MEASURED,), "out in all")):
        page = Page(timeline_html(*traces).html)
        assert [attrs["data-do"] for tag, attrs in page.elements if tag == "button"] == buttons.split()
    assert Page(timeline_html(predicted=PREDICTED).html).all("div", "idt-timeline")[0]["data-shown"] == "predicted"


@pytest.mark.parametrize(
    "nasty",
    ["</script><script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "</title><b>", "'&\"<>", "]]>", "-->"],
)
def test_a_label_stays_a_label(nasty: str) -> None:
    plain = Page(timeline_html(Trace([Span("lane", "label", 0, 1, "kind")]), title="t", recorded="r").html)
    page = Page(timeline_html(Trace([Span(nasty, nasty, 0, 1, nasty)]), title=nasty, recorded=nasty).html)
    assert [tag for tag, _ in page.elements] == [tag for tag, _ in plain.elements], "no element came or went"
    assert [set(attrs) for _, attrs in page.elements] == [set(attrs) for _, attrs in plain.elements]
    assert page.words.count(nasty) >= 3


def test_a_trace_gives_the_same_small_bytes_with_no_machine_in_them_and_odd_times_and_names_fit(tmp_path: Path):
    html = timeline_html(MEASURED, PREDICTED).html
    assert html == timeline_html(MEASURED, PREDICTED).html
    assert str(tmp_path.parent) not in html
    assert "0x" not in html
    assert "0.30000000000000004" not in timeline_html(Trace([Span("a", "x", 0.1 + 0.2, 0.7)])).html
    assert len(timeline_html(LOTS).html) / len(LOTS) < 400, "bytes a span"
    assert not any(Page(timeline_html(trace).html).open for trace in DEGENERATE.values())
    page = Page(timeline_html(Trace([Span("a lane with a very long name indeed", "x", 1e6, 1e6 + 1e-3)])).html)
    geometry = json.loads(page.all("div", "idt-timeline")[0]["data-geometry"] or "")
    assert geometry["start"] < geometry["end"]
    assert "a lane with a very long n…" in page.words
    assert geometry["left"] < 300
