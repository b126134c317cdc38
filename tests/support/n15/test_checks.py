"""What is particular about the checks of notebook 15; what all exercises have in common is in test_detectors."""

import pytest
import torch
from torch.nn import functional as F

from support.kit.mistakes import edited
from support.n15 import checks as n15
from support.n15.orders import drawn_order
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
            outputs = [loss / len(targets) for loss in losses]
            total = sum(outputs).detach()
        for x, y in zip(inputs, outputs, strict=True):
            if behind is None:
                y.backward()
            else:
                arrived = torch.empty_like(y)
                dist.recv(arrived, behind)
                torch.autograd.backward([y], [arrived])
            if before is not None:
                dist.send(x.grad, before)
        return total.item() if behind is None else None

    assert n15.check_pipeline_step(by_halves)


def test_a_fault_names_rank_and_size():
    def forgets(part, images, targets, m, before, behind, shape, dist):
        return 0.0

    verdict = n15.check_pipeline_step(forgets)
    assert "2 ranks, 4 micro-batches: a gradient of rank 0 is 0 times that of one process" in verdict.message
    verdict = n15.check_average(lambda parameters, replicas, group, dist: list(parameters))
    assert "gradient 0 of replica 0 is still this replica's own, after 0 all-reduces" in verdict.message


def test_a_loss_of_the_whole_batch_and_gradients_asked_for_by_hand_are_right_too():
    def by_hand(part, images, targets, m, before, behind, shape, dist):
        weights = list(part.parameters())
        pairs = []
        for i in range(m):
            x = images.chunk(m)[i] if before is None else torch.empty(shape, dtype=torch.float64)
            if before is not None:
                dist.recv(x, before)
                x.requires_grad_()
            y = part(x)
            if behind is not None:
                dist.send(y.detach(), behind)
            pairs.append((x, y))
        total = None
        if behind is None:
            points = [y.detach().requires_grad_() for _, y in pairs]
            loss = F.cross_entropy(torch.cat(points), targets)
            total = loss.item()
            of_points = torch.autograd.grad(loss, points)
        for i, (x, y) in enumerate(pairs):
            g = torch.empty_like(y)
            if behind is None:
                g = of_points[i]
            else:
                dist.recv(g, behind)
            wanted = ([] if before is None else [x]) + weights
            gradients = torch.autograd.grad(y, wanted, g)
            if before is not None:
                dist.send(gradients[0], before)
            add_to(weights, gradients[len(wanted) - len(weights) :])
        return total

    def add_to(weights, gradients):
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient if weight.grad is None else weight.grad + gradient

    assert n15.check_pipeline_step(by_hand)


@pytest.mark.parametrize(
    "changes, says",
    [
        (
            (("torch.empty_like(y)", "torch.empty(shape, dtype=y.dtype)"),),
            "rank 0 receives 128 values of rank 1, which sends 12",
        ),
        ((("y.item()", "y"),), "a tensor with its graph"),
        (
            (("    kept, total", "    for p in part.parameters():\n        p.grad = None\n    kept, total"),),
            "nothing is left",
        ),
        (
            (("    return total", "    for p in part.parameters():\n        p.grad *= 2\n    return total"),),
            "its length away",
        ),
    ],
)
def test_other_wrong_steps_are_told_what_is_seen(changes, says):
    verdict = n15.check_pipeline_step(edited(pipeline_step, *changes))
    assert verdict.status == "wrong"
    assert says in verdict.message, verdict


def test_who_waits_for_all_messages_before_the_first_forward_is_not_told_of_gradients():
    receives_first = edited(
        pipeline_step,
        (
            "    for i in range(m):\n",
            "    inputs = []\n    for i in range(m):\n"
            "        x = images.chunk(m)[i] if before is None else torch.empty(shape, dtype=torch.float64)\n"
            "        if before is not None:\n            dist.recv(x, before)\n            x.requires_grad_()\n"
            "        inputs.append(x)\n    for i in range(m):\n",
        ),
        (
            "        x = images.chunk(m)[i] if before is None else torch.empty(shape, dtype=torch.float64)\n"
            "        if before is not None:\n            dist.recv(x, before)\n            x.requires_grad_()\n"
            "        y = part(x)",
            "        x = inputs[i]\n        y = part(x)",
        ),
    )
    sends_last = edited(
        pipeline_step,
        ("            dist.send(y.detach(), behind)\n", "            pass\n"),
        (
            "    for x, y in kept:\n",
            "    for _, y in kept if behind is not None else []:\n"
            "        dist.send(y.detach(), behind)\n    for x, y in kept:\n",
        ),
    )
    for answer in (receives_first, sends_last):
        verdict = n15.check_pipeline_step(answer)
        assert "takes 13 ticks, and 10 are enough" in verdict.message
        assert "the next rank begins when all of them have arrived" in verdict.message
        assert "gradients go back" not in verdict.message


