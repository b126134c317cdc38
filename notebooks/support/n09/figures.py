"""Figures of notebook 09, streams, tasks, workers: the runtime, CUDA streams, threads, clocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import ConnectionPatch

from lib.pipeline import clock_cycles
from lib.show import style
from lib.show.charts import beside, row_bars
from lib.show.explore import switch, whole
from lib.show.lanes import bar
from lib.show.sheet import Cell, arrow, box, draw_cell, write
from lib.show.style import INK, MUTED, PAPER, describe, new_figure, rank_color, styled, title
from lib.text import format_time, plural
from lib.timeline import Span, Trace
from support.n09.two_streams import simulate_streams

# ---- Where every task of a pipeline is after each of the seven steps of its runtime, and in words.

MICRO_BATCHES = 4
NAMES = ("queues", "spawn", "hand out", "put", "run", "result", "take")


@dataclass
class Scene:
    """Say where every task is: by partition j, the micro-batch i that lies there."""

    partitions: int
    workers: bool = True
    held: bool = True
    queued: dict[int, int] = field(default_factory=dict)
    running: dict[int, int] = field(default_factory=dict)
    answered: dict[int, int] = field(default_factory=dict)
    taken: dict[int, int] = field(default_factory=dict)
    done: set[tuple[int, int]] = field(default_factory=set)
    now: set[tuple[int, int]] = field(default_factory=set)


def scene_at(step: int, clock: int, partitions: int) -> Scene:
    """Return where everything is after `step` (1 to 7) of a clock; the first three steps come before all clocks."""
    if step <= 3:
        return Scene(partitions, workers=step > 1, held=step > 2)
    clocks = list(clock_cycles(MICRO_BATCHES, partitions))
    scene = Scene(partitions, done=set(chain(*clocks[:clock])), now=set(clocks[clock]))
    place = {4: scene.queued, 5: scene.running, 6: scene.answered, 7: scene.taken}[step]
    place.update({j: i for i, j in clocks[clock]})
    return scene


def step_in_words(name: str, scene: Scene, clock: int) -> str:
    """Say what a step of a clock does."""
    if name in NAMES[:3]:
        ready = "each partition gets a queue for tasks and one for answers"
        start = "each partition gets a thread, its worker, which waits"
        return (ready, start, "the scheduler holds both lists of queues")[NAMES.index(name)]
    *others, last = [f"F{i}" for i, _ in sorted(scene.now, key=lambda pair: pair[1])]
    tasks = f"{', '.join(others)} and {last}" if others else last
    one = ("waits in its queue", "runs", "is answered", "is back")
    many = ("wait in their queues", "run at the same time", "are answered", "are back")
    is_last = clock == MICRO_BATCHES + scene.partitions - 2
    happens = (one if len(scene.now) == 1 else many)[NAMES.index(name) - 3]
    return f"in clock {clock}{', the last' * is_last}, {tasks} {happens}"


def words(scene: Scene) -> str:
    """Say where everything is."""
    where = {"in_queues": scene.queued, "workers": scene.running, "out_queues": scene.answered}
    if scene.workers:
        staff = plural(scene.partitions, "worker")
    else:
        staff = f"{plural(scene.partitions, 'partition')}, no worker yet"
    return "; ".join(
        [staff]
        + [
            f"in the {name}: " + ", ".join(f"micro-batch {i} of partition {j}" for j, i in place.items())
            for name, place in {**where, "scheduler": scene.taken}.items()
            if place
        ]
        + [f"{len(scene.done)} tasks done before."]
    )


# ---- The runtime as a picture that steps: a scheduler, a worker a partition, two queues between them.

RUNTIME_CONTROLS = {
    "step": whole(1, len(NAMES), 4, "step"),
    "clock": whole(0, MICRO_BATCHES + 2, 2, "k · clock"),
    "partitions": whole(1, 4, 3, "n · partitions"),
}

# inches, from the upper left corner of the figure
ROW = 1.12
TOP = 0.72
SIDE = 0.31
WIRE: Any = {"width": 1.8, "head": 14, "gap": 2, "zorder": 4}
SCHEDULER = (0.08, 1.72)
PIPE = (2.5, 4.1)
WORKER = (4.72, 6.1)
TABLE = 6.62
WAYS = {  # of a task in these steps: from, to, and on the height of which queue (0 in, 1 out)
    "put": (SCHEDULER[1], PIPE[0], 0),
    "run": (PIPE[1], WORKER[0], 0),
    "result": (WORKER[0], PIPE[1], 1),
    "take": (PIPE[0], SCHEDULER[1], 1),
}


@styled
def draw_runtime(step: int, clock: int, partitions: int) -> Figure:
    """Draw one of the seven steps in one clock of a forward pass (a clock beyond the last is taken as the last)."""
    clock = min(clock, MICRO_BATCHES + partitions - 2)
    name = NAMES[step - 1]
    scene = scene_at(step, clock, partitions)
    figure, axes = _stage(partitions)
    _banner(axes, name)
    _draw_scene(axes, scene)
    if name in WAYS:
        start, end, queue = WAYS[name]
        for _, j in scene.now:
            y = _lanes(j)[queue]
            arrow(axes, (start, y), (end, y), color=INK, **WIRE)
    title(axes, f"Step {step} of {len(NAMES)}, {name}: {step_in_words(name, scene, clock)}")
    return describe(figure, f"{axes.get_title('left')}. {words(scene)}")


@styled
def draw_stuck(seconds: float) -> Figure:
    """Draw clock 0 of two partitions after the scheduler asked the last partition first, `seconds` ago."""
    scene = Scene(2, answered={0: 0}, now={(0, 0)})
    figure, axes = _stage(2)
    _draw_scene(axes, scene)
    for start, end, queue in WAYS.values():
        y = _lanes(1)[1 - queue]  # against the way of tasks and answers
        arrow(axes, (start, y), (end, y), color=INK, **{**WIRE, "width": 2.6})
    axes.text(0.1, 0.3, "out_queues[1].get()", family="DejaVu Sans Mono", fontsize=11, va="center")
    axes.text(0.1, 0.62, "arrow: waits for", fontsize=11, weight="bold", va="center")
    title(
        axes, f"The scheduler waits for worker 1, worker 1 for the scheduler: {seconds:.1f} s, and no answer"
    )
    ring = "Arrows: scheduler, out_queues[1], worker 1, in_queues[1], scheduler: a ring of 4 waits."
    return describe(figure, f"{axes.get_title('left')}. {ring} {words(scene)}")


def _stage(partitions: int) -> tuple[Figure, Axes]:
    height = TOP + partitions * ROW
    figure, axes = new_figure(9, height + 0.35)
    axes.set(xlim=(0, 9), ylim=(height, 0), aspect="equal")
    axes.axis("off")
    return figure, axes


def _lanes(j: int) -> tuple[float, float]:
    """Return the heights of partition j's in_queue and out_queue."""
    middle = TOP + (j + 0.5) * ROW
    return middle - 0.24, middle + 0.24


