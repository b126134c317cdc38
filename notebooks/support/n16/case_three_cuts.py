"""Case 8 of notebook 16: a pipeline whose stages clip their gradients each by its own norm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lib.text import plural
from support.kit.mistakes import edited
from support.n16.casebook import case, unfinished, with_evidence
from support.n16.counted import with_tasks_noted
from support.n16.rank import Stand
from support.n16.series import ends_of_trials

# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="arg-type"
# ruff: noqa: D103


def job_8(dist, layers, rows, targets, max_norm, learning_rate, steps):
    rank = dist.get_rank()
    world = dist.get_world_size()
    each = len(layers) // world
    stage = nn.Sequential(*layers[rank * each : (rank + 1) * each])  # of layers that keep the width
    optimizer = torch.optim.SGD(stage.parameters(), lr=learning_rate, momentum=0.5)
    for step in range(steps):
        x = rows.clone()
        if rank > 0:
            dist.recv(x, rank - 1)
        x.requires_grad_()
        y = stage(x)
        optimizer.zero_grad()
        if rank < world - 1:
            dist.send(y.detach(), rank + 1)
            gradient = torch.empty_like(y)
            dist.recv(gradient, rank + 1)
            y.backward(gradient)
        else:
            loss = F.mse_loss(y, targets)
            loss.backward()
            print(f"step {step}: loss {loss.item():.3f}")
        if rank > 0:
            dist.send(x.grad, rank - 1)
        gradients = [parameter.grad for parameter in stage.parameters()]
        square = nn.utils.get_total_norm(gradients) ** 2
        dist.all_reduce(square)
        nn.utils.clip_grads_with_norm_(stage.parameters(), max_norm, square.sqrt())
        optimizer.step()
    return [parameter.detach() for parameter in stage.parameters()]


_TOTAL = (
    "        gradients = [parameter.grad for parameter in stage.parameters()]\n"
    "        square = nn.utils.get_total_norm(gradients) ** 2\n"
    "        dist.all_reduce(square)\n"
    "        nn.utils.clip_grads_with_norm_(stage.parameters(), max_norm, square.sqrt())\n"
)
_OWN = "        nn.utils.clip_grad_norm_(stage.parameters(), max_norm)\n"


def sick_8():
    """Return the job as the notebook has it."""
    return edited(job_8, (_TOTAL, _OWN))


#: Sixteen parts of length 1 at right angles are 4 long, and the learning rate takes a tenth.
FORECAST_8 = 0.4


def drawn_8(seed: int, depth: int, width: int = 4) -> dict[str, Any]:
    """Return so many layers that keep the width, rows and targets, of the type that the notebook's have."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = [nn.Linear(width, width) for _ in range(depth)]
        rows = torch.randn(8, width)
        return {"layers": layers, "rows": rows, "targets": 3 * rows.flip(1)}


#: Ranks: seed, layers, longest gradient, learning rate. At 100 and 5 none is clipped; 5 and 0.92 lie between the length
#: and its square. At 0 nothing moves. 0.05 is less than the gradient that a stage passes on.
TRIALS = {
    2: [(1, 4, 0.05, 0.2), (2, 2, 100.0, 0.05), (2, 2, 5.0, 0.05), (1, 4, 0.0, 0.2)],
    3: [(3, 6, 0.5, 0.1), (3, 6, 0.92, 0.1)],
    1: [(4, 2, 1.0, 0.1)],
}


def fault_of_8(job: Callable[..., Any]) -> str:
    """Run it with each of the trials; weights must be those of one process that has all layers."""
    for world, settings in TRIALS.items():
        trials = []
        for seed, depth, longest, rate in settings:
            given = {"max_norm": longest, "learning_rate": rate, "steps": 3}
            trials.append({"name": job.__code__.co_name, **drawn_8(seed, depth), **given})
        found = ends_of_trials(with_tasks_noted, world, trials, job)
        for (seed, depth, longest, rate), stands in zip(settings, found, strict=False):
            where = f"on {plural(world, 'rank')} with {depth} layers and max_norm = {longest}"
            due = of_one_stage(longest, rate, **drawn_8(seed, depth))
            said = unfinished(where, stands) or _fault_of_stages(where, stands, due)
            if said:
                return with_evidence(said, found)
    return ""


def _fault_of_stages(where: str, stands: list[Stand], due: list[Tensor]) -> str:
    each = len(due) // len(stands)
    for rank, (got, noted) in enumerate(stand.value for stand in stands):
        own = due[rank * each : (rank + 1) * each]
        if not isinstance(got, list) or [getattr(w, "shape", ()) for w in got] != [w.shape for w in own]:
            return f"{where} rank {rank} returned {_counted(got, each // 2)}."
        apart = max((one - other).abs().max().item() for one, other in zip(got, own, strict=True))
        if not apart < 2e-5:  # clipping divides by the norm and 1e-6, and a float32 has seven places
            return (
                f"{where} rank {rank} ends with weights that are up to {apart:.2g} from those of one stage."
            )
        layers = each // 2  # a weight and a bias
        runs = sum(kind == "F" for kind, _ in noted)
        if runs > 3 * layers:
            most = f"a stage of {layers} does so {3 * layers} times"
            return f"{where} rank {rank} runs layers {runs} times, where {most}."
    return ""


def _counted(got: Any, layers: int) -> str:
    """Say what is no list of a stage's weights; of other weights, how many there are."""
    due = 2 * layers  # a weight and a bias
    if isinstance(got, list) and len(got) != due and all(isinstance(each, Tensor) for each in got):
        return f"{plural(len(got), 'tensor')}, where its stage of {plural(layers, 'layer')} has {due}"
    return f"{got!r}, not the weights of its stage"


def of_one_stage(
    max_norm: float, learning_rate: float, layers: list[nn.Module], rows: Tensor, targets: Tensor
) -> list[Tensor]:
    """Return the weights of one process with all layers, after three steps."""
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        torch.autograd.backward(F.mse_loss(model(rows), targets))
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


_SUMMED = "        dist.all_reduce(square)\n"
check_job_8 = case(
    8,
    job_8,
    FORECAST_8,
    fault_of_8,
    "its weights are those of one stage, however the layers are cut.",
    {
        "Each stage is as long as the whole may be, and the direction is another.": sick_8(),
        "Then the whole is never too long, but stages are still cut by different factors.": edited(
            sick_8(), ("max_norm)\n", "max_norm / world**0.5)\n")
        ),
        "Lengths at right angles don't add: their squares do.": edited(
            job_8, ("(gradients) ** 2", "(gradients)"), ("square.sqrt()", "square")
        ),
        "A single stage, be it the longest, is shorter than the whole.": edited(
            job_8, (_SUMMED, "        dist.all_reduce(square, dist.ReduceOp.MAX)\n")
        ),
        "A mean over the stages is less than their sum.": edited(
            job_8, (_SUMMED, f"{_SUMMED}        square /= world\n")
        ),
        "That stretches gradients that are short enough.": edited(
            job_8,
            (
                "nn.utils.clip_grads_with_norm_(stage.parameters(), max_norm, square.sqrt())",
                "torch._foreach_mul_(gradients, max_norm / square.sqrt())",
            ),
        ),
        "Without clipping a step is as long as it likes.": edited(sick_8(), (_OWN, "")),
    },
    {
        "That is one stage's part, or the whole of a right job.": 0.1,
        "Lengths at right angles don't add like that.": 1.6,
        "That is the gradient; a step takes the learning rate's share of it.": 4,
    },
)
"""Case 8: (job_8, forecast_8)."""
