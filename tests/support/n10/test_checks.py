"""What is particular about the checks of notebook 10; what all exercises have in common is in test_detectors."""

import torch

from support import built
from support.n10 import checks as n10
from support.n10.runs import measure_held, segments_of


def test_checks_leave_random_numbers_and_the_flag_alone():
    before = torch.get_rng_state()
    for answer in (n10.MyCheckpoint, n10.check_checkpoint.mistakes["Is a `return` missing?"]):
        n10.check_checkpoint(answer)
    n10.check_my_checkpoint(n10.check_my_checkpoint.mistakes["Put back what here.recomputing was."])
    assert torch.equal(torch.get_rng_state(), before)
    assert not built.is_recomputing()
    assert n10.check_my_checkpoint(n10.my_checkpoint)


def test_a_checkpoint_that_keeps_its_own_graph_is_told_what_is_held():
    class KeepsTheGraph(torch.autograd.Function):
        @staticmethod
        def forward(ctx, function, *inputs):
            ctx.inputs = [x.detach().requires_grad_(x.requires_grad) for x in inputs]
            with torch.enable_grad():
                ctx.y = function(*ctx.inputs)
            return ctx.y.detach()

        @staticmethod
        def backward(ctx, gradient):
            torch.autograd.backward(ctx.y, gradient)
            return None, *(x.grad for x in ctx.inputs)

    verdict = n10.check_checkpoint(KeepsTheGraph)
    assert verdict.status == "wrong"
    assert "not its inputs alone (2)" in verdict.message


def test_the_reference_peak_is_what_a_run_holds_and_the_cheapest_set_beats_every_other_that_fits():
    for layers in (5, 9, 12):
        for segments in range(1, layers + 1):
            starts = [part[0] - 1 for part in segments_of(layers, segments)]
            counted = max(count for *_, count in measure_held(layers, segments))
            assert n10.peak_bytes([1] * (layers + 1), starts) == counted
    costs = {"a": (3.0, 5.0), "b": (2.0, 4.0), "c": (2.0, 3.0), "d": (1.0, 0.0)}
    assert n10.cheapest(costs, 4) == {"b", "c"}
    assert n10.cheapest(costs, 100) == {"a", "b", "c"}
    assert n10.cheapest(costs, 0) == set()


def test_a_famous_wrong_guess_is_neither_right_nor_close():
    for guess, wrong in ((n10.guess_flops, 1.25), (n10.guess_momentum, 0.2), (n10.guess_least, 8)):
        said = guess(wrong).message
        assert "that is it" not in said
        assert "close" not in said
        assert "(" in said
    assert "that is it" in n10.guess_flops("1.33").message
