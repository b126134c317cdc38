"""Which stops of its sliders an explorer keeps on a page, where all of them would be too many frames.

A stop is worth its frames if the figure changes there. So a slider is tried out in few drawings, and its stops lie
where as much changes between two of them as between any others. Figures are compared by what they are made of: they
need not be rendered for that, and a title that counts on changes less than a bar that appears.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.collections import Collection as Drawn
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Text

from lib.show.explore import Control, Explorer, Slider
from lib.show.style import alt_text

Stops = dict[str, tuple[Any, ...]]
#: Settings of an explorer that are drawn whole; with more, its sliders are thinned.
LIMIT = 100
#: Stops of a slider: at least so many, where it has them, and where the text speaks of it.
FEWEST = 3
FEWEST_NAMED = 6
#: Drawings of an explorer from which its stops are chosen.
DRAWINGS = 40
#: An explorer whose text speaks of many sliders may have so many times as many settings as others.
MORE = 4


def chosen_stops(
    explorer: Explorer,
    limit: int,
    named: Mapping[str, Collection[Any]] | None = None,
    ordered: Collection[str] = (),
    drawings: int = DRAWINGS,
) -> Stops:
    """Return the stops of each control: all, where they make at most `limit` settings, else those that show a change.

    named: options that stay, by control; they may lead beyond the limit. ordered: sliders that the text tells its
    reader to move. The start and, where anything changes up to there, the ends are among the stops.
    """
    kept = named or {}
    counts = stop_counts(explorer.controls, limit, kept, ordered)
    thinned = [name for name, control in explorer.controls.items() if counts[name] < len(control.options)]
    stops = {name: control.options for name, control in explorer.controls.items()}
    for name in thinned:
        control = explorer.controls[name]
        always = {control.value, *kept.get(name, ())}
        tried = control.stops(max(FEWEST_NAMED, drawings // len(thinned)), always)
        changes = changes_along(explorer, name, tried)
        stops[name] = _spread(tried, changes, counts[name], always)
    return stops


def stop_counts(
    controls: Mapping[str, Control], limit: int, named: Mapping[str, Collection[Any]], ordered: Collection[str]
) -> dict[str, int]:
    """Return how many stops each control gets: the longest sliders give up theirs, those of the text last."""
    counts = {name: len(control.options) for name, control in controls.items()}
    sliders = [name for name, control in controls.items() if isinstance(control, Slider)]
    spoken_of = [name for name in sliders if name in ordered or name in named]
    floors = {name: FEWEST_NAMED if name in spoken_of else FEWEST for name in sliders}
    _lower(counts, floors, limit)
    # Only a value in passing, "rank 1", and no order: these give way before a page gets too heavy.
    _lower(counts, {name: FEWEST_NAMED if name in ordered else FEWEST for name in sliders}, MORE * limit)
    return counts


def _lower(counts: dict[str, int], floors: Mapping[str, int], limit: int) -> None:
    while math.prod(counts.values()) > limit:
        longer = [name for name, floor in floors.items() if counts[name] > floor]
        if not longer:
            return
        counts[max(longer, key=counts.__getitem__)] -= 1


def changes_along(explorer: Explorer, name: str, tried: Sequence[Any]) -> list[float]:
    """Return how much changes between each two neighbours of `tried`, as a share of the figure, from 0 to 1.

    The other controls stand at their start.
    """
    seen = [traits(explorer.draw(**{**_start(explorer), name: option})) for option in tried]
    return [distance(before, after) for before, after in itertools.pairwise(seen)]


def _start(explorer: Explorer) -> dict[str, Any]:
    return {name: control.value for name, control in explorer.controls.items()}


def distance(one: Counter[str], other: Counter[str]) -> float:
    """Return the share of traits that two figures do not share."""
    together = (one | other).total()
    return 1 - (one & other).total() / together if together else 0.0


def traits(figure: Figure) -> Counter[str]:
    """Return what a figure consists of: its words, and each text, line, area and picture in it."""
    found = Counter(alt_text(figure).split())
    found.update(filter(None, map(_trait, figure.findobj())))
    return found


def _trait(artist: Artist) -> str:
    if not artist.get_visible():
        return ""
    if isinstance(artist, Text):
        return f"{artist.get_text()} {artist.get_position()} {artist.get_color()}" if artist.get_text() else ""
    if isinstance(artist, Line2D):
        return f"{_listed(artist.get_xydata())} {artist.get_color()} {artist.get_linestyle()}"
    if isinstance(artist, Patch):
        shape = _listed(artist.get_patch_transform().transform(artist.get_path().vertices))
        return f"{shape} {artist.get_facecolor()} {artist.get_hatch()}"
    if isinstance(artist, Drawn):
        paths = [_listed(path.vertices) for path in artist.get_paths()]
        return f"{paths} {_listed(artist.get_offsets())} {_listed(artist.get_facecolor())}"
    if isinstance(artist, AxesImage):
        return _listed(artist.get_array())
    return ""


def _listed(numbers: Any) -> str:
    """Return an array as text, whole: numpy's own would leave out the middle of a long one."""
    return str(np.asarray(numbers).round(6).tolist())


def _spread(tried: Sequence[Any], changes: Sequence[float], count: int, always: Collection[Any]) -> tuple[Any, ...]:
    """Return `count` of the stops tried, more where `always` has more: the widest gap is halved, in changes."""
    sums = [0.0, *itertools.accumulate(changes)]
    places = {place for place, option in enumerate(tried) if option in always} | {0, len(tried) - 1}
    while len(places) < count:
        gaps = [
            gap for gap in itertools.pairwise(sorted(places)) if sums[gap[1]] > sums[gap[0]] and gap[1] - gap[0] > 1
        ]
        if not gaps:
            break
        low, high = max(gaps, key=lambda gap: sums[gap[1]] - sums[gap[0]])
        middle = (sums[low] + sums[high]) / 2
        places.add(min(range(low + 1, high), key=lambda place: abs(sums[place] - middle)))
    return tuple(tried[place] for place in sorted(places))


def without_dead_stops(
    explorer: Explorer, stops: Stops, frames: Mapping[str, object], named: Mapping[str, Collection[Any]]
) -> Stops:
    """Return the stops without those at which nothing changes beside a neighbour, whatever the others stand at.

    frames: the frame of each combination that is drawn, by repr. The start and what the text names stay.
    """
    alive = dict(stops)
    for name, control in explorer.controls.items():
        if not isinstance(control, Slider):
            continue
        always = {control.value, *named.get(name, ())}
        others = [other for other in alive if other != name]
        rest = list(itertools.product(*(alive[other] for other in others)))
        columns = {}
        for stop in alive[name]:
            settings = [{**dict(zip(others, values, strict=True)), name: stop} for values in rest]
            columns[stop] = [frames.get(repr({each: values[each] for each in stops})) for values in settings]
        kept: list[Any] = []
        for stop in alive[name]:
            if kept and _alike(columns[kept[-1]], columns[stop]):
                if stop not in always:
                    continue
                if kept[-1] not in always:
                    kept.pop()
            kept.append(stop)
        alive[name] = tuple(kept)
    return alive


def _alike(one: Sequence[object], other: Sequence[object]) -> bool:
    """Say whether frames are the same wherever both are drawn."""
    return all(mine == its for mine, its in zip(one, other, strict=True) if mine is not None and its is not None)
