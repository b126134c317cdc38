"""Predictions and exercises of notebook 01, the loading pipeline."""

from __future__ import annotations

from functools import partial
from operator import add
from typing import Any
from unittest.mock import Mock

from support.checks import Exercise, Guess, Tried, Verdict, cases
from support.checks import use as use
from support.kit.judged import judged
from support.kit.mistakes import edited, famous
from support.n01.runs import simulate_loading, simulate_path
from support.n01.solved import load_in_order, predict_epoch, work
from support.n01.trials import (
    ARRIVAL,
    AS_TEXT,
    BY_HAND,
    LEFT,
    LOST,
    ONE_QUEUE,
    STARVED,
    TWICE,
    UNBOUND,
    UNCOLLATED,
    UNJOINED,
    WHOLE,
    fault_of_loader,
)

# ---- predictions


def _enough_places() -> int:
    loads = [12] * 12 + [72] + [12] * 7
    deep, *epochs = (simulate_loading(20, loads, 12, 2, places).makespan for places in (64, *range(1, 9)))
    return 1 + epochs.index(deep)


def _gain(load: float, read: float) -> float:
    alone, three = (predict_epoch([load] * 48, w, 2, read, 0, 0, 0, 12) for w in (0, 3))
    return alone / three


class _Told(Guess):
    """A guess some of whose values are told apart."""

    def __call__(self, my_guess: object, *known: Any, **named: Any) -> Verdict:
        if self.what == GAINS and isinstance(my_guess, str) and my_guess not in KINDS:
            said = f"{my_guess!r} is none of {', '.join(KINDS)}: choose one. Read on for the reason."
            return Verdict("note", said)
        if self.what != GAINS and isinstance(my_guess, int) and my_guess in SLIPS:
            return Verdict("note", f"You said {my_guess}; {self.what} = 43 ms. {SLIPS[my_guess]}")
        return super().__call__(my_guess)


KINDS = ("heavy", "slow", "same")
GAINS = "the one that gains more"
SLIPS = {
    24: "6 · 4 is six steps: but the slowest hop sets the pace, and that is load.",
    36: "6 · 6 is six loads: but the last batch is then pinned, transferred and trained on, too.",
    37: "13 + 4 · 6: but five batches come after the first.",
}
_PATH = dict(load=6, pin=1, transfer=2, step=4)
_two, _eight = (simulate_loading(16, 20, 12, 2, prefetch).makespan for prefetch in (2, 8))
guess_pipeline = _Told(
    "the time of 6 batches as a pipeline",
    lambda: simulate_path(6, _PATH).makespan,
    "ms",
    tried=Tried(right=43, wrong=78),
)
guess_deeper_queue = Guess(
    "the gain of prefetch_factor 8 over 2 with even batches",
    lambda: _two / _eight,
    "×",
    tried=Tried(right=1, wrong=4),
)
guess_places = Guess(
    "the smallest prefetch_factor that hides the slow batch", _enough_places, tried=Tried(right=3, wrong=2)
)
guess_who_gains = _Told(
    GAINS,
    lambda: "slow" if _gain(4, 20) > _gain(24, 0) else "heavy",
    tried=Tried(right="slow", wrong="heavy"),
)


# ---- exercise 1: the model of an epoch

# fmt: off
_FAULTS = {
    "Without workers nothing is sent or received.": ("collate + step)", "collate + step + send + receive)"),
    "Without workers the trainer waits for the reading, too.": ("(read + collate + step)", "(collate + step)"),
    "Without workers nothing overlaps: one process loads, then trains, so the times add up.":
        ("sum(loads) + batches * (read + collate + step)",
         "max(sum(loads) + batches * (read + collate), batches * step)"),
    "The case without workers is missing: then the trainer itself loads.": ("workers == 0", "False"),
    "A batch also has to be sent; in the worker's time that is missing.":
        ("+ loads[b] + collate + send", "+ loads[b] + collate"),
    "The trainer also has to receive a batch before its step.": ("taken[b] + receive + step", "taken[b] + step"),
    "Each batch has a load of its own, loads[b]; you took their mean.": ("+ loads[b]", "+ sum(loads) / batches"),
    "Batch b belongs to worker b mod W, even if another is free.":
        ("loaded.get(b - workers, 0)", "min(free)",
         "for b in", "free = [0.0] * workers\n    for b in",
         "+ collate + send\n", "+ collate + send\n        free[free.index(min(free))] = loaded[b]\n"),
    "Rule 2 is missing: a worker loads one batch at a time, b after b - W.": ("loaded.get(b - workers, 0)", "0"),
    "Rule 3 is missing: batch b is not begun before batch b - W · prefetch was taken.":
        ("taken.get(b - workers * prefetch, 0)", "0"),
    "Rule 3: the order comes when a batch is taken; you wait until its step is done.": ("taken.get(", "done.get("),
    "Rule 3: the order comes when a batch is taken; you let the trainer receive it first.":
        ("prefetch, 0)", "prefetch, -receive) + receive"),
    "Rule 3 counts from batch b - W · prefetch; you take the one before it.": ("prefetch, 0)", "prefetch - 1, 0)"),
    "Rule 3 counts from batch b - W · prefetch; you take the one after it.": ("prefetch, 0)", "prefetch + 1, 0)"),
    "You took 2 for prefetch, whatever it is.": ("prefetch, 0)", "2, 0)"),
    "A worker begins at the later of two moments, not at their sum.": ("= max(loaded.get", "= plus(loaded.get"),
    "Rule 1 is missing: the trainer takes a batch only when the one before is done.": (", done[b - 1]", ", 0"),
    "That is the pace times the batches: the first batch is not there at time 0.":
        ("done[batches - 1]", "batches * max(receive + step, (read + loads[0] + collate + send) / workers)"),
    "Rule 4 is missing: workers and trainer share the cores.": ("busy / cores", "0"),
    "You let the waiting take a core: who waits for storage needs none.": ("(collate + send", "(read + collate + send"),
    "You forgot the trainer among those that need a core.": ("send + receive + step)", "send)"),
    "Sending needs a core, too: in rule 4 it is missing.": ("(collate + send + r", "(collate + r"),
    "busy / cores need not be a whole number: no //.": ("busy / cores", "busy // cores"),
    "Both are lower bounds: the later counts, not their sum.": ("max(done", "plus(done"),
    "Both are lower bounds: the later counts, not the earlier.": ("max(done", "min(done"),
}
# fmt: on

