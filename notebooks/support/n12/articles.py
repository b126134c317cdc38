"""What the article's pipeline of notebook 12 is tried with: on CPUs in threads, on a GPU that only pretends to be one.

A PretendGPU has no time, but it notes every launch with what it reads and writes, so find_races proves what is missing.
"""

# mypy: allow-untyped-calls, allow-untyped-defs, disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from functools import partial
from itertools import pairwise
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from lib.pipeline import Task, spawn_workers
from lib.runtime.device import current_stream, new_stream, synchronize
from lib.streams.pretend import PretendGPU
from lib.streams.races import Operation, find_races
from lib.streams.stand_in import in_place_of_cuda
from support import built
from support.devices import RealStreams, started
from support.kit.raised import Finding, in_case
from support.n12.trials import CASES, fault_of_pipeline

RunPipeline: TypeAlias = Callable[..., Any]


def fault_of_run_pipeline(answer: RunPipeline, patience: float) -> str:
    """Try a pipeline on CPUs, on a GPU that notes what races, and, where a cell has started one, on a real device."""
    return (
        fault_of_pipeline(
            _as_a_model(answer), patience, [case for case in CASES if not case.nest], asks=False
        )
        or fault_on_pretend_gpus(answer)
        or fault_in_own_streams(answer)
        or fault_on_a_device(answer, started())
    )


def streams_for(devices: Sequence[torch.device], m: int) -> list[list[Any]]:
    """Return a copy stream for each partition and micro-batch."""
    return [[new_stream(device) for _ in range(m)] for device in devices]


def _as_a_model(answer: RunPipeline) -> Any:
    class Model(nn.Module):
        """Make the calls of a MiniGPipe of the reader's run_pipeline."""

        def __init__(
            self, layers: nn.Sequential, balance: Sequence[int], chunks: int, checkpoint: str = "except_last"
        ) -> None:
            super().__init__()
            rest = list(layers)
            self.partitions = nn.ModuleList()
            for size in balance:
                self.partitions.append(nn.Sequential(*rest[:size]))
                rest = rest[size:]
            self.chunks = chunks
            self.mode = checkpoint

        def forward(self, x: Tensor) -> Tensor:
            """Cut, run, put together."""
            batches: list[Any] = built.scatter(x, self.chunks)
            given = list(batches)
            wanted = [part.requires_grad for part in given]
            m = len(batches)
            stop = {"always": m, "except_last": m - 1, "never": 0}[self.mode]
            devices = [torch.device("cpu") for _ in self.partitions]
            with spawn_workers(devices) as queues:
                answer(batches, list(self.partitions), devices, streams_for(devices, m), stop, queues)
                _one_more_task_each(devices, queues)
            for i, batch in enumerate(batches):
                if not isinstance(batch, Tensor):
                    raise Finding(f"batches[{i}] is to be a tensor afterwards, not {type(batch).__name__}.")
                if batch is given[i]:
                    raise Finding(
                        f"batches[{i}] is still the input: each place is to hold an output afterwards."
                    )
                if given[i].requires_grad and not wanted[i]:
                    raise Finding(
                        f"what was given as batches[{i}] wants a gradient afterwards: the plain layers need none."
                    )
            return built.gather(batches)

    return Model


def _one_more_task_each(devices: Sequence[torch.device], queues: Any) -> None:
    """Hand every worker a task: who lent them out goes on with them."""
    work: Any = list
    tasks = {j: Task(current_stream(device), compute=work, finalize=None) for j, device in enumerate(devices)}
    try:
        built.run_clock(tasks, *queues)
    except Exception as error:
        raise Finding(
            "a worker that was lent to your function answers no further task: its lender goes on with it."
        ) from error


# ---- on a GPU that notes what is launched


