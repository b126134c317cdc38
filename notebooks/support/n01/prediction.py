"""How a reader's prediction of an epoch is judged, exercise 2 of notebook 01: its cases and famous wrong answers."""

from __future__ import annotations

from operator import add
from typing import Any

from support.kit.exercise import Exercise, cases
from support.kit.mistakes import edited, famous
from support.kit.values import near, short
from support.n01.solved import predict_epoch

# fmt: off
_FAULTS = {
    "Without workers nothing is sent or received.": ("(read + step)", "(read + send + receive + step)"),
    "Without workers the trainer waits for the reading, too.": ("(read + step)", "step"),
    "Without workers nothing overlaps: one process loads, then trains, so the times add up.":
        ("sum(loads) + batches * (read + step)", "max(sum(loads) + batches * read, batches * step)"),
    "The case without workers is missing: then the trainer itself loads.": ("workers == 0", "False"),
    "A batch also has to be sent; in the worker's time that is missing.": ("+ loads[b] + send", "+ loads[b]"),
    "The trainer also has to receive a batch before its step.": ("done[b - 1]) + receive", "done[b - 1])"),
    "A worker waits for the storage, too, before it loads.": ("begun + read", "begun"),
    "Each batch has a load of its own, loads[b]; you took their mean.": ("+ loads[b]", "+ sum(loads) / batches"),
    "Batch b belongs to worker b mod W, even if another is free.":
        ("loaded.get(b - workers, 0)", "min(free)",
         "for b in", "free = [0.0] * workers\n    for b in",
         "+ send\n", "+ send\n        free[free.index(min(free))] = loaded[b]\n"),
    "Rule 2 is missing: a worker loads one batch at a time, b after b - W.": ("loaded.get(b - workers, 0)", "0"),
    "Rule 3 is missing or without effect: batch b is not begun before batch b - W · prefetch was received.":
        ("taken.get(b - workers * prefetch, 0)", "0"),
    "Rule 3: the order goes out when a batch is received; you wait until its step is done.":
        ("taken.get(", "done.get("),
    "Rule 3: the order goes out when a batch is received; you give it before that, when the trainer begins to receive.":
        ("prefetch, 0)", "prefetch, receive) - receive"),
    "Rule 3 counts from batch b - W · prefetch; you take the one before it.": ("prefetch, 0)", "prefetch - 1, 0)"),
    "Rule 3 counts from batch b - W · prefetch; you take the one after it.": ("prefetch, 0)", "prefetch + 1, 0)"),
    "Rule 3 counts W · prefetch places; you count those of one worker.": ("b - workers * prefetch", "b - prefetch"),
    "You took 2 for prefetch, whatever it is.": ("prefetch, 0)", "2, 0)"),
    "A worker begins at the later of two moments, not at their sum.": ("= max(loaded.get", "= plus(loaded.get"),
    "Rule 1 is missing: the trainer takes a batch only when the one before is done.": (", done[b - 1]", ", 0"),
    "That is the pace times the batches: the first batch is not there at time 0.":
        ("done[batches - 1]", "batches * max(receive + step, (read + sum(loads[:1]) + send) / workers)"),
    "The epoch ends with the last step, and that is missing.": ("done[batches - 1]", "taken.get(batches - 1, 0)"),
    "The epoch ends when the last batch is received and trained on; you stop when it is loaded.":
        ("done[batches - 1]", "max([0, *loaded.values()])"),
    "Rule 4 is missing: workers and trainer share the cores.": ("busy / cores", "0"),
    "You let the waiting take a core: who waits for storage needs none.": ("(send + receive", "(read + send + receive"),
    "You forgot the trainer among those that need a core.": ("send + receive + step)", "send)"),
    "Sending needs a core, too: in rule 4 it is missing.":
        ("(send + receive + step)\n    return", "(receive + step)\n    return"),
    "busy / cores need not be a whole number: no //.": ("busy / cores", "busy // cores"),
    "Both are lower bounds: the later counts, not their sum.": ("max(done", "plus(done"),
    "Both are lower bounds: the later counts, not the earlier.": ("max(done", "min(done"),
}
# fmt: on

_ONE_IS_SLOW = [9] * 6 + [99] + [9] * 5
received_at = edited(
    predict_epoch, ("return max(done[batches - 1], busy / cores)", "return list(taken.values())")
)


def _fault_of_prediction(got: Any, expected: float, case: Any) -> str:
    """Tell a difference, and in a small case when each batch is received by the rules."""
    if near(got, expected, 1e-9):
        return ""
    said = f"expected {short(float(expected))}, got {short(got)}"
    if not case["workers"] or not 1 < len(case["loads"]) <= 5:
        return said
    return (
        f"{said}; by the rules the batches are received at {', '.join(f'{t:g}' for t in received_at(**case))}"
    )


check_predict = Exercise(
    "predict_epoch",
    reference=predict_epoch,
    fault=_fault_of_prediction,
    cases=cases(
        "loads workers cores read send receive step prefetch",
        [
            ([20, 26, 20, 23, 21], 0, 64, 5, 1, 3, 12, 2),  # nobody to send to
            ([26, 20, 20, 20], 1, 64, 5, 1, 3, 12, 2),  # rules 1 and 2, the worker is slower
            ([4] * 5, 1, 64, 1, 1, 3, 12, 2),  # the trainer is slower
            ([20], 3, 64, 5, 1, 3, 12, 2),
            ([9, 99, 9, 9, 9], 2, 64, 0, 1, 2, 12, 1),  # places decide
            ([30, 5, 5, 5, 5], 2, 64, 0, 0, 0, 1, 4),  # worker 1 is free, and batch 2 isn't its own
            ([20] * 12, 3, 64, 5, 1, 3, 12, 2),
            (
                [30, 3, 3, 3, 30, 30, 9, 50, 30, 30, 30],
                2,
                64,
                0,
                1,
                2,
                12,
                1,
            ),  # rules 2 and 3 in all their parts
            (_ONE_IS_SLOW, 2, 64, 0, 1, 2, 12, 2),
            (_ONE_IS_SLOW, 2, 64, 0, 1, 2, 12, 3),
            (_ONE_IS_SLOW, 3, 64, 0, 1, 2, 3, 3),
            ([20] * 48, 4, 1.5, 0, 1, 3, 6, 2),  # cores decide
            ([20] * 47, 2, 2, 0, 1, 3, 11, 2),
            ([3] * 48, 6, 2, 30, 1, 1, 4, 2),  # what waits takes no core
            ([8, 1] * 20, 3, 1.5, 18, 1, 2, 9, 2),
            ([], 2, 64, 5, 1, 3, 12, 2),
        ],
    ),
    mistakes=famous(predict_epoch, _FAULTS, names={"plus": add}),
)
"""Exercise 2: the seconds of an epoch, by the four rules."""
