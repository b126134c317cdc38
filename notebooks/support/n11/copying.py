"""What MyCopy and MyWait of notebook 11 are tried with: two devices that prove order, on which all is written down."""

# mypy: allow-untyped-calls

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from typing import Any, TypeAlias
from unittest import mock

import torch
from torch import Tensor

from lib.streams import PretendGPU, find_races
from lib.streams.pretend_tensor import PretendTensor
from lib.streams.races import HOST, Operation, Race
from lib.streams.stand_in import in_place_of_cuda
from lib.text import plural
from support.kit.judged import Fault
from support.kit.raised import Finding, in_case
from support.kit.values import kind_of
from support.n11.prompt import PromptGPU
from support.n11.runs import must_send

Passages: TypeAlias = tuple[Any, Any]
"""MyCopy and MyWait: classes derived from torch.autograd.Function."""

MEANINGS = {
    "incorrect number of gradients": "backward returns one gradient for each argument of forward after ctx, or None.",
    "argument": "forward gets prev_stream, next_stream and x behind ctx; backward gets one gradient.",
}
AFTERWARDS = "after backward"
SIZE = 300  # numbers in a tensor: each takes a block of its own, and all blocks are equally large

ODD = 2049.0
"""A number that half a float cannot hold: who rounds on the way is found out."""


@dataclass
class _Trip:
    """Two devices, copy streams on each, and what has been launched there."""

    gpu: PretendGPU = field(default_factory=lambda: PretendGPU(count=2))
    own: int = 1
    """How many copy streams each device has; micro-batches take them in turn."""

    def __post_init__(self) -> None:
        self.compute = tuple(self.gpu.default_streams)
        names = ["copies"] if self.own == 1 else [f"copies {i}" for i in range(self.own)]
        self.ways = [tuple(self.gpu.new_stream(name, index) for index in range(2)) for name in names]
        self.copies = self.ways[0]
        # the numbers of the first operations of backward, and of what comes after it
        self.backward_from = 0
        self.next_from = 0

    @property
    def operations(self) -> list[Operation]:
        return self.gpu.operations

    def direction(self, number: int) -> str:
        """Return whether an operation belongs to forward, to backward, or to what comes after it."""
        if not self.backward_from or number < self.backward_from:
            return "in forward"
        return AFTERWARDS if self.next_from and number >= self.next_from else "in backward"


@contextmanager
def _pretended(kind: type[PretendGPU]) -> Iterator[PretendGPU]:
    """Put two pretended devices in the place of CUDA, and of torch.accelerator where answers may ask that."""

    def synchronize(device: Any = None) -> None:
        gpu.synchronize(None if device is None else torch.device(device).index)

    def current(device: Any = None) -> Any:
        return gpu.current_stream(None if device is None else torch.device(device).index)

    with (
        in_place_of_cuda(kind(count=2)) as gpu,
        mock.patch.multiple(torch.accelerator, synchronize=synchronize, current_stream=current),
    ):
        yield gpu


def fault_of_copy_wait(answer: Passages) -> str:
    """Look at a copy and a wait by themselves, then at trips there and back of one to three micro-batches."""
    for fault_of in (_fault_of_copy, _fault_of_wait, _fault_of_the_way_back):
        with _pretended(PretendGPU) as gpu:
            fault = fault_of(answer, _Trip(gpu))
        if fault:
            return fault
    with _pretended(PretendGPU) as gpu:
        trip = _Trip(gpu)
        fault = _fault_of_copy_back(answer[0], trip) or _fault_of_wait_back(answer[1], trip)
    return fault or _fault_of_memory(answer) or _fault_of_keeping(answer)


# ---- each by itself


def _fault_of_copy(answer: Passages, trip: _Trip) -> str:
    x = _columns() * 2
    began = len(trip.operations)
    with in_case("in MyCopy.forward", MEANINGS):
        y = answer[0].apply(*trip.copies, x)
    if not isinstance(y, PretendTensor):
        return f"MyCopy.forward must return one tensor, on the device of next_stream, not {kind_of(y)}."
    if y.device.index != 1:
        return f"MyCopy gave a tensor on {y.device}; next_stream belongs to cuda:1, so it should be there."
    changed = _told_change(x, y)
    if changed:
        return f"MyCopy must not change x: {changed}."
    if y.grad_fn is None:
        return (
            "What MyCopy gave has no node in the graph, so no gradient comes back: nothing may be detached."
        )
    new = trip.operations[began:]
    return (
        _fault_of_host(new, "MyCopy.forward")
        or _fault_of_other_kernels(new, "MyCopy.forward")
        or _fault_of_streams(new, "MyCopy.forward", ("copies", "copies of cuda:1"))
        or _fault_of_waits_in_copy(new, "MyCopy.forward")
    )