class _Wave(nn.Module):
    """x + sin(x · w): a launch "sin" in forward and in a recompute, "cos" in backward."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(torch.randn(4, 4, generator=generator) / 2)

    def forward(self, x: Tensor) -> Tensor:
        """Compute."""
        return x + torch.sin(x @ self.weight)


@contextmanager
def _using(gpu: PretendGPU, streams: Sequence[Any]) -> Iterator[None]:
    """Make a stream of each device the current one of it, and the first device the current one."""
    with ExitStack() as stack:
        for stream in reversed(streams):
            stack.enter_context(gpu.use_stream(stream))
        yield


class _InQueue:
    """Compute what is put, at once, in the streams that a new thread has; the answer goes into the other queue."""

    def __init__(self, gpu: PretendGPU) -> None:
        self.gpu = gpu
        self.answers: list[Any] = []

    def put(self, task: Any) -> None:
        """Compute a task."""
        if task is not None:
            with _using(self.gpu, self.gpu.default_streams):
                self.answers.append((True, (task, task.compute())))


class _OutQueue:
    """Give the answers of an _InQueue, the oldest first."""

    def __init__(self, queue: _InQueue) -> None:
        self.queue = queue

    def get(self) -> Any:
        """Take an answer."""
        if not self.queue.answers:
            raise RuntimeError("an answer is taken from a partition to which no task was put")
        return self.queue.answers.pop(0)


M = 4
N = 3
#: Micro-batches, GPUs, and how many micro-batches are checkpointed; of one of either there is nothing beside it.
ON_PRETEND_GPUS = ((M, N, 0), (M, N, M), (M, N, M - 1), (M, N, 2), (1, N, 0), (1, N, 1), (M, 1, M))


def fault_on_pretend_gpus(answer: RunPipeline) -> str:
    """Say what races, or runs in a stream where it should not, on three GPUs and on one."""
    for m, n, stop in ON_PRETEND_GPUS:
        mode = {m - 1: "'except_last'", m: "'always'", 0: "'never'"}.get(stop, f"stop = {stop}")
        where = f"on {'three GPUs' if n == N else 'one GPU'}, m = {m}, {mode}"
        gpu = PretendGPU(count=n)
        with in_place_of_cuda(gpu), in_case(where):
            layers = [_Wave(seed) for seed in range(n)]
            plain = deepcopy(layers)
            devices = [torch.device("cuda", j) for j in range(n)]
            partitions = [
                nn.Sequential(layer).to(device) for layer, device in zip(layers, devices, strict=True)
            ]
            in_queues = [_InQueue(gpu) for _ in devices]
            queues = in_queues, [_OutQueue(queue) for queue in in_queues]
            x = torch.linspace(-1, 1, 8 * 4).reshape(8, 4)
            batches = list(x.to(devices[0]).tensor_split(m))
            begin = len(gpu.operations)
            streams = streams_for(devices, m)
            answer(batches, partitions, devices, streams, stop, queues)
            forward = len(gpu.operations)
            home = [str(batch.device) for batch in batches]
            if home != [str(devices[-1])] * m:
                return f"{where}: the outputs lie on {', '.join(home)}, not on the last device."
            total = torch.cat(batches).square().sum()
            used = len(gpu.operations)
            total.backward()
        fault = (
            _fault_of_races(gpu.operations, forward, used)
            or _fault_of_the_host(gpu.operations[begin:forward])
            or _fault_of_copies(gpu.operations[begin:forward], "forward")
            or _fault_of_other_streams(gpu.operations[begin:forward], streams)
            or _fault_of_copies(gpu.operations[forward:], "backward")
            or _fault_of_arrivals(gpu.operations[forward:], streams)
            or _fault_of_recompute(gpu.operations[forward:], n, stop)
            or _fault_of_gradients(partitions, plain, x)
        )
        if fault:
            return f"{where}: {fault}"
    return ""


def fault_in_own_streams(answer: RunPipeline) -> str:
    """Say whether a partition computes elsewhere than in the streams that the caller uses."""
    gpu = PretendGPU(count=N)
    where = "on three GPUs, called in streams of its own"
    own = [gpu.new_stream("own", j) for j in range(N)]
    with in_place_of_cuda(gpu), in_case(where), _using(gpu, own):
        devices = [torch.device("cuda", j) for j in range(N)]
        partitions = [nn.Sequential(_Wave(j)).to(device) for j, device in enumerate(devices)]
        in_queues = [_InQueue(gpu) for _ in devices]
        batches = list(torch.ones(8, 4).to(devices[0]).tensor_split(M))
        begin = len(gpu.operations)
        queues = in_queues, [_OutQueue(queue) for queue in in_queues]
        answer(batches, partitions, devices, streams_for(devices, M), M - 1, queues)
    for op in gpu.operations[begin:]:
        if op.kind == "launch" and op.lane.startswith("compute"):
            return (
                f"{where}: {_operation(op)} is launched in the stream that a new thread has, not in the one "
                "that is current in forward's own thread."
            )
    return ""


def _fault_of_races(operations: Sequence[Operation], forward: int, used: int) -> str:
    races = find_races(operations)
    if not races:
        return ""
    race = races[0]
    when = "in forward"
    if race.second >= forward:
        when = "in backward" if race.second >= used else "behind forward, where the outputs are used,"
    return (
        f"find_races finds {len(races)} race{'s' * (len(races) > 1)}; {when} {_operation(race.later)} and "
        f"{_operation(race.earlier)} use the same memory, and neither waits for the other."
    )


def _fault_of_the_host(forward: Sequence[Operation]) -> str:
    """Say whether the host waits for what a device computes, or reads it, and launches nothing meanwhile."""
    if not any(op.kind == "synchronize" for op in forward):
        return ""
    return "in forward the host stands still until a device has computed: only streams wait, the host launches ahead."


def _operation(op: Operation) -> str:
    label = "a copy" if op.label.startswith("copy of") else f"`{op.label}`"
    return f"{label} in {_lane(op.lane)}"


def _lane(lane: str) -> str:
    """Name a stream of a PretendGPU: of those that were made the first M are the copy streams."""
    device = _device_of(lane)
    if not lane.startswith("stream"):
        return f"the compute stream of {device}"
    number = lane.removeprefix("stream").removeprefix(f" of {device}")
    return f"{'a new stream' if int(number or 1) > M else 'a copy stream'} of {device}"


def _device_of(lane: str) -> str:
    """Return the device of a stream of a PretendGPU: the first one has no number in its name."""
    return f"cuda:{lane.partition('cuda:')[2][:1] or '0'}"


def _fault_of_copies(operations: Sequence[Operation], when: str) -> str:
    """Say whether a copy between devices runs where partitions compute."""
    for op in operations:
        if op.kind == "launch" and op.label.startswith("copy of") and op.lane.startswith("compute"):
            return f"in {when} a copy runs in {_lane(op.lane)}: while it runs, nothing is computed there."
    lanes = [op.lane for op in operations if op.kind == "launch" and op.label.startswith("copy of")]
    shared = next((lane for lane in lanes if lanes.count(lane) > 1), None)
    if shared:
        return (
            f"in {when} {lanes.count(shared)} micro-batches are copied in one stream, {_lane(shared)}: each has its "
            "own, copy_streams[j][i]."
        )
    return ""


def _fault_of_other_streams(forward: Sequence[Operation], streams: Sequence[Sequence[Any]]) -> str:
    """Say whether a micro-batch is copied from its partition in another stream than its own one there."""
    copies = [op.lane for op in forward if op.kind == "launch" and op.label.startswith("copy of")]
    for j, own in enumerate(streams[:-1]):
        lanes = [lane for lane in copies if _device_of(lane) == f"cuda:{j}"]
        for i, (lane, stream) in enumerate(zip(lanes, own, strict=False)):
            if lane != stream.name:
                stands = f"copy_streams[{j}][{i}]"
                return f"in forward micro-batch {i} is copied from cuda:{j} in another stream than {stands}."
    return ""


def _fault_of_arrivals(backward: Sequence[Operation], streams: Sequence[Sequence[Any]]) -> str:
    """Say whether what came to a partition came in streams of the answer's own: gradients leave it by the same."""
    for op in backward:
        if op.kind == "launch" and op.label.startswith("copy of"):
            j = int(_device_of(op.lane).removeprefix("cuda:"))
            if op.lane not in [stream.name for stream in streams[j]]:
                stands = f"those of copy_streams[{j}], which are for copies to and from partition {j}"
                return f"in backward a gradient is copied from cuda:{j} in another stream than {stands}."
    return ""


