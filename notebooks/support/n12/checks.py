"""Predictions and exercises of notebook 12, GPipe.

A reader's pipeline runs in a daemon thread that is given up after PATIENCE, on layers that note who computes what,
when and in which thread, and which wait for the other tasks of their clock.
"""

# mypy: allow-untyped-calls, disable-error-code="no-any-return, unused-ignore"

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, islice
from operator import itemgetter
from queue import SimpleQueue
from threading import Barrier, BrokenBarrierError, Thread, current_thread
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from support import built
from support.checks import Exercise, Guess, Tried, Verdict
from support.n12.figures import forward_gain
from support.n12.solved import MiniGPipe, flatten_sequential

PATIENCE = 8.0  # seconds until a task that waits for its neighbours, or a whole pipeline, counts as stuck

# ---- predictions

guess_once = Guess(
    "the tasks that are computed only once",
    lambda: 4 * 8 - 4 * (8 - 1),
    unit="tasks",
    tried=Tried(right=4, wrong=1),
)
"""Section 5: of a step with 4 partitions, 8 micro-batches, except_last."""
guess_step = Guess(
    "the gain of a step",
    lambda: round(100 * (3 / (1 / forward_gain([1.0, 1.0], 8) + 2) - 1)),
    unit="%",
    read=lambda said: f"{said} (in per cent, please)" if isinstance(said, float) and 0 < said < 3 else said,
    tried=Tried(right=17, wrong=78),
)
"""Section 8: by how many per cent a step is faster whose backward takes two forwards and gains nothing."""
guess_counted = Guess(
    "num_batches_tracked after one step",
    lambda: 4 + 3,
    read=lambda said: "8 (that is `always`: here the last is not computed again)" if said == 8 else said,
    tried=Tried(right=7, wrong=1),
)
"""Section 11: what a BatchNorm counts in one step, 4 micro-batches, except_last."""


# ---- exercise 1: flatten_sequential


class _Doubled(nn.Sequential):
    """A Sequential with a forward of its own: it is more than its layers."""

    def forward(self, input: Tensor) -> Tensor:
        """Return what the layers make of the input, twice."""
        return 2 * super().forward(input)


class _Residual(nn.Module):
    """A layer that has a Sequential inside, and does more with it."""

    def __init__(self, inside: nn.Sequential) -> None:
        super().__init__()
        self.inside = inside

    def forward(self, x: Tensor) -> Tensor:
        """Add the input to what the inside makes of it."""
        return x + self.inside(x)  # type: ignore[no-any-return]


def nested() -> Iterator[tuple[str, nn.Sequential, list[nn.Module]]]:
    """Yield Sequentials: what they are, the module, and its layers when it is flat."""
    a, b, c, d = (nn.Linear(4, 4) for _ in range(4))
    relu = nn.ReLU()
    yield "two layers, nothing nested", nn.Sequential(a, relu), [a, relu]
    yield "a Sequential among layers", nn.Sequential(a, nn.Sequential(relu, b), c), [a, relu, b, c]
    inner = nn.Sequential(nn.Sequential(a, relu), nn.Sequential(b, nn.Sequential(c)))
    yield "Sequentials three levels deep", nn.Sequential(inner, d), [a, relu, b, c, d]
    residual = _Residual(nn.Sequential(a, relu, b))
    yield "a residual layer, which has a Sequential inside", nn.Sequential(residual, c), [residual, c]
    yield (
        "one ReLU object in three places",
        nn.Sequential(nn.Sequential(a, relu), b, relu, c, relu),
        [*(a, relu, b, relu, c, relu)],
    )
    doubled = _Doubled(a, relu)
    yield "a subclass of Sequential with a forward of its own", nn.Sequential(doubled, b), [doubled, b]
    yield "an empty Sequential between two layers", nn.Sequential(a, nn.Sequential(), b), [a, b]


