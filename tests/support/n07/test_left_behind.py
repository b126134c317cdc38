"""Answers that compute what is asked for, and leave something else behind: hooks, weights, an emptied list."""

import pytest
import torch
import torch.nn.functional as F

from support.kit.mistakes import edited
from support.n07 import checks as n07
from support.n07.solved import accumulate, accumulate_jointly, join, saved_bytes
from tests.support.exercises import ask


def taken_off_the_list(model, parts):
    count = sum((y != -100).sum().item() for _, y in parts)
    model.zero_grad()
    total = 0.0
    while parts:
        x, y = parts.pop(0)
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum") / count
        loss.backward()
        total += loss.item()
    return total


def emptied(model, parts):
    total = accumulate(model, parts)
    parts.clear()
    return total


def divided_by_hooks(model, parts):
    count = sum((y != -100).sum().item() for _, y in parts)
    model.zero_grad()
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_hook(lambda gradient: gradient / count)
    total = 0.0
    for x, y in parts:
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum")
        loss.backward()
        total += loss.item()
    return total / count


def stepped(model, parts):
    total = accumulate(model, parts)
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    return total


def clipped(model, parts):
    total = accumulate(model, parts)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
    return total


def wants_gradients_of_parts(model, parts):
    for x, _ in parts:
        x.requires_grad_()
    return accumulate(model, parts)


def wanted_gradients_of_parts(model, parts):
    total = wants_gradients_of_parts(model, parts)
    for x, _ in parts:
        x.requires_grad_(False)
    return total


def without_autograd_from_now_on(model, parts):
    total = accumulate(model, parts)
    torch.set_grad_enabled(False)
    return total


def in_less_digits(model, parts):
    return edited(accumulate, ("flatten(0, 1)", "flatten(0, 1).float()"))(model, parts)


@pytest.mark.parametrize(
    "wrong, says",
    [
        (taken_off_the_list, "your list of parts is no longer what it was"),
        (emptied, "your list of parts is no longer what it was"),
        (divided_by_hooks, "right gradient, but a hook of yours is left on the model"),
        (stepped, "a weight has other numbers now: the step is the optimizer's"),
        (clipped, "a second time with the same model, numbers a thousand times as large: the gradient is"),
        (wants_gradients_of_parts, "the caller's parts require a gradient now"),
        (without_autograd_from_now_on, "right gradient, but autograd is left switched off"),
        (wanted_gradients_of_parts, "the caller's parts have a .grad now"),
    ],
)
def test_an_accumulate_that_leaves_a_trace_is_refused(wrong, says):
    verdict = ask(n07.check_accumulate, wrong)
    assert verdict.status == "wrong", verdict.message
    assert says in verdict.message, verdict.message
    assert torch.is_grad_enabled()


def test_a_gradient_with_less_digits_is_not_told_that_it_is_0_per_cent_away():
    verdict = ask(n07.check_accumulate, in_less_digits)
    assert verdict.status == "wrong", verdict.message
    assert " 0 % of its length" not in verdict.message, verdict.message
    assert "e-06 % of its length" in verdict.message, verdict.message


def silent(forward, there):
    def tried():
        try:
            return forward()
        except Exception:
            return None

    return saved_bytes(tried, there)


def test_a_saved_bytes_that_swallows_an_error_is_refused():
    verdict = ask(n07.check_saved_bytes, silent)
    assert verdict.status == "wrong", verdict.message
    assert "if forward() raises, its error does not reach the caller" in verdict.message, verdict.message


def test_autograd_that_a_joint_step_switches_off_for_ever_is_told_as_what_it_raises():
    wrong = edited(accumulate_jointly, ("with torch.no_grad():", "torch.set_grad_enabled(False)\n    if True:"))
    verdict = ask(n07.check_jointly, wrong)
    assert verdict.message.endswith("`loss.backward()`)."), verdict.message
    assert torch.is_grad_enabled()


def joint_by_a_hook_for_ever(model, parts, loss_of):
    seen = []
    model.register_forward_hook(lambda _module, _given, points: seen.append(points.detach()))
    return accumulate_jointly(model, parts, loss_of)


def joint_and_stepped(model, parts, loss_of):
    total = accumulate_jointly(model, parts, loss_of)
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    return total


def joint_without_autograd_from_now_on(model, parts, loss_of):
    total = accumulate_jointly(model, parts, loss_of)
    torch.set_grad_enabled(False)
    return total


@pytest.mark.parametrize(
    "wrong, says",
    [
        (joint_without_autograd_from_now_on, "right gradient, but autograd is left switched off"),
        (edited(accumulate_jointly, ("loss.item()", "loss.detach()")), "you return a tensor; return a number"),
        (joint_by_a_hook_for_ever, "a hook of yours is left on the model"),
        (joint_and_stepped, "a weight has other numbers now: the step is the optimizer's"),
    ],
)
def test_a_joint_step_returns_a_number_and_leaves_the_weights(wrong, says):
    verdict = ask(n07.check_jointly, wrong)
    assert verdict.status == "wrong", verdict.message
    assert says in verdict.message, verdict.message


def of_each(model, parts, weights):
    """Accumulate by torch.autograd.grad, whatever weights it is given."""
    model.zero_grad()
    count = sum((y != -100).sum().item() for _, y in parts)
    total = 0.0
    for x, y in parts:
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum") / count
        found = torch.autograd.grad(loss, weights, allow_unused=True)
        for weight, gradient in zip(model.parameters(), found, strict=False):
            if gradient is not None:
                weight.grad = gradient if weight.grad is None else weight.grad + gradient
        total += loss.item()
    return total


def by_every_weight(model, parts):
    return of_each(model, parts, list(model.parameters()))