def _banner(axes: Axes, current: str) -> None:
    x = 0.08
    for number, name in enumerate(NAMES, start=1):
        width = 0.52 + 0.088 * len(name)
        now = name == current
        _frame(axes, (x, x + width), (0.02, 0.32), INK if now else PAPER, INK if now else style.GREY)
        look: Any = {"weight": "bold" if now else "normal", "color": PAPER if now else MUTED}
        axes.text(x + width / 2, 0.17, f"{number} {name}", ha="center", va="center", fontsize=10, **look)
        x += width + 0.1


def _draw_scene(axes: Axes, scene: Scene) -> None:
    bottom = TOP + scene.partitions * ROW - 0.12
    _frame(axes, SCHEDULER, (TOP + 0.08, bottom), style.TRACK, INK)
    axes.text(0.18, TOP + 0.28, "scheduler", weight="bold", va="center")
    axes.text(0.18, TOP + 0.5, "your thread", color=MUTED, fontsize=10, va="center")
    if scene.held and not scene.taken and scene.partitions > 1:
        axes.text(0.18, bottom - 0.3, "in_queues\nout_queues", fontsize=10, va="center", color=MUTED)
    for j in range(scene.partitions):
        upper, lower = _lanes(j)
        if scene.workers:
            _worker(axes, j, scene)
        _pipe(axes, upper, f"in_queues[{j}]" if scene.held else "in_queue", j)
        _pipe(axes, lower, f"out_queues[{j}]" if scene.held else "out_queue", j)
        # a queue fills from its far end: next to whoever takes from it
        for place, at in (
            (scene.queued, (PIPE[1] - 0.26, upper)),
            (scene.answered, (PIPE[0] + 0.26, lower)),
            (scene.running, (WORKER[1] - 0.32, (upper + lower) / 2)),
            (scene.taken, (SCHEDULER[1] - 0.32, lower - 0.05 if j else lower + 0.06)),
        ):
            if j in place:
                draw_cell(axes, *at, Cell(place[j], j), size=SIDE, font=11)
    _table(axes, scene)


