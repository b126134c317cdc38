"""Exercise 1 of notebook 13: steps that are built otherwise, steps that miss a race, and the programs in short."""

import pytest

from lib.streams import find_races
from support.kit.mistakes import edited
from support.kit.values import short
from support.n13 import checks as n13
from support.n13.clocks import random_programs, small_program


def learn(clock, other):
    for lane, number in other.items():
        clock[lane] = max(clock.get(lane, 0), number)


def plain(lanes, events, op):
    """Take one operation into account, with nothing that the exercise does not ask for."""
    clock = lanes.setdefault(op.lane, {})
    learn(clock, lanes["host"])
    if op.kind == "launch":
        clock[op.lane] = clock.get(op.lane, 0) + 1
    elif op.kind == "record":
        events[op.event] = dict(clock)
    elif op.kind in ("wait", "synchronize"):
        learn(clock, events.get(op.event, {}))
    return dict(clock)


HOST = '    learn(clock, lanes["host"])\n'
WAITS = "        learn(clock, events.get(op.event, {}))\n"

RIGHT_STEPS = {
    "as it is": (),
    "the host is heard at a launch": (
        (HOST, ""),
        ('if op.kind == "launch":\n', 'if op.kind == "launch":\n        learn(clock, lanes["host"])\n'),
    ),
    "the host is heard last": ((HOST, ""), ("    return", HOST + "    return")),
}


@pytest.mark.parametrize("edits", RIGHT_STEPS.values(), ids=RIGHT_STEPS)
def test_a_step_may_be_built_in_other_ways(edits):
    verdict = n13.check_step(edited(plain, *edits))
    assert verdict.status == "right", verdict.message


