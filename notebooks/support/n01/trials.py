"""How a reader's loader of notebook 01 is tried: epochs on watched threads, then on real processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lib.text import plural
from support.kit.raised import told_of
from support.n01.watched import Batches, EpochCase, Items, Stuck, WatchedTeam, on_processes

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

CASES: Sequence[EpochCase] = (
    EpochCase(size=12, batch=2),
    EpochCase(size=20, batch=3, workers=3, late={0: 2, 4: 6}),
    EpochCase(size=24, batch=2, workers=2, prefetch=3, late={0: 3, 1: 1, 6: 8}),
    EpochCase(size=5, batch=1, workers=2, prefetch=1, collate=sum),
    EpochCase(size=3, batch=2, workers=4),
    EpochCase(size=12, batch=2, workers=2, bad=7),
    EpochCase(size=12, batch=2, workers=1, stop=2),
    EpochCase(size=12, batch=3, workers=2, shuffled=True, epochs=2),
)


def fault_of_loader(answer: tuple[Any, Any]) -> str:
    """Say what is wrong with (work, load_in_order), "" if nothing."""
    work, load = answer
    for case in CASES:
        said = _Trial(work, load, case).fault()
        if said:
            return f"{case}: {said}"
    moment = on_processes(work, load)
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
        self.items = Items(self.team, case)
        self.batches = Batches(case)
        self.taken: list[Any] = []
        self.due: list[list[int]] = []
        self.passes = 0  # over `batches`, before this epoch

    def fault(self) -> str:
        """Take all epochs; say what is wrong."""
        try:
            for _ in range(self.case.epochs):
                said = self.of_epoch()
                if said:
                    return said
            return ""
        except Stuck:
            return self.of_waiting()
        except Exception as error:
            return self.of_error(error)
        finally:
            self.team.close()

    def of_waiting(self) -> str:
        """Say why everybody waits for everybody."""
        if self.case.bad is not None:
            return f"item {self.case.bad} raises, and the loop waits for ever. {LOST}"
        dead = [worker.error for worker in self.team.workers if worker.error]
        if dead:
            return f"in a worker {told_of(dead[0])}"
        if self.team.results == len(self.batches):
            return f"all batches have arrived, and somebody waits for ever. {LEFT}"
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
        self.taken = []
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
                said = self.of_batch(got)
                if said:
                    return said
                if len(self.taken) == self.case.stop:
                    iterator.close()
                    break
        except KeyError as error:  # what a bad item raises
            failed = error
        return self.of_end(failed)

    def of_batch(self, got: Any) -> str:
        """Say what is wrong when a batch is taken."""
        number = len(self.taken)
        if number >= len(self.due):
            return f"more batches come than there are: {got!r}."
        self.taken.append(got)
        if self.team.trainer in self.items.by:
            return BY_HAND
        if self.batches.passes > self.passes + 1:
            return TWICE
        wanted = self.case.collate(self.due[number])
        if got != wanted:
            return f"batch {number} is {got!r}, due is {wanted!r}. {self.of_another(number, got)}".strip()
        allowed = min(len(self.due), self.case.workers * self.case.prefetch + number + 1)
        handed = len(self.team.handed)
        if handed != allowed:
            said = UNBOUND if handed > allowed else STARVED
            return f"when batch {number} is taken, {handed} orders were given, due are {allowed}. {said}"
        drawn = self.batches.drawn
        if drawn > allowed + 1:
            return f"when batch {number} is taken, {drawn} lists are read, due are {allowed}. {WHOLE}"
        return ""

    def of_another(self, number: int, got: Any) -> str:
        """Say what came in place of a batch, "" if it is unknown."""
        if number >= self.case.bad_batch:
            return LOST
        if got in map(self.case.collate, self.due):
            return ARRIVAL
        return UNCOLLATED if got in (self.due[number], tuple(self.due[number])) else ""

    def of_end(self, failed: KeyError | None) -> str:
        """Say what is wrong after the last batch, a break, or an error."""
        came = plural(len(self.taken), "batch", "batches")
        if self.case.bad_batch < self.case.stop and failed is None:
            return f"item {self.case.bad} raises, and the loop got {came} and no error. {LOST}"
        if failed is not None and self.case.bad is None:
            raise failed
        expected = min(self.case.stop, self.case.bad_batch, len(self.due))
        if len(self.taken) != expected:
            return f"{came} came before the end, due are {expected}. {LOST if failed else ''}".strip()
        if not self.team.settle():
            return f"after {self.end(failed)}, {plural(self.team.alive(), 'worker')} still there. {LEFT}"
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
