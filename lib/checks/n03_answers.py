"""The answers to notebook 03's exercises: the right ones, from the samplers themselves, and famous wrong ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import DistributedSampler as TorchSampler

from lib.data.samplers import DistributedSampler

Case = Mapping[str, Any]


# Exercise 1: __iter__ in one function. A case has the seven arguments by name, and so have the wrong answers.


def true_indices(
    size: int, num_replicas: int, rank: int, shuffle: bool, seed: int, epoch: int, drop_last: bool
) -> list[int]:
    """Return what torch's own sampler yields."""
    sampler = TorchSampler[int](range(size), num_replicas, rank, shuffle, seed, drop_last)  # type: ignore[arg-type]
    sampler.set_epoch(epoch)
    return list(sampler)


def _order(case: Case) -> list[int]:
    if not case["shuffle"]:
        return list(range(case["size"]))
    generator = torch.Generator().manual_seed(case["seed"] + case["epoch"])
    return torch.randperm(case["size"], generator=generator).tolist()


def _total(case: Case) -> int:
    size, world = case["size"], case["num_replicas"]
    return int(size // world * world if case["drop_last"] else -(-size // world) * world)


def padded_with_unshuffled_head(**case: Any) -> list[int]:
    """Pad with 0, 1, 2 … (wrong)."""
    padded = _order(case) + list(range(case["size"])) * 8
    return padded[: _total(case)][case["rank"] :: case["num_replicas"]]


def padded_before_shuffle(**case: Any) -> list[int]:
    """Pad 0, 1, 2 … to total_size, then shuffle all of it (wrong)."""
    mixed = _order({**case, "size": max(case["size"], _total(case))})[: _total(case)]
    return [index % case["size"] for index in mixed][case["rank"] :: case["num_replicas"]]


def padded_once(**case: Any) -> list[int]:
    """Append the head once, which is too short where the padding is longer than the dataset (wrong)."""
    order = _order(case)
    return (order + order)[: _total(case)][case["rank"] :: case["num_replicas"]]


def not_padded(**case: Any) -> list[int]:
    """Take the slice of the bare order (wrong)."""
    return _order(case)[case["rank"] :: case["num_replicas"]]


def in_blocks(**case: Any) -> list[int]:
    """Cut the right order into contiguous blocks (wrong)."""
    rows = [true_indices(**{**case, "rank": rank}) for rank in range(case["num_replicas"])]
    order = [index for step in zip(*rows, strict=True) for index in step]
    return order[case["rank"] * len(rows[0]) :][: len(rows[0])]


def head_dropped(**case: Any) -> list[int]:
    """Drop from the head of the order (wrong)."""
    if not case["drop_last"]:
        return true_indices(**case)
    return _order(case)[case["size"] % case["num_replicas"] :][case["rank"] :: case["num_replicas"]]


def seeded_with_rank(**case: Any) -> list[int]:
    """Let every rank shuffle on its own (wrong)."""
    return true_indices(**{**case, "seed": case["seed"] + case["rank"]})


def as_if(**changes: Any) -> Callable[..., list[int]]:
    """Return the right answer to another question: an argument that is ignored (wrong)."""
    return lambda **case: true_indices(**{**case, **changes})


# Exercise 2: its length, without computing it.


def true_length(size: int, num_replicas: int, rank: int, drop_last: bool, pad: bool) -> int:
    """Ask the sampler."""
    return len(DistributedSampler(range(size), num_replicas, rank, drop_last=drop_last, pad=pad))


def always_rounded_up(size: int, num_replicas: int, rank: int, drop_last: bool, pad: bool) -> int:
    """Round up (wrong)."""
    return -(-size // num_replicas)


def always_rounded_down(size: int, num_replicas: int, rank: int, drop_last: bool, pad: bool) -> int:
    """Round down (wrong)."""
    return size // num_replicas


def one_too_many(size: int, num_replicas: int, rank: int, drop_last: bool, pad: bool) -> int:
    """Write ceil as floor + 1 (wrong where W divides N)."""
    return true_length(size, num_replicas, rank, drop_last, pad) + (
        size % num_replicas == 0 and pad and not drop_last
    )


def rest_to_the_last(size: int, num_replicas: int, rank: int, drop_last: bool, pad: bool) -> int:
    """Give the rest to the last ranks (wrong)."""
    return true_length(size, num_replicas, rank if pad else num_replicas - 1 - rank, drop_last, pad)


def all_rest_to_one(size: int, num_replicas: int, rank: int, drop_last: bool, pad: bool) -> int:
    """Give the whole rest to one rank (wrong)."""
    if pad:
        return true_length(size, num_replicas, rank, drop_last, pad)
    return size // num_replicas + (size % num_replicas if rank == num_replicas - 1 else 0)


# Exercise 3: one score from uneven shares.


def true_accuracy(correct: Sequence[int], counted: Sequence[int]) -> float:
    """Divide one sum by the other."""
    return sum(correct) / sum(counted)


def mean_of_means(correct: Sequence[int], counted: Sequence[int]) -> float:
    """Take the mean of the ranks' accuracies (wrong)."""
    return sum(right / count for right, count in zip(correct, counted, strict=True)) / len(correct)


def by_first_rank(correct: Sequence[int], counted: Sequence[int]) -> float:
    """Act as if all ranks had counted as many as rank 0 (wrong)."""
    return sum(correct) / (counted[0] * len(counted))


def rank_zero_only(correct: Sequence[int], counted: Sequence[int]) -> float:
    """Report rank 0's accuracy (wrong)."""
    return correct[0] / counted[0]
