"""What is particular about the checks of notebook 15; what all exercises have in common is in test_detectors."""

import pytest
import torch

from support.kit.mistakes import edited
from support.n15 import checks as n15
from support.n15.solved import average, clip, exposed, follow, memory_of_rank, pipeline_step, step_seconds

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

    def in_tokens(model, n, replicas, link, speed, gather_waits):
        stage = model.parameters / n
        rounds = model.sequences // replicas + n - 1
        whole = 6 * stage * model.tokens / speed
        leaving = stage * (1 - 1 / replicas)
        layers = round(model.layers / n)
        left = exposed(leaving * 4 / link, whole * 2 / 3, layers)
        hidden = 0.0 if gather_waits else min(whole / 3, leaving * 2 / link) * (1 - 1 / layers)
        return rounds * whole + left + leaving * 2 / link - hidden

    def by_bytes_of_each_layer(model, n, replicas, link, speed, gather_waits):
        m = model.sequences / replicas
        k = int(model.layers // n)
        layer = model.parameters / model.layers
        forward = 2 * layer * model.tokens / speed
        weights = 2 * layer * (replicas - 1) / replicas / link
        there = 0.0
        gpu = 0.0
        network = 0.0
        for _ in range(k):  # the first micro-batch, layer by layer
            there += weights
            gpu = max(gpu, there) + forward
        start = k * weights + k * forward if gather_waits else gpu
        gpu = start + 3 * (m + n - 1) * k * forward - 3 * k * forward
        for _ in range(k):  # the last backward
            gpu += 2 * forward
            network = max(network, gpu) + 2 * weights
        return network

    assert n15.check_step_seconds(in_tokens)
    assert n15.check_step_seconds(by_bytes_of_each_layer), n15.check_step_seconds(by_bytes_of_each_layer)
    assert n15.check_step_seconds(step_seconds)


# ---- what is said is true of the answer that gets it


def test_who_reads_the_parameters_twice_is_told_so_and_not_of_tensors_that_are_only_named():
    def averages(parameters, replicas, group, dist):
        flat = torch.cat([p.grad.flatten() for p in parameters if p.grad is not None])
        dist.all_reduce(flat, group=group)
        for p in parameters:
            p.grad.copy_(flat[: p.grad.numel()].view_as(p.grad) / replicas)

    def clips_if_any(parameters, max_norm, group, dist):
        squares = torch.zeros(1, dtype=torch.float64)
        if any(p.grad is not None for p in parameters):
            squares += torch.cat([p.grad.flatten() for p in parameters if p.grad is not None]).pow(2).sum()
        dist.all_reduce(squares, group=group)

    verdict = n15.check_clip(clips_if_any)
    assert verdict.message.endswith("No gradient was found: `parameters` is an iterator, which can be read once.")

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


def test_who_sends_gradients_that_are_too_large_is_not_told_of_losses_that_are_divided():
    verdict = n15.check_pipeline_step(edited(pipeline_step, ("send(x.grad", "send(x.grad * m")))
    assert "a gradient of rank 0 is 4 times that of one process" in verdict.message
    assert "Each loss is a mean" not in verdict.message


def test_who_waits_for_a_send_before_the_next_one_is_not_told_that_nobody_sends():
    changes = [
        (f"begun.append({send})", f"[each.wait() for each in begun]; begun.append({send})")
        for send in ("dist.isend(y.detach(), behind)", "dist.isend(x.grad, before)")
    ]
    verdict = n15.check_follow(edited(follow, *changes))
    assert "A rank that waits for its send receives nothing meanwhile." in verdict.message


def test_a_tensor_is_no_plain_number_and_who_clips_leaves_the_weights_alone():
    for check, answer in ((n15.check_pipeline_step, pipeline_step), (n15.check_follow, follow)):
        verdict = check(edited(answer, ("y.item()", "y.detach()")))
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
        ("flatten() for", "flatten().to(gradients[-1].dtype) for", "One gradient's type is not that of all"),
        ("gradient.flatten()", "gradient.t().flatten() if gradient.dim() > 1 else gradient.flatten()", "length away"),
        ("    if not gradients:\n        return\n", "", "A stage may have no gradient at all."),
        ("flat / replicas", "flat / max(2, replicas)", "1 replica: gradient 0 of replica 0 is 0.5 times the mean"),
        ("flat / replicas", "flat // replicas", "of its length away from the mean"),
        ("mean.view_as(gradient))", "mean.view_as(gradient)).requires_grad_()", "asks for a gradient itself"),
    ],
)
def test_a_wrong_mean_of_gradients_that_are_not_plain_is_told_where(old, new, says):
    verdict = n15.check_average(edited(average, (old, new)))
    assert verdict.status == "wrong"
    assert says in verdict.message, verdict


