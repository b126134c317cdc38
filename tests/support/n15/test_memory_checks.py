"""What is particular about the checks of notebook 15's exercises without ranks: memory, what is exposed, seconds."""

import pytest
import torch

from support.kit.mistakes import edited
from support.n15 import checks as n15
from support.n15.plans import make_plan
from support.n15.solved import exposed, memory_of_rank, step_seconds


def test_less_than_one_micro_batch_may_be_held():
    at_least_one = edited(memory_of_rank, ("held * kept", "max(1, held) * kept"))
    verdict = n15.check_memory(at_least_one)
    assert verdict.status == "wrong"
    assert "`held` may be less than 1" in verdict.message


def test_a_single_stage_may_be_recomputed_too():
    verdict = n15.check_memory(lambda n, recompute, **case: memory_of_rank(n=n, recompute=recompute and n > 1, **case))
    assert verdict.status == "wrong"
    assert "n = 1" in verdict.message


def test_a_single_replica_may_have_a_level_too():
    verdict = n15.check_memory(lambda replicas, **case: memory_of_rank(replicas=max(2, replicas), **case))
    assert verdict.status == "wrong"
    assert "replicas = 1," in verdict.message


@pytest.mark.parametrize(
    "old, new, says",
    [
        ("(18, 6, 2, 0)", "(18, 6, 14, 16)", "A level deals what the levels before it deal, too."),
        ("(18, 6, 2, 0)", "(18, 14, 2, 0)", "ZeRO-1 deals master weights and moments, no gradients."),
        ("held * kept", "round(held) * kept", "`held` may be a fraction, and stays one."),
        ("held * kept", "int(held) * kept", "`held` may be a fraction: none of it is cut off."),
    ],
)
def test_a_reason_is_told_with_the_bytes(old, new, says):
    assert n15.check_memory(edited(memory_of_rank, (old, new))).message.endswith(says)


def test_a_slow_network_may_have_more_buckets_than_a_model_has_layers():
    def of_few(reduce, backward, buckets):
        return exposed(reduce, backward, buckets) if buckets <= 40 else reduce / buckets

    assert n15.check_exposed(of_few).status == "wrong"


@pytest.mark.parametrize("recomputing", [False, True])
@pytest.mark.parametrize("cut", ["int(states) + activations", "states + int(activations)"])
def test_who_cuts_off_a_part_of_a_byte_is_told_so(recomputing, cut):
    cuts_off = edited(memory_of_rank, ("return states + activations", f"return {cut}"))

    def answer(recompute, **case):
        rule = cuts_off if recompute == recomputing else memory_of_rank
        return rule(recompute=recompute, **case)

    verdict = n15.check_memory(answer)
    assert verdict.status == "wrong"
    expected, got = verdict.message.split("expected ")[1].removesuffix(" bytes.").split(" bytes, got ")
    assert 0 < float(expected) - float(got) < 1


def test_a_stage_of_less_than_a_layer_is_asked_of_nobody():
    def of_whole_layers(model, n, held, **case):
        assert n <= model.layers
        return memory_of_rank(model, n, held, **case)

    assert n15.check_memory(of_whole_layers)


def test_plans_ask_no_rank_that_holds_nothing_and_take_an_exposed_of_tensors():
    def holds(model, n, held, recompute, zero, replicas):
        if held <= 0:
            raise ValueError(f"held = {held}: a rank holds something")
        return memory_of_rank(model, n, held, recompute, zero, replicas)

    def of_tensors(reduce, backward, buckets):
        return torch.tensor(exposed(reduce, backward, buckets), dtype=torch.float64)

    assert n15.check_memory(holds)
    assert n15.check_exposed(of_tensors)
    assert make_plan(512, 1, holds, of_tensors, gather_waits=False) == make_plan(512, 1, gather_waits=False)


def test_buckets_side_by_side_are_all_counted():
    side_by_side = edited(exposed, ("max(free, ready)", "ready"))
    verdict = n15.check_exposed(side_by_side)
    assert verdict.message.endswith("A slow network is still busy with buckets before the last one when that is ready.")
    assert "Only the last" not in verdict.message


@pytest.mark.parametrize(
    "old, new, says",
    [
        ("4 * share", "4 / 2 * share", "(D - 1) / D of a stage's 4 · P / n bytes leave a rank."),
        ("gather = 2 *", "gather = 2 * 2 *", "(D - 1) / D of their 2 · P / n bytes leave a rank."),
    ],
)
def test_who_halves_or_doubles_a_ring_is_told_what_leaves(old, new, says):
    assert n15.check_step_seconds(edited(step_seconds, (old, new))).message.endswith(says)


def test_who_mixes_up_buckets_and_backward_is_told_of_no_division():
    verdict = n15.check_step_seconds(edited(step_seconds, ("backward, buckets)", "buckets, backward)")))
    assert "`my_exposed` was given 0.28672 buckets and raised TypeError" in verdict.message
    assert verdict.message.endswith(": buckets are an int.")
