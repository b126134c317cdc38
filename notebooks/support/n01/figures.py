"""Figures of notebook 01, the loading pipeline: an epoch, a batch's path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator

from lib.show import style
from lib.show.charts import beside
from lib.show.explore import steps, switch, whole
from lib.show.lanes import idle, lane_bars, lane_rows
from lib.show.sheet import arrow, box
from lib.show.style import BLUE, GREEN, GREY, GRID, INK, MUTED, ORANGE, PAPER, TRACK, color_of, headline
from lib.text import plural
from lib.timeline import Trace
from support.n01.runs import (
    most_waiting,
    number_of,
    queue_depth,
    queue_held_up,
    simulate_loading,
    simulate_path,
)
from support.n01.solved import predict_epoch

MOST = 6  # workers
SLOW = 12  # the batch that may take longer
ABOVE: dict[str, Any] = dict(loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2)

WORKER_CONTROLS = dict(
    num_workers=whole(0, 6, 1, "num_workers"),
    load_ms=whole(4, 40, 20, "load (ms)", step=4),
    step_ms=whole(4, 40, 12, "step (ms)", step=4),
)

CORES_CONTROLS = dict(
    cores=steps((1, 2, 4, 8), 2, "cores"),
    waiting=steps((0, 25, 50, 75, 90), 0, "of the load is waiting (%)"),
    step_ms=steps((3, 6, 12, 24), 12, "step (ms)"),
)

QUEUE_CONTROLS = dict(
    num_workers=whole(1, 6, 2, "num_workers"),
    prefetch_factor=whole(1, 8, 2, "prefetch_factor"),
    slow_batch=steps((1, 2, 4, 6, 8), 6, "batch 12 (× load)"),
    in_order=switch(True, "in_order"),
)


@style.styled
def draw_loading_model(
    num_workers: int,
    prefetch_factor: int = 2,
    load_ms: float = 12.0,
    step_ms: float = 12.0,
    slow_batch: float = 1,
    in_order: bool = True,
    *,
    batches: int = 20,
) -> Figure:
    """Draw an epoch of the model: what every lane does, how full the queue is, and the epoch over num_workers.

    slow_batch: batch 12 takes so many times as long. in_order: whether an early batch waits for its turn.
    """
    loads = [load_ms * (slow_batch if batch == SLOW else 1) for batch in range(batches)]
    epochs = [
        simulate_loading(batches, loads, step_ms, w, prefetch_factor, in_order) for w in range(MOST + 1)
    ]
    trace = epochs[num_workers]
    lanes = num_workers + 1
    figure, axes = style.new_figure(9, 4.7 + 0.3 * lanes, rows=3, height_ratios=(0.34 * lanes, 0.85, 2.0))
    _draw_lanes(axes[0], trace, trace.end)
    axes[0].tick_params(axis="x", labelbottom=False)
    handles = [Patch(facecolor=color_of(kind), label=kind) for kind in trace.kinds if kind != "wait"]
    handles += [Patch(**style.IDLE, label="trainer waits")] if "wait" in trace.kinds else []
    axes[0].legend(handles=handles, ncols=4, **ABOVE, handlelength=1.2)
    places = num_workers * prefetch_factor
    deepest = _draw_queue(axes[1], trace, places, in_order)
    _draw_curve(axes[2], [epoch.makespan for epoch in epochs], num_workers)

    idle_share = 1 - trace.active("step") / trace.makespan
    who = plural(num_workers, "worker")
    finding = f"{who}: {trace.makespan:.0f} ms, and for {idle_share:.0%} of it the trainer does not train"
    style.title(axes[0], finding)
    axes[0].set_title(axes[0].get_title("left"), pad=30)
    curve = ", ".join(f"{epoch.makespan:.0f}" for epoch in epochs)
    setting = f"load {load_ms:.0f} ms, step {step_ms:.0f} ms"
    slower = f", batch {SLOW} takes {slow_batch:g} times as long" if slow_batch != 1 else ""
    order = "" if in_order else f"Taken as they arrive: {_turns(trace)}. "
    return style.describe(
        figure,
        f"{finding}. Model of {batches} batches: {setting}, prefetch_factor {prefetch_factor}{slower}. "
        f"{order}At most {deepest} of {places} batches lie ready. "
        f"Epoch in ms for 0 to {len(epochs) - 1} workers: {curve}.",
    )


def _turns(trace: Trace) -> str:
    """Return the numbers of the batches in the order in which the trainer took them."""
    steps = sorted(trace.only(kind="step"), key=lambda span: span.start)
    return " ".join(str(number_of(span)) for span in steps)


def _draw_lanes(axes: Axes, trace: Trace, end: float) -> None:
    """Draw every lane, the batches numbered; dotted is the time in which the trainer waits."""
    for row, lane in enumerate(trace.lanes):
        spans = trace.only(lane=lane).spans
        waits = [(span.start, span.duration) for span in spans if span.kind == "wait"]
        busy = [span for span in spans if span.kind != "wait"]
        if waits:
            idle(axes, row, waits)
        places = [(span.start, span.duration) for span in busy]
        numbers = [span.label.rpartition(" ")[2] for span in busy]
        # the lane is 560 points wide, a digit 8
        texts = [
            number if span.duration * 560 > 8 * len(number) * end else ""
            for span, number in zip(busy, numbers, strict=True)
        ]
        lane_bars(axes, row, places, [color_of(span.kind) for span in busy], texts)
    lane_rows(axes, trace.lanes, 0, end, track=True)


def _draw_queue(axes: Axes, trace: Trace, places: int, in_order: bool) -> int:
    """Draw how many batches lie ready; returns the most that ever did."""
    changes = queue_depth(trace) if places else [(0.0, 0)]
    times = [time for time, _ in changes]
    depths = [depth for _, depth in changes]
    until = [*times, trace.end]
    axes.step(until, [*depths, depths[-1]], where="post", color=GREEN, lw=1.6)
    axes.fill_between(until, [*depths, depths[-1]], step="post", color=GREEN, alpha=0.25, lw=0)
    held_up = queue_held_up(trace) if places and in_order else [0]
    if any(held_up):
        look: Any = dict(facecolor=GREEN, alpha=0.7, hatch="////", edgecolor=PAPER, lw=0)
        axes.fill_between(until, [*held_up, 0], step="post", label="ready, but not its turn", **look)
        axes.legend(loc="upper right", bbox_to_anchor=(1, 1.32), fontsize=9, handlelength=1.2)
    axes.axhline(places, color=MUTED, lw=1.2, ls=(0, (4, 3)))
    axes.set(xlim=(0, trace.end), ylim=(0, max(places, 1) * 1.25))
    axes.set(xlabel="time (ms)", ylabel="batches\nready")
    look = dict(fontsize=9, color=MUTED, annotation_clip=False)
    beside(axes, (trace.end, places), f"{places} places", (4, 0), **look)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=3, integer=True))
    return max(depths)


def _draw_curve(axes: Axes, epochs: Sequence[float], here: int) -> None:
    """Draw the epoch over num_workers: the model's line, and a ring at what is shown above."""
    axes.plot(range(len(epochs)), epochs, "-o", color=MUTED, mfc=PAPER, mew=1.4, ms=6, label="model")
    axes.plot([here], [epochs[here]], "o", ms=15, mfc="none", mec=INK, mew=2, label="shown above")
    axes.set(
        xlim=(-0.4, len(epochs) - 0.6), ylim=(0, 1.2 * max(epochs)), xlabel="num_workers", ylabel="epoch (ms)"
    )
    beside(axes, (here, epochs[here]), f"{epochs[here]:.0f}", (0, 15), ha="center")
    axes.set_xticks(range(len(epochs)))
    axes.grid(axis="y")
    axes.legend(loc="upper right", ncols=3)


