"""Rules about the caching allocator and record_stream: who gets memory that was freed, and when."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.lib.simulated.rules.table import (
    MEMORY,
    RECORD,
    RIGHT,
    SEMANTICS,
    WRONG,
    Device,
    Read,
    full,
    read_on,
    rule,
    written_late,
)


def new(d: Device) -> Tensor:
    """Return memory of the current stream's pool that nobody has written."""
    return torch.empty(977, device=d.place())


def ones(d: Device) -> Tensor:
    """Return memory of the current stream's pool that holds 1, as everybody knows."""
    x = new(d).fill_(1.0)
    d.settle()
    return x


def read_late(d: Device, stream: object, x: Tensor) -> Tensor:
    """Return what a stream reads, busy at first."""
    with d.on(stream):
        d.busy()
        return x + 0


@rule("Memory that is freed goes to the next tensor of its size in the same stream, at once.", MEMORY, True)
def a_stream_uses_its_memory_again(d: Device) -> bool:
    x = new(d)
    where = d.address(x)
    d.busy()
    del x
    return d.address(new(d)) == where


@rule("There the order of the stream is enough: who read it was there before.", MEMORY, RIGHT)
def memory_is_given_away_in_the_order_of_its_stream(d: Device) -> Read:
    x = ones(d)
    seen = read_late(d, d.current(), x)
    del x
    new(d).fill_(2.0)
    return Read(seen, 1.0)


@rule("It goes to no other stream.", MEMORY, False)
def a_stream_gets_memory_of_another(d: Device) -> bool:
    x = new(d)
    where = d.address(x)
    del x
    with d.on(d.stream()):
        return d.address(new(d)) == where


@rule("To allocate and to free lets the host wait for nothing.", MEMORY, False)
def allocating_waits_for_the_device(d: Device) -> bool:
    d.busy()
    x = new(d)
    del x
    again = new(d)
    early = d.current().query()
    assert again.numel() == 977
    return early


@rule("A tensor keeps its memory, whatever its stream does.", MEMORY, False)
def memory_in_use_is_given_away(d: Device) -> bool:
    x = new(d)
    return d.address(new(d)) == d.address(x)


@rule("A view keeps the memory of the tensor that it is of.", MEMORY, False)
def a_view_lets_go_of_memory(d: Device) -> bool:
    x = new(d)
    where = d.address(x)
    view = x[10:]
    del x
    given = d.address(new(d)) == where
    assert view.numel() == 967
    return given


# ---- another stream uses it


@rule("The allocator doesn't know what other streams do: freed too early, it is given away.", RECORD, WRONG)
def memory_used_elsewhere_is_freed_too_early(d: Device) -> Read:
    x = ones(d)
    seen = read_late(d, d.stream(), x)
    del x
    new(d).fill_(2.0)
    return Read(seen, 1.0)


@rule("Unless record_stream has told it.", RECORD, RIGHT)
def record_stream_keeps_memory(d: Device) -> Read:
    x = ones(d)
    side = d.stream()
    seen = read_late(d, side, x)
    x.record_stream(side)
    del x
    new(d).fill_(2.0)
    return Read(seen, 1.0)


@rule("Then it is not given away while that stream is at work,", RECORD, False)
def recorded_memory_is_given_away_at_once(d: Device) -> bool:
    x = ones(d)
    where = d.address(x)
    side = d.stream()
    seen = read_late(d, side, x)
    x.record_stream(side)
    del x
    given = d.address(new(d)) == where
    assert seen.numel() == 977
    return given


@rule("and is, once that stream is done with what it held when the memory was freed.", RECORD, True)
def recorded_memory_is_given_away_in_the_end(d: Device) -> bool:
    x = ones(d)
    where = d.address(x)
    side = d.stream()
    seen = read_late(d, side, x)
    x.record_stream(side)
    del x
    side.synchronize()
    given = d.address(new(d)) == where
    assert seen.numel() == 977
    return given


