"""Tasks in lanes for exercise 3 of notebook 00: cases, what is wrong with an answer, and an engine that fills gaps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, TypeAlias

from support.kit.values import kind_of, near
from support.n00.told import told_by_digits

#: Name, lane, seconds, needs.
TaskRow: TypeAlias = tuple[str, str, float, Sequence[str]]


def tasks_by_chance(seed: int, count: int) -> list[TaskRow]:
    """Make tasks in three lanes, each of which needs up to three of those before it."""
    chance = Random(seed)
    tasks: list[TaskRow] = []
    for number in range(count):
        needs = [name for name, *_ in tasks if chance.random() < 0.2][:3]
        tasks.append((f"t{number}", chance.choice("abc"), chance.randint(0, 5), needs))
    return tasks


PLAY_CASES: list[list[TaskRow]] = [
    [("x", "a", 2, []), ("y", "a", 3, [])],
    [("x", "a", 1, []), ("y", "a", 2, []), ("z", "b", 1, ["y"])],
    [("x1", "a", 1, []), ("x", "c", 9, []), ("y", "a", 2, []), ("z", "b", 3, ["x1"])],
    [("x", "a", 4, []), ("y", "b", 1, []), ("z", "b", 2, ["x"]), ("w", "b", 1, [])],
    [("x", "a", 1, []), ("y", "b", 5, []), ("z", "c", 1, ["y", "x"]), ("w", "c", 1, ["x", "y"])],
    [("x", "a", 3, []), ("y", "b", 1, []), ("z", "b", 9, []), ("w", "b", 2, ["x", "y"])],
    [("x", "a", 1, []), ("y", "b", 5, []), ("z", "c", 1, ["x", "y"])],
    [("x", "a", 0.25, []), ("y", "a", 1.5, []), ("z", "b", 2, ["x"])],
    *(tasks_by_chance(seed, 12) for seed in range(6)),
    [("x", "gpu 0", 2, []), ("y", "gpu 10", 3, []), ("z", "gpu 0", 3, ["y"])],
    # c is a task, and a lane:
    [("x", "a", 9, []), ("c", "b", 2, []), ("z", "c", 1, []), ("w", "b", 1, ["x", "c", "z"])],
    [  # the fifth of six ends last
        *(("x", "a", 2, []), ("y", "b", 1, []), ("z", "c", 1, []), ("u", "a", 1, []), ("v", "b", 9, [])),
        *(("t", "c", 1, []), ("w", "c", 1, ["x", "y", "z", "u", "v", "t"])),
    ],
    [("x", "a", 0.0003, []), ("y", "a", 0.0046, []), ("z", "b", 0.0039, ["x"]), ("w", "b", 1 / 3, ["y"])],
    [],
]


def wrong_time(got: Any, expected: Mapping[str, tuple[float, float]], case: Mapping[str, Any]) -> str:
    """Say which task runs at another time; "" if none does."""
    if not isinstance(got, Mapping):
        return f"a dictionary from name to (start, end) expected, not {kind_of(got)}"
    for name, lane, _, _ in case["tasks"]:
        if name not in got:
            return f"{name} is missing"
        times = got[name]
        if not (isinstance(times, Sequence) and len(times) == 2):
            return f"{name} has {times!r}, and not its start and its end"
        if not all(near(mine, right, 1e-9) for mine, right in zip(times, expected[name], strict=True)):
            (start, mine_start), (end, mine_end) = map(told_by_digits, expected[name], times)
            return f"{name} in lane {lane} runs from {start} to {end}, not from {mine_start} to {mine_end}"
    more = [name for name in got if name not in expected]
    return f"{more[0]!r} is no task" if more else ""


def into_gaps(tasks: Sequence[TaskRow]) -> dict[str, tuple[float, float]]:
    """Run each task in the first gap of its lane that is long enough, whatever stands above it in the list."""
    times: dict[str, tuple[float, float]] = {}
    lanes: dict[str, list[tuple[float, float]]] = {}
    for name, lane, seconds, needs in tasks:
        start = max([0, *(times[other][1] for other in needs)])
        for begun, ended in sorted(lanes.setdefault(lane, [])):
            if start + seconds > begun:
                start = max(start, ended)
        times[name] = (start, start + seconds)
        lanes[lane].append(times[name])
    return times
