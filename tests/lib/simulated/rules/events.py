"""Rules about events: what an event stands for, who waits for it, what it measures."""

from __future__ import annotations

from tests.lib.simulated.rules.table import (
    EVENTS,
    RIGHT,
    STREAMS,
    WRONG,
    Device,
    Read,
    full,
    read_on,
    rule,
    written_late,
)


@rule("A stream that waits for an event waits for all that was in the stream when it was recorded,", EVENTS, RIGHT)
def wait_event_brings_order(d: Device) -> Read:
    side = d.stream()
    x = written_late(d, side)
    d.current().wait_event(side.record_event())
    return Read(x + 0, 1.0)


@rule("and for nothing that was put there later.", EVENTS, WRONG)
def an_event_stands_for_what_comes_later(d: Device) -> Read:
    side = d.stream()
    event = side.record_event()
    x = written_late(d, side)
    d.current().wait_event(event)
    return Read(x + 0, 1.0)


@rule("event.wait(stream) is the same as stream.wait_event(event).", EVENTS, RIGHT)
def an_event_lets_a_stream_wait(d: Device) -> Read:
    side = d.stream()
    x = written_late(d, side)
    event = d.event()
    event.record(side)
    event.wait(d.current())
    return Read(x + 0, 1.0)


@rule("The host doesn't wait with it.", STREAMS, False)
def wait_event_holds_up_the_host(d: Device) -> bool:
    side = d.stream()
    with d.on(side):
        d.busy()
    d.current().wait_event(side.record_event())
    return d.current().query()


@rule("For an event that was never recorded nobody waits,", STREAMS, WRONG)
def an_event_without_record_is_waited_for(d: Device) -> Read:
    event = d.event()
    x = written_late(d, d.stream())
    d.current().wait_event(event)
    return Read(x + 0, 1.0)


@rule("and it counts as done.", EVENTS, True)
def an_event_without_record_is_done(d: Device) -> bool:
    event = d.event()
    event.synchronize()
    return event.query()


@rule("A wait is for the latest record before it,", STREAMS, RIGHT)
def a_wait_is_for_the_latest_record(d: Device) -> Read:
    side = d.stream()
    event = d.event()
    event.record(side)
    x = written_late(d, side)
    event.record(side)
    d.current().wait_event(event)
    return Read(x + 0, 1.0)


@rule("whatever is recorded in the event afterwards:", STREAMS, WRONG)
def a_wait_is_for_a_later_record(d: Device) -> Read:
    side = d.stream()
    event = d.event()
    event.record(side)
    d.current().wait_event(event)
    x = written_late(d, side)
    event.record(side)
    return Read(x + 0, 1.0)


@rule("an event recorded again forgets what it stood for.", EVENTS, WRONG)
def an_event_remembers_its_former_record(d: Device) -> Read:
    side = d.stream()
    event = d.event()
    x = written_late(d, side)
    event.record(side)
    event.record(d.stream())
    d.current().wait_event(event)
    return Read(x + 0, 1.0)


@rule("An event can be recorded in another stream than the current one.", EVENTS, RIGHT)
def an_event_is_recorded_in_a_named_stream(d: Device) -> Read:
    side = d.stream()
    x = written_late(d, side)
    event = d.event()
    event.record(side)
    event.synchronize()
    return Read(x + 0, 1.0)


@rule("Without a name it is the current one.", EVENTS, WRONG)
def an_event_is_recorded_in_every_stream(d: Device) -> Read:
    x = written_late(d, d.stream())
    event = d.event()
    event.record()
    event.synchronize()
    return Read(x + 0, 1.0)


@rule("synchronize of an event lets the host wait until it has happened,", EVENTS, True)
def synchronize_waits_for_an_event(d: Device) -> bool:
    d.busy()
    event = d.current().record_event()
    early = event.query()
    event.synchronize()
    return event.query() and not early


@rule("and not for what is behind it in the stream.", EVENTS, False)
def synchronize_waits_for_what_is_behind_an_event(d: Device) -> bool:
    event = d.current().record_event()
    d.busy()
    event.synchronize()
    return d.current().query()


@rule("Several streams may wait for one event.", EVENTS, RIGHT)
def several_streams_wait_for_one_event(d: Device) -> Read:
    side = d.stream()
    x = written_late(d, side)
    event = side.record_event()
    readers = [d.stream(), d.stream()]
    for reader in readers:
        reader.wait_event(event)
    seen = [read_on(d, reader, x) for reader in readers]
    d.settle()
    return Read((seen[0] + seen[1]) / 2, 1.0)


@rule("A stream that has waited for an earlier event has not waited for a later one.", EVENTS, WRONG)
def an_earlier_event_is_enough(d: Device) -> Read:
    side = d.stream()
    other = full(d, -1.0)
    x = full(d, -1.0)
    with d.on(side):
        other.fill_(1.0)
    event = side.record_event()
    written_late(d, side, x=x)
    d.current().wait_event(event)
    return Read(x + other - 1, 1.0)


@rule("An event of one device can be waited for by a stream of another.", STREAMS, RIGHT, devices=2)
def an_event_is_waited_for_on_another_device(d: Device) -> Read:
    x = written_late(d, d.current(0))
    there = d.stream(1)
    there.wait_event(d.current(0).record_event())
    there.record_event().synchronize()  # the host waits for that device, and so for the first
    return Read(read_on(d, d.stream(0), x), 1.0)
