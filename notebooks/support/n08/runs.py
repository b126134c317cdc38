"""The game of notebook 08: a schedule table that is filled action by action.

board = Board(4, 3).place("0F0").place("1F0")
board.refusal("1B0")     "1B0 needs 2B0, …", or "" for a legal move
board.scores()           yours, GPipe and 1F1B: ticks, idle share, activations held
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from lib._values import format_share, integer, plural
from lib.schedules import Action, Schedule, ScheduleError, gpipe, live_activations, one_f_one_b
from lib.schedules.simulate import simulate
from lib.schedules.table import validate
from lib.timeline import Trace


class IllegalMoveError(ValueError):
    """A move that the table can't take; its text is the reason, in a sentence."""


@dataclass(frozen=True)
class Score:
    """Hold what a schedule costs: ticks, idle share, and the most activations that a rank holds."""

    name: str
    ticks: float
    idle: float
    held: int

    def __str__(self) -> str:
        return f"{self.name}: {self.ticks:g} ticks, {format_share(self.idle)} idle, holds at most {self.held}"


@dataclass(frozen=True)
class Board:
    """Hold the moves made so far, for `micro_batches` on `partitions` ranks of one stage each. Immutable.

    A forward takes `forward` ticks, a backward `backward`. Each action stands behind the earlier ones of its rank, and
    starts as soon as what it needs is there: nobody places idle time.
    """

    micro_batches: int
    partitions: int
    forward: float = 1.0
    backward: float = 2.0
    moves: tuple[Action, ...] = ()

    def __post_init__(self) -> None:
        integer("micro_batches", self.micro_batches, at_least=1)
        integer("partitions", self.partitions, at_least=1)

    @cached_property
    def schedule(self) -> Schedule:
        """The table so far: stage j is on rank j."""
        of_rank = [[action for action in self.moves if action.stage == j] for j in range(self.partitions)]
        return Schedule("yours", of_rank)

    @cached_property
    def trace(self) -> Trace:
        """The simulated run of the table so far."""
        if not self.moves:
            return Trace((), [f"rank {rank}" for rank in range(self.partitions)])
        return simulate(self.schedule, self.forward, self.backward)

    def actions(self, rank: int) -> list[Action]:
        """Return all that a rank has to do sometime: its forwards, then its backwards."""
        return [Action(op, rank, i) for op in ("F", "B") for i in range(self.micro_batches)]

    @property
    def left(self) -> int:
        """How many actions are still to be placed; 0 when the table is complete."""
        return 2 * self.micro_batches * self.partitions - len(self.moves)

    def refusal(self, action: Action | str) -> str:
        """Say in a sentence why an action can't come next, or "" if it can. Raises ValueError for what is no action."""
        action = Action.parse(str(action))
        if action.op in "IW":
            return f"{action} is half of a backward; here a backward is whole, {action.stage}B{action.micro_batch}"
        if action.stage >= self.partitions:
            return f"{action} is for stage {action.stage}, but the last stage is {self.partitions - 1}"
        size = {"stages": self.partitions, "micro_batches": self.micro_batches}
        try:
            validate(replace(self, moves=(*self.moves, action)).schedule, complete=False, **size)
        except ScheduleError as error:
            return error.reason
        return ""

    def place(self, *actions: Action | str) -> Board:
        """Return the board with further moves. Raises IllegalMoveError with the reason for the first that can't be."""
        board = self
        for action in actions:
            if reason := board.refusal(action):
                raise IllegalMoveError(reason)
            board = replace(board, moves=(*board.moves, Action.parse(str(action))))
        return board

    def undo(self) -> Board:
        """Return the board without the last move; an empty one as it is."""
        return replace(self, moves=self.moves[:-1])

    def scores(self) -> list[Score]:
        """Return the score of this table (as far as it is filled), of GPipe and of 1F1B, with the same costs."""
        sizes, found = (self.micro_batches, self.partitions), []
        for name, table in (
            ("yours", self.schedule),
            ("GPipe", gpipe(*sizes)),
            ("1F1B", one_f_one_b(*sizes)),
        ):
            trace = self.trace if name == "yours" else simulate(table, self.forward, self.backward)
            found.append(Score(name, trace.end, trace.bubble, max(live_activations(table))))
        return found

    def verdict(self) -> str:
        """Say in a sentence how the table compares; while it is not complete, how much is left."""
        if self.left:
            return f"{len(self.moves)} of {len(self.moves) + self.left} actions placed"
        yours, gpipe_score, best = self.scores()
        later = yours.ticks - best.ticks
        speed = (
            "as fast as" if later == 0 else f"{abs(later):g} ticks {'slower' if later > 0 else 'faster'} than"
        )
        if yours.held <= best.held:
            memory = "no more than 1F1B" if yours.held == best.held else "less than 1F1B"
        else:
            memory = "as much as GPipe" if yours.held == gpipe_score.held else "more than 1F1B"
        most = plural(yours.held, "activation")
        return f"Complete: {speed} GPipe and 1F1B, and holds {memory}: at most {most} a rank"