@pytest.mark.parametrize(
    "line, says",
    [
        ("part.eval()", "the module of rank 0 is in eval mode after the step"),
        ("images is None or images.requires_grad_(True)", "the images ask for a gradient after the step"),
    ],
)
def test_what_a_step_is_given_stays_as_it_was(line, says):
    answer = edited(pipeline_step, ("    kept, total = [], 0.0", f"    {line}\n    kept, total = [], 0.0"))
    verdict = n15.check_pipeline_step(answer)
    assert verdict.status == "wrong"
    assert says in verdict.message


# ---- exercise 2


@pytest.mark.parametrize("most", [2, 3, 5])
def test_who_lets_so_many_sends_be_under_way_and_no_more_is_stuck_where_ranks_are_far_apart(most):
    loop = "    for op, i in actions:\n"
    window = f"        while len(begun) > {most}:\n            begun.pop(0).wait()\n"
    verdict = n15.check_follow(edited(follow, (loop, loop + window)))
    assert verdict.status == "wrong"
    assert "GPipe before one by one" in verdict.message
    assert "A rank that waits for its send receives nothing meanwhile." in verdict.message


def test_handles_that_are_kept_between_calls_are_told_as_such_and_at_once():
    def keeps(actions, part, images, targets, m, before, behind, shape, dist, begun=[]):  # noqa: B006
        for handle in begun:
            handle.wait()
        begun.clear()
        kept, total = {}, 0.0
        for op, i in actions:
            if op == "F":
                x = images.chunk(m)[i] if before is None else torch.empty(shape, dtype=torch.float64)
                if before is not None:
                    dist.recv(x, before)
                y = part(x.requires_grad_(before is not None))
                if behind is None:
                    y = F.cross_entropy(y, targets.chunk(m)[i]) / m
                    total += y.item()
                else:
                    begun.append(dist.isend(y.detach(), behind))
                kept[i] = x, y
            else:
                x, y = kept.pop(i)
                gradient = None if behind is None else torch.empty_like(y)
                if behind is not None:
                    dist.recv(gradient, behind)
                y.backward(gradient)
                if before is not None:
                    begun.append(dist.isend(x.grad, before))
        return total if behind is None else None

    verdict = n15.check_follow(keeps)
    assert verdict.status == "wrong"
    assert "KeyError" not in verdict.message
    assert any(
        says in verdict.message for says in ("begun by another rank", "never waited for", "begun in another step")
    )


def begins_to_receive(actions, part, images, targets, m, before, behind, shape, dist):
    """Begin to receive a gradient before sending what it belongs to: then a blocking send finds somebody."""
    kept = {}
    total = 0.0
    coming = []
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
                coming.append((gradient, dist.irecv(gradient, behind)))
                dist.send(y.detach(), behind)
            kept[i] = x, y
        else:
            x, y = kept.pop(i)
            if behind is None:
                y.backward()
            else:
                gradient, handle = coming.pop(0)
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


@pytest.mark.parametrize("begins", ["y.detach(), behind", "x.grad, before"])
def test_one_way_may_be_blocking(begins):
    begun = f"begun.append(dist.isend({begins}))"
    assert n15.check_follow(edited(follow, (begun, f"dist.send({begins})")))


def test_who_receives_early_must_not_take_the_first_gradient_for_that_of_the_first_forward():
    by_number = edited(
        begins_to_receive,
        ("coming = []", "coming = {}"),
        (
            "coming.append((gradient, dist.irecv(gradient, behind)))",
            "coming[i] = gradient, dist.irecv(gradient, behind)",
        ),
        ("coming.pop(0)", "coming.pop(i)"),
    )
    verdict = n15.check_follow(by_number)
    assert verdict.status == "wrong"
    assert "random order" in verdict.message


