"""The one style of every figure in the course: size, type, colours, hatches, and a description in words.

Figures are made without pyplot (no global state, no window), so a `draw_*` function is pure: values in, a Figure out.
Colours are those of Okabe and Ito, which stay apart for colour-blind readers; hue is never the only sign.
"""

from __future__ import annotations

import functools
import io
import textwrap
from collections.abc import Callable
from typing import Any, ParamSpec

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from PIL import Image

Arguments = ParamSpec("Arguments")

INK = "#22272e"
MUTED = "#5b6470"
GRID = "#e3e6ea"
PAPER = "#ffffff"
BLUE = "#0072b2"
ORANGE = "#e69f00"
GREEN = "#009e73"
RED = "#d55e00"
PINK = "#cc79a7"
SKY = "#56b4e9"
YELLOW = "#f0e442"
GREY = "#9aa3ad"

PALETTE: dict[str, str] = {
    "compute": BLUE,
    "forward": BLUE,
    "backward": GREEN,
    "input": PINK,
    "weight": YELLOW,
    "recompute": PINK,
    "copy": ORANGE,
    "load": ORANGE,
    "read": YELLOW,
    "pin": PINK,
    "transfer": SKY,
    "step": BLUE,
    "wait": GREY,
    "idle": PAPER,
    "fault": RED,
    "recorded": PINK,
}
"""Colour of each kind of span; the same kind has the same colour in every notebook."""

RANKS = (BLUE, ORANGE, GREEN, PINK, SKY, RED, YELLOW, GREY)
"""Colour of rank or partition 0, 1, 2 …; the ninth begins again at the first, its number is always written too."""

HATCH: dict[str, str] = {"padding": "////", "bubble": "....", "dropped": "xxxx", "wait": "\\\\\\\\"}

TRACK = "#f1f3f6"
DOTS = "#aab3bd"
IDLE: Any = {"facecolor": TRACK, "edgecolor": DOTS, "hatch": HATCH["bubble"], "linewidth": 0}
"""A lane that does nothing, and the dots on it; together the sign for idle, in pictures and in legends."""

RECORDED: Any = {"boxstyle": "round,pad=0.4", "facecolor": PINK + "2b", "edgecolor": PINK}
"""The frame of a text that says on which other machine something was recorded."""

STYLE: Any = {  # matplotlib types its settings by name, and the names differ between its versions
    "font.family": "DejaVu Sans",
    "font.size": 11,
    "axes.titlesize": 13,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 12,
    "axes.labelsize": 11,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": False,
    "grid.color": GRID,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelsize": 10,
    "ytick.labelsize": 10,
    "legend.frameon": False,
    "legend.fontsize": 10,
    "hatch.linewidth": 0.8,
    "figure.facecolor": PAPER,
    "axes.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "lines.linewidth": 2.0,
}

DOTS_PER_INCH = 150
SHOWN_PER_INCH = 96

COLORS = 64
"""So many colours a stored picture has; flat fills and the soft edges of letters need no more."""


