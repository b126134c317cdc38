"""Schedules as tables: who works on which micro-batch when; made, checked, simulated and drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lib._lazy import load_on_use

# These three have the name of their module, and the first import of a module binds its name here: so import them now.
from lib.pipeline.schedule.pipedream import pipedream as pipedream
from lib.pipeline.schedule.simulate import simulate as simulate
from lib.pipeline.schedule.validate import validate as validate

if TYPE_CHECKING:
    from lib.pipeline.schedule.action import Action as Action
    from lib.pipeline.schedule.action import Schedule as Schedule
    from lib.pipeline.schedule.interleaved import interleaved_one_f_one_b as interleaved_one_f_one_b
    from lib.pipeline.schedule.interleaved import looped_bfs as looped_bfs
    from lib.pipeline.schedule.pipedream import staleness as staleness
    from lib.pipeline.schedule.simple import bubble_share as bubble_share
    from lib.pipeline.schedule.simple import gpipe as gpipe
    from lib.pipeline.schedule.simple import model_parallel as model_parallel
    from lib.pipeline.schedule.simple import one_f_one_b as one_f_one_b
    from lib.pipeline.schedule.simulate import Wait as Wait
    from lib.pipeline.schedule.simulate import live_activations as live_activations
    from lib.pipeline.schedule.simulate import waits_for as waits_for
    from lib.pipeline.schedule.slots import slotted as slotted
    from lib.pipeline.schedule.v_shape import dualpipe_v as dualpipe_v
    from lib.pipeline.schedule.v_shape import zbv as zbv
    from lib.pipeline.schedule.validate import ScheduleError as ScheduleError
    from lib.pipeline.schedule.zero_bubble import interleaved_zero_bubble as interleaved_zero_bubble
    from lib.pipeline.schedule.zero_bubble import zero_bubble_h1 as zero_bubble_h1

HOME = {
    "Action": "lib.pipeline.schedule.action",
    "Schedule": "lib.pipeline.schedule.action",
    "ScheduleError": "lib.pipeline.schedule.validate",
    "Wait": "lib.pipeline.schedule.simulate",
    "bubble_share": "lib.pipeline.schedule.simple",
    "dualpipe_v": "lib.pipeline.schedule.v_shape",
    "gpipe": "lib.pipeline.schedule.simple",
    "interleaved_one_f_one_b": "lib.pipeline.schedule.interleaved",
    "interleaved_zero_bubble": "lib.pipeline.schedule.zero_bubble",
    "live_activations": "lib.pipeline.schedule.simulate",
    "looped_bfs": "lib.pipeline.schedule.interleaved",
    "model_parallel": "lib.pipeline.schedule.simple",
    "one_f_one_b": "lib.pipeline.schedule.simple",
    "pipedream": "lib.pipeline.schedule.pipedream",
    "simulate": "lib.pipeline.schedule.simulate",
    "slotted": "lib.pipeline.schedule.slots",
    "staleness": "lib.pipeline.schedule.pipedream",
    "validate": "lib.pipeline.schedule.validate",
    "waits_for": "lib.pipeline.schedule.simulate",
    "zbv": "lib.pipeline.schedule.v_shape",
    "zero_bubble_h1": "lib.pipeline.schedule.zero_bubble",
}

__all__ = sorted(HOME)
__getattr__, __dir__ = load_on_use(__name__, HOME)
