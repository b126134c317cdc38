"""Every small table there is: `validate` takes those that can be done, and no other.

The judge does a table. What an action needs is a token that it takes from where it lies, and what it makes is a token
that it puts down for another; whoever finds none stands still. The graph of random_tables is another judge, which
needs rules where this one needs only tokens: of what is done twice the second finds nothing.
"""

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise, permutations, product

import pytest

from lib.schedules import Action, Schedule, ScheduleError, simulate, validate
from lib.schedules.table import OPS, SPLIT, WHOLE, Op
from tests.sizes import size

Rows = list[list[Action]]
Token = tuple[str, int, int]  # what it is, stage, micro-batch

WANTS = {"F": ("activation",), "B": ("saved", "gradient"), "I": ("saved", "gradient"), "W": ("owed",)}


def takes(action: Action) -> list[Token]:
    return [(what, action.stage, action.micro_batch) for what in WANTS[action.op]]


def makes(action: Action, stages: int) -> list[Token]:
    op, stage, i = action
    if op == "F" and stage + 1 < stages:
        return [("saved", stage, i), ("activation", stage + 1, i)]
    if op == "F":
        return [("saved", stage, i), ("gradient", stage, i)]  # of the loss
    if op == "W":
        return []
    before = [("gradient", stage - 1, i)] if stage > 0 else []
    return [*before, ("owed", stage, i)] if op == "I" else before


def done(rows: Rows, stages: int, micro_batches: int) -> tuple[list[int], Counter[Token]]:
    """Do what can be done, each rank in order. Return how far each came, and the tokens that are left."""
    tokens: Counter[Token] = Counter(("activation", 0, i) for i in range(micro_batches))
    came = [0] * len(rows)
    going = True
    while going:
        going = False
        for rank, row in enumerate(rows):
            while came[rank] < len(row):
                action = row[came[rank]]
                if not all(tokens[token] for token in takes(action)):
                    break
                tokens.subtract(takes(action))
                tokens.update(makes(action, stages))
                came[rank] += 1
                going = True
    return came, +tokens


def at_home(rows: Rows) -> bool:
    homes = {(action.stage, rank) for rank, row in enumerate(rows) for action in row}
    return len(homes) == len({stage for stage, _ in homes})


def judge(rows: Rows, stages: int, micro_batches: int) -> tuple[bool, bool]:
    """Say whether a table can be done, and whether nothing is missing then."""
    came, left = done(rows, stages, micro_batches)
    can = came == [len(row) for row in rows] and at_home(rows)
    can = can and all(action.stage < stages and action.micro_batch < micro_batches for row in rows for action in row)
    return can, can and any(rows) and not left


def refusal(schedule: Schedule, stages: int, micro_batches: int, *, complete: bool) -> ScheduleError | None:
    try:
        validate(schedule, stages=stages, micro_batches=micro_batches, complete=complete)
    except ScheduleError as error:
        return error
    return None


def agree(rows: Rows, stages: int, micro_batches: int) -> tuple[bool, bool]:
    """Ask validate as well; where it tells of waiting, the action that it names is one that nobody can do."""
    schedule = Schedule("small", rows)
    verdict = judge(rows, stages, micro_batches)
    refusals = [refusal(schedule, stages, micro_batches, complete=complete) for complete in (False, True)]
    assert verdict == tuple(each is None for each in refusals), f"\n{schedule}"
    waiting = refusals[0]
    if waiting is not None and " does only " in waiting.reason:
        came, _ = done(rows, stages, micro_batches)
        assert waiting.rank is not None
        assert waiting.action in rows[waiting.rank][came[waiting.rank] :], f"\n{schedule}\n{waiting}"
    if verdict[0] and any(rows):
        assert len(simulate(schedule)) == sum(map(len, rows))
    return verdict


def dealt(actions: list[Action], ranks: int, cells: int) -> Iterator[Rows]:
    """Yield all ways to write so many actions into rows: any of them, any number of times, in any order."""
    for order in product(actions, repeat=cells):
        for cuts in product(range(cells + 1), repeat=ranks - 1):
            if list(cuts) == sorted(cuts):
                borders = [0, *cuts, cells]
                yield [list(order[a:b]) for a, b in pairwise(borders)]


