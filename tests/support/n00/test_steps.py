"""A step is right however it was reached, if ranks could reach it so; what no rank could do is refused and told."""

import copy
import re

import pytest
import torch
from torch.nn import functional as F

from support.built import my_step
from support.kit.mistakes import edited
from support.n00.checks import check_rank_step, check_step
from support.n00.solved import my_rank_step

# ---- exercise 1: one step that ranks share


def locally(replicas, batches, learning_rate):
    for replica, (rows, labels) in zip(replicas, batches, strict=True):
        replica.zero_grad()
        F.cross_entropy(replica(rows), labels).backward()
        torch.optim.SGD(replica.parameters(), learning_rate).step()


def averaging_weights(replicas, batches, lr):
    locally(replicas, batches, lr)
    for same in zip(*(replica.parameters() for replica in replicas), strict=True):
        mean = sum(weight.data for weight in same) / len(same)
        for weight in same:
            weight.data = mean.clone()


def rank_0_sends_weights(replicas, batches, lr):
    for replica, (rows, labels) in zip(replicas, batches, strict=True):
        (F.cross_entropy(replica.forward(rows), labels) / len(batches)).backward()
    for first, *others in zip(*(replica.parameters() for replica in replicas), strict=True):
        first.data -= lr * (first.grad + sum(other.grad for other in others))
        for weight in (first, *others):
            weight.data.copy_(first.data)
            weight.grad = None


def by_autograd_grad(replicas, batches, lr):
    found = [
        torch.autograd.grad(F.cross_entropy(replica(rows), labels), list(replica.parameters()))
        for replica, (rows, labels) in zip(replicas, batches, strict=True)
    ]
    means = [torch.stack(same).mean(dim=0) for same in zip(*found, strict=True)]
    with torch.no_grad():
        for replica in replicas:
            for weight, mean in zip(replica.parameters(), means, strict=True):
                weight.sub_(mean, alpha=lr)


@pytest.mark.parametrize("answer", [my_step, averaging_weights, rank_0_sends_weights, by_autograd_grad])
def test_every_way_that_real_ranks_could_go_is_right(answer):
    assert check_step(answer), check_step(answer)


def with_a_kept_optimizer(replicas, batches, lr):
    """Give each replica an optimizer in its first step, as a job does, and forget that it has a rate of its own."""
    for replica, (rows, labels) in zip(replicas, batches, strict=True):
        F.cross_entropy(replica(rows), labels).backward()
    for same in zip(*(replica.parameters() for replica in replicas), strict=True):
        mean = sum(weight.grad for weight in same) / len(same)
        for weight in same:
            weight.grad = mean.clone()
    for replica in replicas:
        kept = replica.__dict__.setdefault("kept", torch.optim.SGD(replica.parameters(), lr))
        kept.step()
        kept.zero_grad()


def a_call_behind(replicas, batches, lr):
    rate = replicas[0].__dict__.get("rate", lr)
    my_step(replicas, batches, rate)
    replicas[0].rate = lr


@pytest.mark.parametrize("answer", [with_a_kept_optimizer, a_call_behind])
def test_the_learning_rate_is_that_of_the_call_and_not_of_an_earlier_one(answer):
    assert "You stepped by the learning rate of an earlier call" in check_step(answer).message


def rank_0_keeps_its_rate(replicas, batches, lr):
    with_a_kept_optimizer(replicas, batches, lr)
    for replica in replicas[1:]:
        del replica.kept


def test_one_rank_that_keeps_an_old_rate_is_found_and_named():
    verdict = check_step(rank_0_keeps_its_rate)
    assert verdict.status == "wrong"
    assert "after step 2 weight 0 of rank 0 is" in verdict.message


def sharing(replicas, batches, lr):
    averaging_weights(replicas, batches, lr)
    for same in zip(*(replica.parameters() for replica in replicas), strict=True):
        for weight in same:
            weight.data = same[0].data


def twice_forward(replicas, batches, lr):
    for replica, (rows, _) in zip(replicas, batches, strict=True):
        replica(rows)
    my_step(replicas, batches, lr)


def swapped(replicas, batches, lr):
    my_step(replicas, batches[::-1], lr)


def a_copy_of_rank_0_sees_all_rows(replicas, batches, lr):
    my_step(replicas, batches, lr)
    copy.deepcopy(replicas[0])(torch.cat([rows for rows, _ in batches]))