@style.styled
def draw_scaling(
    predicted: Mapping[str, Sequence[float]],
    measured: Mapping[str, Sequence[Sequence[float]]],
    floor: Mapping[str, float],
    cores: float,
) -> Figure:
    """Draw epochs in seconds over 0, 1, 2 … workers, a panel a dataset.

    measured: all epochs of each point; their median is the diamond, their spread the line through it. floor: the time
    of all steps alone.
    """
    figure, axes = style.new_figure(9, 3.9, cols=len(measured), sharey=True, squeeze=False)
    gains = []
    words = []
    highest = 0.0
    for place, (name, epochs) in zip(axes[0], measured.items(), strict=True):
        seen = [1e3 * median(times) for times in epochs]
        model = [1e3 * value for value in predicted[name]]
        look: Any = dict(color=MUTED, mfc=PAPER, mew=1.4, ms=8, label="predicted", zorder=3)
        place.plot(range(len(model)), model, "-o", **look)
        place.plot(range(len(seen)), seen, "D", color=ORANGE, ms=6, label="measured", zorder=4)
        for w, times in enumerate(epochs):
            place.plot([w, w], [1e3 * min(times), 1e3 * max(times)], color=ORANGE, lw=1.6, zorder=2)
            highest = max(highest, 1e3 * max(times), model[w])
        place.axhline(1e3 * floor[name], color=BLUE, lw=1.2)
        look = dict(textcoords="offset points", va="bottom", color=BLUE, fontsize=9.5)
        place.annotate("all steps", (0, 1e3 * floor[name]), (2, 3), **look)
        place.set_title(name, fontsize=11, pad=6)
        place.set(xlabel="num_workers", xlim=(-0.35, len(seen) - 0.65))
        place.set_xticks(range(len(seen)))
        gains.append(f"{name} {seen[0] / min(seen[1:]):.1f} ×")
        numbers = ("/".join(f"{value:.0f}" for value in values) for values in (seen, model))
        words.append(f"{name}: measured {next(numbers)} ms, predicted {next(numbers)} ms")
    axes[0, 0].set(ylabel="epoch (ms)", ylim=(0, 1.1 * highest))
    axes[0, -1].legend(loc="upper right")
    finding = f"With {cores:.2f} cores, best speed with workers against none: {', '.join(gains)}"
    headline(figure, finding)
    return style.describe(figure, f"{finding}. Epochs with 0, 1, 2 … workers. {'; '.join(words)}.")


