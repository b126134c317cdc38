"""Figures of notebook 04: a shuffle that is computed and never stored.

draw_rounds   the indices as a square: a round moves whole columns, the next one whole rows
draw_walk     cycle walking: an image outside range(n) goes through the network again
draw_mixing   what is left of the order after some rounds: a picture, a scatter, a test
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from lib.data.permutation import Permutation
from lib.show.explore import steps, whole
from lib.show.sheet import Cell, Mark, arrow, cell_axes, cell_sheet, draw_cell
from lib.show.style import BLUE, INK, RANKS, RED, SKY, describe, headline, new_figure, pale, styled, title

ROUNDS_CONTROLS = {"follow": whole(0, 63, 17, "follow index")}


@styled
def draw_rounds(rounds: Sequence[Sequence[int]], *, follow: int) -> Figure:
    """Draw where each index stands after each round: rounds[k][i] is the place of index i after k rounds.

    Places are numbered row by row in a square; a colour for each column of the start, `follow` in red.
    """
    side = math.isqrt(len(rounds[0]))
    figure, grid = new_figure(9, 2.9, cols=len(rounds))
    for number, (axes, places) in enumerate(zip(grid, rounds, strict=True)):
        cell_axes(axes, columns=side, rows=side)
        for index, place in enumerate(places):
            color = INK if index == follow else pale(RANKS[index % side % len(RANKS)], 0.45)
            draw_cell(axes, place % side, place // side, Cell(index, color=color), font=9)
        how = "columns shuffled" if number % 2 else "rows shuffled"
        axes.set_title(f"round {number}: {how}" if number else "start", fontsize=11, fontweight="normal")
    path = [places[follow] for places in rounds]
    headline(
        figure, f"Up or down, then sideways: index {follow} takes the places {' → '.join(map(str, path))}"
    )
    stayed = sum(a % side == b % side for a, b in enumerate(rounds[1]))
    return describe(
        figure,
        f"{len(rounds[0])} indices in a square of {side} × {side}, after 0 to {len(rounds) - 1} rounds. Index {follow} "
        f"stands at {', '.join(map(str, path))}. In round 1, {stayed} of {len(rounds[0])} indices keep their column.",
    )


WALK_CONTROLS = {
    "index": whole(0, 39, 17, "i · position"),
    "size": whole(33, 64, 40, "n · samples"),
}


@styled
def draw_walk(mix: Callable[[int], int], *, index: int, size: int) -> Figure:
    """Draw the walk of one index: mix(index), mix of that, … until it lands inside range(size); mix permutes 0..63."""
    asked, index = index, min(index, size - 1)
    path = walk_path(mix, index, size)
    passes = [len(walk_path(mix, start, size)) - 1 for start in range(size)]
    figure, axes = cell_sheet(16, 4.4, labels=0.3)
    for place in range(64):
        x, y = place % 16, place // 16
        mark: Mark = "dropped" if place >= size else "plain" if place in (path[0], path[-1]) else "faded"
        color = RED if place == path[-1] else BLUE if place == path[0] else SKY
        draw_cell(axes, x, y, Cell(place, mark=mark, color=color), font=10)
    for a, b in itertools.pairwise(path):
        arrow(axes, (a % 16, a // 16), (b % 16, b // 16), bend=0.25, gap=9, zorder=5)
    walked = " → ".join(map(str, path))
    note = f" (not {asked}: n is {size})" if asked != index else ""
    mean = sum(passes) / size
    title(axes, f"Position {index}{note} walks {walked}; {mean:.2f} passes on average over all {size}")
    return describe(
        figure,
        f"0 to 63 as cells, those from {size} on crossed out. Position {index} walks {walked}. Passes through the "
        f"network: {mean:.2f} on average over all positions, {max(passes)} at most.",
    )


def walk_path(mix: Callable[[int], int], index: int, size: int) -> list[int]:
    """Return index, its image, the image of that, … up to the first one inside range(size)."""
    path = [index, mix(index)]
    while path[-1] >= size:
        path.append(mix(path[-1]))
    return path


SQUARES = (4096, 16_384, 65_536)  # powers of four: pictures are square, and halves are equal

MIXING_CONTROLS = {
    "rounds": steps((1, 2, 3, 4, 5, 8), 2, "rounds"),
    "size": steps(SQUARES, 4096, "n · samples"),
}
CHANCE = 5  # standard deviations; a true shuffle stays below


def lag_surprise(order: npt.NDArray[np.int64], lag: int) -> float:
    """Return how far p[i] ^ p[i + lag] is from uniform, in its low or its high half: the worse of two z-scores.

    order: a permutation of range(2^(2k)). A z-score is a chi-square in its standard deviations.
    """
    half = (len(order).bit_length() - 1) // 2
    changed = order[lag:] ^ order[:-lag]
    expected = len(changed) / 2**half
    counts = (np.bincount(part, minlength=2**half) for part in (changed % 2**half, changed >> half))
    surplus = [float(((count - expected) ** 2 / expected).sum()) - (2**half - 1) for count in counts]
    return float(max(map(abs, surplus)) / math.sqrt(2 * (2**half - 1)))


@styled
def draw_mixing(picture: npt.NDArray[np.float64], *, rounds: int, size: int) -> Figure:
    """Draw a picture whose pixels were shuffled, position against sample, and the lag test for each power of two."""
    order = Permutation(size, seed=3, rounds=rounds)[np.arange(size)]
    side = math.isqrt(size)
    mixed = np.empty(size)
    mixed[order] = np.kron(picture, np.ones((side // len(picture), side // len(picture)))).ravel()
    lags = [2**k for k in range((size - 1).bit_length())]
    surprise = [lag_surprise(order, lag) for lag in lags]
    worst = int(np.argmax(surprise))
    figure, (left, middle, right) = new_figure(9, 3.4, cols=3, width_ratios=(1, 1.1, 1.1))
    left.imshow(mixed.reshape(side, side), cmap="gray_r", interpolation="nearest")
    left.set_axis_off()
    left.set_title("a digit, pixels shuffled", fontsize=11, fontweight="normal")
    middle.plot(order[:1024], ".", color=BLUE, markersize=2.5)
    middle.set(xlabel="position i (the first 1,024)", xlim=(0, 1024), ylim=(0, size), xticks=(0, 512, 1024))
    middle.set_yticks((0, size), labels=("0", f"{size:,}"))
    middle.set_title("sample p[i]", fontsize=11, fontweight="normal")
    right.bar(range(len(lags)), surprise, color=[RED if z > CHANCE else SKY for z in surprise])
    right.axhline(CHANCE, color=INK, linewidth=1, linestyle=":")
    right.set_yscale("symlog", linthresh=10)
    right.set(ylim=(0, 2e6), yticks=(0, CHANCE, 100, 1e4, 1e6), xlabel="lag")
    right.set_yticks((0, CHANCE, 100, 10_000, 1_000_000), labels=("0", "5", "100", "10⁴", "10⁶"))
    right.set_xticks(range(0, len(lags), 3), labels=[f"{lag:,}" for lag in lags[::3]])
    right.set_title("p[i] xor p[i + lag], z-score", fontsize=11, fontweight="normal")
    said = f"a pattern at lag {lags[worst]:,}, z = {surprise[worst]:,.0f}"
    headline(
        figure,
        f"{rounds} round{'s' * (rounds != 1)}: {said if surprise[worst] > CHANCE else 'no pattern at any lag'}",
    )
    return describe(
        figure,
        f"Permutation of {size} samples with {rounds} rounds. Worst lag {lags[worst]}: z-score "
        f"{surprise[worst]:.1f}; lags beyond {CHANCE}: {sum(z > CHANCE for z in surprise)} of {len(lags)}.",
    )
