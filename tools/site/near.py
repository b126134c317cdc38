"""Which combinations of its stops an explorer has on a page, where all of them would be too many frames.

With six sliders of three stops each there are 729 combinations, and a reader who follows the text sees few of them. So
sliders that no text tells to move leave their starts a few at a time: two or three of them stand elsewhere at once.
Who moves one more sees the one that was moved first go back, and the page says so: see static/atlas.js.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from lib.show.explore import Explorer, Slider
from tools.site.stops import Stops

#: Combinations of an explorer up to which all sliders go everywhere.
WHOLE = 200
#: So many sliders always leave their starts together: what two of them do to one another is what a reader looks for.
FEWEST_AWAY = 2


@dataclass(frozen=True)
class Near:
    """Where some sliders start, and how many of them may stand elsewhere at once."""

    start: Mapping[str, Any]
    away: int

    def has(self, values: Mapping[str, Any]) -> bool:
        """Tell whether a page has these settings."""
        moved = [name for name, here in self.start.items() if values[name] != here]
        return len(moved) <= self.away


def settings_of(stops: Stops, near: Near | None = None) -> list[dict[str, Any]]:
    """Return the combinations of stops that a page has, by default all; the last control changes fastest."""
    every = (dict(zip(stops, values, strict=True)) for values in itertools.product(*stops.values()))
    return [values for values in every if near is None or near.has(values)]


def near_start(explorer: Explorer, stops: Stops, ordered: Collection[str], whole: int = WHOLE) -> Near | None:
    """Return how far the sliders may go that no text tells to move; None where all may go everywhere.

    ordered: those that a text tells to move.
    As many may be away from their starts as make at most `whole` combinations, and two at least.
    """
    start = {
        name: control.value
        for name, control in explorer.controls.items()
        if isinstance(control, Slider) and name not in ordered and len(stops[name]) > 1
    }
    others = math.prod(len(stops[name]) for name in stops if name not in start)
    moves = [len(stops[name]) - 1 for name in start]
    away = len(moves)
    while away > FEWEST_AWAY and others * _ways(moves, away) > whole:
        away -= 1
    return Near(start, away) if away < len(moves) else None


def _ways(moves: list[int], away: int) -> int:
    """Return in how many ways at most `away` sliders stand at one of the stops to which each can move."""
    return sum(math.prod(some) for count in range(away + 1) for some in itertools.combinations(moves, count))
