"""What scatter and gather of notebook 07 are tried with: nests whose every number says where it comes from."""

# mypy: allow-untyped-calls

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from random import Random
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from support.kit.judged import Fault
from support.kit.raised import InCaseError, in_case, named
from support.kit.values import NO_RETURN, short
from support.n07 import solved
from support.n07.cutting import numbered

CutAndJoin: TypeAlias = tuple[Callable[..., Any], Callable[..., Any]]

#: Said of one list for all calls.
RETURNED = (
    "called a second time: what it returned before is no longer what it was; return a new nest each time."
)
CHANGED = "the mini-batch itself is no longer what it was; leave it alone, and build new nests."
PARTS_CHANGED = "the parts themselves are no longer what they were; leave them alone, and build a new nest."
#: Rows and chunks. 6 in 4 is where torch.chunk makes 3 parts; 3 in 4 is where tensor_split leaves one empty.
SIZES = ((6, 4), (7, 3), (5, 4), (3, 4), (8, 2), (1, 2), (9, 5), (2, 6), (4, 1), (10, 4))


def nest_of(kind: str, rows: int) -> Any:
    """Return a mini-batch of so many rows; x has a gradient, mask is of bool, y is one number a row."""
    x = numbered(rows, 3).double().requires_grad_()
    mask = numbered(rows, 1) % 20 == 0
    y = torch.arange(rows)
    nests = {
        "x": x,
        "(x,)": (x,),
        "(x, mask, y)": (x, mask, y),
        '{"x": nn.Parameter(x), "y": y}': {"x": nn.Parameter(x.detach()), "y": y},
        "[x, (mask, y)]": [x, (mask, y)],
        '{"x": x, "text": {"ids": ids, "mask": mask}, "y": (y, y)}': {
            "x": x,
            "text": {"ids": numbered(rows, 2) + 2**60, "mask": mask},  # no float holds these
            "y": (y, y.clone()),
        },
        '[{"a": ({"b": [x, (y,)]}, mask)}]': [{"a": ({"b": [x, (y,)]}, mask)}],
        '(x, {"mask": mask, "scale": np.float64(0.5), "of": "train", "weight": None})': (
            x,
            {"mask": mask, "scale": np.float64(0.5), "of": "train", "weight": None},
        ),
    }
    return nests[kind]


KINDS = (
    "(x, mask, y)",
    "(x,)",
    "x",
    '{"x": nn.Parameter(x), "y": y}',
    "[x, (mask, y)]",
    '{"x": x, "text": {"ids": ids, "mask": mask}, "y": (y, y)}',
    '[{"a": ({"b": [x, (y,)]}, mask)}]',
    '(x, {"mask": mask, "scale": np.float64(0.5), "of": "train", "weight": None})',
)

RANDOM_NESTS = 24


def random_nest(rows: int, seed: int) -> Any:
    """Return a mini-batch of so many rows, nested as chance has it: a tensor in it, perhaps an empty container."""
    chance = Random(seed)
    inside = [_grown(chance, rows, 2) for _ in range(chance.randrange(3))]
    inside.insert(chance.randint(0, len(inside)), numbered(rows, 3).double().requires_grad_())
    return _filled(chance.choice((tuple, list, dict)), inside)


def _grown(chance: Random, rows: int, depth: int) -> Any:
    kind = chance.choice((tuple, list, dict, Tensor, None) if depth else (Tensor, None))
    if kind is Tensor:
        tensors = (
            numbered(rows, 4).view(rows, 2, 2),
            numbered(rows, 1) % 20 == 0,
            torch.arange(rows),
            numbered(rows, 2).float().T.contiguous().T,  # its rows are no neighbours in memory
        )
        return chance.choice(tensors)
    if kind is None:
        return chance.choice((0, "train", None))
    return _filled(kind, [_grown(chance, rows, depth - 1) for _ in range(chance.randrange(4))])


def _filled(kind: Any, inside: list[Any]) -> Any:
    return dict(zip("abcdef", inside, strict=False)) if kind is dict else kind(inside)


#: Mini-batches whose tensors don't have equally many rows, and how they are told.
UNEQUAL = {
    "x of 8 rows and y of 5 into 4": lambda: ((numbered(8, 3), torch.arange(5)), 4),
    "x of 8 rows and y of 4 into 4": lambda: ((numbered(8, 3), torch.arange(4)), 4),
    "tensors of 2, 4 and 6 rows into 2": lambda: ((numbered(2, 1), numbered(4, 2), numbered(6, 3)), 2),
    '{"x": 6 rows, "text": {"ids": 3 rows}} into 3': lambda: (
        {"x": numbered(6, 3), "text": {"ids": numbered(3, 2)}},
        3,
    ),
}