def universe(stages: int, micro_batches: int) -> list[Action]:
    return [Action(op, stage, i) for op in OPS for stage in range(stages) for i in range(micro_batches)]


@pytest.mark.parametrize(
    ("stages", "micro_batches", "ranks", "most"),
    size(
        suite=[(1, 1, 1, 5), (1, 2, 1, 4), (1, 1, 2, 4), (2, 1, 1, 4), (2, 1, 2, 3)],
        prove=[(1, 1, 1, 8), (1, 2, 1, 6), (1, 1, 2, 6), (2, 1, 1, 6), (2, 1, 2, 5), (2, 2, 2, 4), (3, 1, 3, 4)],
    ),
)
def test_of_all_tables_with_a_few_cells_validate_takes_those_that_can_be_done(stages, micro_batches, ranks, most):
    """Whatever stands in them, one stage and one micro-batch more than there are included."""
    found: Counter[tuple[bool, bool]] = Counter()
    actions = universe(stages, micro_batches)
    for cells in range(most + 1):
        found.update(agree(rows, stages, micro_batches) for rows in dealt(actions, ranks, cells))
    assert found[True, False], "it can run, but something is missing"
    assert found[False, False]
    assert found[True, True] or most < 2 * stages * micro_batches
    beyond = [*actions, Action("F", stages, 0), Action("F", 0, micro_batches)]
    for cells in range(3):
        for rows in dealt(beyond, ranks, cells):
            agree(rows, stages, micro_batches)


def orders(parts: Iterable[list[Action]]) -> Iterator[Rows]:
    return (list(map(list, rows)) for rows in product(*map(permutations, parts)))


def stage_actions(ops: tuple[Op, ...], stage: int, micro_batches: int) -> list[Action]:
    return [Action(op, stage, i) for op in ops for i in range(micro_batches)]


@pytest.mark.parametrize(
    ("ops", "micro_batches"),
    size(
        suite=[((WHOLE,), 3), ((SPLIT,), 2), ((WHOLE, WHOLE), 2), ((SPLIT, WHOLE), 1), ((SPLIT, SPLIT), 1)],
        prove=[((WHOLE,), 4), ((WHOLE, SPLIT), 2), ((SPLIT, WHOLE), 2), ((WHOLE, WHOLE, WHOLE), 2)],
    ),
)
def test_of_all_orders_of_a_whole_table_validate_takes_those_without_a_circle_of_waiting(ops, micro_batches):
    """Nothing is missing and nothing is too much here: it is the order alone that decides."""
    parts = [stage_actions(each, stage, micro_batches) for stage, each in enumerate(ops)]
    found = Counter(agree(rows, len(ops), micro_batches) for rows in orders(parts))
    assert found[True, True]
    assert found[False, False]
    assert not found[True, False]


def grown(chance: random.Random, stages: int, micro_batches: int, faults: float) -> Rows:
    """Write a table by doing it: always an action that can be done now; or, that is a fault, any other, or two turned.

    It may end before its time.
    """
    rows: Rows = [[] for _ in range(chance.randint(1, 3))]
    home = [chance.choice(rows) for _ in range(stages)]
    actions = universe(stages, micro_batches)
    while chance.random() > 0.01:
        _, tokens = done(rows, stages, micro_batches)
        possible = [action for action in actions if tokens.keys() >= set(takes(action))]
        if not possible:
            break
        fault = chance.random() < faults
        action = chance.choice(actions if fault and chance.random() < 0.5 else possible)
        row = home[action.stage]
        row.append(action)
        if fault:
            row.insert(chance.randrange(len(row)), row.pop())
    return rows


@pytest.mark.parametrize("seed", range(size(suite=3, prove=100)))
def test_of_larger_tables_some_at_random(seed):
    chance = random.Random(seed)
    found: Counter[tuple[bool, bool]] = Counter()
    for _ in range(100):
        stages = chance.randint(1, 4)
        micro_batches = chance.randint(1, 3)
        rows = grown(chance, stages, micro_batches, faults=chance.choice([0, 0, 0.02, 0.1]))
        found[agree(rows, stages, micro_batches)] += 1
    assert all(found[verdict] for verdict in [(True, True), (True, False), (False, False)])
