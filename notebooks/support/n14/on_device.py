"""What notebook 14 runs on four devices: any orders, with messages that are late, beside their predicted times.

A rank is a stream of its device. A task lasts as long as a pause in front of it, besides its products of small
matrices. A message is a pause and a copy in a stream of its own, so it keeps no rank busy.
"""

# mypy: allow-untyped-calls, allow-untyped-defs, disable-error-code="no-any-return,var-annotated,arg-type"

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any, NamedTuple

import torch

from lib.runtime.device import (
    active_bytes,
    new_stream,
    record_stream,
    reset_peak,
    use_device,
    use_stream,
)
from lib.runtime.recording import device_span, read
from lib.schedules import Schedule, gpipe, interleaved_one_f_one_b, model_parallel, one_f_one_b, simulate
from lib.schedules.legal import in_order
from lib.schedules.simulate import KINDS
from lib.timeline import Recorder, Span, Trace
from support.devices import InPlaceOfADevice, RealStreams, key_of, start_device
from support.n14.solved import SplitLinear, fill_holes, table
from support.n14.warm_up import put_off, warmed_up

DEVICES = 4
TIMES = (6.0, 6.0, 6.0)
"""Milliseconds of F, I and W that the notebook begins with."""
MESSAGES = (0.0, 6.0)
"""Milliseconds of a message, likewise."""
ROWS = 256
WIDTH = 64
"""Of a micro-batch whose bytes are counted: large beside what an allocator rounds up."""


class OnDevices:
    """Where the tasks of a rank are done: a stream for each rank, and a stream for each message."""

    def __init__(self, gpu, times, message):
        self.gpu = gpu
        forward, input, weight = times
        self.pause = {"F": forward, "I": input, "W": weight, "B": input + weight}
        self.message = message
        self.streams = [new_stream(device) for device in gpu.devices]
        self.recorder = Recorder()

    @contextmanager
    def doing(self, rank, task, parcel):
        """Let the rank's stream wait for what the task needs; then the body is the task."""
        device = self.gpu.devices[rank]
        stream = self.streams[rank]
        tensor, arrived = parcel or (None, None)
        with use_device(device), use_stream(stream):
            if arrived is not None:
                stream.wait_event(arrived)
                record_stream(tensor, stream)
            with device_span(stream, f"rank {rank}", str(task), KINDS[task.op], self.recorder):
                self.gpu.sleep(self.pause[task.op] / 1e3)
                yield tensor

    def sent(self, tensor, rank, to):
        """Put a message on its way; return the tensor where it will be, and the event after which it is there."""
        if rank == to:
            return tensor, None
        here = self.gpu.devices[rank]
        there = self.gpu.devices[to]
        way: Any = new_stream(here)
        end: Any = new_stream(there)
        way.wait_stream(self.streams[rank])
        with use_device(here), use_stream(way):
            if self.message:
                self.gpu.sleep(self.message / 1e3)
            with use_stream(end):
                copy = tensor.detach().to(there, non_blocking=True)
            record_stream(tensor, way)
        end.wait_stream(way)
        return copy, end.record_event()

    def trace(self):
        """Return what ran when, in seconds."""
        read(self.recorder)
        return self.recorder.trace([f"rank {rank}" for rank in range(len(self.streams))])


def share_of_loss(targets):
    """Return the function that makes of an output its micro-batch's share of the loss."""
    return lambda y, i: (y - targets[i]).square().mean() / len(targets)


def as_they_begin(schedule):
    """Return (rank, task) by predicted start: in this order the host launches them, one by one."""
    begins = {span.label: span.start for span in simulate(schedule)}
    turns = sorted(in_order(schedule), key=lambda turn: begins[str(turn.action)])
    return [(turn.rank, turn.action) for turn in turns]


