"""Simulators as a reader of notebook 08 may write them: right ones in other words, wrong ones, deadlocks told."""

import numpy as np
import pytest
from torch import tensor

from support.kit.mistakes import edited
from support.n08 import checks as n08
from support.n08 import simulate_trials, solved
from support.n08.runs import needed_by


def recursive(orders, costs, message=0):
    """Another way to write it: each end is asked of the ends that it needs; a ring is found by being asked twice."""
    ends = {}
    asked = set()
    last = len(orders) - 1

    def end(kind, i, j):
        if (kind, i, j) not in ends:
            if (kind, i, j) in asked or (kind, i) not in orders[j]:
                waiting = [next((t for t in order if (*t, k) not in ends), "") for k, order in enumerate(orders)]
                raise RuntimeError(f"deadlock at {waiting}")
            asked.add((kind, i, j))
            place = orders[j].index((kind, i))
            free = end(*orders[j][place - 1], j) if place else 0
            if kind == "F":
                there = end("F", i, j - 1) + message if j else 0
            elif kind == "B":
                there = end("F", i, j) if j == last else end("B", i, j + 1) + message
            else:
                there = 0
            ends[kind, i, j] = max(free, there) + costs[kind][j]
        return ends[kind, i, j]

    stuck = None
    for j, order in enumerate(orders):
        for task in order:
            try:
                end(*task, j)
            except RuntimeError as error:
                asked.clear()
                stuck = error
                break
    if stuck:
        waiting = [next((t for t in order if (*t, j) not in ends), "") for j, order in enumerate(orders)]
        raise RuntimeError(f"deadlock at {waiting}")
    return ends


def by_events(orders, costs, message=0):
    """A third way: counters instead of copies, one task at a time, what arrives is written down for its reader."""
    done = [0] * len(orders)
    free = [0] * len(orders)
    last = len(orders) - 1
    mail = {("F", i, 0): 0 for order in orders for _, i in order}
    ends = {}
    while True:
        for j, order in enumerate(orders):
            if done[j] < len(order):
                kind, i = order[done[j]]
                if kind not in ("F", "B") or (kind, i, j) in mail:
                    break
        else:
            left = [f"{orders[j][done[j]]}" for j in range(len(orders)) if done[j] < len(orders[j])]
            if left:
                raise RuntimeError(f"they wait for ever: {left}")
            return ends
        free[j] = ends[kind, i, j] = max(free[j], mail.get((kind, i, j), 0)) + costs[kind][j]
        done[j] += 1
        if kind == "F":
            mail[("B", i, j) if j == last else ("F", i, j + 1)] = free[j] + (0 if j == last else message)
        elif kind == "B" and j:
            mail["B", i, j - 1] = free[j] + message


def test_other_ways_to_write_simulate_pass():
    assert n08.check_simulate(recursive)
    assert n08.check_simulate(by_events)
    assert n08.check_simulate(lambda *given: {t: np.float32(end) for t, end in solved.simulate(*given).items()})


def emptying(restore):
    """Return a simulate that pops from the caller's orders, and then puts back as `restore(orders, saved)` does."""
    popping = edited(solved.simulate, ("[list(order) for order in orders]", "orders"))

    def simulate(orders, costs, message=0):
        saved = [list(order) for order in orders]
        ends = popping(orders, costs, message)
        restore(orders, saved)
        return ends

    return simulate


def rows_of_its_own(orders, saved):
    orders[:] = saved


def in_place(orders, saved):
    for order, before in zip(orders, saved, strict=True):
        order[:] = before


@pytest.mark.parametrize("restore", [rows_of_its_own, in_place], ids=["but in other rows", "but not in a deadlock"])
def test_orders_that_are_put_back_are_the_callers_rows_again_also_behind_a_deadlock(restore):
    verdict = n08.check_simulate(emptying(restore))
    assert verdict.status == "wrong"
    assert "your function changes `orders`, which the caller needs again" in verdict.message
    assert ("can never finish" in verdict.message) is (restore is in_place)


