"""What is particular about the checks of notebook 15; what all exercises have in common is in test_detectors."""

import pytest
import torch
from torch.nn import functional as F

from support.kit.mistakes import edited
from support.n15 import checks as n15
from support.n15.solved import average, clip, exposed, follow, memory_of_rank, pipeline_step, step_parts

# ---- exercise 1


def test_a_pipeline_that_goes_back_from_the_last_micro_batch_is_right_too():
    assert n15.check_pipeline_step(edited(pipeline_step, ("in kept:", "in kept[::-1]:")))  # as torchgpipe does


def test_a_step_of_two_functions_and_a_loss_of_sums_is_right_too():
    def by_halves(part, images, targets, m, before, behind, shape, dist):
        inputs = []
        outputs = []
        for i in range(m):
            if before is None:
                inputs.append(images.chunk(m)[i])
            else:
                x = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
                dist.irecv(x.data, before).wait()
                inputs.append(x)
            outputs.append(part(inputs[-1]))
            if behind is not None:
                dist.isend(outputs[-1].detach(), behind).wait()
        if behind is None:
            losses = [F.cross_entropy(y, t, reduction="sum") for y, t in zip(outputs, targets.chunk(m), strict=True)]
            total = sum(losses) / len(targets)
            total.backward()
        for x, y in zip(inputs, outputs, strict=True):
            if behind is not None:
                arrived = torch.empty_like(y)
                dist.recv(arrived, behind)
                torch.autograd.backward([y], [arrived])
            if before is not None:
                dist.send(x.grad, before)
        return total if behind is None else None

    assert n15.check_pipeline_step(by_halves)


def test_a_fault_names_rank_and_size():
    def forgets(part, images, targets, m, before, behind, shape, dist):
        return 0.0

    verdict = n15.check_pipeline_step(forgets)
    assert "2 ranks, 4 micro-batches: 4 parameters of rank 0 have no gradient" in verdict.message
    verdict = n15.check_average(lambda parameters, replicas, group, dist: list(parameters))
    assert "gradient 0 of replica 0 is still this replica's own, after 0 all-reduces" in verdict.message


# ---- exercise 2


def begins_to_receive(actions, part, images, targets, m, before, behind, shape, dist):
    """Begin to receive a gradient before sending what it belongs to: then a blocking send finds somebody."""
    kept = {}
    total = 0.0
    coming = {}
    for op, i in actions:
        if op == "F":
            x = torch.empty(shape, dtype=torch.float64) if before is not None else images.chunk(m)[i]
            if before is not None:
                dist.recv(x, before)
                x.requires_grad_()
            y = part(x)
            if behind is None:
                y = F.cross_entropy(y, targets.chunk(m)[i]) / m
                total += y.item()
            else:
                gradient = torch.empty_like(y)
                coming[i] = gradient, dist.irecv(gradient, behind)
                dist.send(y.detach(), behind)
            kept[i] = x, y
        else:
            x, y = kept.pop(i)
            if behind is None:
                y.backward()
            else:
                gradient, handle = coming.pop(i)
                handle.wait()
                y.backward(gradient)
            if before is not None:
                dist.send(x.grad, before)
    return total if behind is None else None


def test_who_waits_for_a_send_only_when_its_gradient_comes_is_right_and_so_is_one_who_receives_early():
    waits_later = edited(
        follow,
        ("begun, total = {}, [], 0.0", "begun, total = {}, {}, 0.0"),
        ("begun.append(dist.isend(y.detach(), behind))", 'begun["F", i] = dist.isend(y.detach(), behind)'),
        ("begun.append(dist.isend(x.grad, before))", 'begun["B", i] = dist.isend(x.grad, before)'),
        (
            "            y.backward(gradient)",
            '                begun.pop(("F", i)).wait()\n            y.backward(gradient)',
        ),
        ("for handle in begun:", "for handle in begun.values():"),
    )
    assert n15.check_follow(waits_later)
    assert n15.check_follow(begins_to_receive)


@pytest.mark.parametrize(
    "old, new, says",
    [
        ("for handle in begun:", "for handle in begun[:1]:", "is never waited for"),
        ("dist.isend(y.detach()", "dist.isend(y.detach().float()", "bytes arrive"),
        ("kept[i] = x, y", "kept[0] = x, y", "KeyError: 1"),
        ("/ m\n", "/ 4\n", "is 1.25 times that of one process"),
    ],
)
def test_other_wrong_orders_are_told_what_is_seen(old, new, says):
    verdict = n15.check_follow(edited(follow, (old, new)))
    assert verdict.status == "wrong"
    assert says in verdict.message


# ---- exercises 3 and 4


def test_a_sum_of_shares_is_a_mean_too():
    def divides_first(parameters, replicas, group, dist):
        with torch.no_grad():
            trained = [p for p in parameters if p.grad is not None]
            flat = torch.cat([(p.grad / replicas).reshape(-1) for p in trained])
            dist.all_reduce(flat, group=group)
            start = 0
            for p in trained:
                p.grad.view(-1)[:] = flat[start : start + p.numel()]
                start += p.numel()

    assert n15.check_average(divides_first)


def test_a_stack_of_norms_and_torchs_own_factor_are_right_too():
    def with_torch(parameters, max_norm, group, dist):
        gradients = [p.grad for p in parameters if p.grad is not None]
        own = torch.nn.utils.get_total_norm(gradients) if gradients else torch.tensor(0.0)
        squared = own.double() ** 2
        handle = dist.all_reduce(squared, group=group, async_op=True)
        handle.wait()
        norm = squared.sqrt()
        factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient *= factor
        return norm

    assert n15.check_clip(with_torch)
    assert n15.check_clip(clip)
    assert n15.check_average(average)


# ---- exercises 5 to 7


def test_sums_written_in_another_way_are_right_too():
    def by_kind(model, n, held, recompute, zero, replicas):
        weights = 2 / replicas if zero == 3 else 2
        gradients = 4 / replicas if zero >= 2 else 4
        moments = 12 / replicas if zero >= 1 else 12
        layer = model.tokens * model.hidden
        kept = held * model.layers / n * layer
        total = model.parameters / n * (weights + gradients + moments)
        return total + (2 * kept + 32 * layer if recompute else 32 * kept)

    assert n15.check_memory(by_kind)
    assert n15.check_memory(memory_of_rank)
    assert n15.check_exposed(
        lambda reduce, backward, buckets: max(reduce - backward * (1 - 1 / buckets), reduce / buckets)
    )
    assert n15.check_exposed(exposed)

    def in_tokens(model, n, replicas, link, speed):
        stage = model.parameters / n
        rounds = model.sequences // replicas + n - 1
        whole = 6 * stage * model.tokens / speed
        leaving = stage * (1 - 1 / replicas)
        left = exposed(leaving * 4 / link, whole * 2 / 3, round(model.layers / n))
        return [rounds * whole, left, leaving * 2 / link]

    assert n15.check_parts(in_tokens)
    assert n15.check_parts(step_parts)
