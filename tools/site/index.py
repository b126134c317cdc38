"""The first page, with the map of the course and what the reader has done, and the page of the glossary."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from support import course
from tools.site.chinese import linked
from tools.site.frame import NAME
from tools.site.links import GLOSSARY, Links
from tools.site.page import READING, Page, Section
from tools.site.text import Markdown, slug
from tools.title import title_table

#: The line of the map on which the notebooks of a track stand, from the top.
LINES = {course.START: 0.5, course.DATA: 0.0, course.PIPELINE: 1.0, course.TOGETHER: 0.5}
COLUMN = 88
ROW = 236
RADIUS = 22
EDGE = 64
#: How far above the circles of the lower row lines run that leave it: the farther they go the lower.
LANE = 70
LANE_APART = 6
MAP = ("Map of the course", "data", "pipeline")
SIDE = 40


@dataclass(frozen=True)
class Entry:
    """What the index says of a notebook."""

    page: Page
    chapter: course.Chapter
    will: str
    needs: str
    cpu: str

    @property
    def number(self) -> int:
        """The number that its file begins with."""
        return self.chapter.number


def entries(pages: Sequence[Page], links: Links) -> list[Entry]:
    """Return what the map and the title tables say. Raises ValueError for a page off the map."""
    found = []
    for page in pages:
        path = links.root / "notebooks" / f"{page.stem}.ipynb"
        _, columns = title_table(path)
        markdown = Markdown(links.seen_from("notebooks"))
        will = markdown.inline(columns["You will"])
        needs = markdown.inline(columns["Needs"])
        cpu = markdown.inline(columns.get("CPU time", ""))
        found.append(Entry(page, course.chapter_of(page.stem), will, needs, cpu))
    return found


def glance(path: Path, links: Links) -> str:
    """Return what stands below the title of a notebook's page: what to expect, and the ways to run it."""
    _, columns = title_table(path)
    markdown = Markdown(links.seen_from("notebooks"))
    rows = [(name, value) for name, value in columns.items() if not name.startswith("Previous")]
    rows.insert(1, ("Your time", hours(course.chapter_of(path.stem))))
    rows.insert(2, ("Reading alone", READING))
    listed = "".join(
        f"<div><dt>{name}</dt><dd>{value if value == READING else markdown.inline(value)}</dd></div>"
        for name, value in rows
    )
    return f"""<dl class="glance">{listed}</dl>
<p class="ways"><a href="{html.escape(links.colab(path.stem))}">Open in Colab</a>
<a href="notebooks/{path.name}" download>Download the notebook</a></p>
<p class="quiet">A downloaded notebook needs the project around it: <code>git clone --depth 1 --branch
{html.escape(links.project.ref)} {html.escape(links.project.repository)}</code>, and then <code>make lab</code>.</p>
<p class="quiet">This page shows one run of the notebook. Figures with controls and predictions work here,
and so do the exercises that have an editor; the others are written in the notebook, where a check answers you.</p>"""


def hours(chapter: course.Chapter) -> str:
    """Say how much of a reader's time a notebook takes."""
    encores = f", encores {chapter.encores} minutes" if chapter.encores else ""
    return f"{course.SITTING // 60} hours{encores}"


