"""What is particular about the checks of notebook 07; what all exercises have in common is in test_detectors."""

import pytest
import torch
import torch.nn.functional as F
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from support.n07 import checks as n07
from tests.support.exercises import ask


def by_means(model, parts):
    model.zero_grad()
    counts = [int((y != -100).sum()) for _, y in parts]
    total = 0.0
    for (x, y), count in zip(parts, counts, strict=True):
        if count:
            loss = F.cross_entropy(model(x).transpose(1, 2), y) * count / sum(counts)
            loss.backward()
            total += float(loss.detach())
    return total


def divided_at_the_end(model, parts):
    """Add up plain sums, and divide every gradient once: a common factor can wait."""
    model.zero_grad()
    total = count = 0
    for x, y in parts:
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum")
        loss.backward()
        total = total + loss.item()
        count = count + int((y != -100).sum())
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad /= count
    return total / count


def without_backward(model, parts):
    """Ask for each part's gradient and add up by hand; what is not reached stays None."""
    model.zero_grad()
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    count = sum(int((y != -100).sum()) for _, y in parts)
    total = 0.0
    for x, y in parts:
        loss = F.cross_entropy(model(x).transpose(1, 2), y, reduction="sum") / count
        for weight, found in zip(weights, torch.autograd.grad(loss, weights, allow_unused=True), strict=True):
            if found is not None:
                weight.grad = found if weight.grad is None else weight.grad + found
        total += loss.item()
    return total


def in_a_box(forward, there):
    """Pack each tensor into a list of one."""
    held = []

    def pack(tensor):
        held.append(tensor.detach())
        return held[-1:]

    with saved_tensors_hooks(pack, lambda packed: packed[0]):
        forward()
    known = {tensor.untyped_storage().data_ptr() for tensor in there}
    storages = {x.untyped_storage().data_ptr(): x.untyped_storage() for x in held}
    return sum(storage.nbytes() for address, storage in storages.items() if address not in known)


def in_a_list(forward, there):
    held = []
    with saved_tensors_hooks(lambda x: held.append(x.untyped_storage()) or x.detach(), lambda x: x):
        forward()
    known = {tensor.untyped_storage().data_ptr() for tensor in there}
    return sum({x.data_ptr(): x.nbytes() for x in held if x.data_ptr() not in known}.values())


def by_storage_sizes(forward, there):
    """Hold on to the tensors, and ask each for its storage."""
    held = []

    def pack(tensor):
        held.append(tensor.detach())
        return held[-1]

    with saved_tensors_hooks(pack, lambda packed: packed):
        forward()
    sizes = {x.untyped_storage().data_ptr(): x.untyped_storage().size() for x in held}
    for tensor in there:
        sizes.pop(tensor.untyped_storage().data_ptr(), None)
    return sum(sizes.values())


def by_checkpoint(model, parts, loss_of):
    model.zero_grad()
    loss = loss_of(torch.cat([checkpoint(model, part, use_reentrant=False) for part in parts]))
    loss.backward()
    return float(loss.detach())


def by_products(model, parts, loss_of):
    for parameter in model.parameters():
        parameter.grad = None
    with torch.no_grad():
        points = [model(part) for part in parts]
    seam = torch.cat(points).requires_grad_()
    (arriving,) = torch.autograd.grad(loss_of(seam), seam)
    for part, gradient in zip(parts, arriving.split([len(part) for part in parts]), strict=True):
        (model(part) * gradient).sum().backward()
    return loss_of(seam.detach()).item()


def by_functions(model, parts, loss_of):
    """Never call backward: torch.func gives the product with the gradient of each part."""
    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    sums = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    seam = torch.cat([model(part).detach() for part in parts]).requires_grad_()
    loss = loss_of(seam)
    (arriving,) = torch.autograd.grad(loss, seam)
    for part, gradient in zip(parts, arriving.split([len(part) for part in parts]), strict=True):
        _, product = torch.func.vjp(lambda w, part=part: torch.func.functional_call(model, w, (part,)), weights)
        (found,) = product(gradient)
        for name in sums:
            sums[name] += found[name]
    for name, weight in model.named_parameters():
        weight.grad = sums[name] if weight.requires_grad else None
    return loss.item()


def one_live_at_a_time(model, parts, loss_of):
    """Compute the loss once for each part, which alone has a graph: as many losses as parts."""
    model.zero_grad()
    with torch.no_grad():
        points = [model(part) for part in parts]
    for i, part in enumerate(parts):
        loss = loss_of(torch.cat([*points[:i], model(part), *points[i + 1 :]]))
        loss.backward()
    return loss.item()


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
    (n07.check_accumulate, without_backward),
    (n07.check_saved_bytes, in_a_box),
    (n07.check_saved_bytes, in_a_list),
    (n07.check_saved_bytes, by_storage_sizes),
    (n07.check_jointly, by_checkpoint),
    (n07.check_jointly, by_products),
    (n07.check_jointly, by_functions),
    (n07.check_jointly, one_live_at_a_time),
    (n07.check_join, from_first_row),
])  # fmt: skip
def test_another_right_answer_passes(check, answer):
    verdict = check(answer)
    assert verdict, verdict.message


