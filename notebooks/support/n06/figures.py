"""Figures of notebook 06, data parallel: the ring, means over ranks, overlap, ranks that die."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from lib._values import format_share, integer, plural
from lib.data.samplers import DistributedSampler
from lib.show.explore import choice, steps, switch, whole
from lib.show.sheet import EDGE, LEFT, WIDTH, Cell, arrow, cell_axes, draw_cell, inch_sheet, name_rank, note
from lib.show.style import (
    BLUE,
    GREY,
    HATCH,
    INK,
    MUTED,
    ORANGE,
    PAPER,
    RED,
    describe,
    headline,
    ink_on,
    new_figure,
    pale,
    rank_color,
    styled,
    title,
)
from lib.show.timeline import draw_timeline
from lib.timeline import Span, Trace
from support.n06.runs import Comparison, against_first
from support.training import Step, surviving

# ---- How W ranks add up a gradient without a centre, by the ring all-reduce.
#
# The gradient is cut into W chunks. In every step each rank sends one chunk to its right neighbour. In the
# first W - 1 steps the neighbour adds it to its own (reduce-scatter), in the other W - 1 it takes it over
# (all-gather).

Held: TypeAlias = list[list[Counter[int]]]
"""held[rank][chunk]: how often each rank's part is in it."""

Choice: TypeAlias = Callable[[int, int, int], int]
"""(rank, step, world_size) -> the chunk that the rank sends in this step."""


def chunk_to_send(rank: int, step: int, world_size: int) -> int:
    """Return the chunk that a rank sends: first its own number, then always the one that it has just received."""
    return (rank - step) % world_size


def ring(world_size: int, steps: int | None = None, choose: Choice = chunk_to_send) -> Held:
    """Return what every rank holds after so many steps (None: all 2 (W - 1)). Raises ValueError for no such chunk."""
    world_size = integer("world_size", world_size, at_least=1)
    every = 2 * (world_size - 1)
    held = [[Counter({rank: 1}) for _ in range(world_size)] for rank in range(world_size)]
    for step in range(every if steps is None else min(steps, every)):
        sent = [
            integer("chunk", choose(r, step, world_size), at_least=0, below=world_size)
            for r in range(world_size)
        ]
        copies = [held[rank][chunk].copy() for rank, chunk in enumerate(sent)]  # all send at the same time
        for rank, (chunk, copy) in enumerate(zip(sent, copies, strict=True)):
            to = held[(rank + 1) % world_size]
            to[chunk] = to[chunk] + copy if step < world_size - 1 else copy
    return held


RING_CONTROLS = {"world_size": whole(2, 6, 4, "W · ranks"), "step": whole(0, 10, 3, "steps done")}


