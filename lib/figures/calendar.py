"""Figures of notebook 06: an epoch whose ranks die, and what of it counts in the end.

An attempt is what one set of ranks did from its start to its end. It begins at the step that was saved last, so what
the attempt before it did from that step on is lost with the weights, and is done again.

simulate       two attempts computed with our sampler: killed, and started again from the state
draw_attempts  attempt by attempt, rank × step; below, every row with the rank that counted it
draw_calendar  the two combined, with controls
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from lib.data.samplers import DistributedSampler
from lib.show.explore import steps, switch, whole
from lib.show.sheet import EDGE, LEFT, WIDTH, Cell, draw_cell, inch_sheet, name_rank
from lib.show.style import INK, MUTED, RED, describe, rank_color, styled, title
from lib.training.steps import Step, surviving


def simulate(
    size: int, batch: int, before: int, after: int, kill_at: int, save_every: int, sampler_saved: bool = True
) -> list[Step]:
    """Deal an epoch to `before` ranks, end them in step `kill_at`, and go on with `after` ranks from the saved state.

    batch: samples of all ranks together in a step. sampler_saved: otherwise only weights and step number were saved,
    and the second attempt deals the epoch from its beginning.
    """

    def attempt(number: int, world_size: int, consumed: int, first: int, end: int) -> list[Step]:
        done = []
        for rank in range(world_size):
            sampler = DistributedSampler(range(size), world_size, rank)
            sampler.load_state_dict(sampler.state_dict(consumed=consumed))
            rows, own = tuple(sampler), batch // world_size
            for turn in range(min(end - first, -(-len(rows) // own))):
                part = rows[turn * own : (turn + 1) * own]
                done.append(Step(number, world_size, rank, 0, 0, first + turn, part, 0.0, 0.0, 0.0))
        return done

    saved = kill_at // save_every * save_every
    consumed = saved * batch if sampler_saved else 0
    return attempt(0, before, 0, 0, kill_at) + attempt(1, after, consumed, saved, 1 << 30)


@styled
def draw_attempts(
    done: Iterable[Step], size: int, killed: Mapping[int, tuple[int, int]] | None = None
) -> Figure:
    """Draw rank × step of every attempt (hatched: lost), and the `size` rows of the data with who counted them.

    A cell of the upper part holds how many rows; one of the lower part, up to 120 rows, the step that counted it.
    killed: attempt -> (rank, step) that ended it. Steps that a rank did not finish with the others changed nothing.
    """
    done, killed = _whole_steps(done), dict(killed or {})
    counted = surviving(done)
    times = Counter(row for step in counted for row in step.rows)
    attempts = sorted({step.attempt for step in done} | killed.keys())
    last = max((*(step.step for step in done), *(step for _, step in killed.values()), 0))
    small = size <= 120
    per_line = 24 if small else 96
    side = (WIDTH - LEFT - 0.1) / per_line
    pitch = min(0.42, (WIDTH - LEFT - 0.1) / (last + 1))
    worlds = [max(_world(done, number), killed.get(number, (0, 0))[0] + 1) for number in attempts]
    height = 0.84 + sum(world * pitch + 0.42 for world in worlds) + -(-size // per_line) * side
    figure, axes = inch_sheet(height)
    for step in range(last + 1):
        x = LEFT + (step + 0.5) * pitch
        axes.text(x, 0.08, str(step), ha="center", va="center", fontsize=9, color=MUTED)
    axes.text(EDGE, 0.08, "step", va="center", fontsize=9.5, color=MUTED)
    y = 0.3
    for number, world in zip(attempts, worlds, strict=True):
        own = [step for step in done if step.attempt == number]
        later = [step.step for step in done if step.attempt > number]
        _draw_attempt(axes, own, world, min(later, default=None), killed.get(number), (y, pitch))
        y += world * pitch + 0.42
    again, missed = sum(count > 1 for count in times.values()), size - len(times)
    what = "the step that counted it" if small else "the rank that counted it"
    red = f" (red{', hatched' * small}: twice)" if again else ""
    heading = f"The {size:,} rows of the file, in order: {what}{red}"
    axes.text(EDGE, y + 0.02, heading, va="center", fontsize=10, color=INK)
    _draw_rows(axes, counted, times, size, (y + 0.3 + side / 2, side, per_line), small)
    axes.set(xlim=(EDGE, WIDTH), ylim=(height, 0))
    lost = len({(step.attempt, step.step) for step in done} - {(step.attempt, step.step) for step in counted})
    redone = f"{lost} step{'s' * (lost != 1)} done again"
    rows = f"all {size:,} rows counted" if not missed else f"{missed:,} of {size:,} rows never counted"
    rows += f", {again:,} of them twice" if again else " once" * (not missed)
    path = " → ".join(map(str, worlds))
    title(axes, f"{path} rank{'s' * (path != '1')}: {redone}, {rows}")
    said = [
        f"attempt {number}: {world} ranks, {len({s.step for s in done if s.attempt == number})} steps"
        + (f", rank {killed[number][0]} killed in step {killed[number][1]}" if number in killed else "")
        for number, world in zip(attempts, worlds, strict=True)
    ]
    return describe(figure, f"{'; '.join(said)}. {redone}; {rows}.")


def _world(done: Sequence[Step], attempt: int) -> int:
    return max((step.world_size for step in done if step.attempt == attempt), default=1)


def _whole_steps(done: Iterable[Step]) -> list[Step]:
    done = list(done)
    ranks = Counter((step.attempt, step.step) for step in done)
    return [step for step in done if ranks[step.attempt, step.step] == step.world_size]


def _draw_attempt(
    axes: Axes,
    own: Sequence[Step],
    world_size: int,
    saved: int | None,
    killed: tuple[int, int] | None,
    place: tuple[float, float],
) -> None:
    """Draw one attempt; `saved`: the step from which a later one goes on, and from which this one is lost."""
    y, pitch = place
    for rank in range(world_size):
        name_rank(axes, y + (rank + 0.5) * pitch, rank)
    for step in own:
        spot = LEFT + (step.step + 0.5) * pitch, y + (step.rank + 0.5) * pitch
        lost = saved is not None and step.step >= saved
        cell = Cell(len(step.rows), step.rank, "padding" if lost else "plain")
        draw_cell(axes, *spot, cell, size=0.88 * pitch, font=9)
    if killed:
        x, middle, arm = LEFT + (killed[1] + 0.5) * pitch, y + (killed[0] + 0.5) * pitch, 0.3 * pitch
        for sign in (1, -1):
            axes.plot(
                [x - arm, x + arm], [middle - sign * arm, middle + sign * arm], color=RED, lw=3, zorder=5
            )
        axes.text(x + 0.6 * pitch, middle, "killed", color=RED, va="center", fontsize=10, fontweight="bold")
    if saved is not None:
        x, bottom = LEFT + saved * pitch, y + world_size * pitch
        axes.plot([x, x], [y, bottom + 0.4], color=INK, linestyle="--", linewidth=1.2)
        text = "goes on from the state saved here"
        axes.text(x + 0.06, bottom + 0.2, text, va="center", fontsize=9.5, color=MUTED)


def _draw_rows(
    axes: Axes,
    counted: Sequence[Step],
    times: Mapping[int, int],
    size: int,
    place: tuple[float, float, int],
    small: bool,
) -> None:
    y, side, per_line = place
    who = {row: (step.rank, step.step) for step in counted for row in step.rows}
    squares, colors = [], []
    for row in range(size):
        x = LEFT + (row % per_line + 0.5) * side
        middle = y + row // per_line * side
        rank, step = who.get(row, (None, None))
        twice = times.get(row, 0) > 1
        if small:
            cell = (
                Cell("", None, "dropped")
                if step is None
                else Cell(step, rank, "padding" if twice else "plain")
            )
            cell = Cell(cell.index, cell.rank, cell.mark, RED if twice else None)
            draw_cell(axes, x, middle, cell, size=0.88 * side, font=9)
        else:
            squares.append(Rectangle((x - side / 2, middle - side / 2), 0.84 * side, 0.84 * side))
            colors.append(RED if twice else INK if rank is None else rank_color(rank))
    if squares:
        axes.add_collection(PatchCollection(squares, facecolors=colors, edgecolors="none"))
    for first in range(0, size, per_line if small else 4 * per_line):
        middle = y + first // per_line * side
        axes.text(LEFT - 0.1, middle, f"row {first:,}", ha="right", va="center", fontsize=9, color=MUTED)


CALENDAR_CONTROLS = {
    "before": steps((1, 2, 3, 4), 2, "W before"),
    "after": steps((1, 2, 3, 4), 3, "W after"),
    "kill_at": whole(0, 7, 5, "killed in step"),
    "save_every": whole(1, 4, 3, "saved every … steps"),
    "sampler_saved": switch(True, "the sampler's state is saved too"),
}


def draw_calendar(*, before: int, after: int, kill_at: int, save_every: int, sampler_saved: bool) -> Figure:
    """Draw a simulated epoch of 96 rows, 12 a step, in which the last rank is killed."""
    done = simulate(96, 12, before, after, kill_at, save_every, sampler_saved)
    return draw_attempts(done, 96, {0: (before - 1, kill_at)})
