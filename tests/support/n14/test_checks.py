"""What is particular about the checks of notebook 14; what all exercises have in common is in test_detectors."""

import itertools

import pytest
import torch

from lib import schedules
from lib.schedules import gpipe, live_activations, simulate, waits_for, zbv, zero_bubble_h1
from support.kit.mistakes import edited
from support.n14 import checks as n14
from support.n14 import solved
from support.n14.warm_up import with_warm_up
from tests.lib.refusal import refuses

SIZES = list(itertools.product((1, 2, 5, 8, 20), range(1, 6)))


@pytest.mark.parametrize("message", [0, 0.1, 0.5, 1, 2, 4])
def test_the_warm_up_is_as_fast_as_gpipe_and_with_one_forward_less_a_long_step_is_slower(message):
    for m, n in SIZES:
        ahead = [solved.forwards_ahead(j, n, 1, 2, message) for j in range(n)]
        found, best = (simulate(s, communicate=message).makespan for s in (with_warm_up("", m, ahead), gpipe(m, n)))
        assert found == pytest.approx(best)
    ahead = [solved.forwards_ahead(j, 4, 1, 2, message) for j in range(4)]
    short = with_warm_up("", 64, [ahead[0] - 1, *ahead[1:]])
    assert simulate(short, communicate=message).makespan > simulate(gpipe(64, 4), communicate=message).makespan + 0.5


@pytest.mark.parametrize("message", [0, 0.25, 2])
def test_with_the_warm_up_a_rank_never_waits_from_its_first_backward_to_its_last_forward_with_less_it_does(message):
    def waiting(ahead):
        table = with_warm_up("", 30, ahead)
        rows = [table.actions(rank) for rank in range(4)]
        ranks = []
        for rank, _, _, action, _ in waits_for(table, communicate=message):
            ops = [one.op for one in rows[rank]]
            steady = range(ops.index("B") + 1, len(ops) - ops[::-1].index("F"))
            if action is not None and rows[rank].index(action) in steady:
                ranks.append(rank)
        return ranks

    ahead = [solved.forwards_ahead(j, 4, 1, 2, message) for j in range(4)]
    assert waiting(ahead) == []
    for j in range(3):
        assert waiting([*ahead[:j], ahead[j] - 1, *ahead[j + 1 :]]).count(j) > 3


def test_what_the_reader_writes_equals_lib_and_idles_as_the_formulas_say():
    for n, groups, v in itertools.product(range(1, 5), (1, 2, 3), (1, 2, 3)):
        m = n * groups
        mine = solved.table("", solved.interleaved(m, n, v))
        assert mine.ranks == schedules.interleaved_one_f_one_b(m, n, v).compact().ranks
        assert simulate(mine, 1 / v, 2 / v).bubble == pytest.approx((n - 1) / (v * m + n - 1))
    for m, n in SIZES:
        mine = solved.table("", solved.zb_h1(m, n))
        assert mine.ranks == zero_bubble_h1(m, n).compact().ranks
        assert max(live_activations(mine)) == min(m, n)
        for f, i, w in ((1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 1.5), (0.5, 2, 1)) if m >= n else ():
            idle = simulate(mine, f, i + w, w).makespan - m * (f + i + w)
            assert idle == pytest.approx((n - 1) * max(f + i - w, f, i))


def test_only_steps_of_zb_v_fit_into_each_other_and_a_longer_warm_up_needs_longer_ones_in_front():
    table = zbv(8, 4)
    ends = [simulate(n14.in_a_row(table, k), 0.5, 1).makespan for k in (1, 2, 3)]
    assert ends == [25.5, 49.5, 73.5]
    for made in (gpipe(8, 4), schedules.one_f_one_b(8, 4), zero_bubble_h1(8, 4), schedules.dualpipe_v(8, 4)):
        share = 4 / made.stages
        trace = simulate(made, share, 2 * share)
        first = trace.only(lane="rank 0")
        assert (first.start, first.end) == (0, trace.end)
    ticks = [simulate(with_warm_up("", 32, ahead)).makespan for ahead in ((4, 3, 2, 1), (9, 5, 3, 1), (8, 8, 8, 8))]
    assert ticks == [105, 105, 321]
    refuses(schedules.ScheduleError, "", simulate, with_warm_up("", 32, (4, 8, 3, 1)))


def test_split_linear_may_be_written_otherwise_and_what_it_keeps_too_long_is_seen():
    class Detached(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight, later):
            ctx.save_for_backward(x, weight)
            ctx.put = later.append
            return torch.nn.functional.linear(x, weight)

        @staticmethod
        def backward(ctx, gradient):
            x, weight = (kept.detach() for kept in ctx.saved_tensors)
            real = ctx.saved_tensors[1]

            def do(x=x, gradient=gradient):
                if real.grad is None:
                    real.grad = torch.zeros_like(real)
                real.grad += torch.einsum("ro,ri->oi", gradient, x)

            ctx.put(do)
            return gradient.mm(weight), None, None

    assert n14.check_split(Detached)
    kept = []

    class Keeps(Detached):
        @staticmethod
        def forward(ctx, x, weight, later):
            kept.append(x)
            return Detached.forward(ctx, x, weight, later)

        @staticmethod
        def backward(ctx, gradient):
            return Detached.backward(ctx, gradient)

    assert "x is still alive" in n14.check_split(Keeps).message
    for said, old, new in (
        ("cannot be called", "append(add_to_weight)", "append(add_to_weight())"),
        ("is None at first", "part if weight.grad is None else weight.grad + part", "weight.grad + part"),
    ):
        assert said in n14.check_split(edited(solved.SplitLinear, (old, new))).message
    assert "100: fewer are enough" in n14.check_forwards_ahead(lambda **case: 100).message


def test_what_others_let_go_of_meanwhile_hides_nothing_that_is_kept():
    others = [torch.ones(1000)]

    class CopiesTheInput(solved.SplitLinear):
        @staticmethod
        def forward(ctx, x, weight, later):
            others.clear()
            return solved.SplitLinear.forward(ctx, x.clone(), weight, later)

        @staticmethod
        def backward(ctx, gradient):
            return solved.SplitLinear.backward(ctx, gradient)

    assert "after F 160 bytes are kept" in n14.check_split(CopiesTheInput).message


def test_half_of_the_bubble_is_not_that_of_half_stages_and_no_list_no_whole_number_no_answer():
    for said in (16, 15.8, 0.158, "16 %", "15.79%"):
        assert "that is it" in n14.guess_interleaved(said, 8, 4, 2).message
    for said in (13.6, 14, 27, 0, "little"):
        assert "that is it" not in n14.guess_interleaved(said, 8, 4, 2).message
    assert "that is 1F1B" in n14.guess_ahead(4, 32, 4, 0.25).message

    def floats(j, n, forward, backward, message):
        return 1 + (n - 1 - j) * (1 - (-2 * message // (forward + backward)))

    assert "`ceil` gives one" in n14.check_forwards_ahead(floats).message
    made = n14.check_interleaved(lambda m, n, v: solved.table("", solved.interleaved(m, n, v)))
    assert "return the lists of tasks" in made.message
