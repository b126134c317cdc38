"""Predictions and exercises of notebook 01, the loading pipeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from operator import add
from typing import Any
from unittest.mock import Mock

from lib.text import plural
from support.checks import Exercise, Guess, Tried, Verdict, cases
from support.checks import use as use
from support.kit.source import source_of
from support.n01.runs import simulate_loading, simulate_path
from support.n01.solved import load_in_order, predict_epoch, send_home, work
from support.n01.watched import Batches, Items, Stuck, Team, on_processes


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


KINDS, GAINS = ("heavy", "slow", "same"), "the one that gains more"
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


def _but(thing: Any, *changes: tuple[str, str]) -> Any:
    """Return a part of the solution with some of its lines otherwise: a famous mistake."""
    text = source_of(thing)
    for old, new in changes:
        assert old in text, f"the solution has no {old!r}"
        text = text.replace(old, new)
    space = {
        "Any": Any,
        "Sequence": Sequence,
        "islice": islice,
        "send_home": send_home,
        "Mock": Mock,
        "_plus": add,
    }
    exec(text, space)
    return space[thing.__name__]


_epoch_but, _load_but = partial(_but, predict_epoch), partial(_but, load_in_order)

_ALONE = "sum(loads) + batches * (read + collate + step)"
_FREE, _ORDERED = "loaded.get(b - workers, 0)", "taken.get(b - workers * prefetch, 0)"
_LOADED_AT, _DONE = "+ loads[b] + collate + send", "taken[b] + receive + step"
_PACE = "batches * max(receive + step, (read + loads[0] + collate + send) / workers)"

_FAULTS = {
    "Without workers nothing is sent or received.": (_ALONE, _ALONE[:-1] + " + send + receive)"),
    "Without workers the trainer waits for the reading, too.": (_ALONE, "sum(loads) + batches * (collate + step)"),
    "Without workers nothing overlaps: one process loads, then trains, so the times add up.":
        (_ALONE, "max(sum(loads) + batches * (read + collate), batches * step)"),
    "The case without workers is missing: then the trainer itself loads.": ("workers == 0", "False"),
    "A batch also has to be sent; in the worker's time that is missing.": (_LOADED_AT, "+ loads[b] + collate"),
    "The trainer also has to receive a batch before its step.": (_DONE, "taken[b] + step"),
    "Each batch has a load of its own, loads[b]; you took their mean.": ("+ loads[b]", "+ sum(loads) / batches"),
    "Batch b belongs to worker b mod W, even if another is free.":
        (_FREE, "min(free)", "for b in", "free = [0.0] * workers\n    for b in",
         _LOADED_AT, _LOADED_AT + "; free[free.index(min(free))] = loaded[b]"),
    "Rule 2 is missing: a worker loads one batch at a time, b after b - W.": (_FREE, "0"),
    "Rule 3 is missing: batch b is not begun before batch b - W · prefetch was taken.": (_ORDERED, "0"),
    "Rule 3: the order comes when a batch is taken; you wait until its step is done.": ("taken.get(", "done.get("),
    "Rule 3: the order comes when a batch is taken; you let the trainer receive it first.":
        ("prefetch, 0)", "prefetch, -receive) + receive"),
    "Rule 3 counts from batch b - W · prefetch; you take the one before it.": ("prefetch, 0)", "prefetch - 1, 0)"),
    "Rule 3 counts from batch b - W · prefetch; you take the one after it.": ("prefetch, 0)", "prefetch + 1, 0)"),
    "You took 2 for prefetch, whatever it is.": ("prefetch, 0)", "2, 0)"),
    "A worker begins at the later of two moments, not at their sum.": ("= max(loaded.get", "= _plus(loaded.get"),
    "Rule 1 is missing: the trainer takes a batch only when the one before is done.": (", done[b - 1]", ", 0"),
    "That is the pace times the batches: the first batch is not there at time 0.": ("done[batches - 1]", _PACE),
    "Rule 4 is missing: workers and trainer share the cores.": ("busy / cores", "0"),
    "You let the waiting take a core: who waits for storage needs none.": ("(collate + send", "(read + collate + send"),
    "You forgot the trainer among those that need a core.": ("send + receive + step)", "send)"),
    "Sending needs a core, too: in rule 4 it is missing.": ("(collate + send + r", "(collate + r"),
    "busy / cores need not be a whole number: no //.": ("busy / cores", "busy // cores"),
    "Both are lower bounds: the later counts, not their sum.": ("max(done", "_plus(done"),
    "Both are lower bounds: the later counts, not the earlier.": ("max(done", "min(done"),
}  # fmt: skip

check_predict = Exercise(
    "predict_epoch",
    reference=predict_epoch,
    cases=cases(
        "loads workers cores read collate send receive step prefetch",
        [
            ([20, 26, 20, 23, 21], 0, 64, 5, 2, 1, 3, 12, 2),  # nobody to send to
            ([20] * 5, 1, 64, 5, 2, 1, 3, 12, 2),  # rules 1 and 2, the worker is slower
            ([4] * 5, 1, 64, 0, 2, 1, 3, 12, 2),  # the trainer is slower
            *(([20] * count, 3, 64, 5, 2, 1, 3, 12, 2) for count in (1, 12)),
            ([30, 3, 3, 3, 30, 30, 9, 50, 30, 30, 30], 2, 64, 0, 1, 1, 2, 12, 1),  # rules 2 and 3 in all their parts
            ([30, 5, 5, 5, 5, 5, 5, 5], 2, 64, 0, 0, 0, 0, 1, 4),  # worker 1 is free, and batch 2 isn't its own
            *(([9] * 6 + [99] + [9] * 5, 2, 64, 0, 1, 1, 2, 12, p) for p in (2, 3)),  # one is slow: places decide
            *(([20] * 48, 4, 1.5, 0, 2, 1, 3, 6, 2), ([20] * 47, 2, 2, 0, 2, 1, 3, 11, 2)),  # cores decide
            ([3] * 48, 6, 2, 30, 1, 1, 1, 4, 2),  # what waits takes no core
            ([8, 1] * 20, 3, 1.5, 18, 1, 1, 2, 9, 2),
        ],
    ),
    mistakes={why: _epoch_but(*zip(old_new[::2], old_new[1::2], strict=True)) for why, old_new in _FAULTS.items()},
)  # fmt: skip


# ---- exercise 2: the loader

ARRIVAL = "The batches come in the order of arrival: keep early ones in a buffer until their turn."
UNBOUND = "More is handed out than W · prefetch places allow: nothing bounds the memory."
STARVED = "Fewer are handed out than W · prefetch places allow: order one more when a batch is taken."
LOST = "An error in a worker must reach the training process, at its batch's turn."
LEFT = "A worker was never ended: it still waits for orders."
BY_HAND = "The training process loads items itself: that is the workers' work."
ONE_QUEUE = "Worker k of W gets the batches k, k + W, k + 2 W, …, in an orders queue of its own."
TWICE = "`batches` was gone through twice in an epoch: a sampler that shuffles then gives two orders."
WHOLE = "`batches` was read further than was ordered: take a list of indices only when you order it."
UNCOLLATED = "The items were not collated: a worker sends collate(items)."
AS_TEXT = "Send the exception itself and raise it: its text is not enough."
UNJOINED = "A worker was told to go home and not waited for: `.join()` waits until it has ended."
HOME = "Take what workers have still been ordered to send: a worker whose result nobody fetches can't end."


def _epoch(
    work: Any, load: Any, *, size: int, batch: int, workers: int = 1, prefetch: int = 2, bad: int = -1,
    late: dict[int, int] | None = None, shuffled: bool = False, stop: int = 10**6, epochs: int = 1,
    collate: Callable[[Any], Any] = list,
) -> str:  # fmt: skip
    """Run a reader's loader on threads; return what is wrong, "" if nothing."""
    team = Team()
    items = Items(team, size, batch, late or {}, bad)
    batches = Batches(size, batch, shuffled)
    where = f"{plural(workers, 'worker')}, prefetch {prefetch}, {plural(len(batches), 'batch', 'batches')}: "
    try:
        for _ in range(epochs):
            if said := _one_pass(work, load, team, items, batches, collate, stop, prefetch, workers):
                return where + said
        return ""
    except Stuck:
        if bad >= 0:
            return f"{where}item {bad} raises, and the loop waits for ever. {LOST}"
        dead = [worker.error for worker in team.workers if worker.error]
        if dead:
            return f"{where}in a worker your code raised {type(dead[0]).__name__}: {dead[0]}."
        if team.results == len(batches):
            return f"{where}all batches have arrived, and somebody waits for ever. {LEFT}"
        return f"{where}all wait for each other: nobody puts what the others wait for."
    except Exception as error:
        text = bad >= 0 and any(
            words in str(error) for words in ("must derive from BaseException", "has no file")
        )
        return f"{where}your code raised {type(error).__name__}: {error}. {AS_TEXT if text else ''}".strip()
    finally:
        team.end()


