"""What mistakes with the sampler cost, drawn: a forgotten set_epoch by group size, counted padding by ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

import torch
from matplotlib.figure import Figure

from lib.data.samplers import DistributedSampler
from lib.show import style
from lib.show.charts import beside
from lib.show.explore import choice
from lib.show.style import GREY, INK, describe, headline, new_figure, source_note, styled
from support import recordings


def signed(number: float, digits: int = 1) -> str:
    """Return a number with its sign, rounded: +2.9, −5.0, 0.0."""
    rounded = round(number, digits)
    return f"{abs(rounded):.{digits}f}" if rounded == 0 else f"{rounded:+.{digits}f}".replace("-", "−")


@styled
def draw_evaluation(correct: torch.Tensor, most: int = 64, epochs: int = 12) -> Figure:
    """Draw measured minus exact accuracy against the world size 1..most, where the padding is counted too, in bounds.

    correct: bool, one for each test sample. Shares without shuffle, and with it (the range over so many epochs).
    """
    figure, axes = new_figure(9, 4.0)
    worlds = range(1, most + 1)
    marks = correct.numpy().astype(float)

    def move(world: int, shuffle: bool, epoch: int = 0) -> float:
        return 100 * float(marks[_counted(len(marks), world, shuffle, epoch)].mean() - marks.mean())

    fixed = [move(world, shuffle=False) for world in worlds]
    mixed_up = [[move(world, shuffle=True, epoch=epoch) for epoch in range(epochs)] for world in worlds]
    low = [*map(min, mixed_up)]
    high = [*map(max, mixed_up)]
    bounds = [100 * most_moved(len(marks), world) for world in worlds]
    if_right = [bound * (1 - marks.mean()) for bound in bounds]
    if_wrong = [-bound * marks.mean() for bound in bounds]
    names = f"shuffled: from lowest to highest of {epochs} epochs", "not shuffled: the same every time"
    axes.vlines(worlds, low, high, color=style.SKY, linewidth=5, label=names[0])
    axes.scatter(worlds, fixed, s=26, color=style.ORANGE, marker="s", zorder=3, label=names[1])
    axes.step(
        worlds, if_right, where="mid", color=GREY, linewidth=1.2, label="all repeats right, or all wrong"
    )
    axes.step(worlds, if_wrong, where="mid", color=GREY, linewidth=1.2)
    farthest = max(0.1, *if_right, *high, *(-move for move in (*low, *fixed)))
    axes.axhline(0, color=INK, linewidth=1, zorder=2.5)
    axes.set(
        xlabel="W, ranks that share the evaluation",
        xlim=(0, most + 1),
        ylim=(-1.1 * farthest, 1.1 * farthest),
    )
    axes.set_ylabel("measured − exact accuracy\npercentage points")
    axes.legend(loc="upper center", ncols=3, bbox_to_anchor=(0.5, 1.14), columnspacing=1.2, handletextpad=0.4)
    exact = sum(len(marks) % world == 0 for world in worlds)
    ends = [f"{signed(min(moves))} to {signed(max(moves))}" for moves in (fixed, [*low, *high])]
    headline(figure, f"Counted padding moves a score by {ends[0]} points, shuffled by {ends[1]}")
    said = f"Not shuffled: {ends[0]} points, 0 where W divides {len(marks)} ({exact} times)."
    said += f" Shuffled, {epochs} epochs: {ends[1]} points."
    said += f" If all repeats were right at most {signed(max(if_right))}, if all were wrong {signed(min(if_wrong))}."
    measured = f"Measured minus exact accuracy of {len(marks)} images for 1 to {most} ranks, padding counted."
    return describe(figure, f"{measured} {said}")


def _counted(size: int, world_size: int, shuffle: bool, epoch: int) -> list[int]:
    """Return what all ranks together count in an epoch, one rank's share after the other's."""
    counted = []
    for rank in range(world_size):
        sampler = DistributedSampler(range(size), world_size, rank, shuffle=shuffle)
        sampler.set_epoch(epoch)
        counted += list(sampler)
    return counted


def most_moved(size: int, world_size: int) -> float:
    """Return the largest share by which counted padding can move a mean over `size` samples between 0 and 1."""
    padding = -size % world_size
    return padding / (size + padding)


# --- what the forgotten line costs

NAMES = {"none": "no batch norm", "4": "4", "8": "8", "16": "16", "32": "32"}
COMPANY_CONTROLS = {
    "size": choice(tuple(NAMES), "4", "images normalised together"),
    "rate": choice(("0.01", "0.05", "0.1", "0.3", "0.6"), "0.1", "learning rate"),
}

LossesBySize = Mapping[str, Mapping[str, Sequence[float]]]


@styled
def draw_company(*, size: str, rate: str) -> Figure:
    """Draw, at one learning rate, what the line costs by group size, and at one size the loss of each seed."""
    record = recordings.load("company")
    return _draw_company(record["results"][rate], size, rate, recordings.provenance(record))


def rises(ways: Mapping[str, Sequence[float]], way: str = "forgotten") -> list[float]:
    """Return by how much each seed's test loss is higher than its own with set_epoch."""
    return [after - before for before, after in zip(ways["told"], ways[way], strict=True)]


