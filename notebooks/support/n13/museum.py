"""Exercises 5 to 7 of notebook 13: three known bugs, repaired in one line; and seven more, for a second opinion."""

# mypy: allow-untyped-calls, allow-untyped-defs

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lib.streams.pretend import PretendGPU
from lib.streams.pretend_stream import EVERYTHING
from lib.streams.races import HOST, Clocks, Operation, Race, find_races, happens_before
from support.devices import same_program
from support.kit.exercise import Exercise
from support.kit.judged import Fault, judged
from support.kit.mistakes import edited
from support.kit.raised import in_case
from support.kit.verdict import Verdict
from support.n13 import exhibits
from support.n13.batch_users import NEXT_OWNER
from support.n13.device_judge import judged_on_a_device_too, wrong_sums
from support.n13.prefetching import STAGED
from support.n13.runs import ASK_THE_GPU

# ---- the repairs

REPAIRED: dict[str, Any] = {
    "handed_over": edited(
        exhibits.handed_over,
        ("        del weight\n", "        weight.record_stream(compute)\n        del weight\n"),
    ),
    "shared_buffer": edited(
        exhibits.shared_buffer,
        (
            "        total += buffer\n",
            "        total += buffer\n        gather.wait_stream(compute)\n",
        ),
    ),
    "refilled": edited(
        exhibits.refilled, ("        total += x\n", "        total += x\n        side.synchronize()\n")
    ),
}


# ---- the judge

UNKNOWN = ASK_THE_GPU | dict.fromkeys(
    ("CUDA", "NVIDIA", "accelerator"),
    f"{ASK_THE_GPU['CUDA']} A PretendGPU knows the tensors that `gpu.host` has given, and what is made of them.",
)
"""What is said where a program asks torch, or gives another tensor of the host: torch looks for a real GPU then."""
LAST_OWNER = "its last owner"
IN_FRONT = (
    " That is in front of your first line: the pool gives a block away that its own stream may still write. Another "
    "stream has to wait for that one."
)
BEHIND = (
    " That is behind your last line: then the block is in the pool of its stream, and whoever asks gets it."
)


@dataclass
class _Seen:
    """A run of an exhibit: its operations, its value, and where its copies and its additions stand in the list."""

    operations: list[Operation]
    value: object

    @property
    def copies(self) -> list[int]:
        """Copies from the host to the device, by number."""
        given = {op.label for op in self.operations if op.kind == "allocate"}
        return [
            number
            for number, op in self._launches()
            if any(r.block not in given for r in op.reads) and any(r.block in given for r in op.writes)
        ]

    @property
    def pageable(self) -> list[int]:
        """Which of the copies, from 0, are from memory that is not pinned."""
        staged = [region.block for op in self.operations if op.label == STAGED for region in op.writes]
        return [i for i, number in enumerate(self.copies) if self.operations[number].reads[0].block in staged]

    @property
    def additions(self) -> list[int]:
        """Additions to the total, by number."""
        return [number for number, op in self._launches() if op.label.startswith("add")]

    def _launches(self) -> list[tuple[int, Operation]]:
        numbered = enumerate(self.operations)
        return [(number, op) for number, op in numbered if op.kind == "launch" and op.lane != HOST]

    def waiting_copies(self) -> set[tuple[int, int]]:
        """Pairs (i, i - 1): copy i is certain to start after the addition before it has ended.

        To wait for one that is longer ago bounds the memory, and hardly costs anything.
        """
        known = happens_before(self.operations)
        lanes = {number: self.operations[number].lane for number in known}
        return {
            (i + 1, i)
            for i, (addition, copy) in enumerate(zip(self.additions, self.copies[1:], strict=False))
            if known[copy].get(lanes[addition], 0) >= known[addition][lanes[addition]]
        }

    def is_one_buffer(self, copy: int, addition: int) -> bool:
        """Say whether a copy writes where this addition has read, in memory that nobody gave away in between."""
        first = self.additions[addition]
        second = self.copies[copy]
        given = {op.label for op in self.operations[first:second] if op.kind == "allocate"}
        written = [region for region in self.operations[second].writes if region.block not in given]
        return any(r.meets(w) for r in self.operations[first].reads for w in written)

    def stops(self) -> list[tuple[int, bool]]:
        """Say where the host really stands still, by number, and whether it hears there that a copy is done."""
        known = happens_before(self.operations)
        copies = [(self.operations[copy].lane, known[copy]) for copy in self.copies]
        clocks = Clocks()
        found = list[tuple[int, bool]]()
        in_one = False  # gpu.synchronize() waits for one stream after the other
        for number, op in enumerate(self.operations):
            before = dict(clocks.lanes[HOST])
            clocks.issue(op)
            host = clocks.lanes[HOST]
            if op.kind == "launch":
                in_one = False
            if op.kind == "synchronize" and host != before:
                hears = any(before.get(lane, 0) < copy[lane] <= host.get(lane, 0) for lane, copy in copies)
                if in_one:
                    hears = found.pop()[1] or hears
                in_one = op.label == EVERYTHING
                found.append((number, hears))
        return found


