"""Answers of notebook 13 where a cell has started a device: the numbers that come out when something is late."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from support.devices import RealStreams, started
from support.kit.exercise import Exercise
from support.kit.raised import told_of
from support.kit.verdict import Verdict
from support.n13.streaming import Streamed

CHUNKS = 4
NUMBERS = 1000  # a chunk
KERNEL = 0.02  # seconds by which a kernel is late
BANDWIDTH = 1e6  # bytes a second of slow copies: 4 ms in,
WIDER = 8  # and as much as this longer out: a block that is read so long is written again, if nobody waits
OFTEN = 3  # runs of an exhibit

Judging: TypeAlias = Callable[[Exercise, Any], Verdict]


def judged_on_a_device_too(judge: Judging, look: Callable[[RealStreams, Any], str]) -> Judging:
    """Let a judge that needs no device be joined by the numbers of one, where a cell has started it.

    Whether an answer is right says the judge, from the order of the operations. The device adds what it saw of a wrong
    one; a wrong number of an answer in which the judge finds nothing is a fault, too. look: says what it saw, or "".
    """

    def judge_both(exercise: Exercise, answer: Any) -> Verdict:
        verdict = judge(exercise, answer)
        device = started()
        if device is None or verdict.status == "open":
            return verdict
        try:
            seen = look(device, answer)
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


def wrong_sums(right: float, late: float = KERNEL) -> Callable[[RealStreams, Any], str]:
    """Make the look at an exhibit: in how many runs it gives another number than this."""

    def look(device: RealStreams, exhibit: Any) -> str:
        numbers = device.run_often(OFTEN, exhibit, late)
        wrong = [number for number in numbers if number != right]
        if not wrong:
            return ""
        told = f"On {device}, {len(wrong)} of {OFTEN} runs gave a wrong number"
        return f"{told}, such as {wrong[0]:g}; right is {right:g}."

    return look


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
