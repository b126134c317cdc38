"""Figures of notebook 13, CUDA streams: waits and races, copies, prefetching, chunks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from lib._values import format_bytes, plural
from lib.show import style
from lib.show.charts import log2_axis
from lib.show.explore import choice, steps, switch, whole
from lib.show.sheet import arrow
from lib.show.style import BLUE, GREEN, GREY, HATCH, INK, MUTED, ORANGE, PAPER, PINK, RED, SKY, TRACK
from lib.show.timeline import bar, lane_rows
from lib.streams.races import HOST, Operation, Race, find_races, waits
from lib.timeline import Span, Trace, Work, overlap_share, play
from support.n13.runs import (
    COPY_WAYS,
    DIRECTIONS,
    SIZES,
    WAYS,
    damaged,
    earliest,
    outcomes,
    run_chunks,
    run_way,
)
from support.runs import LANES, predict_chunks

# ---- Stream operations: a row per stream, an arrow per wait, red where nothing orders two accesses.

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
    ink, middle, use = style.ink_on(color), (span.start + span.end) / 2, block_names(op)
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
    many = plural(len(races), "race")
    return f"{many}, first {races[0].earlier.label} and {races[0].later.label} in {races[0].block}"


@style.styled
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
    figure, axes = style.new_figure(9, 1.5 + 0.62 * len(lanes))
    spans = draw_rows(axes, operations, seconds_of(copy, compute), races, lanes=lanes)
    style.title(axes, finding)
    return style.describe(figure, f"{finding}. {told(spans)} {race_words(races) if show_races else ''}.")


def told(spans: dict[int, Span]) -> str:
    """Say in words which launch runs when."""
    lanes: dict[str, list[str]] = {}
    for span in spans.values():
        lanes.setdefault(span.lane, []).append(f"{span.label or 'waits'} {span.start:g}-{span.end:g}")
    return "; ".join(f"{lane}: {', '.join(parts)}" for lane, parts in lanes.items()) + "."


# ---- Ways to wait.

WAY_CONTROLS = {
    "way": choice(WAYS, "no wait", "before F(i)"),
    "copy": steps((1, 2, 3, 4), 2, "ticks of a copy"),
    "compute": steps((1, 2, 3, 4), 3, "ticks of a kernel"),
}


@style.styled
def draw_ways(way: str, copy: int, compute: int) -> Figure:
    """Draw three copies on a side stream and three kernels that read them, with one way to wait."""
    operations = run_way(way)
    races = find_races(operations)
    figure, axes = style.new_figure(9, 3.3)
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
        style.title(axes, finding)
    note: dict[str, Any] = {"family": "monospace", "color": MUTED, "va": "bottom"}
    axes.text(0, 1.03, CODE[way], transform=axes.transAxes, fontsize=10.5, **note)
    return style.describe(figure, f"{way}: {finding}. {told(spans)}")


# ---- Copies to a GPU: bandwidth by size.

BANDWIDTH_CONTROLS = {
    "link": steps((6, 12, 25, 50), 25, "the link, GB/s"),
    "latency": steps((2, 5, 10, 20, 50), 10, "before it starts, µs"),
    "staging": steps((4, 8, 12, 20), 8, "host copies, GB/s"),
}
ORIGIN: dict[str, Any] = {"x": 0.01, "ha": "left", "fontsize": 9.5, "color": PINK}  # of where it was measured
LOOKS = dict(zip(COPY_WAYS, ((GREY, "s"), (ORANGE, "^"), (BLUE, "o")), strict=True))


def rates(bytes_: float, link: float, latency: float, staging: float) -> tuple[float, float]:
    """Return the GB/s of a copy from pinned and from pageable memory in the model: bytes over the seconds they take.

    A pageable copy goes through a pinned buffer first. link, staging: GB/s; latency: µs.
    """
    pinned = latency * 1e-6 + bytes_ / (link * 1e9)
    return bytes_ / pinned / 1e9, bytes_ / (pinned + bytes_ / (staging * 1e9)) / 1e9


@style.styled
def draw_bandwidth(link: float, latency: float, staging: float) -> Figure:
    """Draw the model: GB/s by the size of the copy, and the link's limit as a line."""
    figure, axes = style.new_figure(9, 3.7)
    pairs = [rates(size, link, latency, staging) for size in SIZES]
    for k, (way, color) in enumerate((("pinned", BLUE), ("pageable: copied twice", ORANGE))):
        values = [pair[k] for pair in pairs]
        axes.plot(SIZES, values, color=color, linestyle="--", marker="os"[k], markerfacecolor=PAPER)
        note = {"textcoords": "offset points", "ha": "right", "va": "top", "color": color}
        axes.annotate(way, (SIZES[-1], values[-1]), (0, -8), **note)
    half = latency * 1e-6 * link * 1e9
    _sizes(axes, link * 1.15)
    _limit(axes, link, "the copy engine's limit")
    axes.axvline(half, color=MUTED, linewidth=1, linestyle=":")
    axes.text(half * 1.08, 0.4, format_bytes(half), color=MUTED, fontsize=9.5, va="bottom")
    pageable = pairs[-1][1] / link
    finding = f"Half the speed needs {format_bytes(half)} a copy; pageable memory reaches {pageable:.0%}"
    style.title(axes, finding)
    told = f"A model. Link {link} GB/s, {latency} µs, staging {staging} GB/s. 256 KiB pinned: {pairs[3][0]:.1f} GB/s"
    return style.describe(figure, f"{finding}. {told}, pageable {pairs[3][1]:.1f}.")


