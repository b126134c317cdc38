"""Figures of notebook 13, CUDA streams: waits and races, prefetching, chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from lib.show import style
from lib.show.charts import log2_axis
from lib.show.explore import steps, whole
from lib.show.lanes import lane_bars, lane_rows
from lib.show.sheet import arrow, write
from lib.show.style import BLUE, GREEN, GREY, INK, ORANGE, PAPER, RED, TRACK
from lib.streams.races import HOST, Operation, Race, find_races, waits
from lib.text import plural
from lib.timeline import Span, Trace, overlap_share
from support.n13.runs import damaged, earliest, outcomes, run_chunks
from support.overlap import LANES, predict_chunks

# ---- Stream operations: a row per stream, an arrow per wait, red where nothing orders two accesses.

COLORS = {"copy": ORANGE, "copy in": ORANGE, "side": ORANGE, "compute": BLUE, "copy out": ORANGE, HOST: GREY}


def seconds_of(op: Operation) -> float:
    """Return the ticks of a launch: 2 for copies, C and D, 3 for the others."""
    return 2.0 if op.label[:1] in "CD" else 3.0


def draw_rows(
    axes: Axes, operations: Sequence[Operation], races: Sequence[Race], lanes: Sequence[str], dashed: bool
) -> dict[int, Span]:
    """Draw launches at their earliest times, an arrow for each wait, red for each race; return the spans.

    lanes: the rows. dashed: draw a race as the wait that is missing, from the earlier launch to the later.
    """
    spans = earliest(operations, seconds_of)
    spans = {number: span for number, span in spans.items() if span.lane in lanes}
    row = {lane: place for place, lane in enumerate(lanes)}
    last = max((span.end for span in spans.values()), default=1.0)
    racing = {number for race in races for number in (race.first, race.second)}
    lane_rows(axes, lanes, -0.1, last + 0.1, track=True)
    for number, span in spans.items():
        _box(axes, operations[number], span, row[span.lane], number in racing)
    for a, b in arrow_pairs(operations):
        if spans[a].lane != spans[b].lane:
            _wait(axes, spans[a], spans[b], row)
    for race in races:
        _red_arrow(axes, spans[race.first], spans[race.second], row, race.block, dashed)
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
    color = ORANGE if op.label.startswith("C") else COLORS.get(op.lane, GREEN)
    look: dict[str, Any] = {"facecolor": color, "edgecolor": PAPER, "linewidth": 1.2, "zorder": 2}
    axes.broken_barh([(span.start, span.duration)], (y - 0.33, 0.66), **look)
    if racing:
        frame = (span.start + 0.04, y - 0.32), span.duration - 0.08, 0.64
        axes.add_patch(Rectangle(*frame, fill=False, edgecolor=RED, linewidth=3.0, zorder=4))
    middle = (span.start + span.end) / 2
    use = block_names(op)
    ink = style.ink_on(color)
    write(axes, middle, y - 0.13 * bool(use), op.label, size=10, weight="bold", color=ink, zorder=5)
    write(axes, middle, y + 0.17, use, size=9, color=ink, zorder=5)


def block_names(op: Operation) -> str:
    """Return the device memory that a launch reads and writes, such as "A→B"; host memory has longer names."""
    kept = [[r.block for r in regions if len(r.block) <= 2] for regions in (op.reads, op.writes)]
    return "→".join(",".join(dict.fromkeys(names)) for names in kept) if any(kept) else ""


def _wait(axes: Axes, a: Span, b: Span, row: dict[str, int]) -> None:
    down = 1 if row[b.lane] > row[a.lane] else -1
    begin = (a.end - 0.06, row[a.lane] + 0.30 * down)
    finish = (b.start + 0.08, row[b.lane] - 0.33 * down)
    arrow(axes, begin, finish, width=1.1, head=12, zorder=4)


def _red_arrow(axes: Axes, a: Span, b: Span, row: dict[str, int], block: str, dashed: bool) -> None:
    """Draw a race, or a missing wait (dashed), from the middle of a to the middle of b, with its memory."""
    down = 1 if row[b.lane] > row[a.lane] else -1
    edges = row[a.lane] + 0.33 * down, row[b.lane] - 0.33 * down
    x0, x1 = ((span.start + span.end) / 2 for span in (a, b))
    look: dict[str, Any] = {"linestyle": (0, (3, 2))} if dashed else {"style": "<|-|>"}
    arrow(axes, (x0, edges[0]), (x1, edges[1]), color=RED, width=2.2, head=14, zorder=7, **look)
    text = f"{block}!" if len(block) <= 2 else "host!"
    y = sum(edges) / 2
    x = min(x0, x1) - 0.35 if dashed else (x0 + x1) / 2  # a label on the dashes would hide them
    box = {"boxstyle": "round,pad=0.15", "facecolor": PAPER, "edgecolor": RED}
    write(axes, x, y, text, size=9, color=RED, weight="bold", bbox=box, zorder=8)


def race_words(races: Sequence[Race]) -> str:
    """Say how many races there are, and name the first."""
    if not races:
        return "no race"
    first = races[0]
    return (
        f"{plural(len(races), 'race')}, first {first.earlier.label} and {first.later.label} in {first.block}"
    )


@style.styled
def draw_operations(operations: Sequence[Operation], finding: str) -> Figure:
    """Draw a list of operations and its races under the given finding."""
    races = find_races(operations)
    lanes = list(dict.fromkeys(op.lane for op in operations if op.kind == "launch" and op.lane != HOST))
    figure, axes = style.new_figure(9, 1.5 + 0.62 * len(lanes))
    spans = draw_rows(axes, operations, races, lanes, dashed=False)
    style.title(axes, finding)
    return style.describe(figure, f"{finding}. {told(spans)} {race_words(races)}.")


def told(spans: dict[int, Span]) -> str:
    """Say in words which launch runs when."""
    lanes: dict[str, list[str]] = {}
    for span in spans.values():
        lanes.setdefault(span.lane, []).append(f"{span.label} {span.start:g}-{span.end:g}")
    return "; ".join(f"{lane}: {', '.join(parts)}" for lane, parts in lanes.items()) + "."


# ---- A tensor in chunks over three streams: the timeline of the model, and the time by the number of chunks.

COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
LANE_COLORS = dict(zip(LANES, (ORANGE, BLUE, ORANGE), strict=True))
CHUNK_CONTROLS = {
    "chunks": steps(COUNTS, 4, "chunks"),
    "copy": steps((25, 50, 75, 100, 150, 200), 75, "copy in, and out, ticks"),
    "compute": steps((25, 50, 75, 100, 150, 200), 100, "compute, ticks"),
    "overhead": steps((0.0, 0.5, 1.0, 2.0, 4.0), 1.0, "ticks that an operation adds"),
    "depth": whole(1, 3, 2, "buffers in turn"),
}


@style.styled
def draw_chunks(chunks: int, copy: float, compute: float, overhead: float, depth: int) -> Figure:
    """Draw the model's three lanes for one number of chunks, and below its time for all of them."""
    times = {c: predict_chunks(c, copy, compute, copy, depth=depth, overhead=overhead) for c in COUNTS}
    trace = times[chunks]
    figure, (axes, curve) = style.new_figure(9, 5.4, rows=2, height_ratios=[1, 1])
    draw_lanes(axes, trace, limit=max(times[2].makespan, trace.makespan))  # the same for nearly all counts
    axes.set_xlabel("ticks (a model: nothing here is measured)")
    best = min(COUNTS, key=lambda count: times[count].makespan)
    _draw_curve(curve, {count: t.makespan for count, t in times.items()}, chunks, max(copy, compute))
    took = f"{plural(chunks, 'chunk')}: {trace.makespan:.1f} ticks, {overlap_share(trace):.0%} hidden"
    finding = f"{took}; of the dots, best {best}: {times[best].makespan:.1f}"
    style.title(axes, finding)
    words = f"Copy in {copy:g}, compute {compute:g}, copy out {copy:g} ticks, {overhead:g} an operation, depth {depth}"
    ends = ", ".join(f"{lane} ends at {max(s.end for s in trace.only(lane=lane)):.1f}" for lane in LANES)
    return style.describe(figure, f"{finding}. {words}. {ends}.")


