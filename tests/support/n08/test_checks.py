"""What is particular about the checks of notebook 08; what all exercises have in common is in test_detectors."""

import itertools

import pytest

from lib import schedules
from lib.pipeline import clock_cycles
from lib.schedules import ScheduleError, validate
from support.kit.mistakes import edited
from support.n08 import checks as n08
from support.n08 import solved
from support.n08.runs import as_schedule, never_waiting, run_of

SIZES = list(itertools.product(range(1, 8), range(1, 6)))


def test_what_the_reader_writes_equals_lib_in_all_small_sizes_costs_and_messages():
    for m, n in SIZES:
        assert [sorted(c) for c in clock_cycles(m, n)] == [sorted(c) for c in solved.clock_cycles(m, n)]
        theirs = schedules.one_f_one_b(m, n)
        ours = solved.one_f_one_b(m, n)
        assert as_schedule(ours).ranks == theirs.compact().ranks
        assert solved.live_activations(ours) == schedules.live_activations(theirs)
        costs = {"F": [1 + j % 3 for j in range(n)], "B": [2.5 - j % 2 for j in range(n)]}
        for orders, message in itertools.product((ours, solved.gpipe(m, n)), (0, 0.25)):
            ends = solved.simulate(orders, costs, message)
            trace = schedules.simulate(as_schedule(orders), costs["F"], costs["B"], communicate=message)
            assert {f"{j}{kind}{i}": end for (kind, i, j), end in ends.items()} == pytest.approx(
                {span.label: span.end for span in trace}
            )


def test_a_run_waits_where_lib_says_and_ranks_that_never_wait_end_no_earlier_and_hold_more():
    for m, n in ((8, 4), (3, 2), (1, 1)):
        orders = solved.one_f_one_b(m, n)
        run = run_of(orders, solved.simulate, message=0.5)
        assert run.waits == schedules.waits_for(as_schedule(orders), communicate=0.5)
    orders = never_waiting(8, 4)
    validate(as_schedule(orders))
    assert max(solved.simulate(orders, {"F": [1] * 4, "B": [2] * 4}).values()) == 33
    assert solved.live_activations(orders) == [8, 7, 4, 1]


def test_other_ways_to_write_clock_cycles_and_simulate_pass_and_an_endless_one_gets_an_answer():
    def by_sum(m, n):
        return ([[k - j, j] for j in range(n - 1, -1, -1) if 0 <= k - j < m] for k in range(m + n - 1))

    assert n08.check_clock_cycles(by_sum)
    assert n08.check_simulate(recursive)
    flat = n08.check_clock_cycles(lambda m, n: [pair for clock in by_sum(m, n) for pair in clock])
    assert "clock 0 is no list of pairs (i, j)" in flat.message
    assert "position 1" in n08.check_clock_cycles(lambda m, n: iter(lambda: [(0, 0)], None)).message


def test_a_guess_of_what_is_held_gets_its_reason_and_an_idle_share_may_be_written_as_a_share():
    assert "3 (too few under way: the step gets longer)" in n08.guess_held(3, 8, 4).message
    assert "5 (that would do" in n08.guess_held(5, 8, 4).message
    for said in (43, 0.4286, 3 / 7, "43 %", "42.9%"):
        assert "that is it" in n08.guess_idle(said, 4, 4).message
    for said in (75, 0.75, 57, None, "a lot"):
        assert "that is it" not in n08.guess_idle(said, 4, 4).message


def recursive(orders, costs, message=0):
    """Another way to write it: each end is asked of the ends that it needs; a ring is found by being asked twice."""
    ends = {}
    asked = set()
    last = len(orders) - 1

    def end(kind, i, j):
        if (kind, i, j) not in ends:
            if (kind, i, j) in asked or (kind, i) not in orders[j]:
                waiting = [next(task for task in order if (*task, j) not in ends) for j, order in enumerate(orders)]
                raise RuntimeError(f"deadlock at {waiting}")
            asked.add((kind, i, j))
            place = orders[j].index((kind, i))
            free = end(*orders[j][place - 1], j) if place else 0
            if kind == "F":
                there = end("F", i, j - 1) + message if j else 0
            else:
                there = end("F", i, j) if j == last else end("B", i, j + 1) + message
            ends[kind, i, j] = max(free, there) + costs[kind][j]
        return ends[kind, i, j]

    for j, order in enumerate(orders):
        for task in order:
            end(*task, j)
    return ends


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (edited(solved.simulate, ("[list(order) for order in orders]", "orders")), "changes `orders`"),
        (edited(solved.simulate, ("if not able:", "if False:")), "TimeoutError instead of RuntimeError"),
        (edited(solved.simulate, ('", ".join(waiting)', '""')), "rank 0 waits with B0"),
        (edited(solved.simulate, ('", ".join(waiting)', "waiting[0]")), "rank 1 waits with F2"),
        (
            edited(solved.simulate, ("ends.get((kind, i, j - 1", "ends.get((kind, j - 1, i")),
            "(kind, micro-batch, rank)?",
        ),
        (lambda orders, costs, message=0: [], "not a dictionary"),
        (lambda orders, costs, message=0: {}, "F0 on rank 0 has no end"),
        (lambda orders, costs, message=0: costs["B"] and solved.simulate(orders, costs, message), "KeyError"),
    ],
)
def test_a_wrong_simulate_is_told_what_is_wrong(wrong, says):
    verdict = n08.check_simulate(wrong)
    assert verdict.status == "wrong"
    assert says in verdict.message


def test_the_orders_that_can_not_run_are_one_of_four_with_the_same_tasks():
    refused = []
    for letter, orders in n08.TABLES.items():
        try:
            validate(as_schedule(orders))
        except ScheduleError:
            refused.append(letter)
    assert refused == ["D"]
    assert len({tuple(sorted(order)) for orders in n08.TABLES.values() for order in orders}) == 1
    with pytest.raises(RuntimeError, match="rank 0 waits with B0, rank 1 waits with F1"):
        solved.simulate(n08.TABLES["D"], {"F": [1, 1], "B": [2, 2]})
    assert n08.check_illegal("d ", ("B0", "F1"))
    assert n08.check_illegal("D", [("B", 0), ("F", 1)])
    assert "none of A, B, C, D" in n08.check_illegal("E", ["B0"]).message
