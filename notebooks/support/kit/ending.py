"""Call a reader's function that loops: no check hangs in an endless loop."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def ending(function: Callable[..., Any], *arguments: Any, lines: int) -> Any:
    """Call a function; raises TimeoutError after so many lines of Python."""
    left = iter(range(lines))
    before = sys.gettrace()

    def count(_: Any, event: str, __: Any) -> Any:
        # At a line only: what is raised while a generator is closed is lost, and nothing counts any more.
        if event == "line" and next(left, None) is None:
            raise TimeoutError(f"it has run {lines:,} lines and has not ended")
        return count

    sys.settrace(count)
    try:
        return function(*arguments)
    finally:
        sys.settrace(before)
