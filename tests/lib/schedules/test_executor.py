"""The executor: whatever the schedule, the plain model's gradients; real threads, real order, errors that arrive."""

import contextlib
import contextvars
import gc
import os
import signal
import threading
import time
import weakref
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lib import schedules
from lib.schedules import Action, Schedule, ScheduleError
from lib.schedules.executor import Executor, run
from lib.schedules.makers import MAKERS
from lib.streams import PretendGPU
from lib.streams.stand_in import in_place_of_cuda
from tests.lib.models import Function, hooked
from tests.lib.refusal import refuses
from tests.lib.schedules.small_stages import data, mlp, plain_grads

every_schedule = pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
split_or_not = pytest.mark.parametrize("make", [schedules.one_f_one_b, schedules.zero_bubble_h1])


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
    assert trace.lanes == predicted.lanes == ("rank 0", "rank 1")
    assert trace.start == 0
    for rank, lane in enumerate(trace.lanes):
        assert [span.label for span in trace.only(lane=lane)] == [str(a) for a in schedule.actions(rank)]
    assert {span.label: span.kind for span in trace} == {span.label: span.kind for span in predicted}
    ends = {span.label: span.end for span in trace}
    for span in trace:
        if span.kind == "forward" and not span.label.startswith("0"):
            stage, micro_batch = span.label.split("F")
            assert ends[f"{int(stage) - 1}F{micro_batch}"] <= span.start


def test_gradients_add_up_as_with_backward():
    stages = mlp(2)
    gradients = []
    for _ in range(2):
        run(schedules.zero_bubble_h1(4, 2), stages, *data(8), F.mse_loss)
        gradients.append([parameter.grad.clone() for stage in stages for parameter in stage.parameters()])
    torch.testing.assert_close(gradients[1], [2 * grad for grad in gradients[0]])


def test_a_rank_without_work_has_its_lane():
    schedule = Schedule("idle", [[], schedules.gpipe(2, 1).actions(0)])
    _, trace = run(schedule, mlp(1), *data(2), F.mse_loss)
    assert trace.lanes == ("rank 0", "rank 1")
    assert trace.busy("rank 0") == 0


def test_stages_of_one_rank_may_share_their_weights():
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
    for count in (1, 4):
        losses, _ = run(schedules.gpipe(3, 2), stages, x, (target,) * count, lambda y, t: F.mse_loss(y, t[-1]))
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


@split_or_not
def test_a_tuple_of_one_tensor_is_passed_as_a_tuple(make):
    of_one = [Function(lambda x: (x,)), nn.Sequential(Function(torch.cat), *mlp(1))]
    assert_like_plain(make(4, 2), of_one, *data(8), F.mse_loss)


@split_or_not
def test_an_input_that_requires_a_gradient_gets_one_also_through_what_the_caller_computed_before(make):
    x, target = data(6)
    weight = torch.ones(4, dtype=torch.float64, requires_grad=True)
    stages = mlp(2)
    ours = x.clone().requires_grad_()
    run(make(3, 2), stages, ours * weight, target, F.mse_loss)
    theirs = x.clone().requires_grad_()
    F.mse_loss(nn.Sequential(*stages)(theirs * weight), target).backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


@split_or_not
def test_what_is_left_unused_needs_no_backward(make):
    x, target = data(6)
    stages = [*mlp(1), Function(lambda x: x.detach()), *mlp(1)]
    unused = x.clone().requires_grad_()
    run(make(2, 3), stages, unused, target, F.mse_loss)
    assert unused.grad is None
    assert stages[0][0].weight.grad is None
    assert stages[2][0].weight.grad is not None


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