@styled
def draw_ring(*, world_size: int, step: int) -> Figure:
    """Draw what every rank holds after `step` steps, or at the end, and the chunk that it sends next."""
    every = 2 * (world_size - 1)
    step = min(step, every)
    held = ring(world_size, step)
    pitch, wide, tall = 0.62, 0.95, 0.46
    height = world_size * pitch + 0.75
    figure, axes = inch_sheet(height)
    complete = 0
    for rank in range(world_size):
        y = 0.55 + rank * pitch
        name_rank(axes, y, rank)
        for chunk in range(world_size):
            left, parts = LEFT + chunk * (wide + 0.12), held[rank][chunk]
            whole_sum = len(parts) == world_size
            complete += whole_sum
            # a stripe for each rank whose part may be in this chunk, full if it is
            for part in range(world_size):
                spot = (left + part * wide / world_size, y - tall / 2)
                inside, color = part in parts, rank_color(part)
                face = color if inside else PAPER
                axes.add_patch(
                    Rectangle(spot, wide / world_size, tall, facecolor=face, edgecolor=GREY, linewidth=0.5)
                )
                if inside:
                    x = spot[0] + wide / world_size / 2
                    ink = ink_on(color)
                    axes.text(x, y, str(part), ha="center", va="center", fontsize=9.5, color=ink)
            axes.add_patch(
                Rectangle(
                    (left, y - tall / 2),
                    wide,
                    tall,
                    facecolor="none",
                    edgecolor=INK,
                    linewidth=2.6 if whole_sum else 0.8,
                )
            )
            # what it sends next goes to the row below; the last rank's goes to rank 0
            if step < every and chunk == chunk_to_send(rank, step, world_size):
                last = rank == world_size - 1
                start = left + wide / 2
                if not last:
                    tip = (start, y + pitch - tall / 2 - 0.02)
                    arrow(axes, (start, y + tall / 2 + 0.01), tip, width=1.0, head=11, gap=2, zorder=6)
                else:
                    axes.text(start, y + tall / 2 + 0.13, "↻ to rank 0", ha="center", va="center", fontsize=9)
    for chunk in range(world_size):
        x = LEFT + chunk * (wide + 0.12) + wide / 2
        axes.text(x, 0.14, f"chunk {chunk}", ha="center", va="center", fontsize=9.5, color=INK)
    right = LEFT + world_size * (wide + 0.12) + 0.15
    phase = (
        "done"
        if step == every
        else "reduce-scatter:\nthe neighbour adds"
        if step < world_size - 1
        else "all-gather:\nthe neighbour copies"
    )
    if right + 1.4 <= 9:
        note(axes, right, 0.55, phase)
        note(
            axes,
            right,
            1.25,
            f"sent by a rank:\n{step} of {world_size} chunks,\n{step / world_size:.2f} × the gradient",
        )
    axes.set(xlim=(EDGE, 9.0), ylim=(height, 0))
    sent = f"{step / world_size:.2f} gradients sent by each rank"
    title(axes, f"After {step} of {every} steps, {complete} of {world_size**2} chunks are complete; {sent}")
    rows = "; ".join(
        f"rank {rank} holds " + ", ".join("+".join(map(str, sorted(parts))) for parts in row)
        for rank, row in enumerate(held)
    )
    return describe(
        figure,
        f"Ring all-reduce of {world_size} ranks after {step} of {every} steps: {rows}. "
        f"{complete} of {world_size**2} chunks complete, {sent}.",
    )


# ---- What the mean over ranks does to single samples.

HOW = ("mean of the ranks' means", "weighted by count", "sum of the ranks' means")


def share_weights(counts: Sequence[int], how: str = HOW[0]) -> list[float]:
    """Return what one sample of each rank weighs in the step's gradient; 1 / sum(counts) would be fair.

    counts: samples of each rank, 1 or more. how: one of HOW. Raises ValueError for another.
    """
    if how not in HOW:
        raise ValueError(f"how must be one of {', '.join(HOW)}, not {how!r}")
    if how == HOW[1]:
        return [1 / sum(counts)] * len(counts)
    return [1 / (count * (len(counts) if how == HOW[0] else 1)) for count in counts]


WEIGHTS_CONTROLS = {
    "rank_0": whole(1, 6, 3, "samples of rank 0"),
    "rank_1": whole(1, 6, 3, "samples of rank 1"),
    "rank_2": whole(1, 6, 1, "samples of rank 2"),
    "how": choice(HOW, HOW[0], "combined by"),
}


@styled
def draw_weights(*, rank_0: int, rank_1: int, rank_2: int, how: str) -> Figure:
    """Draw each sample of a step under a bar: its weight in the gradient, as a multiple of the fair one."""
    counts = (rank_0, rank_1, rank_2)
    total = sum(counts)
    times = [weight * total for weight in share_weights(counts, how)]
    highest = max(2.0, *times)
    figure, axes = new_figure(9, 3.6)
    x, middles, widest = 0.0, [], 6.0
    for rank, count in enumerate(counts):
        left = x
        for _ in range(count):
            bar = Rectangle(
                (x + 0.08, 0), 0.84, times[rank], facecolor=rank_color(rank), edgecolor=INK, lw=0.8
            )
            axes.add_patch(bar)
            x += 1
        middle = (left + x) / 2
        middles.append(middle)
        top = 1.0 if 0.7 < times[rank] < 1 else times[rank]  # clear of the dashed line
        label = f"× {times[rank]:.2f}"
        axes.text(middle, top + 0.03 * highest, label, ha="center", va="bottom", fontsize=10)
        x += 0.6
    axes.plot([-0.2, x - 0.4], [1, 1], color=INK, linestyle="--", linewidth=1.4)
    axes.text(x - 0.3, 1, "fair", va="center", fontsize=10, color=INK)
    axes.set(
        xlim=(-0.3, max(x + 0.5, widest)), ylim=(0, 1.18 * highest), ylabel="weight of a sample\n(fair = 1)"
    )
    axes.set_xticks(middles, [f"rank {rank}\n{plural(count, 'sample')}" for rank, count in enumerate(counts)])
    axes.tick_params(axis="x", length=0, labelcolor=INK)
    share = " + ".join(map(str, counts))
    title(axes, f"Shares {share}: {_finding(counts, times, how)}")
    said = ", ".join(f"rank {rank} {value:.2f}" for rank, value in enumerate(times))
    return describe(
        figure, f"{total} samples on 3 ranks, {share}; {how}. Weight of one sample, fair = 1: {said}."
    )


