"""The executor: whatever the schedule, the plain model's gradients; real threads, real order, errors that arrive."""

import contextlib
import copy
import gc
import os
import signal
import threading
import time
import weakref
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from lib import schedules
from lib.schedules import Action, Costs, Schedule, ScheduleError
from lib.schedules.costs import measure_costs
from lib.schedules.executor import Executor, run
from lib.schedules.makers import MAKERS
from lib.schedules.split_backward import backward_input
from lib.timeline import Trace
from tests.lib.models import Function, hooked
from tests.lib.refusal import refuses

every_schedule = pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
split_or_not = pytest.mark.parametrize("make", [schedules.one_f_one_b, schedules.zero_bubble_h1])


def mlp(stages, width=4, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    layers = [nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.LayerNorm(width)) for _ in range(stages)]
    for parameter in nn.Sequential(*layers).parameters():
        nn.init.uniform_(parameter, -1, 1, generator=generator)
    return [layer.to(dtype) for layer in layers]


def data(rows, width=4, dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    return tuple(torch.randn(rows, width, dtype=dtype, generator=generator) for _ in range(2))


def plain_grads(stages, x, target, loss_fn):
    plain = nn.Sequential(*copy.deepcopy(stages))
    plain.zero_grad()
    loss = loss_fn(plain(x), target)
    loss.backward()
    return loss.detach(), [parameter.grad for parameter in plain.parameters()]


def assert_like_plain(schedule, stages, x, target, loss_fn, reduction="mean"):
    loss, expected = plain_grads(stages, x, target, loss_fn)
    losses, trace = run(schedule, stages, x, target, loss_fn, reduction=reduction)
    torch.testing.assert_close(sum(losses), loss)
    for parameter, grad in zip(nn.Sequential(*stages).parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, grad)
    return losses, trace


def rank_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("rank ")]


@every_schedule
def test_every_rank_does_its_actions_in_order_and_each_has_its_span(maker):
    schedule = maker.table(8, 2, 2)
    _, trace = run(schedule, mlp(schedule.stages), *data(8), F.mse_loss)
    predicted = schedules.simulate(schedule)
    assert trace.lanes == predicted.lanes == ("rank 0", "rank 1") and trace.start == 0
    for rank, lane in enumerate(trace.lanes):
        assert [span.label for span in trace.only(lane=lane)] == [str(a) for a in schedule.actions(rank)]
    assert {span.label: span.kind for span in trace} == {span.label: span.kind for span in predicted}
    ends = {span.label: span.end for span in trace}
    for span in trace:
        if span.kind == "forward" and not span.label.startswith("0"):
            stage, micro_batch = span.label.split("F")
            assert ends[f"{int(stage) - 1}F{micro_batch}"] <= span.start


def test_gradients_add_up_as_with_backward_and_a_rank_without_work_has_its_lane():
    schedule = schedules.zero_bubble_h1(4, 2)
    stages = mlp(2)
    x, target = data(8)
    gradients = []
    for _ in range(2):
        run(schedule, stages, x, target, F.mse_loss)
        gradients.append([parameter.grad.clone() for stage in stages for parameter in stage.parameters()])
    torch.testing.assert_close(gradients[1], [2 * grad for grad in gradients[0]])
    _, trace = run(Schedule("idle", [[], schedules.gpipe(2, 1).actions(0)]), mlp(1), *data(2), F.mse_loss)
    assert trace.lanes == ("rank 0", "rank 1") and trace.busy("rank 0") == 0
    stages = mlp(4)
    stages[3] = stages[0]  # rank 0 has both
    assert_like_plain(schedules.zbv(4, 2), stages, *data(8), F.mse_loss)


def test_micro_batches_may_be_cut_by_the_caller_and_targets_be_anything():
    stages = mlp(2)
    x, target = data(6)
    loss, expected = plain_grads(stages, x, target, F.mse_loss)
    targets = [{"y": part} for part in target.split(2)]
    losses, _ = run(schedules.gpipe(3, 2), stages, list(x.split(2)), targets, lambda y, t: F.mse_loss(y, t["y"]))
    torch.testing.assert_close(sum(losses), loss)
    torch.testing.assert_close(stages[0][0].weight.grad, expected[0])
    losses, _ = run(schedules.gpipe(3, 2), stages, x, (target,) * 4, lambda y, t: F.mse_loss(y, t[3]))
    torch.testing.assert_close(sum(losses), loss)


