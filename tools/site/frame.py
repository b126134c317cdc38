"""The frame around every page: head, header with search and theme, table of contents, previous and next, footer."""

from __future__ import annotations

import html
from collections.abc import Sequence

from tools.site.chinese import CHINESE, ENGLISH, Said
from tools.site.page import Page

NAME = ENGLISH.name
SCRIPTS = ("site.js", "atlas.js", "guess.js", "practice.js")
ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 8 8'%3E%3Cpath fill='%230072b2' "
    "d='M0 0h4v2H0zM2 3h4v2H2zM4 6h4v2H4z'/%3E%3C/svg%3E"
)


def document(
    title: str,
    main: str,
    *,
    contents: str = "",
    number: str = "",
    scripts: Sequence[str] = SCRIPTS,
    repository: str,
    said: Said = ENGLISH,
    elsewhere: str = "",
) -> str:
    """Return a whole HTML file. elsewhere: the page that says the same in the other language."""
    full = title if title == said.name else f"{title} · {said.name}"
    other = _language(said, elsewhere) if elsewhere else ""
    loaded = "\n".join(
        f'<script src="static/{name}"{"" if name == "site.js" else " defer"}></script>' for name in scripts
    )
    return f"""<!doctype html>
<html lang="{said.lang}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{html.escape(full)}</title>
<link rel="icon" href="{ICON}">
<link rel="stylesheet" href="static/site.css">
{loaded}
</head>
<body{f' data-number="{number}"' if number else ""} >
<a class="skip" href="#content">{said.skip}</a>
<header class="top">
<a class="home" href="{said.home}">{said.name}</a>
<form class="search" role="search" action="{said.home}">
<label for="search" class="unseen">{said.search}</label>
<input id="search" type="search" placeholder="{said.placeholder}" autocomplete="off" aria-controls="found" disabled>
<div id="found" hidden></div>
<p id="found-count" class="unseen" role="status"></p>
</form>
{other}<button id="theme" type="button" hidden>{said.dark}</button>
</header>
<div class="{"frame" if contents else "plain"}">
{contents}
<main id="content" tabindex="-1">
{main}
</main>
</div>
<footer class="foot">
<p><a href="{said.home}">{said.notebooks}</a> · <a href="{said.glossary}">{said.words}</a> ·
<a href="ledger.html">{said.ledger}</a> · <a href="{repository}">{said.repository}</a></p>
</footer>
</body>
</html>
"""


def _language(said: Said, page: str) -> str:
    """Return the link to the same page in the other language, named in that language."""
    lang, name = (ENGLISH.lang, "English") if said is CHINESE else (CHINESE.lang, "中文")
    return f'<a class="language" href="{page}" lang="{lang}" hreflang="{lang}">{name}</a>\n'


def beside_the_text(page: Page, pages: Sequence[Page], said: Said = ENGLISH) -> str:
    """Return what stands beside a page: the course with its place in it, and the page's own table of contents."""
    lang = "" if said is ENGLISH else f' lang="{ENGLISH.lang}"'  # notebooks have their names in English only
    rows = "\n".join(
        f'<li><a href="{other.name}"{_here(other is page)}>{html.escape(other.title)}</a></li>' for other in pages
    )
    own = contents(page) if any(section.level == 2 for section in page.sections) else ""
    return f"""<div class="beside">
<nav class="course" aria-label="{said.course}">
<details><summary>{said.course}</summary>
<ol{lang}>
{rows}
</ol>
</details>
</nav>
{own}
</div>"""


def _here(so: bool) -> str:
    return ' aria-current="page"' if so else ""


def contents(page: Page) -> str:
    """Return the table of contents of a page: its sections, and its exercises below them."""
    rows: list[str] = []
    depth = 2
    for section in page.sections:
        if section.level not in (2, 3):
            continue
        level = section.level if rows else 2
        if level > depth:
            rows[-1] = rows[-1].removesuffix("</li>")
            rows.append("<ol>")
        elif level < depth:
            rows.append("</ol></li>")
        depth = level
        rows.append(f'<li><a href="#{section.id}">{html.escape(section.title)}</a></li>')
    if depth == 3:
        rows.append("</ol></li>")
    listed = "\n".join(rows)
    return f"""<nav class="contents" aria-label="On this page">
<details open><summary>On this page</summary>
<ol>
{listed}
</ol>
</details>
</nav>"""


def turn(pages: Sequence[Page], place: int) -> str:
    """Return the links to the page before and the page after."""
    found = []
    if place > 0:
        before = pages[place - 1]
        found.append(f'<a rel="prev" href="{before.name}"><span>Previous</span> {html.escape(before.title)}</a>')
    if place + 1 < len(pages):
        after = pages[place + 1]
        found.append(f'<a rel="next" href="{after.name}"><span>Next</span> {html.escape(after.title)}</a>')
    return f'<nav class="turn" aria-label="Previous and next">{"".join(found)}</nav>' if found else ""