def _check_flatten(exercise: Exercise, answer: Callable[[nn.Sequential], Any]) -> Verdict:
    for what, module, layers in nested():
        before = [*module.modules()]
        try:
            flat = answer(module)
        except Exception as error:
            return exercise.wrong(f"for {what} your code raised {type(error).__name__}: {error}")
        found = [*flat] if isinstance(flat, nn.Sequential) else []
        same = len(found) == len(layers) and all(x is y for x, y in zip(found, layers, strict=True))
        problem = ""
        if flat is None:
            problem = "your function returned None (is a `return` missing?)"
        elif not isinstance(flat, nn.Sequential):
            problem = f"an nn.Sequential is expected, not {type(flat).__name__}"
        elif not same:
            names = [[type(x).__name__.lstrip("_") for x in each] for each in (found, layers)]
            problem = f"{names[1]} is expected, yours has {names[0]}"
            if names[0] == names[1]:
                problem = "these are copies: the layers must be the same objects, or their weights are not"
        if [*module.modules()] != before:
            return exercise.wrong(f"for {what}, the given module was changed: make a new nn.Sequential.")
        if problem:
            wrong = exercise.mistakes.items()
            known = (why for why, other in wrong if _shape(other, module) == _shape(answer, module))
            return exercise.wrong(f"for {what}, {problem}. {next(known, '')}".strip())
    return exercise.right("the same layers in the same order for every model that was tried.")


def _shape(flatten: Callable[[nn.Sequential], Any], module: nn.Sequential) -> object:
    with suppress(Exception):
        flat = flatten(module)
        return [id(x) for x in flat] if isinstance(flat, nn.Sequential) else type(flat)
    return None


def _flat(
    opens: Callable[[nn.Module], bool] = lambda layer: type(layer) is nn.Sequential,
    over: Callable[[Any], Any] = iter,
    deep: bool = True,
) -> Callable[[nn.Sequential], nn.Sequential]:
    def flatten(module: nn.Module) -> nn.Sequential:
        layers: list[nn.Module] = []
        for layer in over(module):
            layers += (flatten(layer) if deep else [*layer]) if opens(layer) else [layer]  # type: ignore[misc]
        return nn.Sequential(*layers)

    return flatten


check_flatten = Exercise(
    "flatten_sequential",
    reference=flatten_sequential,
    judge=_check_flatten,
    mistakes={
        "One level is not enough: what comes out of a Sequential may be one again.": _flat(deep=False),
        "`children()` names every object once: iterate over the Sequential itself.": _flat(
            over=lambda m: m.children()
        ),
        "A subclass may do more than its layers: open only what is an nn.Sequential itself.": _flat(
            lambda layer: isinstance(layer, nn.Sequential)
        ),
        "Only an nn.Sequential may be opened: another layer does more than call what it has.": (
            lambda module: nn.Sequential(*(x for x in module.modules() if not [*x.children()]))
        ),
        "`modules()` goes into every layer, and lists an object that stands in three places once.": (
            lambda module: nn.Sequential(*(x for x in module.modules() if not isinstance(x, nn.Sequential)))
        ),
        "Nothing was opened.": _flat(lambda layer: False),
    },
)
"""Exercise 1: the same layers, in the same order, in one Sequential."""


# ---- exercise 2: MiniGPipe


