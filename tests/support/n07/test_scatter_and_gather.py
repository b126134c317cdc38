"""Answers to exercise 1 of notebook 07, scatter and gather: right ones of other kinds, and wrong ones."""

from itertools import pairwise

import pytest
import torch
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from lib.runtime.microbatch import Batch
from lib.runtime.microbatch import gather as lib_gather
from lib.runtime.microbatch import scatter as lib_scatter
from support.built import gather, scatter
from support.n07 import checks as n07
from support.n07.cut_trials import cuts_of, leaves


def tensors_in(nest):
    return [leaf for _, leaf in leaves(nest) if isinstance(leaf, torch.Tensor)]


def places(rows, chunks):
    """Return the cuts by hand: what stays over goes to the first parts."""
    count = min(rows, chunks)
    size, longer = divmod(rows, count)
    ends = [0]
    for part in range(count):
        ends.append(ends[-1] + size + (part < longer))
    return list(pairwise(ends))


def sliced(nest, start, end):
    if isinstance(nest, dict):
        return {key: sliced(value, start, end) for key, value in nest.items()}
    if isinstance(nest, (tuple, list)):
        return type(nest)(sliced(value, start, end) for value in nest)
    return nest[start:end] if isinstance(nest, torch.Tensor) else nest


def by_slices(batch, chunks):
    lengths = [len(tensor) for tensor in tensors_in(batch)]
    if min(lengths) < max(lengths):
        raise ValueError(lengths)
    return [sliced(batch, start, end) for start, end in places(lengths[0], chunks)]


def by_recursion(parts):
    first = parts[0]
    if isinstance(first, torch.Tensor):
        return torch.cat(parts)
    if isinstance(first, dict):
        return {key: by_recursion([part[key] for part in parts]) for key in first}
    if isinstance(first, (tuple, list)):
        return type(first)(map(by_recursion, zip(*parts, strict=True)))
    return first


def by_map(parts):
    return tree_map(lambda *same: torch.cat(same) if isinstance(same[0], torch.Tensor) else same[0], *parts)


def one_part_as_it_is(parts):
    return parts[0] if len(parts) == 1 else by_map(parts)


@pytest.mark.parametrize(
    "cut, join", [(by_slices, by_recursion), (scatter, by_map), (by_slices, gather), (scatter, one_part_as_it_is)]
)
def test_other_right_ways_to_cut_and_to_join_pass(cut, join):
    verdict = n07.check_cut(cut, join)
    assert verdict, verdict.message


def first_against_last(batch, chunks):
    """Compare two lengths only: what stands between them may have another."""
    tensors = tensors_in(batch)
    if len(tensors[0]) != len(tensors[-1]):
        raise ValueError
    flat, built = tree_flatten(batch)
    count = min(chunks, len(tensors[0]))
    cut = [leaf.tensor_split(count) if isinstance(leaf, torch.Tensor) else [leaf] * count for leaf in flat]
    return [tree_unflatten(part, built) for part in zip(*cut, strict=True)]


def by_lists(nest, chunks):
    """Cut a nest into a list of nests, container by container; an empty one gives an empty list."""
    if isinstance(nest, torch.Tensor):
        return list(nest.tensor_split(min(chunks, len(nest))))
    if isinstance(nest, dict):
        cut = by_lists(list(nest.values()), chunks)
        return [dict(zip(nest, part, strict=True)) for part in cut]
    if isinstance(nest, (tuple, list)):
        return [type(nest)(part) for part in zip(*(by_lists(inside, chunks) for inside in nest), strict=False)]
    return [nest] * chunks


def test_a_zip_over_an_empty_container_is_told_what_it_lacks():
    def cut(batch, chunks):
        if len({len(tensor) for tensor in tensors_in(batch)}) != 1:
            raise ValueError
        return by_lists(batch, chunks)

    verdict = n07.check_cut(cut, gather)
    assert verdict.status == "wrong"
    assert "got none. In this nest a container is empty: it gives nothing to zip" in verdict.message, verdict.message


@pytest.mark.parametrize("rows, chunks", [(7, 4), (3, 4), (1, 1), (12, 5), (5, 8)])
def test_the_cuts_that_are_expected_are_libs(rows, chunks):
    found = [len(part.tensor) for part in lib_scatter(torch.arange(rows), chunks)]
    assert [end - start for start, end in cuts_of(rows, chunks)] == found
    assert cuts_of(rows, chunks) == places(rows, chunks)


def of_tensors(change, nest):
    """Do something to each tensor of the caller's that allows it."""
    for tensor in tensors_in(nest):
        if tensor.is_leaf:
            change(tensor)
    return nest


def asks_for_gradients(tensor):
    tensor.requires_grad_(tensor.is_floating_point())


def inverts_masks(tensor):
    if tensor.dtype == torch.bool:
        tensor.logical_not_()


def keeps_no_gradient(tensor):
    tensor.requires_grad_(False)


@pytest.mark.parametrize("change", [asks_for_gradients, inverts_masks, keeps_no_gradient])
def test_a_cut_that_changes_the_callers_tensors_is_refused(change):
    verdict = n07.check_cut(lambda batch, chunks: scatter(of_tensors(change, batch), chunks), gather)
    assert "the mini-batch itself is no longer what it was" in verdict.message, verdict.message