WRONG_STEPS = {
    "a wait teaches the event": (
        "The event stays what it was when it was recorded",
        (WAITS, WAITS + "        events[op.event] = dict(clock)\n"),
    ),
    "the host's launches are not counted": (
        "fill is launch 1 of host, and its own clock has 0 there. The host launches, too",
        ('if op.kind == "launch":', 'if op.kind == "launch" and op.lane != "host":'),
    ),
    "the host forgets": (
        "The host keeps what it knew when it waits for an older event",
        (WAITS, '        if op.lane == "host":\n            clock.clear()\n' + WAITS),
    ),
    "the first record counts": (
        "An event may be recorded again",
        ("events[op.event] = dict(clock)", "events.setdefault(op.event, dict(clock))"),
    ),
    "a record again adds to the older past": (
        "stands for the later mark only",
        ("events[op.event] = dict(clock)", "learn(events.setdefault(op.event, {}), clock)"),
    ),
    "who waits for an event learns from its later records": (
        "A wait is for the mark that is there when it is launched",
        (WAITS, WAITS + "        events.setdefault(('who', op.event), []).append(clock)\n"),
        (
            "        events[op.event] = dict(clock)\n",
            "        events[op.event] = dict(clock)\n"
            "        for waiting in events.get(('who', op.event), []):\n            learn(waiting, clock)\n",
        ),
    ),
    "the host overwrites": (
        "What a stream knows may be more than the host knows",
        (HOST, '    clock.update(lanes["host"])\n'),
    ),
    "what the host learns later of a lane that is known already": (
        "The host goes on learning, also of what the lane knows in part",
        (
            HOST,
            '    for lane, number in lanes["host"].items():\n        clock.setdefault(lane, number)\n',
        ),
    ),
    "a record knows one launch too few": (
        "Behind a wait its lane knows what the event stands for, the launch before the record included",
        (
            "events[op.event] = dict(clock)",
            "events[op.event] = {**clock, op.lane: clock.get(op.lane, 0) - 1}",
        ),
    ),
    "the host is heard once": (
        "The host goes on learning",
        (HOST, ""),
        ("setdefault(op.lane, {})", 'setdefault(op.lane, dict(lanes["host"]))'),
    ),
    "an event is used up": ("Several may wait for one event", ("events.get(", "events.pop(")),
    "whatever is no record or wait counts": (
        "C0 is launch 1 of copy, and its own clock has 2 there",
        ('op.kind == "launch"', 'op.kind not in ("record", "wait", "synchronize")'),
    ),
    "a record counts": (
        "C1 is launch 2 of side, and its own clock has 3 there",
        ('if op.kind == "launch":', 'if op.kind in ("launch", "record"):'),
        ('    elif op.kind == "record"', '    if op.kind == "record"'),
    ),
    "who waits for an event that was never recorded learns from its first record": (
        "A wait is for the mark that is there when it is launched",
        (
            WAITS,
            WAITS
            + "        if op.event not in events:\n"
            + "            events.setdefault(('who', op.event), []).append(clock)\n",
        ),
        (
            "        events[op.event] = dict(clock)\n",
            "        events[op.event] = dict(clock)\n"
            "        for waiting in events.get(('who', op.event), []):\n            learn(waiting, clock)\n",
        ),
    ),
    "the host cannot wait for an event that was never recorded": (
        "`). An event that was never recorded knows nothing.",
        ("events.get(op.event, {})", "events.get(op.event, {}) if op.lane != 'host' else events[op.event]"),
    ),
    "who waits for an event that was never recorded gets the first that was": (
        "a wait for an event that was never recorded",
        ("events.get(op.event, {})", "events.get(op.event) or next(iter(events.values()), {})"),
    ),
    "what is recorded in an empty stream is left out": (
        "recorded again in an empty stream: a+ a! b!0 c?0 c*0, find_races names copy of batch 0 and neg",
        ('elif op.kind == "record":', 'elif op.kind == "record" and clock:'),
    ),
    "each kind has a line of its own": (
        "your code raised KeyError: 'allocate'",
        ("    if op.kind", "    {'launch': 1, 'record': 2, 'wait': 3, 'synchronize': 4}[op.kind]\n    if op.kind"),
    ),
    "who waits for an event that was never recorded puts its own past there": (
        "two wait for an event that was never recorded",
        ("events.get(op.event, {})", "events.setdefault(op.event, dict(clock))"),
    ),
    "events go by their words": (
        "find_races names copy of batch 1 and neg; by your clocks it is no race",
        ("events[op.event] = ", "events[op.label] = "),
        ("events.get(op.event", "events.get(op.label"),
    ),
    "an event that is recorded again keeps the larger sum": (
        "find_races names copy of batch 0 and neg; by your clocks it is no race",
        (
            "events[op.event] = dict(clock)",
            "events[op.event] = max(dict(clock), events.get(op.event, {}), key=lambda known: sum(known.values()))",
        ),
    ),
    "only a launch is answered": (
        "1 launched in side before the record of C0 (side), and the clock that step returns for that has 0 there",
        ("    return dict(clock)", '    return dict(clock) if op.kind == "launch" else {}'),
    ),
    "a lane waits for an event once": (
        "a stream waits again for an event that is recorded again",
        (
            WAITS,
            '        told = events.setdefault("told", [])\n'
            "        if (op.lane, op.event) not in told:\n    " + WAITS + "        told.append((op.lane, op.event))\n",
        ),
    ),
    "event 0 is taken for none": (
        "find_races names",
        ('elif op.kind in ("wait", "synchronize"):', 'elif op.kind in ("wait", "synchronize") and op.event:'),
    ),
    "a wait is answered with what was known before": (
        "knows of 1 launched in side, and the clock that step returns for the wait has 0 there",
        (WAITS, "        before = dict(clock)\n" + WAITS + "        return before\n"),
    ),
    "an event stands for the launch before it, and what that knew": (
        "a+ a! b?0 b! c?1 c*0, find_races names no race",
        (WAITS, "        learn(clock, events.get(events.get(op.event), {}))\n"),
        ("events[op.event] = dict(clock)", "events[op.event] = (op.lane, clock.get(op.lane, 0))"),
        (
            "    return",
            "    if op.kind == 'launch':\n        events[op.lane, clock[op.lane]] = dict(clock)\n    return",
        ),
    ),
    "of the host a new lane learns all, a known one what the host waits for": (
        "find_races names no race; by your clocks it is fill and copy of batch 2",
        (HOST, ""),
        ("setdefault(op.lane, {})", 'setdefault(op.lane, dict(lanes["host"]))'),
        (
            "    return",
            "    for known in lanes.values() if op.kind == 'synchronize' else ():\n"
            "        learn(known, clock)\n    return",
        ),
    ),
    "one number for all lanes": (
        "F0 is launch 1 of compute, and its own clock has 2 there",
        ("clock.get(op.lane, 0) + 1", "max(clock.values(), default=0) + 1"),
    ),
}


@pytest.mark.parametrize("says, edits", [(v[0], v[1:]) for v in WRONG_STEPS.values()], ids=WRONG_STEPS)
def test_a_step_that_breaks_a_rule_is_told_which(says, edits):
    verdict = n13.check_step(edited(plain, *edits))
    assert verdict.status == "wrong"
    assert says in verdict.message, verdict.message


def test_the_name_of_a_program_is_never_cut_off():
    assert [name for name in n13.programs() if short(name) != name] == []


def test_the_events_of_a_program_in_short_have_the_numbers_that_it_names():
    events = [op.event for op in small_program("a+ a! b! c?0 c?1 a!0 c?9") if op.event is not None]
    assert events == [0, 1, 0, 1, 0, 9]


def test_programs_at_random_have_races_and_none_in_equal_parts_and_are_the_same_each_time():
    programs = random_programs()
    assert programs == random_programs()
    racing = sum(bool(find_races(small_program(steps))) for steps in programs)
    assert len(programs) / 5 < racing
    assert [len(steps.split()) for steps in programs] == sorted(len(steps.split()) for steps in programs)
