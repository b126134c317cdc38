"""Settings of an interactive figure to try, and what it tells there."""

import itertools
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from matplotlib.figure import Figure

from lib.show.explore import Control, Explorer, explore
from lib.show.style import alt_text


def corners(explorer: Explorer, count: int) -> list[dict[str, Any]]:
    """Return `count` of an explorer's settings, the same every time: all lowest, all highest, others by lot."""
    grid = explorer.grid()
    lowest, *others, highest = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    return [lowest, highest, *random.Random(0).sample(others, len(others))][:count]


def told(
    draw: Callable[..., Figure], controls: Mapping[str, Control], count: int = 16
) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield (settings, alt text) of so many corners of an explorer."""
    for values in corners(explore(draw, **controls), count):
        yield values, alt_text(draw(**values))
