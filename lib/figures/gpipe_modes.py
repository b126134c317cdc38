"""GPipe's checkpoint modes by micro-batches: what is kept and computed again; memory and time on a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from lib.show.style import (
    BLUE,
    GREEN,
    GREY,
    INK,
    MUTED,
    ORANGE,
    PAPER,
    PINK,
    describe,
    headline,
    new_figure,
    source_note,
    styled,
    title,
)

LOOK = {"never": ("o", BLUE), "except_last": ("s", ORANGE), "always": ("^", GREEN)}


@styled
def draw_modes(rows: Sequence[Mapping[str, Any]], source: str) -> Figure:
    """Draw the rows of lib.experiments.gpipe_gpu: dashed lines with open marks are predicted, full ones measured."""
    have = "mib" in rows[0]
    figure, (left, right) = new_figure(9, 3.9, cols=2)
    chunks = sorted({row["chunks"] for row in rows})
    for axes, predicted, measured in ((left, "predicted_mib", "mib"), (right, "predicted_ratio", "ratio")):
        for mode, (mark, color) in LOOK.items():
            mine = [_with_ratio(row) for row in rows if row["mode"] == mode]
            x = [chunks.index(row["chunks"]) for row in mine]
            faint = 0.6 if have else 1.0
            axes.plot(
                x,
                [r[predicted] for r in mine],
                ls="--",
                lw=1.5,
                color=color,
                alpha=faint,
                marker=mark,
                mfc=PAPER,
                ms=8,
            )
            if have:
                axes.plot(x, [r[measured] for r in mine], color=color, marker=mark, ms=8)
        axes.set_xticks(range(len(chunks)), [str(m) for m in chunks])
        axes.set_xlabel("m · micro-batches")
    left.set(ylim=(0, None), ylabel="peak memory of a GPU (MiB)")
    tallest = (
        max(row["predicted_ratio"] for row in rows)
        if not have
        else max(_with_ratio(row)["ratio"] for row in rows)
    )
    right.set(ylim=(0, 1.15 * tallest), ylabel="time of a step (× plain)")
    right.axhline(1, color=GREY, lw=1, zorder=0)
    for mode, (mark, color) in LOOK.items():
        left.plot(
            [],
            [],
            color=color,
            marker=mark,
            mfc=color if have else PAPER,
            ls="-" if have else "--",
            label=mode,
        )
    left.legend(loc="upper right", bbox_to_anchor=(1, 0.9))
    key = "mib" if have else "predicted_mib"
    most = next(row[key] for row in rows if row["mode"] == "never" and row["chunks"] == 1)
    best = min(rows, key=lambda row: row[key])
    devices = rows[0]["devices"]
    where = f"{devices} GPU{'s' * (devices > 1)}"
    verb = "needs" if have else "should need"
    finding = f"On {where}: {best['mode']}, m = {best['chunks']} {verb} {100 * best[key] / most:.0f} % of the memory"
    headline(figure, finding)
    source_note(figure, source)
    said = "; ".join(
        f"{mode}: " + ", ".join(f"m = {r['chunks']} {r[key]:.0f} MiB" for r in rows if r["mode"] == mode)
        for mode in LOOK
    )
    return describe(figure, f"{finding}. {source}. Peak by mode, {said}.")


def _with_ratio(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, "ratio": row["ms"] / row["plain_ms"]} if "ms" in row else dict(row)


@styled
def draw_kept(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw what each mode keeps of m micro-batches, and what a step costs.

    rows: mode, chunks, partitions, forward and again (tasks counted in a run), time (measured, × the first row's).
    """
    modes = list(dict.fromkeys(row["mode"] for row in rows))
    chunks = list(dict.fromkeys(row["chunks"] for row in rows))
    figure, axes = new_figure(9, 3.9)
    for row in rows:
        x, y, m = chunks.index(row["chunks"]), modes.index(row["mode"]), row["chunks"]
        forgotten = row["again"] // row["partitions"]
        for i in range(m):
            kept = i >= forgotten
            look: dict[str, Any] = (
                dict(facecolor=BLUE, edgecolor=PAPER) if kept else dict(facecolor=PAPER, edgecolor=PINK)
            )
            box = Rectangle((x + 0.86 * i / m + 0.01, y), 0.86 / m - 0.02, 0.4, lw=1.4, **look)
            axes.add_patch(box)
            if not kept:
                middle = x + 0.86 * (i + 0.5) / m
                axes.text(middle, y + 0.2, "R", ha="center", va="center", fontsize=10, color=INK)
        axes.text(
            x + 0.43,
            y + 0.5,
            f"{row['time']:.1f} × the time",
            ha="center",
            va="top",
            fontsize=10,
            color=MUTED,
        )
    for x, m in enumerate(chunks):
        n = rows[0]["partitions"]
        text = f"m = {m}\nbubble {100 * (n - 1) / (m + n - 1):.0f} %"
        axes.text(x + 0.43, -0.12, text, ha="center", va="bottom", fontsize=10.5)
    for y, mode in enumerate(modes):
        axes.text(-0.08, y + 0.2, mode, ha="right", va="center", fontsize=11, weight="bold")
    handles = [
        Patch(facecolor=BLUE, label="a micro-batch whose inside is kept for backward"),
        Patch(facecolor=PAPER, edgecolor=PINK, linewidth=1.4, label="R: forgotten, computed again"),
    ]
    axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.02), ncols=2, handlelength=1.2)
    axes.set(xlim=(-0.75, len(chunks)), ylim=(len(modes) - 0.2, -0.6))
    axes.set_axis_off()
    most = max(row["chunks"] for row in rows)
    insides = {row["mode"]: most - row["again"] // row["partitions"] for row in rows if row["chunks"] == most}
    finding = f"Of {most} micro-batches {', '.join(f'{mode} keeps {kept}' for mode, kept in insides.items())}"
    title(axes, finding)
    said = "; ".join(
        f"{r['mode']}, m = {r['chunks']}: {r['again']} of {r['forward']} tasks again, {r['time']:.1f} × the time"
        for r in rows
    )
    return describe(figure, f"{finding}. {said}.")
