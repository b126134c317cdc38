"""Plans for many ranks: held against sums by hand, the simulator, and the memory that there is."""

import pytest

from lib.schedules import Costs, choose, looped_bfs, simulate, zbv
from lib.timeline import Work, play
from support.n15.figures import NEAR
from support.n15.guesses import guess_any_order, guess_two_sequences
from support.n15.planned import planned_orders
from support.n15.plans import (
    ORDERS,
    Machine,
    Model,
    Traffic,
    every_plan,
    fastest_plan,
    links_of,
    make_plan,
    make_sharded_plan,
)
from support.n15.solved import exposed, step_seconds
from tests.lib.refusal import refuses

SIZES = (1, 2, 4, 8, 16)


@pytest.mark.parametrize("reduce, backward, buckets", [(3.0, 1.0, 4), (0.5, 1.0, 4), (0.76, 1.0, 4), (2.0, 2.0, 1)])
def test_what_is_exposed_of_a_reduction_is_what_the_formula_says(reduce, backward, buckets) -> None:
    by_formula = max(reduce - backward * (1 - 1 / buckets), reduce / buckets)
    assert exposed(reduce, backward, buckets) == pytest.approx(by_formula)


def test_a_plan_of_1f1b_is_the_sum_by_hand_where_messages_are_cheap() -> None:
    by_hand = [step_seconds(Model(), n, 512 // n, 50e9, 400e12, False) for n in SIZES]
    assert [round(seconds, 3) for seconds in by_hand] == [1.282, 1.292, 1.297, 1.300, 1.301]
    plans = every_plan(512, only_1f1b=True, gather_waits=False)
    for plan, seconds in zip(plans[:4], by_hand, strict=False):
        assert plan.seconds == pytest.approx(seconds, rel=4e-3)
    assert fastest_plan(plans).partitions == 1


def winners(ranks=512, zero_3=False, **how):
    found = {}
    for of_a_ring in (1, 8):
        for largest in (1, 2):
            for only_1f1b in (True, False):
                for waits in (False, True):
                    machine = Machine(cards_of_a_ring=of_a_ring, **how)
                    settings = {"largest": largest, "only_1f1b": only_1f1b, "gather_waits": waits}
                    plans = every_plan(ranks, machine=machine, zero_3=zero_3, **settings)
                    found[of_a_ring, largest, only_1f1b, waits] = fastest_plan(plans).partitions
    return found


def test_the_ranking_turns_round_with_each_of_four_assumptions_and_with_the_memory() -> None:
    found = winners()
    assert set(found.values()) == {1, 2, 8}
    assert found[1, 1, True, False] == 1
    assert found[1, 1, False, False] == 2  # any order
    assert found[1, 2, False, False] == 1  # and larger micro-batches
    assert found[1, 2, False, True] == 8  # and a gathering that waits
    assert found[8, 2, False, True] == 2  # and all cards
    assert {found[8, largest, True, waits] for largest in (1, 2) for waits in (False, True)} == {1}
    smaller = winners(memory=64e9)
    assert {key for key in found if found[key] != smaller[key]} == {(1, 2, True, True), (1, 2, False, False)}
    assert smaller[1, 2, False, False] == 2
    assert set(winners(memory=24e9).values()) == {8}
    one = every_plan(512, gather_waits=False, largest=2)[0]
    assert (one.size, one.micro_batches, round(one.memory / 1e9, 1)) == (2, 1, 76.5)


@pytest.mark.parametrize("guess, largest", [(guess_any_order, 1), (guess_two_sequences, 2)])
def test_a_guess_that_is_level_with_the_fastest_is_told_so(guess, largest) -> None:
    plans = every_plan(512, gather_waits=False, largest=largest)
    best = fastest_plan(plans)
    for plan in plans:
        behind = plan.seconds - best.seconds
        level = f"less than {NEAR} s behind, which such a plan can't tell apart" in guess(plan.partitions).message
        assert level == (0 < behind < NEAR), plan.partitions


@pytest.mark.costly
@pytest.mark.parametrize("guess, largest", [(guess_any_order, 1), (guess_two_sequences, 2)])
def test_a_guess_of_16_is_told_no_reason_that_a_faster_border_refutes(guess, largest) -> None:
    for machine in (Machine(), Machine(border=400e9)):
        *others, longest = every_plan(512, gather_waits=False, largest=largest, machine=machine)
        assert longest.pipeline > max(plan.pipeline for plan in others)
    assert "they idle most" in guess(16).message


@pytest.mark.costly
def test_eight_hide_as_much_as_one_with_two_sequences_and_idle() -> None:
    one, *_, eight, _ = every_plan(512, gather_waits=False, largest=2)
    assert one.reduce + one.gather == pytest.approx(eight.reduce + eight.gather, abs=1e-3)
    assert eight.pipeline - eight.compute > one.pipeline - one.compute == 0
    assert "it leaves as much of R as n = 1, and idles" in guess_two_sequences(8).message


@pytest.mark.costly
def test_with_all_cards_one_stage_is_among_the_best_until_cards_are_slow() -> None:
    behind = {}
    for card in (50e9, 12e9):
        for only_1f1b in (True, False):
            for waits in (False, True):
                machine = Machine(cards_of_a_ring=8, between=card)
                plans = every_plan(512, machine=machine, largest=2, only_1f1b=only_1f1b, gather_waits=waits)
                behind[card, only_1f1b, waits] = plans[0].seconds - fastest_plan(plans).seconds
    assert {key for key, seconds in behind.items() if seconds >= NEAR} == {(12e9, False, True)}
    assert round(behind[12e9, False, True], 2) == 0.05


def level(cards_of_a_ring, largest=2, memory=80e9):
    """Return for each order and gathering the n that the plan can't tell from the best."""
    found = {}
    for only_1f1b, waits in ((True, False), (True, True), (False, False), (False, True)):
        machine = Machine(cards_of_a_ring=cards_of_a_ring, memory=memory)
        plans = every_plan(512, machine=machine, largest=largest, only_1f1b=only_1f1b, gather_waits=waits)
        best = fastest_plan(plans).seconds
        found[only_1f1b, waits] = [plan.partitions for plan in plans if plan.seconds - best < NEAR]
    return found


@pytest.mark.costly
def test_what_the_notebook_says_of_its_eight_rows_and_of_one_sequence_or_less_memory() -> None:
    for cards in (1, 8):
        assert {tuple(level(cards)[True, waits]) for waits in (False, True)} == {(1,)}  # 1F1B
    assert all(1 in among for among in level(8).values())
    one_card = level(1)
    assert all(4 in one_card[False, waits] for waits in (False, True))
    assert [1 in one_card[False, waits] for waits in (False, True)] == [True, False]
    for less, beside in (({"largest": 1}, [1, 2, 4]), ({"memory": 64e9}, [1])):
        assert {key: among for key, among in level(1, **less).items() if 1 in among} == {(True, False): beside}
    recomputed = every_plan(512, machine=Machine(memory=64e9), largest=2, only_1f1b=True, gather_waits=False)[0]
    assert (recomputed.size, recomputed.recompute) == (2, True)


def step_of_zero_3(m, forward, backward, gather, reduce, layers) -> float:
    """Play it layer by layer: a GPU, and a network that gathers two layers ahead and reduces when it has time."""
    tasks = []
    for i in range(m):
        passes = [("F", forward, range(layers)), ("B", backward, range(layers)[::-1])]
        for op, seconds, order in passes:
            tasks += [(op, i, k, seconds / layers) for k in order]
    gpu = 0.0
    network = 0.0
    ends: list[float] = []
    waiting: list[float] = []
    for place, (op, _, _, seconds) in enumerate(tasks):
        may_begin = ends[place - 2] if place >= 2 else 0.0
        while waiting and max(network, waiting[0]) < may_begin:  # nothing to gather yet: reduce
            network = max(network, waiting.pop(0)) + reduce / layers
        network = max(network, may_begin) + gather / layers
        gpu = max(gpu, network) + seconds
        ends.append(gpu)
        waiting += [gpu] if op == "B" else []
    for ready in waiting:
        network = max(network, ready) + reduce / layers
    return network


@pytest.mark.parametrize("link", [12e9, 50e9, 100e9, 200e9, 400e9])
def test_a_step_of_one_stage_under_zero_3_is_that_of_its_timeline(link) -> None:
    for size in (1, 2):
        plan = make_sharded_plan(512, size=size, machine=Machine(between=link))
        forward = 2 * 7e9 * 4096 * size / 400e12
        sent = 511 / 512 * 7e9 / link
        played = step_of_zero_3(2 // size, forward, 2 * forward, 2 * sent, 4 * sent, 32)
        assert plan.seconds == pytest.approx(played, rel=0.04)


def test_zero_3_takes_memory_away_as_a_reason_where_the_network_carries_it() -> None:
    small = winners(memory=24e9, zero_3=True)
    assert {wins for (cards, *_), wins in small.items() if cards == 8} == {1}
    assert {key[1:3] for key, wins in small.items() if key[0] == 1 and wins == 1} == {(2, True)}  # 1F1B only
    assert {wins for key, wins in small.items() if key[0] == 1 and key[1:3] != (2, True)} == {8}
    for cards, seconds in ((8, 0.865), (1, 1.182)):
        machine = Machine(memory=24e9, cards_of_a_ring=cards)
        one, *_, eight, _ = every_plan(512, machine=machine, largest=2, gather_waits=False, zero_3=True)
        assert one.schedule == "ZeRO-3"
        assert round(one.seconds, 3) == seconds
        assert round(eight.seconds, 3) == 0.922
        assert one.memory < 24e9
    large = winners(zero_3=True)
    found = winners()
    changed = {key: wins for key, wins in large.items() if wins != found[key]}
    assert changed == {(8, 1, False, True): 1, (8, 2, False, True): 1}


def test_with_twice_the_ranks_for_a_batch_one_stage_has_one_sequence_and_little_to_hide_behind() -> None:
    found = winners(ranks=1024)
    assert found[1, 2, False, False] == 2
    one, two, *_ = every_plan(1024, largest=2, gather_waits=False)
    assert (one.size, one.micro_batches) == (1, 1)
    assert one.seconds - two.seconds > 0.38


def test_where_a_batch_has_no_sequence_for_each_replica_one_stage_does_not_fit() -> None:
    for more in ({}, {"zero_3": True}):
        one, *others = every_plan(2048, largest=2, gather_waits=False, machine=Machine(cards_of_a_ring=8), **more)
        assert (one.schedule, one.seconds, one.micro_batches) == ("", float("inf"), 0)
        assert fastest_plan([one, *others]).partitions == 2


def test_a_machine_has_whole_pipelines_unless_one_ring_can_use_all_its_cards() -> None:
    for waits in (False, True):
        plans = every_plan(512, gather_waits=waits, largest=2)
        assert {plan.order for plan in plans} <= {"pipeline", "–"}
        under_1f1b = every_plan(512, gather_waits=waits, only_1f1b=True, machine=Machine(cards_of_a_ring=8))
        assert {plan.order for plan in under_1f1b[1:]} == {"replicas"}
        any_order = every_plan(512, gather_waits=waits, machine=Machine(cards_of_a_ring=8))
        assert {plan.order for plan in any_order[1:4]} == {"replicas" if waits else "pipeline"}


def test_no_order_is_left_out_for_being_cut_finely() -> None:
    plans = every_plan(512, gather_waits=False)
    best = choose({16: Costs([1 / 4] * 32, [1 / 2] * 32, [1 / 4] * 32)}, 8, memory=16, communicate=0.001)
    assert (plans[3].schedule, best.parameters) == (best.maker.name, {"stages_per_rank": 4})
    quickest = min(order.seconds for order in planned_orders(8, 32, 2, 0.001, 16) if order.held <= 16)
    assert quickest == pytest.approx(best.seconds)


def test_the_gathering_hides_behind_the_first_forward_at_most_where_a_rank_has_one_stage() -> None:
    for largest in (1, 2):
        for plan in every_plan(512, gather_waits=False, largest=largest, only_1f1b=True):
            whole = make_plan(512, plan.partitions, size=plan.size, only_1f1b=True).gather
            forward = plan.compute / plan.micro_batches / (4 if plan.recompute else 3)
            assert plan.gather == pytest.approx(exposed(whole, forward, 32 // plan.partitions))
            assert plan.gather >= whole - forward


@pytest.mark.parametrize("reduce", [0.1, 1.0, 2.5, 9.0])
def test_what_a_timeline_leaves_is_what_exposed_says_where_a_rank_has_one_stage(reduce) -> None:
    orders = {order.name: order for order in planned_orders(4, 32, 2, 0.0, 8)}
    for name in ("1F1B", "GPipe"):
        assert orders[name].left_of(reduce) == pytest.approx(exposed(reduce, 2, 8))
        assert orders[name].late_by(reduce) == pytest.approx(exposed(reduce, 1, 8))


def busy_after(table, reduce, forward) -> float:
    """Play a table of one layer a stage with a network for each rank, and return how long it is busy after the end."""
    trace = simulate(table, forward, 2 * forward, forward)
    last = {}
    for rank, action in table:
        if action.op in "BW":
            last[rank, action.stage] = next(span.end for span in trace if span.label == str(action))
    each = reduce / (table.stages // len(table.ranks))
    tasks = [Work(f"{rank}", f"computing {rank}, {stage}", end) for (rank, stage), end in last.items()]
    lanes = [task._replace(lane=f"computing {task.label}") for task in tasks]  # each begins at 0, so ends when it did
    ordered = sorted(lanes, key=lambda task: task.seconds)
    sent = [Work(f"network {task.label.split(',')[0]}", f"sent {task.label}", each, [task.label]) for task in ordered]
    return play([*lanes, *sent]).makespan - trace.makespan


@pytest.mark.costly
def test_with_several_stages_a_rank_the_reduction_begins_before_the_last_micro_batch_is_back() -> None:
    for n, v in ((2, 16), (8, 4)):
        of_name = {order.name: order for order in planned_orders(n, 32, 2, 0.0, 2 * n) if order.name == "looped BFS"}
        for reduce in (0.5, 4.0, 30.0):
            expected = busy_after(looped_bfs(2 * n, n, v), reduce, 1 / v)
            assert of_name["looped BFS"].left_of(reduce) == pytest.approx(expected)
    plan = make_plan(512, 2, gather_waits=False)
    assert plan.reduce < 0.022 < 0.14 < exposed(0.2789, 0.1434, 16)
    at_12 = every_plan(512, gather_waits=False, machine=Machine(between=12e9))
    assert [plan.schedule for plan in at_12[1:3]] == ["looped BFS"] * 2  # slower itself, and ready earlier
    assert fastest_plan(at_12).partitions == 4


def test_an_order_that_holds_the_whole_batch_holds_more_the_larger_the_batch_is() -> None:
    for m in (16, 64):
        held = {order.name: order.held for order in planned_orders(2, 32, 2, 0.0, m)}
        assert (held["looped BFS"], held["GPipe"], held["1F1B"]) == (m, m, 2)
    plan = make_plan(512, 4, gather_waits=False, model=Model(sequences=8192), machine=Machine(between=12e9))
    assert plan.micro_batches == 64
    assert plan.held < 64, "looped BFS would hold all of them, for which the memory is too small"
    assert plan.memory <= 80e9


def test_where_a_backward_is_cut_in_two_a_reduction_hides_behind_its_second_half_only() -> None:
    order = next(order for order in planned_orders(4, 32, 2, 0.0, 8) if order.halves and order.stages == 1)
    for reduce in (0.5, 4.0):
        assert order.left_of(reduce) == pytest.approx(exposed(reduce, 1, 8))
        traffic = Traffic(reduce, 0.1, True, 1.0, 2.0, 8, exposed)
        assert traffic.not_hidden(order)[0] == pytest.approx(order.left_of(reduce))


@pytest.mark.costly
def test_few_stages_wins_with_stages_of_one_layer_only() -> None:
    for between, winners_of in ((50e9, {2: 8, 4: 8, 8: 4, 16: 2}), (12e9, {2: 8, 4: 8, 8: 4, 16: 4})):
        for most, wins in winners_of.items():
            machine = Machine(between=between)
            plans = every_plan(512, gather_waits=False, machine=machine, stages_per_rank=most)
            assert fastest_plan(plans).partitions == wins
    for how in ({"gather_waits": True}, {"gather_waits": False, "memory": 24e9}):
        for cards, wins in ((8, 8), (1, 4)):
            machine = Machine(between=12e9, cards=cards, memory=how.get("memory", 80e9))
            plans = every_plan(512, gather_waits=how["gather_waits"], machine=machine, largest=2)
            assert fastest_plan(plans).partitions == wins


def test_what_is_recomputed_goes_with_whole_backwards() -> None:
    found = every_plan(512, gather_waits=False, machine=Machine(memory=24e9))
    assert [plan.recompute for plan in found] == [True, True, True, False, False]
    assert [plan.schedule for plan in found[1:3]] == ["looped BFS"] * 2


def test_rings_share_the_cards_of_a_machine_and_use_no_more_than_they_can() -> None:
    def ring(n, order="pipeline", **how):
        return links_of(512, n, order, Machine(**how)).ring / 50e9

    assert [ring(n) for n in SIZES] == [1, 1, 1, 1, 1]
    assert [ring(n, cards_of_a_ring=8) for n in SIZES] == [8, 4, 2, 1, 1]
    assert [ring(n, cards_of_a_ring=8, cards=1) for n in SIZES] == [1, 1 / 2, 1 / 4, 1 / 8, 1 / 8]
    assert ring(4, "replicas", cards_of_a_ring=8) == 8  # a machine has one stage only, so one ring
    assert links_of(512, 1, "pipeline", Machine(cards_of_a_ring=8)).order == "–"
    assert links_of(512, 16, "pipeline", Machine(cards_of_a_ring=8)).order == "pipeline"  # its rings have one card each
    assert links_of(64, 8, "replicas").ring == 400e9  # eight replicas of a stage, in one machine
    assert links_of(64, 8, "replicas").chain == 50e9


@pytest.mark.costly
def test_the_price_of_a_border_between_machines_can_be_moved_and_turns_one_winner_round() -> None:
    for border in (None, 50e9, 400e9):
        machine = Machine(border=border)
        assert links_of(512, 16, "pipeline", machine).chain == (border or 50e9)
        assert links_of(512, 8, "pipeline", machine) == links_of(512, 8, "pipeline")  # crosses no machine
        assert links_of(512, 8, "replicas", machine).chain == 50e9  # each of its borders does cross
    fast = winners(border=400e9)
    found = winners()
    assert {key: fast[key] for key in found if found[key] != fast[key]} == {(1, 1, True, True): 16}


@pytest.mark.costly
def test_gpus_of_one_stage_share_the_cards_of_their_machine_for_their_messages() -> None:
    one = Machine(between=12e9, cards=1)
    assert links_of(512, 4, "replicas", one).chain == 12e9 / 8
    assert links_of(512, 4, "replicas", Machine(between=12e9)).chain == 12e9
    assert links_of(512, 16, "pipeline", one).chain == 12e9  # a machine sends over one of its borders only
    plans = every_plan(512, gather_waits=False, machine=one)
    assert [round(plan.seconds, 3) for plan in plans[2:4]] == [1.493, 1.706]


def test_one_stage_that_takes_all_micro_batches_through_a_layer_first_is_as_fast_as_with_a_larger_one() -> None:
    forward = 2 * 7e9 * 4096 / 400e12
    sent = 511 / 512 * 7e9 / 50e9 / forward
    orders = [order for order in planned_orders(1, 32, 2, 0.0, 2) if order.name == "looped BFS"]
    seconds = min(order.seconds + order.left_of(4 * sent) + order.late_by(2 * sent) for order in orders) * forward
    one, two = (every_plan(512, gather_waits=False, largest=largest) for largest in (1, 2))
    assert two[0].seconds == pytest.approx(seconds)
    assert two[0].seconds < one[1].seconds < one[0].seconds


@pytest.mark.costly
def test_one_stage_wins_by_a_hair_of_bandwidth() -> None:
    for between, wins in ((50e9, 1), (45e9, 2)):
        plans = every_plan(512, gather_waits=False, largest=2, machine=Machine(between=between))
        assert fastest_plan(plans).partitions == wins


@pytest.mark.costly
def test_a_long_pipeline_is_what_the_simulator_says_and_the_rules_of_the_reader_are_asked() -> None:
    forward = 2 * 7e9 / 16 * 4096 / 400e12
    long = make_plan(64, 16, model=Model(sequences=256))
    message = round(2 * 4096 * 4096 / 50e9 / forward, 3)
    end = simulate(zbv(64, 16), 1 / 2, 1, 1 / 2, communicate=message).makespan * forward
    assert long.schedule == "ZB-V"
    assert long.pipeline == pytest.approx(end)
    assert make_plan(64, 8, exposed_rule=lambda reduce, backward, buckets: 3.0 + buckets, only_1f1b=True).reduce == 7.0
    assert make_plan(64, 8, lambda model, n, held, recompute, zero, replicas: 10.0 * zero + held).memory < 30


@pytest.mark.costly
def test_the_memory_of_a_gpu_is_kept_and_where_nothing_fits_it_is_said() -> None:
    found = set()
    for memory in (20e9, 35e9, 80e9):  # two machines of two: some fit nowhere, some with recomputing, some as they are
        for plan in every_plan(4, machine=Machine(memory=memory, gpus=2)):
            assert not plan.schedule or plan.memory <= memory
            assert bool(plan.schedule) == (plan.seconds < float("inf"))
            found.add((bool(plan.schedule), plan.recompute))
    assert {(True, True), (True, False)} <= found
    assert any(not fits for fits, _ in found)
    assert all(not plan.schedule for plan in every_plan(8, only_1f1b=True, machine=Machine(memory=9e9)))
    refuses(ValueError, "6 ranks do not make equal pipelines of 4", make_plan, 6, 4)
    assert ORDERS == ("pipeline", "replicas")
