"""An explorer without a kernel: a frame for each setting of its grid, cut into elements, each element kept once.

Atlas     the frames of one explorer
payload   what the page unpacks: elements, frames as lists of their numbers, settings, words
told_alike  the words of a payload that several pictures share
fragment  the HTML of one explorer: its controls, its first frame as a still picture, its payload
"""

from __future__ import annotations

import base64
import functools
import gc
import html
import io
import json
import math
import multiprocessing
import os
import re
import tempfile
import uuid
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.layout_engine import LayoutEngine
from matplotlib.text import Text

from lib.show.explore import Explorer, Slider, Switch
from lib.show.style import STYLE, alt_text, png, shown_size
from tools.site.asked import WORDS
from tools.site.fingerprint import fingerprint
from tools.site.named import Named
from tools.site.near import Near, settings_of
from tools.site.once import measured_once, unmoved
from tools.site.stops import LIMIT, Stops, chosen_stops

REST = "all of them in the notebook"
#: Where a page says which slider went back to its start.
BACK = '<p class="atlas-back" role="status"></p>'
PROCESSES = 2
#: Frames of a process: if all their words differ, no figure after them is looked for among those before.
TRIED = 24

#: Text as paths needs no font on the reader's machine; without the salt and with dates, no two files would be equal.
SVG: Any = {**STYLE, "svg.fonttype": "path", "svg.hashsalt": "atlas"}
NOTHING = dict.fromkeys(("Date", "Creator", "Format", "Type"))
#: Dots per inch of an SVG, whatever the figure says: it has points.
SVG_DOTS = 72
#: Where an SVG has lengths, and what is too fine for an eye: beyond a hundredth of a point.
PLACES = re.compile(r'\bd="[^"]*"|\btranslate\([^)]*\)|\b[xy]="[^"]*"')
FINE = re.compile(r"(?<=\.\d\d)\d+")
#: Names that matplotlib makes of what a marker or a clip looks like, and how much of one tells it from others.
HASHED = re.compile(r'(?<=["#(])[mpch][0-9a-f]{10}\b')
SHORT = 6
#: The id of the title over all of a figure.
FINDING = "finding"


@dataclass(frozen=True)
class Frame:
    """One picture: the numbers of its elements, its words, and its width on a page in CSS pixels."""

    elements: tuple[int, ...]
    words: str
    width: int


@dataclass
class Atlas:
    """Frames by their settings (as text), and the different elements that they consist of."""

    elements: dict[str, int] = field(default_factory=dict)
    frames: dict[str, Frame] = field(default_factory=dict)

    def add(self, settings: str, elements: Iterable[str], words: str, width: int) -> None:
        """Put a frame in."""
        numbers = tuple(self.elements.setdefault(element, len(self.elements)) for element in elements)
        self.frames[settings] = Frame(numbers, words, width)


def svg(figure: Figure) -> str:
    """Return a figure as SVG: the same text for the same picture. Its finding can be read in it: see `finding`."""
    headline = finding(figure)
    if headline is not None:
        headline.set_gid(FINDING)
    buffer = io.StringIO()
    canvas = figure.canvas
    engine = figure.get_layout_engine()
    FigureCanvasSVG(figure)
    with matplotlib.rc_context(SVG):
        if engine is not None:  # with an engine print_figure would draw everything twice, to the same end
            _lay_out(figure, engine)
            figure.set_layout_engine(None)
        figure.canvas.print_figure(buffer, format="svg", metadata=NOTHING)
    figure.set_layout_engine(engine)
    figure.set_canvas(canvas)
    text = buffer.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", text[text.index("<svg") :], flags=re.DOTALL)
    if headline is not None:  # letters are paths: a phone sets the words anew, as wide as it is
        said = html.escape(" ".join(headline.get_text().split()))
        text = text.replace(f'<g id="{FINDING}"', f'<g id="{FINDING}" data-said="{said}"', 1)
    text = _shorter_names(PLACES.sub(lambda place: _without_fine(place[0]), text))
    return re.sub(r"\s*\n\s*", "\n", text)


@functools.lru_cache(50_000)  # most places of a frame are those of another
def _without_fine(place: str) -> str:
    return FINE.sub("", place)


def _shorter_names(text: str) -> str:
    """Return an SVG whose markers have a part of their hash as a name: nothing packs a hash, and there are many."""
    hashes = {*HASHED.findall(text)}
    if len({short[:SHORT] for short in hashes}) < len(hashes):
        return text  # two would be one: all keep their whole names
    return HASHED.sub(lambda found: found[0][:SHORT], text)


def finding(figure: Figure) -> Text | None:
    """Return the title that stands over all of a figure: its own, or that of its only panel that has one."""
    over = figure.get_suptitle()
    parts: list[Figure | Axes] = [figure] if over else list(figure.axes)
    titles = [
        text
        for part in parts
        for text in part.get_children()
        if isinstance(text, Text) and text.get_text() and text.get_text() in ((over,) if over else _titles(part))
    ]
    return titles[0] if len(titles) == 1 else None


