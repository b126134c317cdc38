"""A bar on stderr for what takes long: shown after a second, if there is tqdm and nobody has turned it off."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator

BAR_DELAY = 1.0  # seconds of work before a bar appears


@contextlib.contextmanager
def progress_bar(label: str, total: int, unit: str, *, show: bool = True) -> Iterator[Callable[[int], object]]:
    """Yield what notes that so much more is done; without tqdm it notes nothing.

    The environment variable TQDM_DISABLE turns the bar off: any value but 0 and the empty one.
    """
    try:
        from tqdm import tqdm
    except ImportError:
        yield lambda amount: None
        return

    class Bar(tqdm):  # type: ignore[misc, unused-ignore]
        monitor_interval = 0  # no thread of its own, which would still be there when workers are forked

    hide = not show or os.environ.get("TQDM_DISABLE", "0") not in ("", "0")
    with Bar(total=total, desc=label, unit=unit, unit_scale=True, delay=BAR_DELAY, leave=False, disable=hide) as bar:
        yield bar.update
