"""Figure of notebook 05: the memory of each way, predicted, and what was measured of it.

draw_memory   a bar a way, as outline; under it every run that was measured, filled, beside its own prediction
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from lib import recorded
from lib._units import format_bytes
from lib.data.ways import Run
from lib.data.ways_model import WAYS, Way, predict
from lib.show.explore import steps, whole
from lib.show.style import BLUE, HATCH, INK, MUTED, PAPER, PINK, RED, describe, headline, new_figure, styled

NAMES: dict[Way, str] = {
    "one": "one process",
    "naive": "every rank all rows",
    "server": "one server",
    "rank": "every rank its own",
}
LEAST = 5e6

MEMORY_CONTROLS = {
    "million_rows": steps((1, 2, 4, 10, 20, 40, 100, 200, 400, 1000), 400, "N · million rows"),
    "row_bytes": whole(20, 200, 44, "bytes a row", step=4),
    "world_size": steps((1, 2, 4, 8, 16, 32), 8, "W · ranks"),
    "workers": whole(0, 8, 2, "workers a rank"),
    "mini_epochs": steps((1, 2, 4, 8, 16), 8, "E · mini-epochs"),
    "machine_gb": steps((0.4, 8, 16, 32, 64, 128, 256, 512), 64, "machine · GB"),
}


@dataclass(frozen=True)
class Point:
    """One measured run: of which way, what it is called, bytes predicted and bytes measured, here or recorded."""

    way: Way
    label: str
    predicted: float
    measured: float
    here: bool


def points_of(runs: Sequence[Run], record: Mapping[str, Any] | None = None) -> list[Point]:
    """Return the points of runs made here, and of the recorded headline: 8 ranks together, at their peak."""
    points = []
    for run in runs:
        setting = f"W = {run.world_size}" + (f", {run.num_workers} workers" if run.num_workers else "")
        setting += f", E = {run.mini_epochs}" if run.way == "rank" else ""
        label = f"{run.rows / 1e6:g} M rows" + (f", {setting}" if run.way != "one" else "")
        points.append(Point(run.way, label, run.predicted.total, run.peak, True))
    if record is not None:
        world, parts, rows = record["world_size"], record["mini_epochs"], record["rows"]
        model = predict(
            "rank", rows=rows, row_bytes=record["bytes"] / rows, world_size=world, mini_epochs=parts
        )
        label = f"recorded: {rows / 1e6:g} M rows, W = {world}, E = {parts}"
        points.append(Point("rank", label, model.total, together_peak(record), False))
    return points


def together_peak(record: Mapping[str, Any]) -> float:
    """Return the most bytes that all ranks of the headline took at once, as if all were at their peak then."""
    peaks: dict[int, float] = {}
    for load in record["together"]["loads"]:
        peaks[load["rank"]] = max(peaks.get(load["rank"], 0.0), load["peak_bytes"])
    return sum(peaks.values())


@styled
def draw_memory(
    *,
    million_rows: int,
    row_bytes: int,
    world_size: int,
    workers: int,
    mini_epochs: int,
    machine_gb: float,
    runs: Sequence[Run] = (),
    record: Mapping[str, Any] | None = None,
) -> Figure:
    """Draw the bytes of the whole machine on a log scale; what lies beyond the machine's memory is hatched."""
    points, machine = points_of(runs, record), machine_gb * 1e9
    holdings = {
        way: predict(
            way,
            rows=million_rows * 10**6,
            row_bytes=row_bytes,
            world_size=world_size,
            workers=0 if way == "one" else workers,
            mini_epochs=mini_epochs,
        )
        for way in WAYS
    }
    own = {way: [point for point in points if point.way == way] for way in WAYS}
    figure, axes = new_figure(9, 1.75 + sum(0.56 + 0.27 * len(own[way]) for way in WAYS) + 0.3 * bool(record))
    y, places = 0.0, []
    for way, holding in holdings.items():
        total = max(LEAST, holding.total)
        over = total > machine
        _bar(axes, y, LEAST, min(total, machine), BLUE)
        if over:
            _bar(axes, y, machine, total, RED, HATCH["padding"])
        _note(axes, total, y, format_bytes(holding.total), RED if over else INK, size=11, weight="bold")
        places.append((y, f"{NAMES[way]}\n{_copies(holding.copies)} {format_bytes(holding.each)}"))
        for point in own[way]:
            y += 0.4 if point is own[way][0] else 0.32
            axes.plot([point.predicted, point.measured], [y, y], color=MUTED, linewidth=1)
            axes.plot(point.predicted, y, "|", color=INK, markersize=10, markeredgewidth=1.6)
            look = {"color": BLUE if point.here else PINK, "markersize": 6}
            axes.plot(point.measured, y, "o" if point.here else "D", **look)
            _note(
                axes,
                max(point.predicted, point.measured),
                y,
                f"{format_bytes(point.measured)}, {point.label}",
            )
        y += 0.7
    axes.axvline(machine, color=RED, linestyle=(0, (5, 3)), linewidth=1.5, zorder=0)
    axes.text(machine, -0.42, f"the machine: {format_bytes(machine)}", color=RED, fontsize=10, ha="center")
    most = max(machine, *(holding.total for holding in holdings.values()), *(p.measured for p in points), 1e9)
    axes.set(xscale="log", xlim=(LEAST, most * 40), ylim=(y - 0.3, -0.6), xlabel="bytes on the whole machine")
    axes.set_yticks([place for place, _ in places], [text for _, text in places], color=INK)
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value)))
    axes.minorticks_off()
    fits = [NAMES[way] for way in WAYS if holdings[way].total <= machine]
    rank, naive = holdings["rank"], holdings["naive"]
    verdict = f"What fits: {', '.join(fits)}" if fits else "Nothing fits"
    headline(
        figure,
        f"{million_rows} M rows, {world_size} rank{'s' * (world_size > 1)}: {format_bytes(naive.total)} if every rank "
        f"holds all, {format_bytes(rank.total)} if each holds its own. {verdict}",
    )
    notes = []
    if runs:
        notes.append("● measured here at its peak     ")
    if record:
        notes.append("◆ " + recorded.provenance(record))
    if notes:
        figure.supxlabel("| predicted for that run     " + "".join(notes), fontsize=9, color=MUTED)
    bars = "; ".join(f"{NAMES[way]} {format_bytes(h.total)}" for way, h in holdings.items())
    seen = "; ".join(
        f"{NAMES[p.way]}, {p.label}: predicted {_rough(p.predicted)}, measured {_rough(p.measured)}"
        for p in points
    )
    return describe(
        figure,
        f"Memory of {million_rows} million rows of {row_bytes} bytes, {world_size} ranks, {workers} workers a rank, "
        f"{mini_epochs} mini-epochs: {bars}. The machine has {format_bytes(machine)}."
        + (f" Measured: {seen}." if seen else ""),
    )


def _bar(axes: Axes, y: float, start: float, end: float, color: str, hatch: str | None = None) -> None:
    axes.barh(
        y, end - start, left=start, height=0.36, facecolor=PAPER, edgecolor=color, linewidth=2, hatch=hatch
    )


def _note(
    axes: Axes, x: float, y: float, text: str, color: str = MUTED, size: float = 9, weight: str = "normal"
) -> None:
    paper = {"facecolor": PAPER, "edgecolor": "none", "pad": 1.0}
    axes.annotate(text, (x, y), (9, 0), textcoords="offset points", va="center", fontsize=size, color=color,
                  fontweight=weight, bbox=paper)  # fmt: skip


def _tick(size: float) -> str:
    return (
        f"{size / 1e12:g} TB"
        if size >= 1e12
        else f"{size / 1e9:g} GB"
        if size >= 1e9
        else f"{size / 1e6:g} MB"
    )


def _copies(count: int) -> str:
    return "1 copy of" if count == 1 else f"{count} copies of"


def _rough(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