def _finding(counts: Sequence[int], times: Sequence[float], how: str) -> str:
    low, high = min(times), max(times)
    if high - low > 1e-9:
        most, least = times.index(high), times.index(low)
        return f"a sample of rank {most} weighs {high / low:.1f} × one of rank {least}"
    if abs(high - 1) < 1e-9:
        return "every sample weighs the same, the gradient is that of the whole batch"
    return f"every sample weighs {high:.0f} ×, as if the learning rate were {high:.0f} times as large"


NEGATIVES_CONTROLS = {
    "batch": steps((4, 8, 12, 16), 12, "samples of all ranks"),
    "world_size": steps((1, 2, 4), 4, "W · ranks"),
    "gathered": switch(False, "gather the embeddings of all ranks first"),
}


@styled
def draw_negatives(*, batch: int, world_size: int, gathered: bool) -> Figure:
    """Draw image × caption of one step: the pair that belongs together, the wrong ones a rank compares, the unseen."""
    own = batch // world_size
    seen = batch if gathered else own
    side = 4.0
    figure, axes = new_figure(9, side + 0.75)
    cell_axes(axes, columns=batch * 2.05, rows=batch, left=batch * 0.13, top=batch * 0.07)
    for image in range(batch):
        rank = image // own
        for caption in range(batch):
            if image == caption:
                draw_cell(axes, caption, image, Cell(image if batch <= 12 else "", rank), font=9)
            elif gathered or caption // own == rank:
                draw_cell(axes, caption, image, Cell("", rank, "faded", rank_color(rank)))
            else:
                axes.add_patch(
                    Rectangle(
                        (caption - 0.44, image - 0.44),
                        0.88,
                        0.88,
                        facecolor=PAPER,
                        edgecolor=GREY,
                        hatch=HATCH["bubble"],
                        linewidth=0.5,
                    )
                )
    for rank in range(world_size):
        y = rank * own + (own - 1) / 2
        axes.text(-0.75, y, f"rank {rank}", ha="right", va="center", fontsize=10, color=INK)
    unit, left = batch / 12, batch + 0.9 * batch / 12
    axes.text((batch - 1) / 2, -0.5 - 0.45 * unit, "captions", ha="center", fontsize=10, color=MUTED)
    legend = (
        (Cell("", 0), "an image and its own caption"),
        (Cell("", 0, "faded", rank_color(0)), "a wrong caption that it is\npushed away from"),
        (None, "a wrong caption that its rank\nnever sees"),
    )
    # the legend is in cells of the same size whatever the batch: a twelfth of the side
    for line, (cell, meaning) in enumerate(legend):
        y = unit * (1.2 + 1.9 * line)
        corner = (left - 0.44 * unit, y - 0.44 * unit)
        if cell is None:
            axes.add_patch(
                Rectangle(
                    corner, 0.88 * unit, 0.88 * unit, facecolor=PAPER, edgecolor=GREY, hatch="....", lw=0.5
                )
            )
        else:
            face = rank_color(0) if cell.mark == "plain" else pale(rank_color(0))
            axes.add_patch(
                Rectangle(corner, 0.88 * unit, 0.88 * unit, facecolor=face, edgecolor=rank_color(0), lw=1.2)
            )
        axes.text(left + 0.9 * unit, y, meaning, va="center", fontsize=10, color=MUTED)
    axes.text(
        left - 0.4 * unit,
        unit * 8.2,
        f"{'one loss over' if gathered or world_size == 1 else f'{world_size} losses over'} "
        f"{seen} × {seen} pairs{'' if gathered or world_size == 1 else ' each'}\n"
        f"{batch * seen} of {batch * batch} comparisons",
        va="center",
        fontsize=11,
        linespacing=1.5,
    )
    title(
        axes,
        f"{plural(world_size, 'rank')} × {own} samples: an image is told from "
        f"{seen - 1} of {batch - 1} wrong captions",
    )
    return describe(
        figure,
        f"Image × caption for {batch} samples on {world_size} ranks, embeddings "
        f"{'gathered' if gathered else 'not gathered'}: {batch * seen} of {batch * batch} pairs are compared, "
        f"{seen - 1} wrong captions an image.",
    )