def test_a_joint_that_changes_the_callers_tensors_is_refused():
    verdict = n07.check_cut(scatter, lambda parts: gather(of_tensors(asks_for_gradients, parts)))
    assert "the parts themselves are no longer what they were" in verdict.message, verdict.message


def test_a_cut_without_a_graph_is_not_told_of_a_detach_that_it_does_not_have():
    verdict = n07.check_cut(torch.no_grad()(scatter), gather)
    assert verdict.message.endswith("gradients must find the way back to the whole."), verdict.message
    assert "detach" not in verdict.message, verdict.message


def only_tuples(batch, chunks):
    return [tuple(part) for part in lib_scatter(batch, chunks)]


def of_matrices(batch, chunks):
    return [tree_map(lambda x: x[:, :] if isinstance(x, torch.Tensor) else x, part) for part in scatter(batch, chunks)]


def doubled(batch, chunks):
    return [tree_map(lambda x: 2 * x if isinstance(x, torch.Tensor) else x, part) for part in scatter(batch, chunks)]


def refuses_otherwise(batch, chunks):
    assert len({len(tensor) for tensor in tensors_in(batch)}) == 1
    return scatter(batch, chunks)


def refuses_by_luck(batch, chunks):
    """zip is strict about numbers of parts, which are mostly equal."""
    return list(zip(*(x.tensor_split(min(chunks, len(x))) for x in tensors_in(batch)), strict=True))


def renamed_keys(batch, chunks):
    return [sorted(part) if isinstance(part, dict) else part for part in scatter(batch, chunks)]


def two_levels(batch, chunks):
    """Leave alone what stands deeper."""
    if isinstance(batch, list) and isinstance(batch[0], dict):
        return [batch for _ in scatter(batch, chunks)]
    return scatter(batch, chunks)


def in_place(batch, chunks):
    parts = scatter(batch, chunks)
    if isinstance(batch, dict):
        for key in batch:
            batch[key] = [part[key] for part in parts]
    return parts


def through_float64(parts):
    """Lose the last digits of large whole numbers on the way."""
    return tree_map(
        lambda *same: (
            torch.cat([x.double() for x in same]).to(same[0]) if isinstance(same[0], torch.Tensor) else same[0]
        ),
        *parts,
    )


def averages_the_numbers(parts):
    def joined(*same):
        if isinstance(same[0], torch.Tensor):
            return torch.cat(same)
        return sum(same) / len(same) if isinstance(same[0], (int, float)) else same[0]

    return tree_map(joined, *parts)


@pytest.mark.parametrize(
    "cut, says",
    [
        (lambda batch, chunks: [batch], "expected 4 micro-batches, got 1 of 6 rows"),
        (doubled, "other numbers"),
        (of_matrices, "IndexError"),
        (refuses_otherwise, "into 4: your code raised AssertionError"),
        (first_against_last, "nothing was raised; a ValueError is wanted"),
        (refuses_by_luck, "built as (·,), expected ·"),
        (only_tuples, "scatter of x, 6 rows, into 4: micro-batch 0: built as (·,), expected ·"),
        (renamed_keys, "built as [·, ·], expected {x: ·, y: ·}"),
        (lambda batch, chunks: tuple(scatter(batch, chunks)), "expected a list of micro-batches, got a tuple"),
        (
            two_levels,
            'scatter of [{"a": ({"b": [x, (y,)]}, mask)}], 6 rows, into 4: expected micro-batches of 2, 2, 1, 1',
        ),
        (in_place, "6 rows, into 4: the mini-batch itself is no longer what it was"),
        (lambda batch, chunks: [iter(part) for part in scatter(batch, chunks)], "tuple_iterator"),
    ],
)
def test_another_wrong_cut_is_told_what_came_of_it(cut, says):
    verdict = n07.check_cut(cut, gather)
    assert verdict.status == "wrong", verdict.message
    assert says in verdict.message, verdict.message


def from_one_memory(parts):
    """Return the tensor that all slices come from, where they come from one and have as many rows."""

    def joined(*slices):
        if not isinstance(slices[0], torch.Tensor):
            return slices[0]
        base = slices[0]._base
        of_one = base is not None and all(each._base is base for each in slices)
        return base if of_one and sum(map(len, slices)) == len(base) else torch.cat(slices)

    return tree_map(joined, *parts)


@pytest.mark.parametrize(
    "join, says",
    [
        (lambda parts: gather(parts[::-1]), "reverse order"),
        (from_one_memory, "the last one first"),
        (lambda parts: list(gather(parts)), "built as [·, ·, ·], expected (·, ·, ·)"),
        (averages_the_numbers, "0 of type float, expected one of type int"),
        (through_float64, '["text"]["ids"]: other numbers, expected rows'),
        (lambda parts: lib_gather([Batch(tuple(part)) for part in parts]), "gather of x"),
        (lambda parts: tree_map(torch.vstack, *parts), "your code raised"),
    ],
)
def test_another_wrong_joint_is_told_what_came_of_it(join, says):
    verdict = n07.check_cut(scatter, join)
    assert verdict.status == "wrong", verdict.message
    assert says in verdict.message, verdict.message


def test_the_first_counterexample_of_a_wrong_cut_is_told_in_rows():
    (chunk,) = [pair for why, pair in n07.check_cut.mistakes.items() if "torch.chunk" in why]
    message = n07.check_cut(*chunk).message
    assert "6 rows, into 4: expected 4 micro-batches, got 3 of 2, 2, 2 rows" in message