def two_errors(values: Sequence[float]) -> float:
    """Return two standard errors of a mean."""
    return float(2 * stdev(values) / math.sqrt(len(values)))


def _draw_company(results: LossesBySize, size: str, rate: str, source: str) -> Figure:
    figure, (curve, seeds) = new_figure(9, 4.3, cols=2, width_ratios=(3, 2))
    places = range(len(NAMES))
    costs = [rises(results[name]) for name in NAMES]
    means = [fmean(cost) for cost in costs]
    curve.axhline(0, color=GREY, linewidth=1.2, zorder=1)
    curve.errorbar(
        places, means, [*map(two_errors, costs)], color=INK, marker="o", linestyle="none", capsize=3
    )
    curve.axvspan(*(list(NAMES).index(size) + side for side in (-0.4, 0.4)), color=style.TRACK, zorder=0)
    curve.set_xticks(places, ["no batch\nnorm", *list(NAMES)[1:]])
    curve.set(xlabel="images normalised together", ylabel="test loss, forgotten − told")
    curve.set_title(f"mean of {len(costs[0])} seeds ± 2 standard errors")
    ways = results[size]
    for before, after in zip(ways["told"], ways["forgotten"], strict=True):
        seeds.plot((0, 1), (before, after), color=GREY, linewidth=1.2, zorder=1)
    looks = ("told", style.BLUE, "o"), ("forgotten", style.RED, "X")
    for place, (way, color, sign) in enumerate(looks):
        values = ways[way]
        seeds.scatter([place] * len(values), values, s=42, color=color, marker=sign, zorder=2)
        side, align = (14, "left") if place else (-14, "right")
        beside(seeds, (place, fmean(values)), f"mean\n{fmean(values):.3f}", (side, 0), ha=align)
    seeds.set(xlim=(-0.7, 1.7), title=f"each seed, {_in_groups(size)}", ylabel="test loss")
    seeds.set_xticks((0, 1), ("set_epoch(e)", "forgotten"))
    finding = _finding(ways, size, rate)
    headline(figure, finding)
    source_note(figure, source, recorded=True)
    of_all = "; ".join(
        f"{_in_groups(name)} {signed(mean, 3)} ± {two_errors(cost):.3f}"
        for name, mean, cost in zip(NAMES, means, costs, strict=True)
    )
    return describe(figure, f"{finding}. Test loss, forgotten − told: {of_all}.")


def _finding(ways: Mapping[str, Sequence[float]], size: str, rate: str) -> str:
    """Say what the line costs at this rate and size, and in how many seeds."""
    change = 100 * (fmean(ways["forgotten"]) / fmean(ways["told"]) - 1)
    cost = rises(ways)
    higher = sum(rise > 0 for rise in cost)
    said = f"Rate {rate}, {_in_groups(size)}: {signed(change, 0)} % test loss without set_epoch"
    return f"{said}, higher in {higher} of {len(cost)} seeds"


def _in_groups(size: str) -> str:
    return "no batch norm" if size == "none" else f"groups of {size}"
