"""The figures of notebook 14, torch's orders, torch's halves and what its receives hold up."""

import itertools
import json
import re
from collections import Counter

import pytest
import torch

from lib import schedules as makers
from lib.schedules import one_f_one_b, simulate, waits_for, zbv
from lib.show.style import alt_text
from support.n14 import checks, runs, solved, warm_up
from support.n14 import figures as n14
from support.n14.checks import in_a_row
from tests.lib.refusal import refuses
from tests.support.n14 import answers
from tools.project import ROOT

NOTEBOOK = json.loads((ROOT / "notebooks" / "14_schedules.ipynb").read_text(encoding="utf-8"))


@pytest.mark.costly
def test_free_messages_want_many_stages_dear_ones_few_and_the_given_warm_up_has_its_cost():
    def best(communicate):
        words = alt_text(n14.draw_interleaving(solved.forwards_ahead, solved.fill_holes, 8, 4, communicate))
        return re.search(r"v = (\d+(?:, \w+)?) is fastest", words)[1]

    prices = (0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5)
    assert [best(each) for each in prices] == ["8", *["1, both"] * 6]
    ticks = alt_text(n14.draw_interleaving(solved.forwards_ahead, solved.fill_holes, 8, 4, 0.2))
    bars = (
        "v = 1, fill_holes: 29.4 ticks, holds 4.0; v = 1, warmed up: 34.2 ticks, holds 7.0; "
        "v = 1, both: 27.6 ticks, holds 7.0"
    )
    assert f"{bars}; v = 2: 31.3 ticks, holds 5.5" in ticks
    assert "fill_holes" not in alt_text(n14.draw_interleaving(solved.forwards_ahead, solved.fill_holes, 4, 8, 0.2))
    words = alt_text(n14.draw_messages(solved.forwards_ahead, 8, 4, 0.5))
    assert words.startswith("A message of 0.5: GPipe 36 ticks, 1F1B 41 ticks, your warm-up 36 ticks, holding 7")
    plain = alt_text(n14.draw_messages(lambda j, n, *costs: n - j, 8, 4, 0.5))
    assert "your warm-up 41 ticks, holding 4" in plain


def test_unbeaten_are_those_that_nobody_beats_in_both():
    points = {"slow": (9, 9), "fast": (1, 5), "small": (5, 1), "slower": (2, 5), "same": (1, 5)}
    assert n14.unbeaten(points) == ["fast", "same", "small"]
    points = n14.time_and_memory(n14.all_schedules(8, 4))
    assert (points["GPipe"], points["1F1B"]) == ((33, 8), (33, 4))
    assert "DualPipeV" not in n14.all_schedules(4, 3)
    words = alt_text(n14.draw_trade(8, 4, 0.0, 0.5))
    assert "Fastest: interleaved zero bubble and ZB-V, 25.5 ticks, holding 4; none holds less than 4" in words


def test_a_run_is_drawn_beside_its_prediction_two_steps_side_by_side_and_a_forgotten_w_crossed_out():
    table = zbv(4, 2)
    predicted = simulate(table, 0.5, 1).scale(0.01)
    assert "run in 1.50 × the predicted time" in alt_text(n14.draw_run(table, predicted.scale(1.5), predicted, "ZB-V"))
    alone = alt_text(n14.draw_run(table, None, predicted, "ZB-V"))
    assert "predicted, and not measured here" in alone
    assert ", measured" not in alone
    pairs = {"1F1B": in_a_row(one_f_one_b(8, 4), 2), "ZB-V": in_a_row(zbv(8, 4), 2)}
    words = alt_text(n14.draw_joined(pairs, 8))
    assert words.startswith("One more step: 1F1B idles 27 %, ZB-V 0 %. 1F1B: 33 ticks, and 33 more")
    assert "ZB-V: 25.5 ticks, and 24 more for the second step, 0 % idle" in words
    assert "26.8 ticks, and 25.6 more for the second step, 6 % idle" in alt_text(n14.draw_joined(pairs, 8, message=0.1))
    assert "22 more for the second step, 5 % idle" in alt_text(n14.draw_joined(pairs, 8, weight=0.6))
    assert "2 W forgotten: the gradient is 28 % off" in alt_text(n14.draw_forgotten([1, 1, 1], [0, 2], 0.28))


