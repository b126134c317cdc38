"""What is told in Chinese is what is told in English: the same sections, numbers, names, links and terms."""

import re
from pathlib import Path

import pytest

from support import course
from tools import chinese
from tools.project import ROOT
from tools.title import title_table

NOTEBOOKS = ROOT / "notebooks"


def read(path: Path) -> str:
    return re.sub(r"<!--.*?-->", "", path.read_text(encoding="utf-8"))


def sections(text: str) -> list[tuple[int, int, int]]:
    """Return for each section how deep it is, and how many entries and blocks of code it has."""
    parts = re.split(r"(?m)^(#+) ", text)[1:]
    return [
        (len(marks), len(re.findall(r"(?m)^- ", body)), body.count("```"))
        for marks, body in zip(parts[::2], parts[1::2], strict=True)
    ]


def links(text: str) -> list[str]:
    found = re.findall(r"\]\(([^)]+)\)", text)
    ours = (link.replace(".zh.", ".").replace("/index.html", "/") for link in found)
    return sorted(link for link in ours if link != "README.md")


def digits(text: str) -> list[str]:
    """Return the numbers of a text, without those of links and code."""
    plain = re.sub(r"\]\([^)]+\)|```.*?```|`[^`]*`", " ", text, flags=re.DOTALL)
    return sorted(re.findall(r"\d[\d.,]*\d|\d", plain))


def code(text: str) -> list[str]:
    return sorted(re.findall(r"(?<!`)`[^`\n]+`(?!`)", text))


def test_readme_has_the_same_sections_links_names_and_examples():
    english = read(ROOT / "README.md")
    translated = read(ROOT / "README.zh.md")
    assert sections(translated) == sections(english)
    assert sorted({*links(translated)}) == sorted({*links(english)})
    blocks = [re.findall(r"```(python|text)\n(.*?)```", text, re.DOTALL) for text in (english, translated)]
    assert blocks[0] == blocks[1]
    assert code(re.sub(r"(?m)^\|.*$", "", translated)) == code(re.sub(r"(?m)^\|.*$", "", english))


def test_readme_has_the_same_numbers():
    english = re.sub(r"(?m)^\|.*$", "", read(ROOT / "README.md"))
    translated = re.sub(r"(?m)^\|.*$", "", read(ROOT / "README.zh.md"))
    numbers = [
        [number for number in digits(text) if len(number) > 1 or text.count("```") == 0]
        for text in (english, translated)
    ]
    assert numbers[0] == numbers[1]
    commands = [re.findall(r"```sh\n(.*?)```", text, re.DOTALL)[0] for text in (english, translated)]
    assert digits(commands[0].replace("-", " ")) == digits(commands[1].replace("-", " "))


def test_every_notebook_and_track_has_its_words_with_the_same_names_of_code():
    assert list(chinese.WILL) == [chapter.stem for chapter in course.COURSE]
    assert list(chinese.TRACKS) == [track.title for track in course.TRACKS]
    for stem, will in chinese.WILL.items():
        _, columns = title_table(NOTEBOOKS / f"{stem}.ipynb")
        assert code(will) == code(columns["You will"]), stem
        missing = {number for number in digits(columns["You will"]) if len(number) > 1} - {*digits(will)}
        assert missing == set(), stem
        assert "minutes" not in columns["You will"], f"{stem}: its hours have a column of their own"


def rows(path: Path) -> list[list[str]]:
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_both_glossaries_have_the_same_terms_in_one_order():
    english = [(term, word) for term, _, word in rows(NOTEBOOKS / "glossary.md")]
    assert [(term, word) for word, _, term in rows(NOTEBOOKS / "glossary.zh.md")] == english


@pytest.mark.parametrize("place", range(len(rows(NOTEBOOKS / "glossary.md"))))
def test_a_term_has_the_same_numbers_names_and_notebooks(place: int):
    term, english, _ = rows(NOTEBOOKS / "glossary.md")[place]
    _, translated, _ = rows(NOTEBOOKS / "glossary.zh.md")[place]
    assert digits(translated) == digits(english), term
    assert code(translated) == code(english), term
    assert ("**两种含义" in translated) == ("**Two meanings" in english), term
    assert links(translated) == links(english), term