DRAWN_TORN = 24


def _drawn_torn(seed: int) -> tuple[str, tuple[Any, int]]:
    """Return tensors of equally many rows but for one, at a place as chance has it, and how they are told."""
    chance = Random(seed)
    rows = chance.randint(2, 9)
    lengths = [rows] * chance.randint(2, 5)
    lengths[chance.randrange(len(lengths))] = chance.choice([n for n in range(1, 11) if n != rows])
    chunks = chance.randint(1, 5)
    tensors: list[Any] = [numbered(length, 2) for length in lengths]
    at = chance.randrange(len(tensors))
    tensors[at:] = [{"inside": tensors[at:]}] if chance.random() < 0.5 else tensors[at:]
    return f"tensors of {', '.join(map(str, lengths))} rows into {chunks}", (tuple(tensors), chunks)


def _torn_ones() -> Iterator[tuple[str, tuple[Any, int]]]:
    for told, torn in UNEQUAL.items():
        yield told, torn()
    yield from map(_drawn_torn, range(DRAWN_TORN))


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield what a nest holds, each with the place where it stands: '["text"]["ids"]'."""
    if isinstance(value, dict):
        for key in value:
            yield from leaves(value[key], f'{name}["{key}"]')
    elif isinstance(value, (tuple, list)):
        for number, inside in enumerate(value):
            yield from leaves(inside, f"{name}[{number}]")
    else:
        yield name, value


def shape_of(value: Any) -> str:
    """Return how a nest is built, a dot for each leaf: "(·, {x: ·})"."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {shape_of(value[key])}" for key in sorted(value, key=str)) + "}"
    if isinstance(value, tuple):
        return f"({', '.join(map(shape_of, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, list):
        return f"[{', '.join(map(shape_of, value))}]"
    return (
        "·" if isinstance(value, (Tensor, int, float, str)) or value is None else f"a {type(value).__name__}"
    )


def rows_of(tensor: Tensor, whole: Tensor) -> str:
    """Return which rows of `whole` a tensor holds, "4 5"; its shape or its values if they can't be told by rows."""
    if tensor.dim() != whole.dim() or tensor.shape[1:] != whole.shape[1:]:
        return f"shape {' × '.join(map(str, tensor.shape)) or 'of one number'}"
    if whole.dtype == torch.bool:  # its rows are alike
        return f"values {' '.join(str(int(value)) for value in tensor.flatten())}"
    known = {tuple(row.flatten().tolist()): number for number, row in enumerate(whole.detach())}
    found = [known.get(tuple(row.flatten().tolist())) for row in tensor.detach()]
    if None in found:
        return "other numbers"
    return "rows " + " ".join(map(str, found)) if found else "no row"


def flows(tensor: Tensor, source: Tensor) -> bool:
    """Say whether every number of a tensor hands its gradient on to a number of its source."""
    if not tensor.requires_grad:
        return False
    (gradient,) = torch.autograd.grad(tensor.sum(), source, allow_unused=True, retain_graph=True)
    return gradient is not None and int(gradient.sum()) == tensor.numel()


def _leaf(got: Any, due: Any, whole: Any, *, view: bool) -> str:
    """Say what is wrong with one leaf, "" if nothing; whole: the tensor of the mini-batch."""
    if not isinstance(whole, Tensor):
        if type(got) is type(whole) and got == whole:
            return ""
        if short(got) == short(whole):
            return f"{short(got)} of type {type(got).__name__}, expected one of type {type(whole).__name__}"
        return f"{short(got)}, expected {short(whole)}"
    if not isinstance(got, Tensor):
        return f"a {type(got).__name__}, expected a tensor"
    if got.dtype != whole.dtype:
        return (
            f"now of {str(got.dtype).removeprefix('torch.')}, was {str(whole.dtype).removeprefix('torch.')}"
        )
    if got.shape != due.shape or not torch.equal(got, due):
        return f"{rows_of(got, whole)}, expected {rows_of(due, whole)}"
    if view and got.untyped_storage().data_ptr() != whole.untyped_storage().data_ptr():
        return "a copy: a slice would have done"
    if whole.requires_grad and not flows(got, whole):
        return "no longer in the graph of the tensor that it comes from"
    if got.requires_grad and not whole.requires_grad:
        return "requires a gradient, which the tensor that it comes from does not"
    return ""


def _nest(got: Any, due: Any, whole: Any, *, view: bool) -> str:
    """Say what is wrong with a nest of tensors, "" if nothing."""
    if shape_of(got) != shape_of(due):
        return f"built as {shape_of(got)}, expected {shape_of(due)}"
    found = dict(leaves(got))
    wholes = dict(leaves(whole))
    for place, expected in leaves(due):
        fault = _leaf(found[place], expected, wholes[place], view=view)
        if fault:
            return f"{place or 'the tensor'}: {fault}"
    return ""


