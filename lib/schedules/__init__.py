"""Schedules as tables: who works on which micro-batch when; made, checked, simulated, and run.

table, makers, legal         the table itself; who makes one; whether it can run
simulate, choice             what it will do; which one is the fastest that fits
costs                        what actions cost here, measured
executor, rank_threads       runs a table in this process: what is given, and the threads of the ranks
stage, split_backward        a module cut off from its neighbours; its backward in two halves
distributed                  runs a table on processes: torch.distributed.pipelining
"""

from lib.schedules.choice import Choice, choose
from lib.schedules.legal import ScheduleError, slotted, validate
from lib.schedules.makers import (
    bubble_share,
    dualpipe_v,
    eager_one_f_one_b,
    gpipe,
    interleaved_one_f_one_b,
    interleaved_zero_bubble,
    looped_bfs,
    model_parallel,
    one_f_one_b,
    pipedream,
    staleness,
    zbv,
    zero_bubble_h1,
)
from lib.schedules.simulate import Costs, Idle, live_activations, simulate, waits_for
from lib.schedules.table import Action, Schedule

# fmt: off
__all__ = [
    "Action", "Choice", "Costs", "Idle", "Schedule", "ScheduleError", "bubble_share", "choose", "dualpipe_v",
    "eager_one_f_one_b", "gpipe", "interleaved_one_f_one_b", "interleaved_zero_bubble", "live_activations",
    "looped_bfs", "model_parallel", "one_f_one_b", "pipedream", "simulate", "slotted", "staleness", "validate",
    "waits_for", "zbv", "zero_bubble_h1",
]