def run_orders(schedule, weights, parts, loss, place, linear):
    """Do all tasks; gradients go to weights[s].grad. Return the W's that were not done."""
    made = {}
    graphs = {}
    later = {}
    for rank, task in as_they_begin(schedule):
        op, s, i = task
        arrived = made.pop(("F", s - 1, i) if op == "F" else ("B", s + 1, i), None)
        with place.doing(rank, task, arrived) as tensor:
            if op == "F":
                x = (tensor if s else parts[i]).detach().requires_grad_()
                y = torch.tanh(linear.apply(x, weights[s], later.setdefault((s, i), [])))
                graphs[s, i] = x, loss(y, i) if s + 1 == schedule.stages else y
            elif op in "BI":
                x, y = graphs.pop((s, i))
                y.backward(tensor)  # None: it starts at the loss
            owed = later.pop((s, i)) if op in "BW" else []
            while owed:  # empty the list, as exercise 3 says
                owed.pop()()
        if op == "F" and s + 1 < schedule.stages:
            made["F", s, i] = place.sent(y, rank, schedule.rank_of[s + 1])
        elif op in "BI":
            made["B", s, i] = place.sent(x.grad, rank, schedule.rank_of[s - 1]) if s else None
            x.grad = None  # it is on its way, and W keeps x with all that hangs on it
    return later


def step_on_devices(gpu, text, times, message, linear=SplitLinear, often=3):
    """Return start and end of each task of orders, in seconds: of the shortest of some steps."""
    schedule = Schedule.from_text("", text)
    m = schedule.micro_batches
    draw = torch.Generator().manual_seed(1)
    weights = [torch.randn(4, 4, generator=draw) for _ in range(schedule.stages)]
    rows, wanted = torch.randn(2, 4 * m, 4, generator=draw)
    homes = [gpu.devices[schedule.rank_of[s]] for s in range(schedule.stages)]
    share = len(gpu.devices) / schedule.stages
    steps = []
    for _ in range(often):
        here = [weight.to(home).requires_grad_() for weight, home in zip(weights, homes, strict=True)]
        parts = rows.to(homes[0]).chunk(m)
        loss = share_of_loss(wanted.to(homes[-1]).chunk(m))
        gpu.synchronize()
        place = OnDevices(gpu, [share * time for time in times], message)
        run_orders(schedule, here, parts, loss, place, linear)
        gpu.synchronize()
        steps.append(place.trace())
    _see_that_it_is_right(weights, rows, wanted, here)
    best = {span.label: span for span in min(steps, key=lambda trace: trace.makespan)}
    spans = [best[str(action)] for _, action in schedule]
    begin = min(span.start for span in spans)
    return torch.tensor([[span.start - begin, span.end - begin] for span in spans], dtype=torch.float64)


def _see_that_it_is_right(weights, rows, wanted, found):
    """Raise RuntimeError where the gradients of a step are not those of the plain model."""
    own = [weight.clone().requires_grad_() for weight in weights]
    y = rows
    for weight in own:
        y = torch.tanh(y @ weight.T)
    expected = torch.autograd.grad((y - wanted).square().mean(), own)
    for s, (weight, gradient) in enumerate(zip(found, expected, strict=True)):
        if not torch.allclose(weight.grad.cpu(), gradient, atol=1e-6):
            raise RuntimeError(f"the gradient of stage {s} is not that of the plain model")


# ---- what orders hold


class InStep(OnDevices):
    """The same with a host that waits for each task and each message, so that nothing is made before its turn."""

    @contextmanager
    def doing(self, rank, task, parcel):
        """Do the task, and wait for it."""
        with super().doing(rank, task, parcel) as tensor:
            yield tensor
        self.gpu.synchronize()

    def sent(self, tensor, rank, to):
        """Send the message, and wait for it."""
        parcel = super().sent(tensor, rank, to)
        self.gpu.synchronize()
        return parcel


class FromHost:
    """Micro-batches on the host: one comes to the first device when its forward begins, as a message would."""

    def __init__(self, parts, device):
        self.parts = parts
        self.device = device

    def __getitem__(self, i):
        return self.parts[i].to(self.device)