LOAD_MS = 24.0
BATCHES = 48


@style.styled
def draw_cores(cores: int, waiting: int, step_ms: float) -> Figure:
    """Draw the model's epoch over 0 to 12 workers, for a load of 24 ms of which so many per cent are waiting."""
    read = LOAD_MS * waiting / 100
    loads = [LOAD_MS - read] * BATCHES
    team = range(13)
    epochs = [predict_epoch(loads, w, cores, read, send=0, receive=0, step=step_ms) for w in team]
    alone = [predict_epoch(loads, w, 99, read, send=0, receive=0, step=step_ms) for w in team]
    best = min(epochs)
    fewest = next(w for w in team if epochs[w] <= 1.001 * best)
    figure, axes = style.new_figure(9, 3.6)
    axes.plot(team, alone, "--", color=GREY, lw=1.6, label="if each had a core")
    axes.plot(
        team, epochs, "-o", color=MUTED, mfc=PAPER, mew=1.4, ms=6, label=f"with {plural(cores, 'core')}"
    )
    axes.plot([fewest], [epochs[fewest]], "o", ms=15, mfc="none", mec=INK, mew=2, label="fewest for the best")
    axes.axhline(BATCHES * step_ms, color=BLUE, lw=1.2)
    look: Any = dict(textcoords="offset points", va="top", color=BLUE, fontsize=9.5)
    axes.annotate("all steps", (0, BATCHES * step_ms), (2, -4), **look)
    axes.axvline(cores, color=GRID, lw=6, zorder=0)
    axes.set(xlabel="num_workers (pale: as many as cores)", ylabel="epoch (ms)", ylim=(0, 1.1 * max(epochs)))
    axes.set_xticks(team)
    axes.legend(loc="upper right", ncols=3)
    gain = epochs[0] / best
    finding = f"{gain:.1f} × with {plural(fewest, 'worker')}; more than that gain nothing"
    if fewest == 0:
        finding = "Workers gain nothing here"
    style.title(axes, finding)
    curve = ", ".join(f"{epoch:.0f}" for epoch in epochs)
    setting = (
        f"load {LOAD_MS:.0f} ms, {waiting} % of it waiting, step {step_ms:g} ms, {plural(cores, 'core')}"
    )
    return style.describe(figure, f"{finding}. Model: {setting}. Epoch in ms for 0 to 12 workers: {curve}.")


