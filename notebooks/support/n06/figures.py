"""Figures of notebook 06, data parallel: ring, cost of messages, captions unseen, overlap, memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from lib.show import style
from lib.show.charts import beside
from lib.show.explore import steps, switch, whole
from lib.show.lanes import draw_timeline
from lib.show.sheet import LEFT, WIDTH, Cell, draw_cell, inch_sheet, name_rank, write
from lib.show.style import INK, MUTED, PAPER, alt_text, describe, new_figure, styled, title
from lib.text import format_bytes, format_share, format_time, plural
from lib.timeline import Span, Trace
from support.n06.costs import WAYS, border
from support.n06.plans import plan as plan

# ---- How W ranks add up a gradient in a ring: a panel for each step, from left to right.

RING_CONTROLS = {"world_size": whole(2, 4, 3, "W · ranks")}


def ring(world_size: int) -> list[list[list[set[int]]]]:
    """Return held[step][rank][chunk]: whose parts are in it, before the first and after each of the 2 (W - 1) steps."""
    held = [[[{rank} for _ in range(world_size)] for rank in range(world_size)]]
    for step in range(2 * (world_size - 1)):
        now = [[set(parts) for parts in row] for row in held[-1]]
        adds = step < world_size - 1
        turn = step % (world_size - 1)
        for rank in range(world_size):
            chunk = (rank - turn - adds) % world_size
            sent = held[-1][rank][chunk]
            to = now[(rank + 1) % world_size]
            to[chunk] = to[chunk] | sent if adds else set(sent)
        held.append(now)
    return held


@styled
def draw_ring(*, world_size: int) -> Figure:
    """Draw what every rank holds of every chunk, before the first step and after each; framed: just received."""
    held = ring(world_size)
    gap = 0.16
    panels = len(held)
    wide = (WIDTH - LEFT - (panels - 1) * gap) / panels / world_size
    tall = 0.4
    height = 0.95 + 0.52 * world_size
    figure, axes = inch_sheet(height)
    for rank in range(world_size):
        name_rank(axes, 0.85 + 0.52 * rank, rank)
    for step, rows in enumerate(held):
        left = LEFT + step * (world_size * wide + gap)
        adds = step < world_size
        does = "adds" if adds else "copies"
        words = f"step {step}\n{does}" if step else "at first"
        write(axes, left + world_size * wide / 2, 0.2, words, size=10)
        for chunk in range(world_size):
            write(axes, left + (chunk + 0.5) * wide, 0.53, str(chunk), size=9, color=MUTED)
        for rank, chunks in enumerate(rows):
            for chunk, parts in enumerate(chunks):
                corner = (left + chunk * wide, 0.85 + 0.52 * rank - tall / 2)
                _draw_chunk(axes, corner, (0.92 * wide, tall), parts, world_size)
                if step and parts != held[step - 1][rank][chunk]:
                    look: dict[str, Any] = {"fill": False, "edgecolor": INK, "linewidth": 2.2, "zorder": 4}
                    axes.add_patch(Rectangle(corner, 0.92 * wide, tall, **look))
    sent = 2 * (world_size - 1) / world_size
    title(
        axes,
        f"Sums are complete after {plural(world_size - 1, 'step')}, everywhere after {2 * (world_size - 1)}; "
        f"each rank sent {sent:.2f} gradients",
    )
    told = [
        f"after step {step}: "
        + "; ".join(
            f"rank {rank} " + ", ".join("+".join(map(str, sorted(parts))) for parts in row)
            for rank, row in enumerate(now)
        )
        for step, now in enumerate(held)
    ]
    words = f"Ring all-reduce of {world_size} ranks, chunk by chunk, whose parts are in it, {'. '.join(told)}"
    return describe(figure, f"{words}. {sent:.2f} gradients sent by each rank.")


def _draw_chunk(
    axes: Axes, corner: tuple[float, float], size: tuple[float, float], parts: set[int], world_size: int
) -> None:
    """Draw a stripe for each rank whose part may be in a chunk, full if it is."""
    stripe = size[0] / world_size
    for part in range(world_size):
        x = corner[0] + part * stripe
        color = style.rank_color(part) if part in parts else PAPER
        axes.add_patch(
            Rectangle((x, corner[1]), stripe, size[1], facecolor=color, edgecolor=style.GREY, linewidth=0.5)
        )
        if part in parts and stripe > 0.12:
            write(axes, x + stripe / 2, corner[1] + size[1] / 2, str(part), size=9, color=style.ink_on(color))


# ---- What ways to add up a gradient cost: seconds over its size, and where the fastest changes.

COST_CONTROLS = {
    "world_size": steps((2, 4, 8, 16, 64, 256, 1024), 64, "W · ranks"),
    "latency": steps((0, 1, 3, 10, 30, 100), 10, "latency of a message, µs"),
    "bandwidth": steps((1, 5, 25, 100), 25, "bandwidth of a link, GB/s"),
    "shared": steps((1, 2, 4, 8), 1, "ranks that share a link to far ones"),
}
_WAY_COLORS = {
    "ring": style.BLUE,
    "tree": style.ORANGE,
    "halving and doubling": style.GREEN,
    "centre": style.GREY,
}


@styled
def draw_cost(*, world_size: int, latency: float, bandwidth: float, shared: int) -> Figure:
    """Draw the seconds of each way over the size of the gradient; marked: where the ring passes the tree."""
    sizes = [10 ** (exponent / 10) for exponent in range(30, 101)]
    seconds_a_message = latency * 1e-6
    bytes_a_second = bandwidth * 1e9
    figure, axes = new_figure(9, 3.6)
    ends = {}
    for name, way in WAYS.items():
        taken = [way(size, world_size, seconds_a_message, bytes_a_second, shared) for size in sizes]
        ends[name] = taken
        axes.plot(sizes, taken, color=_WAY_COLORS[name], linewidth=2.4, label=name)
    axes.set(xscale="log", yscale="log", ylabel="all-reduce, seconds")
    axes.set_xticks([1e3, 1e6, 1e9], ["1 KB", "1 MB", "1 GB"])
    given = world_size, seconds_a_message, bytes_a_second, shared
    passed = {name: border(*given, WAYS[name]) for name in ("tree", "halving and doubling")}
    if sizes[0] < passed["tree"] < sizes[-1]:
        axes.axvline(passed["tree"], color=MUTED, linestyle="--", linewidth=1.3)
    tree, halving = (_from(least) for least in passed.values())
    found = f"the ring is at least as fast as the tree {tree}, and as halving {halving}"
    axes.legend(loc="upper left")
    links = "" if shared == 1 else f", {shared} ranks on a far link"
    what = f"{plural(world_size, 'rank')}, {latency:g} µs, {bandwidth:g} GB/s{links}"
    axes.set_xlabel(f"size of the gradient ({what})")
    title(axes, found[0].upper() + found[1:])
    said = "; ".join(
        f"{name} {format_time(taken[0])} to {format_time(taken[-1])}" for name, taken in ends.items()
    )
    return describe(figure, f"{what}: {found}. From 1 KB to 10 GB: {said}.")


def _from(least: float) -> str:
    """Say from which size on."""
    if math.isinf(least):
        return "at no size"
    return f"from {format_bytes(least)} on" if least > 0 else "at every size"


# ---- CLIP's loss compares images with captions: which pairs a rank sees, with its own points only and with all.


@styled
def draw_negatives(batch: int = 8, world_size: int = 2) -> Figure:
    """Draw image × caption twice: compared on the ranks for themselves, and after all points were gathered."""
    own = batch // world_size
    side = 0.36
    figure, axes = inch_sheet(0.75 + batch * side)
    seen = []
    for panel, gathered in enumerate((False, True)):
        left = 0.95 + panel * (batch * side + 1.6)
        rank_of = [image // own for image in range(batch)]
        pairs = [(i, c) for i in range(batch) for c in range(batch) if gathered or rank_of[i] == rank_of[c]]
        seen.append(len(pairs))
        words = f"{'gathered' if gathered else 'on its own'}: {len(pairs)} of {batch**2} pairs"
        write(axes, left + batch * side / 2, 0.12, words, size=10.5, weight="bold")
        write(axes, left + batch * side / 2, 0.38, "captions", size=9.5, color=MUTED)
        for image in range(batch):
            y = 0.7 + image * side
            if image % own == 0:
                middle = y + (own - 1) * side / 2
                write(axes, left - 0.12, middle, f"rank {rank_of[image]}", size=10, ha="right")
            for caption in range(batch):
                cell = Cell("", rank_of[image], "faded")
                if image == caption:
                    cell = Cell(image, rank_of[image])
                elif (image, caption) not in pairs:
                    cell = Cell("", None, "dropped")
                draw_cell(axes, left + (caption + 0.5) * side, y, cell, size=0.86 * side, font=9)
    title(axes, f"On its own a rank tells an image from {own - 1} wrong captions, gathered from {batch - 1}")
    shown = f"Image × caption for {batch} rows on {world_size} ranks. Left, each rank on its own: {seen[0]}"
    return describe(figure, f"{shown} of {batch**2} pairs are compared. Right, points gathered: {seen[1]}.")


# ---- The all-reduce runs while backward still computes.

OVERLAP_CONTROLS = {
    "layers": whole(2, 12, 8, "layers"),
    "first": whole(1, 12, 2, "layers in the first bucket"),
    "per_bucket": whole(1, 12, 2, "layers in each other one"),
    "network": steps((0.2, 0.4, 0.6, 0.8, 1.0, 1.5, 2.0), 0.8, "all-reduce of one layer, ticks"),
    "latency": steps((0.0, 0.2, 0.5, 1.0), 0.5, "all-reduce, each call, ticks"),
    "afterwards": switch(False, "send only when backward has ended"),
}


def draw_overlap(
    *, layers: int, first: int, per_bucket: int, network: float, latency: float, afterwards: bool
) -> Figure:
    """Draw the predicted timeline of a step: what the bucket size, the network and waiting do to its end."""
    trace = plan(layers, (first, per_bucket), network, latency, afterwards)
    waited = trace.only(kind="step").start - layers
    reduces = trace.only(kind="transfer").spans
    calls = len(reduces)
    hidden = format_share(hidden_share(trace))
    figure = draw_timeline(
        predicted=trace,
        title=f"{plural(calls, 'bucket')}: {hidden} of the all-reduce hidden, the step waits {waited:.1f} ticks",
        unit="clock",
        bubbles=True,
    )
    # the sums may be equal where the buckets differ
    each = ", ".join(f"{span.duration:.1f}" for span in reduces)
    return describe(figure, f"{alt_text(figure)} Ticks of each all-reduce: {each}.")


def hidden_share(trace: Trace) -> float:
    """Return which share of the time in all-reduce the rank still computed gradients; 0 if there was no all-reduce."""
    end = max(span.end for span in trace.only(kind="backward"))
    reduces = trace.only(kind="transfer").spans
    total = sum(span.duration for span in reduces)
    inside = sum(max(0.0, min(span.end, end) - span.start) for span in reduces)
    return inside / total if total else 0.0


# ---- What a rank holds, whole or sharded.

HELD = {"weights": style.BLUE, "gradients": style.GREEN, "Adam's two moments": style.ORANGE}
SHARDED = {"DDP": (), "ZeRO-1": (2,), "ZeRO-2": (1, 2), "ZeRO-3, FSDP": (0, 1, 2)}
MEMORY_CONTROLS = {
    "billions": steps((0.1, 0.5, 1, 3, 7, 13, 70), 7, "billions of parameters"),
    "world_size": steps((1, 2, 4, 8, 64, 512), 8, "W · ranks"),
}


def held_bytes(way: str, parameters: float, world_size: int) -> list[float]:
    """Return the bytes of weights, gradients and Adam's moments that a rank holds, in float32."""
    whole = (4 * parameters, 4 * parameters, 8 * parameters)
    return [size / (world_size if part in SHARDED[way] else 1) for part, size in enumerate(whole)]