def run_exhibit(exhibit: Callable[..., Any], used: bool = False) -> _Seen:
    """Run an exhibit on a PretendGPU; behind it, somebody else gets the memory of each of its streams.

    used: whether somebody else had memory of the current stream before, and has just given it back.
    """
    gpu = PretendGPU()
    if used:
        with gpu.span(gpu.current_stream(), "", LAST_OWNER):
            old = [gpu.empty_like(torch.zeros(1000)).fill_(0.0) for _ in range(4)]
        del old
    result = exhibit(gpu, 0.0)
    if result is not None and not isinstance(result, Tensor):
        return _Seen(gpu.operations, result)
    value = None if result is None else float(result.as_subclass(Tensor))
    del result
    sizes = _sizes(gpu.operations)
    for stream in gpu.streams:
        with gpu.use_stream(stream), gpu.span(stream, "", NEXT_OWNER):
            _all_of_it = [gpu.empty_like(torch.zeros(size, dtype=torch.uint8)).fill_(0) for size in sizes]
    return _Seen(gpu.operations, value)


def _sizes(operations: Sequence[Operation]) -> list[int]:
    """Return the bytes that are in use of each block of the device."""
    sizes = {op.label: 0 for op in operations if op.kind == "allocate"}
    for region in [region for op in operations for region in (*op.reads, *op.writes)]:
        if region.block in sizes:
            sizes[region.block] = max(sizes[region.block], region.stop)
    return [size for size in sizes.values() if size]


def fault_of_exhibit(name: str, host_waits: bool = False) -> Callable[[Any], str]:
    """Make what says the fault of a repaired exhibit. host_waits: here it is the host that must wait."""

    def fault(answer: Any) -> str:
        with in_case("on a PretendGPU", UNKNOWN):
            seen = run_exhibit(answer)
        if seen.value is None:
            return "it returned None: the sum is still to be returned."
        if seen.value != exhibits.RIGHT:
            return f"launched one after the other it should give {exhibits.RIGHT:g}, it gives {seen.value}."
        if len(seen.copies) != 3 or len(seen.additions) != 3:
            return f"three copies and three additions are its work; seen: {len(seen.copies)} and {len(seen.additions)}."
        if seen.pageable:
            return (
                f"copy {seen.pageable[0]} is from memory that is not pinned: CUDA may stage it and wait, so don't "
                "expect overlap."
            )
        if races := find_races(seen.operations):
            said = f"{races[0]}.{BEHIND if races[0].later.label == NEXT_OWNER else ''}"
            return Fault(said, (said, _additions(races[0], seen), _pools(races[0].block, seen)))
        lanes = {seen.operations[number].lane for number in seen.copies}
        if lanes & {seen.operations[number].lane for number in seen.additions}:
            return "copies and additions are in one stream now: no race, and nothing can overlap any more."
        if host_waits:
            found = _needless(name, seen) or _of_the_host(seen, host_waits)
        else:
            found = _of_the_host(seen, host_waits) or _needless(name, seen)
        return found or _fault_of_used_memory(answer)

    return fault


def _fault_of_used_memory(answer: Any) -> str:
    """Name a race with who had the memory before."""
    with in_case("on a PretendGPU", UNKNOWN):
        races = find_races(run_exhibit(answer, used=True).operations)
    return f"{races[0]}.{IN_FRONT}" if races else ""


def _additions(race: Race, seen: _Seen) -> list[int]:
    """Return which additions are in a race, from 0: in its sentence they are all called alike."""
    return [i for i, number in enumerate(seen.additions) if number in (race.first, race.second)]


def _pools(block: str, seen: _Seen) -> list[str]:
    """Return the streams whose pools have given this block away: two faults of one sentence differ in them."""
    return [op.lane for op in seen.operations if op.kind == "allocate" and op.label == block]


