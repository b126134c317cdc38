"""Span and Trace: the one record of "what ran where, from when to when"; Recorder measures it, `play` predicts it.

span    one piece of work in one lane: Span("worker 0", "load 3", 0.10, 0.35, "load")
lane    one row of the picture: a worker, a rank, a partition
bubble  the share of lanes x makespan in which a lane did nothing

    worker 0   [load 0][load 2]........      busy 2 of 3
    model      ........[step 0][step 2]      busy 2 of 3      makespan 3, bubble 2/6
"""

from lib.timeline.play import Work, play
from lib.timeline.recorder import Recorder, current_recorder
from lib.timeline.trace import Interval, Span, Trace, overlap_share, union

__all__ = ["Interval", "Recorder", "Span", "Trace", "Work", "current_recorder", "overlap_share", "play", "union"]