def beside_its_weight(model, parts):
    """Right as long as every weight is trained."""
    return of_each(model, parts, [weight for weight in model.parameters() if weight.requires_grad])


def joint_by_trained_weights(model, parts, loss_of):
    """Right as long as the loss reaches every weight that is trained."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    model.zero_grad()
    with torch.no_grad():
        points = torch.cat([model(part) for part in parts])
    loss = loss_of(points.requires_grad_())
    loss.backward()
    for part, arriving in zip(parts, points.grad.split([len(part) for part in parts]), strict=True):
        for weight, gradient in zip(weights, torch.autograd.grad(model(part), weights, arriving), strict=True):
            weight.grad = gradient if weight.grad is None else weight.grad + gradient
    return loss.item()


def joint_only_if_the_first_is_trained(model, parts, loss_of):
    if next(model.parameters()).requires_grad:
        return accumulate_jointly(model, parts, loss_of)
    with torch.no_grad():
        return loss_of(torch.cat([model(part) for part in parts])).item()


@pytest.mark.parametrize(
    "check, wrong, says",
    [
        (n07.check_accumulate, by_every_weight, "one weight is frozen: your code raised RuntimeError"),
        (n07.check_accumulate, beside_its_weight, "one weight is frozen: your code raised RuntimeError"),
        (
            n07.check_jointly,
            joint_by_trained_weights,
            "the loss does not reach a weight: your code raised RuntimeError",
        ),
        (n07.check_jointly, joint_only_if_the_first_is_trained, "the first weight is frozen: the gradient is"),
    ],
)
def test_a_frozen_weight_or_one_not_reached_leaves_the_others_their_gradient(check, wrong, says):
    verdict = ask(check, wrong)
    assert verdict.status == "wrong", verdict.message
    assert says in verdict.message, verdict.message


def behind_the_loop(model, parts):
    count = sum((y != -100).sum().item() for _, y in parts)
    model.zero_grad()
    total = 0.0
    for x, y in parts:
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum") / count
        total += loss.item()
    loss.backward()
    return total


def joined_by_forward(model, parts):
    x, y = (torch.cat(each) for each in zip(*parts, strict=True))
    model.zero_grad()
    loss = F.cross_entropy(model.forward(x).flatten(0, 1), y.flatten())
    loss.backward()
    for part, _ in parts:
        model(part)
    return loss.item()


def cleared_last(model, parts, loss_of):
    loss = accumulate_jointly(model, parts, loss_of)
    model.zero_grad()
    return loss


SECOND = "model(part).backward(gradient)"
NEW = "storage.data_ptr() not in known"
OUTSIDE = []


def in_a_list_outside(forward, there):
    """Keep each tensor in a list of the notebook's; what the graph holds is detached."""
    OUTSIDE.clear()
    with torch.autograd.graph.saved_tensors_hooks(lambda x: OUTSIDE.append(x) or x.detach(), lambda x: x):
        forward()
    known = {tensor.untyped_storage().data_ptr() for tensor in there}
    storages = {x.untyped_storage().data_ptr(): x.untyped_storage() for x in OUTSIDE}
    return sum(storage.nbytes() for address, storage in storages.items() if address not in known)


@pytest.mark.parametrize(
    "check, wrong, untrue",
    [
        (n07.check_accumulate, behind_the_loop, "cleared"),
        (n07.check_accumulate, joined_by_forward, "wait for a backward"),
        (n07.check_accumulate, edited(accumulate, ("/ count", "/ (count + 1e-8)")), "So small is float32"),
        (n07.check_jointly, edited(accumulate_jointly, (SECOND, "(model(part) * gradient).sum()")), "is missing"),
        (n07.check_jointly, cleared_last, "Nothing has gone backward"),
        (n07.check_saved_bytes, edited(saved_bytes, (NEW, f"{NEW} and tensor.dim() > 1")), "Whole numbers"),
        (n07.check_saved_bytes, in_a_list_outside, "now holds it"),
    ],
)
def test_what_is_said_of_a_slip_holds_of_the_others_that_come_to_the_same(check, wrong, untrue):
    verdict = ask(check, wrong)
    assert verdict.status == "wrong", verdict.message
    assert untrue not in verdict.message, verdict.message


def in_other_digits(model, parts):
    torch.set_default_dtype(torch.float64)
    return accumulate(model, parts)


LAST = "return loss.item()"


@pytest.mark.parametrize(
    "check, wrong, says",
    [
        (
            n07.check_accumulate,
            edited(accumulate, ("return total", "return f'{total}'")),
            "what you return is of type str",
        ),
        (n07.check_accumulate, in_other_digits, "new tensors in another type than before"),
        (
            n07.check_jointly,
            edited(accumulate_jointly, (LAST, "return loss.detach().numpy()")),
            "what you return is of type ndarray",
        ),
        (n07.check_saved_bytes, lambda forward, there: str(saved_bytes(forward, there)), "192, got a str"),
    ],
)
def test_an_answer_in_another_type_is_refused(check, wrong, says):
    verdict = ask(check, wrong)
    assert verdict.status == "wrong", verdict.message
    assert says in verdict.message, verdict.message
    assert torch.get_default_dtype() == torch.float32


def test_a_joint_loss_in_float32_is_a_number_too():
    assert n07.check_jointly(edited(accumulate_jointly, (LAST, "return loss.float().item()")))


def test_a_join_that_squeezes_its_one_channel_away_is_refused():
    both = "return mean, (within + between) / (total - 1)"
    verdict = ask(n07.check_join, edited(join, (both, both.replace("mean,", "mean.squeeze(),"))))
    assert "one channel: the mean has the shape (), expected (1,)" in verdict.message, verdict.message