@rule("What that stream launches later doesn't count.", RECORD, True)
def recorded_memory_waits_for_what_comes_later(d: Device) -> bool:
    x = ones(d)
    where = d.address(x)
    side = d.stream()
    with d.on(side):
        seen = x + 0
    x.record_stream(side)
    del x
    side.synchronize()
    with d.on(side):
        d.busy()
    given = d.address(new(d)) == where
    assert seen.numel() == 977
    return given


@rule("record_stream may come before the use: what counts is the moment when the memory is freed.", RECORD, RIGHT)
def record_stream_before_the_use(d: Device) -> Read:
    x = ones(d)
    side = d.stream()
    x.record_stream(side)
    seen = read_late(d, side, x)
    del x
    new(d).fill_(2.0)
    return Read(seen, 1.0)


@rule("Of two streams that use it, both must be named.", RECORD, WRONG)
def one_of_two_users_is_recorded(d: Device) -> Read:
    x = ones(d)
    named = d.stream()
    other = d.stream()
    first = read_on(d, named, x)
    seen = read_late(d, other, x)
    x.record_stream(named)
    del x  # the allocator asks now when `named` will be done, and the host waits for its answer
    named.synchronize()
    new(d).fill_(2.0)
    assert first.numel() == 977
    return Read(seen, 1.0)


@rule("The stream that it was allocated on need not be named.", RECORD, True)
def record_stream_of_its_own_stream_keeps_memory_back(d: Device) -> bool:
    x = new(d)
    where = d.address(x)
    d.busy()
    x.record_stream(d.current())
    del x
    return d.address(new(d)) == where


@rule("record_stream is no wait: who reads too early reads too early.", RECORD, WRONG)
def record_stream_brings_order(d: Device) -> Read:
    side = d.stream()
    x = written_late(d, side)
    x.record_stream(side)
    x.record_stream(d.current())
    return Read(x + 0, 1.0)


@rule("Without record_stream: its own stream waits for the user before the memory is freed.", RECORD, RIGHT)
def its_own_stream_waits_for_the_user(d: Device) -> Read:
    x = ones(d)
    side = d.stream()
    seen = read_late(d, side, x)
    d.current().wait_stream(side)
    del x
    new(d).fill_(2.0)
    return Read(seen, 1.0)


@rule("Or the host does.", RECORD, RIGHT)
def the_host_waits_for_the_user(d: Device) -> Read:
    x = ones(d)
    side = d.stream()
    seen = read_late(d, side, x)
    side.synchronize()
    del x
    new(d).fill_(2.0)
    return Read(seen, 1.0)


@rule("If the user waits for the owner, that is the wrong way round.", RECORD, WRONG)
def the_user_waits_for_its_own_stream(d: Device) -> Read:
    x = ones(d)
    side = d.stream()
    side.wait_stream(d.current())
    seen = read_late(d, side, x)
    side.wait_stream(d.current())
    del x
    new(d).fill_(2.0)
    return Read(seen, 1.0)


@rule("Memory of a side stream is of its pool: who else uses it has to wait for it,", SEMANTICS, WRONG)
def memory_of_a_side_stream_is_ready_for_all(d: Device) -> Read:
    with d.on(d.stream()):
        x = full(d, -1.0)
        d.busy()
        x.fill_(1.0)
    return Read(x + 0, 1.0)


@rule("and must be named before it is freed.", SEMANTICS, RIGHT)
def memory_of_a_side_stream_is_used_by_another(d: Device) -> Read:
    side = d.stream()
    with d.on(side):
        x = ones(d)
    seen = read_late(d, d.current(), x)
    x.record_stream(d.current())
    del x
    with d.on(side):
        new(d).fill_(2.0)
    return Read(seen, 1.0)


@rule("A stream of another device can be named as well.", RECORD, False, devices=2)
def a_recorded_stream_of_another_device_is_ignored(d: Device) -> bool:
    x = new(d)
    where = d.address(x)
    d.settle()
    there = d.stream(1)
    with d.on(there):
        d.busy()
    x.record_stream(there)
    del x
    return d.address(new(d)) == where
