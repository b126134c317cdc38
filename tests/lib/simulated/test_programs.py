"""Random programs over streams: what find_races says of them is what the simulated devices do.

No race: the numbers of the sequential program, whatever is late. A race: other numbers as soon as its first launch is
late, or values that hide it: twice the same number is written, or a product is taken in another order. That is judged
by running all that hangs on the first launch behind all that does not, on plain memory.
"""

import subprocess
import sys

import pytest

from lib.streams import find_races
from tests.lib.simulated.programs.draw import draw
from tests.lib.simulated.programs.judge import disturbed, harmless, seen, told, unseen_race, wrong_without_race
from tests.lib.simulated.programs.machines import on_pretend, on_simulated, with_one_late
from tests.lib.simulated.programs.program import Program, Step, shrunk
from tests.sizes import size

NUMBER = size(suite=50, prove=500)
HARMLESS = 0.2
"""So many of the races may be hidden by their values, or the programs would prove little."""

HOSTS = {"h0": (1, 2.0), "h2": (1, 5.0)}
LATE_COPY = Program(
    {"s0": 0, "s1": 0},
    HOSTS,
    [
        Step("read(h2)", launches=True),
        Step("x1 = h0.to(D0, non_blocking=True)", ("s1",), launches=True),
        Step("x2 = torch.add(x1[:1], x1[:1], alpha=3)", ("s0",), launches=True),
    ],
)


@pytest.fixture(autouse=True)
def _devices(device):
    """Two devices, which cost nothing."""


def programs():
    for seed in range(NUMBER):
        program = draw(seed)
        yield program, on_pretend(program)


def test_run_in_turn_all_three_machines_give_the_same_numbers():
    for program, record in programs():
        assert on_simulated(program, in_turn=True) == record.numbers
        assert with_one_late(program, record) == record.numbers


def test_without_a_race_the_numbers_are_the_same_whatever_is_late():
    judged = 0
    for program, record in programs():
        if not find_races(record.operations):
            judged += 1
            if disturbed(program, record.numbers) is not None:
                pytest.fail(told(program, wrong_without_race))
    assert judged >= NUMBER / 3


def test_a_race_is_seen_when_its_first_launch_is_late_or_its_values_hide_it():
    races = 0
    hidden = 0
    for program, record in programs():
        for race in find_races(record.operations):
            races += 1
            if harmless(program, record, race):
                hidden += 1
            elif not seen(program, record, race):
                pytest.fail(told(program, unseen_race))
    assert races >= NUMBER / 2
    assert hidden <= HARMLESS * races, f"{hidden} of {races} races can't be seen by their numbers"


def test_the_programs_have_in_them_what_they_are_to_prove():
    texts = []
    again = 0
    for program, record in programs():
        texts += [step.code for step in program.steps]
        given = [op.label for op in record.operations if op.kind == "allocate"]
        again += len(given) - len(set(given))
    assert again >= NUMBER / 2, "memory is given away again"
    for part in (
        "(D1",
        "use(t0, s",
        "use(s0, t",
        "record_stream",
        "wait_event",
        "wait_stream",
        "synchronize",
        "read(x",
    ):
        found = sum(part in text for text in texts)
        assert found >= NUMBER / 10, part


# ---- these tests can fail


def test_a_device_that_forgets_waits_is_found_out(device):
    device(forgets={"wait_event"})
    assert any(wrong_without_race(draw(seed)) for seed in range(20))


def test_a_device_that_forgets_record_stream_is_found_out(device):
    device(forgets={"record_stream"})
    assert any(wrong_without_race(draw(seed)) for seed in range(50))


def test_what_comes_out_with_one_late_launch_is_foretold():
    record = on_pretend(LATE_COPY)
    (race,) = find_races(record.operations)
    foretold = with_one_late(LATE_COPY, record, race.first)
    assert repr(foretold.left["x2"]) != repr(record.numbers.left["x2"])
    assert not harmless(LATE_COPY, record, race)
    assert seen(LATE_COPY, record, race)
    assert unseen_race(LATE_COPY) is None


def test_a_race_whose_two_launches_write_the_same_is_harmless():
    steps = [
        Step("x1 = h0.to(D0, non_blocking=True)", ("s0",), launches=True),
        Step("s1.wait_stream(s0)"),
        Step("x1.fill_(3)", ("s0",), launches=True),
        Step("x1.fill_(3)", ("s1",), launches=True),
    ]
    program = Program({"s0": 0, "s1": 0}, HOSTS, steps)
    record = on_pretend(program)
    (race,) = find_races(record.operations)
    assert harmless(program, record, race)
    assert not seen(program, record, race)


def late_copy_is_seen(program):
    record = on_pretend(program)
    return any(seen(program, record, race) for race in find_races(record.operations))


def test_a_program_at_fault_is_told_as_a_listing_without_what_it_does_not_need():
    program = shrunk(LATE_COPY, late_copy_is_seen)
    assert program.steps == LATE_COPY.steps[1:]
    listing = program.listing({0: 0.5})
    done = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, timeout=200)
    assert done.stdout == "[] [[2.0], [2.0], [nan]]\n", done.stderr
    assert listing in told(LATE_COPY, lambda program: {0: 0.5} if late_copy_is_seen(program) else None)
