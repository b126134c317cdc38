"""The runtime of a pipeline as a picture that steps: a scheduler, a worker a partition, two queues between them.

draw_runtime   the seven steps of one run, at any clock: what the explorer wraps
draw_stuck     what is left when the scheduler asks the wrong queue first: a ring of waits
"""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lib.figures.task_scene import FAILED, MICRO_BATCHES, NAMES, STEPS, Scene, pairs_at, said, scene_at, words
from lib.show.explore import switch, whole
from lib.show.sheet import Cell, arrow, box, draw_cell
from lib.show.style import (
    GREY,
    INK,
    MUTED,
    PAPER,
    RED,
    TRACK,
    describe,
    new_figure,
    pale,
    rank_color,
    styled,
    title,
)

RUNTIME_CONTROLS = {
    "step": whole(1, len(STEPS), 5, "step"),
    "clock": whole(0, MICRO_BATCHES + 2, 2, "k · clock"),
    "partitions": whole(1, 4, 3, "n · partitions"),
    "fails": switch(False, "a task raises"),
}

# inches, from the upper left corner
ROW, TOP, SIDE = 1.12, 1.0, 0.31
WIRE: Any = {"width": 1.8, "head": 14, "gap": 2, "zorder": 4}
SCHEDULER, PIPE, WORKER, TABLE = (0.08, 1.72), (2.5, 4.1), (4.72, 6.1), 6.62


@styled
def draw_runtime(step: int, clock: int, partitions: int, fails: bool) -> Figure:
    """Draw one of the seven steps in one clock of a forward pass (a clock beyond the last is taken as the last)."""
    last = MICRO_BATCHES + partitions - 2
    clock, name = min(clock, last), NAMES[step - 1]
    scene = scene_at(step, clock, partitions, fails)
    figure, axes = _stage(partitions)
    _banner(axes, name, FAILED.get(name, STEPS[name]) if scene.failed is not None else STEPS[name])
    _draw_scene(axes, scene)
    arrows = {"put": _to_queue, "run": _to_worker, "result": _from_worker, "take": _to_scheduler}
    if name in arrows:
        for _, j in scene.now:
            arrows[name](axes, j, RED if j == scene.failed and step > 5 else INK)
    title(axes, f"Step {step} of {len(STEPS)}, {name}: {said(name, scene, clock)}")
    return describe(figure, f"{axes.get_title('left')}. {words(scene)}")


@styled
def draw_stuck(seconds: float) -> Figure:
    """Draw clock 0 of two partitions after the scheduler asked the last partition first, `seconds` ago."""
    scene = Scene(2, answered={0: 0}, now={(0, 0)})
    figure, axes = _stage(2)
    _draw_scene(axes, scene)
    upper, lower = _lanes(1)
    for start, end in (
        ((SCHEDULER[1], lower), (PIPE[0], lower)),
        ((PIPE[1], lower), (WORKER[0], lower)),
        ((WORKER[0], upper), (PIPE[1], upper)),
        ((PIPE[0], upper), (SCHEDULER[1], upper)),
    ):
        arrow(axes, start, end, color=RED, **{**WIRE, "width": 2.6})
    axes.text(0.1, 0.3, "out_queues[1].get()", family="DejaVu Sans Mono", fontsize=11, va="center")
    axes.text(0.1, 0.62, "red: waits for", color=RED, fontsize=11, weight="bold", va="center")
    title(
        axes, f"The scheduler waits for worker 1, worker 1 for the scheduler: {seconds:.1f} s, and no answer"
    )
    ring = "Red arrows: scheduler, out_queues[1], worker 1, in_queues[1], scheduler: a ring of 4 waits."
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


def _banner(axes: Axes, current: str, code: str) -> None:
    x = 0.08
    for number, name in enumerate(STEPS, start=1):
        width = 0.52 + 0.088 * len(name)
        now = name == current
        _frame(axes, (x, x + width), (0.02, 0.32), INK if now else PAPER, INK if now else GREY)
        look: Any = {"weight": "bold" if now else "normal", "color": PAPER if now else MUTED}
        axes.text(x + width / 2, 0.17, f"{number} {name}", ha="center", va="center", fontsize=10, **look)
        x += width + 0.1
    axes.text(0.1, 0.56, code, family="DejaVu Sans Mono", fontsize=11, va="center")