@dataclass
class Watch:
    """What the layers of a pipeline note of one run: in forward, and in backward."""

    starts: list[int]  # of the micro-batches, in rows
    clocks: Counter[int]  # by clock: how many partitions work in it
    partitions: int
    before: set[Thread]  # that ran before forward
    error: BaseException | None = None
    caller: Thread | None = None
    workers: list[Thread] = field(default_factory=list)  # in the order of their start
    rows: set[tuple[int, int]] = field(default_factory=set)
    threads: dict[int, set[Thread]] = field(default_factory=dict)
    alone: tuple[int, int] | None = None
    lost: bool = False  # a micro-batch that there should not be: nobody waits for it
    computed: Counter[tuple[int, int]] = field(default_factory=Counter)
    went_back: list[tuple[int, int]] = field(default_factory=list)
    meetings: dict[int, Barrier] = field(default_factory=dict)

    def __deepcopy__(self, memo: object) -> Watch:
        return self  # who copies the layers is told of their weights

    def note(self, j: int, x: Tensor) -> int:
        """Note that partition j computes these rows; in forward, wait for the other tasks of this clock."""
        first, count = int(x[0, 0].item()), len(x)
        self.rows.add((first, count))
        i = self.starts.index(first) if first in self.starts else -1
        self.computed[i, j] += 1
        self.lost = self.lost or i < 0
        if self.computed[i, j] > 1 or i < 0:
            return i
        self.threads.setdefault(j, set()).add(current_thread())
        self.workers = self.workers or [each for each in threading.enumerate() if each not in self.before]
        meeting = self.meetings.setdefault(i + j, Barrier(self.clocks[i + j], timeout=PATIENCE / 4))
        try:
            if self.caller is not current_thread() and not self.lost:
                meeting.wait()
        except BrokenBarrierError:
            self.alone = self.alone or (i, j)
        if self.error is not None and (i, j) == (1, self.partitions - 1):
            raise self.error
        return i


