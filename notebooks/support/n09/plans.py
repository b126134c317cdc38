"""What is wrong with a run of a whole plan, and with devices that shall break a scheduler (notebook 09)."""

# mypy: allow-untyped-calls

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue
from threading import Barrier, BrokenBarrierError, Thread, current_thread
from typing import Any, TypeAlias

import torch

from lib.text import plural
from support.built import Task, clock_cycles, run_clock, spawn_workers, worker
from support.kit.judged import Fault
from support.kit.raised import in_case
from support.kit.threads import Aside
from support.kit.values import NO_RETURN

PLANS = (
    (4, 2, "cpu", True),
    (2, 3, "cpu", False),
    (4, 3, "cpu", True),
    (1, 1, "cpu", True),
    (3, 2, "cuda:0", True),
    (4, 2, "cpu", True),
)
"""Micro-batches, partitions, on which device they all are, gradients on or off; the last is the first once more."""
THREADS = 3
"""For an operation, where run_plan is called: a number that nobody sets by habit."""
PARTITIONS = 5
"""For how many of them devices are asked that break `backwards`."""
ClockRunner: TypeAlias = Callable[..., dict[int, Any]]


class _Noting(SimpleQueue[Any]):
    """An in_queue that notes, in a list common to all, its number for each task that is put, and each None."""

    def __init__(self, number: int, noted: list[int | None]) -> None:
        super().__init__()
        self.number = number
        self.noted = noted

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Put an item."""
        self.noted.append(None if item is None else self.number)
        super().put(item)


@contextmanager
def _workers(device: str, n: int, noted: list[int | None]) -> Iterator[tuple[list[Any], list[Any]]]:
    """Hand out queues as spawn_workers does for n partitions on one kind of device."""
    numbers = [j if device == "cpu" else 0 for j in range(n)]
    pairs = {number: (_Noting(number, noted), SimpleQueue[Any]()) for number in numbers}
    threads = [Thread(target=worker, args=pair, daemon=True) for pair in pairs.values()]
    for thread in threads:
        thread.start()
    try:
        yield [pairs[number][0] for number in numbers], [pairs[number][1] for number in numbers]
    finally:
        for in_queue, _ in pairs.values():
            SimpleQueue.put(in_queue, None)  # not noted
        for thread in threads:
            thread.join()


class _Partitions:
    """Note through which partitions a micro-batch goes, in which thread, and whether the tasks of a clock meet."""

    def __init__(self, m: int, n: int, patience: float, *, together: bool, grad: bool) -> None:
        self.grad = grad
        self.other_grad = False
        self.threads = THREADS  # per operation, where run_plan is called
        self.other_threads = 0  # what compute has seen in its place
        self.in_the_scheduler = False
        self.alone = False
        self.ran: list[tuple[int, int]] = []
        clocks = clock_cycles(m, n)
        self.meetings = [Barrier(len(clock), timeout=patience / 2) for clock in clocks] if together else []

    def compute(self, x: torch.Tensor, i: int, j: int) -> torch.Tensor:
        """Return the way of a micro-batch, one partition longer."""
        if current_thread().name == "scheduler":
            self.in_the_scheduler = True
            return _longer(x, j)
        self.ran.append((i, j))
        self.other_grad |= torch.is_grad_enabled() != self.grad
        if torch.get_num_threads() != self.threads:
            self.other_threads = torch.get_num_threads()
        try:
            if self.meetings and not self.alone:
                self.meetings[i + j].wait()
        except BrokenBarrierError:
            self.alone = True
        return _longer(x, j)


def _micro_batches(m: int) -> list[torch.Tensor]:
    """Return m micro-batches as a layer gives them: tensors that autograd knows. Each holds its number."""
    return [torch.tensor([float(i)], requires_grad=True) * 1 for i in range(m)]


def _longer(x: torch.Tensor, j: int) -> torch.Tensor:
    return torch.cat([x, torch.tensor([float(j)])])


def fault_of_plan(run_plan: Callable[..., Any], patience: float) -> str:
    """Say what is wrong with the runs of some plans, "" if nothing."""
    usual = torch.get_num_threads()
    for number, (m, n, device, grad) in enumerate(PLANS):
        case = f"{m} micro-batches, {n} partitions, each on {device}"
        case += ", under no_grad" * (not grad) + ", once more" * ((m, n, device, grad) in PLANS[:number])
        try:
            with in_case(case):
                fault = _fault_in(run_plan, m, n, device, grad, patience)
        finally:
            torch.set_num_threads(usual)  # a new thread takes what was set last, by whomever
        if fault:
            return Fault(f"{case}: {fault}", fault)
    return _fault_behind_an_error(run_plan, patience)


def _fault_in(run_plan: Callable[..., Any], m: int, n: int, device: str, grad: bool, patience: float) -> str:
    batches = _micro_batches(m)
    given = list(batches)
    noted: list[int | None] = []
    partitions = _Partitions(m, n, patience, together=device == "cpu", grad=grad)

    def work() -> object:
        current_thread().name = "scheduler"
        with _workers(device, n, noted) as queues, torch.set_grad_enabled(grad):
            torch.get_num_threads()  # as a Task does
            torch.set_num_threads(THREADS)
            partitions.threads = torch.get_num_threads()  # not every torch lets one set it
            return run_plan(partitions.compute, given, n, *queues)

    with Aside(work) as aside:
        if not aside.over(4 * patience):
            return "it never ended."
    if aside.error is not None:
        raise aside.error
    result = aside.runs[0].result
    if result is None:
        return NO_RETURN
    if partitions.in_the_scheduler:
        return "a partition was computed in the scheduler's thread."
    pairs = _pairs_of(partitions.ran, [pair for clock in clock_cycles(m, n) for pair in clock])
    if pairs:
        return pairs
    if partitions.alone:
        return "the tasks of a clock did not meet."
    if [*map(id, given)] != [*map(id, batches)]:
        return "the list of inputs was changed."
    if None in noted:
        return "None was put into an in_queue: no worker is there for the next run."
    if len(noted) != m * n:
        return f"{len(noted)} tasks went through the in_queues that were handed in, not {m * n}."
    wanted = [" → ".join([f"x{i}", *map(str, range(n))]) for i in range(m)]
    if not isinstance(result, (list, tuple)) or [*map(_told, result)] != wanted:
        return _way_of(result, wanted)
    if not isinstance(result, list):
        return f"the outputs come in a {type(result).__name__}."
    if partitions.other_grad:
        there, here = ("off", "on") if grad else ("on", "off")
        return f"compute ran with gradients {there}; where run_plan was called they are {here}."
    if partitions.other_threads:
        seen = plural(partitions.other_threads, "thread")
        return f"compute ran with {seen} an operation; where run_plan was called it is {partitions.threads}."
    cut_off = [i for i, output in enumerate(result) if not _reaches(batches[i], output)]
    if grad and cut_off:
        return f"backward finds no way from output {cut_off[0]} to its input."
    return _order_of(noted, m, n) if device == "cpu" else ""


def _reaches(x: torch.Tensor, output: torch.Tensor) -> bool:
    """Say whether backward finds a way from an output to this input."""
    if not output.requires_grad:
        return False
    (gradient,) = torch.autograd.grad(output.sum(), x, allow_unused=True, retain_graph=True)
    return gradient is not None


def _pairs_of(ran: list[tuple[int, int]], wanted: list[tuple[int, int]]) -> str:
    """Say which pairs were computed too often or never, "" if none."""
    too_often = sorted((Counter(ran) - Counter(wanted)).keys())
    never = [pair for pair in wanted if pair not in ran]
    told = [
        f"{word} {', '.join(map(str, pairs))}"
        for word, pairs in (("too often", too_often), ("never", never))
        if pairs
    ]
    return f"pairs (i, j) that were computed {'; '.join(told)}." if told else ""


def _fault_behind_an_error(run_plan: Callable[..., Any], patience: float) -> str:
    """Let partition 0 fail in a clock of two tasks; say what is wrong with what comes out, or is left."""
    raised = ValueError("in partition 0")

    def compute(x: torch.Tensor, i: int, j: int) -> torch.Tensor:
        if (i, j) == (1, 0):
            raise raised
        return _longer(x, j)

    left: list[SimpleQueue[Any]] = []

    def work() -> object:
        with _workers("cpu", 2, []) as queues:
            left.extend(queues[1])
            return run_plan(compute, _micro_batches(2), 2, *queues)

    case = "2 micro-batches, 2 partitions, F1 of partition 0 raises"
    with Aside(work) as aside:
        if not aside.over(4 * patience):
            return f"{case}: it never ended."
    if aside.error is not raised:
        return f"{case}: this very error is expected; it {aside.end}."
    if any(out_queue.qsize() > 1 for out_queue in left):  # one is the worker's last word
        said = "an answer is left in an out_queue: the next run would take it."
        return Fault(f"{case}: {said}", said)
    return ""


def _order_of(noted: list[int | None], m: int, n: int) -> str:
    """Say in which clock tasks were not put in the order of the partitions, "" if in none."""
    for k, clock in enumerate(clock_cycles(m, n)):
        wanted = [j for _, j in clock]
        first = m * n - len(noted) + 1
        numbers = [*range(first, first + len(clock))]
        put = [noted.pop(0) for _ in wanted]
        if put != wanted:
            due = f"should be those of clock {k}, for the partitions {wanted}"
            return f"the tasks put as numbers {numbers} {due}; they are for {put}."
    return ""


def _way_of(result: object, wanted: list[str]) -> str:
    if not isinstance(result, (list, tuple)):
        return f"a list of {len(wanted)} outputs is expected, not {_told(result)}."
    if len(result) != len(wanted):
        return f"a list of {len(wanted)} outputs is expected, not [{', '.join(map(_told, result))}]."
    i = next(i for i, way in enumerate(wanted) if _told(result[i]) != way)
    return f"output {i} is {_told(result[i])}; expected {wanted[i]}."


def _told(output: object) -> str:
    """Say through which partitions an output has gone."""
    if not isinstance(output, torch.Tensor) or output.ndim != 1 or not len(output):
        return repr(output)
    number, *way = map(int, output.tolist())
    return " → ".join([f"x{number}", *map(str, way)])


def backwards(tasks, in_queues, out_queues):  # type: ignore[no-untyped-def]  # word for word as the notebook has it
    """Put all, then take the answer of the last partition first."""
    for j, task in tasks.items():
        in_queues[j].put(task)
    answers = {j: out_queues[j].get() for j in reversed(tasks)}
    return {j: answers[j][1][1] for j in tasks}


def values_on(devices: list[str], schedule: ClockRunner = backwards) -> dict[int, str]:
    """Return what a scheduler gives each of these partitions; each task makes "batch of j"."""
    with spawn_workers([torch.device(name) for name in devices]) as queues:
        tasks = {j: Task(None, compute=partial("batch of {}".format, j)) for j in range(len(devices))}
        return schedule(tasks, *queues)


def fault_of_devices(devices: list[str | torch.device]) -> str:
    """Say why these devices don't break `backwards`, "" if they do."""
    if not isinstance(devices, (list, tuple)) or not all(isinstance(d, (str, torch.device)) for d in devices):
        return f"a list of names such as 'cpu' is expected, not {devices!r}."
    names = [*map(str, devices)]
    if len(names) != PARTITIONS:
        return f"{PARTITIONS} devices are expected, one for each partition, not {len(names)}."
    seen = values_on(names)
    right = values_on(names, run_clock)
    kept = [j for j in right if seen[j] == right[j]]
    if len(kept) != 1:
        told = f"{len(kept)} values are right, those of the partitions {', '.join(map(str, kept))}"
        return Fault(f"on {', '.join(names)} {told}.", f"{len(kept)} are right")
    if all(torch.device(name).type != "cpu" for name in names):
        return "one value is right; a CPU is asked for among the devices, too."
    return ""
