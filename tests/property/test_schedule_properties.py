"""What holds for the table of every maker, whatever its sizes; validate and simulate against a graph of actions."""

import random
import tempfile
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.schedules import Action, Schedule, ScheduleError, simulate, validate, waits_for
from lib.schedules.legal import slotted
from lib.schedules.makers import MAKERS, Maker
from tests.lib.refusal import refuses
from tests.lib.schedules.random_tables import can_run, damaged, graph, inputs, legal_table


@st.composite
def sizes(draw: st.DrawFn) -> tuple[Maker, int, int, int]:
    """Draw a maker, m, n and the number of stages a rank."""
    maker = draw(st.sampled_from([*MAKERS.values()]))
    n = draw(st.integers(1, 4))
    m = draw(st.integers(maker.fewest(n), 10))
    v = draw(st.integers(1, 3)) if maker.looped else maker.fixed_stages
    return maker, m, n, v


def made(maker: Maker, m: int, n: int, v: int) -> Schedule:
    return maker.table(m, n, v)


schedules = sizes().map(lambda drawn: made(*drawn))
costs = st.fixed_dictionaries(
    {"forward": st.integers(1, 4), "backward": st.integers(2, 6), "communicate": st.integers(0, 3)}
)


def swapped(schedule: Schedule, rank: int, a: int, b: int) -> Schedule:
    rows = [schedule.actions(r) for r in range(len(schedule.ranks))]
    rows[rank][a], rows[rank][b] = rows[rank][b], rows[rank][a]
    return Schedule("swapped", rows)


@given(sizes())
def test_every_table_is_legal_and_complete_and_the_same_each_time(drawn: tuple[Maker, int, int, int]) -> None:
    maker, m, n, v = drawn
    schedule = made(*drawn)
    assert len(schedule.ranks) == n
    validate(schedule, stages=n * v, micro_batches=m)
    assert schedule == made(*drawn)
    assert schedule.name == maker.make.__name__


@given(schedules)
def test_an_action_stands_behind_the_slots_of_its_inputs_and_never_later_than_needed(schedule: Schedule) -> None:
    slot = {cell: k for row in schedule.ranks for k, cell in enumerate(row) if cell is not None}
    for action, before in graph(schedule).items():
        assert slot[action] == max((slot[other] + 1 for other in before), default=0)
    assert slotted(schedule.compact()) == schedule


@given(schedules, st.data())
def test_a_table_with_two_dependent_actions_swapped_is_refused(schedule: Schedule, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, len(schedule.ranks) - 1))
    row = schedule.actions(rank)
    pairs = [(row.index(needed), b) for b, action in enumerate(row) for needed in inputs(action, row)]
    a, b = data.draw(st.sampled_from(pairs))
    refuses(ScheduleError, f"rank {rank}, slot", validate, swapped(schedule, rank, a, b))


@given(schedules, st.data())
def test_a_table_that_lacks_an_action_is_refused_and_the_action_named(schedule: Schedule, data: st.DataObject) -> None:
    lost = data.draw(st.sampled_from([action for _, action in schedule]))
    rows = [[cell for cell in row if cell != lost] for row in schedule.ranks]
    with pytest.raises(ScheduleError) as caught:
        validate(Schedule("lost", rows), stages=schedule.stages, micro_batches=schedule.micro_batches)
    whole = lost._replace(op="B")  # without its I, a W and what is in front of it miss a backward, in whatever form
    assert {str(lost), str(whole)} & set(str(caught.value).replace(",", "").split())


def takes(schedule: Schedule, **asked: Any) -> bool:
    """Return what validate thinks of a table; a refusal says where, unless something is missing."""
    refusal = None
    try:
        validate(schedule, **asked)
    except ScheduleError as error:
        refusal = error
    if refusal and refusal.rank is not None and refusal.slot is not None:
        assert schedule.ranks[refusal.rank][refusal.slot] == refusal.action
        assert str(refusal).startswith(f"rank {refusal.rank}, slot {refusal.slot}: {refusal.action} ")
    elif refusal:
        assert " lacks " in str(refusal) or " has no actions" in str(refusal)
    return refusal is None


@given(st.randoms(use_true_random=False), schedules, st.booleans(), st.integers(0, 1))
def test_validate_takes_exactly_the_tables_that_can_run(
    chance: random.Random, made_one: Schedule, at_random: bool, more: int
) -> None:
    """Judged from the definition: of what is there and missing, and of circles in the graph."""
    table = legal_table(chance, chance.randint(1, 3)) if at_random else made_one
    assert can_run(table, table.stages, table.micro_batches)
    assert takes(table)
    other = damaged(chance, table)
    n = table.stages + more
    m = table.micro_batches + more
    for judged in (other, Schedule("its begin", [row[: chance.randint(0, len(row))] for row in other.ranks])):
        for complete in (True, False):
            allowed = can_run(judged, n, m, complete=complete)
            assert takes(judged, stages=n, micro_batches=m, complete=complete) == allowed
        assert takes(judged) == can_run(judged, judged.stages, judged.micro_batches)


@given(schedules, costs)
def test_the_makespan_is_the_longest_path(schedule: Schedule, costs: dict[str, int]) -> None:
    trace = simulate(schedule, **costs)
    before = graph(schedule)
    half = costs["backward"] / 2
    cost = {"F": costs["forward"], "B": costs["backward"], "I": half, "W": half}
    end: dict[Action, float] = {}
    for action in TopologicalSorter(before).static_order():
        travel = {
            other: costs["communicate"] * (schedule.rank_of[other.stage] != schedule.rank_of[action.stage])
            for other in before[action]
        }
        end[action] = cost[action.op] + max((end[other] + travel[other] for other in before[action]), default=0)
    assert {span.label: span.end for span in trace} == {str(action): time for action, time in end.items()}
    assert trace.makespan == max(end.values())


@given(schedules, costs)
def test_a_rank_works_or_waits(schedule: Schedule, costs: dict[str, int]) -> None:
    trace = simulate(schedule, **costs)
    waits = waits_for(schedule, **costs)
    assert trace == simulate(schedule, **costs)
    assert waits == waits_for(schedule, **costs)
    for rank, lane in enumerate(trace.lanes):
        busy = trace.busy(lane)
        stages = sum(home == rank for home in schedule.rank_of.values())
        assert busy == stages * schedule.micro_batches * (costs["forward"] + costs["backward"])
        assert busy <= trace.makespan
        assert busy + sum(wait.end - wait.start for wait in waits if wait.rank == rank) == trace.makespan


@given(schedules, costs)
def test_dearer_communication_never_helps(schedule: Schedule, costs: dict[str, int]) -> None:
    dearer = {**costs, "communicate": costs["communicate"] + 1}
    assert simulate(schedule, **costs).makespan <= simulate(schedule, **dearer).makespan


numbers = st.integers(0, 30)
cells = st.none() | st.builds(Action, st.sampled_from("FBIW"), numbers, numbers)


@given(st.lists(st.lists(cells, max_size=6), min_size=1, max_size=4))
def test_any_table_is_read_as_it_was_written(rows: list[list[Action | None]]) -> None:
    schedule = Schedule("any", rows)
    assert Schedule.from_text("any", schedule.to_text()) == schedule
    with tempfile.TemporaryDirectory() as folder:
        schedule.to_csv(Path(folder) / "table.csv")
        assert Schedule.from_csv("any", Path(folder) / "table.csv") == schedule