def draw_lanes(axes: Axes, trace: Trace, limit: float) -> None:
    """Draw a bar for each span; its label where there is room."""
    for row, lane in enumerate(LANES):
        spans = trace.only(lane=lane).spans
        color = LANE_COLORS[lane]
        thin = min(span.duration for span in spans) < limit / 150
        look: dict[str, Any] = {"size": 9.5, "edgecolor": color if thin else PAPER, "height": 0.78}
        places = [(span.start, span.duration) for span in spans]
        texts = [span.label if span.duration > limit / 28.5 else "" for span in spans]
        lane_bars(axes, row, places, [color] * len(spans), texts, **look)
    lane_rows(axes, LANES, 0, limit * 1.01, track=True)


def _draw_curve(axes: Axes, seconds: Mapping[int, float], now: int, floor: float) -> None:
    counts = list(seconds)
    axes.plot(counts, list(seconds.values()), color=GREY, marker="o", markersize=4, zorder=2)
    axes.plot([now], [seconds[now]], "o", color=RED, markersize=11, zorder=3)
    axes.axhline(floor, color=BLUE, linestyle="--", linewidth=1.2)
    note = "the longest lane alone: no pipeline is faster"
    look: dict[str, Any] = {"textcoords": "offset points", "color": BLUE, "fontsize": 9.5}
    axes.annotate(note, (64, floor), (0, -4), ha="right", va="top", **look)
    log2_axis(axes, (1, 2, 4, 8, 16, 32, 64))
    axes.set(xlabel="chunks", ylabel="ticks", xlim=(0.9, 72), ylim=(0, max(*seconds.values(), floor) * 1.12))


