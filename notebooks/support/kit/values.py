"""How a value is told in a sentence, and how near to the truth a number must be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

#: What is said of a None that should be something else: "your function " + NO_RETURN.
NO_RETURN = "returned None (is a `return` missing?)"


def as_it_is(value: Any) -> Any:
    """Return it: where nothing is to be read otherwise than it is written."""
    return value


def near(value: Any, truth: Any, tolerance: float) -> bool:
    """Say whether a number differs from the truth by no more than this share of it; what is no number is not near."""
    if isinstance(truth, bool) or not isinstance(truth, (int, float)) or isinstance(value, (str, bool)):
        return False
    try:
        return math.isclose(
            float(value), float(truth), rel_tol=tolerance, abs_tol=1e-12 if tolerance else 0.0
        )
    except (TypeError, ValueError):
        return False


def kind_of(value: Any) -> str:
    """Return what kind of thing an answer has given in place of another, as it stands behind "not "."""
    return f"None: it {NO_RETURN}" if value is None else type(value).__name__


def short(value: Any, limit: int = 90) -> str:
    """Return a value as it stands in a sentence: a float to four digits, what is long cut off."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Sequence) and not isinstance(value, str) and len(value) > 14:
        return f"[{', '.join(map(repr, value[:12]))}, … {len(value)} items]"
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