def test_autocast_holds_in_the_ranks_and_gradients_have_their_weights_dtype():
    seen = set()

    def look(x):
        seen.add(x.dtype)
        return x

    def loss(y, t):
        return F.mse_loss(look(y).float(), t)

    stages = [nn.Sequential(*mlp(1, dtype=torch.float32), Function(look)), nn.Linear(4, 4)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        run(schedules.one_f_one_b(2, 2), stages, *data(4, dtype=torch.float32), loss)
    assert torch.bfloat16 in seen
    assert stages[1].weight.grad.dtype == torch.float32


@pytest.mark.parametrize("count", [1, 2])
def test_the_number_of_threads_holds_in_the_ranks(count):
    seen = set()

    def look(x):
        seen.add(torch.get_num_threads())
        return x

    stages = [nn.Sequential(Function(look), layer) for layer in mlp(2)]
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(count)
        run(schedules.gpipe(2, 2), stages, *data(4), F.mse_loss)
    finally:
        torch.set_num_threads(before)
    assert seen == {count}


def test_dropout_of_a_seeded_run_is_the_same_in_any_order():
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


def test_every_micro_batch_draws_other_numbers_at_every_stage():
    seen = []

    def draw(x):
        seen.append(torch.rand(()).item())
        return x

    stages = [nn.Sequential(Function(draw), layer) for layer in mlp(2)]
    run(schedules.gpipe(3, 2), stages, *data(6), F.mse_loss)
    assert len(seen) == 6
    assert len(set(seen)) == 6


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
    assert peaks == schedules.live_activations(schedule)
    assert executor.live == peaks
    assert [len(each) for each in alive] == [0, 0, 0]


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
        assert len(seen) == 2
        assert [ref() for ref in (*seen, *seen_targets)] == [None] * 4
    finally:
        gc.enable()
    assert not rank_threads()


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
    assert caught.value is error
    assert error.__notes__ == ["while doing 1F2 on rank 1"]
    assert not rank_threads(), "the other ranks have ended"
    _, trace = executor.run(*data(12), F.mse_loss)
    assert len(trace) == 6 * 3 * 2
    assert trace.start == 0


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
    "stages, error, words",
    [
        (mlp(3), ValueError, "has 2 stages; 3 modules"),
        ([*mlp(1), abs], TypeError, "stage 1 is a builtin_function_or_method"),
        ([None, *mlp(1)], TypeError, "stage 0 is a NoneType"),
        (mlp(1) * 2, ValueError, "'0.weight' of stage 1 is on ranks 0 and 1"),
    ],
)
def test_stages_that_do_not_fit_are_refused_before_anything_runs(stages, error, words):
    refuses(error, words, Executor, schedules.gpipe(4, 2), stages)


def test_a_rank_computes_on_the_device_where_its_own_stages_are():
    with in_place_of_cuda(PretendGPU(count=2)):
        stages = [nn.Linear(2, 2).to(device) for device in ("cuda:1", "cuda:0")]
        executor = Executor(schedules.gpipe(4, 2), stages)
        assert [str(device) for device in executor.devices] == ["cuda:1", "cuda:0"]
        assert [str(stage.weight.device) for stage in stages] == ["cuda:1", "cuda:0"]


def test_devices_are_one_for_each_rank():
    refuses(ValueError, "has 2 ranks; 1 devices", Executor, schedules.gpipe(4, 2), mlp(2), devices=["cpu"])


def test_a_table_that_cannot_run_is_refused():
    refuses(ScheduleError, "needs 0F0", Executor, Schedule("", [[Action("B", 0, 0), Action("F", 0, 0)]]), mlp(1))


X, TARGET = data(8)


@pytest.mark.parametrize(
    "x, target, error, words",
    [
        ([*"text"], TARGET, TypeError, "tuple of Tensors, but got str"),
        (X[:3], TARGET[:3], ValueError, "4 micro-batches; inputs make 3"),
        (X, [TARGET, TARGET], ValueError, "4 micro-batches; targets make 2"),
        (X.chunk(8), TARGET, ValueError, "inputs make 1; a tuple is one input of 8 tensors: give .* as a list"),
        # the last loss would be one of broadcasting
        (X, TARGET[:7], ValueError, r"\[2, 2, 2, 2\] rows of inputs, but \[2, 2, 2, 1\] of targets"),
        ([*X.split([1, 5, 1, 1])], TARGET, ValueError, r"\[1, 5, 1, 1\] rows of inputs, but \[2, 2, 2, 2\] of targets"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused(x, target, error, words):
    refuses(error, words, run, schedules.gpipe(4, 2), mlp(2), x, target, F.mse_loss)


def test_a_stage_returns_tensors():
    stages = [Function(lambda x: [x]), *mlp(1)]
    refuses(TypeError, "Tensors, but got list", run, schedules.gpipe(4, 2), stages, X, TARGET, F.mse_loss)


def test_an_unknown_reduction_is_refused():
    words = "'mean' or 'sum', not 'none'"
    refuses(ValueError, words, run, schedules.gpipe(4, 2), mlp(2), X, TARGET, F.mse_loss, reduction="none")


def test_a_missing_loss_function_is_refused_before_anything_runs():
    words = "loss_fn must be a function of output and target, such as F.mse_loss, not None"
    refuses(TypeError, words, run, schedules.gpipe(4, 2), mlp(2), X, TARGET, None)


def test_stages_see_the_callers_contextvars():
    number = contextvars.ContextVar("number", default=1)
    seen = []
    stages = [nn.Sequential(mlp(1)[0], Function(lambda x: (seen.append(number.get()), x)[1])) for _ in range(2)]
    token = number.set(9)
    run(schedules.gpipe(2, 2), stages, *data(4), F.mse_loss)
    number.reset(token)
    assert seen == [9] * 4
