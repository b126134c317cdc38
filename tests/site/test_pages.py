"""A notebook becomes a page: what stands on it, what leads where, and what no page may show."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from support.course import COURSE
from tests.site import small
from tools.site import atlas, check, frame, index, text
from tools.site.build import STATIC, Site
from tools.site.check import Report, check_files
from tools.site.links import Links
from tools.site.page import Page, Pictures, Writer
from tools.site.run import Executed


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return small.site(tmp_path_factory.mktemp("course"))


def read(site: Site, name: str) -> str:
    return (site.folder / name).read_text(encoding="utf-8")


def page(tmp_path: Path, *cells: dict[str, Any], solutions: tuple[dict[str, Any], ...] = ()) -> Page:
    small.project(tmp_path)
    links = Links(["00_small", "01_other"], tmp_path)
    executed = Executed({"cells": list(cells)}, {}, {})
    return Writer("00_small", executed, {"cells": list(solutions)}, links, Pictures(tmp_path / "pictures")).page()


def test_an_exercise_shows_stub_hint_and_folded_solution_and_ends_with_its_check(site: Site):
    shown = read(site, "00_small.html")
    exercise = shown[shown.index('<section class="exercise"') : shown.index("</section>")]
    parts = ["Exercise 1: write f", "<summary>Hint", "<strong>one</strong>", 'data-cell="stub"', 'data-cell="check"']
    parts += ['<details class="solution" data-opened="00/1">', "It doubles", 'data-cell="s"', "✓ right"]
    places = [exercise.index(part) for part in parts]
    assert places == sorted(places)
    assert "Not attempted" not in shown
    assert "From here on the lesson goes on." not in exercise


def test_a_prediction_stands_between_its_question_and_its_folded_cell(site: Site):
    shown = read(site, "00_small.html")
    ask = [shown.index(part) for part in ('class="predict"', 'id="guess-00-ask-0"', "The cell of this prediction")]
    assert ask == sorted(ask)
    assert 'data-of="00" data-predictions="1" data-exercises="2"' in read(site, "index.html")


def test_links_lead_to_pages_headings_and_the_repository(site: Site):
    shown = read(site, "00_small.html")
    wanted = [
        "01_other.html#a-second-idea",
        "https://github.com/some/where/blob/v1/lib/code.py",
        "glossary.html#rank-r",
    ]
    wanted += ["00_small.html", "notebooks/00_small.ipynb", "#one-idea--its-name"]
    wanted += ["https://colab.research.google.com/github/some/where/blob/v1/notebooks/00_small.ipynb"]
    assert [link for link in wanted if f'href="{link}"' not in shown] == []
    assert "colab-badge" not in shown
    assert 'rel="next" href="01_other.html"' in shown
    assert 'rel="prev" href="00_small.html"' in read(site, "01_other.html")
    assert (site.folder / "notebooks" / "solutions" / "00_small.ipynb").exists()


def test_outputs_of_every_kind_have_a_form_without_a_kernel(site: Site):
    shown = read(site, "00_small.html")
    said = re.sub(r"<[^>]*>", "", shown)
    assert re.search(r'<span class="ansi-green-[a-z-]*fg ansi-bold">green</span>', shown)
    assert "100 %" in said  # a line that was written over
    assert "10 %" not in said.replace("100 %", "")
    for part in (
        'class="printed stderr"',
        'class="printed traceback"',
        "&lt;here&gt;",
        "<td>7</td>",
        "&#39;plain&#39;",
    ):
        assert part in shown, part
    assert shown.count("<img") == 4
    assert 'alt="dot"' in shown
    assert 'alt="2 squares" width="300"' in shown
    assert shown.count("<math ") == 3
    assert '<mtext class="monospace">except&#x0005F;last</mtext>' in shown
    assert '<span class="k">for</span>' in shown
    assert 'class="atlas"' in shown


@pytest.mark.parametrize(
    "cell, why",
    [
        (small.text(r"$\foo x$"), r"\\foo, which latex2mathml does not know"),
        (small.text(r"$\frac{a$"), "brace without its partner"),
        (small.text("$a^$"), "cannot be converted"),
        (small.text("![](a.png)"), "no alt text"),
        (small.text("![far](https://example.org/a.png)"), "lies outside"),
        (small.text("![gone](attachment:a.png)"), "not attached"),
        (small.text("[gone](02_gone.ipynb)"), "leads nowhere"),
        (small.text("```klingon\nx\n```"), "knows no language 'klingon'"),
        (small.text("### Exercise 1: f"), "exercise 1 has no solution"),
        (small.code("c", "x", small.shown("image/png", "")), "a picture without alt text"),
        (small.code("c", "x", small.shown("text/html", "<img src='data:x'>")), "no alt text"),
        (small.code("c", "x", small.shown("application/vnd.jupyter.widget-view+json", "")), "no still form"),
    ],
)
def test_what_a_page_cannot_show_is_an_error_that_names_the_cell(tmp_path: Path, cell: dict[str, Any], why: str):
    with pytest.raises(ValueError, match=why) as raised:
        page(tmp_path, small.text("# Title"), cell, *([small.text("## Next")] if "Exercise" in cell["source"] else []))
    assert str(raised.value).startswith("00_small")


def test_headings_of_the_same_words_have_different_anchors(tmp_path: Path):
    made = page(tmp_path, small.text("# T"), small.text("## Why?\n\none\n\n## Why?\n\ntwo"))
    assert [(each.id, each.words) for each in made.sections[1:]] == [("why", "one"), ("why-1", "two")]


def test_the_contents_nest_by_level():
    sections = [text.Part("", "", level, name) for level, name in ((1, "t"), (2, "a"), (3, "b"), (3, "c"), (2, "d"))]
    from tools.site.page import Section

    made = frame.contents(Page("00", "T", "", [Section(each.level, each.id, each.id, "") for each in sections]))
    assert re.sub(r'<a href="#(.)">.</a>|\s', r"\1", made[made.index("<ol>") : made.rindex("</details>")]) == (
        "<ol><li>a<ol><li>b</li><li>c</li></ol></li><li>d</li></ol>"
    )


def colours(dark: bool) -> dict[str, str]:
    sheet = (STATIC / "site.css").read_text(encoding="utf-8")
    return {name: pair[dark] for name, *pair in re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", sheet)}


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("dark", [False, True])
def test_every_ink_has_a_contrast_of_4_5_on_every_paper(dark: bool):
    known = colours(dark)
    papers = {name for name in known if name in ("paper", "raised", "ask-paper", "do-paper", "mark")}
    inks = set(known) - papers - {"line"}
    assert len(papers) == 5
    assert len(inks) == 12
    ratio = {}
    for ink in inks:
        for paper in papers - {"mark"} if ink != "ink" else papers:
            low, high = sorted((luminance(known[ink]), luminance(known[paper])))
            ratio[ink, paper] = (high + 0.05) / (low + 0.05)
    assert {pair: round(value, 2) for pair, value in ratio.items() if value < 4.5} == {}


def test_the_search_knows_every_section_and_every_term(site: Site):
    rows = check.searched_sections(site.folder)
    assert ["00_small.html", "one-idea--its-name", "00 · Small", "One idea & its name"] in [row[:4] for row in rows]
    assert ["glossary.html", "rank-r", "Glossary", "rank r", "a process (01) 进程"] in rows
    assert any("Begin with one." in row[4] for row in rows)


def test_the_map_leaves_out_what_follows_from_other_lines():
    pages = [Page(chapter.stem, chapter.name, "", []) for chapter in COURSE]
    listed = index.entries(pages, Links([each.stem for each in pages]))
    drawn = index.picture(listed)
    assert drawn.count("<circle") == len(COURSE)
    assert len(COURSE) - 1 <= drawn.count("<path") < sum(len(chapter.needs) for chapter in COURSE)


def test_every_notebook_makes_a_page_whose_links_pictures_and_anchors_are_there(course_site: Site):
    """From stored outputs: formulas convert, exercises have solutions, no link is dead."""
    report = Report()
    check_files(course_site.folder, report)
    assert report.faults == []
    assert report.counts["pages"] == len(COURSE) + 5
    assert all(page.exercises for page in course_site.pages[:-2])


@pytest.mark.costly
def test_two_pictures_of_an_explorer_with_one_alt_text_are_a_fault_of_the_page(site: Site, tmp_path: Path):
    shutil.copytree(site.folder, tmp_path / "site")
    shown = tmp_path / "site" / "00_small.html"
    text_of_page = shown.read_text(encoding="utf-8")
    frames = re.findall(r'application/x-atlas">([^<]*)<', text_of_page)[0]
    payload = atlas.unpacked(frames)
    first, second = payload["f"][:2]
    second[1] = first[1]
    shown.write_text(text_of_page.replace(frames, atlas.packed(payload)), encoding="utf-8")
    report = Report()
    check_files(tmp_path / "site", report)
    assert report.faults == [f"00_small.html: different pictures have the same alt text: {first[1]}"]