def _fault_of_recompute(backward: Sequence[Operation], n: int, stop: int) -> str:
    """Say whether a device waits for a gradient before it computes again, or keeps more than one inside."""
    for j in range(n):
        lane = "compute" if j == 0 else f"compute of cuda:{j}"
        seen = [_step(op) for op in backward if op.lane == lane]
        steps = [step for step in seen if step]
        again = steps.count("sin")
        if again != stop:
            return f"in backward cuda:{j} computes {again} micro-batches again from end to end, not {stop}."
        work = [step for step in steps if step != "wait"]
        if stop and any(a == b == "sin" for a, b in pairwise(work)):
            return f"cuda:{j} recomputes a second micro-batch before the first one has gone backward."
        if j < n - 1 and ("wait", "sin", "cos") in zip(steps, steps[1:], steps[2:], strict=False):
            return (
                f"in backward cuda:{j} waits for a gradient, and only then computes again what needs no gradient: "
                "the copy and the recomputation could overlap."
            )
    return ""


def _step(op: Operation) -> str:
    if op.kind == "wait":
        return "wait"
    return op.label if op.kind == "launch" and op.label in ("sin", "cos") else ""


def _fault_of_gradients(partitions: Sequence[nn.Module], plain: Sequence[_Wave], x: Tensor) -> str:
    nn.Sequential(*plain)(x).square().sum().backward()
    for j, (partition, layer) in enumerate(zip(partitions, plain, strict=True)):
        (weight,) = partition.parameters()
        found = None if weight.grad is None else getattr(weight.grad, "plain", weight.grad)
        if (
            found is None
            or layer.weight.grad is None
            or not torch.allclose(found, layer.weight.grad, atol=1e-5)
        ):
            return f"the gradient of partition {j} is not that of the layers."
    return ""


