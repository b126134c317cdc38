"""What is particular about the checks of notebook 08; what all exercises have in common is in test_detectors."""

import itertools
from functools import cache

import pytest

from lib import schedules
from lib.pipeline import clock_cycles
from lib.schedules import ScheduleError, validate
from support.n08 import checks as n08
from support.n08 import solved
from support.n08.runs import as_schedule, never_waiting, run_of

SIZES = list(itertools.product(range(1, 8), range(1, 6)))


def test_what_the_reader_writes_equals_lib_in_all_small_sizes_costs_and_messages():
    for m, n in SIZES:
        assert [sorted(c) for c in clock_cycles(m, n)] == [sorted(c) for c in solved.clock_cycles(m, n)]
        theirs = schedules.one_f_one_b(m, n)
        ours = solved.turn_early(m, n)
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
        orders = solved.turn_early(m, n)
        run = run_of(orders, solved.simulate, message=0.5)
        theirs = schedules.waits_for(as_schedule(orders), communicate=0.5)
        assert [(w.rank, w.start, w.end, w.needed) for w in run.waits] == [
            (idle.rank, idle.start, idle.end, str(idle.needed or "")) for idle in theirs
        ]
    orders = never_waiting(8, 4)
    validate(as_schedule(orders))
    assert max(solved.simulate(orders, {"F": [1] * 4, "B": [2] * 4}).values()) == 33
    assert solved.live_activations(orders) == [8, 7, 4, 1]


def test_other_ways_to_write_clock_cycles_pass_and_an_endless_one_gets_an_answer():
    def by_sum(m, n):
        return ([[k - j, j] for j in range(n - 1, -1, -1) if 0 <= k - j < m] for k in range(m + n - 1))

    def by_needs(m, n):
        done = {}
        for i, j in itertools.product(range(m), range(n)):
            done[i, j] = 1 + max(done.get((i - 1, j), -1), done.get((i, j - 1), -1))
        return [[pair for pair, k in done.items() if k == clock] for clock in range(max(done.values()) + 1)]

    assert n08.check_clock_cycles(by_sum)
    assert n08.check_clock_cycles(by_needs)
    flat = n08.check_clock_cycles(lambda m, n: [pair for clock in by_sum(m, n) for pair in clock])
    assert "clock 0 is no list of pairs (i, j)" in flat.message
    endless = n08.check_clock_cycles(lambda m, n: iter(lambda: [(0, 0)], None))
    assert "(0, 0) runs twice, in clock 0 and in clock 1" in endless.message


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda m, n: [[(k - j, j) for j in range(n) if 0 <= k - j < m] for k in range(m + n)], "all is done after 5"),
        (lambda m, n: [[], *solved.clock_cycles(m, n)], "(0, 0) waits until clock 1, and could run in clock 0"),
        (lambda m, n: [*solved.clock_cycles(m, n)[:-1], solved.clock_cycles(m, n)[-1] * 2], "runs twice"),
        (lambda m, n: [[(j, j) for j in range(n)]], "its input, from (1, 0)"),
        (lambda m, n: [[(i, 0) for i in range(m)], *solved.clock_cycles(m, n)], "runs twice"),
        (lambda m, n: m + n - 1, "a list of clocks is expected, not 5"),
        (lambda m, n: {(i, j): i + j for i in range(m) for j in range(n)}, "no list of pairs"),
    ],
)
def test_a_wrong_clock_table_is_told_the_promise_that_it_breaks(wrong, says):
    verdict = n08.check_clock_cycles(wrong)
    assert verdict.status == "wrong"
    assert says in verdict.message or "never runs" in verdict.message


def test_one_pair_per_clock_is_not_told_that_a_pair_never_runs():
    one_per_clock = n08.check_clock_cycles(lambda m, n: [[(i, j)] for i in range(m) for j in range(n)])
    assert "(2, 0) has not run by clock 5" in one_per_clock.message
    assert "never runs" not in one_per_clock.message
    assert "never runs" in n08.check_clock_cycles(lambda m, n: solved.clock_cycles(m, n)[:-1]).message


