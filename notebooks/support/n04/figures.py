"""Figures of notebook 04, contiguous shards: how an epoch is cut and goes on, a computed shuffle."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lib.data.permutation import Permutation
from lib.show.explore import switch, whole
from lib.show.sheet import (
    Cell,
    Mark,
    arrow,
    box,
    cell_axes,
    cell_sheet,
    draw_cell,
    draw_cells,
    label_row,
    write,
)
from lib.show.style import (
    BLUE,
    GRID,
    INK,
    MUTED,
    PAPER,
    RANKS,
    RED,
    SKY,
    describe,
    headline,
    new_figure,
    pale,
    rank_color,
    styled,
    title,
)
from lib.text import plural
from support.n04 import solved
from support.n04.runs import CHANCE, Use, lag_surprise, two_runs, walk_path

_shuffled: Callable[[Sequence[int], int], list[int]] = solved.std_shuffle

# ---- How an epoch is cut into shards.


def listed(samples: Sequence[int]) -> str:
    """Return "8, 9", or the first six and how many there are."""
    text = ", ".join(map(str, samples[:6]))
    return text + (f" … ({len(samples)})" if len(samples) > 6 else "")


def _page(axes: Axes, x: float, y: float, width: float, text: str, color: str) -> None:
    """Draw a page as a box `width` cells wide from column x on."""
    edge = GRID if color == PAPER else color
    look: Any = {"face": color, "edge": edge, "line": 1.0, "radius": 0.16, "size": 9.5, "zorder": 1}
    box(axes, x + (width - 1) / 2, y, width - 0.12, 0.88, text, **look)


@styled
def draw_page_reads(ways: Mapping[str, Sequence[Sequence[int]]], pages: int) -> Figure:
    """Draw rank × page for each way: ways[name][rank] lists the numbers of the pages that the rank has read."""
    figure, grid = new_figure(9, 2.9, cols=len(ways), squeeze=False)
    totals = {name: sum(len(set(own)) for own in ranks) for name, ranks in ways.items()}
    for axes, (name, ranks) in zip(grid[0], ways.items(), strict=True):
        for rank, own in enumerate(ranks):
            for number in range(pages):
                _page(axes, number, rank, 1, "", rank_color(rank) if number in own else PAPER)
        axes.set(xlim=(-0.7, pages - 0.3), ylim=(len(ranks) - 0.4, -0.7), yticks=range(len(ranks)))
        axes.set_xticks([0, pages - 1], labels=["page 0", f"{pages - 1}"])
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
        axes.set_title(f"{name}: {totals[name]}", fontsize=11)
    grid[0][0].set_yticks(range(len(ranks)), labels=[f"rank {rank}" for rank in range(len(ranks))])
    found = "; ".join(f"{name} {total}" for name, total in totals.items())
    headline(figure, f"Pages read by {len(ranks)} ranks: {found}")
    summed = "; ".join(f"{name} {total}" for name, total in totals.items())
    return describe(figure, f"Pages that {len(ranks)} ranks read of {pages}, summed: {summed}.")


BATCH = 3  # what each call of next asks for in draw_cursor

CURSOR_CONTROLS = {
    "size": whole(1, 20, 10, "N · samples"),
    "world_size": whole(1, 8, 3, "W · ranks"),
    "rank": whole(0, 7, 2, "rank"),
    "epoch": whole(0, 5, 0, "epoch"),
    "calls": whole(0, 4, 1, "calls of next(3)"),
}


@styled
def draw_cursor(
    cursor: Callable[..., Any],
    *,
    size: int,
    world_size: int,
    rank: int,
    epoch: int,
    calls: int,
) -> Figure:
    """Draw an epoch's order in its shards, what `calls` calls of next(3) gave one rank, and where its cursor stands.

    cursor: a class, called with (size, num_replicas, rank); see solved.Cursor. A rank's colour; padding is hatched,
    where the shuffle puts the numbers that were added to the samples. With more ranks than samples nothing is.
    """
    asked = rank
    rank = min(rank, world_size - 1)
    # a cursor that is right only where W is not above N may give nothing here
    shards = [_in_epoch(cursor(size, world_size, r), epoch).next(size + 1) or [] for r in range(world_size)]
    order = [sample for shard in shards for sample in shard]
    local = -(-size // world_size)
    ghosts = sorted({i for i in order if i >= size})
    places = enumerate(_shuffled(range(local * world_size), epoch))
    # with more ranks than samples a reader may deal as they like: nobody knows what they added
    added = [position for position, number in places if number >= size >= world_size]
    mine = _in_epoch(cursor(size, world_size, rank), epoch)
    figure, axes = cell_sheet(max(1, len(order)), 3.9)
    got = _draw_calls(axes, mine, calls)
    for position, sample in enumerate(order):
        owner = position // local
        _draw_position(axes, position, sample, owner=owner, rank=rank, size=size, padding=position in added)
    _draw_pointer(axes, mine.position)
    for y, name in ((0, "call"), (1, "sample"), (1.75, "position")):
        label_row(axes, y, name, color=INK if y == 1 else MUTED)
    said = f"call {calls} gave {got}" if calls else "no call yet"
    who = f"Rank {rank}"
    if asked != rank:
        who += f" (W has no rank {asked})"
    finding = f"{who} owns positions {rank * local} to {(rank + 1) * local - 1}: {said}"
    words = f"Epoch {epoch}: {size} samples, {world_size} ranks, shards {' | '.join(map(str, shards))}. "
    if added:
        words += f"Padding at {listed(added)}. "
    words += f"{who}: {said}, position = {mine.position}."
    lost = ""
    if ghosts:
        lost = f"; there is no sample {listed(ghosts)}"
        words += f" Does not exist: {listed(ghosts)}."
    title(axes, finding + lost)
    return describe(figure, words)


def _in_epoch(cursor: Any, epoch: int) -> Any:
    """Return a cursor at the beginning of an epoch."""
    cursor.epoch = epoch
    cursor.reset()
    return cursor


def _draw_calls(axes: Axes, cursor: Any, calls: int) -> Any:
    """Call `next` so often; draw a line above the positions that each call gave, and its number; return the last."""
    got = None
    for number in range(1, calls + 1):
        begin = cursor.position
        got = cursor.next(BATCH)
        if got is not None:
            axes.plot([begin - 0.4, begin + len(got) - 0.6], [0.3, 0.3], color=INK, linewidth=1.5)
            write(axes, begin + len(got) / 2 - 0.5, 0, str(number))
    return got


def _draw_pointer(axes: Axes, position: int) -> None:
    """Draw where the cursor stands: between two positions."""
    axes.annotate(
        f"position = {position}",
        (position - 0.5, 1.5),
        (position - 0.5, 2.9),
        ha="center" if position else "left",
        va="center",
        color=RED,
        arrowprops={"arrowstyle": "-|>", "color": RED},
    )


def _draw_position(
    axes: Axes, position: int, sample: int, *, owner: int, rank: int, size: int, padding: bool
) -> None:
    """Draw one position of the order: its sample in the colour of its owner, a line below those of `rank`."""
    own = owner == rank
    mark: Mark = "plain" if own else "faded"
    if padding:
        mark = "padding"
    if sample >= size:  # a fault of libtorch's: it does not exist
        mark = "dropped"
    draw_cell(axes, position, 1, Cell(sample, owner, mark), font=10)
    write(axes, position, 1.75, str(position), size=9, color=INK if own else MUTED)
    if own:  # also where all cells of the shard are padding
        axes.plot([position - 0.46, position + 0.46], [2.1, 2.1], color=rank_color(rank), linewidth=3)


# ---- An epoch that is interrupted, and goes on with another number of ranks.


CALENDAR_CONTROLS = {
    "size": whole(20, 36, 36, "N · samples", step=2),
    "before": whole(2, 6, 4, "W before"),
    "after": whole(2, 6, 3, "W after"),
    "steps": whole(0, 6, 3, "steps of run 1"),
    "restart": switch(False, "restart the epoch instead"),
}


@styled
def draw_calendar(
    *, size: int, before: int, after: int, steps: int, restart: bool, batch_size: int = 2
) -> Figure:
    """Draw both runs as rank × step (a cell: the sample), and below each sample with the last step that used it."""
    uses, consumed = two_runs(size, before, after, steps, batch_size, restart)
    uses.sort(key=lambda use: (use.run, use.turn, use.rank))
    times = Counter(use.sample for use in uses)
    done = max((u.step for u in uses if u.run == 1), default=0)
    ranks = 1 + max(use.rank for use in uses)  # of a run without a step nobody is shown
    per_row = 18
    wide = {
        run: max((_column(use, batch_size) for use in uses if use.run == run), default=-1) + 1
        for run in (1, 2)
    }
    # the two runs lie side by side, the samples below both
    begin = {1: 0.0, 2: wide[1] + 1.2 if wide[1] else 0.0}
    below = 1 + ranks + 1.3
    figure, axes = cell_sheet(max(begin[2] + wide[2], per_row), below + -(-size // per_row))
    # in the order in which they were used, so that the last use of a sample is the one that counts
    last: dict[int, Use] = {}
    for use in uses:
        x = begin[use.run] + _column(use, batch_size)
        _cell(axes, x, 1 + use.rank, use.sample, use, again=use.sample in last)
        last[use.sample] = use
        if use.rank == 0 and use.turn % batch_size == 0:
            middle = x + (min(batch_size, wide[use.run]) - 1) / 2
            axes.text(middle, 0.35, str(use.step), ha="center", va="center_baseline", fontsize=9, color=MUTED)
    for sample, use in last.items():
        x = sample % per_row
        y = below + sample // per_row
        _cell(axes, x, y, use.step, use, again=times[sample] > 1)
    label_row(axes, 0.35, "step", color=MUTED)
    for rank in range(ranks):
        label_row(axes, 1 + rank, f"rank {rank}")
    for run, world_size in ((1, before), (2, after)):
        if wide[run]:
            axes.text(begin[run] - 0.4, -0.3, f"run {run}: {world_size} ranks", va="center", fontsize=10)
    if wide[1] and wide[2]:
        axes.plot([begin[2] - 1.1, begin[2] - 1.1], [-0.4, ranks + 0.5], color=RED, linestyle="--")
    axes.text(-0.4, below - 0.85, "sample by sample: the last step that used it", va="center", fontsize=10)
    for first in range(0, size, per_row):
        label_row(axes, below + first // per_row, f"{first} to {min(size, first + per_row) - 1}")
    twice = sum(count > 1 for count in times.values())
    lost = size - len(times)
    who = "Restarted" if restart else f"{before} ranks, then {after}"
    run_1 = f"{before} ranks for {plural(done, 'step')} of {batch_size} samples"
    if done < steps:  # run 1 was asked for more than an epoch has
        who += f", run 1 ends after {done} steps"
        run_1 += ", which end the epoch"
    elif restart and not done:
        run_1 = "no step of run 1"
    padding = " (padding)" if twice and not restart else ""
    again = f"{twice or 'none'} of {size} more than once{padding}"
    title(axes, f"{who}: {consumed} + {len(uses) - consumed} uses, {again}, {lost or 'none'} lost")
    return describe(
        figure,
        f"{size} samples, {run_1}, then {after} ranks{' from the beginning again' if restart else ''}: "
        f"{consumed} uses in run 1, {len(uses) - consumed} in run 2, {twice} samples more than once, {lost} never.",
    )


def _column(use: Use, batch_size: int) -> float:
    return use.turn + 0.3 * (use.turn // batch_size)


def _cell(axes: Axes, x: float, y: float, text: int, use: Use, again: bool) -> None:
    mark: Mark = "plain" if use.run == 1 else "faded"
    if again:
        mark = "padding"
    draw_cell(axes, x, y, Cell(text, use.rank, mark, RED if again else None), font=10)


# ---- Samples that no rank reads.


@styled
def draw_never_seen(
    ways: Mapping[str, Sequence[Sequence[int]]], size: int, numbers: Sequence[int] | None = None
) -> Figure:
    """Draw epoch × sample for each way: ways[name][e] lists what all ranks together have read in the e-th epoch.

    numbers: of the epochs, if they are not 0, 1, 2, …
    """
    epochs = len(next(iter(ways.values())))
    figure, grid = new_figure(
        9, 1.1 + 4.0 * (epochs + 1.3) / (size + 3), cols=2, width_ratios=(size + 3, size)
    )
    never: dict[str, list[int]] = {}
    for axes, (name, seen) in zip(grid, ways.items(), strict=True):
        cell_axes(axes, columns=size, rows=epochs + 1.3, left=0 if never else 3)
        times = [sum(sample in each for each in seen) for sample in range(size)]
        for e, each in enumerate(seen):
            row = [Cell(s, mark="plain" if s in each else "dropped", color=BLUE) for s in range(size)]
            draw_cells(axes, row, y=e, font=9)
            if not never:
                label_row(axes, e, f"epoch {numbers[e] if numbers else e}")
        for sample, count in enumerate(times):
            write(axes, sample, epochs + 0.3, str(count), color=INK if count else RED)
        axes.set_title(name, fontsize=11)
        never[name] = [sample for sample in range(size) if not times[sample]]
    label_row(grid[0], epochs + 0.3, "times seen")
    said = "; ".join(f"{name} never shows {listed(lost) or 'nobody'}" for name, lost in never.items())
    said = said.replace("never shows nobody", "shows all")
    headline(figure, f"In {epochs} epochs {said}")
    told = "; ".join(f"{name} {listed(lost) or 'none'}" for name, lost in never.items())
    return describe(figure, f"{epochs} epochs of {size} samples. Never seen: {told}.")


# ---- A shuffle that is computed and never stored.


@styled
def draw_rounds(rounds: Sequence[Sequence[int]], *, follow: int) -> Figure:
    """Draw where each number stands after each round: rounds[k][i] is the place of number i after k rounds.

    Places are numbered row by row in a square; a colour for each column of the start, `follow` in black.
    """
    side = math.isqrt(len(rounds[0]))
    figure, grid = new_figure(9, 2.9, cols=len(rounds))
    for number, (axes, places) in enumerate(zip(grid, rounds, strict=True)):
        cell_axes(axes, columns=side, rows=side)
        for cell, place in enumerate(places):
            color = INK if cell == follow else pale(RANKS[cell % side % len(RANKS)], 0.45)
            draw_cell(axes, place % side, place // side, Cell(cell, color=color), font=9)
        how = "up or down" if number % 2 else "sideways"
        axes.set_title(f"round {number}: {how}" if number else "start", fontsize=11, fontweight="normal")
    path = [places[follow] for places in rounds]
    headline(
        figure, f"Up or down, then sideways: number {follow} takes the places {' → '.join(map(str, path))}"
    )
    stayed = sum(a % side == b % side for a, b in enumerate(rounds[1]))
    return describe(
        figure,
        f"{len(rounds[0])} numbers in a square of {side} × {side}, after 0 to {len(rounds) - 1} rounds. Number "
        f"{follow} stands at {', '.join(map(str, path))}. In round 1, {stayed} of {len(rounds[0])} numbers keep "
        "their column.",
    )


WALK_CONTROLS = {"index": whole(0, 39, 12, "i · position"), "size": whole(33, 64, 40, "n · samples")}


@styled
def draw_walk(mix: Callable[[int], int], *, index: int, size: int) -> Figure:
    """Draw the walk of one index: mix(index), mix of that, … until it lands inside range(size); mix permutes 0..63."""
    asked = index
    index = min(index, size - 1)
    path = walk_path(mix, index, size)
    passes = [len(walk_path(mix, start, size)) - 1 for start in range(size)]
    figure, axes = cell_sheet(16, 4.4, labels=0.3)
    for place in range(64):
        x = place % 16
        y = place // 16
        mark: Mark = "plain" if place in (path[0], path[-1]) else "faded"
        if place >= size:
            mark = "dropped"
        color = BLUE if place == path[0] else SKY
        if place == path[-1]:
            color = RED
        draw_cell(axes, x, y, Cell(place, mark=mark, color=color), font=10)
    for a, b in itertools.pairwise(path):
        arrow(axes, (a % 16, a // 16), (b % 16, b // 16), bend=0.25, gap=9, zorder=5)
    walked = " → ".join(map(str, path))
    note = f" (not {asked}: n is {size})" if asked != index else ""
    mean = sum(passes) / size
    title(axes, f"Position {index}{note} walks {walked}; {mean:.2f} passes on average over all {size}")
    return describe(
        figure,
        f"0 to 63 as cells, those from {size} on crossed out. Position {index}{note} walks {walked}. "
        f"Passes through the network: {mean:.2f} on average over all positions, {max(passes)} at most.",
    )


def _rounds(counts: Sequence[int]) -> str:
    return plural(counts[0], "round") if len(counts) == 1 else f"{listed(counts)} rounds"


@styled
def draw_mixing(picture: npt.NDArray[np.float64], *, rounds: Sequence[int], size: int = 4096) -> Figure:
    """Draw for each number of rounds a picture whose pixels were shuffled, and the lag test at each power of two."""
    lags = [2**k for k in range((size - 1).bit_length())]
    figure, grid = new_figure(9, 4.4, rows=2, cols=len(rounds), squeeze=False, height_ratios=(1.3, 1))
    side = math.isqrt(size)
    told = []
    clean = []
    for (above, below), count in zip(grid.T, rounds, strict=True):
        order = Permutation(size, seed=3, rounds=count)[np.arange(size)]
        mixed = np.empty(size)
        mixed[order] = np.kron(picture, np.ones((side // len(picture),) * 2)).ravel()
        above.imshow(mixed.reshape(side, side), cmap="gray_r", interpolation="nearest")
        above.set_axis_off()
        above.set_title(plural(count, "round"), fontsize=11)
        surprise = [lag_surprise(order, lag) for lag in lags]
        below.bar(range(len(lags)), surprise, color=[RED if z > CHANCE else SKY for z in surprise])
        below.axhline(CHANCE, color=INK, linewidth=1, linestyle=":")
        below.set_yscale("symlog", linthresh=10)
        below.set(ylim=(0, 4e4), xlabel="lag")
        below.set_yticks((0, CHANCE, 100, 1000, 10_000), labels=("0", "5", "100", "10³", "10⁴"))
        below.set_xticks(range(0, len(lags), 4), labels=[f"{lag:,}" for lag in lags[::4]])
        beyond = sum(z > CHANCE for z in surprise)
        clean += [count] * (not beyond)
        told.append(
            f"{plural(count, 'round')}: worst z {max(surprise):,.1f}, {beyond} of {len(lags)} lags beyond 5"
        )
    grid[1][0].set_ylabel("z-score")
    dirty = [count for count in rounds if count not in clean]
    if clean and dirty and max(dirty) < min(clean):
        found = f"seed 3 has a pattern up to {plural(max(dirty), 'round')}, none from {min(clean)} on"
    elif dirty:
        found = f"seed 3 has a pattern after {_rounds(dirty)}"
    else:
        found = f"seed 3 has no pattern after {_rounds(clean)}"
    headline(figure, f"Pixels of a digit, moved: {found}")
    return describe(figure, f"Permutation of {size} samples, lag test. {'; '.join(told)}.")