def test_a_call_without_end_is_not_told_what_its_own_error_says():
    def naive(orders, costs, message=0):
        ends = {}

        def end(kind, i, j):
            if (kind, i, j) not in ends:
                place = orders[j].index((kind, i))
                free = end(*orders[j][place - 1], j) if place else 0
                need = needed_by(kind, i, j, len(orders))
                there = end(*need) + message * (need[2] != j) if need else 0
                ends[kind, i, j] = max(free, there) + costs[kind][j]
            return ends[kind, i, j]

        return {(*task, j): end(*task, j) for j, order in enumerate(orders) for task in order}

    verdict = n08.check_simulate(naive)
    assert verdict.status == "wrong"
    assert "RecursionError came instead of RuntimeError" in verdict.message


def test_the_law_of_the_clock_is_told_from_ranks_that_take_turns():
    by_clock = edited(
        solved.simulate,
        ("        for j in able:", "        now = max(free)\n        for j in able:"),
        ("max(free[j],", "max(now,"),
    )
    assert "That is the law of the clock" in n08.check_simulate(by_clock).message
    in_turns = edited(
        solved.simulate,
        ("free, left = [0.0] * len(orders), ", "free, left = 0.0, "),
        ("free[j] = ends", "free = ends"),
        ("max(free[j],", "max(free,"),
    )
    verdict = n08.check_simulate(in_turns)
    assert "each has a free time of its own" in verdict.message
    assert "law of the clock" not in verdict.message


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (edited(solved.simulate, ("[list(order) for order in orders]", "orders")), "changes `orders`"),
        (edited(solved.simulate, ("return ends", "return {t: round(ends[t], 6) for t in ends}")), "expected 1.3e-10"),
        (edited(solved.simulate, ("if not able:", "if False:")), "TimeoutError came instead of RuntimeError"),
        (edited(solved.simulate, ('", ".join(waiting)', '""')), "rank 0 waits with B0"),
        (edited(solved.simulate, ('", ".join(waiting)', "waiting[0]")), "rank 1 waits with F2"),
        (
            edited(solved.simulate, ("ends.get((kind, i, j - 1", "ends.get((kind, j - 1, i")),
            "these orders can run: all is done at",
        ),
        (lambda orders, costs, message=0: [], "not a dictionary"),
        (lambda orders, costs, message=0: None, "for rank 0: F0: your function returned None (is a `return` missing?)"),
        (lambda orders, costs, message=0: {}, "F0 on rank 0 has no end"),
        (lambda orders, costs, message=0: costs["B"] and solved.simulate(orders, costs, message), "KeyError"),
        (lambda *given: solved.simulate(*given) | {"end": 3}, "an end for 'end', which is no task"),
        (lambda *given: {key: str(end) for key, end in solved.simulate(*given).items()}, "expected a number"),
        (lambda *given: {key: tensor(end) for key, end in solved.simulate(*given).items()}, "expected a number"),
        (lambda *given: {key: end * float("nan") for key, end in solved.simulate(*given).items()}, "ends at nan"),
        (
            lambda o, costs, *more: [solved.simulate(o, costs, *more), costs.clear()][0],
            "for rank 0: F0: your function changes `costs`",
        ),
        (edited(solved.simulate, ("max(free[j], arrival(kind, i, j))", "free[j] + arrival(kind, i, j)")), "ends at"),
        (
            edited(solved.simulate, ("    return ends", "    return {t: round(end, 2) for t, end in ends.items()}")),
            "ends at",
        ),
    ],
)
def test_a_wrong_simulate_is_told_what_is_wrong(wrong, says):
    verdict = n08.check_simulate(wrong)
    assert verdict.status == "wrong"
    assert says in verdict.message


@pytest.mark.parametrize("left", ["any(map(len, left))", "any(o for o in left)", "not all(not o for o in left)"])
def test_a_simulate_that_never_stops_is_ended_also_while_a_generator_of_its_loop_is_closed(left):
    endless = edited(solved.simulate, ("while any(left):", f"while {left}:"), ("if not able:", "if False:"))
    verdict = n08.check_simulate(endless)
    assert verdict.status == "wrong"
    assert "If a whole round runs nothing, nothing ever will" in verdict.message


