"""How orders are judged: what they must be, what their ranks hold, how long their step takes; the first fault, told.

Nothing asks for the orders of a certain schedule. An answer is right if it keeps its contract, whatever it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from lib.schedules import Action, Schedule, ScheduleError, simulate, validate, waits_for
from lib.schedules.simulate import HELD
from support.kit.judged import Fault
from support.kit.raised import in_case
from support.kit.values import NO_RETURN
from support.n14.solved import table

OrdersMaker = Callable[..., Any]


class Asked(NamedTuple):
    """A size and what its orders must keep.

    args: of the answer, by name, with m and n. room: what each rank may hold, in activations of one stage. ticks: the
    step must not take longer, if below even be shorter; all forwards of a micro-batch on a rank take 1 tick, all its
    backwards 2, a message `message`. stages: stage s is on rank s mod n; 0: places are the answer's own, and room
    counts whole activations. ops: what may be done.
    """

    args: dict[str, Any]
    room: Sequence[float]
    ticks: float
    stages: int
    ops: str = "FBIW"
    message: float = 0.0
    below: bool = False

    @property
    def case(self) -> str:
        """Name the case."""
        return ", ".join(f"{name} = {value}" for name, value in self.args.items())

    def seconds(self, made: Schedule) -> dict[str, float]:
        """Return what simulate is told."""
        share = len(made.ranks) / made.stages
        return {"forward": share, "backward": 2 * share, "communicate": self.message}


def fault_in(answer: OrdersMaker, asked: Sequence[Asked]) -> str:
    """Return the first fault of an answer in the first case that has one, "" if there is none."""
    for number, each in enumerate(asked):
        with in_case(f"for {each.case}"):
            orders = answer(**each.args)
        said = fault_of(orders, each)
        if said:
            # two answers are the same mistake only if all their orders are
            others = [_quiet(answer, other) for other in asked[number + 1 :]]
            return Fault(f"for {each.case}: {said}", repr((orders, others)))
    return ""


def _quiet(answer: OrdersMaker, asked: Asked) -> Any:
    try:
        return answer(**asked.args)
    except Exception as error:
        return repr(error)


def fault_of(orders: Any, asked: Asked) -> str:
    """Say what is wrong with the orders of one size."""
    n = asked.args["n"]
    if orders is None:
        return f"it {NO_RETURN}."
    if isinstance(orders, Schedule):
        return "a Schedule was returned: return the lists of tasks, `table` comes afterwards."
    if not isinstance(orders, (list, tuple)) or not all(isinstance(order, (list, tuple)) for order in orders):
        return "return a list with a list of tasks for each rank."
    if len(orders) != n:
        return f"there are {len(orders)} orders for {n} ranks."
    for rank, order in enumerate(orders):
        for task in order:
            if not isinstance(task, (list, tuple)) or len(task) != 3:
                return (
                    f'on rank {rank} {task!r} is no task: write one as (op, stage, micro-batch), ("F", 0, 2).'
                )
            if not isinstance(task[0], str) or task[0] not in asked.ops:
                return f"on rank {rank} {task!r} has the op {task[0]!r}; here it is one of {', '.join(asked.ops)}."
            try:
                Action(*task)
            except (ValueError, TypeError) as error:
                return f"on rank {rank} {task!r} is no task: {error}."
    made = table("yours", orders)
    return (
        _fault_of_places(made, asked)
        or _fault_of_run(made, asked)
        or _fault_of_shares(made, asked)
        or _fault_of_room(made, asked)
        or _slow(made, asked)
    )


def _fault_of_places(made: Schedule, asked: Asked) -> str:
    """Say which stage is on a rank that must not have it; 0 for asked.stages leaves it to the answer."""
    n = asked.args["n"]
    for rank, action in made:
        if asked.stages and action.stage < asked.stages and action.stage % n != rank:
            own = ", ".join(str(stage) for stage in range(rank, asked.stages, n))
            return (
                f"rank {rank} does {action}, and stage {action.stage} is not its own: rank {rank} has {own}."
            )
    return ""


def _fault_of_run(made: Schedule, asked: Asked) -> str:
    """Say why the orders can't run."""
    stages = asked.stages or max(made.stages, 1)
    try:
        validate(made, stages=stages, micro_batches=asked.args["m"])
    except ScheduleError as error:
        said = str(error).replace("schedule 'yours' lacks", "these are done nowhere:")
        return f"{said}."
    return ""


def _fault_of_shares(made: Schedule, asked: Asked) -> str:
    """Say which ranks have unequally many stages, where places are the answer's own."""
    counts = [len({action.stage for action in made.actions(rank)}) for rank in range(len(made.ranks))]
    most = max(counts)
    fewest = min(counts)
    if asked.stages or most == fewest:
        return ""
    return (
        f"rank {counts.index(most)} has {most} of the {made.stages} stages, "
        f"rank {counts.index(fewest)} has {fewest}: give all ranks equally many."
    )


def _fault_of_room(made: Schedule, asked: Asked) -> str:
    """Say where a rank first holds more than it has room for."""
    per_rank = made.stages // len(made.ranks)
    for rank, room in enumerate(asked.room):
        most = room if asked.stages else room * per_rank
        live = 0
        for slot, action in enumerate(made.actions(rank)):
            live += HELD[action.op]
            if live > most:
                small = " of a stage" if per_rank > 1 else ""
                return (
                    f"rank {rank} holds {live} activations{small} after {action}, in slot {slot}; "
                    f"there is room for {most:g}."
                )
    return ""


def _slow(made: Schedule, asked: Asked) -> str:
    """Say by how much a step is too long, and where a rank waits."""
    ticks = simulate(made, **asked.seconds(made)).makespan
    enough = ticks < asked.ticks - 1e-6 if asked.below else ticks < asked.ticks + 1e-6
    if enough:
        return ""
    if asked.below and abs(ticks - asked.ticks) < 1e-6:
        return f"the step takes {ticks:g} ticks, which is what it has to beat. {_where(made, asked)}"
    wanted = f"less than {asked.ticks:g}" if asked.below else f"{asked.ticks:g}"
    return f"the step takes {ticks:g} ticks, {wanted} are asked for. {_where(made, asked)}"


def _where(made: Schedule, asked: Asked) -> str:
    """Name an idle time: the longest in which a W was owed, else the longest.

    Where a step has to reach its floor, one that the floor doesn't have: the last rank's first pause. If it makes none
    and backwards may be split, the wait that begins last, for at the step's beginning the shortest orders wait, too.
    """
    waits = [wait for wait in waits_for(made, **asked.seconds(made)) if wait.end - wait.start > 1e-6]
    waits.sort(key=lambda wait: wait.start - wait.end)
    spans = {span.label: span for span in simulate(made, **asked.seconds(made))}
    for wait in waits:
        for action in made.actions(wait.rank):
            if action.op != "W":
                continue
            owed_from = spans[str(action._replace(op="I"))].end
            if owed_from <= wait.start and spans[str(action)].start >= wait.end:
                return (
                    f"Rank {wait.rank} is idle from {wait.start:g} to {wait.end:g}, and could do {action}, "
                    "which it does only later."
                )
    inside = [wait for wait in waits if wait.action is not None and wait.start > 0]
    if not inside:
        return ""
    named = max(inside, key=lambda wait: wait.end - wait.start)
    if not asked.below:
        pauses = [wait for wait in inside if wait.rank == len(made.ranks) - 1]
        if pauses:
            named = min(pauses, key=lambda wait: wait.start)
        elif "W" in asked.ops:
            named = max(inside, key=lambda wait: wait.start)
    return f"From {named.start:g} to {named.end:g} {named}."
