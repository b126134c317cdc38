"""What the ranks of notebooks/15_scale_out.py have left behind: places, losses, rows, timelines, and costs measured."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from lib.schedules import Costs, Schedule
from lib.schedules.legal import in_order
from lib.schedules.table import Action
from lib.timeline import Recorder, Trace, Work, play
from support.training import global_losses, read_steps

Folder = str | os.PathLike[str]


def read_places(folder: Folder) -> list[dict[str, Any]]:
    """Return what each rank was told by torchrun and where it stood in the mesh, in order of ranks."""
    files = Path(folder).glob("place*.json")
    return sorted((json.loads(file.read_text()) for file in files), key=lambda place: int(place["RANK"]))


def read_losses(folder: Folder) -> list[float]:
    """Return the loss of each global batch: the mean over replicas, as their last stages know it."""
    last = {int(place["RANK"]) for place in read_places(folder) if place["last"]}
    return global_losses(step for step in read_steps(folder) if step.rank in last)


def read_rows(folder: Folder) -> list[list[int]]:
    """Return the rows of each global batch, by the number in the meta file: those of the first rank of each replica."""
    first = {int(place["RANK"]) for place in read_places(folder) if place["pipeline"] == 0}
    rows: dict[int, list[int]] = {}
    for step in read_steps(folder):
        if step.rank in first:
            rows.setdefault(step.step, []).extend(step.rows)
    return [rows[step] for step in sorted(rows)]


def read_traces(folder: Folder) -> list[Trace]:
    """Return the timeline of each recorded step, all ranks together; one clock, which starts at 0 in each."""
    folders = sorted(Path(folder).glob("spans*"), key=lambda path: int(re.sub(r"\D", "", path.name)))
    lanes = [f"rank {place['RANK']}" for place in read_places(folder)]
    return [Recorder(path).trace(lanes) for path in folders]


def measured_costs(traces: Sequence[Trace], schedule: Schedule) -> tuple[Costs, float]:
    """Return what `simulate` needs to know: medians over these steps and all micro-batches, and a message's seconds.

    traces: of one pipeline whose backward is whole, as read_traces returns them. A message takes what lies between the
    end of an action and the start of the one on the next rank that waited for it: a median, too, where somebody waited.
    """
    taken: dict[tuple[str, int], list[float]] = {}
    waits = [0.0]
    for trace in traces:
        spans = {Action.parse(span.label): span for span in trace}
        free = dict[str, float]()
        for (op, stage, i), span in sorted(spans.items(), key=lambda item: item[1].start):
            taken.setdefault((op, stage), []).append(span.duration)
            last = op == "B" and stage + 1 == schedule.stages
            peer = stage - 1 if op == "F" else stage + 1
            needed = None if last or peer < 0 else spans.get(Action(op, peer, i))
            if needed is not None and needed.lane != span.lane and needed.end > free.get(span.lane, 0.0):
                waits.append(span.start - needed.end)
            free[span.lane] = span.end
    forward, backward = ([median(taken[op, s]) for s in range(schedule.stages)] for op in "FB")
    return Costs(forward, backward), max(0.0, median(waits[1:] or waits))


def played_again(trace: Trace, schedule: Schedule, message: float) -> Trace:
    """Play the order again with what each task of this trace took itself; `message` as measured_costs returns it.

    What is longer in the trace is neither in its tasks nor in the order: ranks waited in between.
    """
    took = {span.label: span for span in trace}
    tasks = []
    for _, _, action, needed in in_order(schedule):
        span = took[str(action)]
        after = [str(need) for need in needed]
        tasks.append(Work(span.lane, span.label, span.duration, after, span.kind, message))
    return play(tasks, trace.lanes)


def accounts(trace: Trace, rank: int) -> tuple[float, float, float]:
    """Return the seconds of a rank's forwards, of its backwards, and those in which it did neither."""
    own = trace.only(lane=f"rank {rank}")
    forwards = sum(span.duration for span in own if span.kind == "forward")
    backwards = sum(span.duration for span in own if span.kind == "backward")
    return forwards, backwards, trace.makespan - forwards - backwards


def ran_in_order(trace: Trace, schedule: Schedule) -> bool:
    """Say whether every rank did its row of the table, in its order, and nothing before what it needs had ended."""
    spans = {span.label: span for span in trace}
    for rank in range(len(schedule.ranks)):
        done = [span.label for span in trace.only(lane=f"rank {rank}")]
        if done != [str(action) for action in schedule.actions(rank)]:
            return False
    pairs = ((need, action) for _, _, action, needed in in_order(schedule) for need in needed)
    return all(spans[str(need)].end <= spans[str(action)].start for need, action in pairs)