def replacing_the_others(replicas, batches, lr):
    for replica, (rows, labels) in zip(replicas, batches, strict=True):
        F.cross_entropy(replica(rows), labels).backward()
    with torch.no_grad():
        for same in zip(*(replica.parameters() for replica in replicas), strict=True):
            first = same[0]
            first -= lr * sum(weight.grad for weight in same) / len(same)
            first.grad = None
    for rank in range(1, len(replicas)):
        replicas[rank] = copy.deepcopy(replicas[0])


def sum_of_losses_at_once(replicas, batches, lr):
    losses = [F.cross_entropy(r(rows), labels) for r, (rows, labels) in zip(replicas, batches, strict=True)]
    (sum(losses) / len(losses)).backward()
    for same in zip(*(replica.parameters() for replica in replicas), strict=True):
        total = sum(weight.grad for weight in same)
        for weight in same:
            weight.data -= lr * total
            weight.grad = None


@pytest.mark.parametrize(
    "answer, told",
    [
        (sharing, "ranks 0 and 1 share one tensor as their weight"),
        (twice_forward, "rank 0 did 2 forwards on its rows"),
        (swapped, "rank 0 saw rank 2's rows"),
        (a_copy_of_rank_0_sees_all_rows, "a forward of rank 0 got 12 rows"),
        (replacing_the_others, "replicas[1] is another model than before"),
        (sum_of_losses_at_once, "one backward went through the graphs of rank 0 and of rank 1"),
    ],
)
def test_right_weights_reached_as_no_rank_could_are_refused(answer, told):
    verdict = check_step(answer)
    assert verdict.status == "wrong"
    assert told in verdict.message


# ---- exercise 1: what a step must leave as it was


def using_up_replicas(replicas, batches, lr):
    my_step(replicas, batches, lr)
    while replicas:
        replicas.pop().zero_grad()


def using_up_batches(replicas, batches, lr):
    for replica in replicas:
        rows, labels = batches.pop(0)
        F.cross_entropy(replica(rows), labels).backward()
    for same in zip(*(replica.parameters() for replica in replicas), strict=True):
        mean = sum(weight.grad for weight in same) / len(same)
        for weight in same:
            weight.data -= lr * mean
            weight.grad = None


def clearing_rows(replicas, batches, lr):
    my_step(replicas, batches, lr)
    for rows, _ in batches:
        rows.zero_()


def leaving_gradients_on_rows(replicas, batches, lr):
    for rows, _ in batches:
        rows.requires_grad_()
    my_step(replicas, batches, lr)


def without_gradients(replicas, batches, lr):
    my_step(replicas, batches, lr)
    torch.set_grad_enabled(False)


def on_frozen_weights(replicas, batches, lr):
    """Switch the gradients of weights off to change them, and on again only at the next call."""
    for replica in replicas:
        replica.requires_grad_()
    my_step(replicas, batches, lr)
    for replica in replicas:
        replica.requires_grad_(False)


def in_an_order_of_its_own(replicas, batches, lr):
    for replica, (rows, labels) in zip(replicas, batches, strict=True):
        F.cross_entropy(replica(rows), labels).backward()
    for same in zip(*(replica.parameters() for replica in replicas), strict=True):
        gradients = [weight.grad for weight in same]
        for rank, weight in enumerate(same):
            weight.data -= lr * sum(gradients[rank:] + gradients[:rank]) / len(same)
            weight.grad = None


@pytest.mark.parametrize(
    "answer, told",
    [
        (using_up_replicas, "in step 1 your function has changed the list replicas: it had 3, and has 0 now"),
        (using_up_batches, "in step 1 your function has changed the list batches: it had 3, and has 0 now"),
        (clearing_rows, "in step 1 your function has changed batches[0]: rank 0 needs its rows and labels as they"),
        (leaving_gradients_on_rows, "in step 1 your function has changed batches[0]: rank 0 needs its rows and labels"),
        (without_gradients, "in step 1 your function has switched gradients off and left it so"),
        (on_frozen_weights, "in step 1 a weight of rank 0 no longer asks for a gradient"),
        (in_an_order_of_its_own, "of its own; replicas must be equal to the last bit"),
    ],
)
def test_a_step_changes_weights_and_nothing_else(answer, told):
    verdict = check_step(answer)
    assert verdict.status == "wrong"
    assert told in verdict.message
    assert torch.is_grad_enabled(), "whoever switched it off"
    assert check_step(my_step), "it is judged as in a fresh process"


