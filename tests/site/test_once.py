"""What is remembered from one figure to the next changes no picture, and is forgotten where it would."""

import matplotlib
import pytest
from matplotlib.axis import Axis
from matplotlib.markers import MarkerStyle
from matplotlib.text import Text

from lib.show.style import new_figure, title
from tools.site import atlas
from tools.site.once import measured_once, unmoved


def draw_lines(high):
    """Logarithmic axes, a legend, markers, formulas: what matplotlib measures most."""
    figure, (left, right) = new_figure(9, 3, cols=2)
    left.plot([1, 10, high], [1, high, 3], marker="o", fillstyle="none", label=f"to {high}")
    left.plot([1, high], [2, 2], "x--", label="even")
    left.set(xscale="log", yscale="log", xlabel="bytes", ylabel="seconds")
    left.grid(True, which="both")
    left.legend()
    left.get_xticklabels()[0].set_fontweight("bold")
    right.bar(range(high % 7 + 1), 1e6 + 1.0, color="tab:red")
    right.set_title(f"$x^2$\nin two lines, {high}", rotation=3)
    right.tick_params(labelrotation=30)
    right.minorticks_on()
    title(left, f"A finding that is long enough for two lines, with {high} in it and with more words than one holds")
    return figure


@pytest.mark.parametrize("highs", [(100, 1000, 100), (7, 60, 123456)])
def test_a_picture_is_the_same_with_and_without(highs):
    plain = [atlas.svg(draw_lines(high)) for high in highs]
    quick = []
    with measured_once():
        for high in highs:
            figure = draw_lines(high)
            with unmoved():
                quick.append(atlas.svg(figure))
    assert quick == plain


def test_a_tick_that_is_changed_alone_changes_alone():
    def draw():
        figure, axes = new_figure(3, 2)
        axes.set_xticks(range(4), ["a", "b", "c", "d"])
        for place, label in enumerate(axes.get_xticklabels()):
            label.set(color="red" if place == 2 else "black", fontsize=8 + place)
        return atlas.svg(figure)

    plain = draw()
    with measured_once():
        assert draw() == plain


def test_texts_are_measured_once_for_two_figures(monkeypatch):
    measured = []
    original = Text._get_layout
    monkeypatch.setattr(Text, "_get_layout", lambda text, *others: measured.append(text) or original(text, *others))
    with measured_once():
        atlas.svg(draw_lines(100))
        first = len(measured)
        atlas.svg(draw_lines(100))
    assert len(measured) == first > 0


def test_ticks_follow_the_limits():
    figure, axes = new_figure(3, 2)
    with unmoved():
        axes.set_xlim(0, 1)
        figure.draw_without_rendering()
        before = [label.get_text() for label in axes.get_xticklabels()]
        axes.set_xlim(0, 1000)
        after = [label.get_text() for label in axes.get_xticklabels()]
    assert before != after


def test_matplotlib_is_as_before_afterwards_also_after_an_error():
    places = [(Text, "_get_layout"), (Axis, "_update_ticks"), (Axis, "_get_tick"), (MarkerStyle, "__init__")]
    places.append((matplotlib.RcParams, "__getitem__"))
    before = [getattr(owner, name) for owner, name in places]

    def fail():
        with measured_once(), unmoved():
            assert [getattr(owner, name) for owner, name in places] != before
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert [getattr(owner, name) for owner, name in places] == before