@split_or_not
def test_tuples_with_masks_and_indices_pass_from_stage_to_stage(make):
    class Use(nn.Linear):
        def forward(self, inputs):
            index, x, mask, y = inputs
            return index, super().forward(x) * mask + index[:, None], mask, y

    torch.manual_seed(0)
    stages = [
        Function(lambda x: (torch.arange(len(x)) % 2, x, x > 0, x.sin())),
        Use(4, 4).double(),
        Use(4, 4).double(),
        nn.Sequential(Function(lambda inputs: inputs[1] + inputs[2] * inputs[3]), mlp(1)[0]),
    ]
    assert_like_plain(make(4, 4), stages, *data(8), F.mse_loss)
    of_one = [Function(lambda x: (x,)), nn.Sequential(Function(torch.cat), *mlp(1))]
    assert_like_plain(make(4, 2), of_one, *data(8), F.mse_loss)


@split_or_not
def test_an_input_that_requires_a_gradient_gets_one_and_what_is_left_unused_needs_no_backward(make):
    x, target = data(6)
    weight = torch.ones(4, dtype=torch.float64, requires_grad=True)
    ours = x.clone().requires_grad_()
    theirs = x.clone().requires_grad_()
    stages = mlp(2)
    run(make(3, 2), stages, ours * weight, target, F.mse_loss)  # also through what the caller computed before
    F.mse_loss(nn.Sequential(*stages)(theirs * weight), target).backward()
    torch.testing.assert_close(ours.grad, theirs.grad)
    stages = [*mlp(1), Function(lambda x: x.detach()), *mlp(1)]
    unused = x.clone().requires_grad_()
    run(make(2, 3), stages, unused, target, F.mse_loss)
    assert unused.grad is stages[0][0].weight.grad is None and stages[2][0].weight.grad is not None


@split_or_not
def test_a_stage_may_begin_in_place_as_any_layer_of_the_plain_model(make):
    in_place = nn.Sequential(nn.ReLU(inplace=True), mlp(1)[0])
    assert_like_plain(make(4, 2), [mlp(1)[0], in_place], *data(8), F.mse_loss)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):  # what tanh has saved
        run(make(4, 2), [nn.Sequential(mlp(1)[0], nn.Tanh()), in_place], *data(8), F.mse_loss)


@split_or_not
def test_a_model_without_anything_to_train_is_an_error_as_with_backward_and_so_is_no_grad(make):
    with pytest.raises(RuntimeError, match="does not require grad"):
        run(make(2, 2), [stage.requires_grad_(False) for stage in mlp(2)], *data(4), F.mse_loss)
    with torch.no_grad(), pytest.raises(RuntimeError, match="outside of no_grad"):
        run(make(2, 2), mlp(2), *data(4), F.mse_loss)
    with torch.inference_mode(), torch.enable_grad(), pytest.raises(RuntimeError, match="and inference_mode"):
        run(make(2, 2), mlp(2), *data(4), F.mse_loss)


def test_autocast_and_the_number_of_threads_hold_in_the_ranks_and_gradients_have_their_weights_dtype():
    seen = set()
    stages = [nn.Sequential(*mlp(1, dtype=torch.float32), Function(lambda x: seen.add(x.dtype) or x))]
    stages += [nn.Linear(4, 4)]
    x, target = data(4, dtype=torch.float32)
    loss = lambda y, t: seen.add(y.dtype) or F.mse_loss(y.float(), t)  # noqa: E731
    with torch.autocast("cpu", dtype=torch.bfloat16):
        run(schedules.one_f_one_b(2, 2), stages, x, target, loss)
    assert torch.bfloat16 in seen and stages[1].weight.grad.dtype == torch.float32
    seen = set()
    before = torch.get_num_threads()
    stages = [nn.Sequential(Function(lambda x: seen.add(torch.get_num_threads()) or x), layer) for layer in mlp(2)]
    try:
        for count in (1, 2):
            seen.clear()
            torch.set_num_threads(count)
            run(schedules.gpipe(2, 2), stages, *data(4), F.mse_loss)
            assert seen == {count}
    finally:
        torch.set_num_threads(before)