def test_a_drawn_order_goes_forward_in_turn_and_back_as_the_others_do():
    for ranks, micro_batches, seed in ((2, 3, 0), (4, 6, 1), (3, 1, 2)):
        table = drawn_order(ranks, micro_batches, seed)
        assert {tuple(i for op, i in row if op == "F") for row in table} == {tuple(range(micro_batches))}
        back = {tuple(i for op, i in row if op == "B") for row in table}
        assert len(back) == 1
        assert sorted(back.pop()) == list(range(micro_batches))
        assert all(row.index(("F", i)) < row.index(("B", i)) for row in table for i in range(micro_batches))
    assert len({str(drawn_order(3, 5, seed)) for seed in range(20)}) > 15


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
            if not trained:
                return
            flat = torch.cat([(p.grad / replicas).reshape(-1) for p in trained])
            dist.all_reduce(flat, group=group)
            start = 0
            for p in trained:
                p.grad[...] = flat[start : start + p.numel()].reshape(p.shape)
                start += p.numel()

    def type_by_type(parameters, replicas, group, dist):
        by_type = {}
        for p in parameters:
            if p.grad is not None:
                by_type.setdefault(p.grad.dtype, []).append(p)
        for kind, own in by_type.items():
            flat = torch.empty(sum(p.numel() for p in own), dtype=kind)
            parts = flat.split([p.numel() for p in own])
            for part, p in zip(parts, own, strict=True):
                part.copy_(p.grad.reshape(-1))
            dist.all_reduce(flat, group=group, async_op=True).wait()
            flat /= replicas
            for part, p in zip(parts, own, strict=True):
                p.grad.copy_(part.view(p.shape))

    def even_nothing_is_sent(parameters, replicas, group, dist):
        own = [p for p in parameters if p.grad is not None]
        flat = torch.cat([torch.zeros(0, dtype=torch.float64), *(p.grad.double().ravel() for p in own)])
        dist.all_reduce(flat, group=group)
        for p in own:
            p.grad = (flat[: p.numel()] / replicas).reshape(p.shape).to(p.grad.dtype)
            flat = flat[p.numel() :]

    def torchs_own_way_of_flattening(parameters, replicas, group, dist):
        from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

        gradients = [p.grad for p in parameters if p.grad is not None]
        if gradients:
            wide = [gradient.to(torch.float64) for gradient in gradients]
            flat = _flatten_dense_tensors(wide)
            dist.all_reduce(flat, op=dist.ReduceOp.AVG, group=group)
            for gradient, mean in zip(gradients, _unflatten_dense_tensors(flat, wide), strict=True):
                gradient.set_(mean.to(gradient.dtype))

    for answer in (divides_first, type_by_type, even_nothing_is_sent, torchs_own_way_of_flattening):
        assert n15.check_average(answer), n15.check_average(answer)


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
    verdict = n15.check_clip(edited(clip, ("max_norm / norm)", "max_norm / (norm + 1e-3))")))
    assert "0.99992" in verdict.message
    through_float32 = edited(average, ("(flat / replicas)", "(flat / replicas).float()"))
    assert "e-08 of its length away from the mean" in n15.check_average(through_float32).message
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

    def a_micro_batch_at_a_time(model, n, held, recompute, zero, replicas):
        total = by_kind(model, n, 0, recompute, zero, replicas)
        while held > 0:
            total += min(held, 1) * model.layers / n * model.tokens * model.hidden * (2 if recompute else 32)
            held -= 1
        return total

    assert n15.check_memory(by_kind)
    assert n15.check_memory(a_micro_batch_at_a_time)
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
        layers = round(model.layers / n)
        left = exposed(leaving * 4 / link, whole * 2 / 3, layers)
        late = max(leaving * 2 / link - whole / 3 * (1 - 1 / layers), leaving * 2 / link / layers)
        return [rounds * whole, left, leaving * 2 / link, late]

    assert n15.check_parts(in_tokens)
    assert n15.check_parts(step_parts)


# ---- what is said is true of the answer that gets it


def test_who_reads_the_parameters_twice_is_told_so_and_not_of_tensors_that_are_only_named():
    def averages(parameters, replicas, group, dist):
        flat = torch.cat([p.grad.flatten() for p in parameters if p.grad is not None])
        dist.all_reduce(flat, group=group)
        for p in parameters:
            p.grad.copy_(flat[: p.grad.numel()].view_as(p.grad) / replicas)

    def clips(parameters, max_norm, group, dist):
        squares = torch.zeros(1, dtype=torch.float64)
        for p in parameters:
            if p.grad is not None:
                squares += p.grad.pow(2).sum()
        dist.all_reduce(squares, group=group)
        for p in parameters:
            p.grad.mul_(max_norm / squares.sqrt())
        return squares.sqrt().item()

    for verdict in (n15.check_average(averages), n15.check_clip(clips)):
        assert verdict.status == "wrong"
        assert verdict.message.endswith("whoever reads it a second time finds nothing.")


