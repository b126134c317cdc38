"""Words of the glossary become links where they first appear on a page.

A term that is an everyday word as well, such as page or event, is linked only where the text sets it in bold: there it
is introduced.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from tools.site.links import GLOSSARY
from tools.site.text import HEADINGS, slug

EVERYDAY = re.compile(
    "batch|buffer|clock|consumed|cursor|cut|demand|elastic|event|gather|idle|inside|lane|message|page|peak|policy|"
    "prefix|restart|row|scatter|segment|span|storage|sweep|trace|worker"
)
#: Where nothing is linked: in links, code, formulas, headings and what opens on a click.
LEFT_ALONE = ("a", "code", "pre", "math", "script", "style", "summary", "button", *HEADINGS)
TAG = re.compile(r"(<[^>]*>)")


def glossary_terms(root: Path) -> dict[str, str]:
    """Return the anchors of the glossary's terms, by the words that texts use: "rank *r* of *W*" is rank."""
    found: dict[str, str] = {}
    lines = (root / GLOSSARY).read_text(encoding="utf-8").splitlines()
    rows = [re.split(r"(?<!\\)\|", line.strip().strip("|")) for line in lines if line.startswith("|")]
    for term, *_ in rows[2:]:
        anchor = slug(re.sub(r"[*`]", "", term).strip())
        for word in re.sub(r"\*.*", "", term.replace("`", "")).split(","):
            if word.strip():
                found[word.strip()] = anchor
    return found


@dataclass
class Terms:
    """Links terms in the parts of one page, each once, in the order in which the parts come."""

    anchors: dict[str, str]
    seen: set[str] = field(default_factory=set)

    def link(self, markup: str) -> str:
        """Return HTML with links at the terms that appear in it first."""
        self.seen |= {anchor for anchor in self.anchors.values() if f'href="glossary.html#{anchor}"' in markup}
        left_alone = 0
        bold = 0
        shown: list[str] = []
        for piece in TAG.split(markup):
            if piece.startswith("<"):
                name = re.sub(r"\W.*", "", piece.lstrip("</"), flags=re.DOTALL)
                step = -1 if piece.startswith("</") else 1
                left_alone += step * (name in LEFT_ALONE)
                bold += step * (name == "strong")
            elif not left_alone:
                piece = self._linked(piece, bold > 0)
            shown.append(piece)
        return "".join(shown)

    def _linked(self, text: str, bold: bool) -> str:
        places: list[tuple[int, int, str]] = []
        for word in sorted(self.anchors, key=len, reverse=True):  # "mini-epoch" before "epoch"
            anchor = self.anchors[word]
            if anchor in self.seen or (EVERYDAY.fullmatch(word) and not bold):
                continue
            first = f"[{word[0]}{word[0].upper()}]" if word.islower() else re.escape(word[0])
            found = re.search(rf"(?<![\w&-]){first}{re.escape(word[1:])}s?(?![\w-])", text)
            if found and not any(start < found.end() and found.start() < end for start, end, _ in places):
                self.seen.add(anchor)
                places.append((*found.span(), anchor))
        for start, end, anchor in sorted(places, reverse=True):
            link = f'<a class="term" href="glossary.html#{anchor}">{text[start:end]}</a>'
            text = text[:start] + link + text[end:]
        return text
