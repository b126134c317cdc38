"""The page of the ledger: published claims, what a run of each said here, and the versions that said so."""

from __future__ import annotations

import html
from pathlib import Path

from support import recordings
from support.ledger.book import HOLDS, NOT_HERE, Claim
from support.ledger.entries import THEMES, LedgerEntry, ledger_claims, stored_ledger
from tools.site.links import Links
from tools.site.page import Page, Section
from tools.site.text import Markdown

STEM = "ledger"
PACKAGE = Path("notebooks/support/ledger")
TITLE = "The ledger: published claims, run again"
#: What a reader sees first of a verdict, and the class that its colour hangs on.
MARKS = {HOLDS: "holds", NOT_HERE: "not-here"}
ABOUT = """Papers, documentation and posts of this field say how large a bubble is, what a flag saves, when two things
are equal. Here each such claim is run again, in seconds, on a CPU. Where it holds only under a condition, the
condition is named: that is a finding about our setting, and no judgement of somebody's work."""


def ledger_page(links: Links) -> Page:
    """Return the page, of what is stored in notebooks/recorded. Raises ValueError if that is not of these claims."""
    record = recordings.load(STEM)
    entries = stored_ledger(record)
    claims = ledger_claims()
    if set(entries) != set(claims):
        odd = sorted(set(entries) ^ set(claims))
        raise ValueError(f"the stored ledger is not that of these claims ({odd[0]}): make ledger UPDATE=1")
    markdown = Markdown(links.seen_from("notebooks"))
    sections = [Section(1, "", TITLE, ABOUT)]
    parts = [f"<h1>{TITLE}</h1>", f"<p>{ABOUT}</p>", *_stamp(record["provenance"], entries)]
    for theme, heading in THEMES.items():
        sections.append(Section(2, theme, heading, ""))
        parts.append(f'<h2 id="{theme}">{html.escape(heading)}</h2>')
        for claim in (claim for claim in claims.values() if claim.theme == theme):
            sections.append(Section(3, claim.name, claim.title, f"{claim.says} {entries[claim.name].saw}"))
            parts.append(_entry(claim, entries[claim.name]))
    parts.append(f'<h2 id="yours">A claim of yours</h2>\n<p>{markdown.inline(_how(links))}</p>')
    sections.append(Section(2, "yours", "A claim of yours", "add a claim in ten lines, make ledger"))
    return Page(STEM, TITLE, "\n".join(parts), sections)


def _stamp(origin: dict[str, str], entries: dict[str, LedgerEntry]) -> list[str]:
    """Say how many claims hold, and which versions said so where and when."""
    verdicts = [_mark(entry.verdict) for entry in entries.values()]
    counts = ((verdicts.count("holds"), "hold"), (verdicts.count("holds-if"), "hold under a condition"))
    told = ", ".join(f"{count} {what}" for count, what in (*counts, (verdicts.count("not-here"), "not here")))
    seconds = sum(entry.seconds for entry in entries.values())
    versions = f"torch {origin['torch']}, Python {origin['python']}, NumPy {origin['numpy']}"
    return [
        f"<p><strong>{len(entries)} claims: {told}.</strong></p>",
        f'<p class="quiet">Run on {origin["date"]} with {html.escape(versions)}, in {seconds:.0f} s on '
        f"{html.escape(origin['machine'])}. <code>make ledger</code> runs it again and says what has flipped.</p>",
    ]


def _mark(verdict: str) -> str:
    return MARKS.get(verdict, "holds-if")


def _entry(claim: Claim, entry: LedgerEntry) -> str:
    """Return one claim: title, verdict, what is claimed where, and what a run saw."""
    source = f'<a href="{html.escape(claim.link)}">{html.escape(claim.source)}</a>'
    return f"""<section class="claim" data-verdict="{_mark(entry.verdict)}">
<h3 id="{claim.name}">{html.escape(claim.title)}</h3>
<p class="verdict">{html.escape(entry.verdict[0].upper() + entry.verdict[1:])}</p>
<dl><dt>The claim</dt><dd>{html.escape(claim.says)}</dd>
<dt>Here</dt><dd>{html.escape(entry.saw)}</dd>
<dt>Source</dt><dd>{source} <span class="quiet">{entry.seconds:.1f} s</span></dd></dl>
</section>"""


def _how(links: Links) -> str:
    return (
        "A claim is a function of about ten lines that says what it saw and in which settings the claim holds; the "
        "verdict follows. What it assumes are its parameters: move one, and see whether the verdict turns. "
        f"[support/ledger]({links.file(PACKAGE)}) says how to add one, and is where these stand."
    )
