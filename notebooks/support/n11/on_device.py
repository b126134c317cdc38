"""What notebook 11 runs where streams really run: copies between two devices, and a checkpoint beside a copy."""

# mypy: allow-untyped-calls, allow-untyped-defs, disable-error-code="var-annotated, union-attr"
# ruff: noqa: D101, D102, D103

from __future__ import annotations

import time
from collections.abc import Callable
from math import isfinite
from typing import Any, TypeAlias

import torch
from torch.utils.checkpoint import checkpoint

from lib.runtime.device import current_stream, new_stream
from support.built import MyCopy, MyWait
from support.built import MyTwoNodeCheckpoint as Checkpoint
from support.built import my_tie as tie
from support.devices import RealStreams, key_of, start_device, started
from support.kit.exercise import Exercise
from support.kit.verdict import Verdict

# ---- word for word as the notebook has them


class HastyWait(MyWait):
    @staticmethod
    def backward(ctx, gradient):
        return None, None, gradient


WAYS = {
    ".to()": (
        lambda prev_stream, next_stream, x: x.to(next_stream.device),
        lambda *streams_and_x: streams_and_x[-1],
    ),
    "yours": (MyCopy.apply, MyWait.apply),
    "hasty": (MyCopy.apply, HastyWait.apply),
}


def there_and_back(gpu, way, m=4, kernel=0.005, link=0.02):
    """Send m micro-batches through two devices and back; return both gradients and the milliseconds."""
    copy, wait = WAYS[way]
    first, last = gpu.devices
    weights = [torch.full((1000,), 0.5, device=device, requires_grad=True) for device in gpu.devices]
    copy_streams = [[new_stream(device) for _ in range(m)] for device in gpu.devices]
    batches = [torch.full((1000,), 1.0 + i, device=first) for i in range(m)]
    torch.accelerator.empty_cache()  # or an early read may find the numbers of the run before
    with gpu.slow(kernel, link):  # seconds of each kernel, and of each copy
        start = time.perf_counter()
        for i in range(m):
            x = torch.tanh(batches[i] * weights[0])
            x = wait(current_stream(first), copy_streams[0][i], x)
            x = copy(copy_streams[0][i], copy_streams[1][i], x)
            x = wait(copy_streams[1][i], current_stream(last), x)
            batches[i] = torch.tanh(x * weights[1])
        torch.stack(batches).sum().backward()
        gpu.synchronize()
        milliseconds = 1000 * (time.perf_counter() - start)
    return torch.tensor([*(weight.grad.sum().item() for weight in weights), milliseconds])


class Act(torch.autograd.Function):
    """Pass a tensor on; backward does what it was told."""

    @staticmethod
    def forward(ctx, x, action):
        ctx.action = action
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.action()
        return gradient, None


class WaitsItself(torch.autograd.Function):
    """Checkpoint in one node, that recomputes first and then waits for the gradient."""

    @staticmethod
    def forward(ctx, wait, function, x):
        ctx.wait = wait
        ctx.function = function
        ctx.save_for_backward(x)
        return function(x)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            output = ctx.function(x)
        ctx.wait()
        torch.autograd.backward(output, gradient)
        return None, None, x.grad


def leaf():
    return torch.empty(0, requires_grad=True)


def one_partition(way, launch, wait):
    """Go backward through a checkpoint with a Wait and a Copy behind it; each calls what launches, or waits."""

    def layers(x):
        if torch.is_grad_enabled():  # not in the first forward, which keeps no graph
            launch("recompute")
        return Act.apply(x * 2, lambda: launch("backward"))

    task = {}, layers, torch.ones(2, requires_grad=True)
    if way == "one node":
        output = Act.apply(checkpoint(layers, task[2], use_reentrant=True), wait)
    elif way == "waits itself":
        output = WaitsItself.apply(wait, layers, task[2])
    else:
        output = tie(Act.apply(Checkpoint.apply(leaf(), *task), wait), *task)
    Act.apply(output, lambda: launch("copy")).sum().backward()


TICKS = {"copy": 4, "recompute": 3, "backward": 5}


def ends_at(gpu, way):
    """Return when a device is through with it, in ticks of 20 ms."""
    tick = 0.02  # seconds
    compute = gpu.current_stream()
    copies = gpu.new_stream()

    def launch(kind):
        with gpu.use_stream(copies if kind == "copy" else compute):
            gpu.sleep(tick * TICKS[kind])

    gpu.synchronize()
    start = time.perf_counter()
    one_partition(way, launch, lambda: compute.wait_stream(copies))
    gpu.synchronize()
    return torch.tensor((time.perf_counter() - start) / tick)


# ---- recorded, and judged

COSTS = ((4, 0.005, 0.02), (1, 0.005, 0.02), (4, 0.02, 0.001))
"""Micro-batches, seconds of each kernel and of each copy: what the notebook tries."""
NODES = ("one node", "waits itself", "two nodes")


def record_two_devices() -> dict[str, Any]:
    """Return what the notebook's cells give, on two simulated devices."""
    device = start_device("two_devices", count=2)
    if not isinstance(device, RealStreams) or not device.is_simulated:
        raise RuntimeError(f"two_devices is recorded on simulated devices, and this is {device}")
    results: dict[str, Any] = {}
    for way in WAYS:
        device.run(there_and_back, way)  # the first call of a kernel also loads it
    for way in WAYS:
        results[key_of(way)] = _numbers(device, way)
    for costs in COSTS:
        for way in (".to()", "yours"):
            runs = [_numbers(device, way, *costs) for _ in range(5)]
            results[key_of(way, *costs)] = min(runs, key=lambda run: float(run[2]))  # the shortest
    for way in NODES:
        results[key_of(way)] = device.run(ends_at, way)
    return {"results": results}


def _numbers(device: RealStreams, way: str, *costs: float) -> list[float | str]:
    """Return what a run gives, as JSON can hold it: it has no nan."""
    return [x if isfinite(x) else str(x) for x in device.run(there_and_back, way, *costs)]


_Judging: TypeAlias = Callable[[Exercise, Any], Verdict]


def judged_on_devices_too(judge: _Judging) -> _Judging:
    """Let a judge that needs no device be joined by the numbers of two, where a cell has started them.

    Whether an answer is right says the judge, from the order of the operations. The devices add what they saw of a
    wrong one; a wrong number of an answer in which the judge finds nothing is a fault, too.
    """

    def judge_both(exercise: Exercise, answer: Any) -> Verdict:
        verdict = judge(exercise, answer)
        device = started()
        if device is None or len(device.devices) < 2:
            return verdict
        seen = wrong_number(device, answer)
        if not seen:
            return verdict
        if verdict.status == "wrong":
            return Verdict("wrong", f"{verdict.message} {seen}")
        return exercise.wrong(seen)

    return judge_both


def wrong_number(device: RealStreams, answer: Any) -> str:
    """Say which gradient came out with slow copies, where it is not the right one."""
    before = WAYS["yours"]
    wanted = device.run(there_and_back, ".to()")[:2]
    WAYS["yours"] = tuple(function.apply for function in answer)
    try:
        got = device.run(there_and_back, "yours")[:2]
    except Exception:
        return ""  # the judge tells it, with its place
    finally:
        WAYS["yours"] = before
    if got == wanted:
        return ""
    told = " and ".join(f"{x:g}" for x in got)
    return f"On {device} the weights' gradients added up to {told}; right is {wanted[0]:g} and {wanted[1]:g}."
