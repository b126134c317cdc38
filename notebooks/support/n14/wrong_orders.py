"""Famous wrong orders of notebook 14: what readers write where orders are asked for, each with its sentence."""

from __future__ import annotations

from typing import Any

from support.kit.mistakes import Mistake, edited, famous
from support.n14.solved import Task, alternate, beat_1f1b, fill_holes, interleaved, search

# ---- exercise 1


def _gpipe(m: int, n: int) -> list[list[Task]]:
    return [[(op, j, i) for op in "FB" for i in range(m)] for j in range(n)]


def _one_f_one_b(m: int, n: int) -> list[list[Task]]:
    return [
        alternate([("F", j, i) for i in range(m)], [("B", j, i) for i in range(m)], n - j) for j in range(n)
    ]


def _weights_last(m: int, n: int) -> list[list[Task]]:
    halves = [
        alternate([("F", j, i) for i in range(m)], [("I", j, i) for i in range(m)], n - j) for j in range(n)
    ]
    return [[*order, *(("W", j, i) for i in range(m))] for j, order in enumerate(halves)]


_HALVES = 'order.append(("W", j, i))'

BEATING: dict[str, Any] = {
    "That is GPipe: it holds everything.": _gpipe,
    "That is 1F1B itself: its backwards are whole, and a rank in front waits for both halves.": _one_f_one_b,
    "W's put off to the end keep their activations until then.": _weights_last,
    **famous(
        beat_1f1b,
        {
            "W belongs to the gradient of an I: it comes behind it.": (
                '            order.append((op, j, i))\n            if op == "I":\n                ' + _HALVES,
                '            if op == "I":\n                '
                + _HALVES
                + "\n            order.append((op, j, i))",
            ),
            "Each backward is done once: B, or I and W.": (_HALVES, 'order += [("W", j, i), ("B", j, i)]'),
            "An I without its W leaves a gradient out.": (_HALVES, "pass"),
            "Rank j has stage j, and micro-batch i comes last in a task.": (
                "order.append((op, j, i))",
                "order.append((op, i, j))",
                _HALVES,
                'order.append(("W", i, j))',
            ),
            "Every rank begins alike, so nobody is ahead of the rank behind it.": ("n - j)", "1)"),
        },
    ),
}

# ---- exercise 2

_TASK = "            order.append((op, j, i))\n"
_OLDEST = "order.append(owed.pop(0))\n"
_OWE = '            if op == "I":\n                owed.append(("W", j, i))\n'
_PAY = f"            if len(owed) > j:\n                {_OLDEST}"


def _greedy(m: int, n: int) -> list[list[Task]]:
    """Let each rank do what it can at each tick: an I, else a forward if there is room, else a W."""
    orders: list[list[Task]] = [[] for _ in range(n)]
    end: dict[Task, int] = {}
    held = [0] * n
    tick = 0
    while len(end) < 3 * m * n:
        for j in range(n):
            able: list[Task] = []
            for i in range(m):
                if ("F", j, i) in end and (j == n - 1 or end.get(("I", j + 1, i), tick + 1) <= tick):
                    able.append(("I", j, i))
            able += [
                ("F", j, i)
                for i in range(m)
                if held[j] < n and (not j or end.get(("F", j - 1, i), tick + 1) <= tick)
            ]
            able += [("W", j, i) for i in range(m) if ("I", j, i) in end]
            task = next((each for each in able if each not in end), None)
            if task is not None:
                orders[j].append(task)
                end[task] = tick + 1
                held[j] += {"F": 1, "I": 0, "W": -1}[task[0]]
        tick += 1
    return orders