# ---- The all-reduce runs while backward still computes.

LANES = ("computes", "network")

OVERLAP_CONTROLS = {
    "layers": whole(2, 12, 8, "layers"),
    "per_bucket": whole(1, 12, 2, "layers in a bucket"),
    "network": steps((0.2, 0.4, 0.6, 0.8, 1.0, 1.5, 2.0), 0.8, "all-reduce of one layer, ticks"),
    "latency": steps((0.0, 0.2, 0.5, 1.0), 0.2, "all-reduce, each call, ticks"),
    "afterwards": switch(False, "wait until backward has ended"),
}


def plan(layers: int, per_bucket: int, network: float, latency: float, afterwards: bool = False) -> Trace:
    """Return the spans of one rank's step: a layer's backward takes one tick, the network does one bucket at a time.

    network: ticks to all-reduce one layer's gradient. latency: ticks that every call costs besides.
    """
    spans = [
        Span(LANES[0], f"layer {layer}", tick, tick + 1, "backward")
        for tick, layer in enumerate(reversed(range(layers)))
    ]
    free = 0.0
    for number, first in enumerate(range(0, layers, per_bucket)):
        size = min(per_bucket, layers - first)
        start = max(free, float(layers if afterwards else first + size))
        free = start + latency + size * network
        spans.append(Span(LANES[1], f"bucket {number}", start, free, "transfer"))
    return Trace([*spans, Span(LANES[0], "step", free, free + 0.5, "step")], LANES)


def draw_overlap(*, layers: int, per_bucket: int, network: float, latency: float, afterwards: bool) -> Figure:
    """Draw the predicted timeline of a step: what the bucket size, the network and waiting do to its end."""
    trace = plan(layers, per_bucket, network, latency, afterwards)
    late = trace.only(kind="step").start - layers
    calls = len(trace.only(kind="transfer"))
    return draw_timeline(
        predicted=trace,
        title=f"{plural(calls, 'bucket')}: {format_share(hidden_share(trace))} of the all-reduce is hidden, "
        f"step() waits {late:.1f} ticks",
        unit="clock",
    )


def hidden_share(trace: Trace) -> float:
    """Return which share of the time in all-reduce its rank was still in backward; 0 if there was no all-reduce.

    trace: of one rank. All-reduces that run side by side count each for itself.
    """
    end = max(span.end for span in trace.only(kind="backward"))
    reduces = trace.only(kind="transfer").spans
    total = sum(span.duration for span in reduces)
    inside = sum(max(0.0, min(span.end, end) - span.start) for span in reduces)
    return inside / total if total else 0.0


def of_rank(trace: Trace, rank: int) -> Trace:
    """Return one rank's lanes of a measured trace: what it computes, then its buckets. Raises ValueError if none."""
    mine = sorted(
        (lane for lane in trace.lanes if lane.startswith(f"rank {rank} ")), key=lambda lane: (len(lane), lane)
    )
    lanes = [lane for lane in mine if lane.endswith(LANES[0])] + [lane for lane in mine if "bucket" in lane]
    if not lanes:
        raise ValueError(f"no rank {rank} in this trace; its lanes are {', '.join(trace.lanes) or 'none'}")
    return Trace(trace.only(lane=lanes).spans, lanes)


def order_holds(trace: Trace, ranks: Sequence[int]) -> dict[str, bool]:
    """Say which statements about the order hold in every rank of a measured trace."""
    begun = most = before = True
    for rank in ranks:
        own = of_rank(trace, rank)
        end = max(span.end for span in own.only(kind="backward"))
        reduces, (step,) = own.only(kind="transfer").spans, own.only(kind="step")
        begun &= reduces[0].start < end
        most &= sum(span.start < end for span in reduces) >= len(reduces) - 1 > 0
        before &= max(span.end for span in reduces) <= step.start
    return {
        "the first all-reduce begins before backward has ended": begun,
        "all but the last begin before backward has ended": most,
        "all have ended when step() begins": before,
    }