class WithTanhs:
    """A linear layer and so many tanh's, of which run_orders has the last; each keeps its output until I."""

    def __init__(self, linear, tanhs):
        self.linear = linear
        self.tanhs = tanhs

    def apply(self, x, weight, later):
        """Return what the stage has before its last tanh."""
        y = self.linear.apply(x, weight, later)
        for _ in range(self.tanhs - 1):
            y = torch.tanh(y)
        return y


def peaks_on_devices(gpu, text, tanhs=1, run=run_orders, linear=SplitLinear):
    """Return the most that a step holds on each device beside weights and their gradients, in activations.

    An activation is a stage's input and the output of each tanh. The host waits for each task: one that runs ahead
    makes tensors earlier than the order says.
    """
    schedule = Schedule.from_text("", text)
    m = schedule.micro_batches
    draw = torch.Generator().manual_seed(1)
    rows, wanted = torch.randn(2, m * ROWS, WIDTH, generator=draw)
    homes = [gpu.devices[schedule.rank_of[s]] for s in range(schedule.stages)]
    weights = [torch.randn(WIDTH, WIDTH, generator=draw).to(home).requires_grad_() for home in homes]
    for weight in weights:
        weight.grad = torch.zeros_like(weight)
    parts = FromHost(rows.chunk(m), homes[0])
    targets = wanted.to(homes[-1]).chunk(m)
    place = InStep(gpu, (0, 0, 0), 0)
    for _ in range(2):  # the first step also makes what the device's libraries keep
        gpu.synchronize()
        before = [active_bytes(device, "current") for device in gpu.devices]
        for device in gpu.devices:
            reset_peak(device)
        run(schedule, weights, parts, lambda y, i: (y * targets[i]).sum(), place, WithTanhs(linear, tanhs))
        gpu.synchronize()
    most = [active_bytes(device, "peak") - held for device, held in zip(gpu.devices, before, strict=True)]
    return torch.tensor(most, dtype=torch.float64) / ((1 + tanhs) * ROWS * WIDTH * rows.element_size())


def measured_peaks(
    device: RealStreams | InPlaceOfADevice,
    schedule: Schedule,
    tanhs: int = 1,
    run: Any = run_orders,
    linear: Any = SplitLinear,
) -> list[float] | None:
    """Return what peaks_on_devices finds, rank by rank. None: no device, and nobody has recorded this order."""
    known = schedule.compact().to_text(), tanhs
    try:
        more = (run, linear) if isinstance(device, RealStreams) else ()
        found: list[float] = device.run(peaks_on_devices, *known, *more)
    except LookupError:
        if isinstance(device, RealStreams):
            raise
        return None
    return [round(each, 2) for each in found]


# ---- what is predicted, and what the notebook shows


class Measured(NamedTuple):
    """What tasks and a message take in milliseconds when nothing else runs.

    asked: F, I and W as we asked for them. besides: what F, I, W and a whole B took more than that.
    """

    asked: tuple[float, float, float]
    besides: tuple[float, float, float, float]
    message: float

    def predict(self, schedule: Schedule) -> Trace:
        """Return the timeline that these times predict, in seconds; of what we ask a small stage takes its share."""
        share = len(schedule.ranks) / schedule.stages
        split = any(action.op == "I" for _, action in schedule)
        pairs = zip(self.asked, self.besides[:3], strict=True)
        forward, input, weight = (share * asked + more for asked, more in pairs)
        whole = input + weight if split else share * sum(self.asked[1:]) + self.besides[3]
        return simulate(schedule, forward, whole, weight if split else None, self.message).scale(1e-3)

    def __str__(self) -> str:
        names = ("F", "I", "W")
        took = [
            f"{name} {asked + more:.2f}"
            for name, asked, more in zip(names, self.asked, self.besides[:3], strict=True)
        ]
        return f"{', '.join(took)}, a message {self.message:.2f} ms"


def _trace(schedule: Schedule, rows: Sequence[Sequence[float]]) -> Trace:
    spans = [
        Span(f"rank {rank}", str(action), start, end, KINDS[action.op])
        for (rank, action), (start, end) in zip(schedule, rows, strict=True)
    ]
    return Trace(spans, [f"rank {rank}" for rank in range(len(schedule.ranks))])


