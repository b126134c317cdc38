"""Claims that need real ranks: two processes with a gloo group that start once for all, and have time-outs."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from lib.text import format_share
from support.ledger.book import Observation, claim
from support.ranks import Ranks

PATIENCE = 60.0  # seconds for what takes a few at most, of which most is to import FSDP
#: The profiler counts memory and calls for us; what it logs of itself is of no interest here.
QUIETLY = {"KINETO_LOG_LEVEL": "99"}
_TWO = Ranks(2)


def on_two_ranks(function: Callable[..., Any], **given: Any) -> Any:
    """Return what `function(dist, **given)` returned on rank 0 of two; raises what Ranks.run raises."""
    with mock.patch.dict(os.environ, QUIETLY):
        return _TWO.run(function, patience=PATIENCE, **given)[0]


def end_two_ranks() -> None:
    """End the ranks; a later claim starts new ones."""
    _TWO.close()


def fsdp_gathers(dist: Any, reshard: bool, m: int) -> int:
    """Return how often FSDP gathers a layer in a step of m micro-batches, of which the last one reduces."""
    import warnings

    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.profiler import profile

    warnings.simplefilter("ignore")
    layer: Any = nn.Linear(8, 8)
    fully_shard(layer, mesh=init_device_mesh("cpu", (2,)), reshard_after_forward=reshard)
    with profile() as seen:
        for i in range(m):
            layer.set_requires_gradient_sync(i == m - 1)
            layer.set_reshard_after_backward(reshard or i == m - 1)
            layer(torch.ones(2, 8)).relu().sum().backward()
    return sum(event.name() == "gloo:all_gather" for event in seen.profiler.kineto_results.events())


@claim(
    "FSDP gathers once a step",
    "torchtitan, models/llama3/infra/parallelize.py (2025), the comment at reshard_after_forward",
    "https://github.com/pytorch/torchtitan/blob/main/torchtitan/models/llama3/infra/parallelize.py",
    "In a pipeline FSDP should not reshard after forward, so that it does not gather for each micro-batch.",
)
def fsdp_gathers_once_a_step(m: int = 4, once: int = 1) -> Observation:
    """Count the gathers of one layer in a step, with and without resharding."""
    counts = {
        "resharding waits for the last micro-batch": on_two_ranks(fsdp_gathers, reshard=False, m=m),
        "it is left on": on_two_ranks(fsdp_gathers, reshard=True, m=m),
    }
    kept, dealt = counts.values()
    saw = f"With {m} micro-batches a layer is gathered {kept} times if it is kept, {dealt} times if it is resharded."
    return Observation(
        saw, {setting: count == once for setting, count in counts.items()}, {"kept": kept, "resharded": dealt}
    )


def ddp_peak(dist: Any, view: bool, to_none: bool, rows: int) -> float:
    """Return the peak of a step's memory in gradients, beyond weights and buckets."""
    from torch.profiler import profile

    torch.manual_seed(0)
    layers = [nn.Linear(128, 128, bias=False) for _ in range(8)]
    model = DDP(nn.Sequential(*layers), gradient_as_bucket_view=view)
    x = torch.ones(rows, 128)
    for _ in range(2):  # gradients are views after the first one
        model(x).sum().backward()
        model.zero_grad(set_to_none=to_none)
    own = {p.grad.untyped_storage().data_ptr() for p in layers[0].parameters() if p.grad is not None}
    there = 1.0 if own and not view else 0.0  # gradients that have stayed, and are no part of the buckets
    with profile(profile_memory=True) as seen:
        model(x).sum().backward()
    live = peak = 0
    for event in seen.profiler.kineto_results.events():
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    return there + peak / sum(4 * p.numel() for p in model.parameters())


