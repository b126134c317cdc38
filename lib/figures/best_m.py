"""The best number of micro-batches: the bubble wants many, operators want large ones; from a measured speed.

step_seconds  the time of a step for every m, from a measurement of `lib.experiments.chunk_speed`
draw_best_m   that time over m, with its two halves: work that shrinks, and a fixed cost that grows
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from lib._units import format_time
from lib.show.charts import log2_axis
from lib.show.explore import steps
from lib.show.style import BLUE, GREY, INK, RED, describe, headline, new_figure, source_note, styled

BEST_M_CONTROLS = {"partitions": steps((2, 4, 8, 16, 32), 4, "n · partitions")}


def task_seconds(record: Mapping[str, Any]) -> dict[int, float]:
    """Return the seconds of one micro-batch by its number of rows; record as `chunk_speed` returns it."""
    return {size: size / speed for size, speed in zip(record["size"], record["rows_per_second"], strict=True)}


def step_seconds(record: Mapping[str, Any], partitions: int) -> dict[int, float]:
    """Return the seconds of a step by m: m + n - 1 clocks, each as long as a micro-batch of rows / m took.

    A partition is taken to be as large as the model that was measured.
    """
    rows = record["rows"]
    times = {rows // size: seconds for size, seconds in task_seconds(record).items()}
    return {m: (m + partitions - 1) * seconds for m, seconds in sorted(times.items())}


def best_m(record: Mapping[str, Any], partitions: int) -> int:
    """Return the m whose step is shortest."""
    times = step_seconds(record, partitions)
    return min(times, key=lambda m: times[m])


@styled
def draw_best_m(record: Mapping[str, Any], partitions: int, note: str = "") -> Figure:
    """Draw a step over m as the measured task times predict it, and as it would be if small operators were free."""
    times = step_seconds(record, partitions)
    best, whole = best_m(record, partitions), task_seconds(record)[record["rows"]]
    free = {m: (m + partitions - 1) * whole / m for m in times}
    figure, axes = new_figure(9, 3.9 + 0.3 * bool(note))
    axes.plot(
        list(free),
        [1e3 * t for t in free.values()],
        "--",
        color=GREY,
        label="if small operators cost nothing more",
    )
    axes.fill_between(
        list(times), [1e3 * free[m] for m in times], [1e3 * t for t in times.values()], color=RED, alpha=0.13, lw=0,
        label="what small operators cost",
    )  # fmt: skip
    axes.plot(
        list(times), [1e3 * t for t in times.values()], "o-", color=BLUE, label="with the measured times"
    )
    axes.plot([best], [1e3 * times[best]], "o", ms=13, mfc="none", mec=INK, mew=2)
    axes.annotate(
        f"m = {best}",
        (best, 1e3 * times[best]),
        (0, 14),
        textcoords="offset points",
        ha="center",
        weight="bold",
    )
    log2_axis(axes, times)
    axes.set_yscale("log")
    axes.set_ylim(1e3 * min(min(free.values()), times[best]) / 1.6, None)
    low, high = 1e3 * min(free.values()), 1e3 * max(times.values())
    marks = [digit * 10.0**power for power in range(-4, 5) for digit in (1, 2, 5)]
    marks = [value for value in marks if low / 1.6 <= value <= high]
    axes.set_yticks(marks, [f"{value:g}" for value in marks])
    axes.yaxis.set_minor_formatter(lambda value, _: "")
    axes.set(xlabel=f"m · micro-batches of a batch of {record['rows']} rows", ylabel="one step, ms")
    axes.legend(loc="upper center")
    most = max(times)
    finding = (
        f"{partitions} partitions: m = {best} is best here; m = 1 takes {times[1] / times[best]:.1f} × as long, "
        f"m = {most} {times[most] / times[best]:.0f} ×"
    )
    headline(figure, finding)
    if note:
        source_note(figure, note)
    return describe(
        figure,
        f"Time of a step over m from 1 to {most}, predicted from measured task times, for {partitions} partitions: it "
        f"falls while the bubble shrinks, and rises where operators become too small. Best: m = {best}, "
        f"{format_time(times[best])}.",
    )