_ONE_IS_SLOW = [9] * 6 + [99] + [9] * 5

check_predict = Exercise(
    "predict_epoch",
    reference=predict_epoch,
    cases=cases(
        "loads workers cores read collate send receive step prefetch",
        [
            ([20, 26, 20, 23, 21], 0, 64, 5, 2, 1, 3, 12, 2),  # nobody to send to
            ([20] * 5, 1, 64, 5, 2, 1, 3, 12, 2),  # rules 1 and 2, the worker is slower
            ([4] * 5, 1, 64, 0, 2, 1, 3, 12, 2),  # the trainer is slower
            ([20] * 1, 3, 64, 5, 2, 1, 3, 12, 2),
            ([20] * 12, 3, 64, 5, 2, 1, 3, 12, 2),
            (
                [30, 3, 3, 3, 30, 30, 9, 50, 30, 30, 30],
                2,
                64,
                0,
                1,
                1,
                2,
                12,
                1,
            ),  # rules 2 and 3 in all their parts
            (
                [30, 5, 5, 5, 5, 5, 5, 5],
                2,
                64,
                0,
                0,
                0,
                0,
                1,
                4,
            ),  # worker 1 is free, and batch 2 isn't its own
            (_ONE_IS_SLOW, 2, 64, 0, 1, 1, 2, 12, 2),  # places decide
            (_ONE_IS_SLOW, 2, 64, 0, 1, 1, 2, 12, 3),
            ([20] * 48, 4, 1.5, 0, 2, 1, 3, 6, 2),  # cores decide
            ([20] * 47, 2, 2, 0, 2, 1, 3, 11, 2),
            ([3] * 48, 6, 2, 30, 1, 1, 1, 4, 2),  # what waits takes no core
            ([8, 1] * 20, 3, 1.5, 18, 1, 1, 2, 9, 2),
        ],
    ),
    mistakes=famous(predict_epoch, _FAULTS, names={"plus": add}),
)
"""Exercise 1: the seconds of an epoch, by the four rules."""


# ---- exercise 2: the loader

_work = partial(edited, work)
_load = partial(edited, load_in_order)
_LOADED = "results.put((number, collate([dataset[index] for index in indices]), None))"
END_ALL = "send_home(team, orders, results, missing)"

check_loader = Exercise(
    "load_in_order",
    reference=(work, load_in_order),
    answers=2,
    name="work and load_in_order",
    judge=judged(
        fault_of_loader,
        "1 to 4 workers, fast and slow batches, an error, a `break`, two epochs, real processes: the right order, no "
        "place too many, and no worker left.",
    ),
    mistakes={
        ARRIVAL: (
            work,
            _load(
                ("while number not in early", "if True"),
                ("arrived, *early[arrived]", "arrived, batch, error"),
                ("batch, error = early.pop(number)", "pass"),
            ),
        ),
        UNBOUND: (work, _load(("hand_out(workers * prefetch)", "hand_out(None)"))),
        STARVED: (
            work,
            _load(("            hand_out(1)\n", ""), ("yield batch", "yield batch\n            hand_out(1)")),
        ),
        LOST: (
            _work(
                ("        try:\n    ", ""),
                ("        except Exception as error:\n            results.put((number, None, error))", ""),
            ),
            load_in_order,
        ),
        LEFT: (work, _load((END_ALL, "pass"))),
        BY_HAND: (
            _work((_LOADED, "results.put((number, indices, None))")),
            _load(("yield batch", "yield collate([dataset[index] for index in batch])")),
        ),
        ONE_QUEUE: (
            work,
            _load(
                ("[number % workers]", "[0]"),
                ("queue, results)", "orders[0], results)"),
                (END_ALL, "[orders[0].put(None) for _ in team]; [worker.join() for worker in team]"),
            ),
        ),
        TWICE: (work, _load(("range(len(batches))", "range(len(list(batches)))"))),
        WHOLE: (work, _load(("enumerate(batches)", "enumerate(list(batches))"))),
        UNCOLLATED: (_work(("collate([", "([")), load_in_order),
        AS_TEXT: (_work(("None, error)", "None, str(error))")), load_in_order),
        UNJOINED: (
            work,
            edited(
                load_in_order,
                (END_ALL, "send_home([Mock() for _ in team], orders, results, missing)"),
                names={"Mock": Mock},
            ),
        ),
    },
)
"""Exercise 2: the loader with workers, in watched threads, then in processes."""


def use_loader(work: Any, load: Any) -> Any:
    """Return the reader's loader with the reader's worker where both are right, otherwise ours."""
    if not check_loader(work, load):
        work, load = check_loader.reference
    return partial(load, work)
