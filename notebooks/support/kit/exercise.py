"""An exercise of a notebook: its reference, its cases, and famous wrong answers, each known by a sentence.

Exercise  called with an answer it says what that is worth
cases     names the arguments of every case
use       the reader's answer where it is right, otherwise ours, and which: what the cells below run on
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from support.kit.compare import PRAISE, check_function, check_value
from support.kit.mistakes import Mistake
from support.kit.portable import lacking
from support.kit.stub import is_missing, untouched
from support.kit.values import as_it_is
from support.kit.verdict import Verdict, not_attempted


def cases(names: str, values: Iterable[Any]) -> list[dict[str, Any]]:
    """Name the arguments of every case: "m n" and [(3, 2)] make [{"m": 3, "n": 2}], "m" and [3] make [{"m": 3}]."""
    keys = names.split()
    return [dict(zip(keys, value if len(keys) > 1 else [value], strict=True)) for value in values]


@dataclass(frozen=True, eq=False, repr=False)
class Exercise:
    """An exercise of a notebook. Call it with an answer, or with as many as `answers` says.

    what       names what is compared
    reference  a right answer: a function, a class, a value; a tuple of them if `answers` is more than 1
    cases      arguments by name in which functions are compared, or a function that makes them; none: it is a value
    mistakes   a sentence: the famous wrong answer of which it is said, or a Mistake that names others it contains
    view       turns an answer into the function of a case whose results are compared, so that they can be read
    name       what is "not attempted yet", where that is not `what`
    methods    that the reader fills in, where an answer is a class: must be given there
    may_pass   those of them for which an empty body is an answer, and no stub
    fault      says what is wrong with a result, "" if nothing: fault(got, expected, case). As given: it is not equal
    praise     what is said of a right function, with {count} for the number of cases
    keeps      the contract says that a function must leave its arguments as they are: who changes one is told so
    throughout a famous mistake is named only where the answer agrees with it in all cases, also behind the first
               counterexample; otherwise where it agrees up to that
    tolerance  a share of the value that still counts as equal
    judge      another kind of check, in place of `compare`: judge(exercise, answer); asked of what was attempted
    answers    how many answers it is called with; `judge` gets a tuple if it is more than 1
    """

    what: str
    reference: Any
    cases: Iterable[Mapping[str, Any]] | Callable[[], Iterable[Mapping[str, Any]]] = ()
    mistakes: Mapping[str, Any] = field(default_factory=dict)
    view: Callable[..., Callable[..., Any]] = as_it_is
    name: str = ""
    methods: tuple[str, ...] = ()
    may_pass: tuple[str, ...] = ()
    fault: Callable[[Any, Any, Mapping[str, Any]], str] | None = None
    praise: str = PRAISE
    keeps: bool = False
    throughout: bool = False
    tolerance: float = 0.0
    judge: Callable[[Exercise, Any], Verdict] | None = None
    answers: int = 1
    famous: tuple[Mistake, ...] = field(init=False)
    """The mistakes once more, each with its sentence and the sentences of those that it contains."""

    def __post_init__(self) -> None:
        """Read the table of mistakes: afterwards `mistakes` has plain answers.

        Raises ValueError for a mistake that is unknown, and for a class of which no methods are named.
        """
        for reference in self.references:
            if isinstance(reference, type) and not self.methods:
                raise ValueError(
                    f"{self.what}: {reference.__name__} is a class; say which methods the reader fills in, methods=…"
                )
        famous = [
            replace(given if isinstance(given, Mistake) else Mistake(given), sentence=sentence)
            for sentence, given in self.mistakes.items()
        ]
        for mistake in famous:
            unknown = set(mistake.contains) - self.mistakes.keys()
            if unknown:
                raise ValueError(
                    f"{self.what}: {mistake.sentence!r} contains {unknown}, which is no mistake here"
                )
        object.__setattr__(self, "famous", tuple(famous))
        object.__setattr__(self, "mistakes", {mistake.sentence: mistake.answer for mistake in famous})

    def __call__(self, *answers: Any) -> Verdict:
        """Say what an answer is worth: open if a part of it is still a stub, otherwise right or wrong."""
        if len(answers) != self.answers:
            raise TypeError(f"{self.what}: {self.answers} answer(s) expected, not {len(answers)}")
        for answer, reference in zip(answers, self.references, strict=True):
            for method in self.methods_of(reference):
                if not (is_missing(answer) or hasattr(answer, method)):
                    return self.wrong(f"{getattr(answer, '__name__', answer)} has no {method}.")
        parts = self.parts(*answers)
        stubs = [
            name for name, part in parts.items() if is_missing(part) or untouched(part, name in self.may_pass)
        ]
        if len(stubs) == len(parts):
            return not_attempted(self.name or self.what)
        if stubs:
            return Verdict("open", f"{self.name or self.what}: still the stub: {', '.join(stubs)}.")
        answer = answers if self.answers > 1 else answers[0]
        return self.judge(self, answer) if self.judge else self.compare(answer)

    @property
    def references(self) -> tuple[Any, ...]:
        """The reference of each answer."""
        return self.reference if self.answers > 1 else (self.reference,)

    def methods_of(self, reference: Any) -> tuple[str, ...]:
        """Return what the reader fills in of an answer with this reference: of a class its methods, otherwise none."""
        return self.methods if isinstance(reference, type) else ()

    def parts(self, *answers: Any) -> dict[str, Any]:
        """Return what the reader fills in, by name: each answer, and in place of a class its methods."""
        words = (self.name or self.what).split(" and ")
        parts: dict[str, Any] = {}
        for number, (answer, reference) in enumerate(zip(answers, self.references, strict=True)):
            named_by_what = words[number] if len(words) == self.answers else f"answer {number + 1}"
            name = getattr(answer, "__name__", getattr(reference, "__name__", named_by_what))
            methods = self.methods_of(reference)
            if not methods:
                parts[name] = answer
            for method in methods:
                inside = method if self.answers == 1 else f"{name}.{method}"
                parts[inside] = None if is_missing(answer) else getattr(answer, method)
        return parts

    def all_cases(self) -> list[Mapping[str, Any]]:
        """Return the cases as data."""
        return list(self.cases() if callable(self.cases) else self.cases)

    def needs(self) -> dict[str, set[str]]:
        """Return what a page's Python lacks, torch above all, to make the cases, the answers, and to judge."""
        return {
            "cases": lacking(self.cases, *([] if self.judge else self.all_cases())),
            "reference": lacking(self.reference),
            "mistakes": lacking(*self.mistakes.values()),
            "judge": lacking(self.view, self.fault, self.judge),
        }

    @property
    def portable(self) -> bool:
        """Say whether a page can check it: cases, reference, mistakes and judging need no torch and no threads."""
        return not any(self.needs().values())

    def right(self, said: str) -> Verdict:
        """Return a judge's verdict that an answer is right."""
        return Verdict("right", f"{self.what}: {said}")

    def wrong(self, said: str) -> Verdict:
        """Return a judge's verdict that an answer is wrong."""
        return Verdict("wrong", f"{self.what}: {said}")

    def compare(self, answer: Any) -> Verdict:
        """Compare with the reference: in all cases, or, where there are none, the values themselves."""
        if self.cases == ():
            wrong = {value: why for why, value in self.mistakes.items()}
            return check_value(answer, self.reference, what=self.what, tolerance=self.tolerance, wrong=wrong)
        return check_function(
            self.view(answer),
            self.view(self.reference),
            self.cases() if callable(self.cases) else self.cases,
            what=self.what,
            mistakes={why: self.view(wrong) for why, wrong in self.mistakes.items()},
            fault=self.fault,
            praise=self.praise,
            keeps=self.keeps,
            throughout=self.throughout,
        )


OURS = "ours, until yours passes its check"


def use(answer: Any, exercise: Exercise, ours: Any = None) -> Any:
    """Return the reader's answer if its check finds it right, otherwise ours, and say which: later cells run on it.

    answer: a tuple, and a tuple is returned, where the exercise asks for several; ours: if not the reference.
    """
    right = bool(exercise(*answer) if exercise.answers > 1 else exercise(answer))
    print(f"{exercise.name or exercise.what}: from here on {'yours' if right else OURS}")
    if right:
        return answer
    return exercise.reference if ours is None else ours
