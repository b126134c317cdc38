"""Settings of an interactive figure to try, and what it tells there."""

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from matplotlib.figure import Figure

from lib.show.explore import Control, Explorer, explore
from lib.show.style import alt_text


def corners(explorer: Explorer, count: int) -> list[dict[str, Any]]:
    """Return `count` of an explorer's corners, the same every time: lowest ends, highest ends, and others by lot."""
    ends = [{name: control.corners[end] for name, control in explorer.controls.items()} for end in (0, -1)]
    others = [values for values in explorer.corners() if values not in ends]
    return (ends + random.Random(0).sample(others, len(others)))[:count]


def told(
    draw: Callable[..., Figure], controls: Mapping[str, Control], count: int = 16
) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield (settings, alt text) of so many corners of an explorer."""
    for values in corners(explore(draw, **controls), count):
        yield values, alt_text(draw(**values))