def _sizes(axes: Axes, top: float) -> None:
    log2_axis(axes, SIZES[::2], _binary)
    axes.set(xlabel="size of the copy", ylabel="GB/s", ylim=(0, top), xlim=(SIZES[0] / 1.5, SIZES[-1] * 1.5))


def _binary(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def _limit(axes: Axes, rate: float, text: str) -> None:
    axes.axhline(rate, color=RED, linewidth=1.4)
    axes.annotate(
        text, (SIZES[0], rate), (0, -3), textcoords="offset points", va="top", color=RED, fontsize=10
    )


@style.styled
def draw_bandwidth_measured(data: Mapping[str, Any], origin: str) -> Figure:
    """Draw the GB/s that a GPU was measured at, both directions; the best of them is the limit line."""
    figure, both = style.new_figure(9, 4.1, cols=2, sharey=True)
    rows = data["rows"]
    best = {d: max(_rate(row) for row in rows if row["direction"] == d) for d in DIRECTIONS}
    for axes, direction in zip(both, DIRECTIONS, strict=True):
        for way, (color, marker) in LOOKS.items():
            points = [row for row in rows if row["direction"] == direction and row["way"] == way]
            axes.plot(
                [r["bytes"] for r in points],
                [_rate(r) for r in points],
                color=color,
                marker=marker,
                label=way,
            )
        _sizes(axes, 1.15 * max(best.values()))
        _limit(axes, best[direction], f"{best[direction]:.1f} GB/s")
        axes.set_title(direction, fontsize=11, weight="normal", loc="left")
    both[1].legend(loc="center right", fontsize=9)
    largest = [row for row in rows if row["direction"] == DIRECTIONS[0] and row["bytes"] == max(SIZES)]
    speed = {row["way"]: _rate(row) for row in largest}
    pinned, pageable = (f"{speed[COPY_WAYS[way]]:.0f}" for way in (2, 0))
    finding = f"Pinned {pinned} GB/s, pageable {pageable}, and non_blocking changes nothing there"
    style.headline(figure, finding)
    figure.supxlabel(origin, **ORIGIN)
    return style.describe(figure, f"{finding}. {origin}.")


def _rate(row: Mapping[str, Any]) -> float:
    return float(row["bytes"] / row["done"] / 1e9)


# ---- From the loader to the step.

PREFETCH_CONTROLS = {
    "ahead": switch(True, "copy ahead, on a stream of its own"),
    "load": whole(1, 8, 2, "load and pin, ticks"),
    "copy": whole(1, 8, 3, "copy, ticks"),
    "compute": whole(1, 8, 6, "compute, ticks"),
    "depth": whole(1, 3, 2, "depth"),
}
HOPS = ("load", "copy", "compute")
HOP_COLORS = dict(zip(HOPS, (GREEN, ORANGE, BLUE), strict=True))
BATCHES = 8


def chain(load: float, copy: float, compute: float, depth: int, ahead: bool, batches: int = BATCHES) -> Trace:
    """Return the model's trace: a loader, then the copy (ahead, or in the computing stream), then the step."""
    tasks = []
    for i in range(batches):
        before = i - (2 * depth if ahead else 1)  # as in predict_prefetch, whose loader takes no time
        done = [f"F{before}"] if before >= 0 else []
        tasks += [
            Work("load", f"L{i}", load, kind="load"),
            Work("copy", f"C{i}", copy, [f"L{i}", *done], "copy"),
            Work("compute", f"F{i}", compute, [f"C{i}"]),
        ]
    return play(tasks, HOPS)


def step_of(trace: Trace) -> float:
    """Return the time between the ends of the last two steps."""
    *_, before, last = (span.end for span in trace.only(lane="compute"))
    return last - before


@style.styled
def draw_prefetch(ahead: bool, load: float, copy: float, compute: float, depth: int) -> Figure:
    """Draw the three lanes of an epoch's first batches, with the copy ahead or in the loop."""
    trace = chain(load, copy, compute, depth, ahead)
    figure, axes = style.new_figure(9, 3.3)
    for row, lane in enumerate(HOPS):
        for span in trace.only(lane=lane):
            text = span.label if span.duration > 1 else span.label[1:]
            bar(axes, row, span.start, span.duration, HOP_COLORS[lane], text, size=9.5, height=0.78)
    lane_rows(axes, ("loader → pinned", "copy", "compute"), 0, trace.end + 0.3, track=True)
    axes.set_xlabel("ticks (a model: nothing here is measured)")
    how = f"max({load:g}, {copy:g}, {compute:g})" if ahead else f"max({load:g}, {copy:g} + {compute:g})"
    finding = (
        f"{'Copied ahead' if ahead else 'Copied in the loop'}: a step every {step_of(trace):g} ticks = {how}"
    )
    style.title(axes, finding)
    starts = ", ".join(f"{span.start:g}" for span in trace.only(lane="copy"))
    return style.describe(
        figure, f"{finding}. Depth {depth}. Copies start at {starts}. All done at {trace.end:g}."
    )


@style.styled
def draw_prefetch_measured(data: Mapping[str, Any] | None, origin: str) -> Figure:
    """Draw the time of a step over copy:compute, in units of the copy; without data the two rules only, said so."""
    figure, axes = style.new_figure(9, 3.7)
    ratios: Sequence[float] = [row["ratio"] for row in data["rows"]] if data else [0.25, 0.5, 1, 2, 4]
    axes.plot(ratios, [1 + r for r in ratios], "--", color=ORANGE, label="copy + compute")
    axes.plot(ratios, [max(1, r) for r in ratios], "--", color=BLUE, label="max(copy, compute)")
    if data:
        for name, color in (("plain", ORANGE), ("prefetched", BLUE)):
            places = [(row["compute"] / row["copy"], row[name] / row["copy"]) for row in data["rows"]]
            axes.plot(*zip(*places, strict=True), "o", color=color, markersize=8, label=f"measured, {name}")
        off = [row["prefetched"] / max(row["copy"], row["compute"]) - 1 for row in data["rows"]]
        finding = f"A prefetched step takes max(copy, compute), {max(off):.0%} more at most"
        figure.supxlabel(origin, **ORIGIN)
    else:
        finding = f"{origin}: the two rules only"
    axes.set_xscale("log", base=2)
    axes.set_xticks(ratios, [f"{r:g}" for r in ratios])
    axes.set(xlabel="compute / copy", ylabel="step / copy", ylim=(0, None))
    axes.legend(loc="upper left")
    style.title(axes, finding)
    return style.describe(figure, f"{finding}. For ratio 1 the rules say 2 and 1 copies a step. {origin}.")


# ---- Preprocessing.


@style.styled
def draw_preprocess(data: Mapping[str, Any] | None, cpu: Mapping[str, Any], origin: str) -> Figure:
    """Draw what travels and how long it takes, made ready on the CPU or on the GPU; without data the CPU's part."""
    figure, (left, right) = style.new_figure(9, 2.9, cols=2, sharey=True, width_ratios=[1, 1.3])
    ways = ("ready on the CPU,\nfloats travel", "bytes travel,\nready on the GPU")
    megabytes = [cpu[name] / 1e6 for name in ("float_bytes", "byte_bytes")]
    left.barh(ways, megabytes, color=ORANGE, height=0.55)
    for row, value in enumerate(megabytes):
        left.annotate(
            f"{value:.0f} MB", (value, row), (-4, 0), textcoords="offset points", ha="right", va="center"
        )
    left.set(xlabel="over the link, MB")
    left.invert_yaxis()
    parts = [("CPU", [(data or cpu)["cpu"], 0.0], GREEN)]
    if data:
        parts += [
            ("copy", [data["copy_floats"], data["copy_bytes"]], ORANGE),
            ("GPU", [0.0, data["gpu"]], BLUE),
        ]
    # the parts of both ways one after the other, each from where the last one ended
    begin = [0.0, 0.0]
    for name, seconds, color in parts:
        milliseconds = [1e3 * value for value in seconds]
        right.barh(ways, milliseconds, left=begin, color=color, height=0.55, label=name)
        begin = [a + b for a, b in zip(begin, milliseconds, strict=True)]
    if data:
        figure.supxlabel(origin, **ORIGIN)
    else:
        for row, value in enumerate(begin):
            note = "+ copy: not known without a GPU" if value else "copy, GPU: not known without a GPU"
            look: dict[str, Any] = {
                "textcoords": "offset points",
                "va": "center",
                "color": MUTED,
                "fontsize": 9.5,
            }
            right.annotate(note, (value, row), (6, 0), **look)
        right.set_xlim(0, 2.1 * max(begin))
    right.set(xlabel="ms a batch")
    right.legend(loc="lower right", fontsize=9.5)
    saved = megabytes[0] / megabytes[1]
    finding = f"Made ready on the GPU: {saved:.0f} × fewer bytes travel, and the CPU is free of it"
    style.headline(figure, finding)
    known = (
        f"Together {begin[0]:.1f} ms and {begin[1]:.1f} ms" if data else "Times of a GPU are not known here"
    )
    return style.describe(
        figure, f"{finding}: {megabytes[0]:.0f} MB and {megabytes[1]:.0f} MB. {known}. {origin}."
    )


# ---- A tensor in chunks over three streams: the timeline of the model, and the time by the number of chunks.

NOTE: dict[str, Any] = {"textcoords": "offset points", "color": BLUE, "fontsize": 9.5}
COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
LANE_COLORS = dict(zip(LANES, (ORANGE, BLUE, SKY), strict=True))
CHUNK_CONTROLS = {
    "chunks": steps(COUNTS, 4, "chunks"),
    "copy": steps((25, 50, 75, 100, 150, 200), 75, "copy in, and out, ticks"),
    "compute": steps((25, 50, 75, 100, 150, 200), 100, "compute, ticks"),
    "overhead": steps((0.0, 0.5, 1.0, 2.0, 4.0), 1.0, "ticks of a launch"),
    "depth": whole(1, 3, 2, "depth"),
}


@style.styled
def draw_chunks(chunks: int, copy: float, compute: float, overhead: float, depth: int) -> Figure:
    """Draw the model's three lanes for one number of chunks, and below its time for all of them."""
    times = {
        count: predict_chunks(count, copy, compute, copy, depth=depth, overhead=overhead) for count in COUNTS
    }
    trace = times[chunks]
    figure, (axes, curve) = style.new_figure(9, 5.4, rows=2, height_ratios=[1, 1])
    draw_lanes(axes, trace, limit=2 * copy + compute + 3 * overhead)
    axes.set_xlabel("ticks (a model: nothing here is measured)")
    best = min(COUNTS, key=lambda count: times[count].makespan)
    least = times[best].makespan
    _draw_curve(curve, {count: t.makespan for count, t in times.items()}, chunks, max(copy, compute))
    share = overlap_share(trace)
    finding = (
        f"{plural(chunks, 'chunk')}: {trace.makespan:.0f} ticks, {share:.0%} of the shorter work hidden; "
        f"best {best}: {least:.0f}"
    )
    style.title(axes, finding)
    words = f"Copy in {copy:g}, compute {compute:g}, copy out {copy:g} ticks, {overhead:g} a launch, depth {depth}"
    ends = ", ".join(f"{lane} ends at {max(s.end for s in trace.only(lane=lane)):.1f}" for lane in LANES)
    return style.describe(figure, f"{finding}. {words}. {ends}.")


def draw_lanes(axes: Axes, trace: Trace, limit: float, scale: float = 1.0) -> None:
    """Draw a bar for each span; its label where there is room."""
    for row, lane in enumerate(LANES):
        spans, color = trace.only(lane=lane), LANE_COLORS[lane]
        thin = min(span.duration for span in spans) * scale < limit / 150
        look: dict[str, Any] = {"size": 9.5, "edgecolor": color if thin else PAPER, "height": 0.78}
        for span in spans:
            start, width = span.start * scale, span.duration * scale
            text = span.label if width > limit / 28 else ""
            bar(axes, row, start, width, color, text, **look)
    lane_rows(axes, LANES, 0, limit * 1.01, track=True)


def _draw_curve(axes: Axes, seconds: Mapping[int, float], now: int, floor: float) -> None:
    counts = list(seconds)
    axes.plot(counts, list(seconds.values()), color=GREY, marker="o", markersize=4, zorder=2)
    axes.plot([now], [seconds[now]], "o", color=RED, markersize=11, zorder=3)
    axes.axhline(floor, color=BLUE, linestyle="--", linewidth=1.2)
    note = "the longest lane alone: no pipeline is faster"
    axes.annotate(note, (64, floor), (0, -4), **NOTE, ha="right", va="top")
    log2_axis(axes, (1, 2, 4, 8, 16, 32, 64))
    axes.set_xlim(0.9, 72)
    axes.set(xlabel="chunks", ylabel="ticks", ylim=(0, max(*seconds.values(), floor) * 1.12))


@style.styled
def draw_chunks_measured(data: Mapping[str, Any] | None, origin: str) -> Figure:
    """Draw a GPU's times by chunk count over their prediction; without data the model for equal lanes, said so."""
    figure, axes = style.new_figure(9, 3.7)
    if data is None:
        counts = [2**k for k in range(8)]
        times = [predict_chunks(c, 1, 1, 1, overhead=0.005).makespan / 3 for c in counts]
        axes.plot(counts, times, "o--", color=MUTED, markerfacecolor=PAPER, label="the model")
        finding = f"{origin}: only the model, for three equal lanes"
        axes.set_ylabel("time / time of one chunk")
        words = f"Least at {counts[times.index(min(times))]} chunks: {min(times):.2f} of the time of one"
    else:
        rows = data["rows"]
        counts = [row["chunks"] for row in rows]
        axes.plot(
            counts,
            [1e3 * r["predicted"] for r in rows],
            "o--",
            color=MUTED,
            markerfacecolor=PAPER,
            label="predicted",
        )
        axes.plot(counts, [1e3 * r["seconds"] for r in rows], "o-", color=BLUE, label="measured")
        best = min(rows, key=lambda row: row["seconds"])
        for row in rows:
            place = (row["chunks"], 1e3 * row["seconds"])
            axes.annotate(f"{row['overlap']:.0%}", place, (0, 8), **NOTE, ha="center")
        ratio = best["seconds"] / rows[0]["seconds"]
        finding = f"{best['chunks']} chunks take {ratio:.2f} of the time of one, {best['overlap']:.0%} hidden"
        axes.set_ylabel("ms (and share hidden)")
        words = origin
        figure.supxlabel(origin, **ORIGIN)
    log2_axis(axes, counts)
    axes.set(xlabel="chunks", ylim=(0, 1.12 * axes.get_ylim()[1]))
    axes.legend(loc="lower left")
    style.title(axes, finding)
    return style.describe(figure, f"{finding}. {words}.")


# ---- A StreamPipeline without one of its waits: the race, and what the result may then hold.

WAIT_COUNT = len(waits(run_chunks()))
REMOVED_CONTROLS = {"removed": whole(0, WAIT_COUNT, 5, "wait removed")}
SHOWN = 16


@style.styled
def draw_removed(removed: int) -> Figure:
    """Draw the pipeline of 4 chunks without one wait: the race, and the results of orders that are now allowed."""
    every, removed = run_chunks(), max(0, min(removed, WAIT_COUNT))
    operations = damaged(removed - 1 if removed else None)
    races, pair = find_races(operations), None
    figure, (axes, grid) = style.new_figure(9, 5.2, rows=2, height_ratios=[1.35, 1])
    if removed:
        number = waits(every)[removed - 1]
        a, b = next(pair for pair in arrow_pairs(every) if pair not in arrow_pairs_kept(operations, number))
        pair = (a - (a > number), b - (b > number))
    lanes = ("copy in", "compute", "copy out")
    spans = draw_rows(axes, operations, seconds_of(), races, lanes=lanes, missing=pair)
    found, truth = outcomes(operations, 4), ["0", "1", "2", "3"]
    wrong = [result for result in found if result != truth]
    shown = found[:SHOWN]
    if wrong and all(result == truth for result in shown):
        shown[-1] = wrong[0]
    _draw_outcomes(grid, shown, truth)
    if pair:
        first, second = (spans[k].label for k in pair)
        finding = f"{second} does not wait for {first}: a wrong result in {len(wrong)} of {len(found)} allowed orders"
    else:
        finding = f"With all {WAIT_COUNT} waits the result is right in all of {len(found)} allowed orders"
    style.title(axes, finding)
    words = "Whose data each chunk's place of the result holds in the end"
    grid.set_title(words, fontsize=11, weight="normal", loc="left")
    such = "; ".join(" ".join(result) for result in (wrong or found)[:2])
    return style.describe(figure, f"{finding}. {told(spans)} {race_words(races)}. Results such as {such}.")


def arrow_pairs_kept(operations: Sequence[Operation], number: int) -> set[tuple[int, int]]:
    """Return the arrows that are left, in the numbers of the whole list, from which operation `number` was taken."""
    return {(a + (a >= number), b + (b >= number)) for a, b in arrow_pairs(operations)}


def _draw_outcomes(axes: Axes, results: Sequence[Sequence[str]], truth: Sequence[str]) -> None:
    """Draw a column of cells per order."""
    for x, result in enumerate(results):
        for y, (got, right) in enumerate(zip(result, truth, strict=True)):
            bad = got != right
            cell = (x - 0.44, y - 0.42), 0.88, 0.84
            axes.add_patch(Rectangle(*cell, facecolor=RED if bad else TRACK, edgecolor=PAPER))
            look: dict[str, Any] = {"weight": "bold", "color": PAPER} if bad else {"color": INK}
            axes.text(x, y, got, ha="center", va="center", fontsize=11, **look)
    axes.set(xlim=(-0.6, SHOWN - 0.4), ylim=(len(truth) - 0.4, -0.6))
    axes.set_xlabel(f"{SHOWN} of the orders in which the streams may get on, drawn at random")
    axes.set_yticks(range(len(truth)), [f"chunk {name}" for name in truth], color=INK)
    axes.set_xticks([])
    axes.tick_params(axis="y", length=0)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