def _fault_of_copy_back(copy: Any, trip: _Trip) -> str:
    """Look at backward of a copy, without a wait."""
    x = _columns() * 2
    back, new = _gone_back(x, copy.apply(*trip.copies, x), trip)
    changed = _told_change(_columns(1).detach(), back)
    if changed:
        return f"MyCopy must not change the gradient: {changed}."
    if back.device != x.device:
        return f"What MyCopy.backward gave back is on {back.device}; prev_stream belongs to {x.device}."
    return _fault_of_other_kernels(new, "MyCopy.backward") or _fault_of_waits_in_copy(new, "MyCopy.backward")


def _gone_back(x: Any, y: Any, trip: _Trip) -> tuple[Any, Sequence[Operation]]:
    """Go backward from y; return the gradient of x, and what was launched until it had arrived."""
    gradient = _columns(1).detach()
    began = len(trip.operations)
    arrived: list[tuple[Any, Sequence[Operation]]] = []
    x.register_hook(lambda back: arrived.append((back, trip.operations[began:])))
    y.backward(gradient)
    return arrived[0]


def _fault_of_host(new: Sequence[Operation], name: str) -> str:
    """Say whether the host waits."""
    if any(op.kind == "synchronize" for op in new):
        return f"In {name} the host stands still until a stream is done. Only streams are to wait."
    return ""


def _fault_of_other_kernels(new: Sequence[Operation], name: str) -> str:
    """Say what is launched that is no copy."""
    other = next((op for op in new if op.kind == "launch" and not op.label.startswith("copy of")), None)
    if other is None:
        return ""
    rule = (
        "Copy uses its two streams alone"
        if other.lane.startswith("compute")
        else "a copy is all that it launches"
    )
    return f"In {name} {other.label!r} is launched into {other.lane!r}: {rule}."


def _fault_of_waits_in_copy(new: Sequence[Operation], name: str) -> str:
    """Say whether a compute stream waits, or is waited for."""
    for waiting, waited_for in _waits(new):
        if waiting.startswith("compute"):
            return (
                f"In {name} {waiting!r} waits for the copy: from there on that device computes nothing "
                "else until it is there. Waiting is the business of MyWait."
            )
        if waited_for.startswith("compute"):
            return (
                f"In {name} {waiting!r} waits for {waited_for!r}. Copy uses its two streams alone; to "
                "wait for layers is the business of MyWait."
            )
    return ""


def _waits(operations: Sequence[Operation]) -> list[tuple[str, str]]:
    """Return which stream waits for which, "" for one that recorded its event before."""
    lanes = {op.event: op.lane for op in operations if op.kind == "record"}
    return [(op.lane, lanes.get(op.event, "")) for op in operations if op.kind == "wait"]


def _fault_of_streams(new: Sequence[Operation], name: str, ways: tuple[str, str]) -> str:
    """Say what has been put where it does not belong. ways: the streams of the copy and of its memory."""
    source, target = ways
    copies = [op for op in new if op.kind == "launch" and op.label.startswith("copy of")]
    if not copies:
        return f"In {name} nothing is copied: what comes back is still where it was."
    if len(copies) > 1:
        return f"In {name} {plural(len(copies), 'copy was', 'copies were')} launched; one is enough."
    lane = copies[0].lane
    taken = next(op.lane for op in new if op.kind == "allocate" and op.label in _written_by(copies[0]))
    seen = f"{name} {lane} {taken}"
    if lane != source:
        told = f"In {name} the copy was launched into {lane!r}, not into {source!r}"
        return Fault(f"{told}: what is launched there later has to wait for it.", seen)
    if taken != target:
        told = f"In {name} the memory of what arrives was taken in {taken!r}, not in {target!r}: the copy may not "
        return Fault(f"{told}write before that stream is done with it.", seen)
    return ""


def _written_by(op: Operation) -> list[str]:
    return [region.block for region in op.writes]


def _fault_of_wait(answer: Passages, trip: _Trip) -> str:
    here, there = trip.copies
    last = trip.compute[1]
    with in_case("in MyCopy.forward", MEANINGS):
        y = answer[0].apply(here, there, _columns() * 2)
    began = len(trip.operations)
    with in_case("in MyWait.forward", MEANINGS):
        z = answer[1].apply(there, last, y)
    new = trip.operations[began:]
    if not isinstance(z, PretendTensor):
        return f"MyWait.forward must return x, not {kind_of(z)}."
    if any(op.kind == "synchronize" for op in new):
        return (
            "In MyWait.forward the host stands still. next_stream should wait: the host launches and goes on."
        )
    if any(op.kind == "launch" for op in new) or z.block.name != y.block.name:
        return "MyWait launches nothing: it hands on x, in the same memory."
    changed = _told_change(y, z)
    if changed:
        return f"MyWait hands on x as it is: {changed}."
    if z.grad_fn is None or z.grad_fn is y.grad_fn:
        return "What MyWait gave has no node of its own, so backward does not come by."
    return _fault_of_waits(new, "MyWait.forward", there.name, last.name)