def in_rounds(count):
    """Return a simulate that visits each rank so many times, and each time goes as far as it can."""

    def simulate(orders, costs, message=0):
        ends = {}
        free = [0] * len(orders)
        done = [0] * len(orders)
        for _ in range(count(orders)):
            for j, order in enumerate(orders):
                while done[j] < len(order):
                    kind, i = order[done[j]]
                    need = needed_by(kind, i, j, len(orders))
                    if need is not None and need not in ends:
                        break
                    there = 0 if need is None else ends[need]
                    if need is not None and need[2] != j:
                        there += message
                    free[j] = ends[kind, i, j] = max(free[j], there) + costs[kind][j]
                    done[j] += 1
        waiting = [f"rank {j}: {order[done[j]]}" for j, order in enumerate(orders) if done[j] < len(order)]
        if waiting:
            raise RuntimeError(", ".join(waiting))
        return ends

    return simulate


def test_as_many_rounds_as_there_are_tasks_are_enough_and_a_number_that_orders_can_exceed_is_not():
    assert n08.check_simulate(in_rounds(lambda orders: sum(map(len, orders)) + 1))
    for count in (
        lambda orders: 2 * len(orders),
        len,
        lambda orders: max(map(len, orders)),
        lambda orders: len(orders) + len(orders[0]),
        lambda orders: 1,
        lambda orders: 10,
        lambda orders: 50,
        lambda orders: 90,
    ):
        verdict = n08.check_simulate(in_rounds(count))
        assert verdict.status == "wrong"
        assert "these orders can run: all is done at" in verdict.message
        assert "key" not in verdict.message
    assert "stop when a round has done nothing" in n08.check_simulate(in_rounds(lambda orders: 2 * len(orders))).message
    assert "ask there, and ask again" in n08.check_simulate(in_rounds(lambda orders: 1)).message


def test_who_asks_another_rank_for_the_gradient_round_after_round_is_not_told_that_one_visit_is_too_few():
    for other in ("(kind, i, j - 1)", '(kind, i + (kind == "B"), j - (kind == "F"))'):
        asked = edited(solved.simulate, ('(kind, i, j - 1 if kind == "F" else j + 1)', other))
        verdict = n08.check_simulate(asked)
        assert "these orders can run: all is done at" in verdict.message
        assert "visit" not in verdict.message


def test_a_task_of_another_kind_stands_anywhere_and_a_message_travels_after_what_is_needed_has_ended():
    like_a_forward = edited(
        solved.simulate,
        ('kind not in "FB" or (kind == "F" and j == 0)', 'kind != "B" and j == 0'),
        ("ends.get((kind, i, j - 1 if", 'ends.get((kind if kind == "B" else "F", i, j + 1 if'),
        ('kind == "F" else j + 1)', 'kind == "B" else j - 1)'),
    )
    verdict = n08.check_simulate(like_a_forward)
    assert verdict.status == "wrong"
    assert "R1 on rank 1 ends at 6, expected 1" in verdict.message
    only_r_is_other = edited(
        solved.simulate,
        ('kind not in "FB" or (kind == "F" and j == 0)', 'kind == "R" or (kind == "F" and j == 0)'),
        ('if kind == "B" and j == len(orders) - 1', 'if kind != "F" and j == len(orders) - 1'),
        ("ends.get((kind, i, j - 1 if", 'ends.get((kind if kind == "F" else "B", i, j - 1 if'),
    )
    verdict = n08.check_simulate(only_r_is_other)
    assert verdict.status == "wrong"
    assert "W1" in verdict.message
    for late in ("message", "message * (j > 0)", "message * (j < len(orders) - 1)"):
        waits = edited(solved.simulate, ("return 0.0", f'return 0.0 if kind == "F" else {late}'))
        assert n08.check_simulate(waits).status == "wrong", late
    waits_for_r = edited(
        solved.simulate,
        ("if order and arrival", 'if order and not (order[0][0] == "B" and ("R", order[0][1]) in order) and arrival'),
    )
    verdict = n08.check_simulate(waits_for_r)
    assert verdict.status == "wrong"
    assert "But these orders can run" in verdict.message
    only_while_it_waits = edited(
        solved.simulate,
        (
            "max(free[j], arrival(kind, i, j))",
            "(arrival(kind, i, j) if arrival(kind, i, j) - message > free[j] else free[j])",
        ),
    )
    verdict = n08.check_simulate(only_while_it_waits)
    assert verdict.status == "wrong"
    assert "its message may still be on its way" in verdict.message


