"""Whether an answer is right, by its value or by what it gives: up to the first counterexample, which is told.

check_value     compares a number or a word with the answer
check_function  compares a function with the reference over many cases
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from typing import Any

from support.kit.raised import told_of
from support.kit.stub import is_missing, untouched
from support.kit.values import NO_RETURN, near, short
from support.kit.verdict import Verdict, not_attempted

PRAISE = "the same as the reference in all {count} cases"
WHOSE = "what it is given belongs to whoever calls it, who may need it again"
_RAISED = object()
"""Stands for the result of who raised: not for None, which is one who forgot `return`."""


def check_value(
    answer: object, truth: Any, *, what: str, tolerance: float = 0.0, wrong: Mapping[Any, str] | None = None
) -> Verdict:
    """Compare one value with the truth; `wrong` maps well-known wrong values to the mistake behind them."""
    if is_missing(answer):
        return not_attempted(what)
    try:
        if bool(answer == truth) or near(answer, truth, tolerance):
            return Verdict("right", f"{what}: {short(truth)}.")
        reason = next((why for value, why in (wrong or {}).items() if bool(answer == value)), "")
    except Exception as error:
        return Verdict(
            "wrong", f"{what}: {short(answer)} cannot be compared ({type(error).__name__}: {error})."
        )
    return Verdict("wrong", f"{what} is not {short(answer)}." + (f" {reason}" if reason else ""))


def check_function(
    answer: Callable[..., Any],
    reference: Callable[..., Any],
    cases: Iterable[Mapping[str, Any]],
    *,
    what: str,
    mistakes: Mapping[str, Callable[..., Any]] | None = None,
    fault: Callable[[Any, Any, Mapping[str, Any]], str] | None = None,
    praise: str = PRAISE,
    keeps: bool = False,
    throughout: bool = False,
) -> Verdict:
    """Compare `answer(**case)` with `reference(**case)`, case by case, up to the first difference.

    Each call gets arguments of its own: who empties a list has emptied nobody else's. Results may be values, lists or
    iterators (at most one item more than the reference's is taken, so an endless generator ends). `mistakes` maps a
    sentence to the function that makes this mistake: if it gives the same as the answer wherever it was compared, up
    to the counterexample and in it, the sentence is added to the verdict.
    `fault`, `praise`, `keeps` and `throughout` are those of an Exercise.
    """
    if untouched(answer):
        return not_attempted(what)
    suspects = dict(mistakes or {})
    count = 0
    waiting = iter(cases)
    for case in waiting:
        expected = _listed(reference(**deepcopy(dict(case))))
        where = ", ".join(f"{name} = {short(value)}" for name, value in case.items())
        given = deepcopy(dict(case))
        got, error = _called(answer, given, expected)
        changed = _changed(given, case) if keeps else ""
        if error is not None:
            also = f" Before, it has {changed}." if changed else ""
            return Verdict("wrong", f"{what}: for {where} {told_of(error)}{also}")
        if changed:
            return Verdict("wrong", f"{what}: for {where}, your function has {changed}; {WHOSE}.")
        suspects = _still_alike(suspects, case, expected, got)
        if got is None or fault is None:
            difference = "" if _same(got, expected) else _difference(got, expected)
        else:
            difference = fault(got, expected, case)
        if difference:
            for further in waiting if throughout else ():
                if not suspects:  # nothing can be said any more, and the answer may not end there
                    break
                expected = _listed(reference(**deepcopy(dict(further))))
                got = _called(answer, deepcopy(dict(further)), expected)[0]
                suspects = _still_alike(suspects, further, expected, got)
            reason = next(iter(suspects), "")
            return Verdict("wrong", f"{what}: for {where}, {difference}." + (f" {reason}" if reason else ""))
        count += 1
    if not count:
        raise ValueError("check_function needs at least one case")
    return Verdict("right", f"{what}: {praise.format(count=count)}.")


def _still_alike(
    suspects: Mapping[str, Callable[..., Any]], case: Mapping[str, Any], expected: Any, got: Any
) -> dict[str, Callable[..., Any]]:
    """Return the famous mistakes that give in this case what the answer gives."""
    return {
        why: wrong
        for why, wrong in suspects.items()
        if _same(_called(wrong, deepcopy(dict(case)), expected)[0], got)
    }


def _called(
    function: Callable[..., Any], case: Mapping[str, Any], expected: Any
) -> tuple[Any, Exception | None]:
    limit = len(expected) + 1 if isinstance(expected, list) else None
    try:
        return _listed(function(**case), limit), None
    except Exception as error:
        return _RAISED, error


def _changed(given: Mapping[str, Any], case: Mapping[str, Any]) -> str:
    """Say which argument a call has changed, and to what; "" if none."""
    for name, value in case.items():
        if not _same(_listed(given[name]), _listed(value)):
            return f"changed its argument {name}, which is {short(given[name])} afterwards"
    return ""


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
        return near(got, expected, 1e-9)
    try:
        return bool(got == expected)
    except Exception:
        return False


def _difference(got: Any, expected: Any) -> str:
    if got is None:
        return f"your function {NO_RETURN}"
    if not isinstance(expected, list) or not isinstance(got, list):
        return f"expected {short(expected)}, got {short(got)}"
    if len(got) != len(expected) and got[: len(expected)] == expected[: len(got)]:
        items = f"{len(expected)} item{'s' * (len(expected) != 1)}"
        many = "more" if len(got) > len(expected) else f"{len(got)}"
        return f"expected {items}, {short(expected)}, got {many}: {short(got)}"
    place = next((i for i, (a, b) in enumerate(zip(got, expected, strict=False)) if not _same(a, b)), 0)
    if not got or not expected:
        return f"expected {short(expected)}, got {short(got)}"
    return (
        f"position {place}: expected {short(expected[place])}, got {short(got[place])} ({short(got)} in all)"
    )
