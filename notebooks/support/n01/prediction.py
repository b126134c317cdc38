"""How a reader's prediction of an epoch is judged, exercise 2 of notebook 01: its cases and famous wrong answers.

A famous mistake is recognised only if the answer gives what it gives in all cases of one kind: without workers, with
cores enough, with few. In a single case two different mistakes may well give the same number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from operator import add
from random import Random
from typing import Any

from support.kit.compare import check_function
from support.kit.exercise import Exercise, cases
from support.kit.mistakes import edited, famous
from support.kit.outside import changed_since, state_of, told_of_kept
from support.kit.values import near, short
from support.kit.verdict import Verdict
from support.n01.solved import predict_epoch

SENT_BY_TRAINER = "Sending is the worker's work, and you let the trainer do it."
FREE_TOO_SOON = (
    "A worker begins its next batch when it has sent the one before; yours begins when that is loaded."
)
NO_STEP = "The step needs a core, too: in rule 4 it is missing."
NO_RECEIVE_COMPUTED = "Receiving needs a core, too: in rule 4 it is missing."
NO_LOADS = "Loading needs a core, too: in rule 4 it is missing."
ONE_UNBOUND = (
    "Rule 3: the first W · prefetch batches have the numbers 0 to W · prefetch - 1, and yours are one more."
)
SENT_TO_NOBODY = "Without workers nothing is sent or received: in rule 4 neither takes a core then."
ALONE_ON_LESS = (
    "Rule 4 holds without workers, too: a process that gets half a core computes for twice as long."
)
FEWER_THAN_ALL = "With more cores than workers rule 4 may still decide: W workers and the trainer want W + 1."
BY_BATCH = "Rule 4 is about a whole epoch: take the later of two ends once, not batch by batch."
STEADY = (
    "Move a slow batch that isn't the first: your prediction stays the same, and by the rules it changes."
)

ENOUGH = 64  # cores, with which rule 4 asks for nothing

# fmt: off
_FAULTS = {
    "Without workers nothing is sent or received.": ("(read + step)", "(read + send + receive + step)"),
    ALONE_ON_LESS: ("if workers == 0:\n", "if workers == 0:\n        cores = 64\n"),
    BY_BATCH: ("max(alone, (sum(loads) + batches * step) / cores)",
               "sum(max(load + read + step, (load + step) / cores) for load in loads)"),
    "Without workers the trainer waits for the reading, too.": ("(read + step)", "step"),
    "Without workers nothing overlaps: one process loads, then trains, so the times add up.":
        ("sum(loads) + batches * (read + step)", "max(sum(loads) + batches * read, batches * step)"),
    "The case without workers is missing: then the trainer itself loads.": ("workers == 0", "False"),
    "A batch also has to be sent; in the worker's time that is missing.": ("+ loads[b] + send", "+ loads[b]"),
    "A worker begins its next batch when it has sent the one before; yours waits until that is received.": (
        "loaded.get(b - workers, 0)",
        "taken.get(b - workers, 0)",
    ),
    SENT_BY_TRAINER: ("+ loads[b] + send", "+ loads[b]", ") + receive", ") + send + receive"),
    FREE_TOO_SOON: ("loaded.get(b - workers, 0)", "loaded.get(b - workers, send) - send"),
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
    "Rule 3: the order goes out when a batch is received; yours goes out before.":
        ("prefetch, 0)", "prefetch, receive) - receive"),
    ONE_UNBOUND: ("taken.get(b - workers * prefetch, 0)",
                  "(taken[b - workers * prefetch] if b > workers * prefetch else 0)"),
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
    "Sending needs a core, too: in rule 4 it is missing.": ("(send + receive + step)\n", "(receive + step)\n"),
    NO_RECEIVE_COMPUTED: ("(send + receive + step)\n", "(send + step)\n"),
    FEWER_THAN_ALL: ("busy / cores", "busy / cores * (cores <= workers)"),
    NO_STEP: ("(send + receive + step)\n", "(send + receive)\n"),
    NO_LOADS: ("busy = sum(loads) + ", "busy = "),
    SENT_TO_NOBODY: ("(sum(loads) + batches * step)", "(sum(loads) + batches * (send + receive + step))"),
    STEADY: ("done[batches - 1], ",
             "(read + send + receive + step + max(loads) + (batches - 1) * "
             "max(receive + step, (read + max(loads) + send) / workers) if loads else 0), "),
    "busy / cores need not be a whole number: no // and no int().": ("busy / cores", "busy // cores"),
    "Both are lower bounds: the later counts, not their sum.": ("max(done", "plus(done"),
    "Both are lower bounds: the later counts, not the earlier.": ("max(done", "min(done"),
}
# fmt: on


def _drawn(count: int) -> list[tuple[Any, ...]]:
    """Draw cases: any number of workers and places, and a little more or fewer cores than all want at once."""
    random = Random(0)
    drawn: list[tuple[Any, ...]] = []
    for _ in range(count):
        workers = random.randrange(1, 6)
        read, send, receive, step = (random.choice((0, 1, 4, 9)) for _ in range(4))
        loads = random.choices((3, 8, 20, 21, 60), k=random.randrange(1, 40))
        if random.random() < 0.5:  # all are busy all the time, and one core too few is felt
            read = 0
            step += 9
            loads = [workers * (receive + step + 1) - send] * 200
        cores = random.choice((0.5, 1, workers, workers + 0.5, workers + 0.75, ENOUGH))
        drawn.append((loads, workers, cores, read, send, receive, step + 1, random.randrange(1, 4)))
    return drawn


_ONE_IS_SLOW = [9] * 6 + [99] + [9] * 5
received_at = edited(
    predict_epoch, ("return max(done[batches - 1], busy / cores)", "return list(taken.values())")
)


def _fault_of_prediction(got: Any, expected: float, case: Any) -> str:
    """Tell a difference, and in a small case when each batch is received by the rules."""
    if near(got, expected, 1e-9):
        return ""
    due = short(float(expected))
    mine = short(got)
    if due == mine:  # they differ behind the digits that are shown
        due = repr(float(expected))
        mine = repr(got)
    said = f"expected {due}, got {mine}"
    if not case["workers"] or not 1 < len(case["loads"]) <= 5:
        return said
    return (
        f"{said}; by the rules the batches are received at {', '.join(f'{t:g}' for t in received_at(**case))}"
    )


def _kind(case: Mapping[str, Any]) -> str:
    """Say which rules decide a case."""
    if not case["workers"]:
        return "alone" if case["cores"] >= 1 else "alone, on less than a core"
    return "cores enough" if case["cores"] == ENOUGH else "few cores"


def _results(answer: Callable[..., Any], group: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return what an answer gives in each case, and for those in which it raises the exception."""
    results: list[Any] = []
    for case in group:
        try:
            results.append(answer(**deepcopy(dict(case))))
        except Exception as error:
            results.append(error)
    return results


