"""Predictions of notebook 02, samplers."""

from __future__ import annotations

from dataclasses import dataclass
from operator import length_hint
from typing import Any

import torch
from torch.utils.data import DataLoader, get_worker_info
from torch.utils.data.datapipes.iter import IterableWrapper

from lib.data.samplers import RandomSampler
from support.kit.exact import exact_number
from support.kit.guess import Guess, Tried
from support.kit.verdict import Verdict
from support.n02.runs import IndexDataset, record_epoch
from support.n02.streams import classes_in_batches, sorted_digits, through_buffer


def _asker() -> str:
    messages = record_epoch(lambda dataset: RandomSampler(dataset, seed=0), size=5, batch_size=2)
    return next(message.receiver for message in messages if message.name == "length")


def _handed_out() -> int:
    indices = iter(range(12))
    loader = DataLoader(IndexDataset(12), 2, sampler=indices, num_workers=2)
    return min(12 - length_hint(indices) for _ in loader)  # it grows


def _signed(items: list[int]) -> tuple[int, int]:
    info: Any = get_worker_info()
    return info.id, info.dataset.loads


def _loads() -> list[int]:
    dataset = IndexDataset(10)
    copies = dict(DataLoader(dataset, 2, num_workers=2, collate_fn=_signed))  # a worker's last batch counts
    return [dataset.loads, copies[0], copies[1]]


def _streamed() -> int:
    return sum(map(len, DataLoader(IterableWrapper(range(10)), 5, num_workers=2)))


def _classes() -> float:
    return classes_in_batches(through_buffer(size=100, files=1))


def _accuracy_of_a_sorted_pass(rate: float, batch: int = 16) -> float:
    """Return what a softmax regression gets right after one pass over digits that are sorted by class."""
    images, labels, test_images, test_labels = sorted_digits()
    weights = torch.zeros(64, 10, dtype=torch.float64)
    for inputs, classes in zip(images.split(batch), labels.split(batch), strict=True):
        errors = torch.softmax(inputs @ weights, dim=1)
        errors[range(len(classes)), classes] -= 1
        weights -= rate * inputs.T @ errors / len(classes)
    right = (test_images @ weights).argmax(1) == test_labels
    return float(right.double().mean())


def _better_rate() -> str:
    small, large = map(_accuracy_of_a_sorted_pass, (0.0003, 0.5))
    return "smaller" if small > large else "larger"


def _word(my_guess: object) -> object:
    return my_guess.strip().lower() if isinstance(my_guess, str) else my_guess


def _name(my_guess: object) -> object:
    names = {name.lower(): name for name in ("Sampler", "DataLoader", "training loop")}
    return names.get(my_guess.strip().lower(), my_guess) if isinstance(my_guess, str) else my_guess


def _rows(table: dict[str, Any]) -> Any:
    return _listed([*table.values()])


def _listed(guess: Any) -> Any:
    if isinstance(guess, str) and guess.strip().isdecimal():
        return int(guess)
    return [*map(_listed, guess)] if isinstance(guess, (list, tuple)) else guess


def _alike(guess: Any, truth: Any) -> bool:
    if isinstance(truth, list):
        return isinstance(guess, list) and len(guess) == len(truth) and all(map(_alike, guess, truth))
    return str(guess).strip().isdigit()


@dataclass(frozen=True, eq=False, repr=False)
class _Shaped(Guess):
    """A guess of which, where it has another shape than the truth, only the shape that is asked for is said."""

    shape: str = "A whole number"

    def __call__(self, my_guess: object, *known: Any, **named: Any) -> Verdict:
        if my_guess is None or my_guess is ... or _alike(self.read(my_guess), self.truth(*known, **named)):
            return super().__call__(my_guess, *known, **named)
        return Verdict("note", f"{self.shape}, please, not {my_guess!r}. No guess? Read on for the reason.")


guess_asker = Guess(
    "who asks the Dataset for its length",
    _asker,
    read=_name,
    said={
        "DataLoader": "it gives the batches, so it should know how many; but it stops when its sampler does",
        "training loop": "you may ask, but nothing in an epoch needs your answer",
    },
    tried=Tried(right="Sampler", wrong="DataLoader"),
)
guess_loads = _Shaped(
    "loads in [the main process, worker 0's copy, worker 1's copy]",
    _loads,
    read=_listed,
    shape="Three whole numbers",
    tried=Tried(right=(0, 6, 4), wrong=[10, 6, 4]),
)
guess_handed_out = exact_number(
    "indices handed out when the first batch comes",
    _handed_out,
    said={
        2: "that is the batch itself, as without workers",
        4: "that is one worker's prefetch_factor × batch size",
        8: "2 workers × prefetch_factor 2 × 2; but the place of the batch that came has been filled again",
        12: "all of them; but only so many batches may be under way",
    },
    whole=True,
    tried=Tried(right=10, wrong=12),
)
guess_streamed = exact_number(
    "items in an epoch",
    _streamed,
    said={10: "each item once; but who would have dealt them out?"},
    whole=True,
    tried=Tried(right=20, wrong=10),
)
guess_classes = Guess(
    "classes in a batch, on average",
    _classes,
    tolerance=0.08,
    tried=Tried(right=3.7, wrong=8.8),
)
guess_rate = Guess(
    "the learning rate that helps a sorted pass",
    _better_rate,
    read=_word,
    said={"larger": "it learns a class faster, and unlearns the others faster, too"},
    tried=Tried(right="smaller", wrong="larger"),
)
guess_table = _Shaped(
    "different rows of 4",
    _rows,
    read=_listed,
    shape="A pair of whole numbers for each way, [[new, persistent], …]",
    tried=Tried(right=[(1, 2)], wrong=[(2, 1)], known=({"a": (1, 2)},)),
)