def test_dropout_of_a_seeded_run_is_the_same_in_any_order_and_each_micro_batch_has_its_own():
    def gradient(make, delays):
        def wait(x):
            time.sleep(delays.pop() if delays else 0)
            return x

        stages = [nn.Sequential(Function(wait), layer, nn.Dropout(0.5)) for layer in mlp(2)]
        torch.manual_seed(3)
        losses, _ = run(make(4, 2), stages, *data(8), F.mse_loss)
        return [float(loss) for loss in losses], stages[0][1][0].weight.grad

    expected = gradient(schedules.gpipe, [])
    for make, delays in ((schedules.gpipe, [0.01, 0.0, 0.02]), (schedules.one_f_one_b, [0.0, 0.02, 0.01])):
        found = gradient(make, delays)
        assert found[0] == expected[0]
        torch.testing.assert_close(found[1], expected[1])
    seen = []
    stages = [nn.Sequential(Function(lambda x: seen.append(torch.rand(()).item()) or x), layer) for layer in mlp(2)]
    run(schedules.gpipe(3, 2), stages, *data(6), F.mse_loss)
    assert len(set(seen)) == len(seen) == 6


@pytest.mark.parametrize("make", [schedules.gpipe, schedules.one_f_one_b, schedules.zero_bubble_h1])
def test_the_tensors_that_autograd_saves_are_as_many_as_counted(make):
    schedule = make(6, 3)
    alive = [weakref.WeakSet() for _ in range(3)]
    peaks = [0] * 3

    def save(x, rank):
        kept = torch.zeros(1)  # a tensor that lives exactly as long as this node's graph
        alive[rank].add(kept)
        peaks[rank] = max(peaks[rank], len(alive[rank]))
        return hooked(x, lambda _, kept=kept: None)

    stages = [
        nn.Sequential(layer, Function(partial(save, rank=rank)), nn.Linear(4, 4).double())
        for rank, layer in enumerate(mlp(3))
    ]
    executor = Executor(schedule, stages)
    assert executor.live == [0, 0, 0], "nothing has run"
    executor.run(*data(6), F.mse_loss)
    assert peaks == executor.live == schedules.live_activations(schedule) and not any(map(len, alive))


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_of_a_run_stays_not_even_of_one_that_failed(fails):
    stages = mlp(2)
    x, target = data(4)
    seen = []

    def note(y):
        seen.append(weakref.ref(y))
        if fails and len(seen) == 2:
            raise ArithmeticError
        return y

    stages[1].append(Function(note))
    targets = list(target.split(2))
    seen_targets = [weakref.ref(part) for part in targets]
    gc.collect()
    gc.disable()
    try:
        with contextlib.suppress(ArithmeticError):
            run(schedules.zero_bubble_h1(2, 2), stages, x, targets, F.mse_loss)
        del targets
        assert len(seen) == 2 and not any(ref() is not None for ref in (*seen, *seen_targets))
    finally:
        gc.enable()
    assert not rank_threads()


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.eye(4, dtype=torch.float64) / 2)
        self.other = nn.Parameter(torch.ones(4, dtype=torch.float64))

    def forward(self, x):
        y = (x @ self.weight).tanh() @ self.weight + self.other
        return y * self.weight.sum() + self.other.exp()


class Attention(nn.MultiheadAttention):
    def forward(self, x):
        return super().forward(x, x, x)[0]