def _of_the_host(seen: _Seen, host_waits: bool) -> str:
    """Name a stop of the host. It may wait for a copy where else it would write too early, or behind the last one."""
    unstopped = [op for op in seen.operations if op.kind != "synchronize"]
    too_early = any(HOST in (race.earlier.lane, race.later.lane) for race in find_races(unstopped))
    for number, hears_of_a_copy in seen.stops():
        if not (host_waits and hears_of_a_copy and (too_early or number > seen.copies[-1])):
            label = seen.operations[number].label
            return f"no race is left, but the host stands still until {label} is done, and launches nothing."
    return ""


def _needless(name: str, seen: _Seen) -> str:
    for i, k in sorted(seen.waiting_copies()):
        if name == "shared_buffer" and seen.is_one_buffer(i, k):
            continue
        return (
            f"no race is left, but copy {i} now waits for addition {k}, and it could go on without: "
            "what overlapped before does so no more."
        )
    return ""


def judge_of(name: str, host_waits: bool = False) -> Callable[[Exercise, Any], Verdict]:
    """Make the judge of an exhibit; as it was reported it counts as not attempted."""
    by_order = judged(
        fault_of_exhibit(name, host_waits), "no race is left, overlap stays, and the sum is right."
    )

    def judge(exercise: Exercise, answer: Any) -> Verdict:
        if same_program(answer, getattr(exhibits, name)):
            return Verdict("open", f"Not attempted yet: {name} is still as it was reported.")
        return by_order(exercise, answer)

    return judged_on_a_device_too(judge, wrong_sums(exhibits.RIGHT))


# ---- seven more of the museum: as they were reported, and one that no run without an overflow shows


def sanitizer_example(gpu):
    """The example in the documentation of torch's own CUDA Sanitizer."""
    side = gpu.new_stream("side")
    a = gpu.empty_like(torch.ones(4, 2)).fill_(1.0)
    with gpu.use_stream(side):
        a.mul_(5)


def offloaded_weights(gpu):
    """ROCm/pytorch#3194: weights come in on a transfer stream, the matmul runs on the default stream."""
    transfer = gpu.new_stream("transfer")
    weight = gpu.host(torch.ones(2, 2), "weight")
    buffer = gpu.empty_like(weight)
    for _ in range(2):
        with gpu.use_stream(transfer):
            buffer.copy_(weight, non_blocking=True)
        torch.matmul(buffer, buffer)


def stashed_memory(gpu):
    """torchrec#4231: embedding weights are saved to the host on a side stream, and their memory released at once."""
    side = gpu.new_stream("device to host")
    weights = gpu.empty_like(torch.ones(4)).fill_(1.0)
    saved = gpu.pinned((4,), torch.float32)
    side.wait_stream(gpu.current_stream())
    with gpu.use_stream(side):
        saved.copy_(weights, non_blocking=True)
    del weights
    gpu.empty_like(torch.ones(4)).fill_(2.0)  # gets the block of the weights


def sent_tensor(gpu):
    """pytorch#58384: a call to another process sends a tensor on its own stream; the caller drops it."""
    send = gpu.new_stream("send")
    message = gpu.empty_like(torch.ones(4)).fill_(1.0)
    send.wait_stream(gpu.current_stream())
    with gpu.use_stream(send):
        packed = message.clone()
    del message
    return packed, gpu.empty_like(torch.ones(4)).fill_(2.0)


def pageable_copy(gpu):
    """Of a common kind: a copy from pageable memory is taken for a blocking one."""
    side = gpu.new_stream("side")
    with gpu.use_stream(side):
        y = gpu.host(torch.ones(4), "pageable", pinned=False).to(gpu.device, non_blocking=True)
    return y, y * 2


def read_too_early(gpu):
    """pytorch#185252: compiled code copies to the host without blocking, and reads at once."""
    back = gpu.empty_like(torch.ones(4)).fill_(1.0).to("cpu", non_blocking=True)
    return back.sum()


def rare_branch(gpu):
    """Of a common kind: on an overflow the gradient is cleared in a side stream; in this run there is none."""
    side = gpu.new_stream("side")
    gradient = gpu.empty_like(torch.ones(4)).fill_(1.0)
    if not gradient.isfinite().all().item():
        with gpu.use_stream(side):
            gradient.zero_()
    return gradient * 2


MORE: Sequence[Callable[..., Any]] = (
    sanitizer_example,
    offloaded_weights,
    stashed_memory,
    sent_tensor,
    pageable_copy,
    read_too_early,
    rare_branch,
)


def issued_by(exhibit: Callable[..., Any], *arguments: Any) -> list[Operation]:
    """Return what an exhibit issues on a PretendGPU."""
    gpu = PretendGPU()
    exhibit(gpu, *arguments)
    return gpu.operations
