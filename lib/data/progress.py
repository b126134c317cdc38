"""A progress bar for what may take long, and nothing at all for what does not."""

from __future__ import annotations

import os
import time
from types import TracebackType
from typing import Any

PATIENCE = 1.0  # seconds without a bar


class Progress:
    """Count work done; after a second of it, show a tqdm bar on stderr.

        with Progress("index", size, "B") as progress:
            progress(len(block))

    Silent without tqdm, with TQDM_DISABLE set, or with show=False.
    """

    def __init__(self, label: str, total: int, unit: str, *, show: bool = True) -> None:
        self.label, self.total, self.unit = label, total, unit
        self.show = show and os.environ.get("TQDM_DISABLE", "0") in ("", "0")
        self.done, self._bar = 0, None
        self._start = time.monotonic()

    def __call__(self, amount: int) -> None:
        """Note that `amount` more is done."""
        self.done += amount
        if self._bar is None and self.show and time.monotonic() - self._start > PATIENCE:
            self._bar = self._make_bar()
            amount = self.done
        if self._bar is not None:
            self._bar.update(amount)

    def _make_bar(self) -> Any:
        try:
            from tqdm import tqdm
        except ImportError:
            self.show = False
            return None

        class Bar(tqdm):  # type: ignore[misc, unused-ignore]
            monitor_interval = 0  # no thread of its own, which would still be there when workers are forked

        return Bar(
            total=self.total, desc=self.label, unit=self.unit, unit_scale=True, leave=False, disable=False
        )

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
