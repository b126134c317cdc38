"""What notebook 10, checkpoint and recompute, runs, measures, predicts: held tensors, time, faults."""

from __future__ import annotations

import itertools
import random
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from lib._values import integer
from lib.measure import cuda_peak
from lib.measure import measure as time_on_gpu
from lib.pipeline.checkpoint import checkpoint, is_recomputing
from lib.pipeline.microbatch import TensorOrTensors, scatter
from lib.saved import SavedTensors
from lib.timeline import Recorder, Span, Trace, Work, play
from support import recordings

# ---- The memory staircase: how many tensors are held for backward, with and without checkpoints.
#
# A model of L layers, each of which keeps its input and its output (Linear + tanh), in segments; m
# micro-batches go forward one after the other, then backward, the last one first. Without a checkpoint all
# L + 1 tensors of a micro-batch stay. With one, a segment keeps its input, and computes its inside again when
# backward comes to it.
#
#     tensors     x0 ─ layer 1 ─ x1 ─ layer 2 ─ x2 ─ layer 3 ─ x3 ─ layer 4 ─ x4
#     segments    └──────── 1 ─────────┘└──────── 2 ──────────┘       held after forward: x0 and x2
#
# predict  what is held in each step, by reasoning
# measure  how many tensors autograd really holds in each step, counted in a real run of such a model

Mode: TypeAlias = Literal["never", "except_last", "always"]
Kind: TypeAlias = Literal["forward", "recompute", "backward"]
MODES: tuple[Mode, ...] = ("never", "except_last", "always")


class Step(NamedTuple):
    """Say what is held in a step of a layer (1 … L): at the end of its forward, at the start of its backward.

    held: pairs (micro-batch, k) of the tensors; x_k is the output of layer k, x0 the input.
    """

    kind: Kind
    micro_batch: int
    layer: int
    held: frozenset[tuple[int, int]]


def segments_of(layers: int, segments: int) -> list[range]:
    """Return the layers of each segment, 1 … L: as even as can be, the longer ones first. Raises ValueError."""
    layers = integer("layers", layers, at_least=1)
    segments = integer("segments", segments, at_least=1, below=layers + 1)
    short, longer = divmod(layers, segments)
    starts = [1 + c * short + min(c, longer) for c in range(segments + 1)]
    return [range(start, end) for start, end in itertools.pairwise(starts)]


def checkpointed(micro_batches: int, mode: Mode) -> int:
    """Return how many micro-batches, the first ones, are checkpointed. Raises ValueError for an unknown mode."""
    if mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(MODES)}, not {mode!r}")
    return {"never": 0, "except_last": micro_batches - 1, "always": micro_batches}[mode]


def predict(layers: int, segments: int, micro_batches: int = 1, mode: Mode = "always") -> list[Step]:
    """Return the steps of one forward and backward over all micro-batches, in order. Raises ValueError."""
    parts, stop = segments_of(layers, segments), checkpointed(micro_batches, mode)
    steps: list[Step] = []
    held: set[tuple[int, int]] = set()

    def step(kind: Kind, i: int, layer: int) -> None:
        steps.append(Step(kind, i, layer, frozenset(held)))

    def compute(kind: Kind, i: int, part: range) -> None:
        for layer in part:
            held.update(((i, layer - 1), (i, layer)))
            step(kind, i, layer)

    for i in range(micro_batches):
        for part in parts:
            if i >= stop:
                compute("forward", i, part)
                continue
            for layer in part:
                step("forward", i, layer)
            held.add((i, part[0] - 1))  # all that a segment keeps
    for i in reversed(range(micro_batches)):
        for part in reversed(parts):
            if i < stop:
                compute("recompute", i, part)
            for layer in reversed(part):
                step("backward", i, layer)
                held.discard((i, layer))
            if i < stop or part[0] == 1:
                held.discard((i, part[0] - 1))
    return steps


def peak(steps: list[Step]) -> int:
    """Return the largest number of tensors held in any step."""
    return max(len(step.held) for step in steps)


class _Layer(nn.Linear):
    """Linear and tanh; notes how many tensors are held when it has computed, and when its backward starts."""

    def __init__(self, width: int, number: int, saved: SavedTensors, log: list[tuple[Kind, int, int, int]]):
        super().__init__(width, width)
        self.number, self.saved, self.log = number, saved, log

    def run(self, x: Tensor, i: int) -> Tensor:
        def note(kind: Kind, _: object = None) -> None:
            self.log.append((kind, i, self.number, self.saved.count))

        y: Tensor = self(x).tanh()
        note("recompute" if is_recomputing() else "forward")
        if y.requires_grad:  # not in a checkpoint
            y.register_hook(partial(note, "backward"))  # type: ignore[no-untyped-call]
        return y


