"""Interleaved, zero-bubble and V-shaped schedules: torch's orders, and the bubbles and peaks that they promise."""

from itertools import product
from math import ceil
from types import SimpleNamespace

import pytest
from torch.distributed.pipelining import schedules as torch_schedules

from lib import schedules as package
from lib.schedules import (
    dualpipe_v,
    eager_one_f_one_b,
    gpipe,
    interleaved_one_f_one_b,
    interleaved_zero_bubble,
    live_activations,
    looped_bfs,
    makers,
    one_f_one_b,
    simulate,
    zbv,
    zero_bubble_h1,
)
from lib.schedules.legal import ScheduleError, slotted, validate
from lib.schedules.makers import MAKERS, round_size
from lib.schedules.table import Schedule
from tests.lib.refusal import refuses
from tests.sizes import size

#: m and n: fewer micro-batches than ranks, as many, more; rounds that are even and that are not.
SIZES = size(
    suite=list(product((1, 2, 3, 4, 5, 7, 8, 10), (1, 2, 3, 4))),
    prove=list(product(range(1, 17), range(1, 8))),
)
EVERY = list(MAKERS.values())
LOOPED = [maker for maker in EVERY if maker.looped]


def keeps_a_table(torch_class):
    """torch's classes for one stage a rank have no table; of one that this torch has not, nobody knows."""
    found = getattr(torch_schedules, torch_class, torch_schedules.PipelineScheduleMulti)
    return issubclass(found, torch_schedules.PipelineScheduleMulti)


TABLED = [maker for maker in EVERY if maker.torch_class is not None and keeps_a_table(maker.torch_class)]


def of(some):
    return pytest.mark.parametrize("maker", some, ids=lambda maker: maker.name)


def arguments(maker):
    counts = (1, 2, 3) if maker.looped else (maker.fixed_stages,)
    return [(m, n, v) for m, n in SIZES if m >= maker.fewest(n) for v in counts]


def torch_orders(maker, m, n, v):
    """What torch does on each rank. It builds its table from three numbers of its stages and needs no process group."""
    schedule = getattr(torch_schedules, maker.torch_class, None)
    if schedule is None:
        pytest.skip(f"this torch has no {maker.torch_class}")
    stages = [SimpleNamespace(group_rank=0, group_size=n, num_stages=n * v, submod=None) for _ in range(v)]
    table = schedule(stages, m).pipeline_order
    # an overlapped pair holds its forward and its backward as sub_actions
    return [
        [str(one) for action in table[rank] if action for one in getattr(action, "sub_actions", 0) or [action]]
        for rank in range(n)
    ]


def idle(schedule, forward=1, backward=2, weight=1):
    """The time that a rank does nothing: makespan less the work of one rank, when all stages cost alike."""
    stages = schedule.stages // len(schedule.ranks)
    work = schedule.micro_batches * stages * (forward + backward)
    return simulate(schedule, forward, backward, weight).makespan - work


def gaps(schedule):
    trace = simulate(schedule, forward=1, backward=2, weight=1)
    return [trace.only(lane=lane).makespan - trace.busy(lane) for lane in trace.lanes]


def test_what_is_known_of_a_maker_is_so():
    for maker in EVERY:
        for m, n, v in arguments(maker):
            table = maker.table(m, n, v)
            assert (len(table.ranks), table.stages, table.micro_batches) == (n, n * v, m), maker.name
        n = 4
        if maker.fewest(n) > 1:
            refuses(ValueError, f"at least {maker.fewest(n)}, not", maker.make, maker.fewest(n) - 1, n)
    assert list(MAKERS) == [maker.name for maker in EVERY]


def test_lib_schedules_has_every_maker_of_this_house():
    for maker in EVERY:
        if maker.make.__module__ == makers.__name__:
            assert getattr(package, maker.make.__name__) is maker.make


