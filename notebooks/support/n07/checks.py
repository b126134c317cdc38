"""Exercises of notebook 07, micro-batches; what an answer is tried with stands in the trials' files."""

# mypy: allow-untyped-calls

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from support.kit.exercise import Exercise
from support.kit.judged import judged
from support.kit.mistakes import famous
from support.n07.cut_check import check_cut as check_cut
from support.n07.guesses import guess_alike as guess_alike
from support.n07.guesses import guess_chunks as guess_chunks
from support.n07.guesses import guess_one_image as guess_one_image
from support.n07.guesses import guess_peak as guess_peak
from support.n07.guesses import guess_price as guess_price
from support.n07.guesses import guess_way as guess_way
from support.n07.guesses import guess_world as guess_world
from support.n07.joint_trials import fault_of_joint
from support.n07.judges import JOINED, LENGTHS, fault_of_accumulate, fault_of_join
from support.n07.saved_trials import fault_of_saved
from support.n07.solved import accumulate, accumulate_jointly, join, saved_bytes

# ---- exercise 2: accumulate

_SUM = 'F.cross_entropy(scores, y.flatten(), reduction="sum") / count'
_MEAN = "F.cross_entropy(scores, y.flatten())"
_OF_ROWS = "sum(F.cross_entropy(s, each) for s, each in zip(model(x), y) if (each != -100).any())"

check_accumulate = Exercise(
    "accumulate",
    reference=accumulate,
    judge=judged(
        fault_of_accumulate,
        f"gradient and loss are those of the whole batch in all {len(LENGTHS)} cases, one graph at a time.",
        around=torch.enable_grad,
    ),
    mistakes=famous(
        accumulate,
        {
            "Each part has a mean of its own, with the weight 1: together about m times too long.": (
                _SUM,
                _MEAN,
            ),
            "The mean of means: a token of a short micro-batch weighs more than one of a long one.": (
                _SUM,
                f"{_MEAN} / len(parts)",
            ),
            "Weighted by rows: but the loss is a mean over tokens, and padding is no token.": (
                _SUM,
                f"{_MEAN} * len(y) / sum(len(y) for _, y in parts)",
            ),
            "A mean of each row first: in a short row a token weighs more.": (
                _SUM,
                f"{_OF_ROWS} / sum(len(y) for _, y in parts)",
            ),
            "The right weight, but a part of padding only has no mean (0 / 0): take sums.": (
                _SUM,
                f"{_MEAN} * (y != -100).sum() / count",
            ),
            "The sum is divided by all places: padding is no token.": (
                "sum((y != -100).sum().item()",
                "sum(y.numel()",
            ),
            "The sum of the losses is divided by nothing: what is asked for is a mean over all tokens.": (
                "/ count",
                "/ 1",
            ),
            "Only the last micro-batch is left in .grad.": (
                "loss.backward()",
                "model.zero_grad(); loss.backward()",
            ),
            "The gradient of the step before was still in .grad.": ("model.zero_grad()", "pass"),
            "Call backward() before the next forward: so only one graph is alive.": (
                "loss.backward()",
                "pass",
                "loss.item()",
                "loss",
                "return total",
                "total.backward(); return total.item()",
            ),
            "Joined again before the model: that needs the memory of the whole mini-batch.": (
                "for x, y in parts",
                "for x, y in [tuple(torch.cat(each) for each in zip(*parts))]",
            ),
            "That is the loss of the last part alone.": ("total +=", "total ="),
            "What is computed from a part carries its graph along, a sum of losses, too: keep numbers.": (
                "loss.item()",
                "loss",
                "return total",
                "return total.item()",
            ),
            "backward(retain_graph=True) keeps what forward has saved; without it, backward lets go.": (
                "loss.backward()",
                "loss.backward(retain_graph=True)",
            ),
            "The places of a row may see each other: give it x as it is, and flatten the model's scores.": (
                "model(x).flatten(0, 1)",
                "model(x.flatten(0, 1))",
            ),
            "Class 0 is a class like the others: padding is what is −100.": (
                "(y != -100)",
                "(y > 0)",
            ),
            "Let .grad be None, as zero_grad() leaves it: zeros are no None, and a None has no zero_().": (
                "model.zero_grad()",
                "[parameter.grad.zero_() for parameter in model.parameters()]",
            ),
        },
        names={"torch": torch, "F": F},
    ),
)
"""Exercise 2: for micro-batches with different numbers of tokens, even none."""


# ---- exercise 3: saved_bytes

_KEPT = "saved[storage.data_ptr()] = storage"

