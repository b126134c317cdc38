"""Predictions and exercises of notebook 07, micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise, product
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lib.pipeline.microbatch import scatter
from support.checks import Exercise, Guess, cases
from support.n07.figures import numbered, zip_of_chunks

# ---- predictions


def _lost() -> int:
    x, y = torch.arange(8), torch.arange(5)
    return len(x) - sum(len(part[0]) for part in zip_of_chunks((x, y), 4))


def _times() -> int:
    x = torch.arange(1.0, 17.0)
    return round(sum(float(part.mean()) for part in x.tensor_split(8)) / float(x.mean()))


def _way() -> float:
    norm = nn.BatchNorm1d(1)
    for _ in range(4):
        norm(torch.tensor([[0.0], [2.0]]))  # mean 1
    assert norm.running_mean is not None
    return round(100 * float(norm.running_mean), 1)


def _peak() -> float:
    from support.n07.runs import step_in_parts

    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU())
    x = torch.ones(16, 8)
    ways = (x.tensor_split(8), [x])
    parts, whole = (step_in_parts(model, way, "all forwards first").peak_bytes for way in ways)
    return parts / whole


guess_chunks = Guess("the number of parts of 5 rows", lambda: len(torch.arange(5).chunk(4)), unit="parts")
"""Section 1: how many parts torch.chunk makes of 5 rows if 4 are asked for."""
guess_lost = Guess("the rows of x that are lost", _lost, unit="rows")
"""Section 2: rows of x that zip loses, x of 8 rows, y of 5, 4 chunks."""
guess_times = Guess("the factor of the gradient", _times)
"""Of "Break it": the factor of the gradient of 8 even micro-batches, undivided."""
guess_way = Guess("what running_mean goes", _way, unit="%", tolerance=0.03)
"""Section 5: percent of the way that running_mean goes in 4 updates of momentum 0.1."""
guess_peak = Guess("the peak", _peak, unit="× that of the whole batch")
"""Section 6: the peak with all 8 forwards first, as a multiple of the whole batch's."""


# ---- exercise 1: scatter_by_hand

Parts: TypeAlias = Sequence[Any]
Tensors: TypeAlias = tuple[Tensor, ...]
WIDTHS = (3, 1, 2)
NAMES = ("x", "mask", "y")


