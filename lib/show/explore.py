"""Sliders over a pure drawing function: a still first frame everywhere, live controls where a kernel runs.

    explore(draw_ranks, N=whole(1, 40, 10, "N · samples"), shuffle=switch(True, "shuffle"))

One output carries both: Jupyter shows the widget, and whatever cannot (GitHub, a page without a kernel) shows the
picture beside it. The live picture is an HTML widget, not an Output widget: so it has alt text, nothing is captured.
"""

from __future__ import annotations

import base64
import html
import itertools
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from matplotlib.figure import Figure

from lib.show.style import RED, alt_text, png, shown_size

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


@dataclass(frozen=True)
class Control:
    """What one control may be set to, where it starts, and what its label says."""

    options: tuple[Any, ...]
    value: Any
    label: str

    def __post_init__(self) -> None:
        if self.value not in self.options:
            raise ValueError(f"control {self.label!r} starts at {self.value!r}, which is none of {self.options[:10]}")

    def stops(self, count: int, keep: Iterable[Any] = ()) -> tuple[Any, ...]:
        """Return `count` options, at least 2, evenly spread: the ends are among them, and so is the start.

        keep: options that are among them, too. Where they need more room than `count`, there are more.
        """
        last = len(self.options) - 1
        if count > last:
            return self.options
        kept = [self.options.index(option) for option in (self.value, *keep)]
        places = {round(k * last / (count - 1)) for k in range(count)}
        for wanted in kept:
            inner = places - {0, last, *kept}
            if wanted not in places and inner:  # the nearest stop gives its place to the one that is wanted
                places.remove(min(inner, key=lambda place: abs(place - wanted)))
            places.add(wanted)
        return tuple(self.options[place] for place in sorted(places))


class Slider(Control):
    """Whole numbers or fixed steps on a line."""


class Switch(Control):
    """On or off."""


def whole(low: int, high: int, value: int, label: str, step: int = 1) -> Slider:
    """Make a slider over the whole numbers low, low + step, … high."""
    return Slider(tuple(range(low, high + 1, step)), value, label)


def steps(options: Sequence[Any], value: Any, label: str) -> Slider:
    """Make a slider over any ordered values: powers of two, ratios."""
    return Slider(tuple(options), value, label)


def choice(options: Sequence[Any], value: Any, label: str) -> Control:
    """Make a dropdown."""
    return Control(tuple(options), value, label)


def switch(value: bool, label: str) -> Switch:
    """Make a checkbox."""
    return Switch((False, True), value, label)


#: Called with each explorer that a cell shows, before its picture is stored: the site takes its frames along.
WATCHERS: list[Callable[[Explorer], None]] = []

TRACK = 290  # pixels of a slider and of the value that it prints, beside its words
LETTER = 7  # pixels of a letter of its words
KEPT = 64  # frames of an explorer, 100 kB each: a slider that moves back and forth draws nothing twice