def picture(listed: Sequence[Entry], names: tuple[str, str, str] = MAP) -> str:
    """Return the map as SVG: each notebook a link, lines from those that it builds on.

    names: what the map and its two tracks are called.
    """
    called, data, pipeline = names
    columns = course.columns()
    places = {entry.number: _middle(columns[entry.number], LINES[entry.chapter.track]) for entry in listed}
    lines: list[str] = []
    nodes = []
    direct = {entry.number: set(entry.chapter.needs) & set(places) for entry in listed}
    behind: dict[int, set[int]] = {}  # all that a notebook builds on, by whatever way
    for number in sorted(direct):
        behind[number] = direct[number].union(*(behind.get(before, set()) for before in direct[number]))
    for number, earlier in direct.items():
        implied = set().union(*(behind.get(before, set()) for before in earlier))
        lines += [f'<path d="{_line(places[before], places[number])}"/>' for before in sorted(earlier - implied)]
    for entry in listed:
        x, y = places[entry.number]
        nodes.append(
            f'<a href="{entry.page.name}" aria-label="{html.escape(entry.page.title)}">'
            f"<title>{html.escape(entry.page.title)}</title>"
            f'<circle cx="{x:g}" cy="{y:g}" r="{RADIUS}" data-map="{entry.number:02d}"/>'
            f'<text x="{x:g}" y="{y + 5:g}">{entry.number:02d}</text>{_name_below(entry.chapter, x, y)}</a>'
        )
    width = max(columns.values()) * COLUMN + 2 * SIDE
    height = ROW + 2 * EDGE + 16
    written = _track_name(course.DATA, 18, data) + _track_name(course.PIPELINE, height - 8, pipeline)
    return f"""<nav class="map scroll" aria-label="{called}">
<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}">
<g class="lines" aria-hidden="true">{"".join(lines)}</g>{written}
{"".join(nodes)}
</svg></nav>"""


def _name_below(chapter: course.Chapter, x: float, y: float) -> str:
    """Write a notebook's short name below its circle, in as many lines as it has."""
    first = y + RADIUS + 15
    return "".join(
        f'<text class="name" aria-hidden="true" x="{x:g}" y="{first + 14 * number:g}">{html.escape(line)}</text>'
        for number, line in enumerate(chapter.short.split("\n"))
    )


def _track_name(track: course.Track, y: float, name: str) -> str:
    """Write the track's name above or below its first notebook."""
    first = next(iter(course.on(track)), None)
    if first is None:
        return ""
    x, _ = _middle(course.columns()[first.number], LINES[track])
    return f'<text class="track" x="{x - RADIUS:g}" y="{y:g}">{name}</text>'


def _middle(column: int, line: float) -> tuple[float, float]:
    return SIDE + column * COLUMN, EDGE + line * ROW


def _line(before: tuple[float, float], after: tuple[float, float]) -> str:
    x, y = before
    u, v = after
    if y == v and u - x > COLUMN:  # over those between: their names are below them
        top = y - RADIUS
        over = top - 18 - 8 * (u - x) / COLUMN
        return f"M{x:g} {top:g}C{x + 20:g} {over:g} {u - 20:g} {over:g} {u:g} {top:g}"
    if u - x > 2 * COLUMN and y > EDGE:  # between the rows, above the arcs of the lower one
        lane = y - RADIUS - LANE + LANE_APART * (u - x) / COLUMN
        away = f"M{x:g} {y - RADIUS:g}C{x:g} {lane:g} {x + 24:g} {lane:g} {x + COLUMN / 2:g} {lane:g}"
        return away + _into(u, v, lane)
    if u - x > 5 * COLUMN and v > y:  # below the names of the upper row
        lane = (y + v) / 2 + 14
        return f"M{x + RADIUS:g} {y:g}C{x + 44:g} {y:g} {x + 30:g} {lane:g} {x + COLUMN:g} {lane:g}" + _into(u, v, lane)
    if u - x > COLUMN and v > y:  # over those between, and down from above
        return f"M{x + RADIUS:g} {y:g}H{u - 30:g}C{u - 10:g} {y:g} {u:g} {y + 10:g} {u:g} {v - RADIUS:g}"
    return f"M{x + RADIUS:g} {y:g}C{(x + u) / 2:g} {y:g} {(x + u) / 2:g} {v:g} {u - RADIUS:g} {v:g}"


def _into(u: float, v: float, lane: float) -> str:
    """Return the end of a line that comes along between the rows and turns into a circle from its left."""
    return f"H{u - COLUMN:g}C{u - COLUMN / 2:g} {lane:g} {u - COLUMN / 2:g} {v:g} {u - RADIUS:g} {v:g}"