@of(TABLED)
def test_orders_are_those_of_torch_wherever_it_takes_the_sizes(maker):
    taken = 0
    for m, n, v in arguments(maker):
        try:
            expected = torch_orders(maker, m, n, v)
        except ValueError:
            continue
        table = maker.table(m, n, v)
        assert [list(map(str, table.actions(rank))) for rank in range(n)] == expected, (m, n, v)
        taken += 1
    assert taken > 0.8 * len(arguments(maker))


@pytest.mark.parametrize("name", ["interleaved 1F1B", "interleaved zero bubble"])
def test_where_torch_refuses_uneven_rounds_ours_still_make_a_legal_table(name):
    maker = MAKERS[name]
    refuses(ValueError, "multiple of the number of rounds", torch_orders, maker, 7, 3, 2)
    validate(maker.make(7, 3, 2), stages=6, micro_batches=7)


@of([maker for maker in EVERY if maker.looped])
def test_ranks_take_stages_in_turn(maker):
    assert maker.make(2, 3, 2).rank_of == {0: 0, 1: 1, 2: 2, 3: 0, 4: 1, 5: 2}


@pytest.mark.parametrize("make", [zbv, dualpipe_v])
def test_ranks_take_stages_in_a_v(make):
    assert make(6, 3).rank_of == {0: 0, 1: 1, 2: 2, 3: 2, 4: 1, 5: 0}


def test_orders_that_wait_for_each_other_have_no_slots():
    crossed = Schedule.from_text("crossed", "0B0 0F0\n1F0 1B0")
    refuses(ScheduleError, "0B0 needs 0F0, which the same rank does only later", slotted, crossed)


def test_rounds_of_n_with_a_short_one_at_the_end_deadlock():
    # the reason for planning even rounds and striking out what is too much
    m = 5
    n = 4
    v = 3
    rows = []
    for rank in range(n):
        stages = range(rank, n * v, n)
        forwards = [action for action in makers.in_rounds("F", stages, m, n) if action.micro_batch < m]
        backwards = [action for action in makers.in_rounds("B", stages[::-1], m, n) if action.micro_batch < m]
        rows.append(makers.alternate(forwards, backwards, warm_up=(v - 1) * n + 2 * (n - 1 - rank)))
    refuses(ScheduleError, "", validate, Schedule("rounds of 4 and 1", rows))
    validate(interleaved_one_f_one_b(m, n, v))


@of(EVERY)
def test_sizes_below_one_are_refused_by_name(maker):
    refuses(ValueError, "micro_batches must be at least 1, not 0", maker.table, 0, 2, 2)
    refuses(ValueError, "partitions must be at least 1, not -1", maker.table, 4, -1, 2)
    refuses(TypeError, "micro_batches must be an integer", maker.table, 4.5, 2, 2)


@of(LOOPED)
def test_a_number_of_stages_below_one_is_refused_by_name(maker):
    refuses(ValueError, "stages_per_rank must be at least 1, not 0", maker.make, 4, 2, 0)


def test_eager_1f1b_holds_what_it_says_and_lies_between_1f1b_and_gpipes_warm_up():
    for m, n in SIZES:
        assert eager_one_f_one_b(m, n, 1).ranks == one_f_one_b(m, n).ranks
        assert eager_one_f_one_b(m, n).ranks == interleaved_one_f_one_b(m, n, 1).ranks, "two slots: there and back"
        for ahead in (1, 2, 3, 20):
            table = eager_one_f_one_b(m, n, ahead)
            assert live_activations(table) == [min(m, ahead * (n - 1 - j) + 1) for j in range(n)]
            if ahead == 1:
                assert simulate(table) == simulate(one_f_one_b(m, n))
            assert simulate(table).makespan == simulate(gpipe(m, n)).makespan, "with free messages nothing is gained"
    for wrong, error in ((0, ValueError), (1.5, TypeError)):
        refuses(error, "ahead must be", eager_one_f_one_b, 4, 2, wrong)


