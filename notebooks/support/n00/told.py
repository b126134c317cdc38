"""Two numbers side by side, with so many digits that one sees where they differ."""

from __future__ import annotations

from typing import Any


def told_by_digits(one: Any, other: Any, form: str = "g") -> tuple[str, str]:
    """Write two numbers with six digits, or with as many more as it takes to tell unequal ones apart.

    form: "g" counts significant digits, "f" those behind the point. What is no number is written as it is.
    """
    for digits in range(6, 17):
        try:
            texts = f"{one:.{digits}{form}}", f"{other:.{digits}{form}}"
        except (TypeError, ValueError):
            break
        if texts[0] != texts[1] or one == other:
            return texts
    return repr(one), repr(other)