def _fault_of_wait_back(wait: Any, trip: _Trip) -> str:
    """Look at backward of a wait, without a copy."""
    there = trip.copies[1]
    last = trip.compute[1]
    x = _columns(1) * 2
    _, new = _gone_back(x, wait.apply(there, last, x), trip)
    launched = next((op.label for op in new if op.kind == "launch"), "")
    if launched:
        return f"In MyWait.backward {launched!r} is launched: Wait hands the gradient on, in the same memory."
    return _fault_of_waits(new, "MyWait.backward", last.name, there.name)


def _fault_of_waits(new: Sequence[Operation], name: str, before: str, after: str) -> str:
    """Say whether `after` waits for `before`, for nobody else, and nobody else waits."""
    pairs = [(lane, awaited) for lane, awaited in _waits(new) if lane != awaited]
    if not pairs:
        return f"In {name} nobody waits: {after!r} may go on while {before!r} is still at work."
    others = [pair for pair in pairs if pair[0] != after]
    if others and len(others) < len(pairs):
        return (
            f"In {name} {others[0][0]!r} waits, too: it needs nothing of anybody, and stands still meanwhile."
        )
    if others:
        return f"In {name} {others[0][0]!r} waits for {others[0][1]!r}; it is {after!r} that has to wait."
    needless = [awaited for _, awaited in pairs if awaited not in ("", before)]
    if needless:
        return f"In {name} {after!r} waits for {needless[0]!r}: it needs what is in {before!r}, and nothing else."
    return ""


def _columns(device: int = 0) -> Any:
    """Return a tensor that is no row of floats: who flattens it, makes it contiguous or rounds it changes it."""
    return torch.full((2, SIZE), 1 / 3, dtype=torch.float64, device=f"cuda:{device}").t().requires_grad_()


def _told_change(x: Any, y: Any) -> str:
    """Say how y differs from x in shape, type or numbers, "" for not at all."""
    if y.shape != x.shape:
        return f"its shape was {(*x.shape,)} and is {(*y.shape,)}"
    if y.dtype != x.dtype:
        return f"it was of {x.dtype} and is of {y.dtype}"
    return "" if torch.equal(_plain(y), _plain(x)) else "its numbers differ"


def _input(value: float) -> Any:
    return torch.full((SIZE,), value, device="cuda:0").requires_grad_()


# ---- there and back


def _there_and_back(answer: Passages, m: int, trip: _Trip) -> tuple[list[Tensor], list[Tensor]]:
    """Send micro-batches to the other device and back, each in the trip's next two copy streams.

    With three copy streams they go back one by one, the first one first; otherwise in one backward, the last one first.
    Return the inputs, and what went backward, which holds the graph.
    Nobody holds what is still on its way: the allocator may give away what it believes to be free.
    """
    copy, wait = answer
    first, last = trip.compute
    inputs = []
    losses = []
    for i in range(m):
        here, there = trip.ways[i % trip.own]
        inputs.append(_input(i + ODD))
        x = wait.apply(first, here, inputs[-1] * 2)
        x = copy.apply(here, there, x)
        x = wait.apply(there, last, x)
        x.grad_fn.register_hook(must_send)
        losses.append((x * ODD).sum())
        del x
    roots = losses if trip.own == 3 else [sum(losses[1:], losses[0])]
    trip.backward_from = len(trip.operations)
    for root in roots:
        root.backward()
    return inputs, roots


def _fault_of_the_way_back(answer: Passages, trip: _Trip) -> str:
    with in_case("in backward", MEANINGS):
        (x,) = _there_and_back(answer, 1, trip)[0]
    if x.grad is None or not bool(_plain(x.grad).any()):
        return "No gradient came back: backward returns one for each argument of forward, None for the two streams."
    if not torch.equal(_plain(x.grad), torch.full((SIZE,), 2.0 * ODD)):
        return f"The gradient of x is {_plain(x.grad)[0].item():g}, not {2 * ODD:g}: neither of both may change it."
    new = trip.operations[trip.backward_from :]
    fault = _fault_of_host(new, "backward")
    fault = fault or _fault_of_streams(new, "MyCopy.backward", ("copies of cuda:1", "copies"))
    if fault:
        return fault
    return _fault_of_waits_back(new)


def _go_on(trip: _Trip) -> None:
    """Let each device begin the next thing behind backward, the graph being dropped: a kernel in new memory."""
    trip.next_from = len(trip.operations)
    for index in range(trip.gpu.count):
        torch.full((SIZE,), 0.0, device=f"cuda:{index}")