def test_two_mistakes_that_are_equally_far_away_in_two_digits_are_told_apart():
    verdict = n15.check_pipeline_step(edited(pipeline_step, ("images.chunk(m)[i]", "images[i::m]")))
    assert verdict.status == "wrong"
    assert "same order" not in verdict.message


def test_who_waits_for_a_send_before_the_next_one_is_not_told_that_nobody_sends():
    changes = [
        (f"begun.append({send})", f"[each.wait() for each in begun]; begun.append({send})")
        for send in ("dist.isend(y.detach(), behind)", "dist.isend(x.grad, before)")
    ]
    verdict = n15.check_follow(edited(follow, *changes))
    assert "A rank that waits for its send receives nothing meanwhile." in verdict.message


def test_a_tensor_is_no_plain_number_and_who_clips_leaves_the_weights_alone():
    verdict = n15.check_pipeline_step(edited(pipeline_step, ("y.item()", "y.detach()")))
    assert "a tensor, and no number" in verdict.message

    def weights_too(parameters, max_norm, group, dist):
        own = list(parameters)
        norm = clip(own, max_norm, group, dist)
        for parameter in own:
            parameter.data.mul_(0.5)
        return norm

    assert "itself has changed" in n15.check_clip(weights_too).message


@pytest.mark.parametrize(
    "old, new, says",
    [
        ("flatten()", "view(-1)", "a transposed weight: your code raised RuntimeError: view size"),
        ("gradient.copy_(mean.view_as(gradient))", "gradient.reshape(-1).copy_(mean)", "still this replica's own"),
        ("gradient.copy_(mean.view_as(gradient))", "gradient.data = mean.view_as(gradient)", "now is of float64"),
        (
            "gradient.flatten() for",
            "gradient.flatten().to(gradients[0].dtype) for",
            "float32 and float64: gradient 2 of replica 0",
        ),
        ("gradient.flatten()", "gradient.t().flatten() if gradient.dim() > 1 else gradient.flatten()", "length away"),
        ("    if not gradients:\n        return\n", "", "A stage may have no gradient at all."),
        ("flat / replicas", "flat / max(2, replicas)", "1 replica: gradient 0 of replica 0 is 0.5 times the mean"),
        ("flat / replicas", "flat // replicas", "of its length away from the mean"),
    ],
)
def test_a_wrong_mean_of_gradients_that_are_not_plain_is_told_where(old, new, says):
    verdict = n15.check_average(edited(average, (old, new)))
    assert verdict.status == "wrong"
    assert says in verdict.message, verdict


def test_a_gradient_of_one_number_moves_on_by_one():
    def cursor(parameters, replicas, group, dist):
        gradients = [p.grad for p in parameters if p.grad is not None]
        if gradients:
            flat = torch.cat([gradient.flatten() for gradient in gradients])
            dist.all_reduce(flat, group=group)
            start = 0
            for gradient in gradients:
                gradient.copy_(flat[start : start + gradient.numel()].view(gradient.shape) / replicas)
                start += gradient.numel() if gradient.numel() > 1 else 0

    verdict = n15.check_average(cursor)
    assert verdict.status == "wrong"
    assert "gradient 3 of replica 0" in verdict.message


def test_one_all_reduce_a_type_is_enough_and_one_a_gradient_too_many():
    def one_by_one(parameters, replicas, group, dist):
        for p in parameters:
            if p.grad is not None:
                dist.all_reduce(p.grad, group=group)
                p.grad /= replicas

    assert "right means, but 3 all-reduces on each rank" in n15.check_average(one_by_one).message


def test_a_number_of_buckets_that_is_a_float_is_told_as_such_and_not_as_an_error_of_exposed():
    verdict = n15.check_parts(edited(step_parts, ("model.layers // n", "model.layers / n")))
    assert verdict.status == "wrong"
    assert "`my_exposed` was given 32.0 buckets and raised TypeError" in verdict.message
    counts = edited(step_parts, ("    backward = 2 * forward", "    backward = sum(forward for _ in range(2.0))"))
    assert "my_exposed" not in n15.check_parts(counts).message
    by_int = edited(step_parts, ("model.layers // n", "int(model.layers / n)"))
    assert n15.check_parts(by_int)