@pytest.mark.parametrize(
    "layers",
    [
        lambda: mlp(3),
        lambda: [Shared(), *mlp(1), Shared()],
        lambda: [nn.utils.parametrizations.weight_norm(nn.Linear(4, 4).double()) for _ in range(2)],
        lambda: [Attention(4, 2, batch_first=True).double(), Function(lambda y: y)],
        lambda: [nn.Conv1d(3, 3, 1).double(), nn.BatchNorm1d(3).double()],
    ],
    ids=["mlp", "shared", "weight norm", "attention", "convolution"],
)
def test_the_two_halves_make_a_whole(layers):
    torch.manual_seed(0)
    module = nn.Sequential(*layers())
    x, grad = torch.randn(2, 5, 3, 4, dtype=torch.float64)
    whole, leaf = (x.clone().requires_grad_() for _ in range(2))
    module(whole).backward(grad)
    by_weight = [parameter.grad.clone() for parameter in module.parameters()]
    module.zero_grad()
    (found,), later = backward_input([module(leaf)], [grad], [leaf])
    assert all(parameter.grad is None for parameter in module.parameters()), "I leaves the weights alone"
    torch.testing.assert_close(found, whole.grad)
    later()
    torch.testing.assert_close([parameter.grad for parameter in module.parameters()], by_weight)


def test_no_matrix_product_is_done_twice_and_outputs_that_lead_to_weights_only_share_what_they_can():
    def flops(work):
        with FlopCounterMode(display=False) as counter:
            work()
        return counter.get_total_flops()

    x = torch.ones(4, 8, requires_grad=True)
    halves = []
    y = nn.Sequential(*[nn.Linear(8, 8) for _ in range(3)])(x)
    whole = flops(lambda: y.sum().backward(retain_graph=True))
    inputs = flops(lambda: halves.extend(backward_input([y], [torch.ones_like(y)], [x])))
    assert inputs == flops(lambda: halves[1]()) == whole / 2

    def gradients(backward):
        weight = nn.Parameter(torch.ones(3))
        x = torch.ones(3, requires_grad=True)
        ones = torch.ones(3)
        shared = weight.exp()
        backward([x * shared, shared.sin()], [ones, ones], x)
        return x.grad, weight.grad

    def in_halves(outputs, grads, x):
        (x.grad,), later = backward_input(outputs, grads, [x])
        later()

    torch.testing.assert_close(gradients(in_halves), gradients(lambda ys, gs, _: torch.autograd.backward(ys, gs)))


def test_without_a_gradient_for_the_input_all_is_left_to_the_weights_and_one_that_passes_unchanged_is_not_shared():
    module = nn.Linear(4, 4)
    x = torch.ones(2, 4)
    found, later = backward_input([module(x)], [torch.ones(2, 4)], [x])
    assert found == [None] and module.weight.grad is None
    later()
    assert module.weight.grad is not None
    bias = nn.Parameter(torch.zeros(3))
    x = torch.zeros(3, requires_grad=True)
    (found,), later = backward_input([x + bias], [torch.ones(3)], [x])
    later()
    bias.grad.zero_()
    assert found.tolist() == [1, 1, 1]
    same, unused = (torch.zeros(3, requires_grad=True) for _ in range(2))  # a stage may return what it was given
    found, later = backward_input([same], [torch.ones(3)], [same, unused])
    later()
    assert found[0].tolist() == [1, 1, 1] and found[1] is same.grad is None
    found, _ = backward_input([same.cos(), unused.exp()], [torch.ones(3)] * 2, [same, unused])
    assert [x.tolist() for x in found] == [[0] * 3, [1] * 3]


def test_a_custom_function_may_give_a_weight_no_gradient_and_its_output_be_gone():
    class Times(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight, *unused):
            ctx.save_for_backward(x, weight)
            return x * weight

        @staticmethod
        def backward(ctx, grad):
            x, weight = ctx.saved_tensors
            return grad * weight, grad * x, *[None] * 5

    weight, *unused = (nn.Parameter(torch.full((3,), 5.0)) for _ in range(6))
    x = torch.full((3,), 7.0, requires_grad=True)
    (found,), later = backward_input([Times.apply(x, weight, *unused)], [torch.ones(3)], [x])
    gc.collect()
    later()
    assert found.tolist() == [5, 5, 5] and weight.grad.tolist() == [7, 7, 7]
    assert all(other.grad is None for other in unused)


