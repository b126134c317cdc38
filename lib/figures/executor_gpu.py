"""Schedules on the streams of a GPU: peak memory and idle share, predicted and measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from lib.show.charts import bars, legend_pair
from lib.show.schedules import NAMES
from lib.show.style import BLUE, GREEN, INK, describe, headline, new_figure, source_note, styled


@styled
def draw_executor_gpu(rows: Sequence[Mapping[str, Any]], source: str) -> Figure:
    """Draw the rows of lib.experiments.executor_gpu: outlines are predicted, full bars measured."""
    have = "mib" in rows[0]
    figure, both = new_figure(9, 3.4, cols=2)
    names = [NAMES.get(row["schedule"], row["schedule"]) for row in rows]
    panels = (
        ("peak memory, all ranks (MiB)", "predicted_mib", "mib", BLUE, 1),
        ("idle (%)", "predicted_idle", "idle", GREEN, 100),
    )
    for axes, (label, predicted, measured, color, scale) in zip(both, panels, strict=True):
        found = [scale * row[measured] for row in rows] if have else None
        bars(axes, [scale * row[predicted] for row in rows], found, color, across=True)
        axes.set_yticks(range(len(rows)), names if axes is both[0] else [""] * len(rows), color=INK)
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel(label)
        axes.margins(x=0.16)
    both[1].legend(handles=legend_pair(have), loc="upper right", bbox_to_anchor=(1, 1.14), ncols=2)
    key = "mib" if have else "predicted_mib"
    share = 100 * rows[1][key] / rows[0][key]
    finding = f"{names[1]} {'needs' if have else 'should need'} {share:.0f} % of {names[0]}'s memory"
    headline(figure, finding)
    source_note(figure, source)
    said = "; ".join(
        f"{name}: {row[key]:.0f} MiB, holds {row['live']}" for name, row in zip(names, rows, strict=True)
    )
    return describe(figure, f"{finding}. {source}. {said}.")