def draw_buckets(trace: Trace, rank: int = 0) -> Figure:
    """Draw a measured step of one rank: lanes "rank r computes" and "rank r bucket 0", "rank r bucket 1" …"""
    own = of_rank(trace, rank).from_zero()
    calls = len(own.only(kind="transfer"))
    (step,) = own.only(kind="step")
    rest = sum(span.end > step.start for span in own.only(kind="transfer"))
    return draw_timeline(
        own,
        title=f"{calls} buckets: {format_share(hidden_share(own))} of the all-reduce time lies in backward, "
        f"{rest or 'none'} in step()",
        unit="ms",
    )


# ---- An epoch whose ranks die, and what of it counts in the end.
#
# An attempt is what one set of ranks did from its start to its end. It begins at the step that was saved
# last, so what the attempt before it did from that step on is lost with the weights, and is done again.


def simulate(
    size: int, batch: int, before: int, after: int, kill_at: int, save_every: int, sampler_saved: bool = True
) -> list[Step]:
    """Deal an epoch to `before` ranks, end them in step `kill_at`, and go on with `after` ranks from the saved state.

    batch: samples of all ranks together in a step. sampler_saved: otherwise only weights and step number were saved,
    and the second attempt deals the epoch from its beginning.
    """

    def attempt(number: int, world_size: int, consumed: int, first: int, end: int) -> list[Step]:
        done = []
        for rank in range(world_size):
            sampler = DistributedSampler(range(size), world_size, rank)
            sampler.load_state_dict(sampler.state_dict(consumed=consumed))
            rows, own = tuple(sampler), batch // world_size
            for turn in range(min(end - first, -(-len(rows) // own))):
                part = rows[turn * own : (turn + 1) * own]
                done.append(Step(number, world_size, rank, 0, 0, first + turn, part, 0.0, 0.0, 0.0))
        return done

    saved = kill_at // save_every * save_every
    consumed = saved * batch if sampler_saved else 0
    return attempt(0, before, 0, 0, kill_at) + attempt(1, after, consumed, saved, 1 << 30)


@styled
def draw_attempts(
    done: Iterable[Step], size: int, killed: Mapping[int, tuple[int, int]] | None = None
) -> Figure:
    """Draw rank × step of every attempt (hatched: lost), and the `size` rows of the data with who counted them.

    A cell of the upper part holds how many rows; one of the lower part, up to 120 rows, the step that counted it.
    killed: attempt -> (rank, step) that ended it. Steps that a rank did not finish with the others changed nothing.
    """
    done, killed = _whole_steps(done), dict(killed or {})
    counted = surviving(done)
    times = Counter(row for step in counted for row in step.rows)
    attempts = sorted({step.attempt for step in done} | killed.keys())
    last = max((*(step.step for step in done), *(step for _, step in killed.values()), 0))
    # few rows: cells with the step; many: only squares with the colour of the rank
    small = size <= 120
    per_line = 24 if small else 96
    side = (WIDTH - LEFT - 0.1) / per_line
    pitch = min(0.42, (WIDTH - LEFT - 0.1) / (last + 1))
    worlds = [max(_world(done, number), killed.get(number, (0, 0))[0] + 1) for number in attempts]
    height = 0.84 + sum(world * pitch + 0.42 for world in worlds) + -(-size // per_line) * side
    figure, axes = inch_sheet(height)
    for step in range(last + 1):
        x = LEFT + (step + 0.5) * pitch
        axes.text(x, 0.08, str(step), ha="center", va="center", fontsize=9, color=MUTED)
    axes.text(EDGE, 0.08, "step", va="center", fontsize=9.5, color=MUTED)
    y = 0.3
    for number, world in zip(attempts, worlds, strict=True):
        own = [step for step in done if step.attempt == number]
        # what a later attempt does again is lost from this one
        later = [step.step for step in done if step.attempt > number]
        _draw_attempt(axes, own, world, min(later, default=None), killed.get(number), (y, pitch))
        y += world * pitch + 0.42
    again, missed = sum(count > 1 for count in times.values()), size - len(times)
    what = "the step that counted it" if small else "the rank that counted it"
    red = (" (red, hatched: twice)" if small else " (red: twice)") if again else ""
    heading = f"The {size:,} rows of the file, in order: {what}{red}"
    axes.text(EDGE, y + 0.02, heading, va="center", fontsize=10, color=INK)
    _draw_rows(axes, counted, times, size, (y + 0.3 + side / 2, side, per_line), small)
    axes.set(xlim=(EDGE, WIDTH), ylim=(height, 0))
    # steps, not cells: those of which no rank's rows count
    lost = len({(step.attempt, step.step) for step in done} - {(step.attempt, step.step) for step in counted})
    redone = f"{plural(lost, 'step')} done again"
    rows = f"all {size:,} rows counted" if not missed else f"{missed:,} of {size:,} rows never counted"
    if again:
        rows += f", {again:,} of them twice"
    elif not missed:
        rows += " once"
    path = " → ".join(map(str, worlds))
    title(axes, f"{path} {'rank' if path == '1' else 'ranks'}: {redone}, {rows}")
    said = [
        f"attempt {number}: {world} ranks, {len({s.step for s in done if s.attempt == number})} steps"
        + (f", rank {killed[number][0]} killed in step {killed[number][1]}" if number in killed else "")
        for number, world in zip(attempts, worlds, strict=True)
    ]
    return describe(figure, f"{'; '.join(said)}. {redone}; {rows}.")


def _world(done: Sequence[Step], attempt: int) -> int:
    return max((step.world_size for step in done if step.attempt == attempt), default=1)


def _whole_steps(done: Iterable[Step]) -> list[Step]:
    done = list(done)
    ranks = Counter((step.attempt, step.step) for step in done)
    return [step for step in done if ranks[step.attempt, step.step] == step.world_size]


def _draw_attempt(
    axes: Axes,
    own: Sequence[Step],
    world_size: int,
    saved: int | None,
    killed: tuple[int, int] | None,
    place: tuple[float, float],
) -> None:
    """Draw one attempt; `saved`: the step from which a later one goes on, and from which this one is lost."""
    y, pitch = place
    for rank in range(world_size):
        name_rank(axes, y + (rank + 0.5) * pitch, rank)
    for step in own:
        spot = LEFT + (step.step + 0.5) * pitch, y + (step.rank + 0.5) * pitch
        lost = saved is not None and step.step >= saved
        cell = Cell(len(step.rows), step.rank, "padding" if lost else "plain")
        draw_cell(axes, *spot, cell, size=0.88 * pitch, font=9)
    if killed:
        x, middle, arm = LEFT + (killed[1] + 0.5) * pitch, y + (killed[0] + 0.5) * pitch, 0.3 * pitch
        for sign in (1, -1):
            axes.plot(
                [x - arm, x + arm], [middle - sign * arm, middle + sign * arm], color=RED, lw=3, zorder=5
            )
        axes.text(x + 0.6 * pitch, middle, "killed", color=RED, va="center", fontsize=10, fontweight="bold")
    if saved is not None:
        x, bottom = LEFT + saved * pitch, y + world_size * pitch
        axes.plot([x, x], [y, bottom + 0.4], color=INK, linestyle="--", linewidth=1.2)
        text = "goes on from the state saved here"
        axes.text(x + 0.06, bottom + 0.2, text, va="center", fontsize=9.5, color=MUTED)


def _draw_rows(
    axes: Axes,
    counted: Sequence[Step],
    times: Mapping[int, int],
    size: int,
    place: tuple[float, float, int],
    small: bool,
) -> None:
    y, side, per_line = place
    who = {row: (step.rank, step.step) for step in counted for row in step.rows}
    squares, colors = [], []
    for row in range(size):
        x = LEFT + (row % per_line + 0.5) * side
        middle = y + row // per_line * side
        rank, step = who.get(row, (None, None))
        twice = times.get(row, 0) > 1
        if small:
            cell = (
                Cell("", None, "dropped")
                if step is None
                else Cell(step, rank, "padding" if twice else "plain")
            )
            cell = Cell(cell.index, cell.rank, cell.mark, RED if twice else None)
            draw_cell(axes, x, middle, cell, size=0.88 * side, font=9)
        else:
            squares.append(Rectangle((x - side / 2, middle - side / 2), 0.84 * side, 0.84 * side))
            colors.append(RED if twice else INK if rank is None else rank_color(rank))
    if squares:
        axes.add_collection(PatchCollection(squares, facecolors=colors, edgecolors="none"))
    for first in range(0, size, per_line if small else 4 * per_line):
        middle = y + first // per_line * side
        axes.text(LEFT - 0.1, middle, f"row {first:,}", ha="right", va="center", fontsize=9, color=MUTED)


CALENDAR_CONTROLS = {
    "before": steps((1, 2, 3, 4), 2, "W before"),
    "after": steps((1, 2, 3, 4), 3, "W after"),
    "kill_at": whole(0, 7, 5, "killed in step"),
    "save_every": whole(1, 4, 3, "saved every … steps"),
    "sampler_saved": switch(True, "the sampler's state is saved too"),
}


def draw_calendar(*, before: int, after: int, kill_at: int, save_every: int, sampler_saved: bool) -> Figure:
    """Draw a simulated epoch of 96 rows, 12 a step, in which the last rank is killed."""
    done = simulate(96, 12, before, after, kill_at, save_every, sampler_saved)
    return draw_attempts(done, 96, {0: (before - 1, kill_at)})


# ---- Test accuracy by the way that rows are dealt, in pairs of equal seeds, and what that says.

Results: TypeAlias = Mapping[str, Sequence[Mapping[str, float]]]
"""By name of the deal, the first one being what all others are compared with: a result for each seed."""


def points(share: float) -> str:
    """Return a difference of shares in percentage points, signed: +0.31, −0.05."""
    text = f"{100 * share:+.2f}".replace("-", "−")
    return "0.00" if text in ("+0.00", "−0.00") else text


def statement(row: Comparison, seeds: int) -> str:
    """Say what one comparison allows to say, and no more."""
    interval = f"{points(row.difference)} points ({points(row.low)} … {points(row.high)})"
    if not row.settled:
        worst = f"{100 * max(0.0, -row.low):.2f}"
        return f"{row.name}: {interval}, {seeds} seeds show no difference; a loss above {worst} is ruled out"
    kind = "better" if row.difference > 0 else "worse"
    sure = min(abs(row.low), abs(row.high))
    return f"{row.name}: {interval}, {kind} by {100 * sure:.2f} or more"


def statements(results: Results) -> list[str]:
    """Return a statement for each deal but the first."""
    seeds = len(next(iter(results.values())))
    return [statement(row, seeds) for row in against_first(results)[1:]]


def finding(results: Results) -> str:
    """Return the title: what differs from the first deal, and by how much at most."""
    first, *others = against_first(results)
    seeds = len(next(iter(results.values())))
    apart = [row for row in others if row.settled]
    if not apart:
        return f"{seeds} seeds: no difference to {first.name} is shown"
    far = max(apart, key=lambda row: abs(row.difference))
    how = "loses" if far.difference < 0 else "gains"
    return f"{seeds} seeds: {far.name}, {how} {100 * abs(far.difference):.2f} points"


@styled
def draw_accuracy(results: Results, *, source: str = "") -> Figure:
    """Draw a row for each deal: accuracy of every seed, and beside it the paired differences to the first deal.

    A diamond is the mean, a bar the 95 % interval of the mean difference. source: where it was measured, if not here.
    """
    table = against_first(results)
    seeds = len(next(iter(results.values())))
    first = np.array([row["accuracy"] for row in next(iter(results.values()))])
    figure, (left, right) = new_figure(
        9, 1.5 + 0.5 * len(table) + 0.25 * bool(source), cols=2, sharey=True, width_ratios=(1, 1.25)
    )
    for place, row in enumerate(table):
        values = np.array([result["accuracy"] for result in results[row.name]])
        rank = row.name.startswith("rank, E")
        color, marker = (GREY, "s") if not place else (BLUE, "o") if rank else (ORANGE, "^")
        # each seed at a height of its own, so that equal accuracies don't hide each other
        jitter = place + 0.24 * np.linspace(-1, 1, len(values))
        dots = dict(color=color, marker=marker, alpha=0.55, linewidths=0, zorder=2)
        left.scatter(100 * values, jitter, s=16, **dots)
        left.plot(100 * row.mean, place, "D", color=INK, markersize=6, zorder=4)
        if not place:
            continue
        right.scatter(100 * (values - first), jitter, s=16, **dots)
        right.plot([100 * row.low, 100 * row.high], [place, place], color=INK, linewidth=3, zorder=3)
        right.plot(100 * row.difference, place, "D", color=INK, markersize=6, zorder=4)
        at, where = (1.01, place), right.get_yaxis_transform()
        text = f"{points(row.difference)}\n({points(row.low)} … {points(row.high)})"
        right.text(*at, text, transform=where, va="center", fontsize=9, color=INK if row.settled else MUTED)
    right.axvline(0, color=MUTED, linestyle="--", linewidth=1.3, zorder=1)
    left.set_yticks(range(len(table)), [row.name for row in table], color=INK)
    left.set_ylim(len(table) - 0.5, -0.6)
    for axes in (left, right):
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
    left.set_xlabel("test accuracy, %")
    right.set_xlabel(f"difference to {table[0].name}, same seed, points" + (f"\n{source}" if source else ""))
    headline(figure, finding(results))
    said = "; ".join(
        f"{row.name} {100 * row.mean:.2f} %, {points(row.difference)} ({points(row.low)} to {points(row.high)})"
        for row in table
    )
    return describe(
        figure, f"Test accuracy of {seeds} seeds, mean, difference and 95 % interval: {said}. {source}"
    )


# ---- The loss of one training run on one rank and on several, over the same global batches.


@styled
def draw_curves(losses: Mapping[str, Sequence[float]]) -> Figure:
    """Draw two loss curves over each other, and below how far apart they are in each step.

    losses: two names, each with its loss per step, of equal length. Raises ValueError otherwise.
    """
    if len(losses) != 2 or len({len(values) for values in losses.values()}) != 1:
        raise ValueError(f"two curves of one length, not { ({name: len(v) for name, v in losses.items()}) }")
    (one, first), (other, second) = ((name, np.array(values)) for name, values in losses.items())
    figure, (upper, lower) = new_figure(9, 4.6, rows=2, sharex=True, height_ratios=(2.2, 1))
    steps = np.arange(len(first))
    upper.plot(steps, first, color=ORANGE, linewidth=6, alpha=0.6, solid_capstyle="round", label=one)
    upper.plot(steps, second, color=BLUE, linewidth=1.6, linestyle=(0, (4, 2)), label=other)
    upper.legend(loc="upper right")
    upper.set(ylabel="loss of the\nglobal batch", ylim=(0, None))
    apart = np.abs(first - second)
    floor = 1e-9
    lower.vlines(steps, floor, np.maximum(apart, floor), color=INK, linewidth=1.6)
    lower.set_yscale("log")
    lower.set(ylim=(floor, 10), xlabel="step", ylabel="how far apart")
    lower.axhline(float(np.mean(first)), color=MUTED, linestyle="--", linewidth=1.2)
    lower.text(len(first) - 1, float(np.mean(first)) * 1.5, "mean loss", ha="right", fontsize=9, color=MUTED)
    most = 10.0 ** np.ceil(np.log10(max(float(apart.max()), 1e-4)))
    headline(figure, f"{one} and {other}: the same curve, never {most:.0e} apart".replace("e-0", "e-"))
    return describe(
        figure,
        f"Loss in {len(first)} steps, {one} and {other}: from {first[0]:.2f} to {first[-1]:.2f}, "
        f"never {most:.0e} apart.",
    )


# ---- Ranks that do not come to the same meetings, on their common clock.


def draw_hang(trace: Trace) -> Figure:
    """Draw what each rank did; the title says for how long the last span of each lay beside that of the others.

    Raises ValueError if a lane is empty, or there is none.
    """
    last = [trace.only(lane=lane).spans[-1:] for lane in trace.lanes]
    if not last or not all(last):
        raise ValueError(f"nothing to draw of {', '.join(trace.lanes) or 'no lane'}")
    ends = [spans[0] for spans in last]
    together = max(0.0, min(span.end for span in ends) - max(span.start for span in ends))
    who = " and ".join(f"{span.lane} in {span.label}" for span in ends)
    return draw_timeline(trace, title=f"At the end, {who}: {together:.1f} s in vain", unit="s")