class _Layer(nn.Module):
    """x + tanh(x · w) in all columns but the first, which holds the number of the row."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(torch.randn(4, 4, generator=generator, dtype=torch.float64) / 2)
        self.watch: tuple[Watch, int] | None = None  # and the partition that this is the first layer of

    def forward(self, x: Tensor) -> Tensor:
        """Compute; note it, if it is watched."""
        mask = torch.tensor([0.0, 1, 1, 1], dtype=x.dtype)
        y = x + torch.tanh(x @ self.weight) * mask
        if self.watch is not None:
            watch, j = self.watch
            i = watch.note(j, x.detach())
            if y.requires_grad and torch.is_grad_enabled():
                y.register_hook(lambda gradient: watch.went_back.append((i, j)))
        return y


@dataclass(frozen=True)
class Case:
    """A pipeline to try: how its layers are cut, its micro-batches, the mode."""

    balance: tuple[int, ...]
    rows: int
    chunks: int
    mode: str
    special: str = ""  # "input": wants a gradient; "numbers": autograd's are turned round; "error"; "no_grad"

    def __str__(self) -> str:
        extra = {
            "input": ", x requires grad",
            "error": ", a layer raises",
            "no_grad": ", in torch.no_grad()",
        }
        return (
            f"balance {list(self.balance)}, {self.rows} rows, chunks={self.chunks}, {self.mode!r}"
            f"{extra.get(self.special, '')}"
        )

    @property
    def sizes(self) -> list[int]:
        """Return the rows of each micro-batch."""
        return [len(part[0]) for part in built.scatter((torch.zeros(self.rows, 1),), self.chunks)]

    def watch(self) -> Watch:
        """Return an empty Watch for this case."""
        sizes = self.sizes
        clocks = built.clock_cycles(len(sizes), len(self.balance))
        starts = [*accumulate(sizes, initial=0)][:-1]
        working = Counter({k: len(clock) for k, clock in enumerate(clocks)})
        return Watch(starts, working, len(self.balance), {*threading.enumerate()})


CASES = [
    Case((2,), 6, 3, "never"),
    Case((1, 2), 6, 3, "never"),
    Case((3, 1, 2), 7, 3, "never"),
    Case((1, 1, 1, 1), 8, 4, "never", "input"),
    Case((1, 3), 6, 3, "always"),
    Case((2, 1), 8, 4, "always", "numbers"),
    Case((2, 1, 1), 7, 4, "except_last", "input"),
    Case((1, 1), 3, 8, "except_last"),
    Case((1, 1), 1, 4, "except_last"),
    Case((2, 2), 5, 4, "never", "no_grad"),
    Case((1, 1), 6, 3, "always", "error"),
]
Pipe: TypeAlias = Callable[..., Any]


def trial(answer: Pipe, case: Case) -> str:
    """Run one case; return what is wrong with it, "" if nothing."""
    watch = case.watch()
    layers = [_Layer(seed) for seed in range(sum(case.balance))]
    twins = [_Layer(seed) for seed in range(sum(case.balance))]
    for j, first in enumerate([*accumulate(case.balance, initial=0)][:-1]):
        layers[first].watch = watch, j
    if case.special == "error":
        watch.error = ArithmeticError("from a layer")
    said: list[str] = []

    def work() -> None:
        watch.caller = current_thread()
        watch.before.add(watch.caller)
        try:
            said.append(_run(answer, case, watch, layers, twins))
        except Exception as error:
            tuples = "tuple" in str(error) and "; scatter makes tuples: take the one tensor out of each"
            said.append(f"your code raised {type(error).__name__}: {error}{tuples or ''}")

    thread = Thread(target=work, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    if not said:
        return "it does not come back: a get without a put, or a worker that has ended"
    left = {*threading.enumerate()} - watch.before
    for each in left:
        each.join(0.2)
    if not said[0] and (alive := sum(each.is_alive() for each in left)):
        return f"{alive} threads are left when forward has ended"
    return said[0]


def _run(answer: Pipe, case: Case, watch: Watch, layers: list[_Layer], twins: list[_Layer]) -> str:
    mode = [case.mode] if case.special or case.mode != "except_last" else []  # the default
    model = answer(nn.Sequential(*layers), [*case.balance], case.chunks, *mode)
    mine = {id(p) for p in model.parameters()}
    if lost := sum(id(layer.weight) not in mine for layer in layers):
        listed = isinstance(getattr(model, "partitions", None), nn.Module)
        why = (
            "are they copies, or do layers lie in no partition?" if listed else "nn.ModuleList registers them"
        )
        return f"model.parameters() misses {lost} of {len(layers)}: {why}"
    parts = getattr(model, "partitions", None)
    if parts is None or [[*part] for part in parts] != [list(part) for part in _cut(layers, case.balance)]:
        return (
            f"model.partitions should hold one nn.Sequential per partition, with {list(case.balance)} layers"
        )
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(case.rows, 4, generator=generator, dtype=torch.float64)
    x[:, 0] = torch.arange(case.rows)
    wants = case.special == "input"
    given, twin = x.clone().requires_grad_(wants), x.clone().requires_grad_(wants)
    try:
        with torch.set_grad_enabled(case.special != "no_grad"):
            output = model(given)
    except ArithmeticError as error:
        if error is watch.error:
            return ""
        raise
    if case.special == "error":
        return "the error of a layer does not reach the caller"
    expected = nn.Sequential(*twins)
    right = torch.cat([expected(part) for part in twin.split(case.sizes)])
    if fault := _forward_fault(case, watch, output, right, given, x, wants):
        return fault
    if case.special != "no_grad" and not output.requires_grad:
        why = "a checkpoint needs an input that requires grad, as my_checkpoint makes it"
        return f"the output has no graph: {'is it detached on the way?' if case.mode == 'never' else why}"
    if case.special == "no_grad":
        return "the output has a graph although gradients are off" if output.requires_grad else ""
    weights = torch.randn(output.shape, generator=generator, dtype=torch.float64)
    if case.special == "numbers":
        _turn_round(output.grad_fn)
    (output * weights).sum().backward()
    (right * weights).sum().backward()
    return _backward_fault(case, watch, layers, twins) or (
        _apart(given.grad, twin.grad, "the input") if wants else ""
    )


def _cut(layers: list[_Layer], balance: Sequence[int]) -> list[list[_Layer]]:
    rest = iter(layers)
    return [[*islice(rest, size)] for size in balance]


def _forward_fault(
    case: Case, watch: Watch, output: Any, right: Tensor, given: Tensor, x: Tensor, wanted: bool
) -> str:
    if output is None:
        return "forward returned None (is a `return` missing?)"
    if not isinstance(output, Tensor):
        return f"forward must return one tensor, not {type(output).__name__}"
    if given.requires_grad is not wanted or not torch.equal(given.detach(), x):
        return "the caller's batch was changed: it belongs to him, make a new tensor"
    wanted_rows = {*zip(watch.starts, case.sizes, strict=True)}
    if watch.rows - wanted_rows:
        sizes = [size for _, size in sorted(watch.rows)]
        return f"the partitions computed micro-batches of {sizes} rows; scatter makes {case.sizes}"
    if output.shape != right.shape:
        return f"the output has shape {[*output.shape]}, not {[*right.shape]}; gather wants a list of tuples, one each"
    if not torch.allclose(output, right):
        return (
            "the output is not that of the layers, one micro-batch after the other. Does each task bind its own "
            "partition and batch when it is made, and does each result go back to its micro-batch?"
        )
    for j, threads in sorted(watch.threads.items()):
        if watch.caller in threads:
            return f"partition {j} was computed by the thread that called forward: no worker, no pipeline"
        if len(threads) > 1:
            return f"partition {j} was computed by {len(threads)} threads: start workers once, not per clock or task"
    if len({*map(id, (next(iter(threads)) for threads in watch.threads.values()))}) < len(case.balance):
        return "two partitions share a thread: there is a worker per partition"
    if len(watch.workers) != len(case.balance):
        return f"{len(watch.workers)} workers were started for {len(case.balance)} partitions: one each"
    for j, threads in sorted(watch.threads.items()):
        if watch.workers[j] not in threads:
            k = watch.workers.index(next(iter(threads)))
            return f"partition {j} was computed by worker {k}: the task of partition j is tasks[j]"
    if watch.alone:
        i, j = watch.alone
        return (
            f"micro-batch {i} in partition {j} did not run at the same time as the others of clock {i + j}: "
            "all tasks of a clock are put before the first answer is taken"
        )
    return ""


def _apart(got: Tensor | None, right: Tensor | None, what: str) -> str:
    assert right is not None
    if got is None:
        return f"{what} gets no gradient: is a tensor detached on the way?"
    if torch.allclose(got, right):
        return ""
    ratio = (got / right)[right.abs() > 1e-9].flatten()
    if len(ratio) and torch.allclose(ratio, ratio[:1].expand_as(ratio)):
        return f"the gradient of {what} is {ratio[0]:.3g} times what it should be"
    return f"the gradient of {what} is not that of the layers over the same micro-batches"


def _backward_fault(case: Case, watch: Watch, layers: list[_Layer], twins: list[_Layer]) -> str:
    homes = [j for j, size in enumerate(case.balance) for _ in range(size)]
    for k, (j, layer, twin) in enumerate(zip(homes, layers, twins, strict=True)):
        if fault := _apart(layer.weight.grad, twin.weight.grad, f"layer {k}, in partition {j},"):
            return fault
    m, n = len(case.sizes), len(case.balance)
    again = {"always": m, "except_last": m - 1, "never": 0}[case.mode]
    for i in range(m):
        for j in range(n):
            wanted, times = 1 + (i < again), watch.computed[i, j]
            if times != wanted:
                last = f", the last of {m}," if i == m - 1 else ""
                return f"micro-batch {i}{last} was computed {times} × in partition {j}, not {wanted} ×"
    if case.special == "numbers":
        for j in reversed(range(n)):
            order = [i for i, k in watch.went_back if k == j]
            if order != sorted(order, reverse=True):
                return (
                    "the outcome is right, but nothing in the graph holds backward to its order. When the check "
                    f"turned autograd's sequence numbers round, partition {j} went back through micro-batches "
                    f"{', '.join(map(str, order))}; tied by fence (or depend) before each task takes its input, it is "
                    f"{', '.join(map(str, sorted(order, reverse=True)))}"
                )
    return ""


def _turn_round(root: Any) -> None:
    """Turn autograd's sequence numbers round: of the nodes that are ready, the one made first goes first."""
    found, waiting = set[Any](), [root]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in found:
            found.add(node)
            waiting += [following for following, _ in node.next_functions]
    nodes = [node for node in found if "AccumulateGrad" not in node.name()]
    highest = max(node._sequence_nr() for node in nodes)
    for node in nodes:
        node._set_sequence_nr(highest - node._sequence_nr())