def test_a_gradient_of_one_number_has_no_dimension_to_cut_and_moves_on_by_one():
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
    verdict = n15.check_average(edited(average, ("gradient.copy_(", "gradient[:].copy_(")))
    assert "slice() cannot be applied to a 0-dim tensor" in verdict.message


def test_one_all_reduce_a_type_is_enough_and_one_a_gradient_too_many():
    def one_by_one(parameters, replicas, group, dist):
        for p in parameters:
            if p.grad is not None:
                dist.all_reduce(p.grad, group=group)
                p.grad /= replicas

    assert "right means, but 3 all-reduces on each rank" in n15.check_average(one_by_one).message


def test_a_gradient_of_zeros_counts_since_another_replicas_may_be_none():
    skips = ("grad is not None]", "grad is not None and parameter.grad.any()]")
    for more in ((), (("    if not", "    seen = set()\n    if not"),)):
        verdict = n15.check_average(edited(average, skips, *more))
        assert verdict.status == "wrong"
        assert "collective 0: " in verdict.message
        assert "Sets" not in verdict.message


def test_a_stage_without_gradients_sends_a_number_of_the_type_that_others_send():
    def of_the_first(parameters, max_norm, group, dist):
        gradients = [p.grad for p in parameters if p.grad is not None]
        squares = torch.zeros((), dtype=gradients[0].dtype if gradients else torch.float64)
        for gradient in gradients:
            squares += gradient.pow(2).sum()
        dist.all_reduce(squares, group=group)
        norm = squares.sqrt().item()
        for gradient in gradients:
            gradient.mul_(min(1.0, max_norm / max(norm, 1e-12)))
        return norm

    verdict = n15.check_clip(of_the_first)
    assert verdict.status == "wrong"
    assert "float32" in verdict.message
    assert "float64" in verdict.message

    def of_its_parameters(parameters, max_norm, group, dist):
        own = list(parameters)
        if all(parameter.grad is None for parameter in own):
            dist.all_reduce(squares := torch.zeros((), dtype=own[0].dtype), group=group)
            return squares.sqrt()
        return of_the_first(own, max_norm, group, dist)

    assert n15.check_clip(of_its_parameters)


def test_who_meets_a_stage_without_gradients_is_told_so_once():
    verdict = n15.check_average(edited(average, ("    if not gradients:\n        return\n", "")))
    assert verdict.message.endswith("A stage may have no gradient at all.")


def test_a_number_of_buckets_that_is_a_float_is_told_as_such_and_not_as_an_error_of_exposed():
    verdict = n15.check_step_seconds(edited(step_seconds, ("model.layers // n", "model.layers / n")))
    assert verdict.status == "wrong"
    assert "`my_exposed` was given 32.0 buckets and raised TypeError" in verdict.message
    counts = edited(step_seconds, ("    backward = 2 * forward", "    backward = sum(forward for _ in range(2.0))"))
    assert "my_exposed" not in n15.check_step_seconds(counts).message
    by_int = edited(step_seconds, ("model.layers // n", "int(model.layers / n)"))
    assert n15.check_step_seconds(by_int)


@pytest.mark.parametrize("more, left", [((), 0), ((torch.bfloat16,), 2), ((torch.float16,), 0)])
def test_types_that_are_written_down_leave_others_alone(more, left):
    def of_some_types(parameters, replicas, group, dist):
        gradients = [p.grad for p in parameters if p.grad is not None]
        for kind in (torch.float32, torch.float64, *more):
            own = [gradient for gradient in gradients if gradient.dtype == kind]
            if own:
                average([torch.nn.Parameter(torch.zeros(0)), *map(holding, own)], replicas, group, dist)

    def holding(gradient):
        parameter = torch.nn.Parameter(torch.zeros_like(gradient))
        parameter.grad = gradient
        return parameter

    verdict = n15.check_average(of_some_types)
    assert verdict.status == "wrong"
    assert f"bfloat16 and float16: gradient {left} of replica 0 is still this replica's own" in verdict.message


def test_a_number_that_is_rounded_is_told_with_all_its_digits():
    rounded = n15.check_exposed(lambda reduce, backward, buckets: round(exposed(reduce, backward, buckets), 6))
    parts = n15.check_step_seconds(lambda **case: round(step_seconds(**case), 5))
    whole = n15.check_memory(lambda **case: round(memory_of_rank(**case)))
    for verdict in (rounded, parts, whole):
        assert verdict.status == "wrong"
        expected, got = verdict.message.split("expected ")[1].split(", got ")
        assert got.rstrip(".") != expected