def test_a_guess_of_what_is_held_gets_its_reason_and_an_idle_share_may_be_written_as_a_share():
    assert "3 (too few under way: the step gets longer)" in n08.guess_held(3, 8, 4).message
    assert "5 (that would do" in n08.guess_held(5, 8, 4).message
    for said in (43, 0.4286, 3 / 7, "43 %", "42.9%"):
        assert "that is it" in n08.guess_idle(said, 4, 4).message
    for said in (75, 0.75, 57, None, "a lot"):
        assert "that is it" not in n08.guess_idle(said, 4, 4).message


def test_famous_wrong_guesses_are_told_where_they_come_from():
    assert "12 (that" not in n08.guess_recomputing(12, 16, 4).message
    assert "waits for its gradient" in n08.guess_recomputing("16 %", 16, 4).message
    assert "twice the micro-batches" in n08.guess_same_devices(60, 2, 16).message
    assert "all of them are held at once" in n08.guess_fitting(7, (1, 2, 4, 8, 16, 32, 64, 128), 4).message
    assert "that keeps the bubble" in n08.guess_growth(31, 2, 32).message
    assert "that is it" in n08.guess_growth(6, 2, 32).message
    assert "not the same micro-batches" in n08.guess_right_letters(4, ["a01", "d01", "d01", "d01"]).message


# ---- what is held


def longest_run(orders):
    return [max(map(len, "".join(kind for kind, _ in order).split("B"))) for order in orders]


def test_the_longest_run_of_forwards_is_not_told_that_it_counts_those_before_the_first_backward():
    verdict = n08.check_live(longest_run)
    assert "That is the longest run of forwards" in verdict.message
    assert "before the first backward" not in verdict.message


def counted_by(change):
    """Return a count that follows `change(kind, held)`."""

    def live(orders):
        peaks = []
        for order in orders:
            held = peak = 0
            for kind, _ in order:
                held = change(kind, held)
                peak = max(peak, held)
            peaks.append(peak)
        return peaks

    return live


def indices(orders):
    peaks = []
    for order in orders:
        last = {"F": -1, "B": -1}
        peak = 0
        for kind, i in order:
            last[kind] = i
            peak = max(peak, last["F"] - last["B"])
        peaks.append(peak)
    return peaks


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (indices, "number says nothing about how many are held"),
        (counted_by(lambda kind, held: held + (1 if kind == "F" else -1)), "A recompute lets nothing go"),
        (counted_by(lambda kind, held: held + (kind != "B") - (kind == "B")), "A recompute is no new activation"),
        (
            lambda orders: [max(itertools.accumulate((k == "F") - (k == "B") for k, _ in o)) for o in orders],
            "ValueError",
        ),
    ],
)
def test_numbers_of_micro_batches_recomputes_and_empty_orders_are_told_from_what_is_held(wrong, says):
    verdict = n08.check_live(wrong)
    assert verdict.status == "wrong"
    assert says in verdict.message


def test_other_counts_of_what_is_held_pass():
    def by_sets(orders):
        peaks = []
        for order in orders:
            here = set()
            most = 0
            for kind, i in order:
                if kind == "F":
                    here.add(i)
                elif kind == "B":
                    here.discard(i)
                most = max(most, len(here))
            peaks.append(most)
        return peaks

    def by_sums(orders):
        signs = [[(kind == "F") - (kind == "B") for kind, _ in order] for order in orders]
        return [max(itertools.accumulate(row), default=0) for row in signs]

    assert n08.check_live(by_sets)
    assert n08.check_live(by_sums)
    assert n08.check_live(lambda them: tuple(by_sums(them)))
    assert "can be read only once" in n08.check_live(lambda orders: iter(by_sums(orders))).message


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


