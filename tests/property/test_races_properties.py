"""Random small programs: find_races against all that streams could do, state by state."""

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from lib.runtime.regions import Region
from lib.streams.races import HOST, Operation, find_races
from support.n13.runs import orders
from tests.sizes import size

bytes_ = st.builds(lambda b, at, size: Region(b, at, at + size), *map(st.sampled_from, ("AB", range(3), range(3))))
regions = st.lists(bytes_, max_size=2).map(tuple)
lanes = st.sampled_from("stu")
events = st.integers(0, 1)
programs = st.lists(
    st.one_of(
        st.builds(Operation, st.just("launch"), lanes | st.just(HOST), reads=regions, writes=regions),
        st.builds(Operation, st.sampled_from(["record", "wait"]), lanes, event=events),
        st.builds(Operation, st.just("synchronize"), st.just(HOST), event=events),
    ),
    max_size=10,
)


def at_the_same_time(program):
    """Return the pairs of launches that some run has in progress together: each state of each run is visited.

    A state: how far each stream and the host are, and who of them is in the midst of a launch.
    """
    recorded = {}
    needs = {}  # what a wait is for: the record of its event that was issued last before it
    for number, op in enumerate(program):
        if op.kind == "record":
            recorded[op.event] = number
        elif op.kind in ("wait", "synchronize"):
            needs[number] = recorded.get(op.event)
    queues = [[k for k, op in enumerate(program) if op.lane == lane] for lane in "stu"]
    queues.append([*range(len(program))])  # the host issues all, and executes what is in its own lane
    start = ((0, False),) * 4
    seen = {start}
    left = [start]
    pairs = set()
    while left:
        state = left.pop()
        done = {k for queue, (place, _) in zip(queues[:3], state, strict=False) for k in queue[:place]}
        running = sorted(queue[place] for queue, (place, busy) in zip(queues, state, strict=True) if busy)
        pairs.update(combinations(running, 2))
        for lane, (queue, (place, busy)) in enumerate(zip(queues, state, strict=True)):
            if place == len(queue) or (lane < 3 and queue[place] >= state[3][0]):
                continue  # nothing is left, or not issued yet
            op = program[queue[place]]
            own = lane < 3 or program[queue[place]].lane == HOST
            if own and needs.get(queue[place]) is not None and needs[queue[place]] not in done:
                continue  # it stands still
            begins = own and op.kind == "launch" and not busy
            after = (*state[:lane], (place, True) if begins else (place + 1, False), *state[lane + 1 :])
            if after not in seen:
                seen.add(after)
                left.append(after)
    return pairs


def conflict(a, b):
    pairs = [(x, y) for x in a.writes for y in b.writes + b.reads]
    return any(x.meets(y) for x, y in pairs + [(x, y) for x in a.reads for y in b.writes])


@settings(max_examples=size(suite=200, prove=5_000))
@given(programs)
def test_two_launches_race_exactly_if_some_run_has_both_in_progress(program):
    together = at_the_same_time(program)
    expected = sorted((a, b) for a, b in together if conflict(program[a], program[b]))
    assert [(race.first, race.second) for race in find_races(program)] == expected
    launches = [number for number, op in enumerate(program) if op.kind == "launch"]
    for _, order in zip(range(3), orders(program), strict=False):
        assert sorted(order) == launches
        place = {number: k for k, number in enumerate(order)}
        assert {(a, b) for a, b in combinations(launches, 2) if place[a] > place[b]} <= together