@pytest.mark.parametrize("maker", runs.torch_keeps(), ids=lambda maker: maker.name)
def test_torchs_order_is_ours(maker):
    try:
        theirs = runs.torch_order(maker, 8, 2)
    except AttributeError:
        pytest.skip("this torch has no such schedule")
    table = maker.table(8, 2, 2)
    assert theirs == [[str(action) for action in table.actions(rank)] for rank in range(2)]


def test_receives_that_block_cost_torchs_rows_half_as_much_again_and_late_ones_nothing():
    seconds = {"F": 0.5, "B": 1.0}
    rows = runs.torch_rows(4, 2, 2)
    only = [[step for step in row if step[0] in "FB"] for row in rows]
    assert only == [
        [(a.op, a.stage, a.micro_batch) for a in makers.interleaved_one_f_one_b(4, 2, 2).actions(r)] for r in range(2)
    ]
    assert runs.predicted_end(rows, seconds) == 20
    assert runs.predicted_end(runs.torch_rows(4, 2, 2, defer=True), seconds) == 13.5
    assert simulate(makers.interleaved_one_f_one_b(4, 2, 2), 0.5, 1).makespan == 13.5
    refuses(RuntimeError, "wait for each other", runs.predicted_end, [[("RECV_F", 1, 0), ("F", 0, 0)]], seconds)


def test_the_board_shows_tries_and_says_which_cannot_run_or_lack_something():
    late = [[("F", 0, 0), ("I", 0, 0)]]
    dead = [[("B", 0, 0), ("F", 0, 0)]]
    less = solved.fill_holes(8, 3)
    tries = {"mine": solved.fill_holes(8, 4), "half": late, "circle": dead, "words": [["F"]], "less": less}
    words = alt_text(n14.draw_board(tries, 8, 4))
    assert words.startswith("mine: 27 ticks, holding 4. GPipe: 33 ticks, holds 8; 1F1B: 33 ticks, holds 4; mine: 27")
    assert re.search(r"Refused: half: .*lacks.*; circle: .*needs 0F0.*; words: .*; less: 3 orders for 4 ranks", words)
    assert "The line lies at 27." in alt_text(n14.draw_board({}, 8, 4, floor=27))


def test_what_a_task_costs_besides_turns_the_ranking_and_so_do_messages():
    def fastest(**costs):
        points = n14.time_and_memory(n14.all_schedules(8, 4), **costs)
        return min(points, key=points.get)

    assert fastest() in ("ZB-V", "interleaved zero bubble"), "they are equally fast"
    assert fastest(communicate=0.1) == "ZB-V"
    assert fastest(communicate=0.1, fixed=0.1) == fastest(communicate=0.25) == fastest(communicate=0.5) == "both"
    words = alt_text(n14.draw_trade(8, 4, 0.1, 0.5, 0.1))
    assert words.startswith("Fastest: both, 30 ticks, holding 7; none holds less than 4")
    assert "In both unbeaten: both, DualPipeV, zero bubble (ZB-H1)." in words
    assert "each task 0.1 besides" in words


def test_the_choice_of_section_7_is_the_notebooks_and_so_is_what_turns_it():
    def ticks(micro_batches=8, **costs):
        points = n14.time_and_memory(n14.all_schedules(micro_batches, 4), **{"communicate": 0.1, "fixed": 0.1, **costs})
        return {name: points[name][0] for name in points if points[name][1] <= 5}

    def first(**moved):
        found = ticks(**moved)
        return min(found, key=found.get)

    assert first() == "DualPipeV"
    assert (ticks()["DualPipeV"], ticks()["zero bubble (ZB-H1)"]) == (30.6, 30.9)
    for moved in ({"fixed": 0.2}, {"communicate": 0.25}, {"micro_batches": 16}):
        assert first(**moved) == "zero bubble (ZB-H1)", moved
    free = ticks(fixed=0)
    assert free["ZB-V"] == free["DualPipeV"] == min(free.values())
    points = n14.time_and_memory(n14.all_schedules(8, 4), communicate=0.1, fixed=0.1)
    for room, wins in ((6, "DualPipeV"), (7, "both")):
        assert min((ticks, name) for name, (ticks, held) in points.items() if held <= room)[1] == wins
    less = {"less": warm_up.put_off(warm_up.with_warm_up("", 8, [5, 4, 3, 1]))}
    assert n14.time_and_memory(less, communicate=0.1, fixed=0.1)["less"] == (30, 5) == (points["both"][0], 5)