def _one_pass(
    work: Any, load: Any, team: Team, items: Items, batches: Batches, collate: Callable[[Any], Any], stop: int,
    prefetch: int, workers: int,
) -> str:  # fmt: skip
    """Take one epoch, batch by batch; return what is wrong."""
    del team.workers[:], team.handed[:]
    team.results, passes = 0, batches.passes
    due = batches.lists(passes + 1)
    iterator = load(work, items, batches, collate, workers=workers, prefetch=prefetch, context=team)
    if iterator is None:
        return "load_in_order returned None (is a `yield` missing?)."
    taken, failed = list[Any](), None
    turn = items.bad // items.batch if items.bad >= 0 else 10**6  # of the batch whose item raises
    try:
        for got in iterator:
            number = len(taken)
            if number >= len(due):
                return f"more batches come than there are: {got!r}."
            taken.append(got)
            if team.trainer in items.by:
                return BY_HAND
            if batches.passes > passes + 1:
                return TWICE
            wanted = collate(due[number])
            if got != wanted:
                early, raw = got in map(collate, due), got in (due[number], tuple(due[number]))
                why = LOST if number >= turn else ARRIVAL if early else UNCOLLATED if raw else ""
                return f"batch {number} is {got!r}, due is {wanted!r}. {why}".strip()
            allowed = min(len(due), workers * prefetch + number + 1)
            if len(team.handed) != allowed:
                said = UNBOUND if len(team.handed) > allowed else STARVED
                return f"when batch {number} is taken, {len(team.handed)} orders were given, due are {allowed}. {said}"
            if batches.drawn > allowed + 1:
                return f"when batch {number} is taken, {batches.drawn} lists are read, due are {allowed}. {WHOLE}"
            if len(taken) == stop:
                iterator.close()
                break
    except KeyError as error:
        failed = error
    expected, came = min(stop, turn, len(due)), plural(len(taken), "batch", "batches")
    if turn < stop and failed is None:
        return f"item {items.bad} raises, and the loop got {came} and no error. {LOST}"
    if failed is not None and items.bad < 0:
        raise failed
    if len(taken) != expected:
        return f"{came} came before the end, due are {expected}. {LOST if failed else ''}".strip()
    if not team.settle():
        end = "the error" if failed else "a `break`" if stop < len(due) else "the epoch"
        return f"after {end}, {plural(team.alive(), 'worker')} still there. {LEFT}"
    if len(team.workers) != workers:
        return f"{plural(len(team.workers), 'worker')} were started, due are {workers}."
    rows = [set(map(id, team.handed[k::workers])) for k in range(workers)]
    if len(set.union(*rows)) != min(workers, len(due)) or any(len(row) > 1 for row in rows):
        return ONE_QUEUE
    return "" if all(worker.joined for worker in team.workers) else UNJOINED


