"""A guess that is right or not: near the truth lie the famous wrong answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from fractions import Fraction
from typing import Any

from support.kit.guess import Guess


def read_number(my_guess: object, unit: str = "") -> object:
    """Read a number as it was meant: 0.75, "0.75", "3/4", "75 %", "6 3/4", and "8 ticks" where the unit is ticks.

    Where the unit is per cent, "43 %" is 43, and a share, 0.43, too. What is no number stays as it is.
    """
    if isinstance(my_guess, bool):
        return my_guess
    value: object = my_guess
    if isinstance(my_guess, str):
        text = my_guess.strip().removesuffix(unit).rstrip()
        share = text.endswith("%")
        parts = re.sub(r"^(\d+) +(?=\d+ */)", r"\1 + ", text.removesuffix("%")).split(" + ")  # 6 3/4: 6 + 3/4
        with suppress(ValueError, ZeroDivisionError):
            value = float(sum(Fraction(part.replace(" ", "")) for part in parts))
            if share:
                value /= 100
    elif isinstance(my_guess, Fraction):
        value = float(my_guess)
    if unit == "%" and isinstance(value, float) and 0 < value < 1:
        return 100 * value
    return value


def exact_number(
    what: str,
    truth: Callable[..., float],
    unit: str = "",
    said: Mapping[float, str] | None = None,
    *,
    digits: int = 6,
    whole: bool = False,
    **more: Any,
) -> Guess:
    """Make a guess that is right or not. said: what to say of which famous wrong number.

    digits: significant ones that count; whole: whole numbers count, so that 15.8 is 16, and 100 is not written 1e+02.
    more: other fields of a Guess.
    """
    form = ".0f" if whole else f".{digits}g"

    def text(value: float) -> str:
        return f"{value:{form}}"

    def read(my_guess: object) -> object:
        value = read_number(my_guess, unit)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return value
        return text(value)

    return Guess(
        what,
        lambda *known, **named: text(truth(*known, **named)),
        unit,
        read=read,
        said={text(wrong): why for wrong, why in (said or {}).items()},
        **more,
    )