def test_the_number_of_ranks_may_be_read_from_the_costs_and_a_rank_may_have_no_task():
    by_costs = edited(solved.simulate, ("j == len(orders) - 1", 'j == len(costs["F"]) - 1'))
    assert n08.check_simulate(by_costs)
    first_task = edited(
        solved.simulate, ("    while any(left):", "    first = [o[0] for o in left]\n    while any(left):")
    )
    assert "IndexError" in n08.check_simulate(first_task).message
    stops_late = edited(
        solved.simulate,
        ("    while any(left):", "    while True:"),
        ("costs[kind][j]\n    return ends", "costs[kind][j]\n        if not any(left):\n            return ends"),
    )
    verdict = n08.check_simulate(stops_late)
    assert verdict.status == "wrong"
    assert "rank 0: no task, rank 1: no task: your code raised RuntimeError" in verdict.message


@pytest.mark.parametrize(
    "short",
    [
        lambda orders, *rest: solved.simulate([order for order in orders if order], *rest),
        edited(solved.simulate, ('kind == "F" and j == 0', 'kind == "F" and not any(orders[:j])')),
        lambda orders, *rest: solved.simulate(
            orders[: max((j for j, order in enumerate(orders) if order), default=-1) + 1], *rest
        ),
        edited(
            solved.simulate,
            (
                'if kind == "B" and j == len(orders) - 1',
                'if kind == "B" and (j == len(orders) - 1 or short(orders, i, j))',
            ),
            names={"short": lambda orders, i, j: ("B", i) not in orders[j + 1]},
        ),
    ],
    ids=[
        "ranks without tasks left out",
        "the first with tasks is the first",
        "the last with tasks is the last",
        "no gradient, none needed",
    ],
)
def test_what_no_rank_ever_makes_is_waited_for_and_ranks_keep_their_numbers(short):
    verdict = n08.check_simulate(short)
    assert verdict.status == "wrong"
    assert "no task" in verdict.message
    assert "can never finish" in verdict.message


@pytest.mark.parametrize(
    "own",
    [
        'ends.get(("F", i, j - 1) if j else ("F", i, j), inf)',
        'ends.get(("F", i, j), inf if ("F", i) in orders[j] else 0)',
        'ends.get(("F", i, j), inf if ("F", i) not in orders[j] else 0)',
    ],
    ids=["the forward of the rank before", "a forward that never comes", "a forward that stands behind it"],
)
def test_a_backward_of_the_last_rank_waits_for_that_ranks_own_forward(own):
    verdict = n08.check_simulate(edited(solved.simulate, ('ends.get(("F", i, j), inf)', own)))
    assert verdict.status == "wrong"
    assert "can never finish" in verdict.message


@pytest.mark.costly
def test_going_through_all_orders_once_for_each_task_is_slow_and_right():
    def by_sweeps(orders, costs, message=0):
        ends = {}
        tasks = sum(map(len, orders))
        for _ in range(tasks + 1):
            for j, order in enumerate(orders):
                free = 0
                for kind, i in order:
                    need = needed_by(kind, i, j, len(orders))
                    if need and need not in ends:
                        break
                    there = ends[need] + message * (need[2] != j) if need else 0
                    free = ends[kind, i, j] = max(free, there) + costs[kind][j]
        if len(ends) < tasks:
            raise RuntimeError([next((t for t in o if (*t, j) not in ends), "") for j, o in enumerate(orders)])
        return ends

    assert n08.check_simulate(by_sweeps)


