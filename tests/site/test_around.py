"""What stands around a notebook's text: the course's list, the time to read it, the glossary's words, the named map."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.course import COURSE
from tests.site import small
from tools.project import chapters
from tools.site import index
from tools.site.build import Site
from tools.site.links import Links
from tools.site.page import Page
from tools.site.terms import Terms, glossary_terms


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return small.site(tmp_path_factory.mktemp("course"))


def test_each_page_lists_the_course_and_marks_itself_and_says_how_long_it_is_to_read(site: Site):
    for name in ("00_small.html", "01_other.html"):
        shown = (site.folder / name).read_text(encoding="utf-8")
        listed = shown[shown.index('<nav class="course"') : shown.index("</nav>")]
        assert re.findall(r'href="([^"]*)"', listed) == ["00_small.html", "01_other.html"]
        assert re.findall(r'href="([^"]*)" aria-current="page"', listed) == [name]
        assert re.search(r"<dt>Reading alone</dt><dd>\d+ minutes?</dd>", shown)


@pytest.mark.parametrize("name, title", [("ledger", "The course"), ("glossary", "The course"), ("glossary.zh", "课程")])
def test_ledger_and_glossary_list_the_course_too(name: str, title: str, course_site: Site):
    stems = [path.stem for path in chapters()]
    shown = (course_site.folder / f"{name}.html").read_text(encoding="utf-8")
    listed = shown[shown.index(f'<nav class="course" aria-label="{title}"') : shown.index("</nav>")]
    assert re.findall(r'href="([^"]*)"', listed) == [f"{stem}.html" for stem in stems]
    assert "aria-current" not in listed
    assert ('class="contents"' in shown) == (name == "ledger")  # an empty one is none


def test_the_words_of_the_glossary_are_found_by_what_texts_call_them(tmp_path: Path):
    small.project(tmp_path)
    (tmp_path / "notebooks" / "glossary.md").write_text(
        "| Term | Meaning | 中文 |\n|---|---|---|\n"
        "| rank *r* of *W* | a | b |\n| scatter, gather | a | b |\n| `DDP` | a | b |\n"
    )
    found = glossary_terms(tmp_path)
    assert found == {"rank": "rank-r-of-w", "scatter": "scatter-gather", "gather": "scatter-gather", "DDP": "ddp"}


def test_a_term_is_linked_once_where_it_first_appears_and_everyday_words_only_in_bold():
    terms = Terms({"rank": "rank-r", "mini-epoch": "mini", "epoch": "epoch-e", "page": "page", "DDP": "ddp"})
    first = terms.link("<h2>A rank</h2><p><code>rank</code>: Ranks of a page. A mini-epoch, ddp, <em>a rank</em></p>")
    assert re.findall(r'href="([^"]*)">([^<]*)<', first) == [
        ("glossary.html#rank-r", "Ranks"),
        ("glossary.html#mini", "mini-epoch"),
    ]
    again = terms.link('<p>The <strong>page</strong> of a rank, <a href="glossary.html#ddp">DDP</a>: DDP, epochs</p>')
    assert re.findall(r'class="term" href="([^"]*)">([^<]*)<', again) == [
        ("glossary.html#page", "page"),
        ("glossary.html#epoch-e", "epochs"),
    ]
    assert terms.link("<p>An epoch on each page.</p>") == "<p>An epoch on each page.</p>"


def test_the_map_names_each_notebook():
    pages = [Page(chapter.stem, chapter.name, "", []) for chapter in COURSE]
    drawn = index.picture(index.entries(pages, Links([each.stem for each in pages])))
    names = re.findall(r'<text class="name"[^>]*>([^<]*)<', drawn)
    assert names == [line for chapter in COURSE for line in chapter.short.split("\n")]
