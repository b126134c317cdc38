"""The order of backward, and what it holds: lanes by step, strips of operations, staircases.

draw_backward     R and B of every (micro-batch, partition) by step, and the insides alive between: the explorer's
draw_orders       several orders below each other, cell by cell
draw_staircases   what is held over the steps: outlines predicted, filled counted in real runs
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from lib.experiments.backward_order import MODES, alive, peaks, predict
from lib.show.explore import choice, switch, whole
from lib.show.style import (
    GREEN,
    INK,
    MUTED,
    PAPER,
    PINK,
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

BACKWARD_CONTROLS = {
    "micro_batches": whole(1, 6, 4, "m · micro-batches"),
    "partitions": whole(1, 4, 2, "n · partitions"),
    "mode": choice(MODES, "always", "checkpoint"),
    "dependencies": switch(True, "dependencies"),
}
HUE = {"R": PINK, "B": GREEN}
CELL = 0.24  # inches


class OpCell(Rectangle):
    """An operation on the canvas, which remembers its name: what a test looks at."""

    op: str


@styled
def draw_backward(micro_batches: int, partitions: int, mode: str, dependencies: bool) -> Figure:
    """Draw backward of m micro-batches through n partitions, as the engine's rule predicts it, and what is alive."""
    m, n = micro_batches, partitions
    ops = predict(m, n, mode, dependencies).ops
    rows = m * n
    tall = rows * CELL + n * 0.1
    figure, (lanes, stairs) = new_figure(
        9, tall + 2.7, rows=2, sharex=True, gridspec_kw={"height_ratios": [tall, 1.25]}
    )
    _draw_lanes(lanes, ops, m, n)
    held = _by_partition(ops, m, n)
    _draw_stack(stairs, held)
    stairs.set_xlabel("step of backward (one thread: one operation a step)")
    with matplotlib.rc_context({"axes.titlepad": 30}):  # the legend stands between title and lanes
        title(lanes, _finding(ops, m, n, mode, dependencies))
    total = [int(x) for x in held.sum(axis=0)]
    words = f"Order: {' '.join(ops)}. Insides alive in each step: {', '.join(map(str, total))}."
    return describe(figure, f"{lanes.get_title('left')}. {words}".replace("\n", " "))


def _finding(ops: Sequence[str], m: int, n: int, mode: str, dependencies: bool) -> str:
    most = max(peaks(ops, m, n))
    if mode == "never":
        return f"Nothing is recomputed: all {m * n} insides are alive from the start, whatever the order"
    how = "With" if dependencies else "Without"
    other = max(peaks(predict(m, n, mode, not dependencies).ops, m, n))
    return f"{how} dependencies at most {most} alive in a partition; {'without' if dependencies else 'with'}: {other}"


def _draw_lanes(axes: Axes, ops: Sequence[str], m: int, n: int) -> None:
    found = alive(ops, m, n)
    pad = 0.1 / CELL
    axes.set(xlim=(0.4, len(ops) + 0.6), ylim=(m * n + n * pad, -0.2))
    axes.spines[:].set_visible(False)
    ticks: list[float] = []
    for j in range(n):
        top = j * (m + pad)
        axes.add_patch(
            Rectangle((0.45, top), len(ops) + 0.1, m, facecolor=pale(rank_color(j), 0.08), zorder=0)
        )
        axes.text(
            len(ops) + 0.75,
            top + m / 2,
            f"partition {j}",
            rotation=90 if m > 2 else 0,
            va="center",
            fontsize=10,
            color=INK,
            weight="bold",
        )
        for i in range(m):
            y, pair = top + i, f"{i}{j}"
            ticks.append(y + 0.5)
            steps = [k for k, now in enumerate(found) if pair in now]
            wide = steps[-1] - steps[0] + 1
            axes.add_patch(
                Rectangle(
                    (steps[0] + 0.5, y + 0.2), wide, 0.6, facecolor=pale(rank_color(j), 0.55), linewidth=0
                )
            )
    for k, op in enumerate(ops, start=1):
        i, j = int(op[1]), int(op[2])
        _cell(axes, op, (k - 0.5, j * (m + pad) + i + 0.04), (1, 0.92), HUE[op[0]], op[0])
    axes.set_yticks(ticks, [f"{i}" for _ in range(n) for i in range(m)])
    axes.set_ylabel("micro-batch")
    axes.tick_params(length=0, labelbottom=False)
    names = {"R": "recompute (R)", "B": "backward (B)"}
    patches = [Patch(facecolor=HUE[letter], label=text) for letter, text in names.items()]
    patches.append(Patch(facecolor=pale(rank_color(0), 0.55), label="inside alive"))
    axes.legend(
        handles=patches, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=3, handlelength=1, borderaxespad=0.1
    )


def _cell(
    axes: Axes, op: str, at: tuple[float, float], size: tuple[float, float], face: str, text: str
) -> OpCell:
    cell = OpCell(at, *size, facecolor=face, edgecolor=PAPER, linewidth=1, zorder=3)
    cell.op = op
    axes.add_patch(cell)
    middle = (at[0] + size[0] / 2, at[1] + size[1] / 2)
    axes.text(
        *middle,
        text,
        ha="center",
        va="center_baseline",
        fontsize=9,
        color=ink_on(face),
        zorder=6,
        weight="bold",
    )
    return cell