def with_letters(trace: Trace) -> Trace:
    """Return the trace with forward in place of compute: so the legend has the letter F of its labels."""
    kinds = {"compute": "forward"}
    return Trace([replace(span, kind=kinds.get(span.kind, span.kind)) for span in trace], trace.lanes)


# ---- A StreamPipeline without one of its waits: the race, and what the result may then hold.

WAIT_COUNT = len(waits(run_chunks()))
REMOVED_CONTROLS = {"removed": whole(0, WAIT_COUNT, 5, "wait removed")}
SHOWN = 16


@style.styled
def draw_removed(removed: int) -> Figure:
    """Draw the pipeline of 4 chunks without one wait: the race, and the results of orders that are now allowed."""
    operations = damaged(min(removed, WAIT_COUNT) - 1 if removed > 0 else None)
    races = find_races(operations)  # each wait that is missing makes one
    figure, (axes, grid) = style.new_figure(9, 5.2, rows=2, height_ratios=[1.35, 1])
    spans = draw_rows(axes, operations, races, LANES, dashed=True)
    found = outcomes(operations, 4)
    truth = ["0", "1", "2", "3"]
    wrong = [result for result in found if result != truth]
    _draw_outcomes(grid, found[:SHOWN], truth)
    if races:
        first = races[0].earlier.label
        second = races[0].later.label
        finding = (
            f"{second} does not wait for {first}: a wrong result in {len(wrong)} of {len(found)} random draws"
        )
    else:
        finding = f"With all {WAIT_COUNT} waits the result is right in all of {len(found)} random draws"
    style.title(axes, finding)
    words = "Whose data each chunk's place of the result holds in the end"
    grid.set_title(words, fontsize=11, weight="normal", loc="left")
    such = "; ".join(" ".join(result) for result in (wrong or found)[:2])
    return style.describe(figure, f"{finding}. {told(spans)} {race_words(races)}. Results such as {such}.")


def _draw_outcomes(axes: Axes, results: Sequence[Sequence[str]], truth: Sequence[str]) -> None:
    """Draw a column of cells per draw of an order."""
    for x, result in enumerate(results):
        for y, (got, right) in enumerate(zip(result, truth, strict=True)):
            bad = got != right
            cell = (x - 0.44, y - 0.42), 0.88, 0.84
            axes.add_patch(Rectangle(*cell, facecolor=RED if bad else TRACK, edgecolor=PAPER))
            write(axes, x, y, got, size=11, color=PAPER if bad else INK, weight="bold" if bad else "normal")
    axes.set(xlim=(-0.6, SHOWN - 0.4), ylim=(len(truth) - 0.4, -0.6), xticks=[])
    axes.set_xlabel(f"{SHOWN} random draws of an order in which the streams may get on")
    axes.set_yticks(range(len(truth)), [f"chunk {name}" for name in truth], color=INK)
    axes.tick_params(axis="y", length=0)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