def styled(draw: Callable[Arguments, Figure]) -> Callable[Arguments, Figure]:
    """Run a `draw_*` function inside the house style, and leave matplotlib's own settings as they were."""

    @functools.wraps(draw)
    def wrapper(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Figure:
        with matplotlib.rc_context(STYLE):
            return draw(*args, **kwargs)

    return wrapper


def new_figure(width: float, height: float, *, rows: int = 1, cols: int = 1, **subplots: Any) -> tuple[Figure, Any]:
    """Make an empty figure, `width` × `height` in inches, and its Axes (an array of them for several rows or cols).

    Nine inches is the width of a notebook's text. Further keywords go to `Figure.subplots`.
    """
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    with matplotlib.rc_context(STYLE):
        return figure, figure.subplots(rows, cols, **subplots)


def color_of(kind: str) -> str:
    """Return the colour of a kind of span; kinds that the palette does not know are grey."""
    return PALETTE.get(kind, GREY)


def rank_color(rank: int) -> str:
    """Return the colour of a rank, replica or partition."""
    return RANKS[rank % len(RANKS)]


def ink_on(color: str) -> str:
    """Return black or white, whichever can be read on `color` (relative luminance as WCAG defines it)."""
    red, green, blue = (_linear(channel / 255) for channel in _channels(color))
    luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return INK if luminance > 0.30 else PAPER


def _channels(color: str) -> tuple[int, int, int]:
    """Return red, green and blue of "#rrggbb", 0 to 255."""
    return int(color[1:3], 16), int(color[3:5], 16), int(color[5:7], 16)


def _linear(channel: float) -> float:
    """Return how much light a channel gives (the inverse of sRGB's curve), both 0 to 1."""
    return channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4


def mixed(color: str, other: str, share: float) -> str:
    """Return `color` with a share of another in it; both as "#rrggbb"."""
    pairs = zip(_channels(color), _channels(other), strict=True)
    return "#" + "".join(f"{round(mine + (its - mine) * share):02x}" for mine, its in pairs)


def pale(color: str, share: float = 0.15) -> str:
    """Mix `share` of a colour into white."""
    return mixed(PAPER, color, share)


def title(axes: Axes, finding: str) -> None:
    """Set the title, which states the finding, wrapped so that no line leaves the figure.

    It begins where the axes begin, behind their names and numbers at the left: these must be there already.
    """
    figure = axes.get_figure()
    width = figure.get_figwidth() if isinstance(figure, Figure) else 9.0
    longest = max(20, int(width * 9.5))
    shown = axes.set_title(finding)
    room = width * axes.figure.dpi - _left_of(axes)
    for letters in range(longest, 19, -1):
        shown.set_text("\n".join(textwrap.wrap(finding, letters)))
        if shown.get_window_extent().width <= room:
            break


def _left_of(axes: Axes) -> float:
    """Return how many dots the names and numbers at the left of axes take, with the margins of a figure.

    Axes below or above begin where these do: the longest name of all counts.
    """
    column = [other for other in axes.figure.axes if other.axison and other.bbox.x0 == axes.bbox.x0]
    names = [box for box in (other.yaxis.get_tightbbox() for other in column) if box]
    widest: float = max([0.0, *(axes.bbox.x0 - box.x0 for box in names)])
    return widest + 0.05 * axes.figure.dpi


def headline(figure: Figure, finding: str) -> None:
    """Write the finding over a figure of several panels, wrapped to its width."""
    engine = figure.get_layout_engine()
    if isinstance(engine, ConstrainedLayoutEngine):
        engine.set(h_pad=0.08)
    figure.suptitle("\n".join(textwrap.wrap(finding, 84)), x=0.01, ha="left", fontsize=13, fontweight="bold")


def source_note(figure: Figure, source: str, *, recorded: bool = False) -> None:
    """Write below a figure where its numbers come from; in the frame of what was `recorded` on another machine."""
    if recorded:
        figure.supxlabel(source, x=0.02, ha="left", fontsize=9.5, bbox=RECORDED)
    else:
        figure.supxlabel(source, x=0.01, ha="left", fontsize=9.5, color=MUTED)


def describe(figure: Figure, text: str) -> Figure:
    """Attach a description in words (the alt text) to a figure, and return the figure."""
    # matplotlib's own field for "what this is": it survives pickling, and nothing draws it
    figure.set_label(" ".join(text.split()))
    return figure


def alt_text(figure: Figure) -> str:
    """Return the description of a figure; for one that nobody described, its titles and axis labels."""
    text = str(figure.get_label())
    if text:
        return text
    described = []
    for axes in figure.axes:
        words = (axes.get_title("left") or axes.get_title(), axes.get_xlabel(), axes.get_ylabel())
        described.append(", ".join(word for word in words if word))
    return "Figure: " + ("; ".join(words for words in described if words) or "no description")


def png(figure: Figure, colors: int | None = COLORS) -> bytes:
    """Render a figure as PNG, the same bytes for the same figure, in a few colours: a third of the bytes of all.

    colors: None keeps all of them and is faster, for a picture that is not stored.
    """
    full = io.BytesIO()
    with matplotlib.rc_context(STYLE):
        pillow = {"compress_level": 1 if colors is None else 0}
        figure.savefig(full, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None}, pil_kwargs=pillow)
    if colors is None:
        return full.getvalue()
    picture = Image.open(full).convert("RGB")  # opaque: the paper is part of every figure
    few = io.BytesIO()
    _reduced(picture, colors).save(few, format="png", optimize=True, dpi=(DOTS_PER_INCH, DOTS_PER_INCH))
    return few.getvalue()


def _reduced(picture: Image.Image, colors: int) -> Image.Image:
    # The fills keep their colours, or light grey would turn light blue; the soft edges of letters and lines share the
    # rest, which Pillow chooses by maximum coverage: its way with the smallest worst difference.
    method = Image.Quantize.MAXCOVERAGE
    dither = Image.Dither.NONE
    counted: list[Any] = picture.getcolors(picture.width * picture.height) or []
    often = [color for _, color in sorted(counted, reverse=True)]
    fills = often[: 3 * colors // 8]
    rest = picture.quantize(colors, method=method, dither=dither).getpalette() or []
    edges = list(zip(rest[::3], rest[1::3], rest[2::3], strict=True))
    chosen: list[tuple[int, ...]] = []
    for color in fills + edges:
        # Pillow looks a colour up to within 4 steps: a neighbour so close would take the fill's place.
        if all(_distance(color, other) > 8 for other in chosen):
            chosen.append(color)
    palette = Image.new("P", (1, 1))
    palette.putpalette([channel for color in chosen[:colors] for channel in color])
    return picture.quantize(palette=palette, dither=dither)


def _distance(color: tuple[int, ...], other: tuple[int, ...]) -> int:
    return max(abs(mine - its) for mine, its in zip(color, other, strict=True))


def shown_size(figure: Figure) -> tuple[int, int]:
    """Return (width, height) in CSS pixels: the picture holds more dots than that, for sharp screens."""
    width, height = figure.get_size_inches()
    return round(width * SHOWN_PER_INCH), round(height * SHOWN_PER_INCH)