def _check_mini(exercise: Exercise, answer: Pipe) -> Verdict:
    for case in CASES:
        if fault := trial(answer, case):
            return exercise.wrong(f"with {case}: {fault}{'' if fault.endswith('?') else '.'}")
    return exercise.right(
        f"outputs, gradients, threads, order and errors are right in {len(CASES)} pipelines of 1 to 4 partitions."
    )


# The wrong ones: the reference, with one thing changed.


def _mini(
    cut: Callable[[Tensor, int], list[Tensor]] = lambda x, c: [*map(itemgetter(0), built.scatter((x,), c))],
    stop: Callable[[str, int, int], int] = lambda mode, m, c: {"always": m, "except_last": m - 1, "never": 0}[
        mode
    ],
    depend: Callable[[list[Tensor], int], None] = built.depend,
    compute: Callable[[Any, bool, Tensor], Any] = lambda layer, again, x: (
        partial(built.my_checkpoint, layer, x) if again else partial(layer, x)
    ),
    clock: Callable[..., dict[int, Tensor]] = built.run_clock,
    spawn: Callable[..., Any] = built.spawn_workers,
    join: Callable[[list[Tensor]], Tensor] = torch.cat,
    holds: Callable[..., Any] = nn.ModuleList,
) -> type[nn.Module]:
    class Mini(nn.Module):
        def __init__(
            self, layers: Any, balance: Sequence[int], chunks: int, checkpoint: str = "except_last"
        ) -> None:
            super().__init__()
            layers = iter(layers)
            self.partitions = holds([nn.Sequential(*islice(layers, size)) for size in balance])
            self.chunks, self.checkpoint = chunks, checkpoint

        def forward(self, x: Tensor) -> Tensor:
            batches = cut(x, self.chunks)
            m, n = len(batches), len(self.partitions)
            again = stop(self.checkpoint, m, self.chunks)
            with spawn([torch.device("cpu")] * n) as queues:
                for pairs in built.clock_cycles(m, n):
                    tasks = {}
                    for i, j in pairs:
                        if i > 0:
                            depend(batches, i)
                        tasks[j] = built.Task(
                            None, compute=compute(self.partitions[j], i < again, batches[i])
                        )
                    done = clock(tasks, *queues)
                    for i, j in pairs:
                        batches[i] = done[j]
            return join(batches)

    return Mini