def _told(part: Any, widths: Sequence[int]) -> str:
    """Describe one micro-batch by the rows in it: "x 0 1, mask 0 1"; by its shape where it is no run of whole rows."""
    if isinstance(part, Tensor):
        return f"one tensor of shape {tuple(part.shape)}"
    words = []
    for name, tensor, width in zip(NAMES, part, (*widths, *[0] * len(NAMES)), strict=False):
        if not isinstance(tensor, Tensor):
            words.append(f"{name}: a {type(tensor).__name__}")
        elif tensor.dim() != 2 or tensor.shape[1] != width:
            words.append(f"{name} of shape {' × '.join(map(str, tensor.shape))}")
        else:
            rows = [int(row[0]) // 10 for row in tensor]
            whole = torch.equal(tensor, 10 * torch.tensor(rows).reshape(-1, 1) + torch.arange(width))
            words.append(f"{name} {' '.join(map(str, rows)) or 'nothing'}" + ("" if whole else " (changed)"))
    return ", ".join(words)


def _rows_cut(cut: Callable[[Tensors, int], Parts | None]) -> Callable[..., list[str] | None]:
    """Turn a way of cutting into one of sizes, whose result can be read in a sentence."""

    def cut_rows(rows: int, widths: Sequence[int], chunks: int) -> list[str] | None:
        parts = cut(tuple(numbered(rows, width) for width in widths), chunks)
        return None if parts is None else [_told(part, widths) for part in parts]

    return cut_rows


def _cut(ends: Callable[[int, int], Sequence[int]]) -> Callable[[Tensors, int], Parts]:
    """Make a way of cutting from the ends of the parts, 0 among them, as a function of rows and chunks."""
    return lambda tensors, chunks: [
        tuple(x[begin:end] for x in tensors) for begin, end in pairwise(ends(len(tensors[0]), chunks))
    ]


def _split(tensors: Tensors, chunks: int, dim: int = 0) -> Parts:
    return list(zip(*(x.tensor_split(chunks, dim) for x in tensors), strict=True))


check_scatter_by_hand = Exercise(
    "scatter_by_hand",
    reference=lambda tensors, chunks: [tuple(batch) for batch in scatter(tensors, chunks)],
    view=_rows_cut,
    cases=[
        {"rows": rows, "widths": WIDTHS[:many], "chunks": chunks}
        for rows, chunks, many in product((6, 5, 7, 8, 1, 2, 3, 4, 9), (4, 1, 2, 3, 5), (3, 1, 2))
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
    },
)
"""Exercise 1: for 1..9 rows, one tensor to three, 1..5 chunks."""


# ---- exercise 2: gather_by_hand


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


def _joined(parts: Parts, dim: int = 0) -> Tensors:
    return tuple(torch.cat(same, dim) for same in zip(*parts, strict=True))


check_gather_by_hand = Exercise(
    "gather_by_hand",
    reference=_joined,
    view=_rows_joined,
    cases=cases(
        "sizes widths",
        product(((2, 2, 2, 1), (2, 2), (1,), (3, 2, 2), (2, 1, 1, 1)), (WIDTHS, WIDTHS[:1], WIDTHS[:2])),
    ),
    mistakes={
        "stack adds a dimension, and takes parts of one size only: cat joins rows.": lambda parts: tuple(
            torch.stack(same) for same in zip(*parts, strict=True)
        ),
        "Joined along dimension 1: rows belong below each other.": lambda parts: _joined(parts, dim=1),
        "This joins the tensors of one micro-batch with each other, not each tensor with its own parts.": (
            lambda parts: tuple(torch.cat(part, dim=1) for part in parts)
        ),
        "Only the first tensor comes back.": lambda parts: _joined(parts)[:1],
        "A tuple was cut, so a tuple comes back, also of one tensor.": lambda parts: (
            _joined(parts) if len(parts[0]) > 1 else _joined(parts)[0]
        ),
    },
)
"""Exercise 2: for even and uneven micro-batches of one tensor to three."""


# ---- exercise 3: backward_in_parts

NO_TOKEN = -100
Labelled: TypeAlias = list[tuple[Tensor, Tensor]]
Backward: TypeAlias = Callable[[nn.Module, Labelled], object]


def _gradient(backward: Backward) -> Callable[..., list[float]]:
    """Turn a way of going backward into the gradient it leaves; part i has tokens[i] tokens, the rest is padding."""

    def gradient(tokens: Sequence[int]) -> list[float]:
        generator = torch.Generator().manual_seed(sum(tokens))
        model = nn.Linear(2, 3, bias=False).double()
        nn.init.uniform_(model.weight, -1, 1, generator=generator)
        parts = []
        for i, number in enumerate(tokens):
            rows = 5 if i == 0 else 4
            y = torch.full((rows,), NO_TOKEN)
            y[:number] = torch.randint(3, (number,), generator=generator)
            parts.append((torch.randn(rows, 2, dtype=torch.float64, generator=generator), y))
        backward(model, parts)
        if model.weight.grad is None:
            raise ValueError("nothing is in .grad: was backward() called?")
        return [round(value, 6) for value in model.weight.grad.flatten().tolist()]

    return gradient


def _tokens(parts: Labelled) -> int:
    return sum(int((y != NO_TOKEN).sum()) for _, y in parts)


def _rows(parts: Labelled) -> int:
    return sum(len(x) for x, _ in parts)


def _sums_over(divisor: Callable[[Labelled], int], clear: bool = False) -> Backward:
    """Go backward from the summed loss of each part over a divisor of all parts."""

    def backward(model: nn.Module, parts: Labelled) -> None:
        for x, y in parts:
            if clear:
                model.zero_grad()
            loss = F.cross_entropy(model(x), y, ignore_index=NO_TOKEN, reduction="sum")
            torch.autograd.backward(loss / divisor(parts))

    return backward


def _means_times(weigh: Callable[[Tensor, Labelled], float]) -> Backward:
    """Go backward from the mean loss of each part times weigh(x, parts)."""

    def backward(model: nn.Module, parts: Labelled) -> None:
        for x, y in parts:
            torch.autograd.backward(F.cross_entropy(model(x), y, ignore_index=NO_TOKEN) * weigh(x, parts))

    return backward


check_backward_in_parts = Exercise(
    "backward_in_parts, .grad",
    name="backward_in_parts",
    reference=_sums_over(_tokens),
    view=_gradient,
    cases=cases("tokens", [(4, 1, 2), (4, 4), (5, 4), (3,), (1, 2, 3, 4), (4, 0, 1), (2, 2, 2)]),
    mistakes={
        "Each mean loss has the weight 1: the gradient of m micro-batches is about m times too long.": (
            _means_times(lambda x, parts: 1.0)
        ),
        "The mean of means: a token of a short micro-batch weighs more than one of a long one.": (
            _means_times(lambda x, parts: 1 / len(parts))
        ),
        "Weighted by rows: but the loss is a mean over tokens, and padding is none.": (
            _means_times(lambda x, parts: len(x) / _rows(parts))
        ),
        "The sum is divided by all positions: padding is no token.": _sums_over(_rows),
        ".grad is cleared in the loop: only the last micro-batch is left in it.": _sums_over(
            _tokens, clear=True
        ),
    },
)
"""Exercise 3: for micro-batches with different numbers of tokens, even none."""
