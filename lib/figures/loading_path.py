"""Notebook 01: the path of a batch from storage to the device, hop by hop, and the ladder from one GPU to many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse, Rectangle

from lib.data.loading import simulate_path
from lib.show import style
from lib.show.explore import whole
from lib.show.sheet import arrow, box
from lib.show.style import GREY, GRID, INK, MUTED, PAPER, RED, TRACK, color_of, ink_on, rank_color
from lib.show.timeline import bar, lane_rows
from lib.timeline import Trace

HOPS = {"load": "workers", "pin": "pin thread", "transfer": "copy engine", "step": "GPU cores"}
PLACES = ("storage", "pageable\nhost memory", "pinned\nhost memory", "device\nmemory", "model")
SLOTS = 3

PATH_CONTROLS = dict(
    batches=whole(1, 8, 6, "batches"),
    load_ms=whole(1, 8, 6, "load (ms)"),
    pin_ms=whole(1, 8, 1, "pin (ms)"),
    transfer_ms=whole(1, 8, 2, "transfer (ms)"),
    step_ms=whole(1, 8, 4, "step (ms)"),
)


@style.styled
def draw_path(batches: int, load_ms: float, pin_ms: float, transfer_ms: float, step_ms: float) -> Figure:
    """Draw the hops of a batch, and below them the same batches one after the other and as a pipeline."""
    hops = dict(load=load_ms, pin=pin_ms, transfer=transfer_ms, step=step_ms)
    serial, pipeline = (simulate_path(batches, hops, overlap=overlap) for overlap in (False, True))
    slowest = max(hops, key=lambda hop: hops[hop])
    figure, axes = style.new_figure(9, 6.6, rows=3, height_ratios=(1.5, 1.15, 1.15))
    _draw_places(axes[0], hops)
    for place, trace, name in (
        (axes[1], serial, "one after the other"),
        (axes[2], pipeline, "as a pipeline"),
    ):
        _draw_hops(place, trace, serial.end)
        place.set_title(f"{name}: {trace.end:g} ms", fontsize=11, pad=5)
        place.axvline(trace.end, color=INK, lw=1.4, ls=(0, (4, 3)))
    axes[1].tick_params(labelbottom=False)
    axes[2].set_xlabel("time (ms)")
    count = f"{batches} batch{'es' * (batches != 1)}"
    finding = f"{count}: {serial.end:g} ms one after the other, {pipeline.end:g} ms as a pipeline; " + (
        f"{slowest} sets the pace" if batches > 1 else "one batch alone gains nothing"
    )
    style.title(axes[0], finding)
    times = ", ".join(f"{hop} {time:g} ms" for hop, time in hops.items())
    busy = ", ".join(f"{hop} {pipeline.busy(hop) / pipeline.makespan:.0%}" for hop in hops)
    return style.describe(
        figure,
        f"{finding}. The path of a batch: storage, pageable host memory, pinned host memory, device memory, model; its "
        f"hops: {times}. Busy in the pipeline: {busy}.",
    )


def _draw_places(axes: Axes, hops: Mapping[str, float]) -> None:
    """Draw the five places in a row, an arrow for each hop, and behind them the host and the device that hold them."""
    axes.set(xlim=(0, 18.2), ylim=(0, 4.5))
    axes.axis("off")
    for left, right, name in ((3.8, 10.3, "host: CPU cores and RAM"), (12.0, 18.15, "device: GPU")):
        _rounded(axes, left, 0.05, right - left, 4.3, TRACK, GRID)
        axes.text(left + 0.25, 3.97, name, fontsize=9.5, color=MUTED, va="center")
    names, times = list(hops), list(hops.values())
    for number, place in enumerate(PLACES):
        x = 4.1 * number + 0.1
        if number == 0:
            _draw_cylinder(axes, x, 1.35, 1.5, 1.9)
        elif number < len(hops):
            # a queue fills up in front of a hop that is slower than all hops before it
            full = times[number] > max(times[:number])
            _draw_queue(axes, x, 1.35, 1.6, 1.9, color_of(names[number - 1]), filled=SLOTS if full else 1)
        else:
            _rounded(axes, x, 1.35, 1.4, 1.9, color_of("step"), color_of("step"))
        axes.text(x + 0.78, 1.15, place, ha="center", va="top", fontsize=9.5, linespacing=1.15)
    for number, (hop, milliseconds) in enumerate(hops.items()):
        left, right = 4.1 * number + 1.72, 4.1 * number + 4.18
        style = "simple,head_length=8,head_width=11,tail_width=4"
        arrow(axes, (left, 2.3), (right, 2.3), color=color_of(hop), width=0, head=1, gap=2, style=style)
        middle, above = (left + right) / 2, f"{hop} {milliseconds:g} ms"
        axes.text(middle, 2.68, above, ha="center", va="bottom", fontsize=9.5, weight="bold")
        axes.text(middle, 1.92, HOPS[hop], ha="center", va="top", fontsize=9, color=MUTED)


def _draw_cylinder(axes: Axes, x: float, y: float, width: float, height: float) -> None:
    middle = x + width / 2
    look: dict[str, Any] = dict(facecolor=GRID, edgecolor=MUTED, lw=1.2)
    axes.add_patch(Ellipse((middle, y + 0.2), width, 0.55, **look))
    axes.add_patch(Rectangle((x, y + 0.2), width, height - 0.4, facecolor=GRID, lw=0))
    for side in (x, x + width):
        axes.plot([side, side], [y + 0.2, y + height - 0.2], color=MUTED, lw=1.2)
    axes.add_patch(Ellipse((middle, y + height - 0.2), width, 0.55, **look))


def _draw_queue(axes: Axes, x: float, y: float, width: float, height: float, color: str, filled: int) -> None:
    """Draw a place in memory as a box with slots for batches."""
    _rounded(axes, x, y, width, height, PAPER, color, 2.0)
    for slot in range(SLOTS):
        face = color if slot < filled else PAPER
        at = (x + 0.25, y + 0.24 + 0.5 * slot)
        axes.add_patch(Rectangle(at, width - 0.5, 0.38, facecolor=face, edgecolor=GREY, lw=1))


def _draw_hops(axes: Axes, trace: Trace, end: float) -> None:
    """Draw a lane per hop, the batches numbered."""
    for row, hop in enumerate(trace.lanes):
        for span in trace.only(lane=hop):
            fits = span.duration * 560 > 9 * end  # points: the width of a digit and a little more
            number = span.label.rpartition(" ")[2] if fits else ""
            bar(axes, row, span.start, span.duration, color_of(hop), number)
    lane_rows(axes, trace.lanes, 0, end * 1.004, track=True)


def _rounded(
    axes: Axes, x: float, y: float, width: float, height: float, face: str, edge: str, line: float = 1.2, **look: Any
) -> None:  # fmt: skip
    """Draw a box whose lower left corner is (x, y)."""
    box(
        axes,
        x + width / 2,
        y + height / 2,
        width,
        height,
        face=face,
        edge=edge,
        line=line,
        radius=0.12,
        zorder=1,
        **look,
    )


@dataclass(frozen=True)
class Rung:
    """One way to train: GPUs on each machine, whether each GPU has a process of its own, machines that may leave."""

    name: str
    machines: tuple[int, ...]
    own_process: bool = True
    leaving: int | None = None

    @property
    def processes(self) -> int:
        """How many processes there are; each of them loads data."""
        return sum(self.machines) if self.own_process else 1

    @property
    def words(self) -> str:
        """What to write below the name."""
        if self.leaving is not None:
            return "ranks come and go"
        return f"{self.processes} process{'es' * (self.processes != 1)}"


LADDER = (
    Rung("one GPU", (1,)),
    Rung("DataParallel", (4,), own_process=False),
    Rung("DDP, one machine", (4,)),
    Rung("DDP, many machines", (4, 4)),
    Rung("elastic", (4, 4), leaving=1),
)


@style.styled
def draw_ladder() -> Figure:
    """Draw the five rungs from one GPU to many machines: GPUs, processes, and an arrow for each that loads data."""
    figure, axes = style.new_figure(9, 3.6)
    axes.set(xlim=(0, 27), ylim=(0, 9.0))
    axes.axis("off")
    for number, rung in enumerate(LADDER):
        x, y = 5.4 * number, 2.0 + 0.95 * number
        axes.add_patch(Rectangle((x, 0), 5.4, y, facecolor=TRACK, lw=0))
        axes.plot([x, x, x + 5.4], [y - 0.95 * bool(number), y, y], color=GREY, lw=1.4)
        axes.text(x + 2.7, y - 0.35, rung.name, ha="center", va="top", fontsize=10.5, weight="bold")
        axes.text(x + 2.7, y - 1.15, rung.words, ha="center", va="top", fontsize=9, color=MUTED)
        rank = 0
        for machine, gpus in enumerate(rung.machines):
            wide = 0.58 * gpus + 0.2
            left = x + 2.7 - wide / 2 + 1.3 * (2 * machine - 1) * (len(rung.machines) > 1)
            _draw_machine(
                axes, left, y + 0.25, range(rank, rank + gpus), rung, leaving=machine == rung.leaving
            )
            rank += gpus
        if len(rung.machines) > 1:  # the network between machines
            ls = (0, (2, 1.6)) if rung.leaving is not None else "-"
            axes.plot([x + 2.36, x + 3.04], [y + 0.51] * 2, color=INK, lw=1.6, ls=ls, zorder=5)
    axes.annotate(
        "an arrow: a process\nthat loads its batches",
        (2.62, 4.75),
        (0.3, 6.6),
        fontsize=9.5,
        arrowprops=dict(arrowstyle="-", color=MUTED, lw=1, relpos=(0.55, 0)),
    )
    feeds = [rung.processes for rung in LADDER]
    style.title(
        axes, f"{feeds[1]} process loads for all 4 GPUs of DataParallel; with DDP every rank loads for itself"
    )
    counts = [f"{sum(rung.machines)} GPU{'s' * (sum(rung.machines) != 1)}" for rung in LADDER]
    rungs = "; ".join(
        f"{rung.name}: {count}, {rung.words}" for rung, count in zip(LADDER, counts, strict=True)
    )
    return style.describe(figure, f"The ladder of scale: {rungs}. Each process loads its own batches.")


def _draw_machine(axes: Axes, x: float, y: float, ranks: range, rung: Rung, leaving: bool) -> None:
    """Draw a machine with its GPUs in a row; outlines are processes, the arrows above them load data."""
    wide, line = 0.58 * len(ranks) + 0.2, (0, (2, 1.6)) if leaving else "-"
    _rounded(axes, x, y, wide, 1.5, PAPER, RED if leaving else MUTED, linestyle=line)
    for place, rank in enumerate(ranks):
        at = x + 0.16 + 0.58 * place
        axes.add_patch(
            Rectangle(
                (at, y + 0.5), 0.5, 0.75, facecolor=rank_color(rank), lw=0, alpha=0.35 if leaving else 1
            )
        )
        ink = INK if leaving else ink_on(rank_color(rank))
        axes.text(at + 0.25, y + 0.86, str(rank), ha="center", va="center", fontsize=9, color=ink)
    centers = [x + 0.41 + 0.58 * place for place in range(len(ranks))]
    if len(ranks) > 1:  # what the gradients travel along
        axes.plot([centers[0], centers[-1]], [y + 0.26] * 2, color=GREY if leaving else INK, lw=1.6)
        axes.plot(centers, [y + 0.26] * len(ranks), "o", color=GREY if leaving else INK, ms=3)
    for center in centers if rung.own_process else [sum(centers) / len(centers)]:
        look: Any = {
            "width": 0,
            "head": 1,
            "gap": 2,
            "style": "simple,head_length=5,head_width=7,tail_width=3",
        }
        arrow(axes, (center, y + 2.75), (center, y + 1.6), color=color_of("load"), **look)
