"""The picture of `draw_timeline` as one self-contained HTML string: hover, zoom, both traces; no kernel, no network.

Without its script (a printed page, a notebook that is not trusted) the SVG shows everything and the buttons stay
hidden. It has no ids, so any number of timelines may stand on a page: the script starts each that is not started yet.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from string import Template

from lib.show.lanes import Layout, labels_for, lay_out, ticks
from lib.show.style import GREY, GRID, INK, MUTED, PAPER, PINK, SKY, TRACK, ink_on, mixed
from lib.text import PER_SECOND, format_time
from lib.timeline import Span, Trace


def _beside(name: str) -> str:
    return "\n" + Path(__file__).with_name(name).read_text(encoding="utf-8")


# constants: no text of the user's ever gets into them
SCRIPT = _beside("timeline.js")
COLORS = {"GREY": GREY, "GRID": GRID, "INK": INK, "MUTED": MUTED, "PAPER": PAPER, "SKY": SKY}
STYLE = Template(_beside("timeline.css")).substitute(COLORS)


@dataclass(frozen=True)
class Geometry:
    """Hold where everything is, in pixels: for the still picture, and as JSON for the script, which zooms in it."""

    start: float  # of the time axis, in its unit
    end: float
    whole: bool  # ticks at whole numbers only
    left: int  # margins: the names of the lanes, their busy shares
    row: int  # height of a lane
    bottom: int  # of the last lane
    height: int
    alone: tuple[int, int]  # top and height of a bar within its lane, when one trace is shown,
    predicted: tuple[int, int]  # and when both are
    measured: tuple[int, int]
    right: int = 84
    width: int = 960  # until the script fits it to the page
    letter: float = 7.2  # what a letter takes, with some air


@dataclass(frozen=True)
class TimelineView:
    """Hold the HTML of a timeline, which notebooks show, and `alt`, what it says in words."""

    html: str = field(repr=False)
    alt: str

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return self.alt


def timeline_html(
    measured: Trace | None = None,
    predicted: Trace | None = None,
    *,
    title: str = "",
    unit: str | None = None,
    recorded: str | None = None,
    lanes: Sequence[str] | None = None,
) -> TimelineView:
    """Make the interactive view of one trace, or of a predicted and a measured one; arguments as in `draw_timeline`.

    The same arguments give the same bytes. Raises ValueError when there is nothing to draw, KeyError for a lane that
    neither trace has.
    """
    layout = lay_out(measured, predicted, lanes, unit)
    finding = title or layout.finding
    alt = f"{finding.rstrip('.')}. {layout.words}" + (f" Recorded: {recorded}." if recorded else "")
    shown = "both" if len(layout.traces) > 1 else next(iter(layout.traces))
    geometry = _geometry(layout)
    where = (
        f'<span class="idt-recorded" style="border:1px solid {PINK};background:{PINK}2b">'
        f"Recorded on another machine: {escape(recorded)}</span>"
        if recorded
        else ""
    )
    parts = (
        f'<div class="idt-timeline" data-shown="{shown}" data-geometry="{escape(json.dumps(asdict(geometry)))}">',
        f"<style>{STYLE}</style>",
        f'<div class="idt-head"><div class="idt-title">{escape(finding)}</div>{_tools(shown)}</div>',
        f'<div class="idt-legend">{"".join(_legend(layout))}</div>',
        '<div class="idt-plot" tabindex="0" role="group" aria-label="Timeline. Arrow keys go from span to span, '
        'plus and minus zoom, Home shows everything.">',
        *_svg(layout, geometry, alt),
        '<div class="idt-tip" role="status"></div></div>',
        f'<div class="idt-foot">{where}<span class="idt-hint">Point at a span, or use the arrow keys · drag to move · '
        "+ and −, or the wheel after a click, to zoom · double click for everything</span></div>",
        f"<script>{SCRIPT}</script></div>",
    )
    return TimelineView("\n".join(parts), alt)


def _rounded(layout: Layout, time: float) -> float:
    """Round a time to a millionth of what is shown, so that the same run prints the same everywhere."""
    return round(time, 6 - math.floor(math.log10(layout.end - layout.start)))


def _geometry(layout: Layout) -> Geometry:
    count = max(1, len(layout.rows))
    one_trace = 38 if count <= 16 else 26
    row = 56 if len(layout.traces) > 1 else one_trace
    return Geometry(
        start=_rounded(layout, layout.start),
        end=_rounded(layout, layout.end),
        whole=layout.unit not in PER_SECOND,
        left=round(14 + 8 * max((len(_name(lane)) for lane in layout.rows), default=0)),
        row=row,
        bottom=row * count,
        height=row * count + 42,
        alone=(4, row - 8),
        predicted=(5, 21),
        measured=(29, 22),
    )


def _svg(layout: Layout, at: Geometry, alt: str) -> Iterator[str]:
    """Yield the picture; an inner SVG cuts off what lies outside the time axis (a clip path would need an id)."""
    inner = at.width - at.left - at.right
    right = at.width - at.right
    yield f'<svg viewBox="0 0 {at.width} {at.height}" role="img" aria-label="{escape(alt)}">'
    for row, lane in enumerate(layout.rows):
        y = f'y="{at.row * (row + 0.5) + 4.5:g}"'
        yield f'<text class="idt-lane" x="{at.left - 12}" {y} text-anchor="end">{escape(_name(lane))}</text>'
        for name in layout.traces:
            offset, height = at.alone if len(layout.traces) < 2 else getattr(at, name)
            share = f'x="{right + 10}" y="{at.row * row + offset + height / 2 + 4.5:g}" data-row="{row}"'
            text = f"{layout.busy_share(lane, name)} busy"
            yield f'<text class="idt-share" {share} data-name="{name}">{text}</text>'
        place = f'x="{at.left}" y="{at.row * row + 2}" width="{inner}" height="{at.row - 4}"'
        yield f'<rect class="idt-track" {place} fill="{TRACK}"/>'
    yield '<g class="idt-ticks">'
    for value, text in ticks(layout.start, layout.end, whole=at.whole):
        x = f"{at.left + (value - at.start) / (at.end - at.start) * inner:.2f}"
        yield f'<line x1="{x}" x2="{x}" y1="0" y2="{at.bottom + 4}"/>'
        yield f'<text x="{x}" y="{at.bottom + 17}" text-anchor="middle">{text}</text>'
    yield f'</g><line class="idt-axis" x1="{at.left}" x2="{right}" y1="{at.bottom}" y2="{at.bottom}"/>'
    label = f'x="{at.left + inner / 2:g}" y="{at.bottom + 36}" text-anchor="middle"'
    yield f'<text class="idt-unit" {label}>{escape(layout.axis_label)}</text>'
    yield f'<svg class="idt-area" x="{at.left}" y="0" width="{inner}" height="{at.bottom}" overflow="hidden">'
    yield '<rect width="100%" height="100%" fill="none" pointer-events="all"/>'
    for row, lane in enumerate(layout.rows):
        for name, trace in layout.traces.items():
            for span in trace.only(lane=lane):
                yield _span(span, row, name, layout, at)
    yield "</svg></svg>"


def _span(span: Span, row: int, name: str, layout: Layout, at: Geometry) -> str:
    inner = at.width - at.left - at.right
    color = layout.colors[span.kind]
    start, end = (time * layout.per_second for time in (span.start, span.end))
    scale = inner / (at.end - at.start)
    offset, height = at.alone if len(layout.traces) < 2 else getattr(at, name)
    x = (start - at.start) * scale
    y = at.row * row + offset
    width = max((end - start) * scale, 0.8)
    look = f'fill="{color}"' if name == "measured" else f'fill="{mixed(color, PAPER, 0.88)}" stroke="{color}"'
    labels = labels_for(span, layout.letters[span.kind])
    text = next((label for label in labels if len(label) * at.letter + 6 <= width), "")
    ink = ink_on(color) if name == "measured" else INK
    duration = format_time(span.duration, None if layout.unit in PER_SECOND else layout.unit)
    digits = max(0, 3 - len(f"{at.end - at.start:.0f}")) + 1 if layout.unit in PER_SECOND else 0
    when = f"{start:.{digits}f} – {end:.{digits}f} {layout.unit}" if digits else f"{start:g} – {end:g}"
    words = f"{span.label}\n{span.lane} · {span.kind} · {name}\n{when} · {duration}"
    return (
        f'<g class="idt-span" data-name="{name}" data-row="{row}" data-short="{escape(labels[1])}" '
        f'data-a="{_rounded(layout, start)}" data-b="{_rounded(layout, end)}"><title>{escape(words)}</title>'
        f'<rect x="{x:.2f}" y="{y}" width="{width - (width > 4):.2f}" height="{height}" rx="2" {look}/>'
        f'<text x="{x + width / 2:.2f}" y="{y + height / 2 + 4.2:g}" text-anchor="middle" style="fill:{ink}">'
        f"{escape(text)}</text></g>"
    )


def _legend(layout: Layout) -> Iterator[str]:
    for kind, letter in layout.letters.items():
        color = layout.colors[kind]
        yield f'<span><i style="background:{color};color:{ink_on(color)}">{letter}</i>{escape(kind)}</span>'
    if "predicted" in layout.traces:
        yield f'<span><i style="border:1.5px solid {MUTED}"></i>predicted</span>'
    if len(layout.traces) > 1:
        yield f'<span><i style="background:{MUTED}"></i>measured</span>'


def _tools(shown: str) -> str:
    views = "".join(
        f'<button type="button" data-do="{name}" aria-pressed="{pressed}">{name.capitalize()}</button>'
        for name, pressed in (("both", "true"), ("predicted", "false"), ("measured", "false"))
    )
    zoom = "".join(
        f'<button type="button" data-do="{what}" title="{title}" aria-label="{title}">{sign}</button>'
        for what, title, sign in (
            ("out", "Zoom out", "−"),
            ("in", "Zoom in", "+"),
            ("all", "Show everything", "Reset"),
        )
    )
    choice = f'<div class="idt-group" role="group" aria-label="Show">{views}</div>' if shown == "both" else ""
    return f'<div class="idt-tools">{choice}<div class="idt-group" role="group" aria-label="Time">{zoom}</div></div>'


def _name(lane: str) -> str:
    return lane if len(lane) <= 26 else lane[:25] + "…"