class Explorer:
    """A drawing function with controls; what `explore` returns.

    figure: the last one drawn; live, the last KEPT frames are kept, and `draw` is not called again for them.
    Raises whatever `draw` raises for the first frame at once. Later errors are shown in place of the figure and raised.
    """

    def __init__(self, draw: Callable[..., Figure], controls: Mapping[str, Control]) -> None:
        self.draw = draw
        self.controls = dict(controls)
        self.values = {name: control.value for name, control in self.controls.items()}
        self.figure = draw(**self.values)

    def grid(self, limit: int = 400, keep: Mapping[str, Iterable[Any]] | None = None) -> dict[str, tuple[Any, ...]]:
        """Return the stops of each control, for tests and pages without a kernel, which draw all combinations.

        All options where they make at most `limit` settings; else the longest sliders keep fewer of them, at least 3.
        keep: options that stay, by the name of their control; they may take the grid beyond the limit.
        """
        kept = keep or {}
        counts = {name: len(control.options) for name, control in self.controls.items()}
        while math.prod(counts.values()) > limit and max(counts.values()) > 3:
            sliders = [name for name, count in counts.items() if count > 3 and isinstance(self.controls[name], Slider)]
            longest = max(sliders or counts, key=counts.__getitem__)
            counts[longest] -= 1
        return {name: control.stops(counts[name], kept.get(name, ())) for name, control in self.controls.items()}

    def update(self, **values: Any) -> Figure:
        """Draw with changed settings, as moving a control does."""
        self.values.update(values)
        self.figure = self.draw(**self.values)
        return self.figure

    @cached_property
    def widget(self) -> Any:
        """The ipywidgets box: a row of controls over the figure. Made once."""
        import ipywidgets

        shown = ipywidgets.HTML(frame(self.figure))
        frames = {repr(self.values): shown.value}  # draw is pure: what was shown once comes back at once

        def changed(name: str, change: Mapping[str, Any]) -> None:
            try:
                self.values[name] = change["new"]
                settings = repr(self.values)
                if settings not in frames:
                    self.update()
                    if len(frames) == KEPT:
                        oldest = next(iter(frames))
                        frames.pop(oldest)
                    frames[settings] = frame(self.figure)
                shown.value = frames[settings]
            except Exception as error:
                text = html.escape(f"{type(error).__name__}: {error}")
                shown.value = f'<p class="idt-error" role="alert" style="color:{RED}">{text}</p>'
                raise

        widgets = {name: _make_widget(control) for name, control in self.controls.items()}
        for name, widget in widgets.items():
            widget.observe(partial(changed, name), names="value")
        row = ipywidgets.HBox(list(widgets.values()), layout=ipywidgets.Layout(flex_flow="row wrap"))
        box = ipywidgets.VBox([row, shown])
        box.add_class("idt-explore")
        return box

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        for tell in WATCHERS:
            tell(self)
        return bundle(self.figure, self.widget)


def frame(figure: Figure) -> str:
    """Return a figure as HTML for a live notebook: an `<img>` with its alt text."""
    picture = base64.b64encode(png(figure, colors=None)).decode()  # all colours are faster, and nothing stores them
    look = f"width:{shown_size(figure)[0]}px;max-width:100%;background:white"
    words = html.escape(alt_text(figure))
    source = f"data:image/png;base64,{picture}"
    return f'<img class="idt-frame" alt="{words}" src="{source}" style="{look}">'


def bundle(figure: Figure, widget: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a figure with its live widget as one output of a cell: the still picture and its alt text beside it."""
    alt = alt_text(figure)
    width, height = shown_size(figure)
    view = {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}
    data: dict[str, Any] = {WIDGET_VIEW: view, "text/plain": alt}
    if "google.colab" not in sys.modules:  # Colab might prefer the still picture to the live one
        data["image/png"] = base64.b64encode(png(figure)).decode()
    return data, {"image/png": {"alt": alt, "width": width, "height": height}}


def _make_widget(control: Control) -> Any:
    import ipywidgets

    # "auto" is as wide as the words are; a slider has no width of its own, and its words would leave no track.
    slides = isinstance(control, Slider)
    width = f"{TRACK + LETTER * len(control.label)}px" if slides else "auto"
    layout = ipywidgets.Layout(width=width, margin="2px 24px 2px 0")
    if isinstance(control, Switch):
        return ipywidgets.Checkbox(control.value, description=control.label, indent=False, layout=layout)
    options = control.options
    look = {"description": control.label, "style": {"description_width": "initial"}, "layout": layout}
    if not slides:
        return ipywidgets.Dropdown(options=options, value=control.value, **look)
    if all(type(number) is int for number in options):
        gaps = {after - before for before, after in itertools.pairwise(options)} or {1}
        if len(gaps) == 1:
            return ipywidgets.IntSlider(control.value, options[0], options[-1], *gaps, **look)
    return ipywidgets.SelectionSlider(options=options, value=control.value, **look)


def explore(draw: Callable[..., Figure], /, **controls: Control) -> Explorer:
    """Show `draw(**values)` with a control for each value: the still first frame, and live controls in a kernel.

    draw: a pure function from keyword values to a Figure. controls: `whole`, `steps`, `choice` or `switch` by name.
    """
    return Explorer(draw, controls)
