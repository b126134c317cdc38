"""What the cases of notebook 16 have in common: a job is run as it was repaired, and a forecast is compared.

A case is one file of this room, case_*.py, with

    job_N        the script as it should be, 30 to 60 lines, run on real ranks by support/n16/warm.py
    sick_N()     the same as the notebook has it; of a healthy case it is the job itself
    fault_of_N   what is wrong with a job, on other data, ranks and seeds than the notebook shows
    FORECAST_N   an observation at another size, which only the right cause gives

and a line in checks.py. `case` makes an exercise of these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any

from torch import Tensor

from support.kit.exercise import Exercise
from support.kit.judged import Fault, judged
from support.kit.values import near
from support.n16.rank import GONE, Stand
from support.n16.warm import stands_told

Forecast = Any
"""A number, or a tuple of numbers."""

TOLERANCE = 0.003

#: How far a right result may be off: torch makes a float32 of a share of whole numbers.
ROUNDED = 1e-6


def case(
    number: int,
    job: Callable[..., Any],
    forecast: Forecast,
    fault_of: Callable[[Callable[..., Any]], str],
    praise: str,
    mistakes: Mapping[str, Any],
    forecasts: Mapping[str, Forecast],
) -> Exercise:
    """Make the exercise of a case: its answers are a job and a forecast.

    The job is run only if the forecast is right. Else any number in its place would tell whether the job is sick, and
    of what, which is what a case asks.

    mistakes: wrong repairs by their sentences. forecasts: wrong forecasts by theirs.
    """
    name = f"forecast_{number}"

    def fault(answer: tuple[Any, Any]) -> str:
        return fault_of_forecast(name, answer[1], forecast) or fault_of(answer[0])

    wrong = {sentence: (job, value) for sentence, value in forecasts.items()}
    wrong |= {sentence: (mistake, forecast) for sentence, mistake in mistakes.items()}
    what = f"job_{number} and {name}"
    return Exercise(what, reference=(job, forecast), answers=2, judge=judged(fault, praise), mistakes=wrong)


def fault_of_forecast(name: str, given: Forecast, due: Forecast) -> str:
    """Say what is wrong with a forecast. What is due is never said.

    Where a whole number is due, it is to be hit; any other number is right to 0.3 %.
    """
    parts = due if isinstance(due, tuple) else (due,)
    answers = tuple(given) if isinstance(given, (tuple, list)) else (given,)
    numbers = all(isinstance(each, Real) and not isinstance(each, bool) for each in answers)
    if len(answers) != len(parts) or not numbers:
        wanted = "a number" if len(parts) == 1 else f"{len(parts)} numbers in parentheses"
        return f"{name} should be {wanted}, not {given!r}."
    if all(_is_right(one, other) for one, other in zip(answers, parts, strict=True)):
        return ""
    return Fault(
        f"{name} = {given} is not what comes out there. The job is run as soon as that is right.",
        ("forecast", *answers),
    )


def _is_right(given: float, due: float) -> bool:
    """Compare two numbers: a count exactly."""
    return given == due if isinstance(due, int) else near(given, due, TOLERANCE)


def scalar_of(given: Any) -> Any:
    """Return a tensor of one number as that number, anything else as it is."""
    return given.item() if isinstance(given, Tensor) and given.numel() == 1 else given


def with_evidence(said: str, found: Any) -> str:
    """Return what is said, known by all that these trials have shown: two answers rarely part in a rounded number."""
    return Fault(said, (said, _plain(found))) if said else ""


def _plain(part: Any) -> Any:
    """Return it with numbers to nine places, as text, so that equal ones are equal in whatever way they came about."""
    if isinstance(part, Stand):
        return part.how, _plain(part.value)
    if isinstance(part, Tensor):
        return _plain(part.tolist())
    if isinstance(part, dict):
        return [(key, _plain(value)) for key, value in part.items()]
    if isinstance(part, (list, tuple)):
        return [_plain(each) for each in part]
    return f"{part + 0.0:.9f}" if isinstance(part, float) else repr(part)


def unfinished(where: str, stands: list[Stand]) -> str:
    """Return what is to be said if not all ranks have ended well, "" if they have."""
    if all(stand.how == "done" for stand in stands):
        return ""
    raised = [rank for rank, stand in enumerate(stands) if stand.how == "raised"]
    causes = [rank for rank in raised if stands[rank].value != GONE]
    if causes:
        return f"{where}, rank {causes[0]} {stands[causes[0]].told}."
    if raised:
        ended = next((rank for rank, stand in enumerate(stands) if stand.how == "done"), None)
        why = "" if ended is None else f"; rank {ended} has ended without it"
        return f"{where}, rank {raised[0]} {stands[raised[0]].told}{why}."
    return f"{where} it never ends: {stands_told(stands)}."
