"""Case 12 of notebook 16: a pipeline in the order 1F1B, whose neighbours both send, and nobody receives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lib.text import plural
from support.kit.mistakes import edited
from support.n16.casebook import ROUNDED, case, unfinished, with_evidence
from support.n16.counted import with_outputs_counted, with_tasks_noted
from support.n16.rank import Stand
from support.n16.series import ends_of_trials

# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="var-annotated"
# ruff: noqa: D103


def job_12(dist, layers, rows, targets, micro_batches):
    rank = dist.get_rank()
    world = dist.get_world_size()
    stage = layers[rank]  # keeps the width
    parts = rows.chunk(micro_batches)  # of equal length
    goals = targets.chunk(micro_batches)
    kept = []
    done = []
    sent = []

    def forward(i):
        x = parts[i].clone()
        if rank > 0:
            dist.recv(x, rank - 1)
        y = stage(x.requires_grad_())
        done.append(("F", i))
        if rank < world - 1:
            if sent:
                sent.pop().wait()  # what it sends is kept as long as it is
            sent.append(dist.isend(y.detach(), rank + 1))
        else:
            y = F.mse_loss(y, goals[i]) / micro_batches
        kept.append((x, y))

    def backward(i):
        x, y = kept.pop(0)
        gradient = None
        if rank < world - 1:
            gradient = torch.empty_like(y)
            dist.recv(gradient, rank + 1)
        y.backward(gradient)
        done.append(("B", i))
        if rank > 0:
            dist.send(x.grad, rank - 1)

    ahead = min(micro_batches, world - rank)  # so many micro-batches a rank keeps at most
    for i in range(ahead):
        forward(i)
    for i in range(micro_batches):
        backward(i)
        if ahead + i < micro_batches:
            forward(ahead + i)
    for work in sent:
        work.wait()
    print(f"{len(done)} tasks done")
    return {"gradient": stage.weight.grad, "done": done}


_WAIT = ("    for work in sent:\n        work.wait()\n", "")
_ONE_BEFORE = (
    "            if sent:\n                sent.pop().wait()  # what it sends is kept as long as it is\n"
)
_LATER = (
    (_ONE_BEFORE, ""),
    ("sent.append(dist.isend(y.detach(), rank + 1))", "dist.send(y.detach(), rank + 1)"),
    ("    sent = []\n", ""),
    _WAIT,
)


def sick_12():
    """Return the job as the notebook has it."""
    return edited(job_12, *_LATER)


#: The last rank sends its first gradient, and the five before it a forward more than the next one takes.
FORECAST_12 = (6, 10)

Tasks: TypeAlias = Sequence[tuple[str, int]]


def drawn_12(seed: int, depth: int, count: int, width: int = 3) -> dict[str, Any]:
    """Return so many layers that keep the width, and so many rows and targets, float64."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = [nn.Linear(width, width).double() for _ in range(depth)]
        rows = torch.randn(count, width, dtype=torch.float64)
        return {"layers": layers, "rows": rows, "targets": rows.flip(1)}


#: Ranks: seed, micro-batches.
TRIALS = {3: [(2, 7), (1, 2)], 4: [(3, 6)], 2: [(4, 4)], 1: [(5, 3)]}


def fault_of_12(job: Callable[..., Any]) -> str:
    """Run it with each of the trials: it ends, with the gradient of one process, little kept and little idle."""
    for world, settings in TRIALS.items():
        name = job.__code__.co_name
        trials = [
            {"name": name, **drawn_12(seed, world, 2 * many), "micro_batches": many}
            for seed, many in settings
        ]
        found = ends_of_trials(with_outputs_counted, world, trials, job, with_tasks_noted)
        for trial, stands in zip(trials, found, strict=False):
            where = f"on {plural(world, 'rank')} with {trial['micro_batches']} micro-batches"
            said = unfinished(where, stands) or _fault_of_tasks(where, stands, trial)
            if said:
                return with_evidence(said, [_without_what_is_kept(each) for each in found])
    return ""


def _fault_of_tasks(where: str, stands: list[Stand], trial: Any) -> str:
    world = len(stands)
    many = trial["micro_batches"]
    loss = F.mse_loss(nn.Sequential(*trial["layers"])(trial["rows"]), trial["targets"])
    due = torch.autograd.grad(loss, [layer.weight for layer in trial["layers"]])
    for rank, (got, noted, _) in enumerate(stand.value for stand in stands):
        if not isinstance(got, dict) or not isinstance(got.get("gradient"), Tensor) or "done" not in got:
            return f"{where} rank {rank} returned {got!r}; leave what it returns as it was."
        apart = (got["gradient"] - due[rank]).abs().max().item()
        if not apart < ROUNDED:
            return f"{where} the gradient of rank {rank} is {apart:.3g} from that of one process."
        if sorted(got["done"]) != sorted((kind, i) for kind in "FB" for i in range(many)):
            return f"{where} rank {rank} has done {got['done']}, not each task once."
        said = _fault_of_what_is_said(got["done"], noted)
        if said:
            return f"{where} rank {rank} {said}"
        most = most_kept(got["done"])
        if most > world - rank:
            return f"{where} rank {rank} keeps {most} micro-batches at a time, more than {world - rank}."
    ticks = ticks_of([noted or got["done"] for got, noted, _ in (stand.value for stand in stands)])
    least = 2 * (many + world - 1)
    if ticks > least:
        return f"{where} it takes {ticks:g} ticks, a tick for each task, where {least} are enough."
    return _fault_of_what_is_kept(where, stands)


