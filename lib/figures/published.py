"""What others have published about GPipe in PyTorch: numbers of torchgpipe's authors, and who descends from whom.

The numbers are notebooks/recorded/published_gpipe.json: published, not measured in this course.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from lib.show.style import (
    BLUE,
    GREEN,
    GREY,
    HATCH,
    INK,
    MUTED,
    ORANGE,
    PALETTE,
    PAPER,
    describe,
    headline,
    new_figure,
    pale,
    styled,
)

STATE = {"idea": BLUE, "not maintained": GREY, "deprecated": GREY, "gone": GREY, "in use": GREEN}


def ideal(partitions: int, micro_batches: int) -> float:
    """Return the speed that the clocks allow, as a multiple of one busy device: n · m / (m + n - 1)."""
    return partitions * micro_batches / (micro_batches + partitions - 1)


def headed(axes: Axes, finding: str) -> None:
    """Give a panel its heading."""
    axes.set_title(finding, fontsize=11)


@styled
def draw_published(record: Mapping[str, Any]) -> Figure:
    """Draw the published speeds against the clocks, the ablation, the speed by devices, and the accuracy."""
    figure, ((ideals, ablation), (speed, error)) = new_figure(9, 7.4, rows=2, cols=2)
    of_ideal = _draw_ideals(ideals, record["amoebanet"])
    gain = _draw_ablation(ablation, record["ablation"])
    speeds = _draw_speed(speed, record["speed"])
    errors = _draw_error(error, record["top1_error"])
    least, most = (round(100 * share) for share in of_ideal)
    finding = f"Published: {least} to {most} % of the speed that the clocks allow, at equal accuracy"
    headline(figure, finding)
    origin = record["provenance"]
    source = f"Published {origin['date']}, not measured here: {record['source']}."
    source += f"\n{origin['machine']}, {origin['commit']}"
    color = PALETTE["recorded"]
    box = dict(boxstyle="round,pad=0.4", facecolor=color + "2b", edgecolor=color)
    figure.supxlabel(source, x=0.02, ha="left", fontsize=9.5, bbox=box)
    return describe(figure, f"{finding}. {gain}. {speeds}. {errors}. {source}.")


def _draw_ideals(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    # one partition at a time works where m = 1: that is the unit
    chosen = sorted((row for row in rows if row["micro_batches"] > 1), key=_ideal_of)
    for y, row in enumerate(chosen):
        axes.plot([row["gpipe"], _ideal_of(row)], [y, y], color=GREY, lw=1, zorder=1)
        axes.plot(_ideal_of(row), y, "|", color=INK, ms=15, mew=2)
        axes.plot(row["gpipe"], y, "s", mfc=PAPER, mec=MUTED, ms=7)
        axes.plot(row["torchgpipe"], y, "o", color=BLUE, ms=8)
    marks: tuple[tuple[str, dict[str, Any]], ...] = (
        ("n·m / (m+n−1)", {"marker": "|", "color": INK, "ms": 12, "mew": 2}),
        ("torchgpipe", {"marker": "o", "color": BLUE, "ms": 8}),
        ("GPipe's paper", {"marker": "s", "mfc": PAPER, "mec": MUTED, "ms": 7}),
    )
    for name, look in marks:
        axes.plot([], [], ls="", label=name, **look)
    axes.legend(loc="upper right", handletextpad=0.2, borderaxespad=0)
    names = [f"n = {row['partitions']}, m = {row['micro_batches']}" for row in chosen]
    axes.set_yticks(range(len(chosen)), names)
    axes.set(
        xlim=(0.5, 7), ylim=(-0.6, len(chosen) - 0.4), xlabel="speed, × n = 2, m = 1 of the same authors"
    )
    axes.invert_yaxis()
    shares = [row["torchgpipe"] / _ideal_of(row) for row in chosen]
    headed(axes, "AmoebaNet-D: near the limit of the clocks")
    return min(shares), max(shares)


def _ideal_of(row: Mapping[str, Any]) -> float:
    return ideal(row["partitions"], row["micro_batches"])


def _draw_ablation(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> str:
    for y, row in enumerate(rows):
        value, busy = row["samples_per_second"], row["busy"]
        axes.barh(y, value, height=0.62, color=BLUE, lw=0)
        axes.text(value - 1, y, f"{value}", va="center", ha="right", fontsize=10, color=PAPER)
        axes.text(value + 1.2, y, f"{busy * 100:.0f} % busy", va="center", fontsize=10)
    axes.set_yticks(range(len(rows)), [row["with"] for row in rows])
    axes.set(xlim=(0, 80), xlabel="samples/s (4 GPUs)")
    axes.invert_yaxis()
    gain = rows[-1]["samples_per_second"] / rows[0]["samples_per_second"]
    headed(axes, f"U-Net: all parts together, {gain:.1f} ×")
    steps = ", ".join(
        f"{row['with']} {row['samples_per_second']} samples/s {row['busy'] * 100:.0f} % busy" for row in rows
    )
    return f"U-Net on 4 GPUs: {steps}"


def _draw_speed(axes: Axes, models: Mapping[str, Any]) -> str:
    said = []
    for (name, model), (mark, color) in zip(models.items(), (("o", ORANGE), ("^", GREEN)), strict=True):
        numbers = {int(n): value / model["baseline"] for n, value in model["partitions"].items()}
        axes.plot(list(numbers), list(numbers.values()), marker=mark, ms=7, color=color, label=name)
        said.append(f"{name} " + ", ".join(f"{x:.2f} × on {n}" for n, x in numbers.items()))
        axes.text(8.15, numbers[8], f"{numbers[8]:.1f} ×", va="center", fontsize=10)
    axes.axhline(1, color=GREY, lw=1.2, ls="--")
    axes.text(8, 0.94, "without GPipe", fontsize=9.5, color=MUTED, va="top", ha="right")
    axes.set_xticks([1, 2, 4, 8])
    axes.set(xlim=(0.6, 9.3), ylim=(0, 5), xlabel="partitions, a GPU each", ylabel="× without GPipe")
    axes.legend(loc="upper left")
    headed(axes, "One partition costs, then it pays")
    return "; ".join(said)


def _draw_error(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> str:
    said = []
    ways = (("torchgpipe", "torchgpipe", "o", BLUE), ("data_parallel", "nn.DataParallel", "s", MUTED))
    for k, (key, name, mark, color) in enumerate(ways):
        have = [(x + 0.12 * (2 * k - 1), row[key]) for x, row in enumerate(rows) if row[key]]
        axes.errorbar(
            [x for x, _ in have], [v[0] for _, v in have], yerr=[v[1] for _, v in have],
            fmt=mark, color=color, ms=7, capsize=4, lw=1.6, label=name,
        )  # fmt: skip
        said.append(f"{name} " + ", ".join(f"{v[0]} ± {v[1]}" for _, v in have))
    axes.set_xticks(range(len(rows)), [f"{row['batch']}" for row in rows])
    axes.set(xlim=(-0.6, len(rows) - 0.4), ylim=(21.6, 22.85), xlabel="mini-batch", ylabel="top-1 error (%)")
    axes.legend(loc="upper left")
    headed(axes, "ResNet-101: the same error")
    return f"ResNet-101 top-1 error in %: {'; '.join(said)}"


PLACES = {  # (column, row): the line of code above, the line of ideas below
    "GPipe": (0, 1), "torchgpipe": (1.25, 2), "fairscale Pipe": (2.5, 2), "torch Pipe": (3.75, 2),
    "torch pipelining": (3.75, 0), "lib.pipeline": (5, 1),
}  # fmt: skip


@styled
def draw_descent(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw who took what from whom: solid arrows for code, dashed ones for ideas; hatched is what is gone."""
    figure, axes = new_figure(9, 3.7)
    wide, high = 0.94, 0.66
    for row in rows:
        x, y = PLACES[row["name"]]
        color = STATE[row["state"]]
        look: Any = dict(
            boxstyle="round,pad=0,rounding_size=0.08", facecolor=pale(color, 0.18), edgecolor=color, lw=1.8
        )
        box = FancyBboxPatch((x - wide / 2, y - high / 2), wide, high, **look)
        if row["state"] == "gone":
            box.set(hatch=HATCH["dropped"], facecolor=PAPER)
        axes.add_patch(box)
        behind = (
            dict(boxstyle="round,pad=0.15", facecolor=PAPER, edgecolor="none")
            if row["state"] == "gone"
            else None
        )
        axes.text(
            x, y + 0.13, row["name"], ha="center", va="center", fontsize=10.5, weight="bold", bbox=behind
        )
        axes.text(x, y - 0.14, row["what"], ha="center", va="center", fontsize=9, color=INK, bbox=behind)
        when = f"{row['year']} · {row['state']}" if row["state"] != "idea" else f"{row['year']}"
        axes.text(x, y + high / 2 + 0.06, when, ha="center", va="bottom", fontsize=9.5, color=MUTED)
        if row["from"]:
            _draw_heritage(axes, row, wide / 2 + 0.02)
    for level, style, text in ((0.05, "-", "code"), (-0.25, "--", "idea")):
        axes.plot([-0.35, 0.05], [level, level], color=INK, lw=1.6, ls=style)
        axes.text(0.13, level, text, va="center", fontsize=10)
    axes.set(xlim=(-0.55, 5.55), ylim=(-0.5, 2.75))
    axes.set_axis_off()
    gone = [row["name"] for row in rows if row["state"] in ("gone", "deprecated")]
    use = [row["name"] for row in rows if row["state"] == "in use"]
    finding = f"The line of code ends: {' and '.join(gone)} are no more; the idea lives on"
    headline(figure, finding)
    said = "; ".join(
        f"{row['name']} ({row['year']}, {row['state']})"
        + (f" has its {row['how']} from {row['from']}" if row["from"] else "")
        for row in rows
    )
    return describe(figure, f"{finding}. {said}. In use: {' and '.join(use)}.")


def _draw_heritage(axes: Axes, row: Mapping[str, Any], half: float) -> None:
    (x0, y0), (x1, y1) = PLACES[row["from"]], PLACES[row["name"]]
    down = y1 < y0
    start = (x0, y0 - 0.36) if down else (x0 + half, y0) if y0 == y1 else (x0, y0 + 0.62)
    arrow = FancyArrowPatch(
        start, (x1 - half, y1), connectionstyle=f"arc3,rad={0.18 * (down - (y1 > y0))}", arrowstyle="-|>",
        mutation_scale=14, color=INK, linewidth=1.6, linestyle="-" if row["how"] == "code" else (0, (4, 3)),
    )  # fmt: skip
    axes.add_patch(arrow)