def _fault_of_keeping(answer: Passages) -> str:
    """Say what is still in memory behind forward, or behind backward: what was copied, or what arrived."""
    with _pretended(PretendGPU) as gpu:
        trip = _Trip(gpu)
        _, _roots = _there_and_back(answer, 1, trip)  # what a ctx keeps is there as long as the graph
    at = trip.backward_from
    for when, new in (
        ("From forward to backward", trip.operations[:at]),
        ("When backward is through", trip.operations[at:]),
    ):
        copy = next(op for op in new if op.kind == "launch" and op.label.startswith("copy of"))
        dropped = {op.label for op in new if op.kind == "free"}
        for what, regions in (("what was copied", copy.reads), ("what arrived", copy.writes)):
            if not dropped.issuperset(region.block for region in regions):
                return f"{when} {what} is kept, and takes memory; neither of both needs it there."
    return ""


def _fault_of_waits_back(new: Sequence[Operation]) -> str:
    """Say whether both waits of the way back are there: for the gradient, and for its copy."""
    copy = {"copies", "copies of cuda:1"}  # its two streams wait for each other of themselves
    pairs = [pair for pair in _waits(new) if {*pair} != copy]
    waiting = {lane for lane, awaited in pairs if lane != awaited}
    missing = [lane for lane in ("copies of cuda:1", "compute") if lane not in waiting]
    needless = "compute of cuda:1" in waiting
    if not missing and not needless:
        return ""
    said = "In backward 'compute of cuda:1' waits, which needs nothing of anybody."
    if missing:
        said = f"In backward {missing[0]!r} doesn't wait for what it uses, and that is perhaps not there yet."
    return Fault(said, f"{said} {_waits(new)}")


def _plain(x: Any) -> Any:
    return x.plain if isinstance(x, PretendTensor) else x


# ---- memory that is given away too early


def _fault_of_memory(answer: Passages) -> str:
    found = sorted(_all_races(answer), key=lambda seen: seen[1].direction(seen[2].second) == AFTERWARDS)
    if not found:
        return ""
    m, trip, race = found[0]
    where = trip.direction(race.second)
    told = f"{plural(m, 'micro-batch', 'micro-batches')}, find_races, {where}: {race}."
    if _given_away(trip.operations, race):
        told += f" The memory of {race.block} was given away in between: for the allocator it was free."
    known = [f"{seen} {there.direction(other.second)} {other}" for seen, there, other in found]
    return Fault(told, f"{known} {_recorded(answer)}")


@contextmanager
def _no_collection() -> Iterator[None]:
    """Let no cycle of objects be collected inside: their memory would come back at a moment of chance."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def races_of(copy: Any, wait: Any, m: int = 3, own: int = 1) -> list[Race]:
    """Send m micro-batches through two pretended GPUs and back, and return all races.

    own: how many copy streams each device has.
    """
    with _pretended(PretendGPU) as gpu, _no_collection():
        trip = _Trip(gpu, own)
        _there_and_back((copy, wait), m, trip)
        _go_on(trip)
        return find_races(list(gpu.operations))


def _recorded(answer: Passages) -> list[list[str]]:
    """Return which streams forward has named to the allocator: of what it copies, and of what arrives."""
    with _pretended(PretendGPU) as gpu:
        x = _input(ODD) * 2
        y = answer[0].apply(*_Trip(gpu).copies, x)
        return [sorted(x.block.users), sorted(y.block.users)]


def _all_races(answer: Passages) -> Iterator[tuple[int, _Trip, Race]]:
    # In a stream that all share, memory goes from one micro-batch to the next; where each has its own, mixing shows.
    trips = [*product(((1, 1), (2, 1), (3, 1), (2, 2), (3, 3)), (PretendGPU, PromptGPU))]
    for (m, own), device in sorted(trips, key=lambda trip: trip[1] is PromptGPU):
        with _pretended(device) as gpu, _no_collection(), in_case("on the way there and back", MEANINGS):
            trip = _Trip(gpu, own)
            inputs = _there_and_back(answer, m, trip)[0]
            _go_on(trip)
            if any(
                x.grad is None or not torch.equal(_plain(x.grad), torch.full((SIZE,), 2.0 * ODD))
                for x in inputs
            ):
                raise Finding(f"With {m} micro-batches the gradients aren't those of the plain model.")
            operations = list(trip.operations)
        for race in find_races(operations):
            yield m, trip, race


def _given_away(operations: Sequence[Operation], race: Race) -> bool:
    between = operations[race.first : race.second]
    return any(op.kind == "free" and op.lane == HOST and op.label == race.block for op in between)