def _cut(value: Any, start: int, end: int) -> Any:
    """Return rows start to end of a nest."""
    if isinstance(value, dict):
        return {key: _cut(value[key], start, end) for key in value}
    if isinstance(value, (tuple, list)):
        return type(value)(_cut(inside, start, end) for inside in value)
    return value[start:end] if isinstance(value, Tensor) else value


def _again(value: Any) -> Any:
    """Return a nest of new containers with the same tensors."""
    if isinstance(value, dict):
        return {key: _again(inside) for key, inside in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(map(_again, value))
    return value


def same(value: Any, other: Any) -> bool:
    """Say whether two nests are built alike and hold the very same things."""
    if shape_of(value) != shape_of(other):
        return False
    return all(a is b for (_, a), (_, b) in zip(leaves(value), leaves(other), strict=True))


def _noted(nest: Any) -> list[tuple[Tensor, bool]]:
    """Return for each tensor of a nest its numbers, and whether it requires a gradient."""
    tensors = [leaf for _, leaf in leaves(nest) if isinstance(leaf, Tensor)]
    return [(tensor.detach().clone(), tensor.requires_grad) for tensor in tensors]


def _as_noted(nest: Any, before: list[tuple[Tensor, bool]]) -> bool:
    """Say whether the tensors of a nest are what was noted of them."""
    return all(
        now.dtype == then.dtype and torch.equal(now, then) and required == wanted
        for (now, required), (then, wanted) in zip(_noted(nest), before, strict=True)
    )


def cuts_of(rows: int, chunks: int) -> list[tuple[int, int]]:
    """Return start and end of each micro-batch, longer ones first."""
    count = min(rows, chunks)
    size, longer = divmod(rows, count)
    starts = [i * size + min(i, longer) for i in range(count + 1)]
    return list(pairwise(starts))


def fault_of_cut(answers: CutAndJoin) -> str:
    """Try both: scatter on whole mini-batches and on torn ones, gather on parts that ours has cut."""
    scatter, gather = answers
    return _fault_of_scatter(scatter) or _fault_of_gather(gather) or _fault_of_second(scatter, gather)


def _fault_of_second(scatter: Callable[..., Any], gather: Callable[..., Any]) -> str:
    """Call each once more: what the first call has returned must stay as it was."""
    kind = '{"x": nn.Parameter(x), "y": y}'
    first = nest_of(kind, 6)
    parts = scatter(first, 4)
    others = scatter(nest_of(kind, 8), 4)
    if _of_parts(parts, first, 6, 4):
        return f"scatter {RETURNED}"
    joined = gather(parts)
    gather(others)
    return f"gather {RETURNED}" if _nest(joined, first, first, view=False) else ""


def _told(found: list[str], transcript: list[str]) -> str:
    """Return the first fault, known by what came of all cases."""
    return Fault(found[0], "\n".join(transcript)) if found else ""


def _whole_ones() -> Iterator[tuple[str, Any, int, int]]:
    """Yield mini-batches to cut: how each is told, the nest, its rows, and into how many parts."""
    for rows, chunks in SIZES:
        for kind in KINDS:
            yield kind, nest_of(kind, rows), rows, chunks
    for seed in range(RANDOM_NESTS):
        rows = 1 + seed * 5 % 9
        nest = random_nest(rows, seed)
        yield f"a nest built as {shape_of(nest)}", nest, rows, 1 + seed % 5


def _fault_of_scatter(scatter: Callable[..., Any]) -> str:
    found: list[str] = []
    transcript: list[str] = []
    for told, whole, rows, chunks in _whole_ones():
        case = f"scatter of {told}, {rows} {'row' if rows == 1 else 'rows'}, into {chunks}"
        try:
            with in_case(case):
                given = _again(whole)
                before = _noted(whole)
                parts = scatter(given, chunks)
                kept = same(given, whole) and _as_noted(whole, before)
                said = _of_parts(parts, whole, rows, chunks) if kept else CHANGED
        except InCaseError as error:
            if not found:
                raise
            said = named(error.error)
        transcript.append(said)
        if said:
            found.append(f"{case}: {said}")
    for told, torn in _torn_ones():
        said = _of_torn(scatter, torn)
        transcript.append(said)
        if said:
            found.append(f"{told}: {said}")
    return _told(found, transcript)


def _of_torn(scatter: Callable[..., Any], torn: tuple[Any, int]) -> str:
    try:
        scatter(*torn)
    except ValueError:
        return ""
    except (Exception, SystemExit) as error:
        return f"your code raised {named(error)}; a ValueError is wanted."
    return "nothing was raised; a ValueError is wanted."


def _of_parts(parts: Any, whole: Any, rows: int, chunks: int) -> str:
    """Say what is wrong with the micro-batches of a mini-batch, "" if nothing."""
    if parts is None:
        return f"your function {NO_RETURN}."
    if not isinstance(parts, list):
        return f"expected a list of micro-batches, got a {type(parts).__name__}."
    due = cuts_of(rows, chunks)
    counts = [_length(part) for part in parts]
    if len(parts) != len(due):
        held = f" of {', '.join(counts)} rows" if counts and all(counts) else ""
        plural = "es" * (len(due) > 1)
        said = f"expected {len(due)} micro-batch{plural}, got {len(parts) or 'none'}{held}."
        if _has_empty(whole):
            said += " In this nest a container is empty: it gives nothing to zip, and belongs in every part."
        return said
    wanted = [str(end - start) for start, end in due]
    if all(counts) and counts != wanted:
        return f"expected micro-batches of {', '.join(wanted)} rows, got {', '.join(counts)}."
    for i, (part, (start, end)) in enumerate(zip(parts, due, strict=True)):
        fault = _nest(part, _cut(whole, start, end), whole, view=True)
        if fault:
            return f"micro-batch {i}: {fault}."
    return ""


def _has_empty(nest: Any) -> bool:
    """Say whether a tuple, a list or a dictionary somewhere in a nest is empty."""
    if not isinstance(nest, (tuple, list, dict)):
        return False
    inside = list(nest.values() if isinstance(nest, dict) else nest)
    return not inside or any(map(_has_empty, inside))


def _length(part: Any) -> str:
    """Return how many rows the first tensor of a nest has, "" if there is none."""
    inside = [leaf for _, leaf in leaves(part) if isinstance(leaf, Tensor) and leaf.dim()]
    return str(len(inside[0])) if inside else ""


def _parted() -> Iterator[tuple[str, list[Any], Any, Any]]:
    """Yield parts to join: how they are told, the parts, the nest that is due, and the whole mini-batch."""
    sizes_of = ((2, 2, 2, 1), (2, 2), (1,), (3, 2, 2), (2, 1, 1, 1), (1, 3), (1,) * 8)
    wholes = [(kind, nest_of(kind, sum(sizes)), sizes) for sizes in sizes_of for kind in KINDS]
    for seed in range(RANDOM_NESTS):
        sizes = sizes_of[seed % len(sizes_of)]
        nest = random_nest(sum(sizes), seed)
        wholes.append((f"a nest built as {shape_of(nest)}", nest, sizes))
    for number, (kind, whole, sizes) in enumerate(wholes):
        told = "one part" if len(sizes) == 1 else f"parts of {', '.join(map(str, sizes))} rows"
        ends = torch.tensor(sizes).cumsum(0).tolist()
        parts = [_cut(whole, end - size, end) for size, end in zip(sizes, ends, strict=True)]
        yield f"gather of {kind}, {told}", parts, whole, whole
        if number % 3 == 0:  # as a model gives them: no views of a whole
            computed = [_computed(part) for part in parts]
            yield f"gather of {kind}, {told}, each computed by itself", computed, whole, whole
        if number % 3 == 1 and len(sizes) > 1:
            due = _cut(whole, sizes[0], sum(sizes))
            yield f"gather of {kind}, {told} without the first", parts[1:], due, whole
        if number % 3 == 2 and len(sizes) > 1:
            turned = parts[::-1]
            yield f"gather of {kind}, {told}, the last one first", turned, solved.gather(turned), whole


def _computed(value: Any) -> Any:
    """Return a nest whose tensors are results, and no views."""
    if isinstance(value, dict):
        return {key: _computed(inside) for key, inside in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(map(_computed, value))
    return value.clone() if isinstance(value, Tensor) else value


def _fault_of_gather(gather: Callable[..., Any]) -> str:
    found: list[str] = []
    transcript: list[str] = []
    for case, parts, due, whole in _parted():
        given = [_again(part) for part in parts]
        before = _noted(parts)
        try:
            with in_case(case):
                joined = gather(given)
                if joined is None:
                    said = f"your function {NO_RETURN}."
                elif same(given, parts) and _as_noted(parts, before):
                    said = _nest(joined, due, whole, view=False)
                    said = said and f"{said}."
                else:
                    said = PARTS_CHANGED
        except InCaseError as error:
            if not found:
                raise
            said = named(error.error)
        transcript.append(said)
        if said:
            found.append(f"{case}: {said}")
    return _told(found, transcript)
