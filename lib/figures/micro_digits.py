"""Figures of notebook 07: the same gradient to its last digits, and the training curves that come of it.

draw_digits   the digits of one weight's gradient, for several numbers of micro-batches
draw_losses   training curves of several ways to add up micro-batches
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from lib.show.style import GREEN, INK, RED, SKY, describe, headline, ink_on, new_figure, styled, title


def digits_of(value: float, many: int) -> str:
    """Return the first `many` significant decimal digits of a number."""
    return f"{abs(value):.{many - 1}e}".split("e")[0].replace(".", "")


def agreeing(value: float, truth: float, many: int) -> int:
    """Return how many digits of `value`, from the first, are those of `truth`; 0 where the power of ten differs."""
    mine, true = f"{value:.{many - 1}e}", f"{truth:.{many - 1}e}"
    if mine.split("e")[1] != true.split("e")[1] or (value < 0) != (truth < 0):
        return 0
    pairs = zip(digits_of(value, many), digits_of(truth, many), strict=True)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), many)


WRITTEN = {"float32": 9, "float64": 17}
"""Decimal digits that tell any two numbers of the type apart."""


@styled
def draw_digits(values: Mapping[str, Mapping[int, float]], sure: Mapping[str, int]) -> Figure:
    """Draw the digits of one gradient: values[dtype][m], dtype "float32" or "float64", m = 1 is the whole batch.

    sure: for each dtype the digits that the description may promise on any machine; the last ones depend on it.
    """
    names = list(values)
    rows = max(len(by_m) for by_m in values.values())
    figure, grid = new_figure(
        9,
        1.5 + 0.3 * rows,
        cols=len(names),
        squeeze=False,
        width_ratios=[WRITTEN[name] + 5 for name in names],
    )
    least: dict[str, int] = {}
    for axes, name in zip(grid[0], names, strict=True):
        many, truth = WRITTEN[name], values[name][1]
        axes.set(xlim=(-4.6, many + 0.4), ylim=(rows + 0.2, -0.6))
        axes.axis("off")
        axes.set_title(name, fontsize=11)
        same = []
        for y, (m, value) in enumerate(values[name].items()):
            same.append(agreeing(value, truth, many))
            axes.text(-0.9, y, f"m = {m}", ha="right", va="center_baseline", fontsize=10)
            for place, digit in enumerate(digits_of(value, many)):
                good = place < same[-1]
                face = GREEN if m == 1 else SKY if good else RED
                axes.add_patch(Rectangle((place - 0.46, y - 0.42), 0.92, 0.84, facecolor=face))
                axes.text(
                    place,
                    y,
                    digit,
                    ha="center",
                    va="center_baseline",
                    fontsize=9.5,
                    color=ink_on(face),
                    fontweight="normal" if good else "bold",
                )
        least[name] = min(same)
    said = ", ".join(f"{least[name]} of {WRITTEN[name]} digits in {name}" for name in names)
    headline(figure, f"The same gradient to {said}")
    promised = "; ".join(
        f"{name}: {'the first' if least[name] >= sure[name] else 'fewer than'} {sure[name]} of {WRITTEN[name]}"
        for name in names
    )
    ms = ", ".join(map(str, values[names[0]]))
    return describe(
        figure,
        f"Digits of one weight's gradient in m = {ms} micro-batches that equal those of m = 1. {promised}.",
    )


LINES = ("-", "--", "-.", ":")


@styled
def draw_losses(losses: Mapping[str, Sequence[float]]) -> Figure:
    """Draw the loss before each step, a line for each way of training; the first is what others are compared with."""
    figure, axes = new_figure(9, 3.8)
    colors = (INK, SKY, RED, GREEN)
    for number, (name, curve) in enumerate(losses.items()):
        axes.plot(
            range(len(curve)),
            curve,
            color=colors[number % len(colors)],
            linestyle=LINES[number % len(LINES)],
            linewidth=5 if number == 0 else 2.4,
            alpha=0.35 if number == 0 else 1,
            label=name,
        )
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("steps")
    axes.set_ylabel("training loss")
    axes.legend(loc="best")
    (norm, first), *others = losses.items()
    said, alt = [], []
    for name, curve in others:
        same = all(abs(a - b) <= 1e-3 * b for a, b in zip(curve, first, strict=True))
        said.append(f"{name}: {'the same curve' if same else f'ends {curve[-1] / first[-1]:.1f} × as high'}")
        alt.append(
            f"{name} {'is the same curve' if same else 'ends higher' if curve[-1] > first[-1] else 'ends lower'}"
        )
    title(axes, said[-1])
    return describe(figure, f"Training loss over {len(first)} steps. Against {norm}: {'; '.join(alt)}.")