def card(entry: Entry) -> str:
    """Return what the index shows of one notebook."""
    time = f"<span>{hours(entry.chapter)}</span>"
    runs = f"<span>CPU time {entry.cpu}</span>" if entry.cpu else ""
    page = entry.page
    counts = [(page.predictions, "prediction"), (page.exercises, "exercise")]
    counted = ", ".join(_count(number, word) for number, word in counts if number)
    needs = f"<span>needs {entry.needs}</span>"
    here = f"<span>{_count(page.editors, 'exercise')} can be done in the page</span>" if page.editors else ""
    return f"""<li><h3><a href="{page.name}">{html.escape(page.title)}</a></h3>
<p>You {entry.will}.</p>
<p class="quiet facts">{time}{runs}{needs}{here}</p>
<p class="progress" data-of="{entry.number:02d}" data-predictions="{page.predictions}" data-exercises="{page.exercises}"
>{counted}</p></li>"""


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'s' * (number != 1)}"


def index(pages: Sequence[Page], links: Links) -> str:
    """Return the main part of the first page."""
    listed = entries(pages, links)
    tracks = []
    for track in course.TRACKS:
        cards = [card(entry) for entry in listed if entry.chapter.track is track]
        if cards:
            head = f"<h2>{track.title}</h2>\n<p>{track.about}</p>"
            tracks.append(f'<section>{head}\n<ol class="cards">{"".join(cards)}</ol></section>')
    return f"""<div class="hero"><h1>{NAME}</h1>
<p class="lead">How training data reaches many ranks, and how one model runs on many devices: you predict, write, run,
see, break and fix it. No GPU is needed.</p>
<p>Here the course can be read without installing anything: move the controls of the figures, guess before you look,
fold out hints and solutions. Some of the mechanisms you can <em>write</em> here, too: the list below says in which
pages. For all of them open a notebook in Colab or download it; every number on these pages comes from one run of
it.</p>
<p>What others have published about all this is run again, too: see <a href="ledger.html">the ledger</a>.</p></div>
{picture(listed)}
<section id="progress" hidden aria-labelledby="progress-title"><h2 id="progress-title">What you have done</h2>
<p id="progress-said"></p>
<p><button type="button" id="progress-save">Save it as a file</button>
<button type="button" id="progress-forget">Forget it</button></p>
<p class="quiet">It is kept in this browser only.</p></section>
{"".join(tracks)}"""


def glossary(links: Links) -> Page:
    """Return the page of the glossary: a list of terms, each with an anchor, and what the search knows of them."""
    source = (links.root / GLOSSARY).read_text(encoding="utf-8")
    rows = [re.split(r"(?<!\\)\|", line.strip().strip("|")) for line in source.splitlines() if line.startswith("|")]
    before = source[: source.index("\n|")] if rows else source
    after = source.rpartition("|")[2] if rows else ""
    markdown = Markdown(links.seen_from("notebooks"))
    parts = markdown.parts(before)
    terms = []
    sections = [Section(1, "", "Glossary", "")]
    stems = {stem[:2]: stem for stem in links.stems}
    for term, meaning, chinese in (map(str.strip, row) for row in rows[2:]):
        words = re.sub(r"[*`]", "", term)
        said_of_it = re.sub(r"\((?:\d\d(?:, )?)+\)", lambda place: linked(place[0], stems), markdown.inline(meaning))
        terms.append(
            f'<dt id="{slug(words)}">{markdown.inline(term)} <span lang="zh-CN">{markdown.inline(chinese)}</span></dt>'
            f"<dd>{said_of_it}</dd>"
        )
        sections.append(Section(3, slug(words), words, re.sub(r"<[^>]*>|[*`]", "", f"{meaning} {chinese}")))
    body = "".join(part.html for part in parts) + f'<dl class="terms">{"".join(terms)}</dl>'
    body += "".join(part.html for part in markdown.parts(after.strip())) if after.strip() else ""
    return Page("glossary", "Glossary", body, sections)