@pytest.mark.parametrize(
    "old, new, says",
    [
        ("my_exposed(gather, forward, buckets)", "max(0.0, gather - forward)", "expected 1.2819 s, got 1.2774 s"),
        ("backward, buckets", "backward, 1", "The reduction hides behind the last backward."),
        ("gather if gather_waits else ", "", "they hide behind nothing"),
        (" if gather_waits else my_exposed(gather, forward, buckets)", "", "some of the gathering hides"),
        ("if gather_waits", "if not gather_waits", "the first forward hides some"),
        ("pipeline + reduce + late", "max(pipeline, reduce) + late", "got 1.0007 s"),
        ("pipeline + reduce + late", "(pipeline, reduce, late)", "got [0.86"),
    ],
)
def test_a_wrong_step_is_told_its_seconds(old, new, says):
    verdict = n15.check_step_seconds(edited(step_seconds, (old, new)))
    assert verdict.status == "wrong"
    assert says in verdict.message, verdict


@pytest.mark.parametrize(
    "change, says",
    [
        (
            ("    dist.all_reduce(squares", "    squares = squares.sqrt()\n    dist.all_reduce(squares"),
            "Norms don't add up: the squares do.",
        ),
        (("if norm > max_norm:", "if norm > 0:"), "Gradients that are short enough stay as they are."),
        (("    return norm", "    return torch.tensor(min(norm, max_norm))"), "is the norm before clipping."),
    ],
)
def test_torchs_small_number_in_the_factor_and_a_tensor_hide_no_reason(change, says):
    more = [("norm = squares.sqrt()", "norm = squares")] if "all_reduce" in change[0] else []
    wrong = edited(clip, ("max_norm / norm)", "max_norm / (norm + 1e-6))"), change, *more)
    verdict = n15.check_clip(wrong)
    assert verdict.status == "wrong"
    assert verdict.message.endswith(says), verdict


def test_who_adds_up_no_numbers_is_told_that_this_gives_an_int():
    def of_floats(parameters, max_norm, group, dist):
        gradients = [p.grad for p in parameters if p.grad is not None]
        squares = torch.tensor(sum(gradient.pow(2).sum().item() for gradient in gradients))
        dist.all_reduce(squares, group=group)
        norm = squares.item() ** 0.5
        for gradient in gradients:
            gradient.mul_(min(1.0, max_norm / max(norm, 1e-12)))
        return norm

    verdict = n15.check_clip(of_floats)
    assert verdict.status == "wrong"
    said = "An int, such as the sum of no numbers, is of another type: all ranks must send the same one."
    assert verdict.message.endswith(said)


@pytest.mark.parametrize(
    "old, new, reason",
    [
        ("gradient.pow(2).sum()", "gradient.abs().max() ** 2", "no mean"),
        ("(max_norm / norm)", "((max_norm / norm) ** 2)", "The root comes after the sum."),
        ("max_norm / norm)", "max_norm / norm + 1e-6)", "as long as before"),
        ("if norm > max_norm", "if norm > max(1.0, max_norm)", "its own stage only"),
    ],
)
def test_who_clips_in_another_wrong_way_is_not_told_of_a_famous_one(old, new, reason):
    verdict = n15.check_clip(edited(clip, (old, new)))
    assert verdict.status == "wrong"
    assert reason not in verdict.message


def test_a_norm_that_is_no_number_is_told():
    verdict = n15.check_clip(edited(clip, ("return norm", "return 0 * float('inf')")))
    assert "rank 0 returned nan; the norm of all gradients was" in verdict.message


@pytest.mark.parametrize(
    "old, new, says",
    [
        ("gradient.mul_(", "gradient.reshape(-1).mul_(", "what is written is lost"),
        ("gradient.mul_(", "gradient.contiguous().mul_(", "what is written is lost"),
        ("gradient.mul_(", "gradient.view(-1).mul_(", "A gradient need not be contiguous"),
        ("gradient.pow(2).sum()", 'torch.einsum("ij,ij->", gradient, gradient)', "a transposed weight and a bias"),
        ("squares += gradient.pow(2).sum()", "squares = 0", "all_reduce needs a tensor, and got 0"),
    ],
)
def test_who_clips_only_contiguous_matrices_or_sends_no_tensor_is_told_so(old, new, says):
    verdict = n15.check_clip(edited(clip, (old, new)))
    assert verdict.status == "wrong"
    assert says in verdict.message, verdict


@pytest.mark.parametrize(
    "answer, says",
    [
        (lambda reduce, backward, buckets: max(reduce - backward, reduce / buckets), "begins late"),
        (lambda reduce, backward, buckets: max(0, reduce - backward) + reduce / buckets, "A slow network waits"),
    ],
)
def test_a_reason_is_told_with_what_is_left(answer, says):
    assert says in n15.check_exposed(answer).message
