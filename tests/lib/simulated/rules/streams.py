"""Rules about streams: what brings order, and what doesn't."""

from __future__ import annotations

import torch

from tests.lib.simulated.rules.table import (
    BACKWARD,
    GUIDE,
    RIGHT,
    SEMANTICS,
    STREAMS,
    WRONG,
    Device,
    Read,
    full,
    read_on,
    rule,
    written_late,
)

# ---- one stream, and two


@rule("A launch returns to the host before the device has done the work.", GUIDE, False)
def the_host_waits_for_a_kernel(d: Device) -> bool:
    d.busy()
    return d.current().query()


@rule("What is put into one stream runs in the order in which it was put there.", GUIDE, RIGHT)
def one_stream_runs_in_order(d: Device) -> Read:
    x = written_late(d, d.current())
    return Read(x + 0, 1.0)


@rule("Two streams may run what they hold in any order, or at the same time.", GUIDE, WRONG)
def another_stream_reads_what_is_being_written(d: Device) -> Read:
    x = written_late(d, d.stream())
    return Read(x + 0, 1.0)


@rule("Nor are two writes in two streams in order.", GUIDE, WRONG)
def two_streams_write_the_same(d: Device) -> Read:
    x = written_late(d, d.stream(), 1.0)
    x.fill_(2.0)
    d.settle()
    return Read(x + 0, 2.0)


@rule("Nor a read and the write that comes after it.", GUIDE, WRONG)
def another_stream_overwrites_what_is_being_read(d: Device) -> Read:
    x = full(d, 1.0)
    side = d.stream()
    with d.on(side):
        d.busy()
        seen = x + 0
    x.fill_(2.0)
    return Read(seen, 1.0)


@rule("Two streams that only read the same memory need no order.", GUIDE, RIGHT)
def two_streams_read_the_same(d: Device) -> Read:
    x = full(d, 1.0)
    seen = [read_on(d, d.stream(), x), read_on(d, d.stream(), x)]
    d.settle()
    return Read((seen[0] + seen[1]) / 2, 1.0)


@rule("Nor do two that write different places of it, be they interleaved.", GUIDE, RIGHT)
def two_streams_write_other_places(d: Device) -> Read:
    x = full(d, -1.0)
    written_late(d, d.stream(), x=x[::2])
    written_late(d, d.stream(), x=x[1::2])
    d.settle()
    return Read(x + 0, 1.0)


@rule("The default stream is no exception: it waits for no other of torch's streams,", SEMANTICS, WRONG)
def the_default_stream_waits_for_a_side_stream(d: Device) -> Read:
    x = written_late(d, d.stream())
    return Read(read_on(d, d.current(), x), 1.0)


@rule("and none of them waits for the default stream.", SEMANTICS, WRONG)
def a_side_stream_waits_for_the_default_stream(d: Device) -> Read:
    x = written_late(d, d.current())
    return Read(read_on(d, d.stream(), x), 1.0)


@rule("A `with` of a stream puts into it what is launched inside,", SEMANTICS, True)
def a_with_changes_the_current_stream(d: Device) -> bool:
    side = d.stream()
    with d.on(side):
        d.busy()
    return d.current().query() and not side.query()


@rule("and behind it the former stream is the current one again.", SEMANTICS, True)
def behind_a_with_the_former_stream_is_current(d: Device) -> bool:
    outer = d.stream()
    inner = d.stream()
    with d.on(outer):
        with d.on(inner):
            pass
        d.busy()
    return inner.query() and not outer.query()


@rule("query tells whether all that is in a stream is done.", STREAMS, True)
def query_tells_when_a_stream_is_done(d: Device) -> bool:
    side = d.stream()
    at_first = side.query()
    with d.on(side):
        d.busy()
    early = side.query()
    side.synchronize()
    return at_first and not early and side.query()


# ---- waits


@rule("wait_stream lets a stream wait for what is in the other one,", SEMANTICS, RIGHT)
def wait_stream_brings_order(d: Device) -> Read:
    side = d.stream()
    x = written_late(d, side)
    d.current().wait_stream(side)
    return Read(x + 0, 1.0)


