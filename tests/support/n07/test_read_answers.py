"""Answers that readers have given, wrong in what lies beside the numbers: memory, types, what belongs to the caller."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from support.kit.mistakes import edited
from support.n07 import checks as n07
from support.n07.solved import accumulate, accumulate_jointly, gather, join, saved_bytes, scatter
from tests.support.exercises import ask


def into_the_first(parts):
    first = parts[0]
    if isinstance(first, torch.Tensor):
        return torch.cat(parts)
    if isinstance(first, dict):
        for key in first:
            first[key] = into_the_first([part[key] for part in parts])
        return first
    if isinstance(first, (tuple, list)):
        return type(first)(map(into_the_first, map(list, zip(*parts, strict=True))))
    return first


def one_after_the_other(parts):
    joined = parts.pop(0)
    while parts:
        joined = gather([joined, parts.pop(0)])
    return joined


def what_it_was_cut_from(parts):
    first = parts[0]
    if isinstance(first, torch.Tensor):
        return torch.cat(parts) if first._base is None else first._base
    if isinstance(first, dict):
        return {key: what_it_was_cut_from([part[key] for part in parts]) for key in first}
    if isinstance(first, (tuple, list)):
        return type(first)(map(what_it_was_cut_from, map(list, zip(*parts, strict=True))))
    return first


def without_empty_containers(nest):
    if isinstance(nest, dict):
        return {key: without_empty_containers(value) for key, value in nest.items()}
    if isinstance(nest, (tuple, list)):
        return type(nest)(map(without_empty_containers, nest)) if nest else None
    return nest


@pytest.mark.costly
@pytest.mark.parametrize(
    "join, says",
    [
        (into_the_first, "the parts themselves are no longer what they were"),
        (one_after_the_other, "the parts themselves are no longer what they were"),
        (what_it_was_cut_from, "without the first: "),
        (lambda parts: without_empty_containers(gather(parts)), "expected "),
    ],
)
def test_a_gather_that_takes_from_the_caller_is_refused(join, says):
    verdict = n07.check_cut(scatter, join)
    assert verdict.status == "wrong", verdict.message
    assert says in verdict.message, verdict.message


def kept(what):
    """Return accumulate with a list that outlives each turn of its loop."""
    return edited(accumulate, ("total = 0.0", "total = 0.0\n    kept = []"), ("loss.backward()", what))


def sums_divided(model, parts):
    """Right, but for weights that no loss reaches."""
    model.zero_grad()
    count = sum((y != -100).sum().item() for _, y in parts)
    total = 0.0
    for x, y in parts:
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum")
        loss.backward()
        total += loss.item()
    for parameter in model.parameters():
        parameter.grad.div_(count)
    return total / count


def writes_into_targets(model, parts):
    model.zero_grad()
    count = sum((y != -100).sum() for _, y in parts)
    total = 0.0
    for x, y in parts:
        counts = (y != -100).flatten()
        y[y == -100] = 0
        each = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="none")
        loss = (each * counts).sum() / count
        loss.backward()
        total += loss.item()
    return total


def weighed_in_float32(model, parts):
    """Weigh each mean by its share of tokens, and leave both counts tensors of whole numbers."""
    model.zero_grad()
    count = sum((y != -100).sum() for _, y in parts)
    total = 0.0
    for x, y in parts:
        own = (y != -100).sum()
        if own > 0:
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten()) * (own / count)
            loss.backward()
            total += loss.item()
    return total


CLEARED = "model.zero_grad()"
LAST = "return loss.item()"
ZEROS = "p.grad = torch.zeros_like(p)"
SET = "setattr(p, 'grad', torch.zeros_like(p))"


@pytest.mark.parametrize(
    "wrong, says",
    [
        (kept("loss.backward(retain_graph=True); kept.append(loss)"), "bytes are still kept that an earlier one"),
        (edited(accumulate, ("backward()", "backward(retain_graph=True)")), "without it, backward lets go"),
        (
            edited(accumulate, ("loss.item()", "loss"), ("return total", "return total.item()")),
            "the graphs of 3 earlier ones are still alive: something refers to them. What is computed from a part",
        ),
        (kept("loss.backward(); kept.append(scores)"), "the graphs of 3 earlier ones are still alive"),
        (edited(accumulate, ("loss.item()", "loss.detach()")), "you return a tensor; return a number"),
        (edited(accumulate, ("loss.item()", "loss")), "you return a tensor with its graph"),
        (edited(accumulate, (CLEARED, "[p.grad.zero_() for p in model.parameters()]")), "has no zero_()"),
        (sums_divided, "your code raised AttributeError: 'NoneType'"),
        (writes_into_targets, "y of a micro-batch has other numbers now"),
        (
            edited(accumulate, (CLEARED, f"{CLEARED}; parts.sort(key=lambda part: -(part[1] != -100).sum())")),
            "your list of parts is no longer what it was",
        ),
        (edited(accumulate, (CLEARED, f"{CLEARED}; model.eval()")), "left in eval mode"),
        (edited(accumulate, (CLEARED, f"{CLEARED}; model.train()")), "is left in train mode"),
        (
            edited(accumulate, (CLEARED, f"{CLEARED}; model.requires_grad_(True)")),
            "a frozen weight requires a gradient",
        ),
        (edited(accumulate, (CLEARED, f"{CLEARED}; torch.manual_seed(0)")), "random numbers go on from another place"),
        (edited(accumulate, (CLEARED, "model.zero_grad(set_to_none=False)")), "holds zeros, and not None"),
        (edited(accumulate, (CLEARED, f"for p in model.parameters(): {ZEROS}")), "holds zeros, and not None"),
        (
            edited(accumulate, (CLEARED, "[p.grad.zero_() for p in model.parameters() if p.grad is not None]")),
            "holds zeros, and not None",
        ),
        (
            edited(
                accumulate, (CLEARED, f"{CLEARED}\n    for p in model.parameters():\n        p.requires_grad or {SET}")
            ),
            "a frozen weight ends with a .grad",
        ),
        (
            edited(
                accumulate,
                (CLEARED, "for p in model.parameters():\n        if p.requires_grad:\n            p.grad = None"),
            ),
            "a frozen weight ends with a .grad",
        ),
        (edited(accumulate, ("!= -100", "> 0")), "Class 0 is a class like the others"),
        (
            edited(accumulate, ("return total", "return round(total, 3)")),
            "the loss is 1.107, the whole batch's 1.107064",
        ),
        (weighed_in_float32, "float32's rounding, as when tensors of whole numbers are divided"),
    ],
)
def test_an_accumulate_that_leaves_something_behind_is_refused(wrong, says):
    verdict = ask(n07.check_accumulate, wrong)
    assert verdict.status == "wrong", verdict.message
    assert says in verdict.message, verdict.message


def test_a_part_of_padding_only_may_go_through_the_model_or_not_and_a_float32_loss_is_a_number():
    skips = edited(
        accumulate, ("    scores = ", "    if not (y != -100).any():\n            continue\n        scores = ")
    )
    assert n07.check_accumulate(skips)
    rounded = edited(accumulate, ("loss.item()", "loss.float().item()"))
    assert n07.check_accumulate(rounded)


STORAGES = "saved[storage.data_ptr()] = storage"
OUTSIDE = ("def saved_bytes(", "everything = []\n\n\ndef saved_bytes(")


def less_what_is_there(forward, there):
    """Take the memory behind each slice off the sum, also where two slices lie in one."""
    saved = {}

    def pack(tensor):
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed):
        forward()
    known = [tensor.untyped_storage() for tensor in there if tensor.untyped_storage().data_ptr() in saved]
    return sum(storage.nbytes() for storage in saved.values()) - sum(storage.nbytes() for storage in known)


def never_left(forward, there):
    known = {tensor.untyped_storage().data_ptr() for tensor in there}
    saved = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            saved[storage.data_ptr()] = storage
        return tensor.detach()

    torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed).__enter__()
    forward()
    return sum(storage.nbytes() for storage in saved.values())


def hooks_by_hand(forward, there):
    known = {tensor.untyped_storage().data_ptr() for tensor in there}
    saved = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            saved[storage.data_ptr()] = storage
        return tensor.detach()

    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed)
    hooks.__enter__()
    forward()
    hooks.__exit__()
    return sum(storage.nbytes() for storage in saved.values())


ONE_A_MEMORY = (
    ("saved = {}", "saved = {}; views = {}"),
    ("return tensor.detach()", "return views.setdefault(storage.data_ptr(), tensor.detach())"),
)
COPIES_BESIDE = (
    ("saved = {}", "saved = {}; copies = []"),
    ("return tensor.detach()", "copies.append(tensor.detach().clone())\n        return tensor.detach()"),
)


def backward_too(forward, there):
    def measured():
        output = forward()
        if isinstance(output, torch.Tensor):
            output.sum().backward(retain_graph=True)

    return saved_bytes(measured, there)


HOLDS = "something outside your function still holds the memory"


@pytest.mark.parametrize(
    "wrong, says",
    [
        (never_left, "your hooks are still on after the return"),
        (edited(saved_bytes, ("tensor.untyped_storage().data_ptr() for", "tensor.data_ptr() for")), "where a slice"),
        (hooks_by_hand, "if forward() raises, your hooks stay on"),
        (edited(saved_bytes, ("tensor.detach()", "tensor.detach().contiguous()")), "at another address: a.T.sin()"),
        (edited(saved_bytes, *ONE_A_MEMORY), "backward() of a[:4] * a[4:] now gives another gradient. Two views"),
        (less_what_is_there, " there: expected "),
        (edited(saved_bytes, ("not in known", "not in known and tensor.dtype != torch.bool")), "30 of bool"),
        (edited(saved_bytes, ("not in known", "not in known and tensor.is_contiguous()")), "a.T.exp(), a there"),
        (edited(saved_bytes, *COPIES_BESIDE), "of which forward makes only 8192"),
        (backward_too, "of which forward makes only 8192"),
        (edited(saved_bytes, OUTSIDE, (STORAGES, f"{STORAGES}; everything.append(storage)")), HOLDS),
        (edited(saved_bytes, OUTSIDE, ("    forward()", "    everything.append(forward())")), HOLDS),
        (
            edited(saved_bytes, (STORAGES, f"{STORAGES}; len(saved) > 64 and saved.pop(next(iter(saved)))")),
            "100 × exp() of which no result is kept",
        ),
    ],
)
def test_a_saved_bytes_that_stays_on_or_holds_on_is_refused(wrong, says):
    verdict = ask(n07.check_saved_bytes, wrong)
    assert verdict.status == "wrong", verdict.message
    assert says in verdict.message, verdict.message


def test_hooks_that_an_answer_leaves_on_are_off_after_its_check():
    n07.check_saved_bytes(never_left)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: 1 / 0, lambda packed: packed):
        pass
    exponential = torch.ones(3, requires_grad=True).exp()
    exponential.grad_fn._raw_saved_result.register_hooks(lambda tensor: tensor, lambda packed: packed)  # none is there
    assert n07.check_jointly(accumulate_jointly)


def reentrant(model, parts, loss_of):
    """A reentrant checkpoint needs an input with a gradient, which it then leaves there."""
    model.zero_grad()
    wanted = [part.requires_grad_() for part in parts]
    loss = loss_of(torch.cat([checkpoint(model, part, use_reentrant=True) for part in wanted]))
    loss.backward()
    for part in parts:
        part.requires_grad_(False)
    return loss.item()


def without_backward(model, parts, loss_of):
    """Make every .grad by hand, also that of a frozen weight."""
    frozen = [weight for weight in model.parameters() if not weight.requires_grad]
    loss = accumulate_jointly(model, parts, loss_of)
    for weight in frozen:
        weight.grad = torch.zeros_like(weight)
    return loss


@pytest.mark.parametrize(
    "wrong, says",
    [
        (edited(accumulate_jointly, (CLEARED, f"{CLEARED}; model.eval()")), "left in eval mode"),
        (edited(accumulate_jointly, (CLEARED, f"{CLEARED}; [p.requires_grad_() for p in parts]")), "caller's parts"),
        (edited(accumulate_jointly, (CLEARED, f"{CLEARED}; model.train()")), "is left in train mode"),
        (edited(accumulate_jointly, (CLEARED, f"{CLEARED}; torch.manual_seed(0)")), "from another place than before"),
        (reentrant, "the caller's parts have a .grad now"),
        (without_backward, "a frozen weight ends with a .grad"),
        (edited(accumulate_jointly, (LAST, f"parts.clear(); {LAST}")), "your list of parts is no longer what it was"),
        (edited(accumulate_jointly, (LAST, f"[part.zero_() for part in parts]; {LAST}")), "other numbers now"),
        (
            edited(accumulate_jointly, (CLEARED, f"{CLEARED}; [w.requires_grad_(True) for w in model.parameters()]")),
            "a frozen weight requires a gradient now",
        ),
    ],
)
def test_a_joint_step_that_changes_what_is_not_its_own_is_refused(wrong, says):
    verdict = ask(n07.check_jointly, wrong)
    assert verdict.status == "wrong", verdict.message
    assert says in verdict.message, verdict.message


def in_place(sizes, means, variances):
    mean = sum(n * mu for n, mu in zip(sizes, means, strict=True)) / sum(sizes)
    squares = variances[0]
    squares *= sizes[0] - 1
    squares += sizes[0] * (means[0] - mean) ** 2
    for n, mu, variance in zip(sizes[1:], means[1:], variances[1:], strict=True):
        squares += (n - 1) * variance + n * (mu - mean) ** 2
    return mean, squares / (sum(sizes) - 1)


def taken_off_the_lists(sizes, means, variances):
    count = sum(sizes)
    mean = sum(n * mu for n, mu in zip(sizes, means, strict=True)) / count
    squares = 0
    while sizes:
        n = sizes.pop()
        squares = squares + (n - 1) * variances.pop() + n * (means.pop() - mean) ** 2
    return mean, squares / (count - 1)


def made_double_in_the_lists(sizes, means, variances):
    for values in (means, variances):
        values[:] = [value.double() for value in values]
    return join(sizes, means, variances)


def into_the_first_mean(sizes, means, variances):
    """Write the mean of all into the first one, which the spread is then measured by."""
    mean = means[0]
    mean *= sizes[0]
    for n, other in zip(sizes[1:], means[1:], strict=True):
        mean += n * other
    mean /= sum(sizes)
    squares = sum(
        (n - 1) * variance + n * (mu - mean) ** 2 for n, mu, variance in zip(sizes, means, variances, strict=True)
    )
    return mean, squares / (sum(sizes) - 1)


def with_float32_shares(sizes, means, variances):
    n = torch.tensor(sizes)
    share = (n / n.sum())[:, None]
    mean = (share * torch.stack(means)).sum(0)
    squares = ((n - 1)[:, None] * torch.stack(variances) + n[:, None] * (torch.stack(means) - mean) ** 2).sum(0)
    return mean, squares / (n.sum() - 1)


def in_float32(sizes, means, variances):
    return join(sizes, [each.float() for each in means], [each.float() for each in variances])


BOTH = "return mean, (within + between) / (total - 1)"
SPREAD = "(within + between) / (total - 1)"


@pytest.mark.parametrize(
    "wrong, says",
    [
        (edited(join, (BOTH, f"return mean[None], ({SPREAD})[None]")), "has the shape (1, 2), expected (2,)"),
        (edited(join, (BOTH, f"return mean.tolist(), ({SPREAD}).tolist()")), "expected the mean as a tensor"),
        (in_place, "variances is no longer what it was"),
        (into_the_first_mean, "And means is no longer what it was"),
        (in_float32, "comes back in float32: digits are lost"),
        (with_float32_shares, "float32's rounding, as when tensors of whole numbers are divided"),
        (edited(join, (BOTH, f"return mean, ({SPREAD}).clamp(min=1e-5)")), "channel 0 all -2: the variance is 1e-05, "),
        (taken_off_the_lists, "sizes is no longer what it was"),
        (made_double_in_the_lists, "right, but means is no longer what it was: leave the lists as they are"),
        (edited(join, (SPREAD, "sum(n * v for n, _, v in parts) / total")), "weighted by n: the spread between"),
        (edited(join, ("n * (part - mean) ** 2", "(n - 1) * (part - mean) ** 2")), "not n - 1 of them"),
    ],
)
def test_a_join_of_another_shape_or_that_writes_into_its_lists_is_refused(wrong, says):
    verdict = ask(n07.check_join, wrong)
    assert verdict.status == "wrong", verdict.message
    assert says in verdict.message, verdict.message


def test_a_gradient_that_is_no_number_is_as_long_as_no_other():
    unstable = edited(accumulate, ("F.cross_entropy(scores,", "F.nll_loss(scores.softmax(-1).log(),"))
    message = n07.check_accumulate(unstable).message
    assert "the gradient is nan times as long as the whole batch's" in message