def _fault_of_what_is_kept(where: str, stands: list[Stand]) -> str:
    """Allow an output more than are due: a name may hold it, or a message on its way."""
    for rank, (_, _, (outputs, handles)) in enumerate(stand.value for stand in stands):
        due = len(stands) - rank
        if outputs > due + 1:
            said = (
                f"{where} rank {rank} has {outputs} outputs of its layer in memory at once, more than {due}."
            )
            holders = f" It keeps {handles} of what isend has returned, and each holds what it has sent."
            return said + (holders if handles > due + 1 else "")
    return ""


def _without_what_is_kept(stands: list[Stand]) -> list[Stand]:
    """Return what tells one mistake from another."""
    return [replace(each, value=each.value[:2]) if isinstance(each.value, tuple) else each for each in stands]


def _fault_of_what_is_said(done: Tasks, noted: Tasks) -> str:
    """Compare the tasks of which a rank says that it has done them with those that its layers have done."""
    says = "".join(kind for kind, _ in done)
    does = "".join(kind for kind, _ in noted if kind in "FB")
    if not does or says == does:
        return ""
    return f"says that it has done {says}, and its layer has done {does}."


def most_kept(done: Tasks) -> int:
    """Return for how many micro-batches at most forward is done and backward is not."""
    now = most = 0
    for kind, _ in done:
        now += 1 if kind == "F" else -1
        most = max(most, now)
    return most


def ticks_of(orders: Sequence[Tasks]) -> float:
    """Return when the last task ends, if each takes a tick and begins once its rank and its input are there.

    An input is there when it is sent, ("S", peer); where not every one of a rank's is noted, when it is computed.
    A meeting of all ranks, ("W", its number), takes no time and ends when the last has come.
    """
    ends: dict[tuple[int, str, int], float] = {}
    left = [_with_what_is_sent(rank, order) for rank, order in enumerate(orders)]
    clock = [0.0 for _ in orders]
    while any(left):
        moved = False
        for rank, tasks in enumerate(left):
            while tasks:
                kind, i, sent = tasks[0]
                inputs = _inputs(rank, kind, i, len(orders))
                if not ends.keys() >= inputs:
                    break
                clock[rank] = max([clock[rank], *(ends[each] for each in inputs)]) + (kind in "FB")
                for each in sent:
                    ends[rank, *each] = clock[rank]
                tasks.pop(0)
                moved = True
        if not moved:
            return float("inf")
    return max(clock)


def _inputs(rank: int, kind: str, i: int, world: int) -> set[tuple[int, str, int]]:
    """Return what has to be there before a task begins; to a meeting, that all have come."""
    if kind == "W":
        return {(peer, kind, i) for peer in range(world)}
    source = {"F": rank - 1, "B": rank + 1}.get(kind, world)
    return {(source, kind, i)} if 0 <= source < world else set()


def _with_what_is_sent(rank: int, order: Tasks) -> list[tuple[str, int, list[tuple[str, int]]]]:
    """Return the tasks of a rank, each with those whose results leave before the next one begins."""
    tasks: list[tuple[str, int, list[tuple[str, int]]]] = []
    waiting: dict[str, list[tuple[str, int]]] = {"F": [], "B": []}
    to = {"F": rank + 1, "B": rank - 1}
    noted = {kind: sum(each == ("S", to[kind]) for each in order) for kind in to}
    computed = {kind: sum(each[0] == kind for each in order) for kind in to}
    for kind, i in order:
        if kind == "W":
            tasks.append(("come", i, [(kind, i)]))
        if kind != "S":
            tasks.append((kind, i, []))
        if kind in waiting:
            waiting[kind].append((kind, i))
        for each in to:
            leaves = noted[each] != computed[each] or (kind, i) == ("S", to[each])
            if leaves and waiting[each]:
                tasks[-1][2].append(waiting[each].pop(0))
    return tasks


check_job_12 = case(
    12,
    job_12,
    FORECAST_12,
    fault_of_12,
    "it ends for any number of ranks and micro-batches, keeps few outputs at a time, and idles no more than it must.",
    {
        "Two neighbours send to each other, and each would receive only behind that.": sick_12(),
        "All forwards first: then nobody sends against anybody, and every rank keeps all.": edited(
            sick_12(), ("min(micro_batches, world - rank)", "micro_batches")
        ),
        "One micro-batch at a time keeps little, and one rank works at a time.": edited(
            sick_12(), ("min(micro_batches, world - rank)", "1")
        ),
        "Two neighbours still send to each other.": edited(
            sick_12(), ("min(micro_batches, world - rank)", "max(1, min(micro_batches, world - rank - 1))")
        ),
        "Who waits for each isend at once has a send again.": edited(
            job_12,
            ("sent.append(dist.isend(y.detach(), rank + 1))", "dist.isend(y.detach(), rank + 1).wait()"),
        ),
    },
    {
        "With fewer micro-batches than ranks the first ranks have nothing left to send.": (16, 0),
        "The last rank stands in a send, too.": (5, 11),
        "You have them the other way round.": (10, 6),
    },
)
"""Case 12: (job_12, forecast_12)."""