def measure(
    layers: int, segments: int, micro_batches: int = 1, mode: Mode = "always", *, width: int = 4
) -> list[tuple[Kind, int, int, int]]:
    """Run such a model, forward and backward; return (kind, micro-batch, layer, tensors held) of each step."""
    parts, stop = segments_of(layers, segments), checkpointed(micro_batches, mode)
    log: list[tuple[Kind, int, int, int]] = []
    saved = SavedTensors()
    model = [_Layer(width, number, saved, log) for number in range(1, layers + 1)]
    saved.ignore(x for layer in model for x in layer.parameters())

    def run(part: range, i: int, x: Tensor) -> Tensor:
        for number in part:
            x = model[number - 1].run(x, i)
        return x

    with saved:
        outputs = []
        for i, batch in enumerate(scatter(torch.ones(2 * micro_batches, width), micro_batches)):
            x = batch.tensor
            for part in parts:
                function = partial(run, part, i)
                x = checkpoint(function, x) if i < stop else function(x)  # type: ignore[assignment]
            outputs.append(x)
        loss = torch.cat(outputs).sum()
        del x, outputs
        loss.backward()  # type: ignore[no-untyped-call]
    return log


# ---- How long a training step takes with recompute, predicted and measured.
#
# A micro-batch costs forward + backward; a checkpointed one a second forward between them: recompute.
#
# predict_step   one device, m micro-batches: the spans of a step in each mode
# measure_steps  the same on this machine
# predict_early  several partitions: what it saves that Recompute need not wait for the gradient

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
    stop, tasks = checkpointed(micro_batches, mode), []
    for j in reversed(range(partitions)):
        for i in reversed(range(micro_batches)):
            gradient = [f"B{i} {j + 1}"] if j + 1 < partitions else []
            if i < stop:
                tasks.append(Work(f"partition {j}", f"R{i} {j}", 1, [] if early else gradient, "recompute"))
            tasks.append(Work(f"partition {j}", f"B{i} {j}", backward, gradient, "backward"))
    trace = play(tasks, [f"partition {j}" for j in range(partitions)])
    # the lane says which partition it is
    return Trace((replace(span, label=span.label.split()[0]) for span in trace), trace.lanes)


# ---- Peak memory and time of a step on a GPU, by the number of checkpointed segments; predicted without one.
#
# To record them:   python -m support.recordings checkpoint_gpu

LAYERS, WIDTH, ROWS = 16, 2048, 8192
SEGMENTS = (0, 1, 2, 4, 8, 16)  # 0: no checkpoint
MIB = 2**20


def predicted_rows() -> list[dict[str, Any]]:
    """Return segments, predicted_mib (weights and their gradients, held tensors) and predicted_ratio of time.

    One tensor more is at work on top of what is held; with a checkpoint two (as `LiveTensors` counts them).
    """
    tensor, weights = ROWS * WIDTH * 4 / MIB, 2 * LAYERS * (WIDTH * WIDTH + WIDTH) * 4 / MIB
    return [
        {
            "segments": s,
            "predicted_mib": weights + tensor * (peak(predict(LAYERS, s)) + 2 if s else LAYERS + 1 + 1),
            "predicted_ratio": 4 / 3 if s else 1.0,
        }
        for s in SEGMENTS
    ]


def measure_rows() -> dict[str, Any]:
    """Return {"rows": …}, the same rows with what this GPU needs: mib at the peak, ms of a step (median of 5)."""
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)]
    model = nn.Sequential(*layers).cuda()
    x = torch.randn(ROWS, WIDTH, device="cuda")
    rows = predicted_rows()
    for row in rows:

        def step(segments: int = row["segments"]) -> None:
            y: Any = x
            for part in segments_of(LAYERS, segments) if segments else ():
                y = checkpoint(model[part[0] - 1 : part[-1]], y)
            loss: Tensor = (y if segments else model(x)).sum()
            del y
            loss.backward()  # type: ignore[no-untyped-call]

        step()  # the gradients are there from now on
        with cuda_peak() as used:
            step()
        assert used.allocated is not None
        row["mib"] = used.allocated / MIB
        row["ms"] = 1e3 * time_on_gpu(step, device="cuda").median
    return {"rows": rows}