def _worker(axes: Axes, j: int, scene: Scene) -> None:
    upper, lower = _lanes(j)
    busy = j in scene.running
    color = rank_color(j)
    face = style.pale(color, 0.25) if busy else style.TRACK
    _frame(axes, WORKER, (upper - 0.2, lower + 0.2), face, color)
    middle = (upper + lower) / 2
    doing = "computes" if busy else "waits"
    axes.text(WORKER[0] + 0.1, middle - 0.13, f"worker {j}", weight="bold", fontsize=10.5, va="center")
    axes.text(WORKER[0] + 0.1, middle + 0.13, doing, fontsize=10, va="center", color=MUTED)


def _pipe(axes: Axes, y: float, name: str, j: int) -> None:
    for edge in (y - 0.18, y + 0.18):
        axes.plot(PIPE, [edge, edge], color=rank_color(j), linewidth=1.6, solid_capstyle="butt")
    left = "out" in name
    x, side = (PIPE[1] - 0.08, "right") if left else (PIPE[0] + 0.08, "left")
    axes.text(x, y, name, fontsize=9, color=MUTED, ha=side, va="center_baseline")


def _table(axes: Axes, scene: Scene) -> None:
    """Draw the clocks to the right of the workers: a column a clock, the micro-batch in the cell."""
    axes.text(TABLE, TOP - 0.02, "clock", fontsize=10, color=MUTED, ha="left", va="center")
    for k, pairs in enumerate(clock_cycles(MICRO_BATCHES, scene.partitions)):
        x = TABLE + 0.16 + k * 0.33
        axes.text(x, TOP + 0.2, str(k), fontsize=9, color=MUTED, ha="center", va="center")
        for i, j in pairs:
            done = (i, j) in scene.done
            now = (i, j) in scene.now and not done
            hue = rank_color(j) if done or now else style.GREY
            y = TOP + (j + 0.5) * ROW
            cell = Cell(i, color=hue, mark="plain" if now else "faded")
            draw_cell(axes, x, y, cell, size=0.29, font=9)


def _frame(axes: Axes, x: tuple[float, float], y: tuple[float, float], face: str, edge: str) -> None:
    size = x[1] - x[0], y[1] - y[0]
    box(axes, sum(x) / 2, sum(y) / 2, *size, face=face, edge=edge, radius=0.06, zorder=1)


# ---- What a CUDA stream orders: launches on the CPU, kernels on the device.
# A kernel starts when it is launched and its stream is free; an event lets one stream wait for the other.

STREAMS_CONTROLS = {
    "streams": whole(1, 2, 2, "streams"),
    "threads": whole(1, 2, 1, "launching threads"),
    "kernel": whole(1, 6, 3, "ticks per kernel"),
    "launch": whole(1, 4, 1, "ticks per launch"),
    "waits": switch(False, "B0 waits for A1 (event)"),
}


@styled
def draw_streams(streams: int, threads: int, kernel: int, launch: int, waits: bool) -> Figure:
    """Draw the launches of A0 … A3 and B0 … B3 and when their kernels run.

    The CPU stands between the streams, so that no line from a launch to its kernel crosses another stream's lane.
    """
    trace = simulate_streams(streams, threads, kernel=kernel, launch=launch, waits=waits)
    single = simulate_streams(1, kernel=kernel, launch=launch).end
    order = ["stream 0", *(f"thread {t}" for t in range(threads)), "stream 1"][: streams + threads]
    if (streams, threads) == (1, 2):
        order = ["thread 0", "stream 0", "thread 1"]
    y = {lane: 1.7 * row for row, lane in enumerate(order)}
    figure, axes = new_figure(9, 3.6 if len(order) < 4 else 4.6)
    launched = {span.label: span for span in trace if span.kind == "launch"}
    for lane in order:
        axes.axhspan(y[lane] - 0.34, y[lane] + 0.34, color=style.TRACK, zorder=0)
        for span in trace.only(lane=lane):
            _bar(axes, span, y[lane])
            if span.kind == "compute":
                come = launched[span.label]
                edge = 0.34 if y[lane] > y[come.lane] else -0.34
                ends = (come.end, y[come.lane] + edge), (span.start, y[lane] - edge)
                color = rank_color("AB".index(span.label[0]))
                axes.add_artist(ConnectionPatch(*ends, "data", arrowstyle="-|>", color=color, lw=1.6))
    axes.axvline(single, color=MUTED, linestyle=(0, (4, 3)), zorder=0.2)
    axes.set(xlim=(-0.2, single + 0.5), ylim=(y[order[-1]] + 0.6, -0.6), xlabel="time (ticks)")
    axes.text(
        single - 0.2,
        -0.47,
        "end with one stream, one thread",
        ha="right",
        va="center",
        color=MUTED,
        fontsize=10,
    )
    named = {"thread": "launches of\n", "stream": "kernels in\n"}
    axes.set_yticks([*y.values()], [named[lane[:6]] + lane for lane in order], color=INK)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    kernels = [span for span in trace if span.kind == "compute"]
    side = Trace(replace(span, kind=span.label[0]) for span in kernels).overlap("A", "B")
    title(axes, _finding(trace, streams, threads, kernel, launch, side))
    begun = " ".join(span.label for span in sorted(kernels, key=lambda span: span.start))
    how = f"{streams} streams, launching threads: {threads}; ticks per kernel: {kernel}, per launch: {launch}"
    said = f"{axes.get_title('left')}. {how}. Kernels start in the order {begun}; the last ends at {trace.end:g}."
    return describe(figure, said)


