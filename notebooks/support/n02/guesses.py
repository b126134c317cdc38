"""Predictions of notebook 02, samplers."""

from __future__ import annotations

from dataclasses import dataclass
from operator import length_hint
from typing import Any

from torch.utils.data import DataLoader, get_worker_info
from torch.utils.data.datapipes.iter import IterableWrapper

from lib.data.samplers import RandomSampler
from support.checks import Guess, Tried, Verdict
from support.n02.runs import IndexDataset, record_epoch


def _asker() -> str:
    messages = record_epoch(lambda dataset: RandomSampler(dataset, seed=0), size=5, batch_size=2)
    return next(message.receiver for message in messages if message.name == "length")


def _handed_out() -> str:  # a text: 8 and 12, the wrong ideas, are not close to 10
    indices = iter(range(12))
    loader = DataLoader(IndexDataset(12), 2, sampler=indices, num_workers=2)
    return str(min(12 - length_hint(indices) for _ in loader))  # it grows


def _signed(items: list[int]) -> tuple[int, int]:
    info: Any = get_worker_info()
    return info.id, info.dataset.loads


def _loads() -> list[int]:
    dataset = IndexDataset(10)
    copies = dict(DataLoader(dataset, 2, num_workers=2, collate_fn=_signed))  # a worker's last batch counts
    return [dataset.loads, copies[0], copies[1]]


def _streamed() -> int:
    return sum(map(len, DataLoader(IterableWrapper(range(10)), 5, num_workers=2)))


def _rows(table: dict[str, Any]) -> Any:
    return _listed([*table.values()])


def _listed(guess: Any) -> Any:
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
    "who asks the Dataset for its length", _asker, tried=Tried(right="Sampler", wrong="DataLoader")
)
guess_loads = _Shaped(
    "loads in [the main process, worker 0's copy, worker 1's copy]",
    _loads,
    read=_listed,
    shape="Three whole numbers",
    tried=Tried(right=(0, 6, 4), wrong=[10, 6, 4]),
)
guess_handed_out = _Shaped(
    "indices handed out when the first batch comes",
    _handed_out,
    read=lambda said: str(said) if isinstance(said, int) else said,
    tried=Tried(right=10, wrong=12),
)
guess_streamed = _Shaped("items in an epoch", _streamed, tried=Tried(right=20, wrong=10))
guess_table = _Shaped(
    "different rows of 4",
    _rows,
    read=_listed,
    shape="Four pairs [[new, persistent], …]",
    tried=Tried(right=[(1, 2)], wrong=[(2, 1)], known=({"a": (1, 2)},)),
)
