"""Notebook 01: what was measured: a faster device, epochs over num_workers, the start of workers, copies to a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from lib.data.loading import TRAINER, simulate_loading, simulate_path
from lib.figures.loading import draw_measured
from lib.show import style
from lib.show.style import BLUE, GREEN, GRID, INK, MUTED, ORANGE, PAPER, PINK, RED, color_of, headline, ink_on
from lib.show.timeline import draw_timeline
from lib.timeline import Span, Trace


@style.styled
def draw_prepared(
    raw: Sequence[torch.Tensor], prepared: Sequence[torch.Tensor], words: Sequence[str]
) -> Figure:
    """Draw images as they come from storage, and below them as they reach the model; all are (1, height, width)."""
    figure, axes = style.new_figure(9, 2.9, rows=2, cols=len(raw), squeeze=False)
    for column, (before, after) in enumerate(zip(raw, prepared, strict=True)):
        for place, image in zip(axes[:, column], (before, after), strict=True):
            place.imshow(image[0].numpy(), cmap="gray_r", interpolation="nearest", vmin=0, vmax=1)
            place.set(xticks=[], yticks=[])
            place.spines[:].set(visible=True, color=GRID)
        axes[0, column].set_title(words[column], fontsize=10, loc="center", weight="normal", pad=4)
    sizes = [f"{images[0].shape[-2]} × {images[0].shape[-1]}" for images in (raw, prepared)]
    for place, size in zip(axes[:, 0], sizes, strict=True):
        place.set_ylabel(size)
    finding = f"From {sizes[0]} pixels in a file to {sizes[1]} for the model, turned a little"
    headline(figure, finding)
    return style.describe(figure, f"{finding}. {len(raw)} handwritten digits: {', '.join(words)}.")


@style.styled
def draw_faster_device(load: float, step: float, factors: Sequence[int] = (1, 2, 4, 8, 16)) -> Figure:
    """Draw a batch without workers on devices that are so many times as fast: load stays, step shrinks. In seconds."""
    figure, axes = style.new_figure(9, 1.1 + 0.42 * len(factors))
    gain = (load + step) / (load + step / factors[-1])
    for row, factor in enumerate(factors):
        for kind, start, width in (("load", 0.0, load), ("step", load, step / factor)):
            bar = [(1e3 * start, 1e3 * width)]
            axes.broken_barh(
                bar, (row - 0.36, 0.72), facecolors=PAPER, edgecolors=color_of(kind), linewidths=2
            )
        share = load / (load + step / factor)
        axes.text(1e3 * (load + step / factor), row, f"  {share:.0%} loading", va="center", fontsize=10)
        axes.text(1e3 * load / 2, row, "load", ha="center", va="center", fontsize=10)
    axes.set_yticks(range(len(factors)), [f"{factor} × as fast" for factor in factors], color=INK)
    axes.set(
        xlim=(0, 1.22e3 * (load + step)),
        ylim=(len(factors) - 0.5, -0.5),
        xlabel="time of a batch (ms), predicted",
    )
    axes.tick_params(axis="y", length=0)
    finding = f"A device {factors[-1]} × as fast makes the epoch only {gain:.2g} × as fast"
    style.title(axes, finding)
    shares = ", ".join(f"{factor} times as fast: {load / (load + step / factor):.0%}" for factor in factors)
    return style.describe(figure, f"{finding}. Share of loading in a batch, predicted: {shares}.")


@dataclass(frozen=True)
class Epochs:
    """What one dataset costs, in seconds: a load, how much of it is waiting, a step; and measured epochs by workers."""

    load: float
    waiting: float
    step: float
    measured: Mapping[int, Sequence[float]]

    def predicted(self, batches: int, workers: int, cores: float | None) -> float:
        """Return the seconds that the model gives."""
        return simulate_loading(
            batches, self.load, self.step, workers, waiting=self.waiting, cores=cores
        ).makespan


@style.styled
def draw_scaling(cases: Mapping[str, Epochs], batches: int, cores: float) -> Figure:
    """Draw epochs over num_workers, a panel a case: the model with these cores, with enough, and what was seen."""
    figure, axes = style.new_figure(9, 3.9, cols=len(cases), sharey=True, squeeze=False)
    words, gains = [], []
    for place, (name, case) in zip(axes[0], cases.items(), strict=True):
        workers = range(max(case.measured) + 1)
        enough, model = ([1e3 * case.predicted(batches, w, c) for w in workers] for c in (None, cores))
        place.plot(workers, enough, color=GREEN, ls=(0, (4, 3)), lw=1.6, label="model, enough cores")
        place.plot(
            workers, model, "-o", color=MUTED, mfc=PAPER, mew=1.4, ms=6, label=f"model, {cores:.2g} cores"
        )
        floor = 1e3 * batches * case.step
        place.axhline(floor, color=BLUE, lw=1.2)
        place.annotate(
            "all steps", (0, floor), (2, -4), textcoords="offset points", va="top", color=BLUE, fontsize=9.5
        )
        draw_measured(place, case.measured)
        place.set_title(name, fontsize=11, pad=6)
        place.set(xlabel="num_workers", ylim=(0, None), xlim=(-0.35, len(workers) - 0.65))
        place.set_xticks(list(workers))
        middle = {count: median(times) for count, times in case.measured.items()}
        gains.append(f"{name}: {middle[0] / min(middle.values()):.1f} × as fast")
        seen = ", ".join(f"{1e3 * seconds:.0f}" for seconds in middle.values())
        words.append(f"{name}: measured {seen} ms; model {', '.join(f'{ms:.0f}' for ms in model)} ms")
    axes[0, 0].set_ylabel("epoch (ms)")
    top = max(1e3 * max(times) for case in cases.values() for times in case.measured.values())
    axes[0, 0].set_ylim(
        0, 1.1 * max(top, *(1e3 * batches * (case.load + case.step) for case in cases.values()))
    )
    axes[0, -1].legend(loc="upper right")
    finding = "; ".join(gains)
    headline(figure, finding)
    told = f"Epochs over 0 to {max(workers)} workers. {'; '.join(words)}."
    return style.describe(
        figure, f"{finding}. {told} With enough cores the model falls to the time of all steps."
    )


@style.styled
def draw_startup(runs: Mapping[str, Sequence[Trace]]) -> Figure:
    """Draw the epochs of each run end to end; hatched is the time before any worker has begun to load."""
    figure, axes = style.new_figure(9, 1.4 + 0.55 * len(runs))
    lost, total = {}, {}
    for row, (name, epochs) in enumerate(runs.items()):
        clock = 0.0
        starts = [min(span.start for span in epoch if span.lane != TRAINER) - epoch.start for epoch in epochs]
        for number, (epoch, start) in enumerate(zip(epochs, starts, strict=True)):
            begin, first, end = (1e3 * (clock + t) for t in (0.0, start, epoch.makespan))
            axes.broken_barh([(first, end - first)], (row - 0.36, 0.72), facecolors=BLUE, edgecolors=PAPER)
            axes.broken_barh(
                [(begin, first - begin)], (row - 0.36, 0.72), facecolors=PAPER, edgecolors=RED, hatch="////"
            )
            axes.text(
                (first + end) / 2,
                row,
                f"epoch {number}",
                ha="center",
                va="center",
                color=ink_on(BLUE),
                fontsize=9.5,
            )
            clock += epoch.makespan
        lost[name], total[name] = sum(starts), clock
    axes.set_yticks(range(len(runs)), list(runs), color=INK)
    axes.tick_params(axis="y", length=0)
    axes.set(xlim=(0, 1.02e3 * max(total.values())), ylim=(len(runs) - 0.5, -0.5), xlabel="time (ms)")
    handles = [Patch(facecolor=PAPER, edgecolor=RED, hatch="////", label="no worker loads yet")]
    axes.legend(handles=[*handles, Patch(facecolor=BLUE, label="the epoch itself")], ncols=2, loc="lower left",
                bbox_to_anchor=(0, 1), borderaxespad=0.2)  # fmt: skip
    shares = {name: lost[name] / total[name] for name in runs}
    parts = ", ".join(f"{share:.0%} with {name}" for name, share in shares.items())
    finding = f"Start-up takes {parts}"
    style.title(axes, finding)
    axes.set_title(axes.get_title("left"), pad=30)
    sums = ", ".join(f"{name} {1e3 * total[name]:.0f} ms" for name in runs)
    return style.describe(figure, f"{finding}. All epochs: {sums}.")


def predict_copies(batches: int, transfer: float, step: float) -> Trace:
    """Return what pinned memory changes: a trainer that waits for each copy, and one whose copies run ahead of it."""
    hops, spans = dict(transfer=transfer, step=step), []
    for name, overlap in (("pageable", False), ("pinned", True)):
        for span in simulate_path(batches, hops, overlap=overlap):
            engine = overlap and span.kind == "transfer"
            lane = f"{name}: {'copy engine' if engine else 'trainer'}"
            spans.append(Span(lane, span.label, span.start, span.end, span.kind))
    return Trace(spans, ["pageable: trainer", "pinned: copy engine", "pinned: trainer"])


def draw_copies(
    rows: Sequence[Mapping[str, float]] = (),
    *,
    recorded: str | None = None,
    transfer: float = 4e-3,
    step: float = 6e-3,
) -> Figure:
    """Draw measured copies to a GPU, or, where there are none, what the model predicts for 5 batches.

    rows: of `measure_copies`. recorded: the line that says where they were measured, if not here.
    """
    if rows:
        return _draw_copies(rows, recorded)
    trace = predict_copies(5, transfer, step)
    waits, runs = 5 * (transfer + step), trace.only(lane="pinned: trainer").end
    finding = f"No recording yet. Predicted: pageable {1e3 * waits:.0f} ms, pinned {1e3 * runs:.0f} ms"
    return draw_timeline(predicted=trace, title=finding)


@style.styled
def _draw_copies(rows: Sequence[Mapping[str, float]], recorded: str | None) -> Figure:
    figure, axes = style.new_figure(9, 3.9)
    sizes = [row["megabytes"] for row in rows]
    for name, color, mark in (("pageable", ORANGE, "s"), ("pinned", BLUE, "o")):
        done, call = ([1e3 * row[f"{name}_{end}"] for row in rows] for end in ("done", "call"))
        axes.plot(sizes, done, f"-{mark}", color=color, label=f"{name}: copied")
        axes.plot(sizes, call, f"--{mark}", color=color, mfc=PAPER, mew=1.4, label=f"{name}: CPU free again")
    axes.set(xscale="log", yscale="log", xlabel="size of the batch (MB)", ylabel="time (ms)")
    axes.grid()
    axes.legend(ncols=2)
    last = rows[-1]
    faster, sooner = last["pageable_done"] / last["pinned_done"], last["pageable_call"] / last["pinned_call"]
    size = f"{last['megabytes']:.0f} MB"
    finding = f"{size} from pinned memory: {faster:.1f} × as fast, CPU free {sooner:.0f} × as soon"
    style.title(axes, finding)
    if recorded:
        note: dict[str, Any] = dict(boxstyle="round,pad=0.4", facecolor=PINK + "2b", edgecolor=PINK)
        figure.supxlabel(recorded, fontsize=9, bbox=note)
    return style.describe(figure, f"{finding}. {recorded or 'Measured here'}.")