def test_an_error_keeps_its_object_and_names_the_action_and_the_next_run_knows_nothing_of_it():
    error = ArithmeticError("here")

    def fails(x):
        seen.append(x)
        if len(seen) == 3:
            raise error
        return x

    stages = mlp(3)
    seen = []
    stages[1].append(Function(fails))
    executor = Executor(schedules.one_f_one_b(6, 3), stages)
    with pytest.raises(ArithmeticError) as caught:
        executor.run(*data(12), F.mse_loss)
    assert caught.value is error and caught.value.__notes__ == ["while doing 1F2 on rank 1"]
    assert not rank_threads(), "the other ranks have ended"
    _, trace = executor.run(*data(12), F.mse_loss)
    assert len(trace) == 6 * 3 * 2 and trace.start == 0


@every_schedule
def test_nothing_hangs_when_a_backward_fails(maker):
    schedule = maker.table(8, 2, 2)
    stages = mlp(schedule.stages)
    stages[1].append(Function(lambda x: hooked(x, lambda _: 1 / 0)))
    with pytest.raises(ZeroDivisionError) as caught:
        run(schedule, stages, *data(8), F.mse_loss)
    rank = schedule.rank_of[1]
    first = next(action for action in schedule.actions(rank) if action.stage == 1 and action.op in "BI")
    assert caught.value.__notes__ == [f"while doing {first} on rank {rank}"]


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, "ctrl-c"])
def test_even_an_exit_or_ctrl_c_in_a_stage_reaches_the_caller_and_ends_all_ranks(kind):
    def fails(x):
        if kind != "ctrl-c":
            raise kind
        os.kill(os.getpid(), signal.SIGINT)  # as the terminal does
        time.sleep(0.1)
        return x

    with pytest.raises(KeyboardInterrupt if kind == "ctrl-c" else kind):
        run(schedules.gpipe(200, 2), [Function(fails), *mlp(1)], *data(200), F.mse_loss)
    assert not rank_threads()


@pytest.mark.parametrize("loss, found", [(lambda y, t: y, "shape (2, 4)"), (lambda y, t: y.sum().item(), "float")])
def test_a_loss_is_one_number(loss, found):
    with pytest.raises(TypeError, match="one number") as caught:
        run(schedules.gpipe(2, 2), mlp(2), *data(4), loss)
    assert found in str(caught.value)


@pytest.mark.parametrize(
    "refused, error, words",
    [
        (lambda s, x, t: Executor(s, mlp(3)), ValueError, "has 2 stages; 3 modules"),
        (lambda s, x, t: Executor(s, mlp(2), devices=["cpu"]), ValueError, "has 2 ranks; 1 devices"),
        (lambda s, x, t: Executor(s, [*mlp(1), lambda x: x]), TypeError, "stage 1 is a function"),
        (lambda s, x, t: Executor(s, [None, *mlp(1)]), TypeError, "stage 0 is a NoneType"),
        (lambda s, x, t: Executor(s, mlp(1) * 2), ValueError, "'0.weight' of stage 1 is on ranks 0 and 1"),
        (lambda s, x, t: run(s, mlp(2), [*"text"], t, F.mse_loss), TypeError, "tuple of Tensors, but got str"),
        (lambda s, x, t: run(s, [Function(lambda x: [x])] * 2, x, t, None), TypeError, "Tensors, but got list"),
        (lambda s, x, t: run(s, mlp(2), x[:3], t[:3], F.mse_loss), ValueError, "4 micro-batches; inputs make 3"),
        (lambda s, x, t: run(s, mlp(2), x, [t, t], F.mse_loss), ValueError, "4 micro-batches; targets make 2"),
        (
            lambda s, x, t: run(s, mlp(2), x, t[:7], F.mse_loss),  # the last loss would be one of broadcasting
            ValueError,
            r"\[2, 2, 2, 2\] rows of inputs, but \[2, 2, 2, 1\] of targets",
        ),
        (
            lambda s, x, t: run(s, mlp(2), list(x.split([1, 5, 1, 1])), t, F.mse_loss),
            ValueError,
            r"\[1, 5, 1, 1\] rows of inputs, but \[2, 2, 2, 2\] of targets",
        ),
        (lambda s, x, t: run(s, mlp(2), x, t, None, reduction="none"), ValueError, "'mean' or 'sum', not 'none'"),
        (lambda s, x, t: Executor(Schedule("", [[Action("B", 0, 0), Action("F", 0, 0)]]), mlp(1)), ScheduleError, ""),
    ],
)
def test_what_does_not_fit_is_refused_at_once(refused, error, words):
    refuses(error, words, refused, schedules.gpipe(4, 2), *data(8))


