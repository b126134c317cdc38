"""What is particular about the checks of notebook 08; what all exercises have in common is in test_detectors."""

import itertools

import pytest

from lib import schedules
from lib.pipeline import clock_cycles
from lib.schedules import validate
from support.kit.mistakes import edited
from support.n08 import checks as n08
from support.n08 import solved
from support.n08.runs import as_schedule, needed_by, never_waiting, run_of
from support.n08.trials import orders_of

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


@pytest.mark.parametrize("message", [0, 0.1, 1, 1.5, 2, 10])
@pytest.mark.parametrize(("m", "n"), [(8, 4), (16, 3), (5, 2)])
def test_ranks_that_never_wait_do_not_wait_with_messages_either_and_are_as_fast_as_gpipe(m, n, message):
    orders = never_waiting(m, n, message)
    costs = {"F": [1] * n, "B": [2] * n}
    run = run_of(orders, solved.simulate, message=message)
    for wait in run.waits:
        begun = {span.label for span in run.trace.only(lane=run.trace.lanes[wait.rank]) if span.start < wait.end}
        for kind, i in orders[wait.rank]:
            needed = needed_by(kind, i, wait.rank, n)
            if f"{wait.rank}{kind}{i}" not in begun and needed:
                (end,) = (span.end for span in run.trace if span.label == f"{needed[2]}{needed[0]}{needed[1]}")
                travel = message if needed[2] != wait.rank else 0
                assert end + travel >= wait.end - 1e-9
    assert max(solved.simulate(orders, costs, message).values()) == pytest.approx(run.trace.end)
    assert run.trace.end == pytest.approx(max(solved.simulate(solved.gpipe(m, n), costs, message).values()))


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
        (
            lambda m, n: [[(k - j, j) for j in range(n) if 0 <= k - j < m] for k in range(m * n + 5)],
            "after 5 clocks, and",
        ),
        (lambda m, n: [[], *solved.clock_cycles(m, n)], "(0, 0) waits until clock 1, and could run in clock 0"),
        (lambda m, n: [*solved.clock_cycles(m, n)[:-1], solved.clock_cycles(m, n)[-1] * 2], "runs twice"),
        (lambda m, n: [[(j, j) for j in range(n)]], "its input, from (1, 0)"),
        (lambda m, n: [[(i, 0) for i in range(m)], *solved.clock_cycles(m, n)], "runs twice"),
        (lambda m, n: m + n - 1, "a list of clocks is expected, not 5"),
        (lambda m, n: {(i, j): i + j for i in range(m) for j in range(n)}, "expected, not {(0, 0): 0"),
        (lambda m, n: [[f"{i}{j}" for i, j in clock] for clock in solved.clock_cycles(m, n)], "no list of pairs"),
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
    assert "57 (that is the share that works);" in n08.guess_idle(57, 4, 4).message


def test_famous_wrong_guesses_are_told_where_they_come_from():
    assert "12 (that" not in n08.guess_recomputing(12, 16, 4).message
    assert "waits for its gradient" in n08.guess_recomputing("16 %", 16, 4).message
    assert "twice the micro-batches" in n08.guess_same_devices(60, 2, 16).message
    assert "30 (as before: almost)" in n08.guess_same_devices(30, 2, 16).message
    assert "all of them are held at once" in n08.guess_fitting(7, (1, 2, 4, 8, 16, 32, 64, 128), 4).message
    assert "that keeps the bubble" in n08.guess_growth(31, 2, 32).message
    assert "that is it" in n08.guess_growth(6, 2, 32).message
    assert "not the same micro-batches" in n08.guess_right_letters(4, ["a01", "d01", "d01", "d01"]).message


def test_a_count_that_is_no_whole_number_is_not_taken_for_the_next_one():
    assert "You said 2.4;" in n08.guess_right_letters(2.4, ["a01", "d01", "d01", "d01"]).message
    assert "You said 0.4;" in n08.guess_fitting(0.4, (1, 2, 4), 4).message


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


def test_a_task_of_another_kind_holds_nothing_and_lets_nothing_go():
    def adding(orders, nothing=""):
        peaks = []
        for order in orders:
            held = set()
            peak = 0
            for kind, i in order:
                if kind not in nothing:
                    held = held - {i} if kind == "B" else held | {i}
                peak = max(peak, len(held))
            peaks.append(peak)
        return peaks

    def only_w_is_other(orders):
        return adding(orders, nothing="W")

    def only_r_is_other(orders):
        peaks = []
        for order in orders:
            steps = [{"F": 1, "R": 0}.get(kind, -1) for kind, _ in order]
            peaks.append(max(itertools.accumulate(steps), default=0))
        return peaks

    for wrong in (adding, only_w_is_other, only_r_is_other):
        verdict = n08.check_live(wrong)
        assert verdict.status == "wrong"
    assert "('W', 0)" in n08.check_live(adding).message


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
    for not_listed, says in ((iter, "list_iterator"), (lambda peaks: dict(enumerate(peaks)).values(), "dict_values")):
        verdict = n08.check_live(lambda orders, made=not_listed: made(by_sums(orders)))
        assert verdict.status == "wrong"
        assert f"got no list: {says}" in verdict.message


