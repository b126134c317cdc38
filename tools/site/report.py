"""What was tried on a built site, and what was wrong."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Report:
    """What was tried, and what was wrong."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    slowest: float = 0.0

    def said(self) -> str:
        """Return the counts as one line, and the faults below."""
        counts = ", ".join(f"{number} {name}" for name, number in self.counts.items())
        ready = f"; the slowest page is ready after {1000 * self.slowest:.0f} ms" if self.slowest else ""
        return "\n".join([f"{counts}{ready}; {len(self.faults)} faults", *self.faults])
