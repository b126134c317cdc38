"""Orders as a reader of notebook 08 may write them: 1F1B in other words, too slow ones, two at most, a ring."""

import itertools
from functools import cache

import pytest

from lib.schedules import ScheduleError, validate
from support.kit.mistakes import edited
from support.n08 import checks as n08
from support.n08 import solved
from support.n08.runs import as_schedule, never_waiting
from support.n08.timelines import going_further

# ---- turning early


def by_megatron(m, n):
    """Megatron's way to write it: rounds that begin with a forward, one warm-up forward fewer."""
    orders = []
    for j in range(n):
        warm = min(n - j - 1, m)
        row = [("F", i) for i in range(warm)]
        for i in range(m - warm):
            row += [("F", warm + i), ("B", i)]
        orders.append(row + [("B", i) for i in range(m - warm, m)])
    return orders


def by_limit(m, n):
    """A greedy way: go forward as long as there is room, otherwise back."""
    orders = []
    for j in range(n):
        row = []
        forward = back = 0
        while back < m:
            if forward < m and forward - back < n - j:
                row.append(("F", forward))
                forward += 1
            else:
                row.append(("B", back))
                back += 1
        orders.append(row)
    return orders


def test_other_ways_to_turn_early_pass():
    assert n08.check_turn_early(by_megatron)
    assert n08.check_turn_early(by_limit)


@pytest.mark.parametrize(
    ("form", "says"),
    [
        (tuple, "a list of 1 orders is expected, not tuple"),
        (lambda orders: [tuple(row) for row in orders], "rank 0 should have a list of tasks, and has (("),
        (lambda orders: [[list(task) for task in row] for row in orders], "rank 0 has ['F', 0], and a task is a tuple"),
        (lambda orders: [[(kind, float(i)) for kind, i in row] for row in orders], "has ('F', 0.0), and a task is a"),
        (lambda orders: [[(kind, str(i)) for kind, i in row] for row in orders], "has ('F', '0'), and a task is a"),
    ],
    ids=["tuple of ranks", "tuple of tasks", "tasks as lists", "floats", "texts"],
)
def test_orders_come_in_the_form_that_any_right_simulate_takes(form, says):
    verdict = n08.check_turn_early(lambda m, n: form(by_limit(m, n)))
    assert verdict.status == "wrong"
    assert says in verdict.message


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda m, n: [[f"{kind}{i}" for kind, i in row] for row in by_limit(m, n)], "a task is a tuple"),
        # four tasks of one order, and no four orders
        (lambda m, n: by_limit(m, n)[0], "the length should be 1, an order for each rank, and it is 4"),
        (lambda m, n: dict(enumerate(by_limit(m, n))), "not dict"),
        (lambda m, n: None, "returned None"),
        (lambda m, n: never_waiting(m, n), "would do"),
        (lambda m, n: [row[::-1] for row in by_limit(m, n)], "sequence"),
        (lambda m, n: [row + row[-1:] for row in by_limit(m, n)], "2 times"),
        (lambda m, n: by_limit(m, n)[::-1], "can't run"),
        (lambda m, n: [*by_limit(m, n - 1), by_limit(m, 1)[0]] if n > 2 else by_limit(m, n), "ticks"),
    ],
)
def test_a_wrong_turn_is_told_what_it_costs_or_what_it_is_not(wrong, says):
    verdict = n08.check_turn_early(wrong)
    assert verdict.status == "wrong"
    assert says in verdict.message


def test_one_forward_short_is_known_also_where_the_last_rank_begins_with_a_backward():
    short = edited(solved.turn_early, ("min(n - j, m)", "min(n - j - 1, m)"))
    said = n08.check_turn_early(short).message
    assert "one forward short" in said
    assert "each other" not in said  # one rank waits for nobody else
    at_least_one = edited(solved.turn_early, ("min(n - j, m)", "max(1, min(n - j - 1, m))"))
    assert "Each rank but the last is one forward short" in n08.check_turn_early(at_least_one).message


def test_only_one_order_holds_so_little_in_that_time():
    """All orders of 4 micro-batches on 2 ranks, in sequence, with at most 2 and 1 held: one of them takes 15 ticks."""
    rows = {2: in_sequence(4, 2), 1: in_sequence(4, 1)}
    costs = {"F": [1, 1], "B": [2, 2]}
    found = []
    for pair in itertools.product(rows[2], rows[1]):
        took = max(solved.simulate(pair, costs).values())
        if took <= 15:
            found.append([list(row) for row in pair])
    assert found == [solved.turn_early(4, 2)]


@cache
def in_sequence(m, most, forward=0, back=0):
    """Return all orders that take micro-batches in sequence and hold so many at most."""
    if back == m:
        return [()]
    found = []
    if forward < m and forward - back < most:
        found += [(("F", forward), *row) for row in in_sequence(m, most, forward + 1, back)]
    if back < forward:
        found += [(("B", back), *row) for row in in_sequence(m, most, forward, back + 1)]
    return found


