"""Checks of notebook 07: cut a mini-batch, join it again, and leave the whole batch's gradient in .grad."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lib.checks.base import Verdict, check_function, guess, not_attempted, untouched
from lib.checks.n07_answers import (
    NO_TOKEN,
    Backward,
    Cut,
    Join,
    Parts,
    by_parts,
    by_rows,
    by_tensor,
    ceil_cut,
    chunk_cut,
    column_cut,
    empty_cut,
    first_only,
    floor_cut,
    joined_across,
    joined_columns,
    last_only,
    longer_last,
    not_a_tuple,
    rest_last,
    stacked,
    stride_cut,
    sum_over_rows,
    true_backward,
    true_cut,
    true_join,
    undivided,
)
from lib.figures.micro_batches import numbered, zip_of_chunks

# ---- predictions


def guess_chunks(my_guess: object) -> Verdict:
    """Comment on the guess of section 1: how many parts torch.chunk makes of 5 rows if 4 are asked for."""
    return guess(my_guess, len(torch.arange(5).chunk(4)), what="the number of parts of 5 rows", unit="parts")


def guess_lost(my_guess: object) -> Verdict:
    """Comment on the guess of section 2: rows of x that zip loses, x of 8 rows, y of 5, 4 chunks."""
    x, y = torch.arange(8), torch.arange(5)
    kept = sum(len(part[0]) for part in zip_of_chunks((x, y), 4))
    return guess(my_guess, len(x) - kept, what="the rows of x that are lost", unit="rows")


def guess_times(my_guess: object) -> Verdict:
    """Comment on the guess of "Break it": the factor of the gradient of 8 even micro-batches, undivided."""
    x = torch.arange(1.0, 17.0)
    undivided = sum(float(part.mean()) for part in x.tensor_split(8))
    return guess(my_guess, round(undivided / float(x.mean())), what="the factor of the gradient")


def guess_way(my_guess: object) -> Verdict:
    """Comment on the guess of section 5: percent of the way that running_mean goes in 4 updates of momentum 0.1."""
    norm = nn.BatchNorm1d(1)
    for _ in range(4):
        norm(torch.tensor([[0.0], [2.0]]))  # mean 1
    assert norm.running_mean is not None
    return guess(
        my_guess,
        round(100 * float(norm.running_mean), 1),
        what="what running_mean goes",
        unit="%",
        tolerance=0.03,
    )


def guess_peak(my_guess: object) -> Verdict:
    """Comment on the guess of section 6: the peak with all 8 forwards first, as a multiple of the whole batch's."""
    from lib.experiments.saved import step_in_parts

    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU())
    x = torch.ones(16, 8)
    peaks = [
        step_in_parts(model, parts, "all forwards first").peak_bytes for parts in (x.tensor_split(8), [x])
    ]
    return guess(my_guess, peaks[0] / peaks[1], what="the peak", unit="× that of the whole batch")


# ---- exercise 1: scatter_by_hand

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


def _rows_cut(cut: Callable[..., Parts | None]) -> Callable[..., list[str] | None]:
    """Turn a way of cutting into one of sizes, whose result can be read in a sentence."""

    def cut_rows(rows: int, widths: Sequence[int], chunks: int) -> list[str] | None:
        parts = cut(tuple(numbered(rows, width) for width in widths), chunks)
        return None if parts is None else [_told(part, widths) for part in parts]

    return cut_rows


