"""The index of the search: titles and text of all sections in one script, which works from file:// as well."""

from __future__ import annotations

import json
from collections.abc import Iterable

from tools.site.page import Page


def script(pages: Iterable[Page]) -> str:
    """Return the script: a list of [file, anchor, the page's title, the section's title, its words]."""
    rows = [
        [page.name, section.id if section.level > 1 else "", page.title, section.title, section.words]
        for page in pages
        for section in page.sections
    ]
    data = json.dumps(rows, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return f"window.course.sections({data});\n"