def _by_partition(ops: Sequence[str], m: int, n: int) -> Any:
    """Return how many insides each partition holds in each step: an array (n, steps)."""
    return np.array([[sum(pair[1] == str(j) for pair in now) for now in alive(ops, m, n)] for j in range(n)])


def _draw_stack(axes: Axes, held: Any) -> None:
    base = np.zeros(held.shape[1])
    for j, counts in enumerate(held):
        axes.bar(
            np.arange(1, len(counts) + 1), counts, 1.0, base, color=pale(rank_color(j), 0.55), linewidth=0
        )
        base = base + counts
    axes.step(np.arange(len(base) + 2) - 0.5, [0, *base, 0], where="post", color=INK, linewidth=1.4)
    axes.set_ylim(0, base.max() + 0.6)
    axes.set_yticks(range(0, int(base.max()) + 1, 1 + int(base.max()) // 5))
    axes.set_ylabel("insides alive")
    axes.set_xticks(np.arange(1, len(base) + 1, 1 + len(base) // 25))


@styled
def draw_orders(orders: Mapping[str, Sequence[str]], finding: str = "") -> Figure:
    """Draw each order as a strip of cells; a triangle marks where one first leaves the order in the first row.

    A cell has its partition's colour, full for B and pale for R. Raises ValueError for no order.
    """
    if not orders:
        raise ValueError("draw_orders needs at least one order")
    first = next(iter(orders.values()))
    m, n = 1 + max(int(op[1]) for op in first), 1 + max(int(op[2]) for op in first)
    longest = max(map(len, orders.values()))
    figure, axes = new_figure(9, 1.0 + 0.56 * len(orders))
    left = 0.088 * max(map(len, orders)) + 0.15
    side = (9 - left - 1.15) / longest
    axes.set(xlim=(0, 9), ylim=(0.56 * len(orders) + 0.3, 0.0))
    axes.axis("off")
    axes.text(9 - 1.05, 0.1, "most alive in\na partition", fontsize=9, color=MUTED, va="center")
    for row, (name, ops) in enumerate(orders.items()):
        y = 0.34 + 0.56 * row
        axes.text(0.02, y + 0.16, name, va="center", fontsize=10.5)
        off = next((k for k, (a, b) in enumerate(zip(ops, first, strict=False)) if a != b), None)
        for k, op in enumerate(ops):
            hue = rank_color(int(op[2]))
            cell = _cell(
                axes, op, (left + k * side, y), (side, 0.32), hue if op[0] == "B" else pale(hue, 0.35), op
            )
            if off is not None and k == off:
                cell.set(edgecolor=RED, linewidth=2.2, zorder=5)
                axes.plot(left + (k + 0.5) * side, y - 0.07, marker="v", color=RED, markersize=6)
        axes.text(9 - 0.7, y + 0.16, str(max(peaks(ops, m, n))), va="center", weight="bold", fontsize=12)
    title(axes, finding or f"{len(orders)} orders of backward")
    said = "; ".join(
        f"{name}: {' '.join(ops)}, at most {max(peaks(ops, m, n))} alive in a partition"
        for name, ops in orders.items()
    )
    return describe(figure, f"{axes.get_title('left')}. {said}.".replace("\n", " "))


@styled
def draw_staircases(
    runs: Mapping[str, Sequence[int]], predicted: Mapping[str, Sequence[int]], finding: str = ""
) -> Figure:
    """Draw tensors held in each step, a panel a run: counted (filled) and predicted (outlined)."""
    figure, axes = new_figure(9, 3.1, cols=len(runs), sharey=True, squeeze=False)
    said = []
    for panel, (name, counts) in zip(axes[0], runs.items(), strict=True):
        steps = np.arange(1, len(counts) + 1)
        panel.bar(steps, counts, 1.0, color=PINK, linewidth=0, label="counted")
        outline = [0, *predicted[name], 0]
        panel.step(
            np.arange(len(outline)) - 0.5, outline, where="post", color=INK, linewidth=1.6, label="predicted"
        )
        top = int(np.argmax(counts))
        panel.annotate(
            f"{max(counts)}",
            (top + 1, max(counts)),
            (0, 4),
            textcoords="offset points",
            weight="bold",
            ha="center",
        )
        panel.set_xlabel(f"step of backward, {name}")
        equal = "as predicted" if list(predicted[name]) == list(counts) else "not as predicted"
        said.append(f"{name}: at most {max(counts)} tensors, {equal}")
    axes[0][0].set_ylabel("tensors of recomputed insides")
    axes[0][0].legend(loc="upper left")
    axes[0][0].set_ylim(0, 1.22 * max(max(counts) for counts in runs.values()))
    headline(figure, finding)
    return describe(figure, f"{finding}. {'; '.join(said)}.")