@style.styled
def draw_short_epochs(rows: Mapping[str, tuple[float, float]], batches: int) -> Figure:
    """Draw a short epoch a row, from (seconds until a load begins, seconds in all); first: without workers."""
    figure, axes = style.new_figure(9, 1.5 + 0.5 * len(rows))
    for row, (start, total) in enumerate(rows.values()):
        axes.broken_barh([(0, 1e3 * start)], (row - 0.36, 0.72), **style.IDLE)
        axes.broken_barh([(1e3 * start, 1e3 * (total - start))], (row - 0.36, 0.72), color=GREY)
        beside(axes, (1e3 * total, row), f"{1e3 * total:.0f} ms", (5, 0))
    lane_rows(axes, list(rows), 0, 1.15e3 * max(total for _, total in rows.values()))
    axes.set_xlabel(f"time of an epoch of {batches} batches (ms)")
    handles = [Patch(**style.IDLE, label="nothing is loaded yet"), Patch(facecolor=GREY, label="the rest")]
    axes.legend(handles=handles, ncols=2, **ABOVE)
    (_, (_, base)), *others = rows.items()
    times = (f"{name} {total / base:.1f} ×" for name, (_, total) in others)
    finding = f"Time against no workers: {'; '.join(times)}"
    style.title(axes, finding)
    axes.set_title(axes.get_title("left"), pad=30)
    words = [
        f"{name} {1e3 * b:.0f} ms, of which {1e3 * a:.0f} before any load" for name, (a, b) in rows.items()
    ]
    return style.describe(figure, f"{finding}. Epochs of {batches} batches: {', '.join(words)}.")


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
    serial, pipeline = (
        simulate_path(batches, hops, overlap=overlap, places=SLOTS) for overlap in (False, True)
    )
    slowest = [hop for hop, time in hops.items() if time == max(hops.values())]
    pace = f"{slowest[0]} sets the pace"
    if len(slowest) > 1:
        pace = f"{' and '.join(slowest)} set the pace"
    figure, axes = style.new_figure(9, 6.6, rows=3, height_ratios=(1.5, 1.15, 1.15))
    _draw_places(axes[0], hops, pipeline)
    ways = {"one after the other": serial, "as a pipeline": pipeline}
    for place, (name, trace) in zip(axes[1:], ways.items(), strict=True):
        _draw_lanes(place, trace, 1.004 * serial.end)
        place.set_title(f"{name}: {trace.end:g} ms", fontsize=11, pad=5)
        place.axvline(trace.end, color=INK, lw=1.4, ls=(0, (4, 3)))
    axes[1].tick_params(labelbottom=False)
    axes[2].set_xlabel("time (ms)")
    count = plural(batches, "batch", "batches")
    finding = f"{count}: {serial.end:g} ms one after the other, {pipeline.end:g} ms as a pipeline; " + (
        pace if batches > 1 else "one batch alone gains nothing"
    )
    style.title(axes[0], finding)
    times = ", ".join(f"{hop} {time:g} ms" for hop, time in hops.items())
    busy = ", ".join(f"{hop} {pipeline.busy(hop) / pipeline.makespan:.0%}" for hop in hops)
    path = "storage, pageable host memory, pinned host memory, device memory, model"
    lying = [most_waiting(pipeline, *pair) for pair in pairwise(hops)]
    queues = ", ".join(f"{count} before {hop}" for hop, count in zip(list(hops)[1:], lying, strict=True))
    words = f"The path of a batch: {path}; its hops: {times}. Busy in the pipeline: {busy}. Most that wait: {queues}."
    return style.describe(figure, f"{finding}. {words}")


def _draw_places(axes: Axes, hops: Mapping[str, float], pipeline: Trace) -> None:
    """Draw the five places in a row, an arrow for each hop, and behind them the host and the device that hold them.

    A queue shows as many filled slots as ever lie in it at the same time.
    """
    axes.set(xlim=(0, 18.2), ylim=(0, 4.5))
    axes.axis("off")
    for left, right, name in ((3.8, 10.05, "host: CPU cores and RAM"), (12.25, 18.15, "device: GPU")):
        _rounded(axes, left, 0.05, right - left, 4.3, TRACK, GRID)
        axes.text(left + 0.25, 3.97, name, fontsize=9.5, color=MUTED, va="center")
    names = list(hops)
    for number, place in enumerate(PLACES):
        x = 4.1 * number + 0.1
        if number == 0:
            _rounded(axes, x, 1.35, 1.4, 1.9, GRID, MUTED)
        elif number < len(hops):
            filled = most_waiting(pipeline, names[number - 1], names[number])
            _draw_slots(axes, x, 1.35, 1.6, 1.9, color_of(names[number - 1]), filled)
        else:
            _rounded(axes, x, 1.35, 1.4, 1.9, color_of("step"), color_of("step"))
        axes.text(x + 0.78, 1.15, place, ha="center", va="top", fontsize=9.5, linespacing=1.15)
    for number, (hop, milliseconds) in enumerate(hops.items()):
        left = 4.1 * number + 1.72
        right = 4.1 * number + 4.18
        style = "simple,head_length=8,head_width=11,tail_width=4"
        arrow(axes, (left, 2.3), (right, 2.3), color=color_of(hop), width=0, head=1, gap=2, style=style)
        middle = (left + right) / 2
        above = f"{hop}\n{milliseconds:g} ms"
        axes.text(middle, 2.62, above, ha="center", va="bottom", fontsize=9.5, weight="bold", linespacing=1.1)
        axes.text(middle, 1.92, HOPS[hop], ha="center", va="top", fontsize=9, color=MUTED)


def _draw_slots(axes: Axes, x: float, y: float, width: float, height: float, color: str, filled: int) -> None:
    """Draw a place in memory as a box with slots for batches."""
    _rounded(axes, x, y, width, height, PAPER, color, 2.0)
    for slot in range(SLOTS):
        face = color if slot < filled else PAPER
        at = (x + 0.25, y + 0.24 + 0.5 * slot)
        axes.add_patch(Rectangle(at, width - 0.5, 0.38, facecolor=face, edgecolor=GREY, lw=1))


def _rounded(
    axes: Axes,
    x: float,
    y: float,
    width: float,
    height: float,
    face: str,
    edge: str,
    line: float = 1.2,
    **look: Any,
) -> None:
    """Draw a box whose lower left corner is (x, y)."""
    look |= dict(face=face, edge=edge, line=line, radius=0.12, zorder=1)
    box(axes, x + width / 2, y + height / 2, width, height, **look)
