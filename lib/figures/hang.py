"""Figure of notebook 06: ranks that do not come to the same meetings, on their common clock."""

from __future__ import annotations

from matplotlib.figure import Figure

from lib.show.timeline import draw_timeline
from lib.timeline import Trace


def draw_hang(trace: Trace) -> Figure:
    """Draw what each rank did; the title says for how long the last span of each lay beside that of the others.

    Raises ValueError if a lane is empty, or there is none.
    """
    last = [trace.only(lane=lane).spans[-1:] for lane in trace.lanes]
    if not last or not all(last):
        raise ValueError(f"nothing to draw of {', '.join(trace.lanes) or 'no lane'}")
    ends = [spans[0] for spans in last]
    together = max(0.0, min(span.end for span in ends) - max(span.start for span in ends))
    who = " and ".join(f"{span.lane} in {span.label}" for span in ends)
    return draw_timeline(trace, title=f"At the end, {who}: {together:.1f} s in vain", unit="s")