@pytest.mark.parametrize("m", [8, 32])
def test_in_the_room_of_the_longer_warm_up_both_is_at_the_floor_until_messages_take_longer_than_a_tick(m):
    long = warm_up.warmed_up(m, 4, 1)
    both = warm_up.put_off(long)
    assert max(makers.live_activations(both)) == max(makers.live_activations(long)) == 7
    short = solved.table("", solved.fill_holes(m, 4))
    for message in (0, 0.1, 0.25, 0.5, 0.8, 1, 1.01, 1.25, 1.5):
        ends = [simulate(each, communicate=message).makespan for each in (both, short, long)]
        floor = 3 * (1 + message) + 3 * m
        assert (ends[0] == pytest.approx(floor)) == (message <= 1)
        assert ends[0] < ends[2]
        assert (ends[0] < ends[1] - 1e-9) == (message > 0)


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_both_needs_twice_as_many_micro_batches_as_ranks_to_be_at_its_floor(n):
    for message in (0.1, 0.5, 1):
        for m in (2 * n, 2 * n + 3, 4 * n):
            both = warm_up.put_off(warm_up.warmed_up(m, n, message))
            floor = (n - 1) * (1 + message) + 3 * m
            assert simulate(both, communicate=message).makespan == pytest.approx(floor)
    both = warm_up.put_off(warm_up.warmed_up(8, 8, 0.1))
    assert simulate(both, communicate=0.1).makespan > 7 * 1.1 + 24 + 0.5


@pytest.mark.parametrize(("forward", "back", "weight"), [(1, 1, 0.5), (1, 0.5, 1.5), (2, 1, 1)])
def test_where_tasks_differ_both_may_miss_its_floor_though_no_message_is_longer_than_a_forward(forward, back, weight):
    ahead = [solved.forwards_ahead(j, 4, forward, back + weight, forward) for j in range(4)]
    both = warm_up.put_off(warm_up.with_warm_up("", 16, ahead))
    ticks = simulate(both, forward, back + weight, weight, communicate=forward).makespan
    assert ticks > 3 * (forward + forward) + 16 * (forward + back + weight) + 1


@pytest.mark.parametrize("n", [4, 8])
def test_no_number_above_a_bar_touches_another_or_a_bar_beside_it(n):
    figure = n14.draw_interleaving(solved.forwards_ahead, solved.fill_holes, 16, n, 1.5)
    figure.canvas.draw()
    for axes in figure.axes:
        boxes = [text.get_window_extent() for text in (*axes.texts, *axes.get_xticklabels())]
        bars = [bar.get_window_extent() for bar in axes.patches if bar.get_height() > 0]
        for k, box in enumerate(boxes):
            assert not any(box.overlaps(other) for other in [*boxes[:k], *boxes[k + 1 :], *bars])


def test_with_1f1bs_warm_up_the_ws_that_are_put_off_make_zb_h1():
    for m, n in ((8, 4), (3, 3), (5, 1), (11, 6)):
        assert warm_up.put_off(one_f_one_b(m, n)).ranks == solved.table("", solved.fill_holes(m, n)).ranks


def test_with_late_messages_interleaving_beats_the_long_warm_up_if_it_has_room_for_the_whole_batch():
    names = ("eager 1F1B", "looped BFS", "interleaved 1F1B")
    points = n14.time_and_memory({name: n14.all_schedules(8, 4)[name] for name in names}, communicate=1)
    assert points == {"eager 1F1B": (39, 7), "looped BFS": (36.5, 8), "interleaved 1F1B": (46, 5.5)}


@pytest.mark.parametrize(("m", "n", "v"), [(8, 4, 2), (8, 4, 3), (16, 4, 8), (12, 6, 2)])
def test_interleaving_with_one_forward_more_a_rank_holds_what_1f1b_holds(m, n, v):
    """In the same time, if messages are free; only who hides them pays with memory."""
    orders = []
    for j, order in enumerate(solved.interleaved(m, n, v)):
        both = ([task for task in order if task[0] == op] for op in "FB")
        orders.append(solved.alternate(*both, (v - 1) * n + (n - 1 - j) + 1))
    short = solved.table("one", orders)
    long = makers.interleaved_one_f_one_b(m, n, v)
    held = max(makers.live_activations(short)) / v
    assert held == max(makers.live_activations(one_f_one_b(m, n))) == n
    assert held < max(makers.live_activations(long)) / v
    ends = [simulate(each, 1 / v, 2 / v).makespan for each in (short, long)]
    assert ends[0] == pytest.approx(ends[1])