@styled
def draw_memory(*, billions: float, world_size: int) -> Figure:
    """Draw a bar for each way: what a rank holds, part by part."""
    figure, axes = new_figure(9, 3.0)
    sums = []
    for row, way in enumerate(SHARDED):
        left = 0.0
        sizes = held_bytes(way, billions * 1e9, world_size)
        for (name, color), size in zip(HELD.items(), sizes, strict=True):
            label = name if row == 0 else None
            axes.barh(row, size / 1e9, left=left, height=0.6, color=color, edgecolor=PAPER, label=label)
            left += size / 1e9
        sums.append(left)
        beside(axes, (left, row), _gigabytes(left), (5, 0))
    axes.set(
        ylim=(len(SHARDED) - 0.5, -0.5), xlim=(0, 1.12 * max(sums)), xlabel="GB held by each rank in float32"
    )
    axes.set_yticks(range(len(SHARDED)), list(SHARDED), color=INK)
    axes.legend(loc="upper left", bbox_to_anchor=(0.0, -0.22), ncols=3)  # below: bars may fill the axes
    name = f"{billions:g} billion parameters, {plural(world_size, 'rank')}"
    title(axes, f"{name}: {_gigabytes(sums[0])} each, or {_gigabytes(sums[-1])} shared out")
    said = "; ".join(f"{way} {_gigabytes(size)}" for way, size in zip(SHARDED, sums, strict=True))
    return describe(figure, f"Memory of a rank, {name}: {said}.")


