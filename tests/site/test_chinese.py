"""The site in Chinese: first page and glossary have what the English ones have, and each names its language."""

import re
from pathlib import Path

import pytest

from support.course import COURSE
from tools.project import ROOT
from tools.site.build import Site

PAGES = ("index", "glossary")


@pytest.fixture(scope="module")
def folder(course_site: Site) -> Path:
    return course_site.folder


@pytest.mark.parametrize("name", PAGES)
def test_a_page_names_its_language_and_leads_to_the_other_one(folder: Path, name: str):
    english = (folder / f"{name}.html").read_text(encoding="utf-8")
    chinese = (folder / f"{name}.zh.html").read_text(encoding="utf-8")
    assert '<html lang="en">' in english
    assert '<html lang="zh-CN">' in chinese
    assert f'href="{name}.zh.html" lang="zh-CN" hreflang="zh-CN">中文</a>' in english
    assert f'href="{name}.html" lang="en" hreflang="en">English</a>' in chinese


def test_both_first_pages_show_every_notebook_with_its_hours_and_what_it_goes_on_from(folder: Path):
    shown = {name: (folder / f"{name}.html").read_text(encoding="utf-8") for name in ("index", "index.zh")}
    cards = {name: re.findall(r"<li><h3>.*?</li>", text, re.DOTALL) for name, text in shown.items()}
    assert [len(found) for found in cards.values()] == [len(COURSE)] * 2
    for chapter, english, chinese in zip(COURSE, *cards.values(), strict=True):
        assert f'href="{chapter.stem}.html"' in english
        assert f'<a href="{chapter.stem}.html" lang="en">' in chinese
        time = ("2", str(chapter.encores or ""))
        assert re.findall(r"<span>(\d) hours(?:, encores (\d+) minutes)?</span>", english) == [time]
        assert re.findall(r"<span>(\d) 小时(?:，选做 (\d+) 分钟)?</span>", chinese) == [time]
        assert counted(english) == counted(chinese)
        editors = (folder / f"{chapter.stem}.html").read_text(encoding="utf-8").count("data-practice=")
        told = [str(editors)] if editors else []
        assert re.findall(r"<span>(\d+) exercises? can be done in the page</span>", english) == told
        assert re.findall(r"<span>网页里可做 (\d+) 个练习</span>", chinese) == told
    english, chinese = (drawn(text) for text in shown.values())
    assert english == chinese


@pytest.mark.parametrize("name", ["README.md", "README.zh.md"])
def test_readme_says_how_many_exercises_can_be_done_in_which_pages(folder: Path, name: str):
    pages = {chapter: (folder / f"{chapter.stem}.html").read_text(encoding="utf-8") for chapter in COURSE}
    editors = {chapter.label: text.count("data-practice=") for chapter, text in pages.items()}
    (line,) = re.findall(r"(?m)^(?:\d+ exercises|网页里有) .*", (ROOT / name).read_text(encoding="utf-8"))
    count, *labels = re.findall(r"\d+", line)
    assert (int(count), labels) == (sum(editors.values()), [label for label, number in editors.items() if number])


def counted(card: str) -> list[str]:
    """Return the numbers of predictions and exercises that a card tells."""
    return re.findall(r"\d+", card[card.rindex('class="progress"') :].partition(">")[2])


def drawn(text: str) -> str:
    """Return the map of a first page without its words."""
    return re.sub(r'<text class="track".*', "", text.split("<svg")[1].split("</svg>")[0])


def test_no_english_is_left_in_the_frame_of_a_chinese_page(folder: Path):
    chinese = (folder / "index.zh.html").read_text(encoding="utf-8")
    frame = chinese[chinese.index("<body") : chinese.index("<main")] + chinese[chinese.index("<footer") :]
    words = re.sub(r'<a class="language".*?</a>|<[^>]*placeholder="([^"]*)"[^>]*>|<[^>]*>', r" \1 ", frame)
    assert re.findall(r"[A-Za-z]{2,}", words) == ["notebook"]


def test_a_term_has_one_anchor_in_both_glossaries_and_says_its_other_name(folder: Path):
    terms = [
        re.findall(r'<dt id="([^"]*)">', (folder / name).read_text(encoding="utf-8"))
        for name in ("glossary.html", "glossary.zh.html")
    ]
    assert terms[0] == terms[1]
    assert len(terms[0]) > 70
    chinese = (folder / "glossary.zh.html").read_text(encoding="utf-8")
    assert '<dt id="bubble">气泡 (空闲时间) <span lang="en">bubble</span></dt>' in chinese
    assert '(<a href="08_pipeline_clock.html">08</a>' in chinese