def measured_step(
    device: RealStreams | InPlaceOfADevice,
    schedule: Schedule,
    times: Sequence[float] = TIMES,
    message: float = 0.0,
    linear: Any = SplitLinear,
) -> Trace | None:
    """Run orders on four devices; times of F, I, W and of a message in ms. None: no device, and not recorded.

    times: of all stages of a rank together.
    """
    known = schedule.compact().to_text(), tuple(map(float, times)), float(message)
    if isinstance(device, RealStreams):
        return _trace(schedule, device.run(step_on_devices, *known, linear))
    try:
        return _trace(schedule, device.run(step_on_devices, *known))
    except LookupError:
        return None


def one_by_one(stages: int) -> list[Schedule]:
    """Return orders in which nothing runs at the same time: with whole backwards, and with split ones."""
    whole = model_parallel(3, stages).compact()
    rows = [[(op, s, i) for i in range(3) for op in "FIW"] for s in range(stages)]
    return [whole, table("split", rows)]


def measure_alone(
    device: RealStreams | InPlaceOfADevice, times: Sequence[float] = TIMES, message: float = 0.0
) -> Measured:
    """Return the medians of what tasks and messages take where nothing else runs.

    Without a device, and where these times were not recorded, as we ask for them.
    """
    forward, input, weight = map(float, times)
    asked = (forward, input, weight)
    whole, split = (measured_step(device, schedule, times, message) for schedule in one_by_one(DEVICES))
    if whole is None or split is None:
        return Measured(asked, (0.0, 0.0, 0.0, 0.0), message)
    spans = {span.label: span for span in whole}
    ways = [1e3 * (spans[f"{s + 1}F{i}"].start - spans[f"{s}F{i}"].end) for s in range(3) for i in range(3)]

    def more(trace: Trace, kind: str, time: float) -> float:
        return median(1e3 * span.duration for span in trace if span.kind == kind) - time

    kinds = zip(("forward", "input", "weight"), asked, strict=True)
    halves = [more(split, kind, time) for kind, time in kinds]
    besides = (halves[0], halves[1], halves[2], more(whole, "backward", input + weight))
    return Measured(asked, besides, median(ways))


def shown_orders() -> dict[str, Schedule]:
    """Return what the notebook runs, by name."""
    long = warmed_up(8, 4, 1.0)
    return {
        "GPipe": gpipe(8, 4).compact(),
        "1F1B": one_f_one_b(8, 4).compact(),
        "ZB-H1": table("ZB-H1", fill_holes(8, 4)),
        "warmed up": long,
        "both": put_off(long),
        "interleaved": interleaved_one_f_one_b(8, 4, 2).compact(),
    }


def _recorded(device: RealStreams) -> Iterator[tuple[str, Any]]:
    for message in MESSAGES:
        for schedule in [*shown_orders().values(), *one_by_one(DEVICES)]:
            known = schedule.to_text(), TIMES, message
            yield key_of(*known), device.run(step_on_devices, *known)


def weighed_orders() -> dict[str, Schedule]:
    """Return the orders whose memory the notebook measures, by name."""
    shown = shown_orders()
    return {
        "one at a time": model_parallel(8, 4).compact(),
        **{name: shown[name] for name in ("GPipe", "1F1B", "ZB-H1")},
    }


def _recorded_peaks(device: RealStreams) -> Iterator[tuple[str, Any]]:
    for schedule in weighed_orders().values():
        for tanhs in (1, 4):
            known = schedule.to_text(), tanhs
            yield key_of(*known), device.run(peaks_on_devices, *known)


def record_late_messages() -> dict[str, Any]:
    """Return what the notebook's cells give, on simulated devices."""
    device = start_device("late_messages", DEVICES)
    if not isinstance(device, RealStreams) or not device.is_simulated:
        raise RuntimeError(f"late_messages is recorded on simulated devices, and this is {device}")
    torch.set_num_threads(1)
    peaks = {peaks_on_devices.__name__: dict(_recorded_peaks(device))}
    return {"results": dict(_recorded(device)) | peaks}