@rule("but not for what is put into that one afterwards,", SEMANTICS, WRONG)
def wait_stream_waits_for_what_comes_later(d: Device) -> Read:
    side = d.stream()
    d.current().wait_stream(side)
    x = written_late(d, side)
    return Read(x + 0, 1.0)


@rule("nor does the other one wait,", SEMANTICS, WRONG)
def wait_stream_works_both_ways(d: Device) -> Read:
    side = d.stream()
    x = written_late(d, side)
    side.wait_stream(d.current())
    return Read(x + 0, 1.0)


@rule("nor the host.", SEMANTICS, False)
def wait_stream_holds_up_the_host(d: Device) -> bool:
    side = d.stream()
    with d.on(side):
        d.busy()
    d.current().wait_stream(side)
    return side.query()


@rule("What a stream has waited for, all that is put into it later comes after,", STREAMS, RIGHT)
def a_wait_holds_for_all_that_follows(d: Device) -> Read:
    side = d.stream()
    x = written_late(d, side)
    d.current().wait_stream(side)
    torch.zeros(10, device=d.place()).add_(1)
    return Read(x + 0, 1.0)


@rule("and so does what waits for that stream: order is handed on,", STREAMS, RIGHT)
def waits_are_handed_on(d: Device) -> Read:
    first = d.stream()
    second = d.stream()
    x = written_late(d, first)
    second.wait_stream(first)
    d.current().wait_stream(second)
    return Read(x + 0, 1.0)


@rule("but a third stream is none the wiser.", STREAMS, WRONG)
def the_wait_of_one_stream_holds_for_another(d: Device) -> Read:
    side = d.stream()
    x = written_late(d, side)
    d.current().wait_stream(side)
    return Read(read_on(d, d.stream(), x), 1.0)


@rule("Writing must wait for reading, too, and wait_stream does that.", SEMANTICS, RIGHT)
def a_write_waits_for_a_read(d: Device) -> Read:
    x = full(d, 1.0)
    side = d.stream()
    with d.on(side):
        d.busy()
        seen = x + 0
    d.current().wait_stream(side)
    x.fill_(2.0)
    return Read(seen, 1.0)


# ---- the host waits


@rule("synchronize of a stream lets the host wait, and with it all that it launches later,", STREAMS, RIGHT)
def synchronize_brings_order(d: Device) -> Read:
    side = d.stream()
    x = written_late(d, side)
    side.synchronize()
    return Read(x + 0, 1.0)


@rule("but for no other stream.", STREAMS, False)
def synchronize_waits_for_another_stream(d: Device) -> bool:
    first = d.stream()
    second = d.stream()
    with d.on(second):
        d.busy()
    first.synchronize()
    return second.query()


@rule("synchronize of a device waits for all its streams.", GUIDE, True)
def synchronize_of_a_device_waits_for_all(d: Device) -> bool:
    streams = [d.stream(), d.stream(), d.current()]
    for stream in streams:
        with d.on(stream):
            d.busy()
    d.settle()
    return all(stream.query() for stream in streams)


# ---- two devices


@rule("Streams of two devices are in no order either.", GUIDE, True, devices=2)
def two_devices_run_at_the_same_time(d: Device) -> bool:
    with d.on(d.current(0)):
        d.busy()
    d.current(1).synchronize()
    return not d.current(0).query()


@rule("A stream can wait for one of another device.", GUIDE, RIGHT, devices=2)
def wait_stream_works_between_devices(d: Device) -> Read:
    there = d.current(1)
    x = written_late(d, d.current(0))
    there.wait_stream(d.current(0))
    with d.on(there):
        seen = x.to(d.place(1), non_blocking=True)
    return Read(seen, 1.0)


# ---- backward


@rule("Backward runs each operator in the stream of its forward.", BACKWARD, RIGHT)
def backward_runs_in_the_stream_of_forward(d: Device) -> Read:
    x = full(d, 1.0).requires_grad_()
    side = d.stream()
    with d.on(side):
        d.busy()
        y = (x * 3).sum()
    y.backward()
    assert x.grad is not None
    return Read(x.grad + 0, 3.0)