def _gigabytes(size: float) -> str:
    return f"{size:,.0f} GB" if size >= 1000 else f"{size:.3g} GB"


# ---- What the link does while backward computes: measured.


def draw_two_steps(measured: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Draw measured steps of one rank: when each layer's backward ended, what was sent, how long it then waited.

    measured: by name of the way: "begin", "layers" as (number, when it ended), "sent" as (start, end), "end".
    """
    spans = []
    lanes = []
    for name, step in measured.items():
        begin = before = step["begin"]
        lanes += [f"{name}: layers", f"{name}: link"]
        for number, end in step["layers"]:
            spans.append(Span(lanes[-2], str(number), before - begin, end - begin, "backward"))
            before = end
        if before < step["end"]:
            spans.append(Span(lanes[-2], "wait", before - begin, step["end"] - begin, "wait"))
        spans += [
            Span(lanes[-1], f"bucket {k}", start - begin, end - begin, "transfer")
            for k, (start, end) in enumerate(step["sent"])
        ]
    lengths = [step["end"] - step["begin"] for step in measured.values()]
    (late, slow), (early, fast) = zip(measured, lengths, strict=True)
    found = f"{late.capitalize()}: {1e3 * slow:.0f} ms; {early}: {1e3 * fast:.0f} ms, {fast / slow:.2f} of it"
    figure = draw_timeline(Trace(spans, lanes), title=found, unit="ms", bubbles=True)
    shares = [text for text in figure.axes[0].texts if text.get_text().endswith(" busy")]
    works = [span for span in spans if span.kind != "wait"]
    told = []
    for lane, text, length in zip(lanes, shares, [slow, slow, fast, fast], strict=True):  # of its own step
        busy = format_share(sum(span.duration for span in works if span.lane == lane) / length)
        text.set_text(f"{busy} busy")
        told.append(f"{lane} {busy}")
    return describe(
        figure, f"{found}. Busy, each lane of its own step: {'; '.join(told)}. {len(spans)} spans."
    )