@claim(
    "Bucket views save one gradient",
    "torch's documentation of DistributedDataParallel, gradient_as_bucket_view",
    "https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html",
    "It can lower the peak of memory, by as much as all gradients take.",
    slack=0.05,
)
def bucket_views_save_one_gradient(few: int = 4, many: int = 1024, near: float = 0.25) -> Observation:
    """Measure the peak with and without views, in gradients, after the first step."""
    settings = {
        "gradients stay between steps": (False, many),
        "gradients become None and activations are few": (True, few),
        "gradients become None and activations are many": (True, many),
    }
    saved = {}
    for setting, (to_none, rows) in settings.items():
        plain, viewed = (
            on_two_ranks(ddp_peak, view=view, to_none=to_none, rows=rows) for view in (False, True)
        )
        saved[setting] = plain - viewed
    told = "; ".join(f"{gradients:.2f} if {setting}" for setting, gradients in saved.items())
    saw = f"Counted in gradients, the peak falls by {told}. Up to {format_share(near)} off counts as one."
    if min(saved.values()) <= near:
        saw += " Where it falls by nothing it is at the end of forward, and no gradient is there yet."
    return Observation(saw, {setting: abs(part - 1) <= near for setting, part in saved.items()}, dict(saved))


def share_of_the_sum(dist: Any, scale_grads: bool, m: int, calls: int) -> float:
    """Return which share of the sum of `calls` equal gradients stands in .grad after so many calls of step."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank = dist.get_rank()

    def accumulated(times: int) -> Any:
        torch.manual_seed(rank)
        part = nn.Linear(4, 4)
        stage = PipelineStage(part, rank, 2, torch.device("cpu"))
        engine = Schedule1F1B(stage, n_microbatches=m, loss_fn=F.mse_loss, scale_grads=scale_grads)
        for _ in range(times):
            given = [torch.ones(2 * m, 4)] if rank == 0 else []
            engine.step(*given, target=torch.zeros(2 * m, 4), losses=[])
        return part.weight.grad

    one = accumulated(1)
    several = accumulated(calls)
    return float((several * one).sum() / (one * one).sum()) / calls


@claim(
    "Accumulating over schedule.step fails",
    "pytorch/torchtitan#1733 (2025)",
    "https://github.com/pytorch/torchtitan/issues/1733",
    "With scale_grads=True, the default, gradients accumulated over calls of schedule.step are no sum: earlier calls "
    "count less and less.",
)
def step_scales_what_is_there(m: int = 4, calls: int = 2) -> Observation:
    """Call step on the same rows without zero_grad, and compare with that many times the first gradient."""
    shares = {
        "scale_grads is left at True": on_two_ranks(share_of_the_sum, scale_grads=True, m=m, calls=calls),
        "scale_grads=False": on_two_ranks(share_of_the_sum, scale_grads=False, m=m, calls=calls),
    }
    scaled, plain = shares.values()
    saw = (
        f"With m = {m}, after {calls} calls .grad has {scaled:.3f} of the right sum with scale_grads=True, "
        f"and {plain:.3f} with False, where one division at the end is left to you."
    )
    return Observation(
        saw, {setting: share < 0.999 for setting, share in shares.items()}, {"share": round(scaled, 4)}
    )


def ddp_over_alone(dist: Any, summed: bool) -> float:
    """Return DDP's gradient over that of one process with all rows."""
    rows = torch.arange(32.0).view(8, 4).sin()
    lengths = []
    for part in (rows, rows.chunk(dist.get_world_size())[dist.get_rank()]):
        torch.manual_seed(0)
        layer = nn.Linear(4, 1)
        model = layer if part is rows else DDP(layer)
        loss = model(part).square()
        (loss.sum() if summed else loss.mean()).backward()
        lengths.append(float(layer.weight.grad.norm()))  # type: ignore[union-attr]
    return lengths[1] / lengths[0]


@claim(
    "DDP divides a summed loss by the ranks",
    "torch's documentation of DistributedDataParallel, a note on M nodes",
    "https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html",
    "On M ranks the gradient is M times smaller than that of one process with all rows, if the loss is a sum.",
)
def a_summed_loss_is_divided_by_ranks(smaller: float = 2.0, near: float = 1e-4) -> Observation:
    """Give two ranks half of the rows each, and compare with one process that has all."""
    ratios = {
        "the loss is a sum over rows": on_two_ranks(ddp_over_alone, summed=True),
        "it is a mean": on_two_ranks(ddp_over_alone, summed=False),
    }
    summed, mean = ratios.values()
    saw = f"DDP's gradient on two ranks over that of one process: {summed:.3g} for a sum, {mean:.3g} for a mean."
    return Observation(
        saw,
        {setting: abs(ratio * smaller - 1) <= near for setting, ratio in ratios.items()},
        {"sum": round(summed, 4)},
    )
