"""How long a training step takes with recompute: predicted from one forward and one backward, and measured.

A micro-batch costs forward + backward; a checkpointed one forward + recompute + backward, and recompute is a forward.

predict_step   one device, m micro-batches: the spans of a step in each mode
measure_steps  the same on this machine
predict_early  several partitions: what it saves that Recompute need not wait for the gradient
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from lib.experiments.staircase import MODES, Mode, checkpointed
from lib.pipeline.checkpoint import checkpoint, is_recomputing
from lib.pipeline.microbatch import TensorOrTensors, scatter
from lib.timeline import Recorder, Span, Trace

LETTER = {"forward": "F", "recompute": "R", "backward": "B"}


def _lay(lane: str, pieces: list[tuple[str, int, float]]) -> list[Span]:
    """Return spans of these (kind, micro-batch, duration), one after the other."""
    spans, now = [], 0.0
    for kind, i, duration in pieces:
        spans.append(Span(lane, f"{LETTER[kind]}{i}", now, now + duration, kind))
        now += duration
    return spans


def predict_step(forward: float, backward: float, micro_batches: int, mode: Mode) -> list[Span]:
    """Return the spans of one step on one device, in a lane named after the mode. Raises ValueError for that."""
    stop = checkpointed(micro_batches, mode)
    pieces = [("forward", i, forward) for i in range(micro_batches)]
    for i in reversed(range(micro_batches)):
        pieces += [("recompute", i, forward)] * (i < stop) + [("backward", i, backward)]
    return _lay(mode, pieces)


@contextmanager
def one_thread() -> Iterator[None]:
    """Let each operation use one thread within a `with`: several are slow where other programs run as well."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def measure_steps(
    model: nn.Module, x: Tensor, micro_batches: int, *, repeats: int = 5
) -> Mapping[Mode, Trace]:
    """Return the trace of a step in each mode, each piece as short as in the best of `repeats` rounds in turn.

    Pieces that another program disturbed drop out that way. Each micro-batch is one checkpoint over the whole model, as
    in a partition of GPipe; one thread computes.
    """
    runs: dict[Mode, list[Trace]] = {mode: [] for mode in MODES}
    with one_thread():
        for turn in range(repeats + 1):
            for mode in MODES:
                trace = _step(model, x, micro_batches, mode)
                if turn:  # the first warms up
                    runs[mode].append(trace)
    least: dict[Mode, Trace] = {}
    for mode, traces in runs.items():
        pieces = [min(spans, key=lambda span: span.duration) for spans in zip(*traces, strict=True)]
        least[mode] = Trace(_lay(mode, [(span.kind, int(span.label[1:]), span.duration) for span in pieces]))
    return least


def _step(model: nn.Module, x: Tensor, micro_batches: int, mode: Mode) -> Trace:
    marks: list[tuple[float, str, int]] = []  # when what starts; it ends where the next one starts
    stop = checkpointed(micro_batches, mode)

    def mark(kind: str, i: int) -> None:
        marks.append((Recorder.now(), kind, i))

    def function(i: int, input: TensorOrTensors) -> TensorOrTensors:
        again = is_recomputing()
        mark("recompute" if again else "forward", i)
        output: Tensor = model(input)
        if again:
            mark("backward", i)
        elif (
            output.requires_grad
        ):  # backward of this micro-batch starts when the gradient of its output arrives
            output.register_hook(lambda _: mark("backward", i))  # type: ignore[no-untyped-call]
        return output

    outputs = []
    for i, batch in enumerate(scatter(x, micro_batches)):
        work = partial(function, i)
        outputs.append(checkpoint(work, batch.value) if i < stop else work(batch.value))
    loss = torch.cat(outputs).sum()  # type: ignore[arg-type]
    loss.backward()  # type: ignore[no-untyped-call]
    mark("end", 0)
    spans = [
        Span(mode, f"{LETTER[kind]}{i}", start, end, kind)
        for (start, kind, i), (end, *_) in itertools.pairwise(marks)
    ]
    return Trace(spans).from_zero()


def predict_early(
    partitions: int, micro_batches: int, *, early: bool, backward: float = 2.0, mode: Mode = "always"
) -> Trace:
    """Return the trace of backward in a pipeline, in units of one forward; the last partition starts at 0.

    early: a partition recomputes as soon as it is free (an ideal: the host launches at once, and no stream waits);
    otherwise it waits for the gradient first.
    """
    stop = checkpointed(micro_batches, mode)
    free = [0.0] * partitions
    arrived = [0.0] * micro_batches  # when the gradient of a micro-batch leaves the partition to the right
    spans = []
    for j in reversed(range(partitions)):
        for i in reversed(range(micro_batches)):
            start = free[j] if early else max(free[j], arrived[i])
            if i < stop:
                spans.append(Span(f"partition {j}", f"R{i}", start, start + 1, "recompute"))
                start += 1
            start = max(start, arrived[i])
            spans.append(Span(f"partition {j}", f"B{i}", start, start + backward, "backward"))
            free[j] = arrived[i] = start + backward
    return Trace(spans, [f"partition {j}" for j in range(partitions)])
