"""The figures of notebook 14, its sleeping stages, torch's orders and what its receives hold up."""

import re

import pytest
import torch

from lib import schedules as makers
from lib.schedules import one_f_one_b, simulate, zbv
from lib.show.style import alt_text
from support.n14 import figures as n14
from support.n14 import runs, solved
from support.n14.checks import in_a_row
from tests.lib.refusal import refuses


def test_free_messages_want_many_stages_dear_ones_few_and_the_given_warm_up_has_its_cost():
    def best(communicate):
        words = alt_text(n14.draw_interleaving(solved.forwards_ahead, 8, 4, communicate))
        return int(re.search(r"v = (\d+) is fastest", words)[1])

    assert [best(communicate) for communicate in (0, 0.1, 0.2, 0.4, 0.8, 1.5)] == [8, 3, 2, 2, 1, 1]
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
    words = alt_text(n14.draw_joined({"1F1B": in_a_row(one_f_one_b(8, 4), 2), "ZB-V": in_a_row(zbv(8, 4), 2)}, 8))
    assert "1F1B: two steps in 66 ticks; ZB-V: two steps in 49.5 ticks" in words
    assert "2 W forgotten: the gradient is 28 % off" in alt_text(n14.draw_forgotten([1, 1, 1], [0, 2], 0.28))


def test_waiting_stages_have_the_gradients_of_their_layers():
    stage = runs.waiting_stages(1, 0.0)[0]
    x = torch.ones(3, 4, requires_grad=True)
    stage(x).sum().backward()
    y = x.detach().clone().requires_grad_()
    weight = stage.linear.weight
    grad = stage.linear.weight.grad
    x_grad = x.grad
    stage.linear.zero_grad()
    stage.linear(y).sum().backward()
    torch.testing.assert_close((weight.grad, y.grad), (grad, x_grad))


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
