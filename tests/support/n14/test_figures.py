"""The figures of notebook 14, its sleeping stages, torch's orders and the rows of the GPU experiment."""

import re

import pytest
import torch
from torch import nn

from lib import schedules as makers
from lib.schedules import gpipe, live_activations, one_f_one_b, simulate, validate, zero_bubble_h1
from lib.show.style import alt_text
from support.n14 import figures as n14
from support.n14 import runs as executor_gpu
from support.n14.runs import CLASSES, torch_order, waiting_stages


@pytest.mark.parametrize("table", [gpipe(5, 3), one_f_one_b(5, 3), zero_bubble_h1(5, 3)])
def test_what_is_held_over_time_peaks_where_it_was_predicted_and_ends_at_nothing(table):
    curves = n14.held_over_time(table, simulate(table))
    assert [max(count for _, count in curve) for curve in curves] == live_activations(table)
    assert all(curve[-1][1] == 0 for curve in curves)


def test_free_messages_want_many_stages_and_dear_ones_few():
    def best(communicate):
        return int(re.search(r"v = (\d+) is fastest", alt_text(n14.draw_interleaving(8, 4, communicate)))[1])

    assert [best(communicate) for communicate in (0, 0.2, 1.5)] == [8, 2, 1]


def test_the_capped_schedule_is_legal_within_its_limit_and_1f1b_without():
    for m, n, limit in ((6, 3, 1), (6, 3, 2), (6, 3, 3), (2, 4, 3), (6, 3, 9)):
        table = n14.capped(m, n, limit)
        validate(table, stages=n, micro_batches=m)
        assert max(live_activations(table)) <= limit
    assert n14.capped(6, 3, 9).ranks == one_f_one_b(6, 3).compact().ranks
    assert simulate(n14.capped(6, 3, 1)).makespan == simulate(makers.model_parallel(6, 3)).makespan


def test_unbeaten_are_those_that_nobody_beats_in_both():
    points = {"slow": (9, 9), "fast": (1, 5), "small": (5, 1), "slower": (2, 5), "same": (1, 5)}
    assert n14.unbeaten(points) == ["fast", "same", "small"]
    points = n14.time_and_memory(n14.all_schedules(8, 4))
    assert (points["GPipe"], points["1F1B"]) == ((33, 8), (33, 4))
    assert "DualPipeV" not in n14.all_schedules(4, 3)
    assert {"1F1B, at most 1", "1F1B, at most 2"} <= set(n14.all_schedules(8, 3, tight=True))


def test_the_graph_that_is_drawn_is_the_real_one_and_a_forgotten_w_is_crossed_out():
    figure = n14.draw_split(*n14.example_stage())
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert texts.count("Addmm") == 2
    assert {"Tanh", "input", "0.weight", "2.weight", "0.bias", "2.bias"} <= set(texts)
    alone = nn.Sequential(nn.Linear(2, 2))
    assert "1 of them" in alt_text(n14.draw_split(alone, torch.ones(1, 2, requires_grad=True)))
    assert "2 W forgotten: the gradient is 28 % off" in alt_text(n14.draw_forgotten([1, 1, 1], [0, 2], 0.28))
    assert "plain model's" in alt_text(n14.draw_forgotten([1, 1], [], 0.0))


def test_waiting_stages_have_the_gradients_of_their_layers():
    stage = waiting_stages(1, 0.0)[0]
    x = torch.ones(3, 4, requires_grad=True)
    stage(x).sum().backward()
    y = x.detach().clone().requires_grad_()
    weight, grad, x_grad = stage.linear.weight, stage.linear.weight.grad, x.grad
    stage.linear.zero_grad()
    stage.linear(y).sum().backward()
    torch.testing.assert_close((weight.grad, y.grad), (grad, x_grad))


@pytest.mark.parametrize("maker", CLASSES)
def test_torchs_order_is_ours(maker):
    sizes = (8, 2) if maker in ("zbv", "dualpipe_v") else (8, 2, 2)
    try:
        theirs = torch_order(maker, *sizes)
    except AttributeError:
        pytest.skip("this torch has no such schedule")
    table = getattr(makers, maker)(*sizes)
    assert theirs == [[str(action) for action in table.actions(rank)] for rank in range(2)]


def test_without_a_gpu_the_prediction_is_drawn_and_says_so_and_a_recording_is_filled():
    rows = executor_gpu.predicted_rows()
    alt = alt_text(n14.draw_executor_gpu(rows, "Predicted, not measured"))
    assert "1F1B should need" in alt and "Predicted, not measured" in alt
    gpipe_row, ours = rows[0], rows[1]
    assert gpipe_row["live"] == 4 * 8
    assert ours["live"] == 4 + 3 + 2 + 1
    rows = [
        {**row, "mib": 100.0 * k, "idle": 0.2, "ms": 1.0, "gpus": 1}
        for k, row in enumerate(executor_gpu.predicted_rows(), 1)
    ]
    figure = n14.draw_executor_gpu(rows, "Measured here")
    assert "1F1B needs 200 % of GPipe's memory" in alt_text(figure)