def _titles(axes: Any) -> tuple[str, ...]:
    return tuple(axes.get_title(loc) for loc in ("left", "center", "right"))


def _lay_out(figure: Figure, engine: LayoutEngine) -> None:
    """Put everything in its place, as it is for SVG."""
    dpi = figure.dpi
    figure.dpi = SVG_DOTS
    engine.execute(figure)
    figure.dpi = dpi


def cut(text: str) -> list[str]:
    """Return the elements of an SVG, in order: joined, they are the picture."""
    return [part.replace("\n", " ") for part in re.split(r"(?<=>)\n", text) if part]


def stops_of(
    explorer: Explorer,
    limit: int = LIMIT,
    sample: int | None = None,
    keep: Named | None = None,
    ordered: Collection[str] = (),
) -> Stops:
    """Return the stops that a page offers. The start is always among them.

    limit: an explorer with more settings keeps some of its stops. keep: stops that stay, as the text names them.
    ordered: sliders that the text tells to move. sample: of at most so many settings, for a test: some controls
    stand still.
    """
    with measured_once():
        stops = chosen_stops(explorer, limit, keep, ordered)
    if sample is None:
        return stops
    for name, control in explorer.controls.items():
        others = [option for option in stops[name] if option != control.value]
        kept = [control.value, *others[: max(0, sample - 1)]]
        stops[name] = tuple(option for option in stops[name] if option in kept)
        sample //= len(kept)
    return stops


_drawing: list[Explorer] = []  # what the processes draw: it reaches them by fork, which pickles nothing
_told: list[str] = []  # the words of the frames that this process has drawn of it


def drawn(values: Mapping[str, Any], folder: Path) -> tuple[str, str, int]:
    """Draw a frame of the explorer in hand: the name of the file in `folder` that has its SVG, its words, its width.

    A figure that was drawn before, here or in the other process, is neither laid out nor written again.
    """
    figure = _drawing[-1].draw(**values)
    words = alt_text(figure)
    _told.append(words)
    name = (_may_be_known() and fingerprint(figure)) or uuid.uuid4().hex
    if not (folder / name).exists():
        with unmoved():
            text = svg(figure)
        beside = folder / f"{name}.{os.getpid()}"
        beside.write_text(text, encoding="utf-8")
        beside.replace(folder / name)
    return name, words, shown_size(figure)[0]


def _may_be_known() -> bool:
    """Tell whether it is worth a look if a figure was drawn before: the same figures have the same words."""
    return len(_told) <= TRIED or len(set(_told)) < len(_told)


def start_of(explorer: Explorer) -> tuple[str, str, int]:
    """Return the SVG of an explorer's start, its words, its width, drawn as its frames are."""
    with measured_once(), unmoved():
        figure = explorer.draw(**{name: control.value for name, control in explorer.controls.items()})
        return svg(figure), alt_text(figure), shown_size(figure)[0]


def frames_of(explorer: Explorer, stops: Stops, processes: int = PROCESSES, near: Near | None = None) -> Atlas:
    """Return an atlas with a frame for each setting that a page has. Raises what `draw` raises."""
    atlas = Atlas()
    settings = settings_of(stops, near)
    pictures: dict[str, list[str]] = {}
    _drawing.append(explorer)
    _told.clear()
    try:
        with tempfile.TemporaryDirectory() as folder, measured_once(), _seldom_collected():
            frames = _all_drawn(settings, Path(folder), processes)
            for values, (name, words, width) in zip(settings, frames, strict=True):
                if name not in pictures:
                    pictures[name] = cut(Path(folder, name).read_text(encoding="utf-8"))
                atlas.add(repr(values), pictures[name], words, width)
    finally:
        _drawing.pop()
    return atlas


def _all_drawn(settings: Sequence[Mapping[str, Any]], folder: Path, processes: int) -> Iterable[tuple[str, str, int]]:
    draw = functools.partial(drawn, folder=folder)
    if processes < 2 or len(settings) < 8 or "fork" not in multiprocessing.get_all_start_methods():
        yield from map(draw, settings)
        return
    done = 0
    try:
        with ProcessPoolExecutor(processes, multiprocessing.get_context("fork"), _begin) as pool:
            for frame in pool.map(draw, settings, chunksize=4):
                done += 1
                yield frame
    except RuntimeError as error:
        if "fork-based multiprocessing" not in str(error):
            raise
        # The figure runs backward, and so did this process: torch lets no fork do that.
        yield from map(draw, settings[done:])


def _begin() -> None:
    import torch

    torch.set_num_threads(1)  # the threads that torch had before the fork are not there any more


@contextmanager
def _seldom_collected() -> Iterator[None]:
    """Look seldom for circles of objects, which figures are: looked for often, they take a tenth of the time."""
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(200_000, 10, 10)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