def _finding(trace: Trace, streams: int, threads: int, kernel: int, launch: int, side: float) -> str:
    done = f"done at {trace.end:g}"
    if streams == 1:
        return f"One stream runs one kernel at a time, in order of launch: {done}"
    without_the_wait = simulate_streams(streams, threads, kernel=kernel, launch=launch)
    if trace.end > without_the_wait.end:
        why = "B waits for A1"
    elif threads > 1:
        why = "both are launched at once"
    elif launch < kernel:
        why = "B's launches come late"
    else:
        why = "launching, not computing, takes the time"
    return f"Two streams, side by side for {side:g} ticks ({why}): {done}"


def _bar(axes: Axes, span: Span, y: float) -> None:
    color = rank_color("AB".index(span.label[0]))
    launch = span.kind == "launch"
    look: Any = {"height": 0.68, "linewidth": 1.2, "zorder": 2}
    if not launch:
        bar(axes, y, span.start, span.duration, color, span.label, **look)
        return
    hatched = span.duration > 1
    look |= {"edgecolor": color, "hatch": style.HATCH["wait"] if hatched else None}
    bar(axes, y, span.start, span.duration, PAPER, **look)
    behind = {"boxstyle": "square,pad=0.1", "facecolor": PAPER, "edgecolor": "none"} if hatched else None
    middle = (span.start + span.end) / 2
    write(axes, middle, y, span.label, size=9, va="center_baseline", bbox=behind, zorder=3)


# ---- How much two threads gain, by the length of one operation, and two processes.


class Gain(NamedTuple):
    """Say what two gained: `op` seconds an operation alone, and how many times as fast as one, by name."""

    name: str
    op: float
    threads: float
    processes: float


@styled
def draw_lock(torch_gains: Sequence[Gain], python: Gain) -> Figure:
    """Draw how many times as fast two threads are, and two processes: torch's operations by length, a Python loop."""
    gains = [*sorted(torch_gains, key=lambda gain: gain.op), python]
    figure, axes = new_figure(9, 0.8 + 0.42 * len(gains))
    names = [f"{gain.name}, {format_time(gain.op)}" for gain in gains]
    factors = [gain.threads for gain in gains]
    row_bars(axes, factors, [""] * len(gains), names, [*[style.BLUE] * len(torch_gains), style.RED])
    for row, gain in enumerate(gains):
        beside(
            axes, (0, row), f"{gain.threads:.2f}", (5, 0), va="center_baseline", color=PAPER, weight="bold"
        )
    marks = axes.scatter(
        [gain.processes for gain in gains],
        range(len(gains)),
        marker="D",
        s=54,
        color=INK,
        edgecolor=PAPER,
        zorder=3,
    )
    for level, words in ((1, "as fast as one"), (2, "twice as fast")):
        axes.axvline(level, color=INK, linewidth=1.2, linestyle=(0, (4, 3)), zorder=0.5)
        beside(
            axes, (level, len(gains) - 0.25), words, (0, 0), ha="center", color=MUTED, backgroundcolor=PAPER
        )
    most = max(2.3, *factors, *(gain.processes for gain in gains))
    axes.set(xlim=(0, most + 0.1), ylim=(len(gains), -0.5))
    axes.legend(
        [axes.patches[0], marks],
        ["two threads", "two processes, a lock each"],
        ncols=2,
        loc="upper left",
        bbox_to_anchor=(0, 0),
        frameon=False,
        borderaxespad=0.2,
    )
    title(axes, _gained(gains))
    said = "; ".join(
        f"{name}: {gain.threads:.2f}, {gain.processes:.2f}" for name, gain in zip(names, gains, strict=True)
    )
    return describe(
        figure,
        f"Times as fast as one: two threads, two processes, by the time of an operation. {said}.",
    )


def _gained(gains: Sequence[Gain]) -> str:
    if max(gain.processes for gain in gains) < 1.2:
        return "No second core is free just now"
    named = (gains[0], gains[-2], gains[-1])
    return "Two threads: " + ", ".join(f"{gain.threads:.2f} × ({gain.name})" for gain in named)
