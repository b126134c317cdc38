"""What is particular about the checks of notebook 07; what all exercises have in common is in test_detectors."""

import pytest
import torch
import torch.nn.functional as F
from torch.autograd.graph import saved_tensors_hooks

from lib.runtime.microbatch import Batch, gather, scatter
from support.n07 import checks as n07


def even(tensors, chunks):
    if len({len(tensor) for tensor in tensors}) > 1:
        raise ValueError("unequal")
    return list(zip(*(x.tensor_split(min(chunks, len(x))) for x in tensors), strict=True))


def test_lib_and_another_right_way_to_cut_and_to_join_pass():
    assert n07.check_scatter(scatter)
    assert n07.check_scatter(even)
    assert n07.check_gather(lambda parts: gather([Batch(tuple(part)) for part in parts]))


def by_means(model, parts):
    model.zero_grad()
    counts = [int((y != -100).sum()) for _, y in parts]
    total = 0.0
    for (x, y), count in zip(parts, counts, strict=True):
        if count:
            loss = F.cross_entropy(model(x), y) * count / sum(counts)
            loss.backward()
            total += float(loss.detach())
    return total


def divided_at_the_end(model, parts):
    """Add up plain sums, and divide every gradient once: a common factor can wait."""
    model.zero_grad()
    total = count = 0
    for x, y in parts:
        loss = F.cross_entropy(model(x), y, reduction="sum")
        loss.backward()
        total = total + loss.item()
        count = count + int((y != -100).sum())
    for parameter in model.parameters():
        parameter.grad /= count
    return total / count


def in_a_list(forward, parameters):
    held = []
    with saved_tensors_hooks(lambda x: held.append(x.detach()) or x.detach(), lambda x: x):
        forward()
    known = {parameter.data_ptr() for parameter in parameters}
    return sum({x.data_ptr(): x.nbytes for x in held if x.data_ptr() not in known}.values())


def from_first_row(sizes, means, variances):
    """Join one after another, as Chan's update does, in the channel's own precision."""
    count = 0
    mean = torch.zeros_like(means[0])
    squares = torch.zeros_like(means[0])
    for n, mu, variance in zip(sizes, means, variances, strict=True):
        apart = mu - mean if count else torch.zeros_like(mu)
        squares = squares + (n - 1) * variance + apart**2 * count * n / (count + n)
        mean = mean + (mu - mean) * n / (count + n)
        count = count + n
    return mean, squares / (count - 1)


@pytest.mark.parametrize("check, answer", [
    (n07.check_accumulate, by_means),
    (n07.check_accumulate, divided_at_the_end),
    (n07.check_saved_bytes, in_a_list),
    (n07.check_join, from_first_row),
])  # fmt: skip
def test_another_right_answer_passes(check, answer):
    verdict = check(answer)
    assert verdict, verdict.message


def doubled(tensors, chunks):
    return [tuple(2 * x for x in part) for part in n07.check_scatter.reference(tensors, chunks)]


def only_outputs(forward, parameters):
    result = forward()
    return sum(x.nbytes for x in (result if isinstance(result, tuple) else (result,)))


def as_tensor(forward, parameters):
    return torch.tensor(n07.check_saved_bytes.reference(forward, parameters))


def kept_itself(forward, parameters):
    known = {parameter.data_ptr() for parameter in parameters}
    held = {}
    with saved_tensors_hooks(lambda x: held.setdefault(x.data_ptr(), x).detach(), lambda x: x):
        forward()
    return sum(x.nbytes for address, x in held.items() if address not in known)


def three_faults(parts):
    return tuple(torch.cat([q[i] for q in parts[:4]]).float().detach() for i in range(len(parts[0])))


def twice(forward, parameters):
    forward()
    return n07.check_saved_bytes.reference(forward, parameters)


@pytest.mark.parametrize(
    "check, wrong, says",
    [
        (n07.check_scatter, lambda tensors, chunks: [tensors], "got x 0 1 2 3 4 5"),
        (n07.check_scatter, doubled, "changed"),
        (n07.check_gather, lambda parts: gather([Batch(p) for p in parts[::-1]]), "x 6 4 5 2 3 0 1"),
        (
            n07.check_scatter,
            lambda tensors, chunks: [iter(p) for p in scatter(tensors, chunks)],
            "got a tuple_iterator",
        ),
        (n07.check_gather, three_faults, "got x (now float32, not in the graph) 0 1 2 3 4 5 6"),
        (n07.check_gather, lambda parts: (gather([Batch(tuple(p)) for p in parts])[0], *parts[0][1:]), "got mask 1 0"),
        (n07.check_accumulate, lambda model, parts: 1, "% of its length away"),
        (n07.check_accumulate, lambda model, parts: model.zero_grad() or 1, "was backward() called"),
        (n07.check_saved_bytes, as_tensor, "expected a number, 384, got a tensor"),
        (n07.check_saved_bytes, kept_itself, "never die, even when the loss is deleted. The tensor itself knows"),
        (n07.check_saved_bytes, only_outputs, "expected 384 bytes"),
        (n07.check_saved_bytes, twice, "called 2 times"),
        (n07.check_join, lambda sizes, means, variances: means[0], "expected two tensors"),
    ],
)
def test_any_other_wrong_answer_is_told_what_came_of_it(check, wrong, says):
    verdict = check(wrong)
    assert verdict.status == "wrong", verdict.message
    assert says in verdict.message, verdict.message


def test_the_first_counterexample_of_a_wrong_cut_and_the_reason_of_a_famous_wrong_guess_are_told():
    (chunk,) = [cut for why, cut in n07.check_scatter.mistakes.items() if "torch.chunk" in why]
    message = n07.check_scatter(chunk).message
    assert message.startswith("scatter: for rows = 6, ")
    assert "chunks = 4" in message
    assert "position 2: expected x 4, mask 4, y 4, got x 4 5, mask 4 5, y 4 5" in message
    assert "You said 4, which is what was asked for; " in n07.guess_chunks(4).message
    assert "You said 43, which is what is left; " in n07.guess_way(43).message
    assert "You said 80, as 8 · 10; " in n07.guess_way(0.8).message
    assert "that is it" in n07.guess_way(0.57).message
    assert "close" in n07.guess_way(50).message