def payload(explorer: Explorer, stops: Stops, atlas: Atlas) -> dict[str, Any]:
    """Return what the page unpacks. t: elements, f: frames [runs of elements, words, width], s: the frame of a setting.

    A run is the number of its first element and how many follow one another: the same picture is one frame. A setting
    that the page does not have is -1.
    """
    texts = list(atlas.elements)
    elements: dict[int, int] = {}
    frames: dict[Frame, int] = {}
    drawn = [atlas.frames.get(repr(values)) for values in settings_of(stops)]
    places = [-1 if frame is None else frames.setdefault(frame, len(frames)) for frame in drawn]
    packed = []
    for frame in frames:
        numbers = [elements.setdefault(number, len(elements)) for number in frame.elements]
        packed.append([_runs(numbers), frame.words, frame.width])
    return {"t": [texts[number] for number in elements], "f": packed, "s": places}


def _runs(numbers: Sequence[int]) -> list[int]:
    runs: list[int] = []
    for number in numbers:
        if runs and number == runs[-2] + runs[-1]:
            runs[-1] += 1
        else:
            runs += [number, 1]
    return runs


def told_alike(payload: Mapping[str, Any]) -> list[str]:
    """Return the words that two pictures or more share: who only hears them can't tell these pictures apart."""
    pictures: dict[str, set[tuple[int, ...]]] = defaultdict(set)
    for runs, words, _ in payload["f"]:
        pictures[words].add(tuple(runs))
    return [words for words, different in pictures.items() if len(different) > 1]


def packed(content: object) -> str:
    """Return JSON, deflated and in base64: what the script of a page unpacks."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    squeeze = zlib.compressobj(9, zlib.DEFLATED, 31)  # 31: with the header of gzip
    return base64.b64encode(squeeze.compress(text.encode()) + squeeze.flush()).decode()


def unpacked(text: str) -> Any:
    """Return what was packed."""
    return json.loads(zlib.decompress(base64.b64decode(text), 31))


def shown_settings(stops: Stops, atlas: Atlas) -> int:
    """Return how many of the combinations of stops the page has."""
    return sum(repr(values) in atlas.frames for values in settings_of(stops))


def fragment(explorer: Explorer, stops: Stops, atlas: Atlas, name: str, near: Near | None = None) -> str:
    """Return the HTML of one explorer. name: its own on the page, for the ids of its controls.

    near: the sliders that leave their starts a few at a time only.

    Without a script it is the still first frame, and its controls are hidden.
    """
    start = explorer.draw(**{each: control.value for each, control in explorer.controls.items()})
    words = html.escape(alt_text(start))
    width, height = shown_size(start)
    total = math.prod(len(control.options) for control in explorer.controls.values())
    here = shown_settings(stops, atlas)
    if here == math.prod(map(len, stops.values())):
        near = None
    said = f"All {total:,} settings." if here == total else f"Here {here:,} of {total:,} settings; {REST}."
    bound = near.start if near else {}
    controls = "".join(
        _control(f"{name}-{each}", control, stops[each], each in bound) for each, control in explorer.controls.items()
    )
    if near:
        said += _few_at_once(near, [explorer.controls[each].label for each in bound if len(stops[each]) > 1])
    return (
        f'<figure class="atlas" id="{name}" data-settings="{here}">'
        f'<div class="atlas-controls" role="group" aria-label="Controls of the figure" hidden>{controls}</div>'
        f'<img class="atlas-picture" alt="{words}" width="{width}" height="{height}" '
        f'src="data:image/png;base64,{base64.b64encode(png(start)).decode()}">'
        f'<p class="atlas-words" aria-live="polite"></p>'
        f'<figcaption class="atlas-count">{said}</figcaption>'
        f"{BACK if near else ''}"
        f'<script type="application/x-atlas">{packed(payload(explorer, stops, atlas))}</script></figure>'
    )


def _few_at_once(near: Near, labels: Sequence[str]) -> str:
    """Return what a page says of the sliders of which it has few together."""
    listed = f"{', '.join(labels[:-1])} and {labels[-1]}"
    return (
        f" Of {html.escape(listed)}, {WORDS[near.away - 2]} leave their start together: move one more, and one returns."
    )


def _control(name: str, control: Any, stops: Sequence[Any], bound: bool = False) -> str:
    label = html.escape(control.label)
    place = list(stops).index(control.value)
    still = " disabled" if len(stops) < 2 else ""
    if isinstance(control, Switch):
        checked = " checked" if control.value else ""
        return f'<label class="atlas-switch"><input type="checkbox" id="{name}"{checked}{still}> {label}</label>'
    said = [html.escape(str(stop)) for stop in stops]
    if isinstance(control, Slider):
        told = html.escape(json.dumps([str(stop) for stop in stops], ensure_ascii=False))
        ends = f'min="0" max="{len(stops) - 1}" step="1" value="{place}"{" data-near" * bound}'
        return (
            f'<label class="atlas-slider"><span>{label}</span> <input type="range" id="{name}" data-stops="{told}" '
            f'{ends} aria-label="{label}" aria-valuetext="{said[place]}"{still}> '
            f'<output for="{name}" aria-hidden="true">{said[place]}</output></label>'
        )
    options = "".join(f"<option{' selected' * (k == place)}>{text}</option>" for k, text in enumerate(said))
    return f'<label class="atlas-choice"><span>{label}</span> <select id="{name}"{still}>{options}</select></label>'
