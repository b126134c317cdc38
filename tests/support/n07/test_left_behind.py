"""Answers that compute what is asked for, and leave something else behind: hooks, weights, an emptied list."""

import pytest
import torch
import torch.nn.functional as F

from support.kit.mistakes import edited
from support.n07 import checks as n07
from support.n07.solved import accumulate, accumulate_jointly, saved_bytes
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
        (divided_by_hooks, "a second time with the same model, numbers a thousand times as large: the gradient is"),
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


def joint_and_stepped(model, parts, loss_of):
    total = accumulate_jointly(model, parts, loss_of)
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    return total


@pytest.mark.parametrize(
    "wrong, says",
    [
        (edited(accumulate_jointly, ("loss.item()", "loss.detach()")), "you return a tensor; return a number"),
        (joint_and_stepped, "a weight has other numbers now: the step is the optimizer's"),
    ],
)
def test_a_joint_step_returns_a_number_and_leaves_the_weights(wrong, says):
    verdict = ask(n07.check_jointly, wrong)
    assert verdict.status == "wrong", verdict.message
    assert says in verdict.message, verdict.message