def places_for_classes(model, parts):
    model.zero_grad()
    for x, y in parts:
        F.cross_entropy(model(x), y).backward()
    return 0.0


def only_outputs(forward, there):
    result = forward()
    return sum(x.nbytes for x in (result if isinstance(result, tuple) else (result,)))


def as_tensor(forward, there):
    return torch.tensor(n07.check_saved_bytes.reference(forward, there))


def kept_itself(forward, there):
    known = {tensor.untyped_storage().data_ptr() for tensor in there}
    held = {}
    with saved_tensors_hooks(lambda x: held.setdefault(x.untyped_storage().data_ptr(), x).detach(), lambda x: x):
        forward()
    return sum(x.untyped_storage().nbytes() for address, x in held.items() if address not in known)


def what_has_a_graph(forward, there):
    """Count only what requires a gradient: an input without one is left out."""
    held = {}

    def pack(tensor):
        if tensor.requires_grad and not any(tensor is one for one in there):
            held[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor.detach()

    known = {tensor.untyped_storage().data_ptr() for tensor in there}
    with saved_tensors_hooks(pack, lambda packed: packed):
        forward()
    return sum(x.nbytes() for address, x in held.items() if address not in known)


def twice(forward, there):
    forward()
    return n07.check_saved_bytes.reference(forward, there)


def detached_too_late(model, parts, loss_of):
    """All graphs are there before the points are taken out of them."""
    model.zero_grad()
    points = torch.cat([model(part) for part in parts]).detach().requires_grad_()
    loss = loss_of(points)
    loss.backward()
    for part, gradient in zip(parts, points.grad.split([len(part) for part in parts]), strict=True):
        model(part).backward(gradient)
    return loss.item()


def all_second_forwards_first(model, parts, loss_of):
    model.zero_grad()
    with torch.no_grad():
        points = torch.cat([model(part) for part in parts])
    points.requires_grad_()
    loss = loss_of(points)
    loss.backward()
    torch.cat([model(part) for part in parts]).backward(points.grad)
    return loss.item()


def cut_evenly(model, parts, loss_of):
    model.zero_grad()
    with torch.no_grad():
        points = torch.cat([model(part) for part in parts])
    points.requires_grad_()
    loss = loss_of(points)
    loss.backward()
    for part, gradient in zip(parts, points.grad.chunk(len(parts)), strict=True):
        model(part).backward(gradient)
    return loss.item()


def not_squared(sizes, means, variances):
    total = sum(sizes)
    mean = sum(n * mu for n, mu in zip(sizes, means, strict=True)) / total
    rows = zip(sizes, means, variances, strict=True)
    return mean, sum((n - 1) * variance + n * (mu - mean) for n, mu, variance in rows) / (total - 1)


@pytest.mark.costly
@pytest.mark.parametrize(
    "check, wrong, says",
    [
        (n07.check_accumulate, lambda model, parts: 1, "% of its length away"),
        (n07.check_accumulate, lambda model, parts: model.zero_grad() or 1, "was backward() called"),
        (n07.check_accumulate, places_for_classes, "Flatten rows and places into one"),
        (n07.check_saved_bytes, as_tensor, "expected a number, 192, got a tensor"),
        (n07.check_saved_bytes, kept_itself, "never die, even when the loss is deleted. A saved output knows"),
        (n07.check_saved_bytes, only_outputs, "expected 192 bytes"),
        (n07.check_saved_bytes, what_has_a_graph, "x not in `there`: expected 576 bytes (x, and each ReLU's output)"),
        (n07.check_saved_bytes, twice, "called 2 times"),
        (n07.check_jointly, detached_too_late, "half is easy to beat"),
        (n07.check_jointly, all_second_forwards_first, "half is easy to beat"),
        (n07.check_jointly, cut_evenly, "your code raised"),
        (n07.check_join, lambda sizes, means, variances: means[0], "expected two tensors"),
        (n07.check_join, not_squared, "cancels because it isn't squared"),
    ],
)
def test_any_other_wrong_answer_is_told_what_came_of_it(check, wrong, says):
    verdict = ask(check, wrong)
    assert verdict.status == "wrong", verdict.message
    assert says in verdict.message, verdict.message


def test_what_has_a_graph_is_told_nothing_of_shapes():
    assert "same shape" not in n07.check_saved_bytes(what_has_a_graph).message


def test_the_reason_of_a_famous_wrong_guess_is_told():
    assert "You said 4, which is what was asked for; " in n07.guess_chunks(4).message
    assert "You said 43, which is what is left; " in n07.guess_way(43).message
    assert "You said 80, as 8 · 10; " in n07.guess_way(0.8).message
    assert "that is it" in n07.guess_way(0.57).message
    assert "close" in n07.guess_way(50).message
    assert "You said 0, as if only what the sentences say mattered; " in n07.guess_alike(0, 0.7).message


def test_a_guess_in_quotation_marks_is_read_as_the_number_that_it_is():
    assert "You said 4, which is what was asked for; " in n07.guess_chunks("4").message
    assert "You said 0.125, as with one at a time; " in n07.guess_peak("1/8", 1.0).message
    assert "that is it" in n07.guess_world("1/2").message
