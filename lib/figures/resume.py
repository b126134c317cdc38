"""Figures of notebook 04: an epoch that is interrupted, and goes on with another number of ranks.

draw_rest       what is left of the order: one piece with stride, W pieces with contiguous shards
draw_calendar   rank × step of both runs, and for each sample the run and step that used it
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lib.data.samplers import DistributedSampler
from lib.show.explore import switch, whole
from lib.show.sheet import Cell, Mark, cell_sheet, draw_cell, label_row
from lib.show.style import MUTED, RED, describe, styled, title

REST_CONTROLS = {
    "size": whole(12, 40, 32, "N · samples", step=4),
    "world_size": whole(1, 8, 4, "W · ranks"),
    "step": whole(0, 6, 2, "steps done"),
    "batch_size": whole(1, 4, 2, "samples a rank and step"),
}


def used_at(size: int, world_size: int, step: int, batch_size: int, cut: str) -> list[tuple[int, int] | None]:
    """Return for each position of the order who used it: (rank, step counted from 1), or None where nobody has yet."""
    local = -(-size // world_size)

    def who(position: int) -> tuple[int, int] | None:
        turn, rank = divmod(position, world_size)
        if cut == "contiguous":
            rank, turn = divmod(position, local)
        return (rank, turn // batch_size + 1) if turn < step * batch_size else None

    return [who(position) for position in range(size)]


@styled
def draw_rest(*, size: int, world_size: int, step: int, batch_size: int) -> Figure:
    """Draw the order of an epoch after some steps, cut both ways; the pieces that are left are framed."""
    figure, axes = cell_sheet(size, 5.6)
    pieces = {}
    for number, cut in enumerate(("stride", "contiguous")):
        y = 0.4 + 2.8 * number
        users = used_at(size, world_size, step, batch_size, cut)
        for position, user in enumerate(users):
            draw_cell(axes, position, y, Cell(user[1], user[0]) if user else Cell(""), font=9)
        free = [position for position, user in enumerate(users) if user is None]
        starts = [position for position in free if position - 1 not in free]
        ends = [position for position in free if position + 1 not in free]
        for start, end in zip(starts, ends, strict=True):
            axes.plot([start - 0.4, end + 0.4], [y + 0.72, y + 0.72], color=RED, linewidth=2)
        pieces[cut] = len(starts)
        label_row(axes, y, cut)
        local = -(-size // world_size)
        cursors = [min(r * local + step * batch_size, (r + 1) * local) for r in range(world_size)]
        state = f"consumed = {size - users.count(None)}" if cut == "stride" else f"index() = {cursors}"
        note = f"number: the step that used a position; to go on, remember {state}"
        axes.text(-0.4, y + 1.35, note, va="center", fontsize=10, color=MUTED)
    count = {n: f"{n} piece{'s' * (n != 1)}" for n in pieces.values()}
    title(
        axes,
        f"After {step} step{'s' * (step != 1)}, what is left: {count[pieces['stride']]} with stride, "
        f"{count[pieces['contiguous']]} with contiguous shards",
    )
    return describe(
        figure,
        f"An order of {size} samples over {world_size} ranks after {step} steps of {batch_size} samples a rank. "
        f"Pieces left over: {pieces['stride']} with stride, {pieces['contiguous']} with contiguous shards.",
    )


@dataclass(frozen=True)
class Use:
    """One sample handed to one rank: in run 1 or 2, at the step counted on from run 1, as its `turn`-th sample."""

    run: int
    rank: int
    step: int
    turn: int
    sample: int


def two_runs(
    size: int, before: int, after: int, steps: int, batch_size: int, restart: bool = False, seed: int = 0
) -> tuple[list[Use], int]:
    """Use an epoch with `before` ranks for some steps, then the rest of it with `after` ranks; return all uses.

    restart: the second run knows nothing of the first. Also returns how many samples the first run consumed.
    """
    first = [DistributedSampler(range(size), before, rank, seed=seed) for rank in range(before)]
    uses = [
        Use(1, rank, turn // batch_size + 1, turn, sample)
        for rank, sampler in enumerate(first)
        for turn, sample in enumerate(list(sampler)[: steps * batch_size])
    ]
    consumed, done = len(uses), max((use.step for use in uses), default=0)
    for rank in range(after):
        sampler = DistributedSampler(range(size), after, rank, seed=seed)
        if not restart:
            sampler.load_state_dict(first[0].state_dict(consumed))
        uses += [
            Use(2, rank, done + turn // batch_size + 1, turn, sample) for turn, sample in enumerate(sampler)
        ]
    return uses, consumed


CALENDAR_CONTROLS = {
    "size": whole(20, 36, 36, "N · samples", step=2),
    "before": whole(2, 6, 4, "W before"),
    "after": whole(2, 6, 3, "W after"),
    "steps": whole(0, 6, 3, "steps of run 1"),
    "batch_size": whole(1, 3, 2, "batch size"),
    "restart": switch(False, "restart the epoch instead"),
}


@styled
def draw_calendar(
    *, size: int, before: int, after: int, steps: int, batch_size: int, restart: bool
) -> Figure:
    """Draw both runs as rank × step (a cell: the sample), and below each sample with the step that used it."""
    uses, consumed = two_runs(size, before, after, steps, batch_size, restart)
    uses.sort(key=lambda use: (use.run, use.turn, use.rank))
    times = Counter(use.sample for use in uses)
    ranks, per_row = max(before, after), 18
    wide = {
        run: max((_column(use, batch_size) for use in uses if use.run == run), default=-1) + 1
        for run in (1, 2)
    }
    begin = {1: 0.0, 2: wide[1] + 1.2 if wide[1] else 0.0}
    below = 1 + ranks + 1.3
    figure, axes = cell_sheet(max(begin[2] + wide[2], per_row), below + -(-size // per_row))
    last: dict[int, Use] = {}
    for use in uses:
        x = begin[use.run] + _column(use, batch_size)
        _cell(axes, x, 1 + use.rank, use.sample, use, again=use.sample in last)
        last[use.sample] = use
        if use.rank == 0 and use.turn % batch_size == 0:
            middle = x + (min(batch_size, wide[use.run]) - 1) / 2
            axes.text(middle, 0.35, str(use.step), ha="center", va="center_baseline", fontsize=9, color=MUTED)
    for sample, use in last.items():
        x, y = sample % per_row, below + sample // per_row
        _cell(axes, x, y, use.step, use, again=times[sample] > 1)
    label_row(axes, 0.35, "step", color=MUTED)
    for rank in range(ranks):
        label_row(axes, 1 + rank, f"rank {rank}")
    for run, world_size in ((1, before), (2, after)):
        if wide[run]:
            axes.text(begin[run] - 0.4, -0.3, f"run {run}: {world_size} ranks", va="center", fontsize=10)
    if wide[1] and wide[2]:
        axes.plot([begin[2] - 1.1, begin[2] - 1.1], [-0.4, ranks + 0.5], color=RED, linestyle="--")
    axes.text(-0.4, below - 0.85, "sample by sample: the step that used it", va="center", fontsize=10)
    for first in range(0, size, per_row):
        label_row(axes, below + first // per_row, f"{first} to {min(size, first + per_row) - 1}")
    twice, lost = sum(count > 1 for count in times.values()), size - len(times)
    who = "Restarted" if restart else f"{before} ranks, then {after}"
    again = f"{twice or 'none'} of {size} twice{' (padding)' * bool(twice and not restart)}"
    title(axes, f"{who}: {consumed} + {len(uses) - consumed} samples used, {again}, {lost or 'none'} lost")
    return describe(
        figure,
        f"{size} samples, {before} ranks for {steps} steps of {batch_size} samples, then {after} ranks"
        f"{' from the beginning again' if restart else ''}: {consumed} uses in run 1, {len(uses) - consumed} in run 2, "
        f"{twice} samples twice, {lost} never.",
    )


def _column(use: Use, batch_size: int) -> float:
    return use.turn + 0.3 * (use.turn // batch_size)


def _cell(axes: Axes, x: float, y: float, text: int, use: Use, again: bool) -> None:
    mark: Mark = "padding" if again else "plain" if use.run == 1 else "faded"
    draw_cell(axes, x, y, Cell(text, use.rank, mark, RED if again else None), font=10)
