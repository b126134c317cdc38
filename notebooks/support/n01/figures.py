"""Figures of notebook 01, the loading pipeline: an epoch, a batch's path, the ladder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse, Patch, Rectangle
from matplotlib.ticker import MaxNLocator

from lib._values import plural
from lib.show import style
from lib.show.explore import Control, choice, steps, whole
from lib.show.sheet import arrow, box
from lib.show.style import (
    BLUE,
    GREEN,
    GREY,
    GRID,
    INK,
    MUTED,
    ORANGE,
    PAPER,
    PINK,
    RED,
    TRACK,
    color_of,
    headline,
    ink_on,
    rank_color,
)
from lib.show.timeline import bar, draw_timeline, lane_rows
from lib.timeline import Span, Trace
from support.n01.runs import TRAINER, queue_depth, simulate_loading, simulate_path

# ---- An epoch of the DataLoader as the model predicts it: lanes, queue, and the epoch over num_workers.

MOST = 6  # workers on the axis of the curve, at least
SLOW = 12  # the batch that may take longer
ENOUGH = "enough"

WORKER_CONTROLS = dict(
    num_workers=whole(0, 6, 1, "num_workers"),
    load_ms=whole(4, 40, 20, "load (ms)", step=4),
    step_ms=whole(4, 40, 12, "step (ms)", step=4),
)

QUEUE_CONTROLS = dict(
    num_workers=whole(1, 6, 2, "num_workers"),
    prefetch_factor=whole(1, 8, 2, "prefetch_factor"),
    slow_batch=steps((1, 2, 4, 6, 8), 6, "batch 12 (× load)"),
)


def core_controls(cores: float) -> dict[str, Control]:
    """Return controls that start at the cores that this machine gives, to one decimal."""
    cores = round(cores, 1)
    return dict(
        num_workers=whole(0, 6, 2, "num_workers"),
        prefetch_factor=whole(1, 6, 2, "prefetch_factor"),
        cores=choice((*sorted({1.0, 2.0, 4.0, 8.0, cores}), ENOUGH), cores, "cores"),
    )


@style.styled
def draw_loading_model(
    num_workers: int,
    prefetch_factor: int = 2,
    load_ms: float = 12.0,
    step_ms: float = 12.0,
    slow_batch: float = 1,
    *,
    waiting_ms: float = 0.0,
    cores: float | str | None = None,
    batches: int = 20,
    measured: Mapping[int, Sequence[float]] | None = None,
) -> Figure:
    """Draw an epoch of the model: what every lane does, how full the queue is, and the epoch over num_workers.

    slow_batch: batch 12 takes so many times as long. waiting_ms: the part of load that needs no core. cores: a
    number, or None or "enough". measured: seconds of measured epochs by num_workers, drawn over the curve.
    """
    limit = None if isinstance(cores, str) else cores
    loads = [load_ms * (slow_batch if batch == SLOW else 1) for batch in range(batches)]
    reach = range(max(MOST, num_workers, *(measured or {})) + 1)
    epochs = [
        simulate_loading(batches, loads, step_ms, workers, prefetch_factor, waiting=waiting_ms, cores=limit)
        for workers in reach
    ]
    trace = epochs[num_workers]
    lanes = num_workers + 1
    figure, axes = style.new_figure(9, 4.7 + 0.3 * lanes, rows=3, height_ratios=(0.34 * lanes, 0.85, 2.0))
    _draw_lanes(axes[0], trace)
    places = num_workers * prefetch_factor
    deepest = _draw_queue(axes[1], trace, places)
    _draw_curve(axes[2], [epoch.makespan for epoch in epochs], num_workers, measured or {})

    idle = 1 - trace.active("step") / trace.makespan
    workers = plural(num_workers, "worker")
    finding = f"{workers}: {trace.makespan:.0f} ms, and for {idle:.0%} of it the trainer does not train"
    style.title(axes[0], finding)
    axes[0].set_title(axes[0].get_title("left"), pad=30)
    curve = ", ".join(f"{epoch.makespan:.0f}" for epoch in epochs)
    seen = "; ".join(f"{count}: {1e3 * median(times):.0f}" for count, times in (measured or {}).items())
    setting = f"load {load_ms:.0f} ms ({waiting_ms:.0f} ms of it waiting), step {step_ms:.0f} ms"
    slower = f", batch {SLOW} takes {slow_batch:g} times as long" if slow_batch != 1 else ""
    return style.describe(
        figure,
        f"{finding}. Model of {batches} batches: {setting}, prefetch_factor {prefetch_factor}, cores {cores or ENOUGH}"
        f"{slower}. At most {deepest} of {places} batches lie ready. Epoch in ms for 0 to {reach[-1]} workers: {curve}."
        + (f" Measured, in ms, by workers: {seen}." if seen else ""),
    )


def _draw_lanes(axes: Axes, trace: Trace) -> None:
    """Draw every lane of the epoch; hatched is the time in which the trainer waits."""
    for row, lane in enumerate(trace.lanes):
        for span in trace.only(lane=lane):
            if span.kind == "wait":
                bar(axes, row, span.start, span.duration, PAPER, edgecolor=RED, hatch="////", linewidth=0.8)
                continue
            number = span.label.rpartition(" ")[2]
            # the lane is 560 points wide, a digit 8
            fits = span.kind != "read" and span.duration * 560 > 8 * len(number) * trace.end
            bar(axes, row, span.start, span.duration, color_of(span.kind), number if fits else "")
    lane_rows(axes, trace.lanes, 0, trace.end, track=True)
    axes.tick_params(axis="x", labelbottom=False)
    handles = [Patch(facecolor=color_of(kind), label=kind) for kind in trace.kinds if kind != "wait"]
    if "wait" in trace.kinds:
        handles.append(Patch(facecolor=PAPER, edgecolor=RED, hatch="////", label="trainer waits"))
    axes.legend(
        handles=handles, ncols=4, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2, handlelength=1.2
    )


def _draw_queue(axes: Axes, trace: Trace, places: int) -> int:
    """Draw how many batches lie ready; returns the most that ever did."""
    changes = queue_depth(trace) if places else [(0.0, 0)]
    times, depths = [time for time, _ in changes], [depth for _, depth in changes]
    axes.step([*times, trace.end], [*depths, depths[-1]], where="post", color=GREEN, lw=1.6)
    axes.fill_between([*times, trace.end], [*depths, depths[-1]], step="post", color=GREEN, alpha=0.25, lw=0)
    axes.axhline(places, color=MUTED, lw=1.2, ls=(0, (4, 3)))
    axes.set(
        xlim=(0, trace.end), ylim=(0, max(places, 1) * 1.25), xlabel="time (ms)", ylabel="batches\nready"
    )
    axes.annotate(
        f"{places} places",
        (1, places),
        (4, 0),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        va="center",
        fontsize=9,
        color=MUTED,
        annotation_clip=False,
    )
    axes.yaxis.set_major_locator(MaxNLocator(nbins=3, integer=True))
    return max(depths)


def _draw_curve(
    axes: Axes, epochs: Sequence[float], here: int, measured: Mapping[int, Sequence[float]]
) -> None:
    """Draw the epoch over num_workers: the model's line, a ring at what is shown above, diamonds that were measured."""
    axes.plot(range(len(epochs)), epochs, "-o", color=MUTED, mfc=PAPER, mew=1.4, ms=6, label="model")
    axes.plot([here], [epochs[here]], "o", ms=15, mfc="none", mec=INK, mew=2, label="shown above")
    draw_measured(axes, measured)
    top = 1.2 * max([*epochs, *(1e3 * max(times) for times in measured.values())])
    axes.set(xlim=(-0.4, len(epochs) - 0.6), ylim=(0, top), xlabel="num_workers", ylabel="epoch (ms)")
    beside = (0, -24) if measured else (0, 12)  # points
    axes.annotate(
        f"{epochs[here]:.0f}", (here, epochs[here]), beside, textcoords="offset points", ha="center"
    )
    axes.set_xticks(range(len(epochs)))
    axes.grid(axis="y")
    axes.legend(loc="upper right", ncols=3)


