"""One judge for all exercises whose answers must be tried out, since results alone don't say what is right."""

from __future__ import annotations

from collections.abc import Callable, Container
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeAlias

from support.kit.exercise import Exercise
from support.kit.raised import known_by, told_of
from support.kit.verdict import Verdict


class Fault(str):
    """What is wrong with an answer, recognised in others by more than is said of it: an order is told in part."""

    known_by: str

    def __new__(cls, said: str, known_by: object) -> Fault:
        """Make the sentence; the text of `known_by` is what others are compared by."""
        fault = super().__new__(cls, said)
        fault.known_by = str(known_by)
        return fault


Trial: TypeAlias = Callable[[Any], str]
"""Says what is wrong with an answer in one or two sentences, "" if nothing."""


@dataclass(frozen=True)
class _Seen:
    """What a trial of an answer came to: the sentence, and by what it is recognised in another answer."""

    said: str
    known_by: str


def judged(
    fault: Trial,
    praise: str,
    *,
    around: Callable[[], AbstractContextManager[object]] = nullcontext,
    unsaid: Container[str] | None = None,
) -> Callable[[Exercise, Any], Verdict]:
    """Make a judge of what says a fault. It always catches: an exception is told with its case and place.

    A famous mistake is recognised by its fault, which is that of the answer; how a mistake fares is tried once, and
    only behind a wrong answer. around: in what each trial runs, as `torch.random.fork_rng`.
    unsaid: the sentences that `fault` does not always say itself, None if it may be any. Only these mistakes are tried,
    which saves a reader the wait for those that hang.
    """
    of_mistakes: dict[str, _Seen] = {}

    def tried(answer: Any) -> _Seen:
        with around():
            try:
                said = fault(answer)
            except (Exception, SystemExit) as error:
                return _Seen(told_of(error), known_by(error))
            return _Seen(said, said.known_by if isinstance(said, Fault) else said)

    def judge(exercise: Exercise, answer: Any) -> Verdict:
        seen = tried(answer)
        if not seen.said:
            return exercise.right(praise)
        for sentence, mistake in exercise.mistakes.items():
            if unsaid is not None and sentence not in unsaid:
                continue
            if sentence not in of_mistakes:
                of_mistakes[sentence] = tried(mistake)
            if of_mistakes[sentence].known_by == seen.known_by:
                already_there = sentence in seen.said
                return exercise.wrong(seen.said if already_there else f"{seen.said} {sentence}")
        return exercise.wrong(seen.said)

    return judge
