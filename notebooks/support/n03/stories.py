"""What a sampler is tried with, exercise 2 of notebook 03: it is made and lives through a story, which is told."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from numbers import Integral
from operator import index
from typing import Any

import numpy
import torch
from torch.random import fork_rng

from support.kit.values import NO_RETURN

PASS = "list"
LENGTH = "len"
BEGIN = "begin a pass"
ONE = "take one index"
REST = "list the pass begun"
SET = "set_epoch"
OTHER = "make another sampler otherwise and tell it epoch 7"
ALONE = "are the others' random numbers as they were?"
MADE = "made"
KEYWORDS = "made with keywords"
DEFAULTS = "made with num_replicas and rank alone"
ITSELF = "the sampler itself, so that two passes would be one: return a new iterator, iter(share)"
NAMES = ("num_replicas", "rank", "shuffle", "seed", "drop_last")


class OnlyLong:
    """A dataset that has a length; an item of it is no index, and it remembers that one was asked for."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.asked = False

    def __len__(self) -> int:
        return self._size

    def __bool__(self) -> bool:
        raise RuntimeError("a dataset may be a tensor, which has no truth value: ask for its length")

    def __getitem__(self, index: int) -> str:
        self.asked = True
        if not 0 <= index < self._size:
            raise IndexError(index)
        return f"image {index}"


class Others:
    """The generators that the rest of a program draws from: while a `with` lasts they are known, then as before."""

    def __enter__(self) -> Others:
        self._before = torch.get_rng_state(), random.getstate(), numpy.random.get_state()  # noqa: NPY002
        # a state of our own: the one that was here may be just the one that an answer seeds
        torch.manual_seed(20_011_109)
        random.seed(20_011_109)
        numpy.random.seed(20_011_109)  # noqa: NPY002
        # drawn from: who seeds one anew has not left it as it was
        torch.rand(1)
        random.random()
        numpy.random.rand()  # noqa: NPY002
        self._known = self._states()
        return self

    def __exit__(self, *error: object) -> None:
        torch_state, python_state, numpy_state = self._before
        torch.set_rng_state(torch_state)
        random.setstate(python_state)
        numpy.random.set_state(numpy_state)  # noqa: NPY002

    @staticmethod
    def _states() -> dict[str, object]:
        _, keys, place, *_ = numpy.random.get_state()  # noqa: NPY002
        return {
            "torch's": torch.get_rng_state().numpy().tobytes(),
            "Python's": random.getstate(),
            "NumPy's": (numpy.asarray(keys).tobytes(), place),
        }

    def touched(self) -> list[str]:
        """Say whose global generator is no longer in the state that it was given."""
        return [whose for whose, state in self._states().items() if state != self._known[whose]]


@contextmanager
def generators_put_back() -> Iterator[None]:
    """Leave the generators of the rest of a program as they were: a famous mistake seeds Python's and NumPy's."""
    python_state = random.getstate()
    numpy_state = numpy.random.get_state()  # noqa: NPY002
    with fork_rng(devices=[]):
        try:
            yield
        finally:
            random.setstate(python_state)
            numpy.random.set_state(numpy_state)  # noqa: NPY002


def told_by(kind: Any) -> Callable[..., Any]:
    """Make the function of a case: a sampler of this kind is made and lives through a story, which is told in a list.

    story: actions with commas between them; the first may say how it is made. "made" alone: whether it can be made,
    by each of several ranks.
    """

    def answer(story: str, size: int, rank: Any, **made: Any) -> Any:
        if story == MADE:
            return [_refusal(kind, OnlyLong(size), made | {"rank": number}) for number in rank]
        actions = story.split(", ")
        how = actions.pop(0) if actions[0] in (KEYWORDS, DEFAULTS) else ""
        dataset = OnlyLong(size)
        # to look at all generators takes longer than a short life
        with Others() if ALONE in actions else generators_put_back() as others:
            try:
                sampler = _made(kind, dataset, made | {"rank": rank}, how)
            except TypeError:
                if how != KEYWORDS:
                    raise
                _made(kind, dataset, made | {"rank": rank})  # raises, too, if it does not come of the names
                return "a TypeError"
            life = _Life(sampler, lambda: _made_otherwise(kind, size, made | {"rank": rank}), others)
            told = [life.live(action) for action in actions]
        if dataset.asked:
            told.append("and an item of the dataset was asked for, of which it needs the length alone")
        return [said for said in told if said is not ...]

    return answer


