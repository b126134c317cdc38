"""Exercise checks: a verdict in one sentence, the first counterexample; an untouched stub is neither right nor wrong.

Verdict        what a check says; a cell that ends in a check shows it as a coloured line
Guess          a prediction of a notebook with its truth; `guess` comments on one and never fails
Tried          what tests tell a Guess: a right value, a wrong one, and what its notebook knows
Exercise       an exercise of a notebook: its reference, its cases, and famous wrong answers, each known by a sentence
use            the reader's answer where it is right, otherwise ours, and which: what the cells below run on
check_value    compares a number or a word with the answer
check_function compares a function with the reference over many cases
"""

from __future__ import annotations

import dis
import html
import inspect
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from support.kit.mistakes import Mistake
from support.kit.portable import lacking
from support.kit.raised import told_of

Status = Literal["open", "right", "wrong", "note"]
SIGN: dict[Status, str] = {"open": "○", "right": "✓", "wrong": "✗", "note": "→"}
LOOK: dict[Status, tuple[str, str]] = {
    "open": ("#9aa3ad", "#f3f4f6"),
    "right": ("#009e73", "#e6f5f0"),
    "wrong": ("#d55e00", "#fcefe6"),
    "note": ("#0072b2", "#e8f2f9"),
}


@dataclass(frozen=True)
class Verdict:
    """What a check found: `status` is "open" (not attempted), "right", "wrong" or "note" (a comment on a guess)."""

    status: Status
    message: str

    def __bool__(self) -> bool:
        return self.status == "right"

    def __repr__(self) -> str:
        return f"{SIGN[self.status]} {self.message}"

    def _repr_html_(self) -> str:
        edge, paper = LOOK[self.status]
        return (
            f'<div role="status" style="border-left:5px solid {edge};background:{paper};color:#22272e;'
            f'padding:8px 14px;border-radius:3px;max-width:60em;font-size:15px;line-height:1.5">'
            f"<b>{SIGN[self.status]}</b>&ensp;{html.escape(self.message)}</div>"
        )


def untouched(function: Callable[..., Any]) -> bool:
    """Say whether a function is still its stub: nothing but a docstring, `...`, `pass` or NotImplementedError."""
    code = getattr(inspect.unwrap(function), "__code__", None)  # a stub may wear a decorator
    if code is None:
        return False
    if "NotImplementedError" in code.co_names and len(code.co_names) == 1:
        return True
    idle = {"RESUME", "NOP", "LOAD_CONST", "RETURN_CONST", "RETURN_VALUE"}
    steps = list(dis.get_instructions(code))
    returned = [step.argval for step in steps if step.opname.endswith("_CONST")]
    return all(step.opname in idle for step in steps) and all(value is None for value in returned)


def not_attempted(what: str) -> Verdict:
    """Return the neutral verdict."""
    return Verdict(
        "open", f"Not attempted yet: {what}. Fill in the stub above and run its cell and this one again."
    )


def guess(
    my_guess: object, truth: Any, *, what: str, unit: str = "", tolerance: float = 0.0, why: str = ""
) -> Verdict:
    """Comment on a prediction; never fails, whatever the guess is.

    `what` names the quantity, `truth` is its value (computed by the notebook, not typed), `tolerance` a share of the
    truth that still counts as hit, `why` says where this guess comes from. A long guess is clipped, `why` never.
    None, the stub's value, gets a reminder and does not give the answer away.
    """
    if my_guess is None or my_guess is ...:
        return Verdict(
            "note",
            f"No guess yet for {what}. Put one in place of None: a wrong guess teaches more than none.",
        )
    shown = f"{_short(truth)}{' ' + unit if unit else ''}"
    if isinstance(my_guess, str) and not isinstance(truth, str):
        with suppress(ValueError):  # a number between quotation marks
            my_guess = float(my_guess.removesuffix(unit))
    said = f"You said {_short(my_guess)}{f' ({why})' if why else ''}"
    try:
        hit = my_guess == truth or _near(my_guess, truth, tolerance)
        if hit is True:
            return Verdict("note", f"{said}: that is it, {what} = {shown}.")
        if _near(my_guess, truth, max(0.25, 2 * tolerance)):
            return Verdict("note", f"{said}: close, {what} = {shown}.")
    except (
        Exception
    ):  # a guess may be anything, an array or an object that cannot be compared: it is only a guess
        pass
    return Verdict("note", f"{said}; {what} = {shown}. Read on for the reason.")


def _as_it_is(answer: Any) -> Any:
    return answer


@dataclass(frozen=True)
class Tried:
    """How a Guess is tried in tests. known: what the notebook passes beside the guess, in the same order."""

    right: Any
    wrong: Any
    known: tuple[Any, ...] = ()


def _is_missing(answer: Any) -> bool:
    """Say whether a stub's value still stands in place of an answer."""
    return answer is None or answer is ...


