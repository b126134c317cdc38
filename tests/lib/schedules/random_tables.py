"""Tables at random, legal and damaged, and a judge of what can run that shares no line with `validate`."""

import random
from collections.abc import Collection
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise, product

from lib.schedules import Action, Schedule


def legal_table(chance: random.Random, ranks: int, most: int = 4) -> Schedule:
    """Deal up to `most` stages to ranks and run random actions of those that can: so their order is legal."""
    stages = chance.randint(1, most)
    m = chance.randint(1, most)
    home = [chance.randrange(ranks) for _ in range(stages)]
    rows: list[list[Action]] = [[] for _ in range(ranks)]
    splits = chance.choice([0, 0.5, 1])
    split = {(s, i): chance.random() < splits for s in range(stages) for i in range(m)}
    ready = [Action("F", 0, i) for i in range(m)]
    while ready:
        op, s, i = action = ready.pop(chance.randrange(len(ready)))
        rows[home[s]].append(action)
        if op == "F" and s + 1 < stages:
            ready.append(Action("F", s + 1, i))
        if op == "I":
            ready.append(Action("W", s, i))
        back = -1  # the stage that can go back now
        if op == "F" and s + 1 == stages:
            back = s
        elif op in "BI":
            back = s - 1
        if back >= 0:
            ready.append(Action("I" if split[back, i] else "B", back, i))
    return Schedule("random", rows)


def damaged(chance: random.Random, schedule: Schedule) -> Schedule:
    """Return the table with one to three faults, of which some do no harm."""
    rows = [schedule.actions(rank) for rank in range(len(schedule.ranks))]
    for _ in range(chance.randint(1, 3)):
        row = chance.choice([row for row in rows if row] or [[Action("F", 0, 0)]])
        k = chance.randrange(len(row))
        fault = chance.choice(["lost", "twice", "moved", "swapped", "turned", "another"])
        if fault == "swapped":
            other = chance.randrange(len(row))
            row[k], row[other] = row[other], row[k]
        elif fault == "turned":
            row[k:] = row[k:][::-1]
        elif fault == "another":
            to = chance.choice("FBIW"), chance.randint(0, schedule.stages), chance.randint(0, schedule.micro_batches)
            row[k] = Action(*to)
        else:
            action = row[k] if fault == "twice" else row.pop(k)
            if fault != "lost":
                other_row = chance.choice(rows)
                other_row.insert(chance.randint(0, len(other_row)), action)
    return Schedule("damaged", rows)


def inputs(action: Action, actions: Collection[Action]) -> set[Action]:
    """Return what an action waits for, of `actions`: said once more, in the words of the arrows between the boxes."""
    op, stage, i = action
    after = {Action(other, stage + 1, i) for other in ("B", "I")} if op in "BI" else set()
    own = {"F": set(), "B": {Action("F", stage, i)}, "I": {Action("F", stage, i)}, "W": {Action("I", stage, i)}}[op]
    before = {Action("F", stage - 1, i)} if op == "F" and stage > 0 else set()
    return {other for other in after | own | before if other in actions}


def graph(schedule: Schedule) -> dict[Action, set[Action]]:
    """Return, for each action, what must come before it: its inputs, and the action before it on its rank."""
    actions = {action for _, action in schedule}
    before = {action: inputs(action, actions) for action in actions}
    for rank in range(len(schedule.ranks)):
        for first, second in pairwise(schedule.actions(rank)):
            before[second].add(first)
    return before


WHOLE = ({"F", "B"}, {"F", "I", "W"})


def can_run(schedule: Schedule, stages: int, micro_batches: int, *, complete: bool = True) -> bool:
    """Judge a table: everything once, each stage on one rank, no circle of waiting, and nothing missing."""
    done = [action for _, action in schedule]
    places = {at: {op for op, *where in done if where == [*at]} for at in product(range(stages), range(micro_batches))}
    if len(done) != sum(map(len, places.values())):  # something is there twice, or of another stage or micro-batch
        return False
    if len({(action.stage, rank) for rank, action in schedule}) != len({action.stage for action in done}):
        return False
    for (stage, i), ops in places.items():
        if ops not in WHOLE if complete else not any(ops <= whole for whole in WHOLE):
            return False
        before = places.get((stage - 1, i), {"F"})
        after = places.get((stage + 1, i), {"B"})
        if ("F" in ops and "F" not in before) or ("W" in ops and "I" not in ops):
            return False
        if ops & {"B", "I"} and not ("F" in ops and after & {"B", "I"}):
            return False
    try:
        TopologicalSorter(graph(schedule)).prepare()
    except CycleError:
        return False
    return bool(done) or not complete