def rows_and_source() -> tuple[list[dict[str, Any]], str]:
    """Return the best rows there are, measured, recorded or predicted, and a sentence that says which."""
    return recordings.rows_and_source("checkpoint_gpu", measure_rows, predicted_rows)


# ---- Layers that recompute can trip over, and a run that says what a checkpoint makes of each.
#
#     verdicts()["dropout"]["ours"]     "same"
#
# Every case is a small model of a first layer and a segment that is checkpointed; its gradients are compared
# with those of the same model without checkpoint, from the same weights, inputs and random state.

Outcome: TypeAlias = Literal["same", "wrong", "error", "no gradient", "counted twice"]
How: TypeAlias = Callable[[nn.Module, Tensor], Any]


class SometimesTanh(nn.Module):
    """Tanh or nothing, by Python's random numbers, whose state no checkpoint keeps: the second time another branch."""

    def __init__(self) -> None:
        super().__init__()
        self._random = random.Random(6)  # draws: below 0.8, then above

    def forward(self, x: Tensor) -> Tensor:
        """Return tanh(x) or x."""
        return x.tanh() if self._random.random() < 0.8 else x


class Noise(nn.Module):
    """Scale by Python's random numbers: nothing but the values shows that the second forward is another."""

    def __init__(self) -> None:
        super().__init__()
        self._random = random.Random(6)

    def forward(self, x: Tensor) -> Tensor:
        """Return x times a random number."""
        return (x * (0.5 + self._random.random())).tanh()


class Count(nn.Module):
    """Count the forwards; with `careful` only those that are no recompute."""

    def __init__(self, careful: bool = False) -> None:
        super().__init__()
        self.careful, self.calls = careful, 0

    def forward(self, x: Tensor) -> Tensor:
        """Return x as it is."""
        if not (self.careful and is_recomputing()):
            self.calls += 1
        return x


HOWS: Mapping[str, How] = {
    "ours": checkpoint,
    "torch reentrant": partial(torch_checkpoint, use_reentrant=True),
    "torch not reentrant": partial(torch_checkpoint, use_reentrant=False),
}
CASES: Mapping[str, Callable[[], list[nn.Module]]] = {  # the segment: layers on 8 features
    "dropout": lambda: [nn.Linear(8, 8), nn.Dropout(0.5)],
    "in place, inside": lambda: [nn.Linear(8, 8), nn.SiLU(inplace=True), nn.Linear(8, 8)],
    "in place, on its input": lambda: [nn.SiLU(inplace=True), nn.Linear(8, 8)],
    "in place, on the data": lambda: [nn.SiLU(inplace=True), nn.Linear(8, 8)],
    "other random numbers: values": lambda: [Noise(), nn.Linear(8, 8)],
    "other random numbers: a branch": lambda: [nn.Linear(8, 8), SometimesTanh(), nn.Linear(8, 8)],
    "BatchNorm": lambda: [nn.Linear(8, 8), nn.BatchNorm1d(8)],
    "input without grad": lambda: [nn.Linear(8, 8)],
}
NO_GRAD = ("in place, on the data", "input without grad")  # the segment comes first


def _gradients(case: str, how: How | None) -> tuple[list[Tensor | None], int]:
    """Return the gradients of the segment's parameters and of the layer before, and BatchNorm's count."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        first: nn.Module = nn.Identity() if case in NO_GRAD else nn.Linear(8, 8)
        segment, last = nn.Sequential(*CASES[case]()), nn.Linear(8, 8)
        x = first(torch.randn(16, 8))
        y = segment(x) if how is None else how(segment, x)
        (last(y) ** 2).sum().backward()
    grads = [p.grad for p in (*first.parameters(), *segment.parameters())]
    counts = dict(segment.named_buffers())
    return grads, int(sum(n for name, n in counts.items() if name.endswith("num_batches_tracked")))


def outcome(case: str, how: How) -> Outcome:
    """Return what becomes of a case when its segment is checkpointed this way."""
    expected, count = _gradients(case, None)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            got, counted = _gradients(case, how)
    except RuntimeError:  # torch's CheckpointError is one
        return "error"
    if any(grad is None for grad in got):
        return "no gradient"
    pairs = zip(got, expected, strict=True)
    if not all(torch.allclose(a, b, atol=1e-6) for a, b in pairs if a is not None and b is not None):
        return "wrong"
    return "same" if counted == count else "counted twice"


def verdicts() -> dict[str, dict[str, Outcome]]:
    """Return the outcome of every case under every checkpoint."""
    return {case: {name: outcome(case, how) for name, how in HOWS.items()} for case in CASES}