def _late() -> type[nn.Module]:
    class Mini(_mini()):  # type: ignore[misc]
        def forward(self, x: Tensor) -> Tensor:
            batches = [part for (part,) in built.scatter((x,), self.chunks)]
            with built.spawn_workers([torch.device("cpu")] * len(self.partitions)) as queues:
                for pairs in built.clock_cycles(len(batches), len(self.partitions)):
                    tasks = {}
                    for i, j in pairs:
                        tasks[j] = built.Task(None, compute=lambda: self.partitions[j](batches[i]))  # noqa: B023
                    done = built.run_clock(tasks, *queues)
                    for i, j in pairs:
                        batches[i] = done[j]
            return torch.cat(batches)

    return Mini


def _one_by_one(tasks: Any, in_queues: Any, out_queues: Any) -> dict[int, Tensor]:
    return {j: built.run_clock({j: task}, in_queues, out_queues)[j] for j, task in tasks.items()}


def _mirrored(tasks: Any, *queues: Any) -> dict[int, Tensor]:
    return built.run_clock(tasks, *(each[::-1] for each in queues))


def _here(tasks: Any, *_: Any) -> dict[int, Tensor]:
    return {j: task.compute() for j, task in tasks.items()}


def _respawned(tasks: Any, *queues: Any) -> dict[int, Tensor]:
    with built.spawn_workers([torch.device("cpu")] * (max(tasks) + 1)) as own:
        return built.run_clock(tasks, *own)


def _reraised(tasks: Any, *queues: Any) -> dict[int, Tensor]:
    try:
        return built.run_clock(tasks, *queues)
    except ArithmeticError as error:
        raise RuntimeError(f"a worker failed: {error}") from None