def one_backward_of_all_losses(replicas, batches, lr):
    losses = [F.cross_entropy(replica(rows), labels) for replica, (rows, labels) in zip(replicas, batches, strict=True)]
    torch.autograd.backward(losses)
    for same in zip(*(replica.parameters() for replica in replicas), strict=True):
        mean = sum(weight.grad for weight in same) / len(same)
        for weight in same:
            weight.data -= lr * mean
            weight.grad = None


def test_losses_that_stayed_apart_are_not_called_put_together():
    message = check_step(one_backward_of_all_losses).message
    assert "one backward went through the graphs of rank 0 and of rank 1" in message
    assert "together" not in message


def in_single_precision(replicas, batches, lr):
    for replica, (rows, labels) in zip(replicas, batches, strict=True):
        F.cross_entropy(replica(rows), labels).backward()
    for same in zip(*(replica.parameters() for replica in replicas), strict=True):
        mean = (sum(weight.grad for weight in same) / len(same)).float()
        for weight in same:
            weight.data -= lr * mean
            weight.grad = None


def test_two_numbers_that_differ_are_told_with_so_many_digits_that_one_sees_it():
    message = check_step(in_single_precision).message
    mine, right = re.search(r"is (-?[\d.]+), but (-?[\d.]+) when torch", message).groups()
    assert mine != right


# ---- exercise 4: the step of one rank


def sending_weights(dist, replica, batch, lr):
    rows, labels = batch
    loss = F.cross_entropy(replica(rows), labels)
    loss.backward()
    torch.optim.SGD(replica.parameters(), lr).step()
    for weight in replica.parameters():
        dist.all_reduce(weight.data)
        weight.data /= dist.get_world_size()
    replica.zero_grad()


def in_one_packet(dist, replica, batch, lr):
    rows, labels = batch
    weights = list(replica.parameters())
    gradients = torch.autograd.grad(F.cross_entropy(replica(rows), labels) / dist.get_world_size(), weights)
    packet = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(packet, async_op=True).wait()
    with torch.no_grad():
        for weight, part in zip(weights, packet.split([w.numel() for w in weights]), strict=True):
            weight -= lr * part.view_as(weight)


@pytest.mark.parametrize("answer", [my_rank_step, sending_weights, in_one_packet])
def test_a_rank_may_send_weights_or_one_large_packet(answer):
    assert check_rank_step(answer), check_rank_step(answer)


def keeping_an_optimizer(dist, replica, batch, lr):
    rows, labels = batch
    optimizer = replica.__dict__.setdefault("kept", torch.optim.SGD(replica.parameters(), lr))
    optimizer.zero_grad()
    F.cross_entropy(replica(rows), labels).backward()
    for weight in replica.parameters():
        dist.all_reduce(weight.grad)
        weight.grad /= dist.get_world_size()
    optimizer.step()
    optimizer.zero_grad()


def test_an_optimizer_may_be_kept_if_it_is_told_the_rate_of_each_call():
    assert "the learning rate of an earlier call" in check_rank_step(keeping_an_optimizer).message
    told = edited(
        keeping_an_optimizer, ("    optimizer.step()", "    optimizer.param_groups[0]['lr'] = lr\n    optimizer.step()")
    )
    assert check_rank_step(told), check_rank_step(told)


def only_rank_0(dist, replica, batch, lr):
    rows, labels = batch
    F.cross_entropy(replica(rows), labels).backward()
    for weight in replica.parameters():
        if dist.get_rank() == 0:
            dist.all_reduce(weight.grad)


def forgetting_to_wait(dist, replica, batch, lr):
    rows, labels = batch
    F.cross_entropy(replica(rows), labels).backward()
    for weight in replica.parameters():
        dist.all_reduce(weight.grad, async_op=True)
        weight.data -= lr * weight.grad / dist.get_world_size()
        weight.grad = None


def helped(dist, replica, batch, lr):
    return my_rank_step(dist, replica, batch, lr)


def helped_inside(dist, replica, batch, lr):
    def move(weight):
        dist.all_reduce(weight.grad)
        weight.data -= lr * weight.grad / dist.get_world_size()
        weight.grad = None

    rows, labels = batch
    F.cross_entropy(replica(rows), labels).backward()
    list(map(move, replica.parameters()))