def test_where_messages_cost_a_deeper_warm_up_beats_1f1b_by_these_numbers():
    def ticks(table, message):
        return round(simulate(table, communicate=message).makespan, 9)

    tables = gpipe(8, 4), one_f_one_b(8, 4), eager_one_f_one_b(8, 4), eager_one_f_one_b(8, 4, 3)
    assert [ticks(table, 0.1) for table in tables] == [33.6, 34.6, 33.6, 33.6]
    assert [ticks(table, 0.5) for table in tables] == [36, 41, 36, 36]
    assert [ticks(table, 2) for table in tables] == [45, 65, 48, 45]
    assert live_activations(tables[2]) == [7, 5, 3, 1], "the price of eager 1F1B; 1F1B holds [4, 3, 2, 1]"


@pytest.mark.parametrize("forward, backward, message", [(1, 2, 0.1), (1, 2, 1.5), (1, 2, 1.6), (2, 2, 3), (1, 1, 5)])
def test_ahead_1_plus_2c_over_f_plus_b_is_enough_and_less_is_not(forward, backward, message):
    enough = ceil(1 + 2 * message / (forward + backward))
    costs = {"forward": forward, "backward": backward, "communicate": message}
    least = simulate(gpipe(40, 4), **costs).makespan
    assert simulate(eager_one_f_one_b(40, 4, enough), **costs).makespan == pytest.approx(least)
    assert simulate(eager_one_f_one_b(40, 4, enough - 1), **costs).makespan > least + 1e-6


LOOPED_SIZES = [(m, n, v) for m, n in SIZES for v in (1, 2, 3)]


@pytest.mark.parametrize("make", [interleaved_one_f_one_b, looped_bfs])
def test_v_stages_a_rank_make_the_bubble_v_times_smaller(make):
    for m, n, v in LOOPED_SIZES:
        even = make is looped_bfs or m % round_size(m, n) == 0
        if m >= n and even:
            for forward, backward in ((1, 2), (2, 1), (1, 1)):
                bubble = simulate(make(m, n, v), forward, backward).bubble
                assert bubble == pytest.approx(makers.bubble_share(m, n, v))
        elif even:
            # too few micro-batches: each further stage of a rank waits for the first to come round
            assert idle(make(m, n, v)) == 3 * (n - 1) + 3 * (v - 1) * (n - m)


def test_rounds_that_cannot_be_even_cost_time():
    assert round_size(10, 4) == 5
    assert idle(interleaved_one_f_one_b(10, 4, 2)) == 9, "even rounds, of 5: as with rounds of 4"
    assert round_size(7, 2) == 3
    assert idle(interleaved_one_f_one_b(7, 2, 2)) == 3 + 2, "a round that is planned for 3 and has 1"


def test_interleaving_and_looped_bfs_hold_more_of_smaller_stages():
    for m, n, v in LOOPED_SIZES:
        ahead = [(v - 1) * round_size(m, n) + 2 * (n - 1 - j) + 1 for j in range(n)]
        assert live_activations(interleaved_one_f_one_b(m, n, v)) == [min(m * v, peak) for peak in ahead]
        assert live_activations(looped_bfs(m, n, v)) == [m * v] * n


def waits_in_a_short_round(m, n, v):
    """Return the slots that a last round with too few micro-batches costs: they can't fill the way round the ranks."""
    last = m % round_size(m, n)
    return (v - 1) * max(0, n - 2 * last) if last else 0


def test_a_last_round_of_less_than_half_the_ranks_costs_interleaved_zero_bubble_time():
    assert idle(interleaved_zero_bubble(7, 2, 2)) == 1, "a round of 1, for 2 ranks: nothing"
    assert idle(interleaved_zero_bubble(13, 3, 2)) == 2 + 1, "three rounds of 4 and one of 1"
    assert idle(interleaved_zero_bubble(13, 3, 3)) == 2 + 2


