"""The map of the course: every notebook has one entry, in order, and what is said of numbers and neighbours follows."""

import re

import pytest

from support import course
from support.course import COURSE, DATA, PIPELINE, START, TOGETHER, Chapter
from tests.rooms import ROOMS
from tools.hygiene import StoredNotebook
from tools.project import ROOT, chapters


def test_every_notebook_with_its_solution_and_its_room_has_one_entry_in_order():
    on_the_map = [chapter.stem for chapter in COURSE]
    assert on_the_map == [path.stem for path in chapters()]
    assert on_the_map == [path.stem for path in sorted(ROOT.glob("notebooks/solutions/*.ipynb"))]
    assert [chapter.room for chapter in COURSE] == [*ROOMS]
    assert on_the_map == sorted(on_the_map)


def test_a_notebook_goes_on_from_earlier_ones_and_every_track_is_listed():
    for chapter in COURSE:
        assert [number for number in chapter.needs if number >= chapter.number] == [], chapter.name
        assert list(chapter.needs) == sorted(set(chapter.needs)), chapter.name
    assert {chapter.track for chapter in COURSE} == {*course.TRACKS}


def test_both_tracks_begin_in_one_column_run_side_by_side_and_meet_behind_the_longer_one(monkeypatch):
    order = [START, DATA, DATA, DATA, PIPELINE, TOGETHER, PIPELINE]
    chapters = [Chapter(f"{number:02}_x", "X", track, (), "x") for number, track in enumerate(order)]
    monkeypatch.setattr(course, "COURSE", chapters)
    assert course.columns() == {0: 0, 1: 1, 2: 2, 3: 3, 4: 1, 5: 4, 6: 5}


def test_no_two_notebooks_stand_at_one_place_of_the_map():
    columns = course.columns()
    places = [(columns[chapter.number], chapter.track) for chapter in COURSE]
    assert len(set(places)) == len(COURSE)


def test_neighbours_are_those_of_the_order_and_an_unknown_notebook_is_named():
    first, second, *_, last = COURSE
    assert course.neighbours(first.stem) == (None, second)
    assert course.neighbours(last.stem) == (COURSE[-2], None)
    with pytest.raises(ValueError, match="the map has no 77_gone: give it an entry"):
        course.neighbours("77_gone")


MINUTES = {"half an hour": 30, "another hour": 60, "ten": 10, "fifteen": 15, "twenty": 20, "forty": 40}


def minutes(text):
    """Add up the minutes that a text names."""
    words = "|".join(MINUTES)
    found = re.findall(rf"\b(\d+)(?= minutes|,? and \d+|, \d+)|\b(\d+) (?=minutes)|\b({words})\b", text)
    return sum(int(one or two or MINUTES[word]) for one, two, word in found)


@pytest.mark.parametrize("chapter", COURSE, ids=lambda chapter: chapter.stem)
def test_the_map_has_the_minutes_of_the_encores_that_the_notebook_has(chapter):
    page = StoredNotebook.read(ROOT / "notebooks" / f"{chapter.stem}.ipynb")
    lines = [line for _, _, text in page.cells("markdown") for line in text.splitlines() if "ncore" in line]
    headings = sum(int(number) for line in lines if line[0] == "#" for number in re.findall(r"(\d+) minutes", line))
    opening = [
        sentence
        for _, _, text in list(page.cells("markdown"))[:2]
        for sentence in re.split(r"(?<=\.) ", text)
        if "encore" in sentence.lower() and not sentence.startswith("|")
    ]
    told = [headings, *(minutes(sentence) for sentence in opening)]
    assert chapter.encores in told, f"the map has {chapter.encores} minutes, the notebook says one of {told}"


@pytest.mark.parametrize(
    "numbers, said",
    [
        ([3], "03"),
        ([3, 4], "03 to 04"),
        ([0, 7, 8, 9], "00 and 07 to 09"),
        ([1, 3, 5, 6], "01, 03 and 05 to 06"),
    ],
)
def test_numbers_are_said_with_neighbours_joined(numbers, said):
    assert course.numbers([Chapter(f"{number:02}_x", "X", DATA, (), "x") for number in numbers], " to ") == said
