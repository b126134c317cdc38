"""What goes wrong in a second forward, drawn: two dropout masks, statistics that move twice, and a table of faults.

draw_masks    the dropout masks of forward and recompute, and where they differ
draw_running  running means that approach the true mean, step by step, as one or several ways
draw_faults   case by case, what each checkpoint makes of it (lib.experiments.faults)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from lib.experiments.faults import Outcome
from lib.show.style import (
    BLUE,
    GREEN,
    INK,
    MUTED,
    ORANGE,
    PAPER,
    PINK,
    RED,
    describe,
    headline,
    ink_on,
    new_figure,
    pale,
    rank_color,
    styled,
    title,
)


@styled
def draw_masks(first: Tensor, second: Tensor) -> Figure:
    """Draw two boolean masks (rows, units), True where a unit is kept, and red where they differ."""
    figure, panels = new_figure(9, 2.35, cols=3)
    differ = first != second
    share = differ.double().mean().item()
    pictures = (("forward", first, BLUE), ("recompute", second, PINK), (f"differ: {share:.0%}", differ, RED))
    rows, columns = first.shape
    for axes, (name, mask, color) in zip(panels, pictures, strict=True):
        cells = mask.int().tolist()
        for r in range(rows):
            on = [(c, 0.9) for c in range(columns) if cells[r][c]]
            off = [(c, 0.9) for c in range(columns) if not cells[r][c]]
            axes.broken_barh(on, (r, 0.9), facecolor=color, lw=0)
            axes.broken_barh(off, (r, 0.9), facecolor=pale(INK, 0.07), lw=0)
        axes.set(xlim=(-0.1, columns), ylim=(rows, -0.1), aspect="equal", xlabel=name)
        axes.set(xticks=[], yticks=[])
        for spine in axes.spines.values():
            spine.set_visible(False)
    panels[0].set_ylabel("sample")
    finding = (
        "The same mask twice: gradients fit the output"
        if not share
        else f"{share:.0%} of the units differ: gradients of a network that never ran"
    )
    headline(figure, finding)
    return describe(
        figure,
        f"Dropout masks of {rows} samples × {columns} units: kept in forward {first.double().mean():.0%}, "
        f"in recompute {second.double().mean():.0%}. {finding}.",
    )


@styled
def draw_running(means: Mapping[str, Sequence[float]], true_mean: float = 1.0) -> Figure:
    """Draw running means over the steps; ways that agree lie on one another and are drawn as line and dots."""
    figure, axes = new_figure(9, 3.2)
    looks = (dict(lw=2.4), dict(ls="", marker="s", ms=6), dict(ls="", marker="o", ms=6))
    for number, (name, values) in enumerate(means.items()):
        axes.plot(
            range(len(values)),
            values,
            color=rank_color((0, 5, 1)[number % 3]),
            label=name,
            **looks[number % 3],
        )
    axes.axhline(true_mean, color=MUTED, ls="--", lw=1.2)
    axes.text(0, true_mean, "mean of the data", va="bottom", fontsize=9.5, color=MUTED)
    axes.set(xlabel="training steps", ylabel="running mean", ylim=(0, 1.2 * true_mean), xlim=(-0.3, None))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="lower right")
    once = {name: values[1] / true_mean for name, values in means.items()}
    plain, *others = once.items()
    off = {name: momentum for name, momentum in others if abs(momentum - plain[1]) > 0.01}
    finding = f"Momentum {plain[1]:.2f} everywhere"
    if off:
        finding = f"Momentum {plain[1]:.2f} acts as {next(iter(off.values())):.2f} where recompute counts too"
    title(axes, finding)
    ends = ", ".join(f"{name} {values[-1]:.2f}" for name, values in means.items())
    return describe(
        figure, f"{finding}. Running mean after {len(next(iter(means.values()))) - 1} steps: {ends}."
    )


LOOK: Mapping[Outcome, tuple[str, str, str]] = {  # colour, sign, words
    "same": (GREEN, "✓", "same gradients"),
    "counted twice": (ORANGE, "2×", "counted twice"),
    "error": (BLUE, "!", "refused with an error"),
    "no gradient": (RED, "∅", "no gradient, silently"),
    "wrong": (RED, "✗", "wrong, silently"),
}


@styled
def draw_faults(table: Mapping[str, Mapping[str, Outcome]]) -> Figure:
    """Draw outcomes, a row a case and a column a checkpoint."""
    columns = list(next(iter(table.values())))
    figure, axes = new_figure(9, 1.2 + 0.42 * len(table))
    for row, outcomes in enumerate(table.values()):
        for column, name in enumerate(columns):
            color, sign, words = LOOK[outcomes[name]]
            silent = color == RED
            face = color if silent else pale(color, 0.30)
            axes.add_patch(
                Rectangle((column + 0.02, row + 0.06), 0.96, 0.88, facecolor=face, edgecolor=PAPER)
            )
            ink = ink_on(face) if silent else INK
            axes.text(
                column + 0.5, row + 0.5, f"{sign}  {words}", ha="center", va="center", fontsize=9.5, color=ink
            )
    axes.set(xlim=(0, len(columns)), ylim=(len(table), 0))
    axes.set_yticks([row + 0.5 for row in range(len(table))], list(table), color=INK, fontsize=10.5)
    axes.set_xticks([column + 0.5 for column in range(len(columns))], columns, color=INK, fontsize=10.5)
    axes.tick_params(length=0, labeltop=True, labelbottom=False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    faults = {name: sum(LOOK[row[name]][0] == RED for row in table.values()) for name in columns}
    finding = f"Silent faults in {len(table)} cases: " + ", ".join(
        f"{name} {n}" for name, n in faults.items()
    )
    headline(figure, finding)
    said = "; ".join(
        f"{case}: " + ", ".join(f"{name} {outcome}" for name, outcome in outcomes.items())
        for case, outcomes in table.items()
    )
    return describe(figure, f"{finding}. {said}.")


def kept(output: Tensor) -> Tensor:
    """Return where dropout has kept a unit: True where the output is not zero."""
    return output.detach() != torch.zeros(())
