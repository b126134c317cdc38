"""Predictions and exercises of notebook 07, micro-batches."""

# mypy: allow-untyped-calls

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from lib.runtime.microbatch import Tensors
from support.kit.exact import read_number
from support.kit.exercise import Exercise, cases
from support.kit.guess import Guess, Tried
from support.kit.judged import judged
from support.kit.mistakes import famous
from support.n07.cutting import numbered, zip_of_chunks
from support.n07.judges import fault_of_accumulate, fault_of_join, fault_of_saved
from support.n07.solved import accumulate, gather, join, saved_bytes, scatter

# ---- predictions


def _named(wrong: Mapping[float, str]) -> Callable[[object], object]:
    """Make the `read` of a guess that tells famous wrong numbers by their reason, and so never calls them close."""
    return lambda said: wrong.get(said, said) if isinstance(said, (int, float)) else said


def _lost() -> int:
    x = torch.arange(8)
    y = torch.arange(5)
    return len(x) - sum(len(part[0]) for part in zip_of_chunks((x, y), 4))


def _way() -> float:
    norm = nn.BatchNorm1d(1)
    for _ in range(8):
        norm(torch.tensor([[0.0], [2.0]]))  # mean 1
    assert norm.running_mean is not None
    return round(100 * float(norm.running_mean), 1)


def _per_cent(said: object) -> object:
    famous_wrong: dict[float, str] = {
        10: "10, as in one update",
        43: "43, which is what is left",
        80: "80, as 8 · 10",
    }
    return _named(famous_wrong)(read_number(said, "%"))  # 0.57 is 57 %


guess_chunks = Guess(
    "the number of parts that chunk(4) makes of 5 rows",
    lambda: len(torch.arange(5).chunk(4)),
    read=_named({4: "4, which is what was asked for"}),
    tried=Tried(right=3, wrong=4),
)
"""Section 1: how many parts torch.chunk makes of 5 rows if 4 are asked for."""
guess_lost = Guess("the number of rows of x that are lost", _lost, tried=Tried(right=2, wrong=0))
"""Section 1: rows of x that zip loses, x of 8 rows, y of 5, 4 chunks."""
guess_way = Guess(
    "the part of the way that running_mean goes",
    _way,
    unit="%",
    tolerance=0.03,
    read=_per_cent,
    tried=Tried(right=57, wrong=80),
)
"""Of BatchNorm: per cent of the way that running_mean goes in 8 updates of momentum 0.1."""
guess_peak = Guess(
    "the peak",
    lambda: 1,
    "× that of the whole batch",
    read=_named({0.125: "0.125, as with one at a time"}),
    tried=Tried(right=1, wrong=0.125),
)
"""Of memory: the peak with all 8 forwards first, as a multiple of the whole batch's."""
guess_world = Guess(
    "the length of the gradient", lambda: 0.5, unit="× the right one", tried=Tried(right=0.5, wrong=1)
)
"""Of DDP: what the mean over two ranks makes of sums that were divided by the count of all ranks."""


# ---- what the exercises have in common

Parts: TypeAlias = Sequence[Any]


# ---- exercise 1: scatter

WIDTHS = (3, 1, 2)
NAMES = ("x", "mask", "y")