def test_a_recompute_in_an_order_is_not_told_that_it_should_be_a_pair():
    row = [("F", 0), ("R", 0), ("B", 0)]
    for verdict in (n08.check_two_held([row] * 3), n08.check_turn_early(lambda m, n: [row] * n)):
        assert verdict.status == "wrong"
        assert "rank 0 has ('R', 0), and F and B are the only kinds" in verdict.message


# ---- two at most


@pytest.mark.parametrize(
    "rows",
    [
        ("F0 F1 F2 B0 B1 B2 F3 B3", "F0 F1 B0 B1 F2 F3 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3"),
        ("F0 F1 F2 F3 B0 B1 B2 B3",) * 3,
    ],
    ids=["three on rank 0, and not 1F1B's", "four on rank 0, and not GPipe's"],
)
def test_orders_that_hold_too_many_are_told_so_and_not_whose_they_are(rows):
    verdict = n08.check_two_held(orders_of(*rows))
    assert verdict.status == "wrong"
    assert verdict.message.endswith("activations, two are allowed.")


def test_orders_of_exercise_4_are_known_as_such():
    assert "your orders of exercise 4" in n08.check_two_held(solved.turn_early(4, 3)).message
    assert "GPipe's orders" in n08.check_two_held(solved.gpipe(4, 3)).message


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


@pytest.mark.costly
def test_the_name_of_an_m_is_told_from_the_m():
    verdict = n08.check_best_m(lambda *given: str(solved.best_m(*given)))
    assert "expected 2, got '2'" in verdict.message


@pytest.mark.costly
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


def chosen(read, took=max):
    """Return a best_m that reads seconds[m] as read(m, times) does, and takes a step for took(all ends)."""

    def best_m(make, seconds, n, memory=1):
        steps = {}
        for m in sorted(seconds):
            forward, backward, message = read(m, seconds[m])
            orders = make(m, n)
            if solved.live_activations(orders)[0] <= memory * m:  # in orders that can run rank 0 holds most
                ends = solved.simulate(orders, {"F": [forward] * n, "B": [backward] * n}, message)
                steps[m] = took(ends.values())
        return min(steps, key=steps.get, default=None)

    return best_m


@pytest.mark.parametrize("more", [0.005, 0.03])
def test_what_does_not_quite_fit_does_not_fit(more):
    lenient = edited(solved.best_m, ("<= memory * m", f"<= (memory + {more}) * m"))
    verdict = n08.check_best_m(lenient)
    assert verdict.status == "wrong"
    assert "memory = 0.1" in verdict.message or "memory = 0.2" in verdict.message


def test_of_equals_it_is_the_smallest_m_and_not_who_holds_the_smallest_share():
    by_share = "lambda m: (steps[m], live_activations(make(m, n))[0] / m)"
    verdict = n08.check_best_m(edited(solved.best_m, ("lambda m: steps[m]", by_share)))
    assert "expected 2, got 4" in verdict.message


@pytest.mark.parametrize(
    "wrong",
    [
        lambda took: round(took, 2),
        lambda took: took or 1e15,
        lambda took: round(took, 7),
        lambda took: float(f"{took:.3g}"),
        lambda took: min(took, 1e9),
    ],
    ids=["two digits", "0 is none", "seven digits", "three figures", "1e9 is for ever"],
)
def test_a_step_is_shortest_by_a_little_in_microseconds_in_nanoseconds_and_at_zero(wrong):
    verdict = n08.check_best_m(chosen(lambda m, times: times, took=lambda ends: wrong(max(ends))))
    assert verdict.status == "wrong"
    assert "memory = " in verdict.message


def test_a_rank_may_hold_more_than_it_goes_ahead():
    ahead = '[kind for kind, _ in [*orders[0], ("B", 0)]].index("B")'
    verdict = n08.check_best_m(edited(solved.best_m, ("max(live_activations(orders))", ahead)))
    assert "for micro-batch 0 there and back, then all others, seconds = " in verdict.message


def test_no_memory_is_not_all_of_it():
    falsy = edited(solved.best_m, ("<= memory * m", "<= (memory or 1) * m"))
    assert "memory = 0: expected None" in n08.check_best_m(falsy).message


def test_memory_may_be_left_out():
    verdict = n08.check_best_m(lambda make, seconds, n, memory: solved.best_m(make, seconds, n, memory))
    assert verdict.status == "wrong"
    assert "memory" in verdict.message


@pytest.mark.parametrize("factor", [0.99, 1.01])
def test_a_message_that_counts_more_or_less_than_once_is_noticed(factor):
    verdict = n08.check_best_m(chosen(lambda m, times: (*times[:2], factor * times[2])))
    assert "for GPipe, seconds = {1: (1.0, 1.0, 1.0), 2: (1.0, " in verdict.message


def test_times_that_are_read_wrongly_or_added_up_are_told_so_and_not_that_ranks_wait():
    assert n08.check_best_m(chosen(lambda m, times: times))
    last_end = "The last end is the whole step: multiply nothing, and add up no ends."
    for wrong, says in (
        (chosen(lambda m, times: (times[1], times[0], times[2])), "a forward, a backward and a message, in this order"),
        (chosen(lambda m, times: [m * each for each in times]), last_end),
        (chosen(lambda m, times: times, took=sum), last_end),
        (chosen(lambda m, times: [each / m for each in times]), "Divide nothing by m"),
    ):
        verdict = n08.check_best_m(wrong)
        assert verdict.status == "wrong"
        assert says in verdict.message
        assert "it also waits" not in verdict.message