@pytest.mark.costly
def test_a_large_v_is_the_fastest_where_messages_are_free_and_on_six_ranks_where_they_take_little():
    for m, n, message, v in (
        (8, 4, 0, "8"),
        (8, 4, 0.05, "1, both"),
        (8, 6, 0.05, "8"),
        (8, 6, 0.1, "6"),
        (8, 6, 0.2, "1, both"),
        (16, 6, 0.1, "6"),
        (12, 6, 0.05, "1, both"),
    ):
        words = alt_text(n14.draw_interleaving(solved.forwards_ahead, solved.fill_holes, m, n, message))
        assert f"v = {v} is fastest" in words


@pytest.mark.costly
def test_on_three_ranks_or_four_both_is_the_fastest_from_a_quarter_of_a_tick_on_whatever_else_the_sliders_say():
    for m in (8, 16):
        for n in (3, 4):
            every = n14.all_schedules(m, n)
            for message, weight, fixed in itertools.product((0.25, 0.5), (0.3, 0.5, 0.7), (0, 0.05, 0.1, 0.2)):
                points = n14.time_and_memory(every, message, weight, fixed)
                assert points["both"][0] == min(ticks for ticks, _ in points.values())


@pytest.mark.parametrize(("message", "weight", "shares"), [(0, 1, (0, 0)), (0.1, 1, (6, 2)), (0, 0.6, (5, 10))])
def test_with_late_messages_both_idles_less_than_zb_v_and_with_a_short_w_more(message, weight, shares):
    schedules = {"ZB-V": zbv(8, 4), "both": warm_up.put_off(warm_up.warmed_up(8, 4, 1))}
    pairs = {name: in_a_row(each, 2) for name, each in schedules.items()}
    words = alt_text(n14.draw_joined(pairs, 8, message, weight))
    said = re.findall(r"for the second step, (\d+) % idle", words)
    assert tuple(map(int, said)) == shares


@pytest.mark.parametrize(
    ("message", "times", "share"), [(0, (1, 1, 1), 0), (0.1, (1, 1, 1), 6.25), (0, (1, 1.2, 0.8), 4.76)]
)
def test_a_further_step_of_zb_v_idles_where_messages_take_time_or_i_takes_longer_than_f(message, times, share):
    forward, input, weight = (time / 2 for time in times)
    ends = [simulate(in_a_row(zbv(8, 4), steps), forward, input + weight, weight, message).makespan for steps in (2, 3)]
    assert 100 * (1 - 8 * sum(times) / (ends[1] - ends[0])) == pytest.approx(share, abs=0.01)


def test_behind_a_stage_that_takes_longer_all_ranks_but_one_wait_in_every_round():
    waits = waits_for(one_f_one_b(8, 4), [1, 1, 1.5, 1], [2, 2, 3, 2])
    count = Counter(wait.rank for wait in waits)
    assert [count[rank] >= 8 for rank in range(4)] == [True, True, False, True]


def test_with_nothing_besides_the_share_of_w_decides_between_the_two_v():
    ahead = {}
    for weight in (0.3, 0.5, 0.7):
        points = n14.time_and_memory(n14.all_schedules(8, 4), 0.1, weight)
        least = min(ticks for ticks, _ in points.values())
        ahead[weight] = [name for name in points if points[name][0] == least]
    assert ahead == {0.3: ["ZB-V"], 0.5: ["ZB-V", "DualPipeV"], 0.7: ["DualPipeV"]}


def test_recompute_loses_to_split_backwards_in_1f1bs_room_until_messages_take_a_tick_and_a_half():
    """Split backwards at their best: in the same room ZB-V is faster than ZB-H1."""
    long = warm_up.with_warm_up("", 128, [2 * (7 - j) + 1 for j in range(8)])
    split = {makers.zero_bubble_h1(128, 8): 1, zbv(128, 8): 2}
    assert {max(makers.live_activations(each)) / v for each, v in split.items()} == {8}
    for message, wins in ((1, False), (1.2, False), (1.5, False), (1.6, True), (2, True)):
        again = simulate(long, 1, 3, communicate=message).makespan
        ends = [simulate(each, 1 / v, 2 / v, communicate=message).makespan for each, v in split.items()]
        assert (again < min(ends)) == wins