def test_a_step_that_needs_another_cell_is_refused_here_and_not_by_the_real_ranks():
    verdict = check_rank_step(helped)
    assert verdict.status == "wrong"
    assert "would not know my_rank_step" in verdict.message
    assert check_rank_step(helped_inside), check_rank_step(helped_inside)


def test_what_a_default_needs_is_unknown_to_another_process_too():
    step = edited(
        my_rank_step,
        ("learning_rate):", "learning_rate, ce=cross_entropy):"),
        names={"cross_entropy": F.cross_entropy},
    )
    verdict = check_rank_step(step)
    assert verdict.status == "wrong"
    assert "would not know cross_entropy" in verdict.message
    assert check_rank_step(edited(my_rank_step, ("learning_rate):", "learning_rate, ce=F.cross_entropy):")))


def test_a_rank_that_leaves_gradients_off_is_told_so_and_a_maximum_is_not_told_of_means():
    off = edited(my_rank_step, ("    for weight in", "    torch.set_grad_enabled(False)\n    for weight in"))
    off.__globals__["torch"] = torch
    assert "switched gradients off and left it so" in check_rank_step(off).message
    largest = edited(my_rank_step, ("(weight.grad)", "(weight.grad, op=dist.ReduceOp.MAX)"))
    assert "this imitation of gloo sums and averages" in check_rank_step(largest).message


def test_a_mean_by_the_library_is_right_as_newer_versions_of_gloo_have_it():
    mean = edited(
        my_rank_step,
        ("dist.all_reduce(weight.grad)", "dist.all_reduce(weight.grad, op=dist.ReduceOp.AVG)"),
        (" / dist.get_world_size()", ""),
    )
    assert check_rank_step(mean), check_rank_step(mean)
    twice = edited(my_rank_step, ("dist.all_reduce(weight.grad)", "dist.all_reduce(weight.grad, op=dist.ReduceOp.AVG)"))
    assert not check_rank_step(twice)


def test_without_an_exchange_the_division_decides_what_a_rank_stepped_by():
    def alone(dist, replica, batch, lr):
        rows, labels = batch
        F.cross_entropy(replica(rows), labels).backward()
        for weight in replica.parameters():
            weight.data -= lr * weight.grad
            weight.grad = None

    assert "stepped by its own gradient" in check_rank_step(alone).message


def leaving_hooks(dist, replica, batch, lr):
    rows, labels = batch
    for weight in replica.parameters():
        weight.register_post_accumulate_grad_hook(lambda weight: dist.all_reduce(weight.grad))
    replica.zero_grad()
    F.cross_entropy(replica(rows), labels).backward()
    for weight in replica.parameters():
        weight.data -= lr * weight.grad / dist.get_world_size()


def removing_hooks(dist, replica, batch, lr):
    rows, labels = batch
    hooks = [
        weight.register_post_accumulate_grad_hook(lambda weight: dist.all_reduce(weight.grad))
        for weight in replica.parameters()
    ]
    replica.zero_grad()
    F.cross_entropy(replica(rows), labels).backward()
    for weight, hook in zip(replica.parameters(), hooks, strict=True):
        hook.remove()
        weight.data -= lr * weight.grad / dist.get_world_size()


def test_hooks_that_stay_on_the_weights_are_refused_with_a_verdict_and_removed_ones_are_right():
    verdict = check_rank_step(leaving_hooks)
    assert verdict.status == "wrong"
    assert "in step 2 a rank called the dist of an earlier call" in verdict.message
    assert check_rank_step(removing_hooks), check_rank_step(removing_hooks)


def sending_no_zeros(dist, replica, batch, learning_rate):
    F.cross_entropy(replica(batch[0]), batch[1]).backward()
    for weight in replica.parameters():
        if weight.grad.any():
            dist.all_reduce(weight.grad)
        weight.data -= learning_rate * weight.grad / dist.get_world_size()
        weight.grad = None


@pytest.mark.parametrize(
    "answer, told",
    [
        (only_rank_0, "rank 0 waits in all_reduce, its collective 0, rank 1 has ended"),
        (forgetting_to_wait, "rank 0 never waited for its all_reduce"),
        (sending_no_zeros, "rank 7 in all_reduce of 3 float64 values"),
    ],
)
def test_ranks_that_would_hang_or_run_ahead_are_told_who_waits_for_what(answer, told):
    verdict = check_rank_step(answer)
    assert verdict.status == "wrong"
    assert told in verdict.message