def _draw_scene(axes: Axes, scene: Scene) -> None:
    bottom = TOP + scene.partitions * ROW - 0.12
    _frame(axes, SCHEDULER, (TOP + 0.08, bottom), TRACK, INK)
    axes.text(0.18, TOP + 0.28, "scheduler", weight="bold", va="center")
    axes.text(0.18, TOP + 0.5, "your thread", color=MUTED, fontsize=10, va="center")
    if scene.held and not scene.taken and scene.partitions > 1:
        axes.text(0.18, bottom - 0.3, "in_queues\nout_queues", fontsize=10, va="center", color=MUTED)
    for j in range(scene.partitions):
        upper, lower = _lanes(j)
        _worker(axes, j, scene)
        if scene.queues:
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
                _task(axes, at, place[j], j, scene.failed == j)
    _table(axes, scene)


def _worker(axes: Axes, j: int, scene: Scene) -> None:
    upper, lower = _lanes(j)
    busy = j in scene.running
    color = rank_color(j)
    _frame(axes, WORKER, (upper - 0.2, lower + 0.2), pale(color, 0.25 if busy else 0.08), color)
    middle, doing = (upper + lower) / 2, ("raises" if scene.failed == j else "computes") if busy else "waits"
    axes.text(WORKER[0] + 0.1, middle - 0.13, f"worker {j}", weight="bold", fontsize=10.5, va="center")
    axes.text(WORKER[0] + 0.1, middle + 0.13, doing, fontsize=10, va="center", color=MUTED)


def _pipe(axes: Axes, y: float, name: str, j: int) -> None:
    for edge in (y - 0.18, y + 0.18):
        axes.plot(PIPE, [edge, edge], color=rank_color(j), linewidth=1.6, solid_capstyle="butt")
    left = "out" in name
    x, side = (PIPE[1] - 0.08, "right") if left else (PIPE[0] + 0.08, "left")
    axes.text(x, y, name, fontsize=9, color=MUTED, ha=side, va="center_baseline")


def _task(axes: Axes, at: tuple[float, float], i: int, j: int, failed: bool) -> None:
    cell = Cell(f"{i}!" if failed else i, j, color=RED if failed else None)
    draw_cell(axes, *at, cell, size=SIDE, font=11)


def _table(axes: Axes, scene: Scene) -> None:
    """Draw the clocks to the right of the workers: a column a clock, the micro-batch in the cell."""
    clocks = MICRO_BATCHES + scene.partitions - 1
    axes.text(TABLE, TOP - 0.02, "clock", fontsize=10, color=MUTED, ha="left", va="center")
    for k in range(clocks):
        x = TABLE + 0.16 + k * 0.33
        axes.text(x, TOP + 0.2, str(k), fontsize=9, color=MUTED, ha="center", va="center")
        for i, j in pairs_at(k, MICRO_BATCHES, scene.partitions):
            state = "done" if (i, j) in scene.done else "now" if (i, j) in scene.now else "to do"
            wrong = state == "now" and j == scene.failed
            hue = RED if wrong else rank_color(j) if state != "to do" else GREY
            y = TOP + (j + 0.5) * ROW
            cell = Cell(i, color=hue, mark="faded" if state != "now" else "plain")
            draw_cell(axes, x, y, cell, size=0.29, font=9)


def _to_queue(axes: Axes, j: int, color: str) -> None:
    arrow(axes, (SCHEDULER[1], _lanes(j)[0]), (PIPE[0], _lanes(j)[0]), color=color, **WIRE)


def _to_worker(axes: Axes, j: int, color: str) -> None:
    arrow(axes, (PIPE[1], _lanes(j)[0]), (WORKER[0], _lanes(j)[0]), color=color, **WIRE)


def _from_worker(axes: Axes, j: int, color: str) -> None:
    arrow(axes, (WORKER[0], _lanes(j)[1]), (PIPE[1], _lanes(j)[1]), color=color, **WIRE)


def _to_scheduler(axes: Axes, j: int, color: str) -> None:
    arrow(axes, (PIPE[0], _lanes(j)[1]), (SCHEDULER[1], _lanes(j)[1]), color=color, **WIRE)


def _frame(axes: Axes, x: tuple[float, float], y: tuple[float, float], face: str, edge: str) -> None:
    size = x[1] - x[0], y[1] - y[0]
    box(axes, sum(x) / 2, sum(y) / 2, *size, face=face, edge=edge, radius=0.06, zorder=1)