def _mistake(exercise: Exercise, answer: Callable[..., Any], group: Sequence[Mapping[str, Any]]) -> str:
    """Return the sentence of the first mistake that gives the same in all cases, "" if there is none."""
    told = [case for case in group if case["loads"]]  # some forget the epoch without batches, besides
    right = _results(exercise.reference, told)
    got = _results(answer, told)
    if _agree(got, right):
        return ""
    agrees = (why for why, wrong in exercise.mistakes.items() if _agree(got, _results(wrong, told)))
    places_count = any(case["workers"] for case in group)  # otherwise it is all the same which batch is slow
    return next(agrees, STEADY if places_count and _is_steady(answer) else "")


def _agree(mine: Sequence[Any], theirs: Sequence[Any]) -> bool:
    return all(near(one, other, 1e-9) for one, other in zip(mine, theirs, strict=True))


def _is_steady(answer: Callable[..., Any]) -> bool:
    """Say whether it makes no difference to a prediction which batch is slow: 254, 250, 232 and 200 are right."""
    times = dict(workers=2, cores=ENOUGH, read=0, send=1, receive=2, step=12, prefetch=3)
    places = (1, 2, 4, 7)
    epochs = [[9] * place + [99] + [9] * (11 - place) for place in places]
    try:
        first, *others = (answer(loads, **times) for loads in epochs)
    except Exception:
        return False
    return _agree(others, [first] * len(others))


def _judge(exercise: Exercise, answer: Callable[..., Any]) -> Verdict:
    """Compare with the reference, kind by kind, up to the first difference."""
    count = 0
    before = state_of(answer)
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for case in exercise.all_cases():
        groups.setdefault(_kind(case), []).append(case)
    for group in groups.values():
        count += len(group)
        verdict = check_function(
            answer,
            exercise.reference,
            group,
            what=exercise.what,
            fault=exercise.fault,
            praise=exercise.praise,
            keeps=exercise.keeps,
        )
        kept = changed_since(before, state_of(answer))
        if kept:
            return exercise.wrong(told_of_kept(kept))
        if not verdict:
            why = _mistake(exercise, answer, group)
            return Verdict("wrong", f"{verdict.message} {why}".strip())
    return exercise.right(exercise.praise.format(count=count) + ".")