check_saved_bytes = Exercise(
    "saved_bytes",
    reference=saved_bytes,
    judge=judged(
        fault_of_saved,
        "the right bytes in every case, and backward goes on as before.",
        around=torch.enable_grad,
    ),
    mistakes=famous(
        saved_bytes,
        {
            "What was there before is in it: weights and input are, whether or not somebody saves them.": (
                "storage.data_ptr() not in known",
                "True",
            ),
            "Views of what is there are counted. A weight is saved as w.T, an input as a slice: other objects, "
            "same memory.": (
                "storage.data_ptr() not in known",
                "not any(tensor is other for other in there)",
            ),
            "Slices of what is there are counted: they begin at another address, in the same memory.": (
                "tensor.untyped_storage().data_ptr() for",
                "tensor.data_ptr() for",
                "storage.data_ptr() not in known",
                "tensor.data_ptr() not in known",
            ),
            "A ReLU's output is also the next layer's input: saved twice, it is there once.": (
                "saved[storage.data_ptr()]",
                "saved[len(saved)]",
            ),
            "Two tensors of the same shape are two tensors: tell them apart by their memory.": (
                "saved[storage.data_ptr()]",
                "saved[tensor.shape]",
            ),
            "Elements are no bytes: one of float32 has four.": (
                _KEPT,
                f"{_KEPT}; sizes[storage.data_ptr()] = storage.nbytes() // tensor.element_size()",
                "saved = {}",
                "saved = {}; sizes = {}",
                "storage.nbytes() for storage in saved.values()",
                "sizes.values()",
            ),
            "Not every number has four bytes: ask the storage.": (
                _KEPT,
                f"{_KEPT}; sizes[storage.data_ptr()] = 4 * storage.nbytes() // tensor.element_size()",
                "saved = {}",
                "saved = {}; sizes = {}",
                "storage.nbytes() for storage in saved.values()",
                "sizes.values()",
            ),
            "A view is counted with its own bytes: what stays is all the memory behind it, and no more than that.": (
                _KEPT,
                "saved[storage.data_ptr()] = tensor.detach()",
                "storage.nbytes()",
                "storage.nbytes",
            ),
            "Halves of one memory are counted as two: a view keeps all that lies behind it, once.": (
                _KEPT,
                "saved[tensor.data_ptr()] = storage",
            ),
            "A tensor without a gradient, or a leaf, is left out: only what is in `there` is to be.": (
                "storage.data_ptr() not in known",
                "storage.data_ptr() not in known and not tensor.is_leaf",
            ),
            "What unpack returns must be the tensor that pack was given.": ("return tensor.detach()", "pass"),
            "A saved output knows the graph that saved it: let pack keep and return tensor.detach().": (
                "return tensor.detach()",
                "return tensor",
            ),
            "detach() is the same memory without a graph; clone() copies it.": (
                "return tensor.detach()",
                "return tensor.detach().clone()",
            ),
            "Two views of one memory count once, and are two tensors: pack returns its own, by detach().": (
                "saved = {}",
                "saved = {}; views = {}",
                "return tensor.detach()",
                "return views.setdefault(storage.data_ptr(), tensor.detach())",
            ),
            "Of what is there only the memory counts, not where a slice of it begins: ask for the storage's address.": (
                "tensor.untyped_storage().data_ptr() for",
                "tensor.data_ptr() for",
            ),
            "Whole numbers and masks are saved, too, and have bytes.": (
                "storage.data_ptr() not in known",
                "storage.data_ptr() not in known and tensor.is_floating_point()",
            ),
            "The hooks end with the `with` block: without it they stay on for ever.": (
                "with saved_tensors_hooks(pack, lambda packed: packed):\n        forward()",
                "saved_tensors_hooks(pack, lambda packed: packed).__enter__()\n    forward()",
            ),
            "What stands outside of the function outlives the call, and so does all that it holds.": (
                "def saved_bytes(forward, there):",
                "saved = {}\n\n\ndef saved_bytes(forward, there):",
                "    saved = {}\n",
                "    saved.clear()\n",
            ),
            "When a tensor dies, its memory goes to the next one: hold on to it until you have added up.": (
                _KEPT,
                "saved[storage.data_ptr()] = storage.nbytes()",
                "storage.nbytes() for storage in saved.values()",
                "saved.values()",
            ),
        },
    ),
)
"""Exercise 3: how much a forward leaves for backward."""


# ---- exercise 4: accumulate_jointly

_SECOND = "model(part).backward(gradient)"


def _all_graphs_at_once(model: nn.Module, parts: list[Tensor], loss_of: Callable[[Tensor], Tensor]) -> float:
    model.zero_grad()
    loss = loss_of(torch.cat([model(part) for part in parts]))
    loss.backward()
    return loss.item()


