"""Stream operations as a picture: a row per stream, an arrow per wait, and red where nothing orders two accesses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from lib.experiments.stream_programs import WAYS, run_way
from lib.show.explore import choice, steps
from lib.show.sheet import arrow
from lib.show.style import (
    BLUE,
    GREEN,
    GREY,
    HATCH,
    MUTED,
    ORANGE,
    PAPER,
    RED,
    SKY,
    describe,
    ink_on,
    new_figure,
    styled,
    title,
)
from lib.show.timeline import lane_rows
from lib.streams.model import earliest
from lib.streams.operations import HOST, Operation
from lib.streams.races import Race, find_races
from lib.timeline import Span

COLORS = {"copy": ORANGE, "copy in": ORANGE, "side": ORANGE, "compute": BLUE, "copy out": SKY, HOST: GREY}
CODE = {
    "one stream": "no side stream: copies and kernels in one queue",
    "no wait": "nothing before F(i)",
    "wait_event": "compute.wait_event(copied[i]) before F(i)",
    "wait_stream": "compute.wait_stream(side) before F(i)",
    "synchronize": "side.synchronize() before F(i): the host waits",
}


def seconds_of(copy: float = 2.0, compute: float = 3.0) -> Callable[[Operation], float]:
    """Return the ticks of a launch: C and D are copies, the others compute."""
    return lambda op: copy if op.label[:1] in "CD" else compute


def draw_rows(
    axes: Axes,
    operations: Sequence[Operation],
    seconds: Callable[[Operation], float],
    races: Sequence[Race] = (),
    *,
    lanes: Sequence[str],
    missing: tuple[int, int] | None = None,
    end: float = 0.0,
) -> dict[int, Span]:
    """Draw launches at their earliest times, an arrow for each wait, red for each race; return the spans.

    lanes: the rows. missing: numbers of two launches between which a wait is gone: a dashed red arrow.
    """
    spans = earliest(operations, seconds)
    spans = {number: span for number, span in spans.items() if span.lane in lanes}
    row = {lane: place for place, lane in enumerate(lanes)}
    last = max((span.end for span in spans.values()), default=1.0)
    racing = {number for race in races for number in (race.first, race.second)}
    lane_rows(axes, lanes, -0.1, max(last, end) + 0.1, track=True)
    for number, span in spans.items():
        _box(axes, operations[number], span, row[span.lane], number in racing)
    for a, b in arrow_pairs(operations):
        if spans[a].lane != spans[b].lane:
            _wait(axes, spans[a], spans[b], row)
    if missing is not None:
        _red_arrow(axes, spans[missing[0]], spans[missing[1]], row, races[0].block if races else "")
    for race in races if missing is None else ():
        _red_arrow(axes, spans[race.first], spans[race.second], row, race.block, both=True)
    axes.set_xlabel("ticks (a model: nothing here is measured)")
    return spans


def arrow_pairs(operations: Sequence[Operation]) -> list[tuple[int, int]]:
    """Return, for each wait between streams, the launch that is waited for and the first one that waits."""
    recorded: dict[int, int] = {}
    last: dict[str, int] = {}
    open_: dict[str, list[int]] = {}
    pairs = []
    for number, op in enumerate(operations):
        if op.kind == "launch":
            pairs += [(a, number) for a in open_.pop(op.lane, [])]
            last[op.lane] = number
        elif op.kind == "record" and op.event is not None and op.lane in last:
            recorded[op.event] = last[op.lane]
        elif op.kind == "wait" and op.event in recorded:
            open_.setdefault(op.lane, []).append(recorded[op.event])
    return pairs


def _box(axes: Axes, op: Operation, span: Span, y: float, racing: bool) -> None:
    waits_ = span.kind == "wait"
    color = ORANGE if op.label.startswith("C") else COLORS.get(op.lane, GREEN)
    axes.broken_barh(
        [(span.start, span.duration)],
        (y - 0.33, 0.66),
        facecolor=PAPER if waits_ else color,
        edgecolor=GREY if waits_ else PAPER,
        hatch=HATCH["wait"] if waits_ else None,
        linewidth=1.2,
        zorder=2,
    )
    if racing:
        frame = (span.start + 0.04, y - 0.32), span.duration - 0.08, 0.64
        axes.add_patch(Rectangle(*frame, fill=False, edgecolor=RED, linewidth=3.0, zorder=4))
    if waits_:
        return
    ink, middle, use = ink_on(color), (span.start + span.end) / 2, block_names(op)
    look: dict[str, Any] = {"ha": "center", "va": "center", "color": ink, "zorder": 5}
    axes.text(middle, y - 0.13 * bool(use), op.label, fontsize=10, weight="bold", **look)
    axes.text(middle, y + 0.17, use, fontsize=9, **look)


def block_names(op: Operation) -> str:
    """Return the device memory that a launch reads and writes, such as "A→B"; host memory has longer names."""
    kept = [[r.block for r in regions if len(r.block) <= 2] for regions in (op.reads, op.writes)]
    return "→".join(",".join(dict.fromkeys(names)) for names in kept) if any(kept) else ""


def _wait(axes: Axes, a: Span, b: Span, row: dict[str, int]) -> None:
    down = 1 if row[b.lane] > row[a.lane] else -1
    begin, finish = (a.end - 0.06, row[a.lane] + 0.30 * down), (b.start + 0.08, row[b.lane] - 0.33 * down)
    arrow(axes, begin, finish, width=1.1, head=12, zorder=4)


def _red_arrow(axes: Axes, a: Span, b: Span, row: dict[str, int], block: str, *, both: bool = False) -> None:
    """Draw a missing wait (dashed, from the end of a to the start of b), or a race (both=True), with its memory."""
    down = 1 if row[b.lane] > row[a.lane] else -1
    edges = row[a.lane] + 0.33 * down, row[b.lane] - 0.33 * down
    middles = [(span.start + span.end) / 2 for span in (a, b)]
    x0, x1 = middles if both else (a.end - 0.15, max(b.start, a.end - 0.6) + 0.15)
    look: dict[str, Any] = {"style": "<|-|>"} if both else {"linestyle": (0, (3, 2))}
    arrow(axes, (x0, edges[0]), (x1, edges[1]), color=RED, width=2.2, head=14, zorder=7, **look)
    box = {"boxstyle": "round,pad=0.15", "facecolor": PAPER, "edgecolor": RED}
    place = (x0 + x1) / 2 - 0.32 * (not both), sum(edges) / 2
    text = f"{block}!" if len(block) <= 2 else "host!"
    axes.text(
        *place, text, ha="center", va="center", fontsize=9, color=RED, weight="bold", bbox=box, zorder=8
    )


def race_words(races: Sequence[Race]) -> str:
    """Say how many races there are, and name the first."""
    if not races:
        return "no race"
    many = f"{len(races)} race{'s' * (len(races) != 1)}"
    return f"{many}, first {races[0].earlier.label} and {races[0].later.label} in {races[0].block}"


@styled
def draw_operations(
    operations: Sequence[Operation],
    finding: str,
    *,
    copy: float = 2.0,
    compute: float = 3.0,
    show_races: bool = True,
) -> Figure:
    """Draw a list of operations and its races under the given finding."""
    races = find_races(operations) if show_races else []
    lanes = [
        lane for lane in dict.fromkeys(op.lane for op in operations if op.kind == "launch") if lane != HOST
    ]
    figure, axes = new_figure(9, 1.5 + 0.62 * len(lanes))
    spans = draw_rows(axes, operations, seconds_of(copy, compute), races, lanes=lanes)
    title(axes, finding)
    return describe(figure, f"{finding}. {told(spans)} {race_words(races) if show_races else ''}.")


def told(spans: dict[int, Span]) -> str:
    """Say in words which launch runs when."""
    lanes: dict[str, list[str]] = {}
    for span in spans.values():
        lanes.setdefault(span.lane, []).append(f"{span.label or 'waits'} {span.start:g}-{span.end:g}")
    return "; ".join(f"{lane}: {', '.join(parts)}" for lane, parts in lanes.items()) + "."


# ---- ways to wait

WAY_CONTROLS = {
    "way": choice(WAYS, "no wait", "before F(i)"),
    "copy": steps((1, 2, 3, 4), 2, "ticks of a copy"),
    "compute": steps((1, 2, 3, 4), 3, "ticks of a kernel"),
}


@styled
def draw_ways(way: str, copy: int, compute: int) -> Figure:
    """Draw three copies on a side stream and three kernels that read them, with one way to wait."""
    operations = run_way(way)
    races = find_races(operations)
    figure, axes = new_figure(9, 3.3)
    lanes = (HOST, "side", "compute")
    spans = draw_rows(
        axes, operations, seconds_of(copy, compute), races, lanes=lanes, end=3 * (copy + compute)
    )
    last = max(span.end for span in spans.values())
    kernels = [span for number, span in spans.items() if operations[number].label.startswith("F")]
    stops = sum(span.duration for span in spans.values() if span.kind == "wait")
    finding = f"{last:g} ticks, first kernel at {kernels[0].start:g}: " + (
        f"but {race_words(races)}" if races else f"no race, the host stands still for {stops:g}"
    )
    with matplotlib.rc_context({"axes.titlepad": 32}):
        title(axes, finding)
    note: dict[str, Any] = {"family": "monospace", "color": MUTED, "va": "bottom"}
    axes.text(0, 1.03, CODE[way], transform=axes.transAxes, fontsize=10.5, **note)
    return describe(figure, f"{way}: {finding}. {told(spans)}")
