"""How a reader's loader of notebook 01 is tried: epochs on watched threads, then on real processes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from lib.text import plural
from support.kit.raised import told_of
from support.n01.watched import (
    AFTER_BREAK,
    AFTER_EPOCH,
    AFTER_ERROR,
    Batches,
    EpochCase,
    Items,
    Stuck,
    WatchedTeam,
    on_processes,
)

ARRIVAL = "The batches come in the order of arrival: an early one has to lie somewhere until its turn."
UNBOUND = "More orders are out than W · prefetch places allow: nothing bounds the memory."
TOO_SOON = "An order went out too soon: a place is free when its batch has been received in its turn."
STARVED = (
    "Fewer orders are out than W · prefetch places allow: one more goes out before a batch is handed over."
)
KEPT = "What was handed over is still held: a loader that keeps its batches holds the whole epoch in the end."
LOST = "An error in a worker must reach the training process, at its batch's turn."
LEFT = "A worker was never told to go home: it still waits for orders."
LEFT_EARLY = "The workers are sent home at the end of the epoch, and here the loop ended before."
BY_HAND = "The training process loads items itself: that is the workers' work."
ONE_QUEUE = "Worker k of W gets the batches k, k + W, k + 2 W, …, in an orders queue of its own."
TWICE = "`batches` was gone through twice in an epoch: a sampler that shuffles then gives two orders."
WHOLE = "`batches` was read further than was ordered: take a list of indices only when you order it."
UNCOLLATED = "The items were not collated: a worker sends collate(items)."
AS_TEXT = "The exception itself is to be raised: its text is not enough."
UNJOINED = "A worker was told to go home and not waited for: `.join()` waits until it has ended."
KILLED = "A worker was killed. None sends it home, and then it ends by itself."
OWN = "Processes and queues are made by `context`, which the loader is given."
NOT_FOUND = "All results have arrived, and the loop waits for one more: it did not know its batch among them."
HOME = "Some results were never fetched, and a process ends only when all that it has put has been taken from the pipe."

VARIABLES = 3  # of a right loader, that may still name a batch

IN_ORDER: Sequence[EpochCase] = (
    EpochCase(size=12, batch=2),
    EpochCase(size=20, batch=3, workers=3, late={0: 2, 4: 6}),
    EpochCase(size=24, batch=2, workers=2, prefetch=3, late={0: 3, 1: 1, 6: 8}),
    EpochCase(size=5, batch=1, workers=2, prefetch=1, collate=sum),
    EpochCase(size=3, batch=2, workers=4),
    EpochCase(size=12, batch=3, workers=2, shuffled=True, epochs=2),
)
TO_THE_END: Sequence[EpochCase] = (
    *IN_ORDER,
    EpochCase(size=12, batch=2, workers=2, bad=7),
    EpochCase(size=8, batch=2, workers=2, bad=0),
    EpochCase(size=12, batch=2, workers=1, stop=2),
    EpochCase(size=12, batch=2, workers=3, stop=1),
)


def fault_in_order(answer: tuple[Any, Any]) -> str:
    """Say what is wrong with (work, load_in_order) in epochs to their end, "" if nothing."""
    return _fault(answer, IN_ORDER, [AFTER_EPOCH])


def fault_to_the_end(answer: tuple[Any, Any]) -> str:
    """Say what is wrong with (work, load_in_order), also after errors and breaks, "" if nothing."""
    return _fault(answer, TO_THE_END, [AFTER_EPOCH, AFTER_BREAK, AFTER_ERROR])


def _fault(answer: tuple[Any, Any], cases: Sequence[EpochCase], ends: Sequence[str]) -> str:
    work, load = answer
    for case in cases:
        said = _Trial(work, load, case).fault()
        if said:
            return f"{case}: {said}"
    moment = on_processes(work, load, ends)
    if not moment:
        return ""
    return f"on real processes, {moment}. {HOME if 'for ever' in moment else ''}".strip()


class _Trial:
    """A reader's loader in one case, on threads."""

    def __init__(self, work: Any, load: Any, case: EpochCase) -> None:
        self.work = work
        self.load = load
        self.case = case
        self.team = WatchedTeam()
        self.team.before_get = self.before_get
        self.items = Items(self.team, case)
        self.batches = Batches(case)
        self.taken = 0
        self.handed_over: list[Callable[[], object]] = []  # weak references
        self.due: list[list[int]] = []
        self.passes = 0  # over `batches`, before this epoch
        self.seen = ""  # what was wrong while the trainer waited

    def fault(self) -> str:
        """Take all epochs; say what is wrong."""
        try:
            for _ in range(self.case.epochs):
                said = self.of_epoch()
                if said:
                    return said
            return ""
        except Stuck:
            return self.seen or self.of_waiting()
        except Exception as error:
            return self.seen or self.of_error(error)
        finally:
            self.team.close()

    def before_get(self) -> None:
        """Count the orders when the trainer asks for a result: the place of a batch is not free before it came."""
        places = self.case.workers * self.case.prefetch
        handed = len(self.team.handed)
        at_the_error = self.taken >= self.case.bad_batch  # that batch has been received, too
        if handed > places + self.taken and not at_the_error and not self.seen:
            orders = plural(handed, "order was given", "orders were given")
            said = TOO_SOON if handed == places + self.taken + 1 else UNBOUND
            self.seen = (
                f"while batch {self.taken} is waited for, {orders}, due are {places + self.taken}. {said}"
            )

    def of_waiting(self) -> str:
        """Say why everybody waits for everybody."""
        dead = [worker.error for worker in self.team.workers if worker.error]
        bad = self.case.bad
        if bad is not None and any(isinstance(error, KeyError) for error in dead):
            return f"item {bad} raises, and the loop waits for ever. {LOST}"
        if dead:
            return f"in a worker {told_of(dead[0])}"
        if self.team.stuck_in == "join":
            return f"the loop waits for ever until a worker has ended. {LEFT}"
        if self.team.results == len(self.batches):
            return f"batch {self.taken}: {NOT_FOUND}"
        return "all wait for each other: nobody puts what the others wait for."

    def of_error(self, error: Exception) -> str:
        """Tell what the loop has raised, and whether it should have been the worker's own error."""
        of_a_text = ("must derive from BaseException", "has no file")
        sent_as_text = self.case.bad is not None and any(words in str(error) for words in of_a_text)
        return f"{told_of(error)} {AS_TEXT if sent_as_text else ''}".strip()

    def of_epoch(self) -> str:
        """Take one epoch, batch by batch; say what is wrong."""
        self.team.workers.clear()
        self.team.handed.clear()
        self.team.results = 0
        self.passes = self.batches.passes
        self.due = self.batches.lists(self.passes + 1)
        self.taken = 0
        self.handed_over = []
        iterator = self.load(
            self.work,
            self.items,
            self.batches,
            self.case.collate,
            workers=self.case.workers,
            prefetch=self.case.prefetch,
            context=self.team,
        )
        if iterator is None:
            return "load_in_order returned None (is a `yield` missing?)."
        failed = None
        try:
            for got in iterator:
                said = self.of_batch(got) or self.seen
                if said:
                    return said
                del got
                if self.taken == self.case.stop:
                    iterator.close()
                    break
        except KeyError as error:  # what a bad item raises
            failed = error
        return self.of_end(failed)

    def of_batch(self, got: Any) -> str:
        """Say what is wrong when a batch is handed over."""
        number = self.taken
        if number >= len(self.due):
            return f"more batches come than there are: {got!r}."
        self.taken += 1
        if self.team.trainer in self.items.by:
            return BY_HAND
        if not self.team.workers or not self.team.handed:
            return f"batch {number} came by other ways. {OWN}"
        if self.batches.passes > self.passes + 1:
            return TWICE
        wanted = self.case.collate(self.due[number])
        if got != wanted:
            return f"batch {number} is {got!r}, due is {wanted!r}. {self.of_another(number, got)}".strip()
        return self.of_orders(number) or self.of_memory(got)

    def of_orders(self, number: int) -> str:
        """Say whether another number of orders was given than W · prefetch and one for each batch that came."""
        allowed = min(len(self.due), self.case.workers * self.case.prefetch + number + 1)
        handed = len(self.team.handed)
        if handed != allowed:
            said = UNBOUND if handed > allowed else STARVED
            return (
                f"when batch {number} is handed over, {handed} orders were given, due are {allowed}. {said}"
            )
        drawn = self.batches.drawn
        if drawn > allowed + 1:
            return f"when batch {number} is handed over, {drawn} lists are read, due are {allowed}. {WHOLE}"
        return ""

    def of_memory(self, got: Any) -> str:
        """Say whether batches that were handed over are still held, beyond those in a variable or two."""
        held = sum(batch() is not None for batch in self.handed_over)
        if held > VARIABLES:
            return f"when batch {self.taken - 1} is handed over, {held} of those before it are still held. {KEPT}"
        if isinstance(got, list):  # a number can't be referred to weakly
            self.handed_over.append(weakref.ref(got))
        return ""

    def of_another(self, number: int, got: Any) -> str:
        """Say what came in place of a batch, "" if it is unknown."""
        if number >= self.case.bad_batch:
            return LOST
        if got in map(self.case.collate, self.due):
            return ARRIVAL
        plain = list(got) if isinstance(got, (list, tuple)) else got
        return UNCOLLATED if plain == self.due[number] else ""

    def of_end(self, failed: KeyError | None) -> str:
        """Say what is wrong after the last batch, a break, or an error."""
        came = plural(self.taken, "batch", "batches")
        if self.case.bad_batch < self.case.stop and failed is None:
            return f"item {self.case.bad} raises, and the loop got {came} and no error. {LOST}"
        if failed is not None and self.case.bad is None:
            raise failed
        expected = min(self.case.stop, self.case.bad_batch, len(self.due))
        if self.taken != expected:
            return f"{came} came before the end, due are {expected}. {LOST if failed else ''}".strip()
        if self.seen:
            return self.seen
        if any(worker.killed for worker in self.team.workers):
            return KILLED
        if not self.team.settle():
            early = failed is not None or self.case.stop < len(self.due)
            why = LEFT_EARLY if early else LEFT
            return f"after {self.end(failed)}, {plural(self.team.alive(), 'worker')} still there. {why}"
        workers = self.case.workers
        if len(self.team.workers) != workers:
            return f"{plural(len(self.team.workers), 'worker')} were started, due are {workers}."
        queues = [
            set(map(id, self.team.handed[k::workers])) for k in range(workers)
        ]  # of each worker's orders
        in_all = len(set.union(*queues))
        if in_all != min(workers, len(self.due)) or any(len(own) > 1 for own in queues):
            return ONE_QUEUE
        return "" if all(worker.joined for worker in self.team.workers) else UNJOINED

    def end(self, failed: KeyError | None) -> str:
        """Say what has ended the loop."""
        if failed is not None:
            return "the error"
        return "a `break`" if self.case.stop < len(self.due) else "the epoch"