def _told(part: Any, whole: Sequence[Tensor], views: bool = True) -> str | list[str]:
    """Describe each tensor of a part by the rows in it, "x 0 1", and by what is wrong with it, "x (copied) 0 1".

    whole: the tensors that were cut; views: whether the part must lie in their memory.
    """
    if isinstance(part, Tensor):
        return f"one tensor of shape {tuple(part.shape)}"
    if not hasattr(part, "__len__"):
        return f"a {type(part).__name__}"
    words = []
    for name, tensor, source in zip(NAMES, part, whole, strict=False):
        if not isinstance(tensor, Tensor):
            words.append(f"{name}: a {type(tensor).__name__}")
        elif tensor.dim() != 2 or tensor.shape[1] != source.shape[1]:
            words.append(f"{name} of shape {' × '.join(map(str, tensor.shape))}")
        else:
            rows = [int(row[0]) // (1 if source.dtype == torch.bool else 10) for row in tensor]
            items = tensor.detach().double()
            full = 10 * torch.tensor(rows).reshape(-1, 1) + torch.arange(tensor.shape[1])
            marks = {
                "changed": source.dtype != torch.bool and not torch.equal(items, full.double()),
                "copied": views
                and tensor.untyped_storage().data_ptr() != source.untyped_storage().data_ptr(),
                f"now {str(tensor.dtype).removeprefix('torch.')}": tensor.dtype != source.dtype,
                "not in the graph": source.requires_grad and not _flows(tensor, source),
            }
            said = ", ".join(mark for mark, is_so in marks.items() if is_so)
            words.append(f"{name} {f'({said}) ' if said else ''}{' '.join(map(str, rows)) or 'nothing'}")
    return words


def _flows(tensor: Tensor, source: Tensor) -> bool:
    """Say whether every item of a tensor hands its gradient on to an item of its source."""
    if not tensor.requires_grad:
        return False
    (gradient,) = torch.autograd.grad(tensor.sum(), source, allow_unused=True)
    return gradient is not None and int(gradient.sum()) == tensor.numel()


def _rows_cut(cut: Callable[[Tensors, int], Parts | None]) -> Callable[..., list[str] | str | None]:
    """Turn a way of cutting into one of sizes, whose result can be read in a sentence."""

    def cut_rows(rows: int | Tensors, widths: Sequence[int], chunks: int) -> list[str] | str | None:
        lengths = [rows] * len(widths) if isinstance(rows, int) else list(map(int, rows))
        whole = tuple(numbered(length, width) for length, width in zip(lengths, widths, strict=True))
        whole = (whole[0].double().requires_grad_(), *whole[1:])
        try:
            parts = cut(whole, chunks)
        except ValueError:
            if len(set(lengths)) == 1:
                raise
            return "a ValueError"
        if parts is None:
            return None
        if not hasattr(parts, "__len__"):
            return f"a {type(parts).__name__}"
        told = [_told(part, whole) for part in parts]
        return [part if isinstance(part, str) else ", ".join(part) for part in told]

    return cut_rows


check_scatter = Exercise(
    "scatter",
    reference=scatter,
    view=_rows_cut,
    cases=cases(
        "rows widths chunks",
        [
            *product((6, 5, 7, 8, 1, 2, 3, 4, 9, 11), (WIDTHS, WIDTHS[:1], WIDTHS[:2]), (4, 1, 2, 3, 5, 6)),
            *(((8, 8, 5), WIDTHS, 4), ((2, 4, 6), WIDTHS, 2), ((4, 8), WIDTHS[:2], 4)),
        ],
    ),
    mistakes={
        "These are torch.chunk's sizes: it rounds up, so that fewer parts may come than were asked for.": zip_of_chunks,
        "This cuts the columns: the batch is dimension 0.": lambda tensors, chunks: list(
            zip(*(x.tensor_split(chunks, 1) for x in tensors), strict=True)
        ),
        **famous(
            scatter,
            """
            rows // chunks for all loses the rest.
                + (len(parts) < longer) →  | while start < rows → while len(parts) < chunks
            The last part gets the whole rest: up to chunks - 1 rows more than the others.
                size + (len(parts) < longer) → (size if len(parts) + 1 < chunks else rows)
            The ceiling for all leaves the last parts short, even empty.
                (len(parts) < longer) → (longer > 0) | while start < rows → while len(parts) < chunks
            With fewer rows than chunks some parts are empty: cut into min(rows, chunks).
                min(chunks, rows) → chunks | while start < rows → while len(parts) < chunks
            Even to one row, but the longer parts should come first.
                start + size + (len(parts) < longer) → (len(parts) + 1) * rows // min(chunks, rows)
            The shorter parts come first here; wanted are the longer ones first.
                (len(parts) < longer) → (len(parts) >= min(chunks, rows) - longer)
            Every chunks-th row is DistributedSampler's cut; a micro-batch is a run of neighbours.
                [start:end] → [len(parts)::min(chunks, rows)]
            A slice of a tensor is a view and costs nothing; this one copies the rows.
                [start:end] → [start:end].clone()
            detach() cuts the slices off the autograd graph: gradients must find the way back to the whole.
                [start:end] → [start:end].detach()
            Only the first tensor is cut: a micro-batch holds a slice of each.
                [start:end] for tensor in tensors → [start:end] for tensor in tensors[:1]
            A generator can be gone through only once and has no part 0: return a list.
                return parts → return (part for part in parts)
            A list for each tensor; wanted is a tuple for each micro-batch (zip turns one into the other).
                return parts → return list(zip(*parts))
            Unequal lengths must be refused before anything is cut: later nobody can tell which rows belong together.
                != rows → < 0
            """,
        ),
    },
)
"""Exercise 1: for 1..11 rows, one tensor to three, 1..6 chunks, and for unequal lengths."""


# ---- exercise 2: gather


def _rows_joined(join: Callable[[Parts], Any]) -> Callable[..., list[str] | str | None]:
    def join_rows(sizes: Sequence[int], widths: Sequence[int]) -> list[str] | str | None:
        rows = sum(sizes)
        # x has a gradient, mask is of bool, y of int64
        kinds = (numbered(rows, 3).double().requires_grad_(), torch.arange(rows)[:, None] % 3 == 0)
        whole = [*kinds, numbered(rows, 2)][: len(widths)]
        parts = list(zip(*(torch.split(x, list(sizes)) for x in whole), strict=True))
        try:
            joined = join(parts)
        except RuntimeError as error:  # torch refuses: say so in one line
            return f"RuntimeError: {str(error).splitlines()[0][:60]}"
        if joined is None:
            return None
        if not isinstance(joined, (tuple, Tensor)):
            return f"a {type(joined).__name__}"
        return _told(joined, whole, views=False)

    return join_rows


check_gather = Exercise(
    "gather",
    reference=gather,
    view=_rows_joined,
    cases=cases(
        "sizes widths",
        product(
            ((2, 2, 2, 1), (2, 2), (1,), (3, 2, 2), (2, 1, 1, 1), (2, 2, 1, 1, 1), (1,) * 8),
            (WIDTHS, WIDTHS[:1], WIDTHS[:2]),
        ),
    ),
    mistakes=famous(
        gather,
        """
        stack adds a dimension, and takes parts of one size only: cat joins rows.
            torch.cat → torch.stack
        Joined along dimension 1: rows belong below each other.
            cat(same) → cat(same, 1)
        This joins the tensors of one micro-batch with each other, not each tensor with its own parts.
            cat(same) → cat(same, 1) | zip(*parts, strict=True) → parts
        Only the first tensor comes back.
            True)) → True))[:1]
        A tuple was cut, so a tuple comes back, also of one tensor.
            True)) → True))[slice(None) if len(parts[0]) > 1 else 0]
        The parts stand in the reverse order.
            *parts → *parts[::-1]
        Only the first micro-batch comes back.
            *parts → *parts[:1]
        Parts after the fourth are missing.
            *parts → *parts[:4]
        Each tensor keeps its type (bool, int64, …).
            cat(same) → cat(same).float()
        The result belongs to the autograd graph: gradients must find the way back into the parts.
            cat(same) → cat(same).detach()
        A tuple was cut, so return a tuple, not a list.
            tuple( → list(
        A generator can be gone through only once: return a tuple.
            tuple( → (
        """,
    ),
)
"""Exercise 2: for even and uneven micro-batches of one tensor to three, of three types, x with a gradient."""


# ---- exercise 3: accumulate

_MEAN = "F.cross_entropy(model(x), y, ignore_index=-100)"
_LOSS = _MEAN.replace("100)", '100, reduction="sum") / count')

check_accumulate = Exercise(
    "accumulate",
    reference=accumulate,
    judge=judged(
        fault_of_accumulate,
        "gradient and loss are those of the whole batch in all 7 cases, one graph at a time.",
    ),
    mistakes=famous(
        accumulate,
        f"""
        Each mean loss has the weight 1: the gradient of m micro-batches is about m times too long.
            {_LOSS} → {_MEAN}
        The mean of means: a token of a short micro-batch weighs more than one of a long one.
            {_LOSS} → {_MEAN} / len(parts)
        Weighted by rows: but the loss is a mean over tokens, and padding is no token.
            {_LOSS} → {_MEAN} * len(y) / sum(len(y) for _, y in parts)
        The right weight, but a part of padding only has no mean (0 / 0): take sums.
            {_LOSS} → {_MEAN} * (y != -100).sum() / count
        The sum is divided by all positions: padding is no token.
            sum((y != -100).sum().item() → sum(len(y)
        The sum of the losses is divided by nothing: what is asked for is a mean over all tokens.
            / count → / 1
        .grad is cleared in the loop: only the last micro-batch is left in it.
            loss.backward() → model.zero_grad(); loss.backward()
        The gradient of the step before was still in .grad.
            model.zero_grad() → pass
        Call backward() before the next forward: so only one graph is alive.
            loss.backward() → pass | loss.item() → loss | return total → total.backward(); return total.item()
        Joined again before the model: that needs the memory of the whole mini-batch.
            for x, y in parts → for x, y in [tuple(torch.cat(each) for each in zip(*parts))]
        That is the loss of the last part alone.
            total += → total =
        A sum of loss tensors carries the nodes of every graph along: add up numbers.
            loss.item() → loss
        """,
        names={"torch": torch},
    ),
)
"""Exercise 3: for micro-batches with different numbers of tokens, even none."""


# ---- exercise 5: saved_bytes


check_saved_bytes = Exercise(
    "saved_bytes",
    reference=saved_bytes,
    judge=judged(fault_of_saved, "the right bytes in six cases, and backward goes on as before."),
    mistakes=famous(
        saved_bytes,
        """
        The weights are in it: they are there anyway (a saved view of one is no nn.Parameter: compare addresses).
            {parameter.data_ptr() for parameter in parameters} → ()
        A ReLU's output is also the next layer's input: saved twice, it is there once (compare addresses).
            saved[tensor.data_ptr()] → saved[len(saved)]
        Two tensors of the same shape are two tensors: tell them apart by their address.
            saved[tensor.data_ptr()] → saved[tensor.shape]
        Elements are no bytes: one of float32 has four.
            .nbytes → .numel()
        Not every number has four bytes: ask the tensor (nbytes).
            tensor.nbytes → 4 * tensor.numel()
        A view counts with its own bytes, not with those of all that lies behind it.
            .nbytes → .untyped_storage().nbytes()
        pack must return what backward is to find.
            return tensor.detach() → pass
        The tensor itself knows the graph that now holds it: let pack keep and return tensor.detach().
            return tensor.detach() → return tensor
        detach() is the same memory without a graph; clone() is a copy, so twice as much would be kept.
            return tensor.detach() → return tensor.detach().clone()
        When a tensor dies, its address goes to the next one: keep the tensors until you have added up.
            ] = tensor.detach() → ] = tensor.nbytes | tensor.nbytes for tensor in → size for size in
        """,
    ),
)
"""Exercise 5: how much a forward leaves for backward."""


# ---- exercise 4: join


check_join = Exercise(
    "join",
    reference=join,
    judge=judged(fault_of_join, "mean and variance are nn.BatchNorm's of the whole batch in all 5 cases."),
    mistakes=famous(
        join,
        """
        Only the spread within micro-batches: that between their means is missing.
            within + between → within
        The mean of the variances: the spread between the means is missing.
            (within + between) / (total - 1) → sum(variances) / len(variances)
        Divided by N - m, a rule for groups with means of their own; here all rows are one batch.
            (total - 1) → (total - len(sizes))
        Divided by N: nn.BatchNorm keeps the unbiased variance, over N - 1.
            (total - 1) → total
        An unbiased variance times n is no sum of squares: it was divided by n - 1.
            (n - 1) * variance → n * variance
        n · variance and / N are the rules of biased variances; these come in unbiased.
            (n - 1) * variance → n * variance | (total - 1) → total
        That is the standard deviation: the variance is its square.
            (within + between) / (total - 1) → ((within + between) / (total - 1)) ** 0.5
        The mean of the means: a row of a short micro-batch weighs more.
            n * part for → part for | parts) / total → parts) / len(parts)
        The distance of each mean counts for all n rows of its micro-batch.
            n * (part → (part
        Squares minus the square of the mean: near 10,000 all digits cancel. Take distances from the mean.
            (part - mean) ** 2 → part**2 | within + between → within + between - total * mean**2
        First the mean, then the variance.
            return mean,  → return  | (total - 1) → (total - 1), mean
        """,
    ),
)
"""Exercise 4: from sizes, means and unbiased variances of micro-batches to those of the whole batch."""
