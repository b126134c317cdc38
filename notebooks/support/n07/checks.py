"""Predictions and exercises of notebook 07, micro-batches."""

# mypy: allow-untyped-calls

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise, product
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from support.checks import Exercise, Guess, cases
from support.n07 import solved
from support.n07.figures import numbered, zip_of_chunks
from support.n07.judges import fault_of_accumulate, fault_of_join, fault_of_saved, judged
from support.n07.solved import accumulate, gather, join, saved_bytes, scatter
from support.ranks import source_of

# ---- predictions


def _lost() -> int:
    x, y = torch.arange(8), torch.arange(5)
    return len(x) - sum(len(part[0]) for part in zip_of_chunks((x, y), 4))


def _way() -> float:
    norm = nn.BatchNorm1d(1)
    for _ in range(8):
        norm(torch.tensor([[0.0], [2.0]]))  # mean 1
    assert norm.running_mean is not None
    return round(100 * float(norm.running_mean), 1)


guess_chunks = Guess("the number of parts of 5 rows", lambda: len(torch.arange(5).chunk(4)), unit="parts")
"""Section 1: how many parts torch.chunk makes of 5 rows if 4 are asked for."""
guess_lost = Guess("the rows of x that are lost", _lost, unit="rows")
"""Section 1: rows of x that zip loses, x of 8 rows, y of 5, 4 chunks."""
guess_way = Guess("what running_mean goes", _way, unit="%", tolerance=0.03)
"""Of BatchNorm: per cent of the way that running_mean goes in 8 updates of momentum 0.1."""
guess_peak = Guess("the peak", lambda: 1, unit="× that of the whole batch")
"""Of memory: the peak with all 8 forwards first, as a multiple of the whole batch's."""
guess_world = Guess("the length of the gradient", lambda: 0.5, unit="× the right one")
"""Of DDP: what the mean over two ranks makes of sums that were divided by the count of all ranks."""


# ---- what the exercises have in common

Parts: TypeAlias = Sequence[Any]
Tensors: TypeAlias = tuple[Tensor, ...]


def _but(thing: Callable[..., Any], *changes: tuple[str, str]) -> Callable[..., Any]:
    """Return a solved function with some of its lines otherwise: a famous mistake."""
    text = source_of(thing)
    for old, new in changes:
        assert old in text, f"{thing.__name__} has no {old!r}"
        text = text.replace(old, new)
    space = dict(vars(solved))
    exec(text, space)
    made: Callable[..., Any] = space[thing.__name__]
    return made


# ---- exercise 1: scatter

WIDTHS = (3, 1, 2)
NAMES = ("x", "mask", "y")