@dataclass(frozen=True, eq=False, repr=False)
class Guess:
    """A prediction that a notebook asks for. Call it with the guess, and with what the notebook knows, if `truth` asks.

    what   names the quantity: a text, or a function of the same arguments as `truth`
    truth  computes it
    read   makes guesses equal that mean the same: "b " and "B"
    said   what to say of a famous wrong guess, by its text: {"3": "why"}
    unit and tolerance: as in `guess`
    tried  with what tests ask it; every guess of a room has it
    """

    what: str | Callable[..., str]
    truth: Callable[..., Any]
    unit: str = ""
    tolerance: float = 0.0
    read: Callable[[Any], Any] = _as_it_is
    said: Mapping[str, str] = field(default_factory=dict)
    tried: Tried | None = None

    def __call__(self, my_guess: object, *known: Any, **named: Any) -> Verdict:
        """Comment on a guess; never fails because of it."""
        what = self.what if isinstance(self.what, str) else self.what(*known, **named)
        mine = self.read(my_guess)
        truth = self.truth(*known, **named)
        why = self.said.get(mine, "") if isinstance(mine, str) else ""
        return guess(mine, truth, what=what, unit=self.unit, tolerance=self.tolerance, why=why)


def exact(
    what: str, truth: Callable[..., float], unit: str = "", *, tried: Tried | None = None, **said: str
) -> Guess:
    """Make a guess that is right or not: near the truth lie the famous wrong answers; _3="why": what to say of 3."""

    def read(number: Any) -> Any:
        return f"{number:g}" if isinstance(number, (int, float)) else number

    whys = {text[1:]: why for text, why in said.items()}
    return Guess(what, lambda *known: f"{truth(*known):g}", unit, read=read, said=whys, tried=tried)


