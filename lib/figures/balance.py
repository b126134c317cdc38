"""A balance and what it does to a forward pass: layers as blocks of their cost, and the clocks that follow.

predicted_forward   the clocks as a Trace: the slowest task of a clock decides when the next one begins
draw_balance        layers, partitions and predicted timeline: what the explorer wraps
draw_balance_run    a measured forward pass, with what the costs of the layers predict
work, most_at_once  what to look at in a recorded run
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from lib._units import format_share
from lib.pipeline.balance.blockpartition import partition
from lib.pipeline.pipeline import clock_cycles
from lib.show.explore import Control, choice, steps, whole
from lib.show.style import (
    GREY,
    HATCH,
    INK,
    MUTED,
    PAPER,
    describe,
    ink_on,
    new_figure,
    rank_color,
    styled,
    title,
)
from lib.show.timeline import draw_timeline
from lib.timeline import Span, Trace

COSTS: dict[str, tuple[int, ...]] = {
    "early layers dear": (6, 5, 4, 3, 2, 2, 1, 1, 1, 1),
    "all alike": (3, 3, 3, 3, 3, 3, 3, 3, 3, 3),
    "one heavy layer": (1, 1, 1, 1, 12, 2, 2, 2, 2, 2),
}

BALANCE_CONTROLS: dict[str, Control] = {
    "costs": choice(tuple(COSTS), "early layers dear", "costs of the layers"),
    "first": whole(1, 8, 4, "layers in partition 0"),
    "second": whole(1, 8, 3, "layers in partition 1"),
    "chunks": whole(1, 16, 4, "m · micro-batches"),
    "overhead": steps((0.0, 0.1, 0.2, 0.5, 1.0), 0.1, "overhead of a task, ticks"),
}


def block_costs(costs: Sequence[float], balance: Sequence[int]) -> list[float]:
    """Return what each partition costs: the sums of its layers."""
    ends = [0, *accumulate(balance)]
    return [sum(costs[a:b]) for a, b in pairwise(ends)]


def predicted_forward(seconds: Sequence[float], chunks: int) -> Trace:
    """Return the spans of a forward pass in which a task of partition j takes seconds[j]."""
    now, spans = 0.0, []
    for clock in clock_cycles(chunks, len(seconds)):
        spans += [Span(f"partition {j}", f"F{i}", now, now + seconds[j], "forward") for i, j in clock]
        now += max(seconds[j] for _, j in clock)
    return Trace(spans, [f"partition {j}" for j in range(len(seconds))])


def speedup(costs: Sequence[float], balance: Sequence[int], chunks: int, overhead: float) -> float:
    """Return how many times as fast as one device, with the whole batch, the clocks are."""
    tasks = [cost / chunks + overhead for cost in block_costs(costs, balance)]
    return (sum(costs) + overhead) / predicted_forward(tasks, chunks).makespan


@styled
def draw_balance(costs: str, first: int, second: int, chunks: int, overhead: float) -> Figure:
    """Draw ten layers in three partitions, and the predicted forward pass of `chunks` micro-batches."""
    layers = COSTS[costs]
    first = min(first, len(layers) - 2)
    second = min(second, len(layers) - first - 1)
    balance = [first, second, len(layers) - first - second]
    blocks, best = block_costs(layers, balance), partition(layers, 3)
    gain, possible = (speedup(layers, cut, chunks, overhead) for cut in (balance, best))
    trace = predicted_forward([block / chunks + overhead for block in blocks], chunks)

    figure, (upper, lower) = new_figure(9, 4.9, rows=2, height_ratios=[1, 1.9])
    _draw_layers(upper, layers, balance, blocks)
    _draw_clocks(lower, trace, chunks)
    slowest = [j for j, block in enumerate(blocks) if block == max(blocks)]
    who = f"partition {slowest[0]} decides" if len(slowest) == 1 else "no partition alone decides"
    finding = f"{balance}: {who}, {gain:.2f} × one device"
    finding += f"; {best} gives {possible:.2f} ×" if possible > gain + 5e-3 else "; the best there is"
    title(upper, finding)
    facts = ", ".join(f"partition {j} costs {block:g} ticks" for j, block in enumerate(blocks))
    ends = f"The forward pass ends after {trace.makespan:.1f} ticks, {format_share(trace.bubble)} idle."
    return describe(
        figure,
        f"{finding}. {chunks} micro-batches. Layers cost {', '.join(map(str, layers))}; {facts}. {ends}",
    )


def _draw_layers(axes: Axes, layers: Sequence[int], balance: Sequence[int], blocks: Sequence[float]) -> None:
    owner = [j for j, size in enumerate(balance) for _ in range(size)]
    starts = [0, *accumulate(layers)]
    for k, (start, cost) in enumerate(zip(starts, layers, strict=False)):
        color = rank_color(owner[k])
        axes.add_patch(Rectangle((start, 0), cost, 1, facecolor=color, edgecolor=PAPER, linewidth=1.5))
        axes.text(
            start + cost / 2, 0.5, str(cost), ha="center", va="center", fontsize=10, color=ink_on(color)
        )
    at = 0.0
    for j, block in enumerate(blocks):
        axes.plot([at + 0.1, at + block - 0.1], [-0.22, -0.22], color=rank_color(j), linewidth=3)
        axes.text(at + block / 2, -0.38, f"{j}: {block:g}", ha="center", va="top", fontsize=10)
        at += block
    axes.set(xlim=(-0.2, at + 0.2), ylim=(-0.95, 1.1), xticks=[], yticks=[0.5], yticklabels=["layers"])
    axes.tick_params(length=0)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)


def _draw_clocks(axes: Axes, trace: Trace, chunks: int) -> None:
    end = trace.makespan
    for j, lane in enumerate(trace.lanes):
        track = Rectangle(
            (0, j - 0.4), end, 0.8, facecolor=PAPER, edgecolor=GREY, hatch=HATCH["bubble"], lw=0
        )
        axes.add_patch(track)
        color = rank_color(j)
        for i, span in enumerate(trace.only(lane=lane).spans):
            box = Rectangle((span.start, j - 0.4), span.duration, 0.8, facecolor=color, edgecolor=PAPER)
            axes.add_patch(box)
            if span.duration > end / 45:
                middle = span.start + span.duration / 2
                axes.text(middle, j, str(i), ha="center", va="center", fontsize=9.5, color=ink_on(color))
        share = format_share(trace.busy(lane) / end)
        axes.text(end * 1.01, j, f"{share} busy", va="center", fontsize=10, color=MUTED)
    for start in sorted({span.start for span in trace}):
        axes.axvline(start, color=INK, linewidth=0.8, linestyle=(0, (3, 3)))
    axes.set(xlim=(0, end * 1.13), ylim=(2.55, -0.55), yticks=range(3), yticklabels=trace.lanes)
    axes.set_xlabel(f"time (ticks); a number is a micro-batch of 1/{chunks}, dashed lines part the clocks")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def draw_balance_run(measured: Trace, costs: Sequence[float], balance: Sequence[int], chunks: int) -> Figure:
    """Draw a measured forward pass below what the costs of the layers predict.

    costs: seconds of the layers for one micro-batch. Machines are not equally busy at all times, so the predicted
    tasks are scaled to the same sum as the measured ones: what is compared is their shares, and the order.
    """
    blocks, lanes = block_costs(costs, balance), [f"partition {j}" for j in range(len(balance))]
    shares = [block / sum(blocks) for block in blocks]
    busy = [measured.busy(lane) for lane in lanes]
    predicted = predicted_forward([share * sum(busy) / chunks for share in shares], chunks)
    slowest = max(range(len(busy)), key=busy.__getitem__)
    finding = (
        f"Balance {list(balance)}: partition {slowest} does {format_share(busy[slowest] / sum(busy))} of the work, "
        f"predicted {format_share(shares[slowest])}"
    )
    return draw_timeline(measured.from_zero(), predicted, title=finding, lanes=lanes, unit="ms")


def work(trace: Trace) -> Trace:
    """Return the forward and backward spans of a recorded pipeline, without copies; forward is its "compute"."""
    kept = trace.only(kind=("compute", "backward"))
    names = {"compute": "forward", "backward": "backward"}
    return Trace((replace(span, kind=names[span.kind]) for span in kept), kept.lanes)


def most_at_once(trace: Trace) -> int:
    """Return how many lanes were busy at the same time, at most."""
    edges = sorted((time, step) for span in trace for time, step in ((span.start, 1), (span.end, -1)))
    return max(accumulate(step for _, step in edges), default=0)