# ---- where a cell has started a device


class _LateProduct(torch.autograd.Function):
    """x · w, read at once, and written behind a sleep of the device; so in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, sleep: Callable[[], None]) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.sleep = sleep
        product = x * weight
        sleep()
        return product.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        product = gradients[0] * weight
        total = (gradients[0] * x).sum()
        ctx.sleep()
        return product.clone(), total, None


class _Late(nn.Module):
    """Double what comes, and write it late: who does not wait reads what was there before."""

    def __init__(self, sleep: Callable[[], None]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((), 2.0))
        self.sleep = sleep

    def forward(self, x: Tensor) -> Tensor:
        """Compute late."""
        return _LateProduct.apply(x, self.weight, self.sleep)


def fault_on_a_device(answer: RunPipeline, device: RealStreams | None, late: float = 0.02) -> str:
    """Compare the numbers that come out where kernels are late; "" where no cell has started enough devices."""
    if device is None or len(device.devices) < 2:
        return ""
    devices = device.devices
    partitions = [_Late(partial(device.sleep, late)).to(place) for place in devices]
    rows = torch.arange(1.0, 5.0).reshape(4, 1).expand(4, 100).contiguous()
    batches = list(rows.to(devices[0]).tensor_split(4))
    try:
        with in_case(f"on {device}, with late kernels"), spawn_workers(devices) as queues:
            answer(batches, partitions, devices, streams_for(devices, 4), 3, queues)
            output = torch.cat(batches)
            output.sum().backward()
            for place in devices:
                synchronize(place)
        got = output[:, 0].tolist()
        slopes = [
            float("nan" if w.grad is None else w.grad) for w in (partition.weight for partition in partitions)
        ]
    finally:
        for place in devices:
            synchronize(place)
    n = len(devices)
    wanted = [2.0**n * (i + 1) for i in range(4)]
    if got != wanted:
        return f"on {device}, with late kernels, the outputs are {got}; right is {wanted}."
    slope = 100 * 10 * 2.0 ** (n - 1)
    if slopes != [slope] * n:
        return f"on {device}, with late kernels, the gradients are {slopes}; right is {slope} for each."
    return ""
