"""Answers of notebook 15 that are right here, and wrong on other ranks or in other processes."""

import pytest
import torch
from torch.nn import functional as F

from support.kit.mistakes import edited
from support.n15 import checks as n15
from support.n15.solved import follow, pipeline_step

STEPS = [(n15.check_pipeline_step, pipeline_step), (n15.check_follow, follow)]


@pytest.mark.parametrize("check, answer", STEPS)
def test_ranks_are_those_that_are_given_wherever_the_stages_are(check, answer):
    nobody = edited(answer, ("behind is None", "not behind"))
    by_number = edited(
        answer, ("before is None", "dist.get_rank() == 0"), ("before is not None", "dist.get_rank() > 0")
    )
    for wrong in (nobody, by_number):
        verdict = check(wrong)
        assert verdict.status == "wrong"
        assert "micro-batches, the first stage on the last rank: " in verdict.message


def the_loss(y, targets):
    return F.cross_entropy(y, targets)


@pytest.mark.parametrize("check, answer", STEPS)
def test_what_an_answer_uses_must_be_known_where_it_will_run(check, answer):
    here = {"the_loss": the_loss}
    verdict = check(edited(answer, ("F.cross_entropy(", "the_loss("), names=here))
    assert verdict.status == "wrong"
    assert "does not know `the_loss`: write that inside." in verdict.message
    inside = "    from torch.nn.functional import cross_entropy as the_loss\n\n    kept, "
    assert check(edited(answer, ("F.cross_entropy(", "the_loss("), ("    kept, ", inside), names=here))
    verdict = check(edited(answer, ("dist):", "dist, loss=the_loss):"), names=here))
    assert "does not know `the_loss`: write that inside." in verdict.message


def of_a_set(parameters, replicas, group, dist):
    gradients = [p.grad for p in parameters if p.grad is not None]
    for kind in {gradient.dtype for gradient in gradients}:
        own = [each for each in gradients if each.dtype == kind]
        flat = torch.cat([gradient.flatten() for gradient in own])
        dist.all_reduce(flat, group=group)
        means = (flat / replicas).split([gradient.numel() for gradient in own])
        for gradient, mean in zip(own, means, strict=True):
            gradient.copy_(mean.view_as(gradient))


TYPES = "{gradient.dtype for gradient in gradients}"
of_a_sorted_set = edited(of_a_set, (TYPES, f"sorted({TYPES}, key=str)"))


def test_types_in_the_order_of_a_set_do_not_meet_in_two_processes():
    types = TYPES
    popped = ((f"for kind in {types}:", f"kinds = {types}\n    while kinds:\n        kind = kinds.pop()"),)
    others = (types, f"set({types[1:-1]})", f"frozenset({types[1:-1]})", f"{types} | set()", f"{types}.union(())")
    for changes in (popped, *[((types, kind),) for kind in others]):
        wrong = edited(of_a_set, *changes)
        verdict = n15.check_average(wrong)
        assert verdict.status == "wrong"
        assert "float32 and float64: your code raised ValueError: collective 0: " in verdict.message
        assert verdict.message.endswith("Sets and hashes have another order in each process: these calls don't meet.")
    assert n15.check_average(of_a_sorted_set)
    assert n15.check_average(torch.no_grad()(of_a_sorted_set))
    assert n15.check_average(torch.no_grad()(of_a_set)).message.endswith("these calls don't meet.")
    for key in ("hash", "id"):
        by_address = edited(of_a_sorted_set, ("key=str", f"key={key}"))
        assert n15.check_average(by_address).message.endswith("these calls don't meet."), key