SCENES: Sequence[dict[str, Any]] = (
    dict(size=12, batch=2),
    dict(size=20, batch=3, workers=3, late={0: 2, 4: 6}),
    dict(size=24, batch=2, workers=2, prefetch=3, late={0: 3, 1: 1, 6: 8}),
    dict(size=5, batch=1, workers=2, prefetch=1, collate=sum),
    dict(size=3, batch=2, workers=4),
    dict(size=12, batch=2, workers=2, bad=7),
    dict(size=12, batch=2, workers=1, stop=2),
    dict(size=12, batch=3, workers=2, shuffled=True, epochs=2),
)


def _judge(exercise: Exercise, answers: Any) -> Verdict:
    said = next(filter(None, (_epoch(*answers, **scene) for scene in SCENES)), "")
    if not said and (moment := on_processes(*answers)):
        said = f"on real processes, {moment}. {HOME if 'for ever' in moment else ''}".strip()
    return exercise.wrong(said) if said else exercise.right(
        "1 to 4 workers, fast and slow batches, an error, a `break`, two epochs, real processes: the right order, no "
        "place too many, and no worker left."
    )  # fmt: skip


_LOADED = "results.put((number, collate([dataset[index] for index in indices]), None))"
_END_ALL = "send_home(team, orders, results, missing)"
_UNTRIED = (
    ("        try:\n    ", ""),
    ("        except Exception as error:\n            results.put((number, None, error))", ""),
)

check_loader = Exercise(
    "load_in_order",
    reference=(work, load_in_order),
    answers=2,
    name="work and load_in_order",
    judge=_judge,
    mistakes={
        ARRIVAL: (work, _load_but(
            ("while number not in early", "if True"), ("arrived, *early[arrived]", "arrived, batch, error"),
            ("batch, error = early.pop(number)", "pass"),
        )),
        UNBOUND: (work, _load_but(("hand_out(workers * prefetch)", "hand_out(None)"))),
        STARVED: (work, _load_but(("            hand_out(1)\n", ""), ("yield batch", "yield batch; hand_out(1)"))),
        LOST: (_but(work, *_UNTRIED), load_in_order),
        LEFT: (work, _load_but((_END_ALL, "pass"))),
        BY_HAND: (_but(work, (_LOADED, "results.put((number, indices, None))")),
                  _load_but(("yield batch", "yield collate([dataset[index] for index in batch])"))),
        ONE_QUEUE: (work, _load_but(
            ("[number % workers]", "[0]"), ("queue, results)", "orders[0], results)"),
            (_END_ALL, "[orders[0].put(None) for _ in team]; [worker.join() for worker in team]"),
        )),
        TWICE: (work, _load_but(("range(len(batches))", "range(len(list(batches)))"))),
        WHOLE: (work, _load_but(("enumerate(batches), dict", "enumerate(list(batches)), dict"))),
        UNCOLLATED: (_but(work, ("collate([", "([")), load_in_order),
        AS_TEXT: (_but(work, ("None, error)", "None, str(error))")), load_in_order),
        UNJOINED: (work, _load_but((_END_ALL, "send_home([Mock() for _ in team], orders, results, missing)"))),
    },
)  # fmt: skip


def use_loader(work: Any, load: Any) -> Any:
    """Return the reader's loader with the reader's worker where both are right, otherwise ours."""
    mine, ours = (work, load), check_loader.reference
    return partial(*reversed(mine if check_loader(*mine) else ours))
