"""Figures of notebook 06, data parallel: ring, cost of messages, overlap, memory, captions unseen, ranks that die."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from lib.show import style
from lib.show.charts import beside
from lib.show.explore import steps, switch, whole
from lib.show.lanes import draw_timeline
from lib.show.sheet import EDGE, LEFT, WIDTH, Cell, draw_cell, inch_sheet, name_rank, write
from lib.show.style import INK, MUTED, PAPER, RED, describe, new_figure, styled, title
from lib.text import format_bytes, format_share, format_time, plural
from lib.timeline import Span, Trace
from support.n06.costs import WAYS, border
from support.n06.plans import plan as plan
from support.n06.runs import DealCompared, against_first
from support.training import Step, surviving

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
    tree, halving = (_from(least, sizes[0]) for least in passed.values())
    found = f"the ring is as fast as the tree {tree}, as halving {halving}"
    axes.legend(loc="upper left")
    links = "" if shared == 1 else f", {shared} ranks on a far link"
    what = f"{plural(world_size, 'rank')}, {latency:g} µs, {bandwidth:g} GB/s{links}"
    axes.set_xlabel(f"size of the gradient ({what})")
    title(axes, found[0].upper() + found[1:])
    said = "; ".join(
        f"{name} {format_time(taken[0])} to {format_time(taken[-1])}" for name, taken in ends.items()
    )
    return describe(figure, f"{what}: {found}. From 1 KB to 10 GB: {said}.")


def _from(least: float, smallest: float) -> str:
    """Say from which size on; smallest: that is drawn."""
    if math.isinf(least):
        return "at no size"
    return f"from {format_bytes(least)} on" if least > smallest else "at every size"


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
    calls = len(trace.only(kind="transfer"))
    hidden = format_share(hidden_share(trace))
    return draw_timeline(
        predicted=trace,
        title=f"{plural(calls, 'bucket')}: {hidden} of the all-reduce hidden, backward() waits {waited:.1f} ticks",
        unit="clock",
        bubbles=True,
    )


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


# ---- An epoch whose ranks die.
#
# An attempt is what one set of ranks did from its start to its end. It begins at the step that was saved
# last, so what the attempt before it did from that step on is lost with the weights, and is done again.


@styled
def draw_attempts(done: Iterable[Step], killed: Mapping[int, tuple[int, int]]) -> Figure:
    """Draw rank × step of every attempt, a cell with its number of rows; hatched: lost, and done again.

    killed: attempt -> (rank, step) that ended it.
    """
    done = list(done)
    attempts = sorted({step.attempt for step in done})
    counts = Counter(row for step in surviving(done) for row in step.rows)
    pitch = min(0.42, (WIDTH - LEFT - 0.1) / (1 + max(step.step for step in done)))
    worlds = [max(step.world_size for step in done if step.attempt == number) for number in attempts]
    height = 0.35 + sum(world * pitch + 0.42 for world in worlds)
    y = 0.3
    lost = set()
    figure, axes = inch_sheet(height)
    write(axes, EDGE, 0.08, "step", size=9.5, color=MUTED, ha="left")
    for place in range(1 + max(step.step for step in done)):
        write(axes, LEFT + (place + 0.5) * pitch, 0.08, str(place), size=9, color=MUTED)
    for number, world in zip(attempts, worlds, strict=True):
        end = min((step.step for step in done if step.attempt > number), default=None)
        for rank in range(world):
            name_rank(axes, y + (rank + 0.5) * pitch, rank)
        for step in (step for step in done if step.attempt == number):
            again = end is not None and step.step >= end
            lost |= {(number, step.step)} if again else set()
            spot = LEFT + (step.step + 0.5) * pitch, y + (step.rank + 0.5) * pitch
            cell = Cell(len(step.rows), step.rank, "padding" if again else "plain")
            draw_cell(axes, *spot, cell, size=0.88 * pitch, font=9)
        if number in killed:
            rank, step_of_death = killed[number]
            x = LEFT + (step_of_death + 0.5) * pitch
            middle = y + (rank + 0.5) * pitch
            write(axes, x, middle, "×", size=20, color=RED, weight="bold")
            write(axes, x + 0.6 * pitch, middle, "killed", color=RED, weight="bold", ha="left")
        if end is not None:
            x = LEFT + end * pitch
            bottom = y + world * pitch
            axes.plot([x, x], [y, bottom + 0.4], color=INK, linestyle="--", linewidth=1.2)
            where = x + 0.06, bottom + 0.2
            write(axes, *where, "goes on from the state saved here", size=9.5, color=MUTED, ha="left")
        y += world * pitch + 0.42
    rows = f"{len(counts):,} rows counted, {sum(count > 1 for count in counts.values())} of them twice"
    found = f"{plural(len(lost), 'step')} done again; {rows}"
    title(axes, f"{' → '.join(map(str, worlds))} ranks: {found}")
    said = [
        f"attempt {number}: {plural(world, 'rank')}, {len({s.step for s in done if s.attempt == number})} steps"
        + (f", rank {killed[number][0]} killed in step {killed[number][1]}" if number in killed else "")
        for number, world in zip(attempts, worlds, strict=True)
    ]
    return describe(figure, f"{'; '.join(said)}. {found}.")


# ---- What a way to deal the rows costs in accuracy: pairs of equal seeds.

Results: TypeAlias = Mapping[str, Sequence[Mapping[str, float]]]
"""By name of the deal, the first one being what all others are compared with: a result for each seed."""


def points(share: float) -> str:
    """Return a difference of shares in percentage points, signed: +0.31, −0.05."""
    text = f"{100 * share:+.2f}".replace("-", "−")
    return "0.00" if text in ("+0.00", "−0.00") else text


def statement(row: DealCompared, seeds: int) -> str:
    """Say what one comparison allows to say, and no more."""
    interval = f"{points(row.difference)} points ({points(row.low)} … {points(row.high)})"
    if not row.settled:
        worst = f"{100 * max(0.0, -row.low):.2f}"
        return f"{row.name}: {interval}, {seeds} seeds show no difference; a loss above {worst} is ruled out"
    doubt = "" if row.sure else ", but doubtful"  # among so many comparisons, one such may come by chance
    return f"{row.name}: {interval}, {'better' if row.difference > 0 else 'worse'}{doubt}"


def statements(results: Results) -> list[str]:
    """Return a statement for each deal but the first."""
    return [statement(row, len(results[row.name])) for row in against_first(results)[1:]]


@styled
def draw_losses(results: Results, source: str) -> Figure:
    """Draw the mean paired difference to the first deal for each other one, with its 95 % interval, logarithmically.

    The axis is linear within a point, so that a small loss beside a large one can still be seen.
    """
    first, *others = against_first(results)
    others.sort(key=lambda row: -row.difference)
    figure, axes = new_figure(9, 1.6 + 0.42 * len(others))
    for place, row in enumerate(others):
        color = RED if row.difference < 0 else style.GREEN
        if not row.settled:
            color = style.GREY
        axes.plot([100 * row.low, 100 * row.high], [place, place], color=color, linewidth=5, alpha=0.6)
        axes.plot(100 * row.difference, place, "D", color=color, markeredgecolor=INK, markersize=7)
        words = f"{points(row.difference)}  ({points(row.low)} … {points(row.high)})"
        beside(
            axes, (1.0, place), words, xycoords=("axes fraction", "data"), color=INK if row.settled else MUTED
        )
    axes.axvline(0, color=MUTED, linestyle="--", linewidth=1.3)
    axes.set_xscale("symlog", linthresh=1)
    axes.set_xticks([-30, -10, -3, -1, 0, 1], ["−30", "−10", "−3", "−1", "0", "1"])
    axes.set(
        xlim=(-45, 1.3),
        ylim=(len(others) - 0.5, -0.5),
        xlabel=f"points of test accuracy against {first.name}, same seed (stretched near 0)",
    )
    axes.set_yticks(range(len(others)), [row.name for row in others], color=INK)
    style.source_note(figure, source, recorded=True)
    seeds = len(results[first.name])
    worse = [row for row in others if row.settled and row.difference < 0]
    sure = [points(row.difference)[1:] for row in worse if row.sure]
    span = f" {sure[0]} to {sure[-1]} points" if len(sure) > 1 else " accuracy"
    doubtful = "".join(f"; {points(row.difference)} is doubtful" for row in worse if not row.sure)
    title(axes, f"{len(sure)} of {len(others)} ways lose{span}{doubtful}")
    said = "; ".join(statement(row, seeds) for row in others)
    return describe(figure, f"Test accuracy against {first.name}, {first.mean:.2%}: {said}. {source}")


def draw_two_steps(measured: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Draw measured steps of one rank: when each layer's backward ended, what was sent meanwhile, and the end.

    measured: by name of the way: "begin", "layers" as (number, when it ended), "sent" as (start, end), "end".
    """
    spans = []
    lanes = []
    for name, step in measured.items():
        begin = before = step["begin"]
        lanes += [f"{name}: computes", f"{name}: link"]
        for number, end in step["layers"]:
            spans.append(Span(lanes[-2], f"layer {number}", before - begin, end - begin, "backward"))
            before = end
        spans += [
            Span(lanes[-1], f"bucket {k}", start - begin, end - begin, "transfer")
            for k, (start, end) in enumerate(step["sent"])
        ]
    lengths = [step["end"] - step["begin"] for step in measured.values()]
    (late, slow), (early, fast) = zip(measured, lengths, strict=True)
    found = f"{late.capitalize()}: {1e3 * slow:.0f} ms; {early}: {1e3 * fast:.0f} ms, {fast / slow:.2f} of it"
    figure = draw_timeline(Trace(spans, lanes), title=found, unit="ms", bubbles=True)
    shares = [text for text in figure.axes[0].texts if text.get_text().endswith(" busy")]
    told = []
    for lane, text, length in zip(lanes, shares, [slow, slow, fast, fast], strict=True):  # of its own step
        busy = format_share(sum(span.duration for span in spans if span.lane == lane) / length)
        text.set_text(f"{busy} busy")
        told.append(f"{lane} {busy}")
    return describe(
        figure, f"{found}. Busy, each lane of its own step: {'; '.join(told)}. {len(spans)} spans."
    )
