"""Read what the ranks of notebooks/15_scale_out.py have left behind: places, losses, timelines, weights."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from lib.pipeline.schedule import Action, Schedule
from lib.timeline import Recorder, Trace
from lib.training.steps import global_losses, read_steps

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


def read_weights(folder: Folder) -> dict[str, torch.Tensor]:
    """Return the state dict of the whole model: what the ranks of replica 0 hold, put together."""
    weights: dict[str, torch.Tensor] = {}
    for place in read_places(folder):
        if place["data"] == 0:
            with np.load(Path(folder) / f"weights{place['RANK']}.npz", allow_pickle=False) as file:
                weights |= {name: torch.from_numpy(file[name]) for name in file.files}
    return weights


@dataclass(frozen=True)
class Costs:
    """What actions took, in seconds: forward and backward by stage, and the quickest message between two ranks."""

    forward: list[float]
    backward: list[float]
    communicate: float


def measured_costs(traces: Sequence[Trace], schedule: Schedule, *, least: bool = False) -> Costs:
    """Return what `simulate` needs to know: medians over all steps and micro-batches, or with `least` the minima.

    traces: of one pipeline whose backward is whole, as read_traces returns them. A message is what lies between the end
    of an action and the start of the one that needs it on the next rank; the quickest counts, since in the others a
    rank was busy.
    """
    choose = min if least else median
    taken: dict[tuple[str, int], list[float]] = {}
    gaps = []
    for trace in traces:
        spans = {Action.parse(span.label): span for span in trace}
        for (op, stage, i), span in spans.items():
            taken.setdefault((op, stage), []).append(span.duration)
            needed = (
                spans.get(Action("F", stage - 1, i) if op == "F" else Action("B", stage + 1, i))
                if stage or op == "B"
                else None
            )
            if needed is not None and needed.lane != span.lane:
                gaps.append(span.start - needed.end)
    forward, backward = ([choose(taken[op, s]) for s in range(schedule.stages)] for op in "FB")
    return Costs(forward, backward, max(0.0, min(gaps)))


def in_order(trace: Trace, schedule: Schedule) -> bool:
    """Say whether every rank did its row of the table, in its order, and nothing before what it needs had ended."""
    spans = {Action.parse(span.label): span for span in trace}
    for rank in range(len(schedule.ranks)):
        if [span.label for span in trace.only(lane=f"rank {rank}")] != [
            str(a) for a in schedule.actions(rank)
        ]:
            return False
    pairs = [
        *(
            (spans[Action("F", s, i)], spans[Action("F", s + 1, i)])
            for op, s, i in spans
            if op == "F" and s + 1 < schedule.stages
        ),
        *((spans[Action("B", s, i)], spans[Action("B", s - 1, i)]) for op, s, i in spans if op == "B" and s),
    ]
    return all(before.end <= after.start for before, after in pairs)
