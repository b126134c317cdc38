"""A schedule as it is written, a cell a slot; and if it can't run, where each rank is stuck, and what for."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lib.pipeline.schedule import Action, Schedule, ScheduleError, validate
from lib.pipeline.schedule.simulate import KINDS
from lib.pipeline.schedule.validate import needs
from lib.show.schedules import name_of
from lib.show.sheet import Cell, arrow, cell_axes, draw_cell
from lib.show.style import (
    INK,
    MUTED,
    RED,
    color_of,
    describe,
    headline,
    new_figure,
    styled,
)
from lib.show.timeline import idle


@styled
def draw_refused(schedule: Schedule) -> Figure:
    """Draw a table as it is written, a cell a slot; if `validate` refuses it, its first illegal action is red.

    An arrow leads to each action at which a rank is stuck, from what it needs (if that is in the table).
    """
    slots = max(map(len, schedule.ranks))
    try:
        validate(schedule)
        error = None
    except ScheduleError as refused:
        error = refused
    figure, axes = new_figure(9, 1.25 + 0.26 * (error is not None) + 0.62 * len(schedule.ranks))
    cell_axes(axes, columns=max(slots, 8), rows=len(schedule.ranks) + 0.3, left=1.6, top=0.5)
    axes.set_anchor("W")
    places: dict[Action, tuple[int, int]] = {}
    for rank, cells in enumerate(schedule.ranks):
        axes.text(-0.8, rank, f"rank {rank}", ha="right", va="center_baseline", color=INK)
        for slot, action in enumerate(cells):
            if action is None:
                idle(axes, rank, [(slot - 0.44, 0.88)], height=0.88)
                continue
            places.setdefault(action, (slot, rank))
            wrong = error is not None and (error.rank, error.slot) == (rank, slot)
            color = RED if wrong else color_of(KINDS[action.op])
            draw_cell(
                axes, slot, rank, Cell(str(action), color=color, mark="plain" if wrong else "faded"), font=10
            )
    for action, needed in stuck(schedule):
        if needed in places and action in places:
            _needs(axes, places[needed], places[action])
    if error is not None:
        said = "arrows: from what is needed to where a rank is stuck"
        axes.text(-0.44, len(schedule.ranks) - 0.3, said, va="center", fontsize=10, color=MUTED)
    axes.text(-0.8, -0.75, "slot", ha="right", va="center", fontsize=9, color=MUTED)
    for slot in range(slots):
        axes.text(slot, -0.75, str(slot), ha="center", va="center", fontsize=9, color=MUTED)
    finding = (
        f"{name_of(schedule)}: it can run" if error is None else f"{name_of(schedule)}: refused. {error}"
    )
    headline(figure, finding)
    waits = "; ".join(f"{action} needs {needed}" for action, needed in stuck(schedule))
    table = "; ".join(schedule.to_text().splitlines())
    return describe(
        figure, f"{finding.rstrip('.')}. The table: {table}." + (f" Stuck: {waits}." if waits else "")
    )


def stuck(schedule: Schedule) -> list[tuple[Action, Action]]:
    """Return where each rank stops for ever, and what it needs there: pairs (action, needed); empty if all can run."""
    every = {action for _, action in schedule}
    rows = [schedule.actions(rank) for rank in range(len(schedule.ranks))]
    done: set[Action] = set()
    going = True
    while going:
        going = False
        for row in rows:
            while row and done.issuperset(needs(row[0], schedule.stages, every)):
                done.add(row.pop(0))
                going = True
    heads = [row[0] for row in rows if row]
    return [
        (head, need) for head in heads for need in needs(head, schedule.stages, every) if need not in done
    ]


def _needs(axes: Axes, start: tuple[int, int], end: tuple[int, int]) -> None:
    bend = -0.45 if start[1] == end[1] else 0.12
    arrow(axes, start, end, width=1.8, head=14, bend=bend, gap=15, zorder=5)
