"""What the tests of several figures ask."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping

from matplotlib.figure import Figure

from lib.show.explore import Control, explore


def small_picture(figure: Figure) -> bytes:
    """Return a small PNG, for comparing."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=40)
    return buffer.getvalue()


def assert_each_control_changes_the_picture(draw: Callable[..., Figure], controls: Mapping[str, Control]) -> None:
    """From the start values, moving any one control by one step must be seen."""
    explorer = explore(draw, **controls)
    first = small_picture(explorer.figure)
    for key, control in controls.items():
        place = control.options.index(control.value)
        neighbour = control.options[place + 1 if place + 1 < len(control.options) else place - 1]
        assert small_picture(draw(**{**explorer.values, key: neighbour})) != first, key
