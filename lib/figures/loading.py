"""Notebook 01: an epoch of the DataLoader as the model predicts it: lanes, queue, and the epoch over num_workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from lib.data.loading import queue_depth, simulate_loading
from lib.show import style
from lib.show.explore import Control, choice, steps, whole
from lib.show.style import BLUE, GREEN, INK, MUTED, PAPER, RED, color_of
from lib.show.timeline import bar, lane_rows
from lib.timeline import Trace

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
    workers = f"{num_workers} worker{'s' * (num_workers != 1)}"
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
            fits = (
                span.kind != "read" and span.duration * 560 > 8 * len(number) * trace.end
            )  # 560 points wide
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