def _told(part: Any, widths: Sequence[int], whole: Sequence[Tensor] = ()) -> str:
    """Describe one micro-batch by the rows in it: "x 0 1, mask 0 1"; by its shape where it is no run of whole rows."""
    if isinstance(part, Tensor):
        return f"one tensor of shape {tuple(part.shape)}"
    words = []
    for k, (name, tensor, width) in enumerate(zip(NAMES, part, (*widths, *[0] * len(NAMES)), strict=False)):
        if not isinstance(tensor, Tensor):
            words.append(f"{name}: a {type(tensor).__name__}")
        elif tensor.dim() != 2 or tensor.shape[1] != width:
            words.append(f"{name} of shape {' × '.join(map(str, tensor.shape))}")
        else:
            rows = [int(row[0]) // 10 for row in tensor]
            right = torch.equal(tensor, 10 * torch.tensor(rows).reshape(-1, 1) + torch.arange(width))
            storage = tensor.untyped_storage().data_ptr()
            copied = len(whole) > k and storage != whole[k].untyped_storage().data_ptr()
            how = " (changed)" if not right else " (copied)" if copied else ""
            words.append(f"{name} {' '.join(map(str, rows)) or 'nothing'}{how}")
    return ", ".join(words)


def _rows_cut(cut: Callable[[Tensors, int], Parts | None]) -> Callable[..., list[str] | str | None]:
    """Turn a way of cutting into one of sizes, whose result can be read in a sentence."""

    def cut_rows(rows: int | Tensors, widths: Sequence[int], chunks: int) -> list[str] | str | None:
        lengths = [rows] * len(widths) if isinstance(rows, int) else list(map(int, rows))
        whole = tuple(numbered(length, width) for length, width in zip(lengths, widths, strict=True))
        try:
            parts = cut(whole, chunks)
        except ValueError:
            if len(set(lengths)) == 1:
                raise
            return "a ValueError"
        return None if parts is None else [_told(part, widths, whole) for part in parts]

    return cut_rows


def _cut(ends: Callable[[int, int], Sequence[int]]) -> Callable[[Tensors, int], Parts]:
    """Make a way of cutting from the ends of the parts, 0 among them, as a function of rows and chunks."""
    return lambda tensors, chunks: [
        tuple(x[begin:end] for x in tensors) for begin, end in pairwise(ends(len(tensors[0]), chunks))
    ]


def _split(tensors: Tensors, chunks: int, dim: int = 0) -> Parts:
    return list(zip(*(x.tensor_split(chunks, dim) for x in tensors), strict=True))


check_scatter = Exercise(
    "scatter",
    reference=scatter,
    view=_rows_cut,
    cases=[
        *(
            {"rows": rows, "widths": WIDTHS[:many], "chunks": chunks}
            for rows, chunks, many in product((6, 5, 7, 8, 1, 2, 3, 4, 9, 11), (4, 1, 2, 3, 5, 6), (3, 1, 2))
        ),
        *cases(
            "rows widths chunks", [((8, 8, 5), WIDTHS, 4), ((2, 4, 6), WIDTHS, 2), ((4, 8), WIDTHS[:2], 4)]
        ),
    ],
    mistakes={
        "These are torch.chunk's sizes: it rounds up, so that fewer parts may come than were asked for.": zip_of_chunks,
        "rows // chunks for all loses the rest.": _cut(
            lambda rows, chunks: [i * (rows // chunks) for i in range(chunks + 1)]
        ),
        "The last part gets the whole rest: up to chunks - 1 rows more than the others.": _cut(
            lambda rows, chunks: [*(i * (rows // chunks) for i in range(chunks)), rows]
        ),
        "The ceiling for all leaves the last parts short, even empty.": _cut(
            lambda rows, chunks: [i * -(-rows // chunks) for i in range(chunks + 1)]
        ),
        "With fewer rows than chunks some parts are empty: cut into min(rows, chunks).": _split,
        "Even to one row, but the longer parts should come first.": _cut(
            lambda rows, chunks: [i * rows // min(rows, chunks) for i in range(min(rows, chunks) + 1)]
        ),
        "Every chunks-th row is DistributedSampler's cut; a micro-batch is a run of neighbours.": (
            lambda x, chunks: [tuple(each[i::chunks] for each in x) for i in range(min(chunks, len(x[0])))]
        ),
        "This cuts the columns: the batch is dimension 0.": partial(_split, dim=1),
        "A list for each tensor; wanted is a tuple for each micro-batch (zip turns one into the other).": (
            lambda tensors, chunks: [x.tensor_split(min(chunks, len(x))) for x in tensors]
        ),
        "A slice of a tensor is a view and costs nothing; this one copies the rows.": lambda tensors, chunks: [
            tuple(x.clone() for x in part) for part in scatter(tensors, chunks)
        ],
        "Unequal lengths must be refused before anything is cut: later nobody can tell which rows belong together.": (
            lambda tensors, chunks: _split(tensors, min(chunks, len(tensors[0])))
        ),
    },
)
"""Exercise 1: for 1..11 rows, one tensor to three, 1..6 chunks, and for unequal lengths."""


# ---- exercise 2: gather


def _rows_joined(join: Callable[[Parts], Any]) -> Callable[..., str | None]:
    def join_rows(sizes: Sequence[int], widths: Sequence[int]) -> str | None:
        whole = [numbered(sum(sizes), width) for width in widths]
        parts = list(zip(*(torch.split(x, list(sizes)) for x in whole), strict=True))
        try:
            joined = join(parts)
        except RuntimeError as error:  # torch refuses: say so in one line
            return f"RuntimeError: {str(error).splitlines()[0][:60]}"
        if joined is None:
            return None
        if not isinstance(joined, (tuple, list)):
            return _told(joined, widths)
        return f"{len(joined)} tensor{'s' * (len(joined) != 1)}: {_told(joined, widths)}"

    return join_rows


check_gather = Exercise(
    "gather",
    reference=gather,
    view=_rows_joined,
    cases=cases(
        "sizes widths",
        product(((2, 2, 2, 1), (2, 2), (1,), (3, 2, 2), (2, 1, 1, 1)), (WIDTHS, WIDTHS[:1], WIDTHS[:2])),
    ),
    mistakes={
        "stack adds a dimension, and takes parts of one size only: cat joins rows.": lambda parts: tuple(
            torch.stack(same) for same in zip(*parts, strict=True)
        ),
        "Joined along dimension 1: rows belong below each other.": _but(
            gather, ("cat(same)", "cat(same, 1)")
        ),
        "This joins the tensors of one micro-batch with each other, not each tensor with its own parts.": (
            lambda parts: tuple(torch.cat(part, dim=1) for part in parts)
        ),
        "Only the first tensor comes back.": lambda parts: gather(parts)[:1],
        "A tuple was cut, so a tuple comes back, also of one tensor.": lambda parts: (
            gather(parts) if len(parts[0]) > 1 else gather(parts)[0]
        ),
    },
)
"""Exercise 2: for even and uneven micro-batches of one tensor to three."""


# ---- exercise 3: accumulate

_LOSS = 'F.cross_entropy(model(x), y, ignore_index=-100, reduction="sum") / count'
_MEAN = "F.cross_entropy(model(x), y, ignore_index=-100)"
_COUNT = "sum((y != -100).sum().item() for _, y in parts)"
_EACH = ("    for x, y in parts:\n", "    for x, y in parts:\n        model.zero_grad()\n")
_JOINED = "    for x, y in [tuple(torch.cat(each) for each in zip(*parts, strict=True))]:\n"
_LATE = (
    ("loss.backward()", ""),
    ("loss.item()", "loss"),
    ("return total", "total.backward(); return total.item()"),
)

check_accumulate = Exercise(
    "accumulate",
    reference=accumulate,
    judge=judged(
        fault_of_accumulate,
        "gradient and loss are those of the whole batch in all 7 cases, one graph at a time.",
    ),
    mistakes={
        "Each mean loss has the weight 1: the gradient of m micro-batches is about m times too long.": (
            _but(accumulate, (_LOSS, _MEAN))
        ),
        "The mean of means: a token of a short micro-batch weighs more than one of a long one.": (
            _but(accumulate, (_LOSS, f"{_MEAN} / len(parts)"))
        ),
        "Weighted by rows: but the loss is a mean over tokens, and padding is no token.": (
            _but(accumulate, (_LOSS, f"{_MEAN} * len(y) / sum(len(y) for _, y in parts)"))
        ),
        "The right weight, but a part of padding only has no mean (0 / 0): take sums.": (
            _but(accumulate, (_LOSS, f"{_MEAN} * (y != -100).sum() / count"))
        ),
        "The sum is divided by all positions: padding is no token.": (
            _but(accumulate, (_COUNT, "sum(len(y) for _, y in parts)"))
        ),
        ".grad is cleared in the loop: only the last micro-batch is left in it.": _but(accumulate, _EACH),
        "The gradient of the step before was still in .grad.": _but(accumulate, ("model.zero_grad()", "")),
        "Call backward() before the next forward: so only one graph is alive.": _but(accumulate, *_LATE),
        "Joined again before the model: that needs the memory of the whole mini-batch.": (
            _but(accumulate, (_EACH[0], _JOINED))
        ),
        "That is the loss of the last part alone.": _but(accumulate, ("total +=", "total =")),
        "It keeps every graph alive for as long as you keep the loss.": (
            _but(accumulate, ("loss.item()", "loss"))
        ),
    },
)
"""Exercise 3: for micro-batches with different numbers of tokens, even none."""


# ---- exercise 4: saved_bytes


check_saved_bytes = Exercise(
    "saved_bytes",
    reference=saved_bytes,
    judge=judged(fault_of_saved, "the right bytes for five networks, and backward goes on as before."),
    mistakes={
        "The weights are in it: they are there anyway. What is saved of one is a transposed view, no nn.Parameter: "
        "compare addresses.": _but(saved_bytes, ("{parameter.data_ptr() for parameter in parameters}", "()")),
        "A ReLU's output is also the next layer's input: saved twice, it is there once.": (
            _but(saved_bytes, ("saved[tensor.data_ptr()]", "saved[len(saved)]"))
        ),
        "Two tensors of the same shape are two tensors: tell them apart by their address.": (
            _but(saved_bytes, ("saved[tensor.data_ptr()]", "saved[tensor.shape]"))
        ),
        "Elements are no bytes: one of float32 has four.": _but(saved_bytes, (".nbytes", ".numel()")),
        "Not every number has four bytes: ask the tensor (nbytes).": (
            _but(saved_bytes, ("tensor.nbytes", "4 * tensor.numel()"))
        ),
        "A view counts with its own bytes, not with those of all that lies behind it.": (
            _but(saved_bytes, (".nbytes", ".untyped_storage().nbytes()"))
        ),
        "pack must return what backward is to find.": _but(saved_bytes, ("return tensor.detach()", "")),
        "pack returns the tensor itself, which knows the graph that now holds it: return tensor.detach().": (
            _but(saved_bytes, ("return tensor.detach()", "return tensor"))
        ),
    },
)
"""Exercise 4: how much a forward leaves for backward."""


# ---- exercise 5: join


check_join = Exercise(
    "join",
    reference=join,
    judge=judged(fault_of_join, "mean and variance are nn.BatchNorm's of the whole batch in all 5 cases."),
    mistakes={
        "Only the spread within micro-batches: that between their means is missing.": (
            _but(join, ("within + between", "within"))
        ),
        "The mean of the variances: the spread between the means is missing.": (
            _but(join, ("(within + between) / (total - 1)", "sum(variances) / len(variances)"))
        ),
        "Divided by N - m, a rule for groups with means of their own; here all rows are one batch.": (
            _but(join, ("(total - 1)", "(total - len(sizes))"))
        ),
        "Divided by N: nn.BatchNorm keeps the unbiased variance, over N - 1.": (
            _but(join, ("(total - 1)", "total"))
        ),
        "An unbiased variance times n is no sum of squares: it was divided by n - 1.": (
            _but(join, ("(n - 1) * variance", "n * variance"))
        ),
        "The mean of the means: a row of a short micro-batch weighs more.": (
            _but(join, ("n * part for", "part for"), ("parts) / total", "parts) / len(parts)"))
        ),
        "The distance of each mean counts for all n rows of its micro-batch.": (
            _but(join, ("n * (part", "(part"))
        ),
        "Squares minus the square of the mean: near 10,000 all digits cancel. Take distances from the mean.": (
            _but(
                join,
                ("(part - mean) ** 2", "part**2"),
                ("within + between", "within + between - total * mean**2"),
            )
        ),
        "First the mean, then the variance.": _but(
            join, ("return mean, ", "return "), ("(total - 1)", "(total - 1), mean")
        ),
    },
)
"""Exercise 5: from sizes, means and unbiased variances of micro-batches to those of the whole batch."""