@split_or_not
def test_costs_are_measured_per_stage_and_predict_which_rank_waits(make):
    schedule = make(6, 2)
    slow = nn.Sequential(*mlp(1), Function(lambda x: time.sleep(0.05) or x))
    stages = [slow, *mlp(1)]
    tries = [measure_costs(schedule, stages, *data(12), F.mse_loss, repeats=3) for _ in range(3)]
    # the least of each: beside other work a stage that does nothing may take long, but hardly three times
    costs = Costs(*(each[0] if each[0] is None else [*map(min, *each)] for each in zip(*tries, strict=True)))
    assert [len(each) for each in costs if each] == [2] * (2 if costs.weight is None else 3)
    assert costs.forward[0] > max(0.05, costs.forward[1])
    predicted = schedules.simulate(schedule, *costs)
    runs = [run(schedule, stages, *data(12), F.mse_loss)[1] for _ in range(3)]
    measured = min(runs, key=lambda trace: trace.busy("rank 1"))
    assert measured.busy("rank 0") > measured.busy("rank 1") and predicted.busy("rank 0") > predicted.busy("rank 1")


def test_costs_are_medians_without_the_run_that_warms_up(monkeypatch):
    class Clocked(Executor):
        def run(self, *arguments, **more):
            def span(measured):
                op, stage, i = Action.parse(measured.label)
                end = {"F": 1, "I": 2, "W": 4, "B": 8}[op] * (stage + 1) * (99, 1, 5, 3)[i]
                return replace(measured, start=0, end=end)

            losses, trace = super().run(*arguments, **more)
            return losses, Trace(map(span, trace))

    monkeypatch.setattr("lib.schedules.costs.Executor", Clocked)
    found = measure_costs(schedules.zero_bubble_h1(2, 2), mlp(2), *data(4), F.mse_loss, repeats=3)
    assert found == ([3, 6], [6 + 12, 12 + 24], [12, 24])
    found = measure_costs(schedules.one_f_one_b(2, 2), mlp(2), *data(4), F.mse_loss, repeats=3)
    assert found == ([3, 6], [24, 48], None)
    with pytest.raises(ValueError, match="repeats must be at least 1, not 0"):
        measure_costs(schedules.one_f_one_b(2, 2), mlp(2), *data(4), F.mse_loss, repeats=0)


def test_measuring_costs_leaves_no_trace_and_the_graph_and_gradient_of_the_inputs_alone():
    stages = [nn.Sequential(layer, nn.BatchNorm1d(4).double()) for layer in mlp(2)]
    x, target = data(8)
    run(schedules.gpipe(2, 2), stages, x, target, F.mse_loss)
    grads = [parameter.grad for stage in stages for parameter in stage.parameters()]
    values = [grad.clone() for grad in grads]
    state = torch.get_rng_state()
    norms = copy.deepcopy([stage.state_dict() for stage in stages])
    measure_costs(schedules.one_f_one_b(2, 2), stages, x, target, F.mse_loss, repeats=1)
    assert all(p.grad is g for p, g in zip(nn.Sequential(*stages).parameters(), grads, strict=True))
    torch.testing.assert_close(grads, values)
    assert torch.equal(torch.get_rng_state(), state)
    torch.testing.assert_close([stage.state_dict() for stage in stages], norms)
    schedule = schedules.zero_bubble_h1(2, 2)
    inputs = x.requires_grad_().tanh()
    measure_costs(schedule, stages, inputs, target, F.mse_loss, repeats=1)
    assert x.grad is None
    run(schedule, stages, inputs, target, F.mse_loss)
    assert x.grad is not None