def test_an_end_at_zero_is_an_end():
    falsy = edited(solved.simulate, ("return ends.get(", "return (ends.get("), (", inf)", ", 0) or inf)"))
    assert "An end at 0 is an end, too" in n08.check_simulate(falsy).message


def test_a_deadlock_is_named_by_what_waits_on_each_rank_and_by_no_other_task():
    def worded(words):
        return edited(solved.simulate, ('"deadlock: " + ", ".join(waiting)', words), names={"needed": needed_by})

    ring = '", ".join(f"rank {j}: {o[0]} needs {needed(*o[0], j, len(orders))}" for j, o in enumerate(left) if o)'
    assert n08.check_simulate(worded('" and ".join(f"{o[0][0]} {o[0][1]} on {j}" for j, o in enumerate(left) if o)'))
    assert n08.check_simulate(worded('" ".join(f"{o[0][0]}_{o[0][1]}" for o in left if o)'))
    assert n08.check_simulate(worded('"These are no orders of 1F1B: " + ", ".join(waiting)'))
    behind = '" ".join(f"{kind}{i}" for o in left for kind, i in o)'
    done = '", ".join([*(f"{kind}{i}" for kind, i, _ in ends), *waiting])'  # found waiting once, and done since
    at_its_end = '", ".join([*waiting, *(f"{o[-1][0]}{o[-1][1]}" for o in orders if o)])'
    for words in (behind, done, at_its_end, ring):
        verdict = n08.check_simulate(worded(words))
        assert verdict.status == "wrong"
        assert "no rank waits there" in verdict.message
        assert "stands behind" not in verdict.message
    stale = {
        "    while any(left):": "    found = {}\n    while any(left):",
        "        if not able:": "        found |= {j: o[0] for j, o in enumerate(left) if o and j not in able}\n"
        "        if not able:",
        '", ".join(waiting)': '" ".join(f"{kind}{i}" for kind, i in found.values())',
    }
    verdict = n08.check_simulate(edited(solved.simulate, *stale.items()))
    assert verdict.status == "wrong"
    assert "It names B0, too: no rank waits there" in verdict.message
    for two in ('f"{waiting[0]} and {waiting[-1]}"', '" and ".join(waiting[:2])'):
        verdict = n08.check_simulate(worded(two))
        assert verdict.status == "wrong"
        assert "Name the task at which each rank waits" in verdict.message


def test_a_sum_in_place_of_the_later_time_is_not_told_from_where_a_gradient_comes():
    added = edited(solved.simulate, ("max(free[j], arrival(kind, i, j))", "free[j] + arrival(kind, i, j)"))
    assert not any(sentence in n08.check_simulate(added).message for sentence in n08.check_simulate.mistakes)


def test_messages_are_free_where_none_is_said():
    def without_default(orders, costs, message):
        return solved.simulate(orders, costs, message)

    verdict = n08.check_simulate(without_default)
    assert verdict.status == "wrong"
    assert "message" in verdict.message
    dear = n08.check_simulate(lambda orders, costs, message=1: solved.simulate(orders, costs, message))
    assert dear.status == "wrong"
    assert "F0 on rank 1 ends at 3, expected 2" in dear.message


def unaware_on_one_rank(orders, costs, message=0):
    """Take one rank for one that never waits."""
    if len(orders) > 1:
        return solved.simulate(orders, costs, message)
    ends = {}
    free = 0
    for kind, i in orders[0]:
        free = ends[kind, i, 0] = free + costs[kind][0]
    return ends


def test_a_rank_that_is_alone_can_be_stuck_too():
    verdict = n08.check_simulate(unaware_on_one_rank)
    assert verdict.status == "wrong"
    assert "rank 0: B0 F0 can never finish, and your code returned 2 ends" in verdict.message


def test_the_praise_counts_every_run_and_deadlock():
    verdict = n08.check_simulate(solved.simulate)
    runs = len([*simulate_trials._tries()])
    assert f"in {runs} runs of GPipe, 1F1B and others, and {len(simulate_trials._STUCK)} deadlocks" in verdict.message
