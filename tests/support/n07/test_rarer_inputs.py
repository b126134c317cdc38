"""Wrong answers that only a rarer input shows: a model that sees places together, large numbers, a weight to cut."""

import re

import pytest
import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_map

from support.kit.mistakes import edited
from support.n07 import checks as n07
from support.n07.solved import accumulate, gather, join, saved_bytes, scatter
from tests.support.exercises import ask


def weights_left_whole(batch, chunks):
    """A weight is a tensor, too, but of another class."""
    parts = scatter(batch, chunks)
    if isinstance(batch, dict):
        for part in parts:
            part.update({key: each for key, each in batch.items() if type(each) is torch.nn.Parameter})
    return parts


def one_list_for_all(batch, chunks, parts=[]):  # noqa: B006
    parts[:] = scatter(batch, chunks)
    return parts


def one_dictionary_for_all(parts, joined={}):  # noqa: B006
    whole = gather(parts)
    if not isinstance(whole, dict):
        return whole
    joined.clear()
    joined.update(whole)
    return joined


def images_left_flat(batch, chunks):
    """A row is flattened where it is an image."""
    return [
        tree_map(lambda leaf: leaf.flatten(1) if isinstance(leaf, torch.Tensor) and leaf.dim() > 2 else leaf, part)
        for part in scatter(batch, chunks)
    ]


def wants_gradients(parts):
    return tree_map(
        lambda leaf: leaf.requires_grad_() if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf,
        gather(parts),
    )


SLICES = "leaf.tensor_split(count)"
OTHERS = "[leaf] * count"


@pytest.mark.parametrize(
    "cut, join, says",
    [
        (weights_left_whole, gather, "nn.Parameter(x)"),
        (edited(scatter, (SLICES, f"[each.contiguous() for each in {SLICES}]")), gather, "a copy: a slice would"),
        (edited(scatter, (OTHERS, "[leaf or None] * count")), gather, "None, expected 0"),
        (edited(scatter, ("isinstance(leaf, torch.Tensor) else", "hasattr(leaf, 'shape') else")), gather, "np.float64"),
        (images_left_flat, gather, "shape "),
        (one_list_for_all, gather, "what it returned before is no longer what it was"),
        (scatter, one_dictionary_for_all, "what it returned before is no longer what it was"),
        (scatter, wants_gradients, "requires a gradient, which the tensor that it comes from does not"),
    ],
)
def test_a_cut_that_is_right_for_easy_nests_or_a_first_call_only_is_refused(cut, join, says):
    verdict = n07.check_cut(cut, join)
    assert verdict.status == "wrong", verdict.message
    assert says in verdict.message, verdict.message


def only_tokens(model, parts):
    """Hand the model the tokens alone, as if they stood in one row."""
    count = sum((y != -100).sum().item() for _, y in parts)
    model.zero_grad()
    total = 0.0
    for x, y in parts:
        kept = y != -100
        if kept.any():
            loss = F.cross_entropy(model(x[kept][None])[0], y[kept], reduction="sum") / count
            loss.backward()
            total += loss.item()
    return total


SCORES = "scores = model(x).flatten(0, 1)"
SKIPPED = """scores = model(x)
        if not (y != -100).any():
            continue
        scores = scores.flatten(0, 1)"""
FIRST_PLACES = """if (y[:, 0] == -100).all():
            continue
        scores = model(x).flatten(0, 1)"""
CLEARED_LATE = """if (y == -100).all():
            continue
        if x is parts[0][0]:
            model.zero_grad()
        scores = model(x).flatten(0, 1)"""
IN_FLOAT64 = ("model(x)", "model(x.double())")
LOSS = 'F.cross_entropy(scores, y.flatten(), reduction="sum")'
IN_ANY_ORDER = "flatten() and reshape() take what view() refuses"
LOGARITHM = 'F.nll_loss(scores.softmax(-1).log(), y.flatten(), reduction="sum")'


@pytest.mark.parametrize(
    "wrong, says",
    [
        (edited(accumulate, (SCORES, "scores = model(x.flatten(0, 1))")), "give it x as it is"),
        (only_tokens, "the whole batch's"),
        (edited(accumulate, (SCORES, SKIPPED)), "bytes are still kept that an earlier one has saved"),
        (edited(accumulate, (LOSS, LOGARITHM)), "a thousand times as large"),
        (edited(accumulate, ("model(x).flatten(0, 1)", "model(x).view(-1, 3)")), IN_ANY_ORDER),
        (edited(accumulate, ("y.flatten()", "y.view(-1)")), IN_ANY_ORDER),
        (edited(accumulate, (SCORES, FIRST_PLACES)), "the whole batch's"),
        (
            edited(accumulate, ("model.zero_grad()", "pass"), (SCORES, CLEARED_LATE)),
            "0, 0 | 2, 3 | 0 tokens: the gradient is",
        ),
        (edited(accumulate, IN_FLOAT64), "in float32: your code raised RuntimeError"),
        (
            edited(accumulate, IN_FLOAT64, ("model.zero_grad()", "model.double().zero_grad()")),
            "the weights are in torch.float64 now, they were in torch.float32",
        ),
    ],
)
def test_an_accumulate_that_is_right_for_easy_models_and_parts_only_is_refused(wrong, says):
    verdict = ask(n07.check_accumulate, wrong)
    assert verdict.status == "wrong", verdict.message
    assert says in verdict.message, verdict.message


