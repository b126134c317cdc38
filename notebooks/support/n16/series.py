"""Trials of a job, one after the other on the same ranks: a launch for each number of ranks, not for each trial."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from support.n16.rank import Stand
from support.n16.warm import on_ranks, text_of

# ruff: noqa: D103

BEGUN = "a trial begins"
BETWEEN = "dist.barrier()  # until all have ended this trial"


def one_after_another(dist, name, trials, begun):  # type: ignore[no-untyped-def]
    # a rank gets the text of this function alone
    from support.n16.rank import hash_of_a_process, numpy_of_a_process

    dist.destroy_process_group = lambda *_, **__: None  # the next trial needs it
    ends = []
    for trial in trials:
        print(begun)
        globals()["hash"] = hash_of_a_process()  # a trial stands for a run, and a run is a new process
        numpy_of_a_process()
        torch.manual_seed(1000 + dist.get_rank())
        ends.append(globals()[name](dist, **trial))
        dist.barrier()  # until all have ended this trial
    return ends


def ends_of_trials(
    job: Callable[..., Any], world_size: int, trials: Sequence[Mapping[str, Any]], *definitions: Any
) -> list[list[Stand]]:
    """Return for each trial how each rank has ended; the list stops behind the first that not all ranks end well.

    definitions: functions and classes that the job's text uses; the reader's own job is the first.
    """
    given = {"name": job.__code__.co_name, "trials": list(trials), "begun": BEGUN}
    # The job stands first, so that a line has the number that it has in its cell.
    stands = on_ranks(one_after_another, world_size, given, *definitions, job)
    if all(stand.how == "done" for stand in stands):
        return [[Stand("done", stand.value[at]) for stand in stands] for at, _ in enumerate(trials)]
    begun = [sum(line == BEGUN for line in stand.said) for stand in stands]
    failed = max(0, min(begun) - 1)
    ended = ends_of_trials(job, world_size, trials[:failed], *definitions) if failed else []
    last = [_of_trial(stand, began > failed + 1) for stand, began in zip(stands, begun, strict=True)]
    return [*ended, [by_lines_of((*definitions, job)[0], stand) for stand in last]]


def by_lines_of(job: Callable[..., Any], stand: Stand) -> Stand:
    """Return it without lines behind those of the job, which stands first: what counts for us no reader has written."""
    lines = len(text_of(job).splitlines())
    return replace(stand, where=tuple(line for line in stand.where if line[0] <= lines))


def _of_trial(stand: Stand, has_gone_on: bool) -> Stand:
    """Return how a rank stands in the trial in which not all have ended well."""
    waits_for_others = bool(stand.where) and stand.where[-1][1] == BETWEEN
    if stand.how != "raised" and (has_gone_on or waits_for_others):
        return Stand("done")
    return stand
