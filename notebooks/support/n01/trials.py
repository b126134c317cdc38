"""How a reader's loader of notebook 01 is tried: epochs on watched threads, then on real processes."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from lib.text import plural
from support.kit.outside import remembering
from support.kit.raised import told_of
from support.kit.threads import EndedError
from support.n01.epochs import (
    AS_MADE,
    AT_ONCE,
    IN_ORDER,
    NEVER,
    TO_THE_END,
    TRAVELLING,
    Batches,
    EpochCase,
    FalseError,
    Items,
    NoListError,
)
from support.n01.on_processes import ALL_ENDS, RIGHT_ENDS, fault_on_processes
from support.n01.on_processes import GONE as GONE
from support.n01.on_processes import SHARED as SHARED
from support.n01.two_loops import fault_of_two_loops
from support.n01.watched import Stuck, WatchedTeam

ARRIVAL = "The batches come in the order of arrival: an early one has to lie somewhere until its turn."
UNBOUND = "More orders are out than W · prefetch places allow."
TOO_SOON = "An order went out too soon: a place is free when its batch has been received in its turn."
STARVED = (
    "Fewer orders are out than W · prefetch places allow: one more goes out before a batch is handed over."
)
EAGER = "Work began before a batch was asked for: `load_in_order` is a generator, a function with `yield`."
KEPT = "What was handed over belongs to the caller: your loader still holds it."
LOST = "An error in a worker must reach the training process, at its batch's turn."
LEFT = "A worker was never told to go home: it still waits for orders."
STAYS = "A worker has taken None, and asks for more orders: None is the end of them."
UNASKED = "Behind a `break` nobody asks for a batch any more, nor for its error."
LOST_ON_THE_WAY = "A queue's messages go through pickle, and pickle can't carry what your code has put."
LEFT_EARLY = "The workers are sent home at the end of the epoch, and here the loop ended before."
BY_HAND = "The training process loads items itself: that is the workers' work."
ONE_QUEUE = "Worker k of W gets the batches k, k + W, k + 2 W, …, in an orders queue of its own."
TWICE = "`batches` was gone through twice in an epoch: a sampler that shuffles then gives two orders."
WHOLE = "`batches` was read further than was ordered: take a list of indices only when you order it."
UNCOLLATED = "The items were not collated: a worker sends collate(items)."
AS_TEXT = "The exception itself is to be raised, and nothing in its place."
UNJOINED = "A worker was told to go home and not waited for: `.join()` waits until it has ended."
GOES_HOME = "A worker sends an error as a result, and goes on until None comes."
LEFT_ALONE = "A `join` with a timeout may come back before the worker has ended: wait until it has."
KILLED = "A worker was killed. None sends it home, and then it ends by itself."
OWN = "Processes and queues are made by `context`, which the loader is given."
TOO_MANY = "All that was ordered has arrived, and your code waits for one more: count what is still to come."
IN_VAIN = "All that was ordered has arrived, and your code waits for one more."
NOT_FOUND = "The batch whose turn it is lies among what has arrived."
COLLATED_HERE = "The training process collates: that is work of the workers, and meanwhile nobody trains."
NOTHING = "What `collate` makes may be None, a tuple, an exception: the batch does not say whether anything was raised."
REUSED = "`collate` was given one list twice: it may keep what it is given, so make a new one each time."
EMPTIED = "`collate` may keep the list that it is given: nobody else changes it."
THREADS = "A thread takes results or gives orders: the training process starts none, and does that itself."
NO_LIST_GIVEN = "`collate` is given its items in a list, which it may keep or add to."
TORN = "What `collate` raises is an error of the worker, too, and must reach the training process."
EMPTY_LIST = "An empty list of indices is one of the lists, too: a worker makes its batch, `collate([])`."
NO_LIST = "An error of the batch sampler ends the epoch, too, and then nobody has sent the workers home."
WAITS = "A batch whose turn it is goes out as soon as it is there: yours waits for later ones, too."
FALSE = "An exception may be false, as an empty list is: ask whether there is one with `is None`."
REBUILT = "The exception itself is to be raised: yours has lost what the worker's carried beside its args."
CANT_TRAVEL = "An exception that pickle can't carry there and back arrives as a RuntimeError with its text."
GIVES_UP = "A look that finds no order is no end of them: a step may take longer than any timeout."

VARIABLES = 1  # that may still name an old batch: one that was not assigned again


def fault_in_order(answer: tuple[Any, Any]) -> str:
    """Say what is wrong with (work, load_in_order) in epochs to their end, "" if nothing."""
    return remembering(lambda both: _fault(both, IN_ORDER, RIGHT_ENDS))(answer)


def fault_to_the_end(answer: tuple[Any, Any]) -> str:
    """Say what is wrong with (work, load_in_order), also after errors and breaks, "" if nothing."""
    return remembering(lambda both: _fault(both, TO_THE_END, ALL_ENDS))(answer)


def _fault(answer: tuple[Any, Any], cases: Sequence[EpochCase], ends: Sequence[str]) -> str:
    work, load = answer
    for case in cases:
        said = _Trial(work, load, case).fault()
        if said:
            return f"{case}: {said}"
    return fault_of_two_loops(work, load) or fault_on_processes(work, load, ends)


class _Trial:
    """A reader's loader in one case, on threads."""

    def __init__(self, work: Any, load: Any, case: EpochCase) -> None:
        self.work = work
        self.load = load
        self.case = case
        self.team = WatchedTeam()
        self.team.before_get = self.before_get
        self.team.before_gate = self.before_gate
        self.items = Items(self.team, case)
        self.items.handed_over = lambda: self.taken
        self.batches = Batches(case)
        self.taken = 0
        self.handed_over: list[Callable[[], object]] = []  # weak references
        self.due: list[list[int]] = []
        self.passes = 0  # over `batches`, before this epoch
        self.seen = ""  # what was wrong while the trainer waited
        self.collated_by: set[int] = set()
        self.collated: dict[int, Any] = {}  # by id: what `collate` was given, held, and a copy as it was then
        self.reused = False
        self.given = "list"  # of what type it was
        self.clearing_up = False  # the loop has been left
        self.iterator: Any = None  # of this epoch

    def fault(self) -> str:
        """Take all epochs; say what is wrong, and first of all whether a worker has given up."""
        said = self.of_epochs()
        if self.team.trains_by_threads():
            return THREADS
        if said and self.case.empty < NEVER:  # without that list all goes well
            return (
                f"list {self.case.empty} is empty, and the batches are not those that are due. {EMPTY_LIST}"
            )
        gave_up = said and any(worker.gave_up for worker in self.team.workers)
        return f"a worker has ended behind a look that found nothing. {GIVES_UP}" if gave_up else said

    def of_epochs(self) -> str:
        """Take all epochs; say what is wrong."""
        try:
            for _ in range(self.case.epochs):
                said = self.of_epoch()
                if said:
                    return said
            return ""
        except Stuck:
            return self.seen or self.of_waiting()
        except EndedError:
            return f"your code asks a queue of a loop that is over. {SHARED}"
        except Exception as error:
            return self.seen or self.of_error(error)
        finally:
            self.let_go()
            self.team.close()

    def let_go(self) -> None:
        """End a loop that was left halfway, here and now: an error's traceback would hold it until Python collects.

        Its clearing up may get stuck or raise; what is wrong with it has been found by then.
        """
        with suppress(Exception, Stuck, EndedError):
            getattr(self.iterator, "close", bool)()
        self.iterator = None

    def collate(self, items: Any) -> Any:
        """Make a batch, and note who does."""
        self.collated_by.add(threading.get_ident())
        if not isinstance(items, list):
            self.given = type(items).__name__
            items = list(items)
        self.reused |= id(items) in self.collated
        self.collated[id(items)] = items, list(items)
        if self.case.torn is not None and self.case.torn in items:
            raise self.case.raised
        return self.case.collate(items)

    def before_get(self) -> None:
        """Count the orders when the trainer asks for a result: the place of a batch is not free before it came."""
        places = self.case.workers * self.case.prefetch
        handed = len(self.team.handed)
        drawn = self.batches.drawn if self.batches.passes == self.passes + 1 else 0
        at_the_error = self.taken >= self.case.bad_batch  # that batch has been received, too
        if at_the_error or self.clearing_up or self.seen:
            return
        allowed = min(len(self.due), self.case.no_list, places + self.taken)
        orders = plural(handed, "order was given", "orders were given")
        moment = f"while batch {self.taken} is waited for,"
        if handed > places + self.taken:
            said = TOO_SOON if handed == places + self.taken + 1 else UNBOUND
            self.seen = f"{moment} {orders}, due are {places + self.taken}. {said}"
        elif handed < allowed:
            self.seen = f"{moment} {orders}, due are {allowed}. {STARVED}"
        elif drawn > handed:
            self.seen = f"{moment} {drawn} lists are read, due are {handed}. {WHOLE}"

    def before_gate(self) -> None:
        """Notice that the trainer waits for more than the due batch, which it has received."""
        if self.seen or not self.taken < self.case.in_turn < NEVER:
            return
        if any(self.due[self.taken] == given for _, given in self.collated.values()):
            self.seen = f"batch {self.taken} is there, and is not handed over. {WAITS}"

    def of_waiting(self) -> str:
        """Say why everybody waits for everybody."""
        if self.team.lost and not self.case.travels:
            return f"{self.what_raises()}, its message is lost on the way, and the loop waits for ever. {CANT_TRAVEL}"
        dead = [
            worker.error
            for worker in self.team.workers
            if worker.error and not (worker.answered and self.is_expected(worker.error))
        ]
        if self.case.bad_batch < len(self.due) and any(map(self.is_expected, dead)):
            return f"{self.what_raises()}, and the loop waits for ever. {self.of_lost()}"
        if dead:
            why = "" if self.case.travels else CANT_TRAVEL
            return f"in a worker {told_of(dead[0])} {why}".strip()
        if self.team.stuck_in != "get":
            return f"the loop waits for ever until a worker has ended. {self.of_left()}"
        if not self.team.workers:
            return "all wait for each other: no process of `context` was started."
        at_home = any(worker.sent_home for worker in self.team.workers)
        if self.case.bad_batch < len(self.due) and any(
            worker.over and not worker.sent_home for worker in self.team.workers
        ):
            return f"{self.what_raises()}, a worker ends behind it, and the loop waits for ever. {GOES_HOME}"
        if self.team.results < len(self.team.handed) or not self.team.handed:
            if self.team.lost:
                return f"all wait for each other. {LOST_ON_THE_WAY}"
            return "all wait for each other: nobody puts what the others wait for."
        if self.batches.raised:
            return f"the batch sampler raises, and the loop waits for ever. {TOO_MANY}"
        if self.clearing_up or at_home or self.taken == len(self.due):
            return TOO_MANY
        has_come = self.taken < min(self.case.bad_batch, len(self.team.handed))
        return f"batch {self.taken}: {IN_VAIN} {NOT_FOUND if has_come else ''}".strip()

    def of_left(self) -> str:
        """Say why a worker does not end."""
        stays = any(worker.sent_home and not worker.over for worker in self.team.workers)
        return STAYS if stays else LEFT

    def what_raises(self) -> str:
        """Say what goes wrong in this case."""
        if self.case.torn is not None:
            return f"`collate` raises for batch {self.case.bad_batch}"
        return f"item {self.case.bad} raises {type(self.case.raised).__name__}"

    def is_expected(self, error: BaseException) -> bool:
        """Say whether an exception is the one that this case raises in a worker."""
        if not self.case.travels and isinstance(error, RuntimeError):
            return str(self.case.raised) in str(error)
        return self.case.is_raised(error) and vars(error).get("item") == vars(self.case.raised)["item"]

    def is_known(self, error: Exception) -> bool:
        """Say whether an exception is one that an item, collating or the sampler may have raised."""
        as_text = not self.case.travels and isinstance(error, RuntimeError)
        return as_text or isinstance(error, (*TRAVELLING, NoListError))

    def of_lost(self) -> str:
        """Say what is to become of an error of this case."""
        return LOST if self.case.torn is None else TORN

    def of_error(self, error: Exception) -> str:
        """Tell what the loop has raised, and whether it should have been the worker's own error."""
        if not self.case.travels:
            return f"{told_of(error)} {CANT_TRAVEL}"
        if self.case.collate in AS_MADE:
            return f"`collate` returns {AS_MADE[self.case.collate]}, and {told_of(error)} {NOTHING}"
        if self.case.is_raised(error) and not self.is_expected(error):
            return f"{self.what_raises()}, and what came lacks its `item`. {REBUILT}"
        of_a_text = ("must derive from BaseException", "has no file", "fits no batch")
        sent_as_text = self.case.bad_batch < len(self.due) and any(words in str(error) for words in of_a_text)
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
        places = {"prefetch": self.case.prefetch}
        iterator = self.load(
            self.work,
            self.items,
            self.batches,
            self.collate,
            workers=self.case.workers,
            **({} if self.case.prefetch == EpochCase.prefetch else places),  # 2 is what the stub says
            context=self.team,
        )
        self.iterator = iterator
        if iterator is None:
            return "load_in_order returned None (is a `yield` missing?)."
        if self.team.workers or self.batches.passes > self.passes:
            return EAGER
        failed: Exception | None = None
        self.clearing_up = False
        try:
            for got in iterator:
                said = self.of_batch(got) or self.seen
                if said:
                    return said
                del got
                if self.taken == self.case.stop:
                    self.clearing_up = True
                    iterator.close()
                    break
        except Exception as error:
            if not self.is_known(error):
                raise
            failed = error
        return self.of_end(failed)

    def of_batch(self, got: Any) -> str:
        """Say what is wrong when a batch is handed over."""
        number = self.taken
        if number >= len(self.due):
            return f"more batches come than there are: {got!r}."
        with self.team.changed:
            self.taken += 1
            self.team.changed.notify_all()
        if self.team.trainer in self.items.by:
            return BY_HAND
        if self.team.trainer in self.collated_by:
            return COLLATED_HERE
        if self.given != "list":
            return f"`collate` was given a {self.given}. {NO_LIST_GIVEN}"
        if self.reused:
            return REUSED
        if not (self.team.workers and self.team.handed and self.team.results):
            return f"batch {number} came by other ways. {OWN}"
        if self.batches.passes > self.passes + 1:
            return TWICE
        wanted = self.case.collate([*map(self.case.item_of, self.due[number])])
        if number == self.case.bad_batch:
            return f"{self.what_raises()}, and batch {number} is {got!r}. {self.of_another(number, got)}"
        if got != wanted:
            alike = repr(got) == repr(wanted)
            due = "what `collate` makes of it" if alike else repr(wanted)
            return f"batch {number} is {got!r}, due is {due}. {self.of_another(number, got)}".strip()
        return self.of_orders(number) or self.of_memory(got)

    def of_orders(self, number: int) -> str:
        """Say whether another number of orders was given than W · prefetch and one for each batch that came."""
        lists = min(len(self.due), self.case.no_list)  # behind an error of the sampler there are none
        allowed = min(lists, self.case.workers * self.case.prefetch + number + 1)
        handed = len(self.team.handed)
        if handed != allowed:
            said = UNBOUND if handed > allowed else STARVED
            orders = plural(handed, "order was given", "orders were given")
            return f"when batch {number} is handed over, {orders}, due are {allowed}. {said}"
        drawn = self.batches.drawn
        if drawn > allowed:
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
            return FALSE if got is None and self.case.kind is FalseError else self.of_lost()
        one_sends_in_order = self.case.workers == 1
        may_be_left_out = not self.case.collate(self.due[number])  # by an `if batch`
        if got in map(self.case.collate, self.due) and not (one_sends_in_order or may_be_left_out):
            return ARRIVAL
        plain = list(got) if isinstance(got, (list, tuple)) else got
        return UNCOLLATED if plain == self.due[number] else ""

    def of_end(self, failed: Exception | None) -> str:
        """Say what is wrong after the last batch, a break, or an error."""
        came = plural(self.taken, "batch", "batches")
        no_list = self.case.no_list < len(self.due)
        if isinstance(failed, NoListError):
            if not no_list:
                raise failed
            if self.taken >= self.case.bad_batch:
                return f"{self.what_raises()}, and the sampler's error came in its place. {self.of_lost()}"
            return self.of_sampler()
        if no_list and failed is None:
            return f"the batch sampler raises, and the loop got {came} and no error."
        if self.case.bad_batch < self.case.stop and failed is None:
            return f"{self.what_raises()}, and the loop got {came} and no error. {self.of_lost()}"
        if failed is not None and not self.is_expected(failed):
            raise failed
        if failed is not None and self.clearing_up:
            return f"behind a `break` {told_of(failed)} {UNASKED}"
        expected = min(self.case.stop, self.case.bad_batch, len(self.due))
        if self.taken != expected:
            return (
                f"{came} came before the end, due are {expected}. {self.of_lost() if failed else ''}".strip()
            )
        if self.seen:
            return self.seen
        if any(worker.killed for worker in self.team.workers):
            return KILLED
        if not self.team.settle():
            early = failed is not None or self.case.stop < len(self.due)
            why = self.of_left()
            if why == LEFT and early:
                why = LEFT_EARLY
            return f"after {self.end(failed)}, {plural(self.team.alive(), 'worker')} still there. {why}"
        fallen = [worker.error for worker in self.team.workers if isinstance(worker.error, Exception)]
        if fallen:
            return f"in a worker {told_of(fallen[0])}"
        workers = self.case.workers
        started = len(self.team.workers)
        # those that would get no order may be left out
        if not min(workers, len(self.due)) <= started <= workers:
            return (
                f"{plural(started, 'worker')} {'was' if started == 1 else 'were'} started, due are {workers}."
            )
        queues = [set(map(id, self.team.handed[k::workers])) for k in range(workers)]  # of a worker's orders
        in_all = len(set.union(*queues))
        if in_all != min(workers, len(self.due)) or any(len(own) > 1 for own in queues):
            return ONE_QUEUE
        if any(items != given for items, given in self.collated.values()):
            return EMPTIED
        return self.of_joins()

    def of_joins(self) -> str:
        """Say whether the training process has waited until each worker had ended."""
        alone = [worker for worker in self.team.workers if not worker.joined]
        if any(worker.left_alone for worker in alone):
            return LEFT_ALONE
        return UNJOINED if alone else ""

    def of_sampler(self) -> str:
        """Say what is wrong when the batch sampler has raised: workers may have been started, and none is left."""
        if not self.team.settle():
            left = plural(self.team.alive(), "worker")
            where = (
                "before its first list" if self.case.no_list == AT_ONCE else f"at list {self.case.no_list}"
            )
            return f"the batch sampler raises {where}: {left} still there. {NO_LIST}"
        return self.of_joins()

    def end(self, failed: Exception | None) -> str:
        """Say what has ended the loop."""
        if failed is not None:
            return "the error"
        return "a `break`" if self.case.stop < len(self.due) else "the epoch"
