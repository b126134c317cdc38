"""What notebook 13 runs where streams really run: a race as a wrong number, and exercise 4 judged by its numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from support.devices import RealStreams, key_of, key_of_often, start_device, started
from support.kit.exercise import Exercise
from support.kit.raised import told_of
from support.kit.verdict import Verdict
from support.n13.streaming import Streamed

LATE = 0.5
"""Seconds; far more than the host needs for a launch, also on a busy machine."""
TIMES = 200
"""How often the notebook runs it without being late."""


def early_read(gpu, waits, late):  # type: ignore[no-untyped-def]  # word for word as the notebook has it
    """Copy ones in a side stream; add them up in the current one, behind a wait or without."""
    batch = gpu.host(torch.ones(1_000_000), "batch 0")
    y = gpu.empty_like(batch).zero_()
    side = gpu.new_stream("side")
    side.wait_stream(gpu.current_stream())  # the zeros are in their place: this wait always stays
    with gpu.use_stream(side):
        gpu.sleep(late)
        y.copy_(batch, non_blocking=True)
    if waits:
        gpu.current_stream().wait_stream(side)
    return y.sum()


def record_early_read() -> dict[str, Any]:
    """Return what the notebook's cells compute with the switch in either position, on a simulated device."""
    device = start_device("early_read")
    if not isinstance(device, RealStreams) or not device.is_simulated:
        raise RuntimeError(f"early_read is recorded on a simulated device, and this is {device}")
    results: dict[str, Any] = {}
    for waits in (False, True):
        for late in (0, LATE):
            results[key_of(waits, late)] = device.run(early_read, waits, late)
        results[key_of_often(TIMES, waits, 0)] = device.run_often(TIMES, early_read, waits, 0)
    return {"results": results}


# ---- exercise 4, where a device was started: the numbers that come out when kernels, then copies are late

CHUNKS = 4
NUMBERS = 1000  # a chunk
KERNEL = 0.02  # seconds by which a kernel is late
BANDWIDTH = 1e6  # bytes a second of slow copies: 4 ms in,
WIDER = 8  # and as much as this longer out: a block that is read so long is written again, if nobody waits

Judging: TypeAlias = Callable[[Exercise, Any], Verdict]


def judged_on_a_device_too(judge: Judging) -> Judging:
    """Let a judge that needs no device be joined by the numbers of one, where a cell has started it.

    Whether an answer is right says the judge, from the order of the operations. The device adds what it saw of a wrong
    one; a wrong number of an answer in which the judge finds nothing is a fault, too.
    """

    def judge_both(exercise: Exercise, answer: Any) -> Verdict:
        verdict = judge(exercise, answer)
        device = started()
        if device is None:
            return verdict
        try:
            seen = wrong_numbers(device, answer)
        except Exception as error:
            seen = "" if verdict.status == "wrong" else told_of(error)
        if not seen:
            return verdict
        return (
            Verdict("wrong", f"{verdict.message} {seen}")
            if verdict.status == "wrong"
            else exercise.wrong(seen)
        )

    return judge_both


def wrong_numbers(device: RealStreams, streamed: Streamed) -> str:
    """Say which numbers the loop gave with late kernels, then with slow copies; "" if they were right."""
    wanted = [float(i + 2) for i in range(CHUNKS)]
    late = numbers_of(device, streamed, KERNEL)
    if late != wanted:
        return _told("late kernels", device, late, wanted)
    if not device.is_simulated:
        return ""  # nobody slows down the copies of a real GPU: it would be the same run without a sleep
    with device.slow_copies(BANDWIDTH):
        slow = numbers_of(device, streamed, 0.0)
    return _told("slow copies", device, slow, wanted) if slow != wanted else ""


def _told(what: str, device: RealStreams, got: list[float], wanted: list[float]) -> str:
    numbers, right = (" ".join(f"{x:g}" for x in values) for values in (got, wanted))
    told = f"With {CHUNKS} chunks and {what}, on {device}, they came back as {numbers}; right is {right}"
    why = " A chunk with nan was read before anybody wrote it." if any(map(math.isnan, got)) else ""
    return f"{told} (chunk i holds i + 1, and this stage adds 1).{why}"


def numbers_of(device: RealStreams, streamed: Streamed, late: float) -> list[float]:
    """Run the loop on a device whose kernels are late, and return a number of each result: i + 2 for chunk i."""
    sources = [torch.full((NUMBERS,), i + 1.0).pin_memory() for i in range(CHUNKS)]
    results = [torch.zeros(WIDER, NUMBERS).pin_memory() for _ in range(CHUNKS)]
    ones = torch.ones(WIDER, 1, device=device.device)
    before = device.empty_like(sources[0])  # of another function: its block is free again, and still in use
    device.sleep(late)
    before.fill_(-1.0)
    del before

    def stage(x: Tensor) -> Tensor:
        device.sleep(late)
        return x + ones

    try:
        streamed(device, stage, sources, results)
        return [float(y[0, 0]) for y in results]
    finally:
        device.synchronize()