check_predict = Exercise(
    "predict_epoch",
    reference=predict_epoch,
    fault=_fault_of_prediction,
    judge=_judge,
    keeps=True,
    cases=cases(
        "loads workers cores read send receive step prefetch",
        [
            ([20, 26, 20, 23, 21], 0, ENOUGH, 5, 1, 3, 12, 2),  # nobody to send to
            ([20, 26, 20], 0, 1, 0, 5, 3, 12, 2),  # one core
            ([26, 20, 20, 20], 1, ENOUGH, 5, 1, 3, 12, 2),  # rules 1 and 2, the worker is slower
            ([4] * 5, 1, ENOUGH, 1, 1, 3, 12, 2),  # the trainer is slower
            ([3, 3, 60], 4, ENOUGH, 5, 1, 3, 12, 2),  # fewer batches than workers, and than places
            ([9, 99, 9, 9, 9], 2, ENOUGH, 0, 1, 2, 12, 1),  # places decide
            ([30, 5, 5, 5, 5], 2, ENOUGH, 0, 0, 0, 1, 4),  # worker 1 is free, and batch 2 isn't its own
            ([20] * 12, 3, ENOUGH, 5, 1, 3, 12, 2),
            # rules 2 and 3 in all their parts
            ([30, 3, 3, 3, 30, 30, 9, 50, 30, 30, 30], 2, ENOUGH, 0, 1, 2, 12, 1),
            # the first batch that has to wait for its order
            ([5, 5, 5, 5, 60, 5, 5], 2, ENOUGH, 0, 1, 15, 3, 2),
            ([26, 20, 23, 20], 1, ENOUGH, 0, 1, 15, 3, 1),
            ([3, 8, 5, 3, 8, 5], 2, ENOUGH, 30, 1, 1, 4, 2),  # the storage is slower than the load
            ([8, 5, 60, 8, 8, 5, 5, 8, 5, 3, 8, 40], 2, ENOUGH, 0, 1, 2, 2, 3),  # how many places there are
            ([40, 3, 8, 5, 5, 3, 8, 3, 40, 5], 3, ENOUGH, 0, 1, 2, 2, 2),
            (_ONE_IS_SLOW, 2, ENOUGH, 0, 1, 2, 12, 3),
            (_ONE_IS_SLOW, 3, ENOUGH, 0, 1, 2, 3, 3),
            ([20] * 48, 4, 1.5, 0, 1, 3, 6, 2),  # cores decide
            ([2] * 20, 3, 1, 0, 9, 9, 6, 2),
            ([20] * 47, 2, 2, 0, 1, 3, 11, 2),
            ([3] * 48, 6, 2, 30, 1, 1, 4, 2),  # what waits takes no core
            ([20] * 25 + [6], 4, 1.5, 0, 1, 3, 6, 2),  # 510 2/3
            ([8, 1] * 20, 3, 1.5, 18, 1, 2, 9, 2),
            ([], 2, ENOUGH, 5, 1, 3, 12, 2),
            ([], 0, 1, 5, 1, 3, 12, 2),
            ([4, 6, 5], 0, ENOUGH, 5, 1, 3, 30, 2),  # the step is longer
            ([0.25, 1.5, 0.5], 0, ENOUGH, 0.25, 1, 1, 0.5, 2),  # no time is a whole number
            ([0.25, 1.5, 0.25, 0.5, 0.75], 2, ENOUGH, 0.5, 0.25, 0.25, 0.5, 1),
            ([0.25, 1.5, 0.25, 0.5, 0.75], 2, 1.5, 0.5, 0.25, 0.25, 0.5, 2),
            ([20, 26, 20], 0, 0.8, 5, 5, 3, 12, 2),  # less than a core, as other programs take the rest
            ([2, 3], 0, 0.8, 30, 1, 1, 4, 2),  # and waiting takes none of it
            ([60, 1], 0, 0.5, 20, 1, 1, 2, 2),  # the cores decide, and not for each batch
            ([20, 30], 3, 0.5, 0, 1, 3, 4, 2),  # fewer batches than workers, and half a core for all
            ([20], 1, 0.5, 0, 1, 3, 4, 2),
            # half a core makes nothing take longer by rules 1 to 3, and these decide
            ([3] * 8, 2, 0.5, 30, 1, 1, 1, 2),
            ([20] * 48, 1, 1.5, 0, 1, 3, 20, 2),  # more cores than workers, and all want one
            (
                [90] * 3 + [3] * 40,
                3,
                1.5,
                0,
                1,
                2,
                9,
                2,
            ),  # the cores decide for the whole epoch, not up to a batch
            ([9] * 100 + [600] + [9] * 140, 9, ENOUGH, 0, 1, 2, 12, 7),  # many workers, places and batches
            *_drawn(60),
        ],
    )
    # as the cells below call it
    + cases("loads workers cores read send receive step", [(_ONE_IS_SLOW, 2, ENOUGH, 0, 1, 2, 12)]),
    mistakes=famous(predict_epoch, _FAULTS, names={"plus": add}),
)
"""Exercise 2: the seconds of an epoch, by the four rules."""
