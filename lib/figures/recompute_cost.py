"""What recompute costs in time and saves in memory, drawn: predicted outlines above what was measured.

draw_steps  one training step in each mode: the timeline of micro-batches
draw_gpu    peak memory and time on a GPU, by the number of segments
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from lib.experiments.recompute import predict_step
from lib.experiments.staircase import MODES, Mode
from lib.show.charts import bars
from lib.show.style import BLUE, PINK, describe, headline, new_figure, source_note, styled
from lib.show.timeline import draw_timeline
from lib.timeline import Trace


@styled
def draw_steps(measured: Mapping[Mode, Trace], forward: float, backward: float, micro_batches: int) -> Figure:
    """Draw a measured step in each mode under its prediction from one forward and one backward, in seconds."""
    predicted = Trace(
        (span for mode in MODES for span in predict_step(forward, backward, micro_batches, mode)), MODES
    )
    whole = Trace((span for mode in MODES for span in measured[mode]), MODES)
    ratio = {mode: measured[mode].makespan / measured["never"].makespan for mode in MODES}
    finding = f"always takes {ratio['always']:.2f} × never, except_last {ratio['except_last']:.2f} ×"
    return draw_timeline(whole, predicted, title=finding)


@styled
def draw_gpu(rows: Sequence[Mapping[str, Any]], source: str) -> Figure:
    """Draw peak memory (MiB) and time (ms) by segments: outlines are predicted, filled bars measured.

    rows: segments (0: no checkpoint), predicted_mib, predicted_ratio, and mib, ms where measured. source: by whom.
    """
    figure, (left, right) = new_figure(9, 3.6, cols=2)
    places = range(len(rows))
    names = ["none" if not row["segments"] else str(row["segments"]) for row in rows]
    have = rows[0].get("mib") is not None
    base = rows[0]["ms"] if have else 1.0
    time = "time of a step (ms)" if have else "time of a step (× without)"
    panels: list[tuple[Any, list[float], list[float], str, str]] = [
        (
            left,
            [r["predicted_mib"] for r in rows],
            [r.get("mib") or 0.0 for r in rows],
            "peak memory (MiB)",
            BLUE,
        ),
        (right, [base * r["predicted_ratio"] for r in rows], [r.get("ms") or 0.0 for r in rows], time, PINK),
    ]
    for axes, predicted, measured, label, color in panels:
        bars(axes, predicted, measured if have else None, color, write=_number)
        axes.set_xticks(list(places), names)
        axes.set(xlabel="segments", ylabel=label)
        axes.margins(y=0.28)
    left.legend(loc="upper center", ncols=2)
    best = min(rows[1:], key=lambda r: r["mib"] if have else r["predicted_mib"])
    key = "mib" if have else "predicted_mib"
    share = best[key] / rows[0][key]
    one = best["segments"] == 1
    verb = ("needs" if one else "need") if have else "should need"
    finding = f"{best['segments']} segment{'' if one else 's'} {verb} {share:.0%} of the memory"
    headline(figure, finding)
    source_note(figure, source)
    numbers = ", ".join(f"{name}: {row[key]:.0f} MiB" for name, row in zip(names, rows, strict=True))
    return describe(figure, f"{finding}. {source}. Peak by segments, {numbers}.")


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2f}"