def draw_measured(axes: Axes, measured: Mapping[int, Sequence[float]]) -> None:
    """Draw the median of the measured seconds as a filled diamond and their range as a line; nothing for no epochs."""
    if not measured:
        return
    middles = [1e3 * median(times) for times in measured.values()]
    low = [middle - 1e3 * min(times) for middle, times in zip(middles, measured.values(), strict=True)]
    high = [1e3 * max(times) - middle for middle, times in zip(middles, measured.values(), strict=True)]
    look = dict(fmt="D", color=BLUE, ms=6, lw=1.6, label="measured here", zorder=5)
    axes.errorbar(list(measured), middles, [low, high], **look)  # type: ignore[arg-type]


# ---- What was measured: a faster device, epochs over num_workers, the start of workers, copies to a GPU.


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


# ---- The path of a batch from storage to the device, hop by hop, and the ladder from one GPU to many.

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
    count = plural(batches, "batch", "batches")
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
            _draw_slots(axes, x, 1.35, 1.6, 1.9, color_of(names[number - 1]), filled=SLOTS if full else 1)
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


def _draw_slots(axes: Axes, x: float, y: float, width: float, height: float, color: str, filled: int) -> None:
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
        return plural(self.processes, "process", "processes")


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
    counts = [plural(sum(rung.machines), "GPU") for rung in LADDER]
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