# ---- two at most


def test_of_all_orders_in_sequence_with_two_held_only_the_solution_takes_21_ticks_and_none_takes_less():
    costs = {"F": [1] * 3, "B": [2] * 3}
    best = []
    for rows in itertools.product(in_sequence(4, 2), repeat=3):
        try:
            took = max(solved.simulate(rows, costs).values())
        except RuntimeError:
            continue
        assert took >= 21
        if took == 21:
            best.append([list(row) for row in rows])
    assert best == [n08.check_two_held.reference]


def test_1f1b_of_two_ranks_before_a_third_is_told_what_holds_it_up_and_not_that_two_wait_for_both():
    found = n08.check_two_held(n08.orders_of(*["F0 F1 B0 F2 B1 F3 B2 B3"] * 2, "F0 B0 F1 B1 F2 B2 F3 B3")).message
    assert "take 24 ticks" in found
    assert "what does rank 1 do before B1?" in found
    assert "wait for both" not in found
    others = n08.check_two_held(n08.orders_of("F0 F1 B0 F2 B1 B2 F3 B3", *["F0 B0 F1 B1 F2 B2 F3 B3"] * 2)).message
    assert others.endswith("21 are possible.")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (["F0 B0 F1 B1 F2 B2 F3 B3"] * 3, "should have a list of tasks"),
        (solved.gpipe(4, 3), "rank 0 holds 4 activations"),
        (solved.gpipe(2, 3), "rank 0 does F2 never"),
        (n08.orders_of("F0 F1 B0 B1 F2 F3 B2 B3", "F1 F0 B0 B1 F2 F3 B2 B3", "F1 B1 F0 B0 F2 B2 F3 B3"), "take 2"),
        (n08.orders_of("F0 B0 F1 B1 F2 B2 F3 B3", *["F1 B1 F0 B0 F2 B2 F3 B3"] * 2), "can't run"),
        (7, "not int"),
    ],
)
def test_other_orders_of_two_are_told_what_they_lack(wrong, says):
    verdict = n08.check_two_held(wrong)
    assert verdict.status == "wrong"
    assert says in verdict.message


# ---- which orders can't run


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
    assert n08.check_illegal("D", "B0 F1")
    assert n08.check_illegal("D", "b0, f1")
    assert "none of A, B, C, D" in n08.check_illegal("E", ["B0"]).message
    assert "two tasks are asked for" in n08.check_illegal("D", 3).message
    assert n08.check_illegal(None, ["B0", "F1"]).message.endswith("the orders that can't run.")


@pytest.mark.parametrize(
    ("at", "says"),
    [
        (["B0", "B0"], "It is D. Rank 1 stops before it comes to B0."),
        (["B0", "F2"], "It is D. Rank 1 stops before it comes to F2."),
        (["F2", "F1"], "It is D. Rank 0 stops before it comes to F2."),
        (["F0", "F1"], "It is D. Rank 0 does get through F0: go on."),
        (["F0", "B2"], "It is D. Rank 0 does get through F0: go on. Rank 1 stops before it comes to B2."),
        (["B0", "F7"], "It is D. Rank 1 has no task F7."),
        (["B0"], "a task for each of two ranks is asked for, not 1"),
        (["B0", None], "It is D. Rank 1 has no task NONE."),
        (["F1", "B0"], "Rank 0's task comes first"),
    ],
)
def test_who_has_the_right_letter_is_told_which_rank_is_wrong_and_on_which_side(at, says):
    verdict = n08.check_illegal("D", at)
    assert verdict.status == "wrong"
    assert says in verdict.message


# ---- what the notebook concludes of orders


@pytest.mark.parametrize(("slow", "in_time_order"), [(0, True), (1, True), (2, True), (3, False)])
def test_with_a_slow_rank_in_front_of_the_last_one_who_goes_further_ahead_ends_before_1f1b_and_that_before_gpipe(
    slow, in_time_order
):
    costs = {"F": [1.0] * 4, "B": [2.0] * 4}
    for times in costs.values():
        times[slow] *= 1.25
    plain = solved.turn_early(8, 4)
    ahead, turning, gpipe = (
        max(solved.simulate(orders, costs).values()) for orders in (going_further(plain, 1), plain, solved.gpipe(8, 4))
    )
    assert (ahead < turning < gpipe) is in_time_order
    assert in_time_order or ahead == turning == gpipe


def test_a_latency_holds_back_the_best_m_of_1f1b_and_not_gpipes():
    def best(make, n, latency):
        seconds = {m: (0.5 + 20 / m, 0.5 + 40 / m, latency) for m in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)}
        return solved.best_m(make, seconds, n)

    for make, latency in ((solved.gpipe, 0), (solved.gpipe, 3), (solved.turn_early, 0)):
        assert [best(make, n, latency) for n in (2, 32)] == [8, 48]
    assert [best(solved.turn_early, n, 3) for n in (2, 32)] == [4, 16]