def _earlier_ones_only(model: nn.Module, parts: list[Tensor], loss_of: Callable[[Tensor], Tensor]) -> float:
    model.zero_grad()
    seen = list[Tensor]()
    loss = torch.zeros(())
    for part in parts:
        points = model(part)
        loss = loss_of(torch.cat([*seen, points]))
        loss.backward()
        seen.append(points.detach())
    return loss.item()


def _each_for_itself(model: nn.Module, parts: list[Tensor], loss_of: Callable[[Tensor], Tensor]) -> float:
    model.zero_grad()
    total = 0.0
    for part in parts:
        loss = loss_of(model(part)) / len(parts)
        loss.backward()
        total += loss.item()
    return total


check_jointly = Exercise(
    "accumulate_jointly",
    reference=accumulate_jointly,
    judge=judged(
        fault_of_joint,
        "three losses over all rows, five cuts: the whole batch's gradient, and never all graphs at a time.",
        around=torch.enable_grad,
    ),
    mistakes={
        "All graphs are alive at once: let none live but that of one micro-batch.": _all_graphs_at_once,
        "That is another loss: each micro-batch was compared with itself only.": _each_for_itself,
        "Each part was compared with earlier ones only; the loss looks at later ones, too.": _earlier_ones_only,
        **famous(
            accumulate_jointly,
            {
                "The gradient of the loss by the points has to arrive in each second forward's backward.": (
                    _SECOND,
                    "model(part).sum().backward()",
                ),
                "The loss is one, over all rows: no part's gradient is divided by their number.": (
                    _SECOND,
                    "model(part).backward(gradient / len(parts))",
                ),
                "The gradient of the step before was still in .grad.": ("model.zero_grad()", "pass"),
                "Only the last micro-batch is left in .grad.": (
                    _SECOND,
                    "model.zero_grad(); model(part).backward(gradient)",
                ),
                "What arrives at the points must go on through the model, and stay in .grad.": (
                    _SECOND,
                    "pass",
                ),
            },
        ),
    },
)
"""Exercise 4: the gradient of a loss that looks at all rows, one micro-batch's graph at a time."""


# ---- exercise 5: join

check_join = Exercise(
    "join",
    reference=join,
    judge=judged(
        fault_of_join,
        f"mean and variance are nn.BatchNorm's of the whole batch in all {len(JOINED)} cases.",
    ),
    mistakes=famous(
        join,
        {
            "That is the spread within the micro-batches alone; the one between their means is missing, or cancels "
            "because it isn't squared.": ("within + between", "within"),
            "The mean of the variances: the spread between the means is missing.": (
                "(within + between) / (total - 1)",
                "sum(variances) / len(variances)",
            ),
            "Divided by N - m, a rule for groups with means of their own; here all rows are one batch.": (
                "(total - 1)",
                "(total - len(sizes))",
            ),
            "Divided by N: nn.BatchNorm keeps the unbiased variance, over N - 1.": ("(total - 1)", "total"),
            "The mean of the variances, weighted by n: the spread between the means is still missing.": (
                "(within + between) / (total - 1)",
                "sum(n * variance for n, _, variance in parts) / total",
            ),
            "All n values of a micro-batch lie that far from the common mean, not n - 1 of them.": (
                "n * (part - mean) ** 2",
                "(n - 1) * (part - mean) ** 2",
            ),
            "A number for each channel is a tensor of one dimension.": (
                "return mean, (within + between) / (total - 1)",
                "return mean[None], ((within + between) / (total - 1))[None]",
            ),
            "An unbiased variance times n is no sum of squares: it was divided by n - 1.": (
                "(n - 1) * variance",
                "n * variance",
            ),
            "n · variance and / N are the rules of biased variances; these come in unbiased.": (
                "(n - 1) * variance",
                "n * variance",
                "(total - 1)",
                "total",
            ),
            "That is the standard deviation: the variance is its square.": (
                "(within + between) / (total - 1)",
                "((within + between) / (total - 1)) ** 0.5",
            ),
            "The mean of the means: a value of a short micro-batch weighs more.": (
                "n * part for",
                "part for",
                "parts) / total",
                "parts) / len(parts)",
            ),
            "The distance of each mean counts for all n values of its micro-batch.": (
                "n * (part -",
                "(part -",
            ),
            "Squares minus the square of the mean: near 10,000 all digits cancel. Take distances from the mean.": (
                "(part - mean) ** 2",
                "part**2",
                "within + between",
                "within + between - total * mean**2",
            ),
            "First the mean, then the variance.": (
                "return mean,",
                "return ",
                "(total - 1)",
                "(total - 1), mean",
            ),
        },
    ),
)
"""Exercise 5: from sizes, means and unbiased variances of micro-batches to those of the whole batch."""