def check_scatter_by_hand(answer: Cut) -> Verdict:
    """Check exercise 1 for 1..9 rows, one tensor to three, 1..5 chunks."""
    if untouched(answer):
        return not_attempted("scatter_by_hand")
    mistakes: dict[str, Cut] = {
        "These are torch.chunk's sizes: it rounds up, so that fewer parts may come than were asked for.": chunk_cut,
        "rows // chunks for all loses the rest.": floor_cut,
        "The last part gets the whole rest: up to chunks - 1 rows more than the others.": rest_last,
        "The ceiling for all leaves the last parts short, even empty.": ceil_cut,
        "With fewer rows than chunks some parts are empty: cut into min(rows, chunks).": empty_cut,
        "Even to one row, but the longer parts should come first.": longer_last,
        "Every chunks-th row is DistributedSampler's cut; a micro-batch is a run of neighbours.": stride_cut,
        "This cuts the columns: the batch is dimension 0.": column_cut,
        "A list for each tensor; wanted is a tuple for each micro-batch (zip turns one into the other).": by_tensor,
    }
    cases = [
        {"rows": rows, "widths": WIDTHS[:many], "chunks": chunks}
        for rows in (6, 5, 7, 8, 1, 2, 3, 4, 9)
        for chunks in (4, 1, 2, 3, 5)
        for many in (3, 1, 2)
    ]
    return check_function(
        _rows_cut(answer),
        _rows_cut(true_cut),
        cases,
        what="scatter_by_hand",
        mistakes={why: _rows_cut(wrong) for why, wrong in mistakes.items()},
    )


# ---- exercise 2: gather_by_hand


def _rows_joined(join: Join) -> Callable[..., str | None]:
    def join_rows(sizes: Sequence[int], widths: Sequence[int]) -> str | None:
        whole = [numbered(sum(sizes), width) for width in widths]
        parts = list(zip(*(torch.split(x, list(sizes)) for x in whole), strict=True))
        try:
            joined = join(parts)
        except RuntimeError as error:  # torch refuses: say so in one line
            return f"RuntimeError: {str(error).splitlines()[0][:60]}"
        if joined is None:
            return None
        many = (
            f"{len(joined)} tensor{'s' * (len(joined) != 1)}: " if isinstance(joined, (tuple, list)) else ""
        )
        return many + _told(joined, widths)

    return join_rows


def check_gather_by_hand(answer: Join) -> Verdict:
    """Check exercise 2 for even and uneven micro-batches of one tensor to three."""
    if untouched(answer):
        return not_attempted("gather_by_hand")
    mistakes: dict[str, Join] = {
        "stack adds a dimension, and takes parts of one size only: cat joins rows.": stacked,
        "Joined along dimension 1: rows belong below each other.": joined_columns,
        "This joins the tensors of one micro-batch with each other, not each tensor with its own parts.": joined_across,
        "Only the first tensor comes back.": first_only,
        "A tuple was cut, so a tuple comes back, also of one tensor.": not_a_tuple,
    }
    cases = [
        {"sizes": sizes, "widths": WIDTHS[:many]}
        for sizes in ((2, 2, 2, 1), (2, 2), (1,), (3, 2, 2), (2, 1, 1, 1))
        for many in (3, 1, 2)
    ]
    return check_function(
        _rows_joined(answer),
        _rows_joined(true_join),
        cases,
        what="gather_by_hand",
        mistakes={why: _rows_joined(wrong) for why, wrong in mistakes.items()},
    )


# ---- exercise 3: backward_in_parts


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


def check_backward_in_parts(answer: Backward) -> Verdict:
    """Check exercise 3 for micro-batches with different numbers of tokens, even none."""
    if untouched(answer):
        return not_attempted("backward_in_parts")
    mistakes: dict[str, Backward] = {
        "Each mean loss has the weight 1: the gradient of m micro-batches is about m times too long.": undivided,
        "The mean of means: a token of a short micro-batch weighs more than one of a long one.": by_parts,
        "Weighted by rows: but the loss is a mean over tokens, and padding is none.": by_rows,
        "The sum is divided by all positions: padding is no token.": sum_over_rows,
        ".grad is cleared in the loop: only the last micro-batch is left in it.": last_only,
    }
    cases = [
        {"tokens": tokens} for tokens in ((4, 1, 2), (4, 4), (5, 4), (3,), (1, 2, 3, 4), (4, 0, 1), (2, 2, 2))
    ]
    return check_function(
        _gradient(answer),
        _gradient(true_backward),
        cases,
        what="backward_in_parts, .grad",
        mistakes={why: _gradient(wrong) for why, wrong in mistakes.items()},
    )