class _Life:
    """A sampler, and what happens to it."""

    def __init__(self, sampler: Any, another: Callable[[], Any], others: Any) -> None:
        self._sampler = sampler
        self._another = another
        self._others = others
        self._begun: Any = None
        self._met: list[Any] = []

    def live(self, action: str) -> Any:
        """Let it happen; return what is to be told of it, `...` if nothing."""
        word, _, given = action.partition("(")
        if word == SET:
            name, _, epoch = given.removesuffix(")").rpartition("=")
            if name:
                self._sampler.set_epoch(**{name: int(epoch)})
            else:
                self._sampler.set_epoch(int(epoch))
            return ...
        if action == OTHER:
            self._met.append(self._another())
            self._met[-1].set_epoch(7)
            return ...
        if action == BEGIN:
            self._begun = self._sampler.__iter__()
            return ITSELF if self._begun is self._sampler else ...
        if action == ONE:
            return _indices(itertools.islice(self._begun, 1))
        if action == LENGTH:
            return _length(self._sampler.__len__())
        if action == ALONE:
            return " and ".join(f"{whose} are not" for whose in self._others.touched()) or "they are"
        passed = self._begun if action == REST else self._sampler.__iter__()
        return ITSELF if passed is self._sampler else _indices(passed)


def _length(length: Any) -> Any:
    """Return a length, or what len() says of it, in words; None stays None."""
    try:
        return length if length is None else index(length)
    except TypeError:
        return f"a {type(length).__name__}, which len() refuses: a length is an int"


def _indices(passed: Any) -> Any:
    """Return the indices that an iterator gives, or what is odd about it, in words."""
    if passed is None:
        return f"nothing: __iter__ {NO_RETURN}"
    if not isinstance(passed, Iterator):
        return f"a {type(passed).__name__}, which is no iterator: return iter(share)"
    found = list(itertools.islice(passed, 100))  # an endless one ends
    odd = [type(item).__name__ for item in found if not isinstance(item, Integral)]
    if odd:
        return f"indices of type {odd[0]} (.tolist() makes a tensor Python's numbers)"
    return [*map(index, found)]


def _made(kind: Any, dataset: OnlyLong, made: dict[str, Any], how: str = "") -> Any:
    if how == KEYWORDS:
        return kind(dataset=dataset, **{name: made[name] for name in NAMES})
    given = ("num_replicas", "rank") if how == DEFAULTS else NAMES
    return kind(dataset, *(made[name] for name in given))


def _made_otherwise(kind: Any, size: int, made: dict[str, Any]) -> Any:
    """Make a sampler that shares no argument with the one that is made of these."""
    world_size = made["num_replicas"] + 1
    other = {
        "num_replicas": world_size,
        "rank": (made["rank"] + 1) % world_size,
        "shuffle": not made["shuffle"],
        "seed": made["seed"] + 1,
        "drop_last": not made["drop_last"],
    }
    return _made(kind, OnlyLong(size + 1), other)


def _refusal(kind: Any, dataset: OnlyLong, made: dict[str, Any]) -> str:
    """Say whether a sampler can be made for a rank, and if so, whether it then works."""
    rank = made["rank"]
    try:
        sampler = _made(kind, dataset, made)
    except ValueError:
        return f"{rank} refused"
    except Exception as error:
        return f"{rank} refused by {type(error).__name__}, which is no ValueError"
    try:
        sampler.__len__()
        sampler.set_epoch(1)
        list(sampler.__iter__())
    except Exception:
        return f"{rank} taken, and refused later"
    return f"{rank} taken"
