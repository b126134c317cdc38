"""Rules about copies: pinned and pageable memory, `non_blocking`, between devices."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.lib.simulated.rules.table import (
    PINNED,
    RIGHT,
    SEMANTICS,
    SYNC,
    WRONG,
    Device,
    Read,
    full,
    read_on,
    rule,
    written_late,
)


def copied_late(d: Device, source: Tensor, *, non_blocking: bool = True) -> Tensor:
    """Return a copy on the device, made by the current stream, which is busy at first."""
    d.busy()
    return source.to(d.place(), non_blocking=non_blocking)


def host_reads(x: Tensor) -> Tensor:
    """Return what the host reads now."""
    return x.clone()


# ---- to the device


@rule("A copy from pinned memory with non_blocking=True returns at once.", PINNED, False)
def the_host_waits_for_a_copy_from_pinned_memory(d: Device) -> bool:
    copied_late(d, d.host(1.0))
    return d.current().query()


@rule("Without it the call returns when the copy is done.", PINNED, True)
def the_host_waits_for_a_blocking_copy(d: Device) -> bool:
    copied_late(d, d.host(1.0), non_blocking=False)
    return d.current().query()


@rule("A blocking copy from pageable memory returns when it is done as well.", SEMANTICS, True)
def the_host_waits_for_a_blocking_copy_from_pageable_memory(d: Device) -> bool:
    copied_late(d, d.host(1.0, pinned=False), non_blocking=False)
    return d.current().query()


@rule("A copy runs in the current stream: what is in it comes before and after,", SEMANTICS, RIGHT)
def a_copy_is_in_order_with_its_stream(d: Device) -> Read:
    y = copied_late(d, d.host(1.0))
    return Read(y + 0, 1.0)


@rule("what is in another stream does not.", SEMANTICS, WRONG)
def a_copy_is_in_order_with_another_stream(d: Device) -> Read:
    y = full(d, -1.0)
    with d.on(d.stream()):
        d.busy()
        y.copy_(d.host(1.0), non_blocking=True)
    return Read(y + 0, 1.0)


@rule("To wait for the copy's stream is enough.", SEMANTICS, RIGHT)
def a_copy_is_waited_for_by_its_stream(d: Device) -> Read:
    side = d.stream()
    with d.on(side):
        y = copied_late(d, d.host(1.0))
    d.current().wait_stream(side)
    return Read(y + 0, 1.0)


@rule("Behind a blocking copy every stream has it.", SEMANTICS, RIGHT)
def a_blocking_copy_is_there_for_all(d: Device) -> Read:
    with d.on(d.stream()):
        y = copied_late(d, d.host(1.0), non_blocking=False)
    return Read(y + 0, 1.0)


@rule("Pinned memory is read when the copy runs: written before that, it is a race.", PINNED, WRONG)
def pinned_memory_is_read_by_the_call(d: Device) -> Read:
    source = d.host(1.0)
    y = copied_late(d, source)
    source.fill_(2.0)
    return Read(y + 0, 1.0)


@rule("Once the host has waited for the copy, the memory is its own again.", PINNED, RIGHT)
def pinned_memory_is_free_once_the_copy_is_done(d: Device) -> Read:
    source = d.host(1.0)
    y = copied_late(d, source)
    d.current().synchronize()
    source.fill_(2.0)
    return Read(y + 0, 1.0)


@rule("That another stream has waited is not enough.", PINNED, WRONG)
def pinned_memory_is_free_once_a_stream_has_waited(d: Device) -> Read:
    source = d.host(1.0)
    side = d.stream()
    with d.on(side):
        y = copied_late(d, source)
    d.current().wait_stream(side)
    source.fill_(2.0)
    return Read(y + 0, 1.0)


@rule("Pageable memory is staged before the call returns: it can be written at once.", SYNC, RIGHT)
def pageable_memory_is_free_at_once(d: Device) -> Read:
    source = d.host(1.0, pinned=False)
    y = copied_late(d, source)
    source.fill_(2.0)
    return Read(y + 0, 1.0)


MAY = "CUDA may wait for the stream there, and says that it may"


@rule("Staged is not done: another stream that reads the copy has to wait.", SYNC, WRONG, unsafe=MAY)
def a_pageable_copy_is_done_at_once(d: Device) -> Read:
    y = full(d, -1.0)
    source = d.host(1.0, pinned=False)
    with d.on(d.stream()):
        d.busy()
        y.copy_(source, non_blocking=True)
    return Read(y + 0, 1.0)


@rule("Pinned memory that is let go of is not given away while a copy reads it.", PINNED, RIGHT)
def pinned_memory_is_held_for_the_copy(d: Device) -> Read:
    source = d.host(1.0)
    y = copied_late(d, source)
    del source
    again = d.host(5.0)
    seen = y + 0
    assert again.is_pinned()
    return Read(seen, 1.0)


@rule("pin_memory makes a copy, at once, of what is in the host's memory.", PINNED, RIGHT)
def pin_memory_reads_at_once(d: Device) -> Read:
    source = d.host(1.0, pinned=False)
    pinned = source.pin_memory()
    source.fill_(2.0)
    return Read(copied_late(d, pinned) + 0, 1.0)


@rule("It waits for no stream.", PINNED, False)
def pin_memory_waits_for_the_device(d: Device) -> bool:
    d.busy()
    d.host(1.0, pinned=False).pin_memory()
    return d.current().query()


@rule("A tensor knows whether it is pinned.", PINNED, True)
def a_tensor_knows_whether_it_is_pinned(d: Device) -> bool:
    return d.host(1.0).is_pinned() and not d.host(1.0, pinned=False).is_pinned()


# ---- to the host


@rule("A copy into pinned memory with non_blocking=True returns at once,", PINNED, False)
def the_host_waits_for_a_copy_into_pinned_memory(d: Device) -> bool:
    x = full(d, 1.0)
    target = d.host(-1.0)
    d.busy()
    target.copy_(x, non_blocking=True)
    return d.current().query()


@rule("so the host must wait before it reads,", PINNED, WRONG)
def the_host_reads_what_is_being_copied(d: Device) -> Read:
    x = full(d, 1.0)
    target = d.host(-1.0)
    d.busy()
    target.copy_(x, non_blocking=True)
    return Read(host_reads(target), 1.0)


@rule("for the stream,", PINNED, RIGHT)
def the_host_reads_what_was_copied(d: Device) -> Read:
    x = full(d, 1.0)
    target = d.host(-1.0)
    d.busy()
    target.copy_(x, non_blocking=True)
    d.current().synchronize()
    return Read(host_reads(target), 1.0)


@rule("or for an event behind the copy.", PINNED, RIGHT)
def the_host_waits_for_an_event_behind_a_copy(d: Device) -> Read:
    x = full(d, 1.0)
    target = d.host(-1.0)
    d.busy()
    target.copy_(x, non_blocking=True)
    d.current().record_event().synchronize()
    d.busy()
    return Read(host_reads(target), 1.0)


@rule('x.to("cpu", non_blocking=True) makes pinned memory, and returns at once.', SEMANTICS, False)
def the_host_waits_for_a_move_to_it(d: Device) -> bool:
    x = full(d, 1.0)
    d.busy()
    moved = x.to("cpu", non_blocking=True)
    early = d.current().query()
    assert moved.is_pinned()
    return early


@rule("x.cpu() returns when the data are there.", SEMANTICS, RIGHT)
def the_host_reads_behind_cpu(d: Device) -> Read:
    x = written_late(d, d.current())
    return Read(host_reads(x.cpu()), 1.0)


@rule("It waits for the current stream: what another one writes may not be there.", SEMANTICS, WRONG)
def cpu_waits_for_another_stream(d: Device) -> Read:
    x = written_late(d, d.stream())
    return Read(host_reads(x.cpu()), 1.0)


@rule("A copy into pageable memory returns when it is done, non_blocking or not.", SYNC, RIGHT)
def the_host_reads_a_copy_in_pageable_memory(d: Device) -> Read:
    x = full(d, 1.0)
    target = d.host(-1.0, pinned=False)
    d.busy()
    target.copy_(x, non_blocking=True)
    return Read(host_reads(target), 1.0)


@rule("Memory that is copied to the host may not be written before the copy is done.", SEMANTICS, WRONG)
def the_source_of_a_copy_is_overwritten(d: Device) -> Read:
    x = full(d, 1.0)
    target = d.host(-1.0)
    with d.on(d.stream()):
        d.busy()
        target.copy_(x, non_blocking=True)
    x.fill_(2.0)
    d.settle()
    return Read(host_reads(target), 1.0)


# ---- on one device, and between two


@rule("For a copy on a device the host doesn't wait,", SYNC, False)
def the_host_waits_for_a_copy_on_the_device(d: Device) -> bool:
    x = full(d, 1.0)
    y = full(d, -1.0)
    d.busy()
    y.copy_(x)
    return d.current().query()


@rule("nor for one between two devices, even without non_blocking.", SYNC, False, devices=2)
def the_host_waits_for_a_copy_between_devices(d: Device) -> bool:
    x = full(d, 1.0)
    d.busy()
    moved = x.to(d.place(1))
    early = d.current().query()
    assert moved.device == d.place(1)
    return early


@rule("Such a copy comes after what is in the source's stream,", SEMANTICS, RIGHT, devices=2)
def a_copy_between_devices_waits_for_its_source(d: Device) -> Read:
    x = written_late(d, d.current(0))
    return Read(x.to(d.place(1)), 1.0)


@rule("before what the target's stream does next,", SEMANTICS, RIGHT, devices=2)
def the_targets_stream_waits_for_a_copy_between_devices(d: Device) -> Read:
    x = written_late(d, d.current(0))
    y = x.to(d.place(1))
    return Read(read_on(d, d.current(1), y), 1.0)


@rule("before what the source's stream does next,", SEMANTICS, RIGHT, devices=2)
def the_sources_stream_waits_for_a_copy_between_devices(d: Device) -> Read:
    x = written_late(d, d.current(0))
    y = x.to(d.place(1))
    x.fill_(2.0)
    return Read(y, 1.0)


@rule("and after what the target's stream has done before.", SEMANTICS, RIGHT, devices=2)
def a_copy_between_devices_waits_for_its_target(d: Device) -> Read:
    x = full(d, 1.0)
    y = full(d, -1.0, 1)
    with d.on(d.current(1)):
        d.busy()
        seen = y + 0
    y.copy_(x)
    return Read(seen, -1.0)


@rule("Another stream of the target's device has to wait for it,", SEMANTICS, WRONG, devices=2)
def another_stream_reads_a_copy_between_devices(d: Device) -> Read:
    x = full(d, 1.0)
    y = full(d, -1.0, 1)
    side = d.stream(1)
    with d.on(d.current(0)):
        d.busy()
        y.copy_(x)
    return Read(read_on(d, side, y), 1.0)


@rule("and it runs in the source's current stream, not where its source was written.", SEMANTICS, WRONG, devices=2)
def a_copy_between_devices_waits_for_who_wrote_its_source(d: Device) -> Read:
    x = written_late(d, d.stream(0))
    y = torch.full_like(x, -1.0, device=d.place(1))
    y.copy_(x)
    return Read(read_on(d, d.current(1), y), 1.0)