def letter(my_guess: object) -> object:
    """Read a guess that is one letter or word: capitals and spaces at the ends do not matter."""
    return my_guess.strip().upper() if isinstance(my_guess, str) else my_guess


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
    methods    that the reader fills in, where the answer is a class
    fault      says what is wrong with a result, "" if nothing: fault(got, expected, case). As given: it is not equal
    praise     what is said of a right function, with {count} for the number of cases
    tolerance  a share of the value that still counts as equal
    judge      another kind of check, in place of `compare`: judge(exercise, answer); asked of what was attempted
    answers    how many answers it is called with; `judge` gets a tuple if it is more than 1
    """

    what: str
    reference: Any
    cases: Iterable[Mapping[str, Any]] | Callable[[], Iterable[Mapping[str, Any]]] = ()
    mistakes: Mapping[str, Any] = field(default_factory=dict)
    view: Callable[..., Callable[..., Any]] = _as_it_is
    name: str = ""
    methods: tuple[str, ...] = ()
    fault: Callable[[Any, Any, Mapping[str, Any]], str] | None = None
    praise: str = "the same as the reference in all {count} cases"
    tolerance: float = 0.0
    judge: Callable[[Exercise, Any], Verdict] | None = None
    answers: int = 1
    famous: tuple[Mistake, ...] = field(init=False)
    """The mistakes once more, each with its sentence and the sentences of those that it contains."""

    def __post_init__(self) -> None:
        """Read the table of mistakes: afterwards `mistakes` has plain answers. Raises ValueError for an unknown one."""
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
        for answer in answers:
            for method in self.methods:
                if not (_is_missing(answer) or hasattr(answer, method)):
                    return self.wrong(f"{getattr(answer, '__name__', answer)} has no {method}.")
        parts = self.parts(*answers)
        stubs = [name for name, part in parts.items() if _is_missing(part) or untouched(part)]
        if len(stubs) == len(parts):
            return not_attempted(self.name or self.what)
        if stubs:
            return Verdict("open", f"{self.name or self.what}: still the stub: {', '.join(stubs)}.")
        answer = answers if self.answers > 1 else answers[0]
        return self.judge(self, answer) if self.judge else self.compare(answer)

    def parts(self, *answers: Any) -> dict[str, Any]:
        """Return what the reader fills in, by name: each answer, each method of a class."""
        references = self.reference if self.answers > 1 else (self.reference,)
        words = (self.name or self.what).split(" and ")
        parts: dict[str, Any] = {}
        for number, (answer, reference) in enumerate(zip(answers, references, strict=True)):
            named_by_what = words[number] if len(words) == self.answers else f"answer {number + 1}"
            name = getattr(answer, "__name__", getattr(reference, "__name__", named_by_what))
            if not self.methods:
                parts[name] = answer
            for method in self.methods:
                inside = method if self.answers == 1 else f"{name}.{method}"
                parts[inside] = None if _is_missing(answer) else getattr(answer, method)
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


def check_value(
    answer: object, truth: Any, *, what: str, tolerance: float = 0.0, wrong: Mapping[Any, str] | None = None
) -> Verdict:
    """Compare one value with the truth; `wrong` maps well-known wrong values to the mistake behind them."""
    if answer is None or answer is ...:
        return not_attempted(what)
    try:
        if bool(answer == truth) or _near(answer, truth, tolerance):
            return Verdict("right", f"{what}: {_short(truth)}.")
        reason = next((why for value, why in (wrong or {}).items() if bool(answer == value)), "")
    except Exception as error:
        return Verdict(
            "wrong", f"{what}: {_short(answer)} cannot be compared ({type(error).__name__}: {error})."
        )
    return Verdict("wrong", f"{what} is not {_short(answer)}." + (f" {reason}" if reason else ""))


def check_function(
    answer: Callable[..., Any],
    reference: Callable[..., Any],
    cases: Iterable[Mapping[str, Any]],
    *,
    what: str,
    mistakes: Mapping[str, Callable[..., Any]] | None = None,
    fault: Callable[[Any, Any, Mapping[str, Any]], str] | None = None,
    praise: str = Exercise.praise,
) -> Verdict:
    """Compare `answer(**case)` with `reference(**case)`, case by case, up to the first difference.

    Results may be values, lists or iterators (at most one item more than the reference's is taken, so an endless
    generator ends). `mistakes` maps a sentence to the function that makes this mistake: if it gives the same as the
    answer wherever it was compared, up to the counterexample and in it, the sentence is added to the verdict.
    `fault` and `praise` are those of an Exercise.
    """
    if untouched(answer):
        return not_attempted(what)
    suspects = dict(mistakes or {})
    count = 0
    for case in cases:
        expected = _listed(reference(**case))
        where = ", ".join(f"{name} = {_short(value)}" for name, value in case.items())
        got, error = _called(answer, case, expected)
        if error is not None:
            return Verdict("wrong", f"{what}: for {where} {told_of(error)}")
        suspects = {
            why: wrong for why, wrong in suspects.items() if _same(_called(wrong, case, expected)[0], got)
        }
        if got is None or fault is None:
            difference = "" if _same(got, expected) else _difference(got, expected)
        else:
            difference = fault(got, expected, case)
        if difference:
            reason = next(iter(suspects), "")
            return Verdict("wrong", f"{what}: for {where}, {difference}." + (f" {reason}" if reason else ""))
        count += 1
    if not count:
        raise ValueError("check_function needs at least one case")
    return Verdict("right", f"{what}: {praise.format(count=count)}.")


def _called(
    function: Callable[..., Any], case: Mapping[str, Any], expected: Any
) -> tuple[Any, Exception | None]:
    limit = len(expected) + 1 if isinstance(expected, list) else None
    try:
        return _listed(function(**case), limit), None
    except Exception as error:
        return None, error


def _listed(result: Any, limit: int | None = None) -> Any:
    """Turn tensors, arrays, tuples, ranges and iterators into lists; leave values, strings and mappings as they are."""
    if hasattr(result, "tolist"):
        result = result.tolist()
    if isinstance(result, (str, bytes, Mapping)) or not isinstance(result, Iterable):
        return result
    return [_listed(item) for item in itertools.islice(result, limit)]


def _same(got: Any, expected: Any) -> bool:
    if isinstance(expected, list):
        return isinstance(got, list) and len(got) == len(expected) and all(map(_same, got, expected))
    if isinstance(expected, float) and not isinstance(got, (list, str)):
        return _near(got, expected, 1e-9)
    try:
        return bool(got == expected)
    except Exception:
        return False


def _difference(got: Any, expected: Any) -> str:
    if got is None:
        return "your function returned None (is a `return` missing?)"
    if not isinstance(expected, list) or not isinstance(got, list):
        return f"expected {_short(expected)}, got {_short(got)}"
    if len(got) != len(expected) and got[: len(expected)] == expected[: len(got)]:
        items = f"{len(expected)} item{'s' * (len(expected) != 1)}"
        many = "more" if len(got) > len(expected) else f"{len(got)}"
        return f"expected {items}, {_short(expected)}, got {many}: {_short(got)}"
    place = next((i for i, (a, b) in enumerate(zip(got, expected, strict=False)) if not _same(a, b)), 0)
    if not got or not expected:
        return f"expected {_short(expected)}, got {_short(got)}"
    return f"position {place}: expected {_short(expected[place])}, got {_short(got[place])} ({_short(got)} in all)"


def _near(value: Any, truth: Any, tolerance: float) -> bool:
    if isinstance(truth, bool) or not isinstance(truth, (int, float)) or isinstance(value, (str, bool)):
        return False
    try:
        return math.isclose(
            float(value), float(truth), rel_tol=tolerance, abs_tol=1e-12 if tolerance else 0.0
        )
    except (TypeError, ValueError):
        return False


def _short(value: Any, limit: int = 90) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Sequence) and not isinstance(value, str) and len(value) > 14:
        return f"[{', '.join(map(repr, value[:12]))}, … {len(value)} items]"
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