@contextmanager
def _left(devices: Any) -> Iterator[Any]:
    pairs: Any = [(SimpleQueue(), SimpleQueue()) for _ in devices]
    for pair in pairs:
        Thread(target=built.worker, args=pair, daemon=True).start()
    yield [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def _from_the_caller(x: Tensor, chunks: int) -> list[Tensor]:
    return [part for (part,) in built.scatter((x.requires_grad_(),), chunks)]


def _whole_parts(x: Tensor, chunks: int) -> list[Tensor]:
    size = max(1, len(x) // chunks)
    return [*x.split(size)][:chunks]


def _checkpointed(layer: Any, again: bool, x: Tensor) -> Any:
    return partial(built.MyCheckpoint.apply, layer, x) if again else partial(layer, x)


check_mini = Exercise(
    "MiniGPipe",
    reference=MiniGPipe,
    methods=("__init__", "forward"),
    judge=_check_mini,
    mistakes={
        "gets no gradient: is a tensor detached on the way?": _mini(
            compute=lambda layer, again, x: partial(layer, x.detach())
        ),
        "nothing in the graph holds backward to its order": _mini(depend=lambda batches, i: None),
        "nothing in the graph holds backward to its order.": _mini(
            depend=lambda batches, i: built.depend([*batches], i)
        ),
        ", the last of 4, was computed 2 × in partition 0, not 1 ×": _mini(
            stop=lambda mode, m, c: 0 if mode == "never" else m
        ),
        ", the last of 3, was computed 2 × in partition 0, not 1 ×": _mini(
            stop=lambda mode, m, c: {"always": m, "except_last": c - 1, "never": 0}[mode]
        ),
        "was computed 1 × in partition 0, not 2 ×": _mini(stop=lambda mode, m, c: 0),
        "was computed by the thread that called forward: no worker, no pipeline": _mini(clock=_here),
        "did not run at the same time as the others of clock 1": _mini(clock=_one_by_one),
        "start workers once, not per clock or task": _mini(clock=_respawned),
        "is 0.333 times what it should be": _mini(
            join=lambda batches: (
                torch.cat(batches).detach()
                + (torch.cat(batches) - torch.cat(batches).detach()) / len(batches)
            )
        ),
        "the caller's batch was changed": _mini(cut=_from_the_caller),
        "scatter makes [3, 2, 2]": _mini(cut=lambda x, c: [*x.chunk(c)]),
        "scatter makes [3, 2, 2].": _mini(cut=_whole_parts),
        "Does each task bind its own partition and batch when it is made": _late(),
        "threads are left when forward has ended": _mini(spawn=_left),
        "your code raised RuntimeError: a worker failed: from a layer": _mini(clock=_reraised),
        "nn.ModuleList registers them": _mini(holds=list),
        "are they copies, or do layers lie in no partition?": _mini(
            holds=lambda parts: nn.ModuleList(deepcopy(parts))
        ),
        "the last of 1, was computed 2 × in partition 0, not 1 ×": _mini(
            stop=lambda mode, m, c: {"always": m, "except_last": max(m - 1, 1), "never": 0}[mode]
        ),
        "partition 0 was computed by worker 1: the task of partition j is tasks[j]": _mini(clock=_mirrored),
        "2 workers were started for 1 partitions: one each": _mini(
            spawn=lambda devices: built.spawn_workers([*devices, *devices[:1]])
        ),
        "the output has no graph: is it detached on the way?": _mini(
            join=lambda batches: torch.cat([batch.detach() for batch in batches])
        ),
        "; scatter makes tuples: take the one tensor out of each": _mini(
            cut=lambda x, c: built.scatter((x,), c)
        ),
        "gather wants a list of tuples, one each": _mini(join=lambda batches: built.gather(batches)[0]),
        "the output has no graph: a checkpoint needs an input that requires grad": _mini(
            compute=_checkpointed
        ),
    },
)
"""Exercise 2: equal to the layers over the same micro-batches, and a pipeline."""
