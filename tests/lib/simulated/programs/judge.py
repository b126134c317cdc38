"""What is said of a program: without a race it gives one result; else each race is seen, or its values hide it."""

from random import Random

from lib.streams import find_races
from tests.lib.simulated.programs.machines import on_pretend, on_simulated, with_one_late
from tests.lib.simulated.programs.program import shrunk

RUNS = 20
#: Seconds for which the first launch of a race is late. A host that is kept from running for longer gets more.
LATE = (0.02, 0.1, 0.4)


def random_delays(program, random):
    """Return seconds for some of its launches, in which others go ahead."""
    steps = [number for number, step in enumerate(program.steps) if step.streams]
    return {number: random.choice([0.0005, 0.002]) for number in steps if random.random() < 0.3}


def disturbed(program, expected):
    """Run it with random delays, again and again; return those with which other numbers come out, else None."""
    random = Random(0)
    for _ in range(RUNS):
        delays = random_delays(program, random)
        if on_simulated(program, delays) != expected:
            return delays
    return None


def wrong_without_race(program):
    """Return the delays that give a program without a race other numbers; None if all is well, or it has one."""
    record = on_pretend(program)
    return None if find_races(record.operations) else disturbed(program, record.numbers)


def seen(program, record, race):
    """Say whether other numbers come out when the first launch of a race is late."""
    step, _ = record.launched[race.first]
    return any(on_simulated(program, {step: seconds}) != record.numbers for seconds in LATE)


def harmless(program, record, race):
    """Say whether the numbers are the same though all that hangs on the first launch comes behind the second."""
    return with_one_late(program, record, race.first) == record.numbers


def unseen_race(program):
    """Return a race that would do harm and is not seen, else None."""
    record = on_pretend(program)
    for race in find_races(record.operations):
        if not harmless(program, record, race) and not seen(program, record, race):
            return race
    return None


def told(program, fault):
    """Return what to read of a program at fault: what fault(program) says, and a listing, as short as it can be."""
    program = shrunk(program, fault)
    found = fault(program)
    delays = found if isinstance(found, dict) else None
    record = on_pretend(program)
    return (
        f"{found}\nin turn: {record.numbers.seen}, {record.numbers.left}\n"
        f"races: {[str(race) for race in find_races(record.operations)]}\n\n{program.listing(delays)}"
    )