def test_zeros_in_grad_are_told_what_zero_grad_leaves():
    verdict = ask(n07.check_accumulate, edited(accumulate, ("zero_grad()", "zero_grad(set_to_none=False)")))
    assert "is safe" not in verdict.message, verdict.message


COUNT = "sum((y != -100).sum().item() for _, y in parts)"
ONLY_LAST = "(parts[-1][1] != -100).sum().item() * len(parts)"
KEPT = (("total = 0.0", "total = []"), ("total += loss.item()", "total.append(loss)"))


@pytest.mark.parametrize(
    "wrong, untrue",
    [
        (edited(accumulate, (COUNT, ONLY_LAST)), "Class 0"),
        (edited(accumulate, *KEPT, ("return total", "return sum(total).item()")), "A sum of loss tensors"),
        (
            edited(
                accumulate,
                (LOSS, f"{LOSS} * (count / (y != -100).sum().clamp(min=1)) * (y != -100).sum().clamp(min=1) / count"),
            ),
            "two tensors",
        ),
    ],
)
def test_an_accumulate_is_told_of_no_mistake_that_it_does_not_make(wrong, untrue):
    verdict = ask(n07.check_accumulate, wrong)
    assert verdict.status == "wrong", verdict.message
    assert untrue not in verdict.message, verdict.message


def test_a_model_in_float32_is_not_told_of_a_quotient_that_it_does_not_have():
    verdict = ask(n07.check_accumulate, edited(accumulate, ("model(x)", "model(x).float()")))
    assert "become float32" not in verdict.message, verdict.message


def remembers_in_there(forward, there):
    """Count each memory once, by putting it on the caller's list."""
    count = 0

    def pack(tensor):
        nonlocal count
        storage = tensor.untyped_storage()
        if all(storage.data_ptr() != other.untyped_storage().data_ptr() for other in there):
            there.append(tensor.detach())
            count += storage.nbytes()
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed):
        forward()
    return count


STORED = "if storage.data_ptr() not in known"
BASE = "(tensor if tensor._base is None else tensor._base)"
OUTPUT = "tree_map(lambda each: saved.pop(each.untyped_storage().data_ptr(), None), forward())"


@pytest.mark.parametrize(
    "wrong, says",
    [
        (remembers_in_there, "`there` is no longer what it was"),
        (
            edited(saved_bytes, ("    saved = {}", "    saved = {}; [each.requires_grad_() for each in there]")),
            "`requires_grad` of a tensor in `there` is no longer what it was",
        ),
        (
            edited(saved_bytes, ("    forward()", f"    {OUTPUT}"), names={"tree_map": tree_map}),
            "expected 192 bytes (the result of exp, which is also returned), got 0",
        ),
        (
            edited(saved_bytes, (STORED, f"{STORED} and type(tensor) is not nn.Parameter"), names={"nn": torch.nn}),
            "weights in one memory, nothing there: expected 480 bytes (the memory, once), got 0",
        ),
        (
            edited(
                saved_bytes,
                ("tensor.untyped_storage().data_ptr() for", f"id({BASE}) for"),
                (STORED, f"if id({BASE}) not in known"),
            ),
            "weights in one memory, the first there: expected 0 bytes (all of it is there), got 480",
        ),
        (
            edited(saved_bytes, ("saved[storage.data_ptr()]", f"saved[{BASE}.data_ptr()]")),
            "weights in one memory, nothing there: expected 480 bytes (the memory, once), got 960",
        ),
        (
            edited(
                saved_bytes,
                ("tensor.untyped_storage()\n", f"{BASE}.detach()\n"),
                ("storage.nbytes()", "storage.nbytes"),
            ),
            "weights in one memory, nothing there: expected 480 bytes (the memory, once), got 384",
        ),
    ],
)
def test_a_saved_bytes_that_is_right_for_easy_forwards_only_is_refused(wrong, says):
    verdict = ask(n07.check_saved_bytes, wrong)
    assert verdict.status == "wrong", verdict.message
    assert says in verdict.message, verdict.message


def squares_in_float64(sizes, means, variances):
    """Add up plain squares, with more digits: near a million they cancel all the same."""
    n = torch.tensor(sizes, dtype=torch.float64)[:, None]
    mu = torch.stack(list(means)).double()
    variance = torch.stack(list(variances)).double()
    mean = (n * mu).sum(0) / n.sum()
    squares = ((n - 1) * variance + n * mu**2).sum(0) - n.sum() * mean**2
    return mean.to(means[0]), (squares / (n.sum() - 1)).to(means[0])


def test_a_join_by_squares_is_refused_with_more_digits_too():
    verdict = ask(n07.check_join, squares_in_float64)
    assert verdict.status == "wrong", verdict.message
    assert "near 1e+06, one channel, in float64: the variance is" in verdict.message, verdict.message
    assert "float32's rounding" not in verdict.message, verdict.message


def variance_a_little_large(sizes, means, variances):
    mean, variance = join(sizes, means, variances)
    return mean, variance * 1.002


def test_two_numbers_that_are_told_apart_differ_in_what_is_shown_of_them():
    message = ask(n07.check_join, variance_a_little_large).message
    found, right = re.search(r"is ([^,]+).*, nn.BatchNorm has ([^,]+)", message).groups()
    assert found != right, message
