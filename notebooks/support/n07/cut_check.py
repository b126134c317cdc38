"""Exercise 1 of notebook 07, scatter and gather: its judge, and the famous wrong answers."""

# mypy: allow-untyped-calls

from __future__ import annotations

from support.kit.exercise import Exercise
from support.kit.judged import judged
from support.kit.mistakes import famous
from support.n07.cut_trials import KINDS, RANDOM_NESTS, fault_of_cut
from support.n07.solved import gather, scatter

#: The right pair, with this text otherwise.
_SPLIT = "leaf.tensor_split(count)"
_COUNT = "min(chunks, *lengths)"
_REFUSED = "len(lengths) != 1"
_BY_HAND = """size = -(-max(lengths) // chunks)
    count = -(-max(lengths) // size)"""

check_cut = Exercise(
    "scatter and gather",
    reference=(scatter, gather),
    answers=2,
    judge=judged(
        fault_of_cut,
        f"{len(KINDS) + RANDOM_NESTS} nests are cut evenly, as views, and joined again; torn ones are refused.",
    ),
    mistakes=famous(
        (scatter, gather),
        {
            "These are torch.chunk's sizes: it rounds up, so that fewer parts may come than were asked for.": (
                f"count = {_COUNT}",
                _BY_HAND,
                _SPLIT,
                "leaf.chunk(count)",
            ),
            "An empty micro-batch has no mean: make as many parts as there are rows, if these are fewer.": (
                _COUNT,
                "chunks",
            ),
            "rows // chunks for all loses the rest.": (
                _SPLIT,
                "leaf[: len(leaf) // count * count].tensor_split(count)",
            ),
            "The last part gets the whole rest: up to chunks - 1 rows more than the others.": (
                _SPLIT,
                "leaf.tensor_split([i * (len(leaf) // count) for i in range(1, count)])",
            ),
            "Even to one row, but the longer parts should come first.": (
                _SPLIT,
                "leaf.tensor_split([i * len(leaf) // count for i in range(1, count)])",
            ),
            "The shorter parts come first here; wanted are the longer ones first.": (
                _SPLIT,
                "leaf.tensor_split([i * (len(leaf) // count) + max(0, i - count + len(leaf) % count) "
                "for i in range(1, count)])",
            ),
            "Every chunks-th row is DistributedSampler's cut; a micro-batch is a run of neighbours.": (
                _SPLIT,
                "[leaf[i::count] for i in range(count)]",
            ),
            "A slice of a tensor is a view and costs nothing; this one copies the rows.": (
                _SPLIT,
                "[part.clone() for part in leaf.tensor_split(count)]",
            ),
            "The slices are cut off the autograd graph: gradients must find the way back to the whole.": (
                _SPLIT,
                "leaf.detach().tensor_split(count)",
            ),
            "Only the first tensor is cut: a micro-batch holds a slice of each.": (
                "isinstance(leaf, torch.Tensor) else [leaf] * count",
                "leaf is leaves[0] else [leaf] * count",
            ),
            "A generator can be gone through only once and has no part 0: return a list.": (
                "return [tree_unflatten(part, nest) for part in zip(*cut, strict=True)]",
                "return (tree_unflatten(part, nest) for part in zip(*cut, strict=True))",
            ),
            "A nest of lists; wanted is a list of nests, one for each micro-batch.": (
                "return [tree_unflatten(part, nest) for part in zip(*cut, strict=True)]",
                "return tree_unflatten(cut, nest)",
            ),
            "The parts come out flat: each must be built as the mini-batch was.": (
                "tree_unflatten(part, nest) for part in zip",
                "part for part in zip",
            ),
            "Unequal lengths must be refused before anything is cut: later nobody can tell which rows belong "
            "together.": (_REFUSED, "len(lengths) < 1"),
            "stack adds a dimension, and takes parts of one size only: cat joins rows.": (
                "torch.cat",
                "torch.stack",
            ),
            "vstack makes a matrix of what has one number a row: cat joins along dimension 0, whatever there is.": (
                "torch.cat",
                "torch.vstack",
            ),
            "Joined along the last dimension: rows belong below each other.": (
                "torch.cat(same)",
                "torch.cat(same, -1)",
            ),
            "Only the first micro-batch comes back.": ("torch.cat(same)", "same[0]"),
            "The parts stand in the reverse order.": ("torch.cat(same)", "torch.cat(same[::-1])"),
            "Parts after the fourth are missing.": ("torch.cat(same)", "torch.cat(same[:4])"),
            "Each tensor keeps its type (bool, int64, …).": ("torch.cat(same)", "torch.cat(same).double()"),
            "What is no tensor is the same in every part: take it once, and don't collect it.": (
                "else same[0]",
                "else list(same)",
            ),
            "The result belongs to the autograd graph: gradients must find the way back into the parts.": (
                "torch.cat(same)",
                "torch.cat(same).detach()",
            ),
            "gather gives everything side by side: it must be built as each part was.": (
                "return tree_unflatten(joined, flat[0][1])",
                "return tuple(joined)",
            ),
        },
    ),
)
"""Exercise 1: (scatter, gather) for nests given and drawn, 1 to 10 rows, 1 to 6 chunks, and for unequal lengths."""