def test_interleaved_zero_bubble_idles_as_zb_h1_for_stages_v_times_smaller():
    for m, n, v in LOOPED_SIZES:
        table = interleaved_zero_bubble(m, n, v)
        if v == 1:
            assert table.ranks == zero_bubble_h1(m, n).ranks
        if m >= n:
            # in slots of a stage, which is v times smaller
            assert idle(table) == n - 1 + waits_in_a_short_round(m, n, v)
        assert live_activations(table) == [min(m * v, (v - 1) * round_size(m, n) + n)] * n


COSTS = [(1, 1, 1), (2, 2, 1), (3, 2, 1), (2, 1, 1), (1, 1, 0.5), (1, 1, 0)]  # F, I, W with W the least


@pytest.mark.parametrize("f, i, w", COSTS)
def test_zb_h1_idles_for_f_plus_i_minus_w_where_1f1b_idles_for_their_sum(f, i, w):
    for m, n in SIZES:
        if m >= n:
            costs = {"forward": f, "backward": i + w, "weight": w}
            assert idle(zero_bubble_h1(m, n), **costs) == pytest.approx((n - 1) * (f + i - w))
            assert idle(one_f_one_b(m, n), **costs) == pytest.approx((n - 1) * (f + i + w))


@pytest.mark.parametrize("f, i, w", [(1, 1, 2), (1, 2, 3), (1, 0.5, 1), (1, 3, 3)])
def test_a_weight_gradient_larger_than_the_gap_does_not_fit(f, i, w):
    for m, n in [(4, 2), (5, 3), (8, 4)]:
        assert idle(zero_bubble_h1(m, n), f, i + w, w) == pytest.approx((n - 1) * max(f + i - w, f, i))


def test_rank_j_is_at_most_j_weight_gradients_behind():
    for j in range(4):
        owed = 0
        most = 0
        for action in zero_bubble_h1(9, 4).actions(j):
            if action.op == "I":
                owed += 1
            elif action.op == "W":
                owed -= 1
            else:  # an F: counted only here, since a W right after its I was never owed
                most = max(most, owed)
        assert most == j


def test_zbv_never_pauses_once_the_v_is_full_and_holds_as_much_as_1f1b():
    for m, n in SIZES:
        if m >= 2 * n - 1:
            table = zbv(m, n)
            assert gaps(table) == [0] * n
            assert idle(table) == n - 1
            assert live_activations(table) == [2 * n] * n
            # 1F1B cuts the same model into n stages, twice as large
            assert idle(one_f_one_b(m, n), forward=2, backward=4) == 6 * (n - 1)
            assert 2 * max(live_activations(one_f_one_b(m, n))) == 2 * n


def test_with_too_few_micro_batches_zbv_is_the_full_table_with_gaps():
    for m, n in SIZES:
        if m < 2 * n - 1:
            full = zbv(2 * n - 1, n)
            kept = [[action for action in full.actions(j) if action.micro_batch < m] for j in range(n)]
            assert [zbv(m, n).actions(j) for j in range(n)] == kept
    assert gaps(zbv(4, 4)) == [6, 4, 2, 0]


def test_dualpipe_v_without_enough_micro_batches_points_to_zbv():
    refuses(ValueError, "with 4 partitions at least 8, not 7; .* zbv", dualpipe_v, 7, 4)


def test_dualpipe_v_idles_as_zbv_and_holds_one_more():
    for m, n, _ in arguments(MAKERS["DualPipeV"]):
        table = dualpipe_v(m, n)
        assert idle(table) == n - 1
        assert live_activations(table) == [2 * n + 1] * n


def test_dualpipe_v_splits_a_backward_only_at_the_start_and_the_end():
    for j in range(3):
        split = [action.micro_batch for action in dualpipe_v(12, 3).actions(j) if action.op == "I"]
        early = 3 - 1 - j
        assert split[:early] == list(range(early))
        assert len(split) == early + 3
        assert min(split[early:]) >= 12 - 3