FILLING: dict[str, Any] = {
    "No W is left to fill the holes at the end: each is done as soon as it can be.": edited(
        fill_holes, ("len(owed) > j", "owed")
    ),
    "Whoever takes a forward as soon as there is room has no W's left for the end.": _greedy,
    **famous(
        fill_holes,
        {
            "All W's last: each rank then holds all m activations.": ("len(owed) > j", "False"),
            "The other way round: it is rank 0 that has no room for a W that waits.": (
                "len(owed) > j",
                "len(owed) > n - 1 - j",
            ),
            "One W too many waits.": ("len(owed) > j", "len(owed) > j + 1"),
            "One W more could wait.": ("len(owed) > j", "len(owed) > max(j - 1, 0)"),
            "What is owed at the end has to be done, too: a W left out is a gradient that is wrong, and "
            "nothing says so.": ("order + owed", "order"),
            "With n forwards before its first I each rank holds n, and no W may wait.": ("n - j)", "n)"),
            "As many W's wait as activations are held already, and both need room.": (
                "len(owed) > j",
                "len(owed) > n - j",
            ),
            "Not every rank has the last one's room.": ("len(owed) > j", "len(owed) > n - 1"),
            "A W is owed from its I on, so its I comes first.": (_TASK, "", _PAY, _PAY + _TASK),
            "One forward too few before the first I.": ("n - j)", "max(n - 1 - j, 1))"),
            "One forward too many before the first I: then rank 0 holds n + 1.": ("n - j)", "n - j + 1)"),
            "I, not B: B is both halves at once.": ("FI", "FB", '"I"', '"B"'),
        },
    ),
}

# ---- exercise 5

_AHEAD = "(v - 1) * n + 2 * (n - 1 - j) + 1"

INTERLEAVING = famous(
    interleaved,
    {
        "In whole batches, not in groups: the first stages take all m before the next ones begin.": (
            "range(first, first + n) for first in range(0, m, n)",
            "range(m)",
        ),
        "Backward takes the rank's last stage first: its gradient is there first.": (
            "reversed(stages)",
            "stages",
        ),
        "That is 1F1B's warm-up, without the rounds that a micro-batch makes before its loss is there.": (
            _AHEAD,
            "n - j",
        ),
        "The v - 1 stages before the rank's last are missing in the warm-up.": ("(v - 1) * n + ", ""),
        "One forward too few before the first backward.": (" + 1))", "))"),
        "With neighbouring stages on one rank nothing is interleaved.": (
            "range(j, v * n, n)",
            "range(j * v, (j + 1) * v)",
        ),
        "Rank 0 goes furthest ahead, the last rank least.": ("2 * (n - 1 - j)", "2 * j"),
        "A group goes through all stages of the rank before the next group begins.": (
            "group in groups for s in stages for",
            "s in stages for group in groups for",
        ),
        "Within a group the stage changes after all n micro-batches, not after each one.": (
            "for s in stages for i in group",
            "for i in group for s in stages",
        ),
        "Backwards take the groups in the order of the forwards; only the stages go the other way.": (
            "for group in groups for s in rev",
            "for group in groups[::-1] for s in rev",
        ),
        "A group too many before the first backward.": ("(v - 1) * n + 2", "v * n + 2"),
        "Three forwards more for each rank behind are one too many.": ("2 * (n - 1 - j)", "3 * (n - 1 - j)"),
        "With all v * m forwards first a rank holds all of them, as in GPipe.": (_AHEAD, "v * m"),
        "A backward in halves is another change: here it stays whole.": (
            '("B", s, i) for',
            '("I", s, i) for',
        ),
    },
)

# ---- exercise 6


def _zb_h1(m: int, n: int, message: float, room: int) -> list[list[Task]]:
    return fill_holes(m, n)


SEARCHING: dict[str, Any] = {
    "That is ZB-H1: it uses none of the room beyond n.": Mistake(_zb_h1),
    **famous(
        search,
        {
            "The room counts from the forward to its W.": (
                "listed(m, n, message, room, draw)",
                "listed(m, n, message, m, draw)",
            ),
            "That is the worst of them, not the best.": ("return min(", "return max("),
        },
    ),
}