def test_other_ways_to_turn_early_pass_also_as_tuples():
    assert n08.check_turn_early(by_megatron)
    assert n08.check_turn_early(by_limit)
    assert n08.check_turn_early(lambda m, n: tuple(map(tuple, by_limit(m, n))))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda m, n: [[f"{kind}{i}" for kind, i in row] for row in by_limit(m, n)], "a task is a pair"),
        (lambda m, n: by_limit(m, n)[0], "there should be an order for each of 1 ranks, and there are 4"),
        (lambda m, n: dict(enumerate(by_limit(m, n))), "not dict"),
        (lambda m, n: None, "returned None"),
        (lambda m, n: never_waiting(m, n), "would do"),
        (lambda m, n: [row[::-1] for row in by_limit(m, n)], "sequence"),
        (lambda m, n: [row + row[-1:] for row in by_limit(m, n)], "2 times"),
        (lambda m, n: by_limit(m, n)[::-1], "wait for each other"),
        (lambda m, n: [*by_limit(m, n - 1), by_limit(m, 1)[0]] if n > 2 else by_limit(m, n), "ticks"),
    ],
)
def test_a_wrong_turn_is_told_what_it_costs_or_what_it_is_not(wrong, says):
    verdict = n08.check_turn_early(wrong)
    assert verdict.status == "wrong"
    assert says in verdict.message


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
        (n08.orders_of("F0 B0 F1 B1 F2 B2 F3 B3", *["F1 B1 F0 B0 F2 B2 F3 B3"] * 2), "wait for each other"),
        (7, "not int"),
    ],
)
def test_other_orders_of_two_are_told_what_they_lack(wrong, says):
    verdict = n08.check_two_held(wrong)
    assert verdict.status == "wrong"
    assert says in verdict.message


# ---- the best m


def test_other_ways_to_choose_m_pass_and_parameters_may_have_other_names():
    def by_list(orders_of, times, ranks, share=1):
        fitting = []
        for pieces, (forward, backward, travel) in times.items():
            orders = orders_of(pieces, ranks)
            if all(held / pieces <= share for held in solved.live_activations(orders)):
                prices = {"F": ranks * [forward], "B": ranks * [backward]}
                fitting.append((max(solved.simulate(orders, prices, travel).values()), pieces))
        return min(fitting)[1] if fitting else None

    assert n08.check_best_m(by_list)
    assert n08.check_best_m(lambda *given, **named: by_list(*given, **named))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda make, seconds, n, memory=1: max(seconds),
        lambda make, seconds, n, memory=1: min(seconds),
        lambda make, seconds, n, memory=1: min(seconds, key=lambda m: abs(m - 4 * n)),
        lambda make, seconds, n, memory=1: min(seconds, key=lambda m: abs(m - n)),
        lambda make, seconds, n, memory=1: min(
            seconds, key=lambda m: (m - 1) * sum(seconds[m]) + n * sum(seconds[m]) / m
        ),
        lambda make, seconds, n, memory=1: min(seconds, key=lambda m: (m + n) * sum(seconds[m])),
    ],
)
def test_a_wrong_choice_of_m_is_told_its_case_and_nothing_about_equals(wrong):
    verdict = n08.check_best_m(wrong)
    assert verdict.status == "wrong"
    assert "memory = " in verdict.message
    assert "equals" not in verdict.message


def chosen(read):
    """Return a best_m that reads seconds[m] like this: read(m, times) gives forward, backward and message."""

    def best_m(make, seconds, n, memory=1):
        steps = {}
        for m in sorted(seconds):
            forward, backward, message = read(m, seconds[m])
            orders = make(m, n)
            if solved.live_activations(orders)[0] <= memory * m:  # in orders that can run rank 0 holds most
                steps[m] = max(solved.simulate(orders, {"F": [forward] * n, "B": [backward] * n}, message).values())
        return min(steps, key=steps.get, default=None)

    return best_m


def test_times_that_are_read_wrongly_are_told_so_and_not_that_ranks_wait():
    assert n08.check_best_m(chosen(lambda m, times: times))
    for read, says in (
        (lambda m, times: (times[1], times[0], times[2]), "a forward, a backward and a message, in this order"),
        (lambda m, times: [m * each for each in times], "don't multiply them"),
        (lambda m, times: [each / m for each in times], "don't divide them"),
    ):
        verdict = n08.check_best_m(chosen(read))
        assert verdict.status == "wrong"
        assert says in verdict.message
        assert "it also waits" not in verdict.message


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
