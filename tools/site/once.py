"""What matplotlib works out again and again for one picture after another, worked out once.

measured_once  within it texts are measured, formulas set, fonts looked for once for all figures
unmoved        within it nothing changes a figure but where its axes lie: ticks that stay are not made and measured anew

Both change matplotlib's insides for a while and put them back. What comes out is the same, to the last digit: each
explorer's start is drawn without and with them, and `capture.finish` compares.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import matplotlib
from matplotlib.axis import Axis
from matplotlib.backends import backend_svg
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.backends.backend_svg import RendererSVG
from matplotlib.cbook import CallbackRegistry
from matplotlib.font_manager import FontManager, FontProperties
from matplotlib.markers import MarkerStyle
from matplotlib.mathtext import MathTextParser
from matplotlib.path import Path
from matplotlib.text import Text
from matplotlib.textpath import TextToPath

#: Answers of one kind that are kept: all that an explorer needs, also one that writes other numbers in each frame.
MOST = 50_000
_Place = Hashable | None


@contextmanager
def measured_once() -> Iterator[None]:
    """Remember measures of texts, formulas and the files of fonts, whichever figure asks."""
    with ExitStack() as stack:
        for owner, name, key in (
            (Text, "_get_layout", _of_layout),
            (RendererAgg, "get_text_width_height_descent", _of_text),
            (RendererSVG, "get_text_width_height_descent", _of_text),
            (MathTextParser, "_parse_cached", _of_formula),
            (FontManager, "_find_fonts_by_props", _of_font),
        ):
            if hasattr(owner, name):  # another matplotlib may call its insides otherwise, and is slower then
                stack.enter_context(_replaced(owner, name, _remembered(getattr(owner, name), key, {})))
        stack.enter_context(_replaced(MarkerStyle, "__init__", _shaped_once(MarkerStyle.__init__)))
        if hasattr(Axis, "_get_tick"):
            stack.enter_context(_replaced(Axis, "_get_tick", _one_made(Axis._get_tick)))
        stack.enter_context(_replaced(TextToPath, "get_glyphs_with_font", _set_once(TextToPath.get_glyphs_with_font)))
        # matplotlib's own looks each time whether it is the backend that is asked for: no drawing asks for it
        stack.enter_context(_replaced(matplotlib.RcParams, "__getitem__", dict.__getitem__))
        if hasattr(RendererSVG, "_update_glyph_map_defs"):
            stack.enter_context(_replaced(RendererSVG, "_update_glyph_map_defs", _outlined_once()))
        if hasattr(backend_svg, "_escape_cdata"):
            escape = functools.lru_cache(MOST)(backend_svg._escape_cdata)
            stack.enter_context(_replaced(backend_svg, "_escape_cdata", escape))
        yield


@contextmanager
def unmoved() -> Iterator[None]:
    """Remember the ticks of an axis and the places of their labels until its limits or its place change."""
    with ExitStack() as stack:
        for name, key in (("_update_ticks", _of_ticks), ("_get_ticklabel_bboxes", _of_labels)):
            if hasattr(Axis, name):
                stack.enter_context(_replaced(Axis, name, _remembered(getattr(Axis, name), key, {})))
        yield


@contextmanager
def _replaced(owner: Any, name: str, other: Callable[..., Any]) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, other)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _remembered(method: Callable[..., Any], key: Callable[..., _Place], known: dict[Any, Any]) -> Callable[..., Any]:
    """Return a method that is called once for each key; a key of None is never remembered."""

    def asked(self: Any, *args: Any, **kwargs: Any) -> Any:
        place = key(self, *args, **kwargs)
        if place is None:
            return method(self, *args, **kwargs)
        if place not in known:
            if len(known) == MOST:
                known.clear()
            known[place] = method(self, *args, **kwargs)
        return known[place]

    return asked


# --- on what an answer depends


def _of_layout(text: Any, renderer: Any) -> _Place:
    """A text lies within its box as its letters, its type and its alignment say, wherever it stands."""
    if text.get_usetex() or text.get_wrap() or text.get_transform_rotates_text():
        return None
    look = (text.get_text(), text.get_rotation(), text.get_rotation_mode(), text.get_parse_math(), text._linespacing)
    align = (text.get_horizontalalignment(), text.get_verticalalignment(), text._multialignment)
    return _kind(renderer), text.get_figure(root=True).dpi, *look, *align, _type(text.get_fontproperties())


def _of_text(renderer: Any, s: str, prop: FontProperties, ismath: Any) -> _Place:
    return _kind(renderer), s, _type(prop), ismath


def _of_formula(parser: Any, s: str, dpi: float, prop: Any, *flags: Any) -> _Place:
    return parser._output_type, s, dpi, None if prop is None else _type(prop), *flags


def _of_font(manager: Any, prop: Any, *args: Any, **kwargs: Any) -> _Place:
    if not isinstance(prop, FontProperties):
        return None
    return _type(prop), args, *kwargs.items()


def _of_ticks(axis: Any) -> _Place:
    """Which ticks there are depends on the limits and on how much room there is."""
    axes = axis.axes
    return id(axis), *axis.get_view_interval(), axes.bbox.width, axes.bbox.height, axes.figure.dpi


def _of_labels(axis: Any, ticks: Any, renderer: Any) -> _Place:
    return _kind(renderer), *axis.axes.bbox.min, len(ticks), _of_ticks(axis)


def _kind(renderer: Any) -> Hashable:
    """SVG measures outlines, Agg measures dots."""
    return type(renderer), getattr(renderer, "dpi", None)


def _type(prop: FontProperties) -> Hashable:
    return tuple(vars(prop).values())


def _shaped_once(begin: Callable[..., None]) -> Callable[..., None]:
    """Return a way to make markers that takes over the shape of one like it: nothing changes a shape once it is made.

    Each tick has three of them, and matplotlib makes each twice and copies it to its depths.
    """
    known: dict[Hashable, dict[str, Any]] = {}

    def begin_marker(self: Any, marker: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(marker, MarkerStyle) and not args and not kwargs:
            vars(self).update(vars(marker))
            return
        if kwargs or not isinstance(marker, str | int) or not all(isinstance(part, str | None) for part in args):
            begin(self, marker, *args, **kwargs)
            return
        place = (type(marker), marker, *args)
        if place not in known:
            begin(self, marker, *args)
            known[place] = dict(vars(self))
        vars(self).update(known[place])

    return begin_marker


def _set_once(glyphs: Callable[..., Any]) -> Callable[..., Any]:
    """Return a way to set a text as outlines that sets a text once, and says which outlines a picture lacks yet."""
    known: dict[Hashable, Any] = {}

    def set_glyphs(self: Any, font: Any, s: str, glyph_map: Any = None, new: bool = False, **kwargs: Any) -> Any:
        new = kwargs.pop("return_new_glyphs_only", new)
        if not new or any(kwargs.values()):
            return glyphs(self, font, s, glyph_map, new, **kwargs)
        if (font.fname, s) not in known:
            if len(known) == MOST:
                known.clear()
            places, outlines, rects = glyphs(self, font, s, {}, True, **kwargs)
            known[font.fname, s] = list(places), outlines, rects
        places, outlines, rects = known[font.fname, s]
        return places, {name: shape for name, shape in outlines.items() if name not in glyph_map}, rects

    return set_glyphs


def _outlined_once() -> Callable[..., None]:
    """Return a way to define the letters of an SVG that writes the outline of each letter once for all pictures."""
    known: dict[str, str] = {}

    def define(self: Any, new: Mapping[str, tuple[Any, Any]]) -> None:
        if not new:
            return
        self.writer.start("defs")
        for name, (vertices, codes) in new.items():
            if name not in known:
                known[name] = self._convert_path(Path(vertices * 64, codes), simplify=False)
            look = {"id": self._adjust_glyph_repr(name), "d": known[name], "transform": "scale(0.015625)"}
            self.writer.element("path", attrib=look)
        self.writer.end("defs")
        self._glyph_map.update(new)

    return define


def _one_made(make: Callable[..., Any]) -> Callable[..., Any]:
    """Return a way to make a tick of an axis that makes the first of its kind, and the others after its image."""

    def get_tick(self: Any, major: bool) -> Any:
        made = self.majorTicks if major else self.minorTicks
        if not made:
            return make(self, major)
        tick = _twin(made[0])
        for name in ("tick1line", "tick2line", "gridline"):
            line = _twin(getattr(made[0], name))
            line._transformed_path = None
            line._invalidx = True
            line._invalidy = True
            setattr(tick, name, line)
        for name in ("label1", "label2"):
            label = _twin(getattr(made[0], name))
            label._fontproperties = label._fontproperties.copy()
            label._text = ""
            setattr(tick, name, label)
        return tick

    return get_tick


def _twin(artist: Any) -> Any:
    twin = object.__new__(type(artist))
    vars(twin).update(vars(artist))
    twin._callbacks = CallbackRegistry(signals=["pchanged"])
    return twin
