"""Predictions and exercises of notebook 01, the loading pipeline."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from multiprocessing import dummy
from statistics import median
from typing import Any
from unittest.mock import Mock

from support.kit.exact import exact_number
from support.kit.exercise import Exercise
from support.kit.exercise import use as use
from support.kit.guess import Guess, Tried, letter
from support.kit.judged import judged
from support.kit.mistakes import Mistake, edited
from support.n01 import pinning, timing, trials
from support.n01.one_process import check_alone as check_alone
from support.n01.pinning import fault_of_pinning
from support.n01.prediction import check_predict as check_predict
from support.n01.runs import number_of, simulate_loading, simulate_path, worker_lane
from support.n01.solved import load_in_order, pin_stage, predict_epoch, three_times, work
from support.n01.timing import fault_of_times
from support.n01.trials import fault_in_order, fault_to_the_end

# ---- predictions


def _enough_places() -> int:
    loads = [12] * 12 + [72] + [12] * 7
    deep, *epochs = (simulate_loading(20, loads, 12, 2, places).makespan for places in (64, *range(1, 9)))
    return 1 + epochs.index(deep)


def _gain(load: float, read: float) -> float:
    alone, three = (predict_epoch([load] * 48, w, 2, read, 0, 0, 12) for w in (0, 3))
    return alone / three


KINDS = ("heavy", "slow", "same")


def _kind(my_guess: object) -> object:
    """Read a choice with capitals or spaces, too; of any other word say that it is none."""
    if not isinstance(my_guess, str):
        return my_guess
    word = my_guess.strip().lower()
    return word if word in KINDS else f"{my_guess!r}, which is none of {', '.join(KINDS)}"


def _loader_of(batch: int) -> str:
    """Return the lane in which a batch is loaded, where batch 2 is slow and there are two workers."""
    epoch = simulate_loading(9, [10, 10, 60] + [10] * 6, 10, 2)
    return next(span.lane for span in epoch.only(kind="load") if number_of(span) == batch)


def _worker(my_guess: object) -> object:
    """Read the name of a worker, or its number alone."""
    text = str(my_guess).strip().lower()
    if text.isdigit():
        return worker_lane(int(text))
    return text if isinstance(my_guess, str) else my_guess


_PATH = dict(load=6, pin=1, transfer=2, step=4)
guess_who_loads = Guess(
    "the one that loads batch 4",
    partial(_loader_of, 4),
    read=_worker,
    tried=Tried(right="worker 0", wrong="worker 1"),
)
guess_pipeline = exact_number(
    "the time of 6 batches as a pipeline",
    lambda: simulate_path(6, _PATH).makespan,
    "ms",
    said={
        24: "six steps, 6 · 4; but the slowest hop sets the pace, and that is load",
        36: "six loads, 6 · 6; but the last batch is then pinned, transferred and trained on, too",
        37: "13 + 4 · 6; but five batches come after the first",
    },
    tried=Tried(right=43, wrong=78),
)
guess_places = Guess(
    "the smallest prefetch_factor that hides the slow batch", _enough_places, tried=Tried(right=3, wrong=2)
)
guess_free_host = Guess(
    "the ways in which the call comes back at once",
    lambda: "D",
    read=letter,
    said={
        "BD": "B comes back before the copy is done, and after the host has copied the batch once",
        "B": "B comes back before the copy is done, and after the host has copied the batch once",
        "CD": "pinned memory alone does not free the host: in C it waits for the whole copy",
    },
    tried=Tried(right="D", wrong="BD"),
)
guess_who_gains = Guess(
    "the one that gains more",
    lambda: "slow" if _gain(4, 20) > _gain(24, 0) else "heavy",
    read=_kind,
    tried=Tried(right="slow", wrong="heavy"),
)


# ---- exercises 3 and 4: the loader with workers

_PER_RESULT = "An order for each result that arrives, also for an early one: then the buffer has no bound."
_judged = partial(judged, unsaid=(_PER_RESULT,))
_work = partial(edited, work)
_load = partial(edited, load_in_order)
_LOADED = "results.put((number, collate([dataset[index] for index in indices]), None))"
_LOADED_ITEMS = "results.put((number, collate(items), None))"
_SENT_ERROR = "results.put((number, None, sendable(error)))"
_FIRST_ORDERS = "    hand_out(workers * prefetch)\n"
_NOT_CAUGHT = _work(
    ("        try:\n    ", ""),
    ("        except Exception as error:\n            " + _SENT_ERROR, ""),
)


def _sent_home_in_a_hurry(team: Any, orders: Any, results: Any, missing: Any) -> None:
    """End the workers, and wait no longer than a second for each."""
    for _ in missing:
        results.get()
    for queue, worker in zip(orders, team, strict=True):
        queue.put(None)
        worker.join(1)


END_ALL = "send_home(team, orders, results, missing)"
TO_ITS_END = (("    try:\n", "    if True:\n"), ("    finally:\n", "    if True:\n"))

_IN_ORDER = {
    trials.ARRIVAL: (
        work,
        _load(
            ("while number not in early", "if True"),
            ("arrived, *early[arrived]", "arrived, batch, error"),
            ("batch, error = early.pop(number)", "pass"),
        ),
    ),
    trials.UNBOUND: (work, _load(("hand_out(workers * prefetch)", "hand_out(None)"))),
    trials.TOO_SOON: (
        work,
        _load(
            ("            hand_out(1)\n", ""),
            ("while number not in", "hand_out(1)\n            while number not in"),
        ),
    ),
    _PER_RESULT: Mistake(
        (
            work,
            _load(
                ("            hand_out(1)\n", ""),
                ("missing.remove(arrived)", "missing.remove(arrived)\n" + 16 * " " + "hand_out(1)"),
            ),
        ),
        contains=(trials.TOO_SOON,),
    ),
    trials.STARVED: (
        work,
        _load(("            hand_out(1)\n", ""), ("yield batch", "yield batch\n            hand_out(1)")),
    ),
    trials.WAITS: (work, _load(("while number not in early", "while missing"))),
    trials.KEPT: (work, _load(("early.pop(number)", "early[number]"))),
    trials.LEFT: (work, _load((END_ALL, "pass"))),
    trials.KILLED: (work, _load((END_ALL, "[worker.terminate() for worker in team]"))),
    trials.NOT_FOUND: (
        work,
        _load(("arrived, *early[arrived] = results.get()", "arrived, *early[-arrived - 1] = results.get()")),
    ),
    trials.OWN: (
        work,
        edited(
            load_in_order,
            ("    results = context.Queue()", "    context = dummy\n    results = context.Queue()"),
            names={"dummy": dummy},
        ),
    ),
    trials.BY_HAND: (
        _work((_LOADED, "results.put((number, indices, None))")),
        _load(("yield batch", "yield collate([dataset[index] for index in batch])")),
    ),
    trials.ONE_QUEUE: (
        work,
        _load(
            ("[number % workers]", "[0]"),
            ("queue, results)", "orders[0], results)"),
            (END_ALL, "[orders[0].put(None) for _ in team]; [worker.join() for worker in team]"),
        ),
    ),
    trials.TWICE: (work, _load(("range(len(batches))", "range(len(list(batches)))"))),
    trials.WHOLE: (work, _load(("enumerate(batches)", "enumerate(list(batches))"))),
    trials.COLLATED_HERE: (
        _work(("collate([dataset[index] for index in indices])", "[dataset[index] for index in indices]")),
        _load(("yield batch", "yield collate(batch)")),
    ),
    trials.TOO_MANY: (work, _load((END_ALL, "send_home(team, orders, results, [*missing, 0])"))),
    trials.NO_LIST_GIVEN: (
        _work(
            ("collate([dataset[index] for index in indices])", "collate(map(dataset.__getitem__, indices))")
        ),
        load_in_order,
    ),
    trials.EMPTY_LIST: (
        work,
        _load(("count):\n", "count):\n            if not indices:\n                continue\n")),
    ),
    trials.UNCOLLATED: (_work(("collate([", "([")), load_in_order),
    trials.LEFT_ALONE: (
        work,
        edited(load_in_order, ("send_home(", "in_a_hurry("), names={"in_a_hurry": _sent_home_in_a_hurry}),
    ),
    trials.GONE: (
        work,
        _load(
            ("yield batch", "yield batch; number < len(batches) - 3 or [queue.put(None) for queue in orders]")
        ),
    ),
    trials.UNJOINED: (
        work,
        edited(
            load_in_order,
            (END_ALL, "send_home([Mock() for _ in team], orders, results, missing)"),
            names={"Mock": Mock},
        ),
    ),
}

check_order = Exercise(
    "load_in_order",
    reference=(work, load_in_order),
    answers=2,
    name="work and load_in_order",
    judge=_judged(
        fault_in_order,
        "1 to 4 workers, fast and slow batches, two epochs, real processes: the right order, no place too many, and no "
        "worker left at the end.",
    ),
    mistakes=_IN_ORDER,
)
"""Exercise 3: the loader with workers, in watched threads, then in processes, where nothing goes wrong."""

check_loader = Exercise(
    "load_in_order",
    reference=(work, load_in_order),
    answers=2,
    name="work and load_in_order",
    judge=_judged(
        fault_to_the_end,
        "an error comes at its batch's turn, nothing hangs after it or after a `break`, and no worker is left.",
    ),
    mistakes=_IN_ORDER
    | {
        trials.LOST: (_NOT_CAUGHT, load_in_order),
        trials.AS_TEXT: (_work(("sendable(error)", "str(error)")), load_in_order),
        trials.REBUILT: (work, _load(("raise error", "raise type(error)(*error.args)"))),
        trials.FALSE: (work, _load(("error is not None", "error"))),
        trials.LEFT_EARLY: (work, _load(*TO_ITS_END)),
        trials.TORN: (
            _work(
                (
                    "        try:\n",
                    "        try:\n            items = [dataset[index] for index in indices]\n",
                ),
                ("            " + _LOADED + "\n", ""),
                (_SENT_ERROR, _SENT_ERROR + "\n            continue\n        " + _LOADED_ITEMS),
            ),
            load_in_order,
        ),
        trials.GOES_HOME: (
            _work(
                (
                    "        except Exception",
                    "        except IndexError:\n            return\n        except Exception",
                )
            ),
            load_in_order,
        ),
        trials.CANT_TRAVEL: (_work(("sendable(error)", "error")), load_in_order),
        trials.GIVES_UP: (_work(("orders.get()", "orders.get(timeout=60)")), load_in_order),
        trials.SHARED: (
            work,
            edited(
                load_in_order,
                ("    early = dict[int, Any]()\n", "    early = shared\n    early.clear()\n"),
                names={"shared": dict[int, Any]()},
            ),
        ),
        trials.NOTHING: (
            work,
            _load(("error is not None", "batch is None")),
        ),
        trials.NO_LIST: (
            work,
            _load(("    try:\n        hand_out(workers * prefetch)\n", _FIRST_ORDERS + "    try:\n")),
        ),
    },
)
"""Exercise 4: the same loader, when an item raises and when the loop is left."""


def use_loader(work: Any, load: Any) -> Any:
    """Return the reader's loader with the reader's worker where both are right, otherwise ours."""
    if not check_loader(work, load):
        work, load = check_loader.reference
    return partial(load, work)


# ---- exercise 5: three times

_times = partial(edited, three_times)

check_times = Exercise(
    "three_times",
    reference=three_times,
    judge=judged(
        fault_of_times,
        "the step on batches that are kept, the loader alone, and both as in training, without their starts.",
    ),
    mistakes={
        timing.STARTS: _times(("begun = 0.0", "begun = clock()"), ("if count == 0", "if False")),
        timing.ONE_TOO_MANY: _times((") / count", ") / (count + 1)")),
        timing.TOTAL: _times((") / count", ")")),
        timing.SWAPPED: _times(
            (
                "pace(kept, step), alone",
                "alone, pace(kept, step)",
            )
        ),
        timing.NOT_BOTH: Mistake(
            _times(("pace(loader, step)", "max(pace(kept, step), alone)")),
            contains=(timing.NO_BOTH,),
        ),
        timing.SUM: Mistake(
            _times(("pace(loader, step)", "pace(kept, step) + alone")),
            contains=(timing.NO_BOTH,),
        ),
        timing.EMPTY_STEP: Mistake(
            _times(("pace(kept, step)", "pace(kept, lambda batch: None)")), contains=(timing.NEVER_KEPT,)
        ),
        timing.STILL_LOADING: _times(
            (
                "return pace(kept, step), alone, pace(loader, step)",
                "both = pace(loader, step)\n    next(iter(loader))\n    return pace(kept, step), alone, both",
            )
        ),
        timing.OTHER_CLOCK: _times(("begun = 0.0", "begun = 0.0\n        clock = time.perf_counter")),
        timing.HOLDS: _times(("list(islice(loader, 8))", "list(loader)")),
        timing.MEDIAN: edited(
            three_times,
            ("        begun = 0.0\n", "        looks = []\n"),
            ("        count = 0\n", ""),
            ("for count, batch in enumerate(batches)", "for batch in batches"),
            (
                "            if count == 0:\n                begun = clock()\n",
                "            looks.append(clock())\n",
            ),
            ("return (clock() - begun) / count", "return median(b - a for a, b in pairwise(looks))"),
            names={"median": median, "pairwise": pairwise},
        ),
        timing.STEPS_DIFFER: edited(
            three_times,
            ("pace(kept, step), alone", "usual(kept, step), alone"),
            (
                "    kept = list",
                "    def usual(batches, use):\n        looks = []\n        for batch in batches:\n"
                "            use(batch)\n            looks.append(clock())\n"
                "        return median(b - a for a, b in pairwise(looks))\n\n    kept = list",
            ),
            names={"median": median, "pairwise": pairwise},
        ),
        timing.REPEATED: _times(("list(islice(loader, 8))", "[next(iter(loader))] * 8")),
        timing.FIRST_ONLY: _times(("list(islice(loader, 8))", "[next(iter(loader)) for _ in range(5)]")),
        timing.NEVER_KEPT: _times(
            ("pace(kept, step)", "pace(loader, step) * 0 + by_itself(loader, step)"),
            (
                "    kept = list",
                "    def by_itself(batches, use):\n        took = []\n        for batch in batches:\n"
                "            begun = clock()\n            use(batch)\n            took.append(clock() - begun)\n"
                "        return sum(took[1:]) / len(took[1:])\n\n    kept = list",
            ),
        ),
        timing.NO_BOTH: _times(
            (
                "alone, pace(loader, step)",
                "pace(kept, lambda batch: None), pace(kept, step)",
            )
        ),
        timing.SHORT: _times(
            (
                "pace(loader, lambda batch: None)",
                "pace(islice(loader, 8), lambda batch: None)",
            ),
            ("pace(loader, step)", "pace(islice(loader, 8), step)"),
        ),
        timing.WAITS: Mistake(
            _times(("pace(loader, lambda batch: None)", "pace(loader, step) - pace(kept, step)")),
            contains=(timing.SHORT,),
        ),
    },
)
"""Exercise 5: the three times that say what limits."""


# ---- exercise 6: the stage that pins

_pin = partial(edited, pin_stage)

check_pinning = Exercise(
    "pin_stage",
    reference=pin_stage,
    judge=judged(
        fault_of_pinning, "each batch is pinned and handed on at once, errors keep their place, None ends it."
    ),
    mistakes={
        pinning.UNPINNED: _pin(("batch = pin(batch)", "batch = batch")),
        pinning.PINS_ERRORS: _pin(("if error is None", "if True")),
        pinning.RAISES: _pin(
            ("            try:\n                batch = pin(batch)\n", "            batch = pin(batch)\n"),
            ("            except Exception as failed:\n", ""),
            ("                batch = None\n                error = failed\n", ""),
        ),
        pinning.DROPS_ERRORS: _pin(("        data.put(", "        if error is None:\n            data.put(")),
        pinning.COLLECTS: _pin(
            (
                "(message := results.get()) is not None:",
                "(message := next(all_of)) is not None:",
            ),
            ("    while", "    all_of = iter([*iter(results.get, None), None])\n    while"),
        ),
        pinning.GIVES_UP: _pin(("results.get()", "results.get(timeout=60)")),
        pinning.ONE_ONLY: _pin(
            ("    while", "    message = results.get()\n    if"), ("(message := results.get())", "message")
        ),
        pinning.LEFT_BESIDE: _pin(("                batch = None\n", "")),
        pinning.EMPTY: _pin(("if error is None:", "if error is None and batch is not None:")),
        pinning.TWICE: _pin(("batch = pin(batch)", "batch = [pin(batch), pin(batch)][1]")),
        pinning.STAYS: _pin(
            (
                "    while (message := results.get()) is not None:",
                "    while message := results.get() or results.get():",
            )
        ),
        pinning.NUMBERS_LOST: _pin(("data.put((number, batch, error))", "data.put((batch, error))")),
    },
)
"""Exercise 6: the thread that pins, between the results and the trainer."""