def test_recompute_counts_the_input_of_the_micro_batch_at_work_once():
    """At b = 1 it saves nothing, and costs nothing."""
    names = {"simulate": simulate, "live_activations": makers.live_activations}
    names |= {"gpipe": makers.gpipe, "one_f_one_b": one_f_one_b}
    shown = [cell for cell in NOTEBOOK["cells"] if "def per_micro_batch" in "".join(cell["source"])]
    exec("".join(shown[0]["source"]), names)
    for b, held in ((1, "holds     8"), (1 / 8, "holds 1.875")):
        names["b"] = b
        assert names["per_micro_batch"](one_f_one_b, 8, True).endswith(held)
    assert names["per_micro_batch"](zbv, 128, False, message=1).split() == ["3.32", "holds", "8"]


@pytest.mark.parametrize("fill", [solved.fill_holes, answers.as_tuples, answers.whole_on_rank_0])
def test_two_ws_are_forgotten_whichever_right_answer_the_reader_gave(fill):
    """Lists are no tuples, and a whole B has no W to forget."""
    cells = {cell["id"]: "".join(cell["source"]) for cell in NOTEBOOK["cells"]}
    names = {"torch": torch, "checks": checks, "my_fill": fill, "MySplit": solved.SplitLinear}
    for shown in ("14w00002", "14s00006", "n14-06b", "14b00006"):
        exec(cells[shown], names)
    assert sorted(i for _, i in names["left"]) == [2, 5]


def test_a_task_costs_once_besides_whatever_it_is_also_a_whole_backward_among_halves():
    """DualPipeV has whole backwards and split ones."""
    alone = makers.Schedule("alone", [[makers.Action(*task) for task in (("F", 0, 0), ("B", 0, 0))]])
    halves = [("F", 0, i) for i in range(2)] + [("B", 0, 0), ("I", 0, 1), ("W", 0, 1)]
    mixed = makers.Schedule("mixed", [[makers.Action(*task) for task in halves]])
    found = n14.time_and_memory({"alone": alone, "mixed": mixed}, weight=0.3, fixed=0.25)
    assert found == {"alone": (3 + 2 * 0.25, 1), "mixed": (6 + 5 * 0.25, 2)}
    every = n14.all_schedules(8, 4)
    for name, (ticks, _) in n14.time_and_memory(every).items():
        made = every[name]
        assert ticks == pytest.approx(simulate(made, 4 / made.stages, 8 / made.stages).makespan)


def test_torchs_halves_are_two_parts_of_a_backward():
    draw = torch.Generator().manual_seed(0)
    weight = torch.randn(3, 3, generator=draw).requires_grad_()
    x = torch.randn(2, 3, generator=draw).requires_grad_()
    loss = (torch.tanh(x @ weight.T) @ weight).sum()
    expected = torch.autograd.grad(loss, [x, weight], retain_graph=True)
    first, second = runs.torch_halves(loss, x, [weight])
    first()
    assert weight.grad is None
    second()
    torch.testing.assert_close((x.grad, weight.grad), expected)


def test_where_the_shortest_warm_up_is_asked_for_the_page_says_what_follows_it():
    """Rank 0 needs 7 only if ranks take turns: who catches up after the first backward hides messages with 5."""

    def catching_up(j, first, most):
        forwards = [("F", j, i) for i in range(32)]
        order = forwards[:first]
        for i in range(32):
            done = sum(task[0] == "F" for task in order)
            order += [("B", j, i), *forwards[done : min(first + 2 * i + 2, most + i + 1)]]
        return order

    made = solved.table("", [catching_up(j, *each) for j, each in enumerate(((5, 7), (4, 5), (3, 3), (1, 1)))])
    assert simulate(made, communicate=0.25).makespan == 106.5
    assert simulate(makers.gpipe(32, 4), communicate=0.25).makespan == 106.5
    page = ["".join(cell["source"]) for cell in NOTEBOOK["cells"]]
    asking = next(text for text in page if "shortest warm-up of rank 0" in text)
    assert "one backward and one forward in turn" in asking
