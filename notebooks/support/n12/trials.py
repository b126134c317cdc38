"""What a MiniGPipe of notebook 12 is tried with: pipelines on layers that note who computes what, and when.

A reader's pipeline runs in a thread of its own that is given up after a while. Its layers note when and in which thread
they compute, and wait for the other tasks of their clock.
"""

# mypy: allow-untyped-calls, disable-error-code="no-any-return, unused-ignore"

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from threading import Barrier, BrokenBarrierError, Thread, current_thread
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from lib.pipeline import is_recomputing
from support import built
from support.kit.judged import Fault
from support.kit.raised import in_case, named
from support.kit.threads import Aside
from support.kit.values import NO_RETURN
from support.n12.asked import AskedForLayers, fault_of_an_interrupt, fault_of_ties_elsewhere
from support.n12.given import with_checkpoint
from support.n12.order import fault_of_dictionaries, fault_of_the_graph
from support.n12.parts import fault_of_a_later_batch, fault_of_nests, fault_of_parts


@dataclass
class Watch:
    """What the layers of a pipeline note of one run: in forward, and in backward."""

    starts: list[int]  # of the micro-batches, in rows
    clocks: Counter[int]  # by clock: how many partitions work in it
    partitions: int
    before: set[Thread]  # that ran before forward
    patience: float  # seconds until a task that waits for its neighbours counts as alone
    error: Exception | None = None
    caller: Thread | None = None
    workers: list[Thread] = field(default_factory=list)  # in the order of their start
    rows: set[tuple[int, int]] = field(default_factory=set)
    threads: dict[int, set[Thread]] = field(default_factory=dict)
    alone: tuple[int, int] | None = None
    lost: bool = False  # a micro-batch that there should not be: nobody waits for it
    computed: Counter[tuple[int, int]] = field(default_factory=Counter)
    untold: bool = False  # computed again, and is_recomputing() was not true
    went_back: list[tuple[int, int]] = field(default_factory=list)
    nodes: dict[tuple[int, int], Any] = field(default_factory=dict)  # that a pair's first layer left
    graphs: Counter[tuple[int, int]] = field(default_factory=Counter)  # how often it left one
    unheld: Fault | None = None  # in the graph: what may go backward too early
    meetings: dict[int, Barrier] = field(default_factory=dict)
    lock: Any = field(default_factory=threading.Lock)

    def __deepcopy__(self, memo: object) -> Watch:
        return self  # who copies the layers is told of their weights

    def note(self, j: int, x: Tensor) -> int:
        """Note that partition j computes these rows; in forward, wait for the other tasks of this clock."""
        first = int(x[0, 0].item())
        self.rows.add((first, len(x)))
        i = self.starts.index(first) if first in self.starts else -1
        self.computed[i, j] += 1
        self.lost = self.lost or i < 0
        self.untold = self.untold or (self.computed[i, j] > 1 and not is_recomputing())
        if self.computed[i, j] > 1 or i < 0:
            return i
        self.threads.setdefault(j, set()).add(current_thread())
        with self.lock:  # a pool starts its thread with its first task
            known = {*self.before, *self.workers}
            self.workers += [each for each in threading.enumerate() if each not in known]
        meeting = self.meetings.setdefault(i + j, Barrier(self.clocks[i + j], timeout=self.patience))
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
        self.joins = False  # of a tuple it returns the first tensor alone

    def forward(self, x: Any) -> Any:
        """Compute; note it, if it is watched. Of a tuple the second tensor, numbers of rows, is passed on."""
        if isinstance(x, tuple):
            y = self.computed(x[0])
            return y if self.joins else (y, x[1])
        return self.computed(x)

    def computed(self, x: Tensor) -> Tensor:
        """Compute with one tensor."""
        i = j = -1
        # noted first: what is computed again may end with the last tensor that is needed
        if self.watch is not None:
            watch, j = self.watch
            i = watch.note(j, x.detach())
        mask = torch.tensor([0.0, 1, 1, 1], dtype=x.dtype)
        y = x + torch.tanh(x @ self.weight) * mask
        if self.watch is not None and y.requires_grad and torch.is_grad_enabled():
            watch.nodes.setdefault((i, j), y.grad_fn)
            watch.graphs[i, j] += 1
            y.register_hook(lambda gradient: watch.went_back.append((i, j)))
        return y


@dataclass(frozen=True)
class Case:
    """A pipeline to try: how its layers are cut, its micro-batches, the mode."""

    balance: tuple[int, ...]
    rows: int
    chunks: int
    mode: str
    # "input": wants a gradient; "shared": the last layer is the second; "joins": it returns a tensor for a tuple;
    # "error"; "no_grad"; "eval"
    special: str = ""
    nest: bool = False  # the batch is a tuple: rows, and an integer for each
    before: int = 0  # rows of another batch that this pipeline has had before

    def __str__(self) -> str:
        extra = {
            "input": ", x requires grad",
            "error": ", a layer raises",
            "no_grad": ", in torch.no_grad()",
            "eval": ", in eval mode",
            "shared": ", one layer in two places",
            "joins": ", the last layer returns a tensor",
        }
        nest = ", x a tuple of rows and their numbers (integers)" if self.nest else ""
        before = f", behind a batch of {self.before} rows" if self.before else ""
        return (
            f"balance {list(self.balance)}, {self.rows} rows, chunks={self.chunks}, {self.mode!r}"
            f"{extra.get(self.special, '')}{nest}{before}"
        )

    @property
    def sizes(self) -> list[int]:
        """Return the rows of each micro-batch."""
        return [len(part[0]) for part in built.scatter((torch.zeros(self.rows, 1),), self.chunks)]

    @property
    def again(self) -> int:
        """Return how many micro-batches are computed again."""
        m = len(self.sizes)
        return {"always": m, "except_last": m - 1, "never": 0}[self.mode]

    def layers(self) -> list[_Layer]:
        """Return new layers; one of them may stand in two places."""
        layers = [_Layer(seed) for seed in range(sum(self.balance))]
        if self.special == "shared":
            layers[-1] = layers[1]
        layers[-1].joins = self.special == "joins"
        return layers

    def watch(self, patience: float) -> Watch:
        """Return an empty Watch for this case."""
        sizes = self.sizes
        clocks = built.clock_cycles(len(sizes), len(self.balance))
        starts = [*accumulate(sizes, initial=0)][:-1]
        working = Counter({k: len(clock) for k, clock in enumerate(clocks)})
        return Watch(starts, working, len(self.balance), {*threading.enumerate()}, patience)


CASES = [
    Case((2,), 6, 3, "never"),
    Case((1, 2), 6, 3, "never"),
    Case((3, 1, 2), 7, 3, "never"),
    Case((1, 1, 1, 1), 8, 4, "never", "input"),
    Case((1, 3), 6, 3, "always"),
    Case((1, 2), 6, 3, "never", nest=True),
    Case((2, 2), 6, 3, "never", "shared"),
    Case((1, 2, 1), 8, 4, "always"),
    Case((1, 2, 1), 8, 4, "except_last"),
    Case((1, 1), 8, 4, "always", "input", nest=True),
    Case((1, 1), 8, 4, "except_last", "joins", nest=True),
    Case((2, 1, 1), 7, 4, "except_last", "input"),
    Case((1, 1), 3, 8, "except_last"),
    Case((1, 1), 1, 4, "except_last"),
    Case((1, 1), 1, 4, "always"),
    Case((2,), 6, 3, "except_last"),
    Case((1, 1), 2, 4, "except_last", before=8),
    Case((1, 1), 8, 4, "always", before=2),
    Case((2, 2), 5, 4, "never", "no_grad"),
    Case((1, 2), 6, 3, "always", "eval"),
    Case((1, 1), 6, 3, "always", "error"),
]
Pipe: TypeAlias = Callable[..., Any]


#: What an exception means, by words of its text.
MEANINGS_OF_A_PIPELINE = {"'inside'": "A Checkpoint went backward, and no Recompute had left it an inside."}


def fault_of_pipeline(
    answer: Pipe, patience: float, cases: Sequence[Case] = tuple(CASES), asks: bool = True
) -> str:
    """Run one case after the other; a whole pipeline may take so many seconds, a task a quarter of it.

    asks: it asks its method `layer` what computes a pair. An order that nothing holds is told where all else is right.
    """
    # the first one of a process imports for seconds: nobody's fault
    with_checkpoint(torch.sin, torch.ones(1))
    unheld = ""
    for case in cases:
        watch = case.watch(patience / 4)
        fault = _fault_of_case(answer, case, watch, patience, asks)
        if fault:
            return f"with {case}: {fault}{'' if fault.endswith('?') else '.'}"
        if watch.unheld and not unheld:
            unheld = Fault(f"with {case}: {watch.unheld}.", f"{case}: {watch.unheld.known_by}")
    fault = unheld or fault_of_ties_elsewhere(answer, patience)
    if fault or not asks:
        return fault
    return fault_of_nests(answer) or fault_of_a_later_batch(answer) or fault_of_an_interrupt(answer, patience)


def _fault_of_case(answer: Pipe, case: Case, watch: Watch, patience: float, asks: bool) -> str:
    layers = case.layers()
    for j, first in enumerate([*accumulate(case.balance, initial=0)][:-1]):
        layers[first].watch = watch, j
    if case.special == "error":
        watch.error = ArithmeticError("from a layer")
    said: list[str] = []

    def work() -> None:
        watch.caller = current_thread()
        watch.before.add(watch.caller)
        said.append(_run(answer, case, watch, layers, asks))

    with Aside(work) as aside:
        if not aside.over(patience):
            return "it does not come back: is there a get without a put, or has a worker ended?"
        if aside.error is not None:
            with in_case(f"with {case}", MEANINGS_OF_A_PIPELINE):
                raise aside.error
        left = len(aside.left(0.2))
    if not said[0] and left:
        return f"{left} threads are left when forward has ended"
    return said[0]


def _run(answer: Pipe, case: Case, watch: Watch, layers: list[_Layer], asks: bool) -> str:
    is_the_default = case.mode == "except_last" and not case.special
    mode = [] if is_the_default else [case.mode]
    given_layers = nn.Sequential(*layers)
    balance = [*case.balance]
    model = answer(given_layers, balance, case.chunks, *mode)
    if [*given_layers] != layers or balance != [*case.balance]:
        return "the caller's layers or balance were changed: leave them as they are"
    fault = fault_of_parts(model, case.balance, layers)
    if fault:
        return fault
    if case.special == "eval":
        model.eval()
    earlier = _give_a_batch(model, case, layers, watch) if case.before else None
    # once `layer` is left as it is, and hands out the partition itself
    asked = AskedForLayers(model, watch.caller) if asks and case.special != "shared" else None
    generator = torch.Generator().manual_seed(7)
    x = _numbered_rows(case, generator)
    wants = case.special == "input"
    given = x.clone().requires_grad_(wants)
    twin = x.clone().requires_grad_(wants)
    numbers = torch.arange(case.rows)
    try:
        with torch.set_grad_enabled(case.special != "no_grad"):
            output = model((given, numbers) if case.nest else given)
    except Exception as error:
        if error is watch.error:
            return ""
        if case.special != "error":
            raise
        return f"a layer raised, and the caller gets another exception in its place: {named(error)}"
    if case.special == "error":
        return "the error of a layer does not reach the caller"
    if case.nest and case.special != "joins":
        if not isinstance(output, tuple) or len(output) != 2:
            return f"the layers return a tuple of two tensors, and forward {_told(output)}"
        output, passed = output
        if not torch.equal(passed, numbers):
            return f"the numbers of the rows come out as {passed.tolist()}, not as {numbers.tolist()}"
    twins = case.layers()
    expected = nn.Sequential(*twins)
    right = torch.cat([expected(part) for part in twin.split(case.sizes)])
    fault = (
        _fault_of_output(case, watch, output, right, given, x, wants)
        or _fault_of_workers(case, watch)
        or _fault_of_mode(case, layers)
        or ("" if asked is None else asked.fault(len(case.sizes), len(case.balance)))
        or _fault_of_graph(case, output)
        or fault_of_dictionaries(output.grad_fn, getattr(earlier, "grad_fn", None))
    )
    if fault or case.special == "no_grad":
        return fault
    weights = torch.randn(output.shape, generator=generator, dtype=torch.float64)
    watch.unheld = fault_of_the_graph(output.grad_fn, watch.nodes, watch.starts, len(case.balance))
    (output * weights).sum().backward()
    (right * weights).sum().backward()
    fault = _fault_of_backward(case, watch, layers, twins) or _fault_of_recompute(case, watch, asked)
    if fault or not wants:
        return fault
    return _apart(given.grad, twin.grad, "the input")


def _numbered_rows(case: Case, generator: torch.Generator) -> Tensor:
    x = torch.randn(case.rows, 4, generator=generator, dtype=torch.float64)
    x[:, 0] = torch.arange(case.rows)
    return x


def _give_a_batch(model: Any, case: Case, layers: list[_Layer], watch: Watch) -> Any:
    """Let the pipeline go forward with another batch, of which nothing is noted; return what comes out."""
    watches = [layer.watch for layer in layers]
    for layer in layers:
        layer.watch = None
    output = model(torch.zeros(case.before, 4, dtype=torch.float64))
    for layer, its_watch in zip(layers, watches, strict=True):
        layer.watch = its_watch
    watch.before.update(threading.enumerate())
    return output


def _told(output: object) -> str:
    return NO_RETURN if output is None else f"returned {type(output).__name__}"


def _fault_of_graph(case: Case, output: Tensor) -> str:
    """Say whether the output lacks a graph, or has one that it should not have."""
    wanted = case.special != "no_grad"
    if output.requires_grad and not wanted:
        return "the output has a graph although gradients are off"
    if wanted and not output.requires_grad:
        return "the output has no graph: is it detached on the way?"
    return ""


def _fault_of_output(
    case: Case, watch: Watch, output: Any, right: Tensor, given: Tensor, x: Tensor, wanted: bool
) -> str:
    if output is None:
        return f"forward {NO_RETURN}"
    if not isinstance(output, Tensor):
        return f"the layers return a tensor, and forward {_told(output)}"
    if given.requires_grad is not wanted or not torch.equal(given.detach(), x):
        return "the caller's batch was changed: leave it as it is, make a new tensor"
    wanted_rows = {*zip(watch.starts, case.sizes, strict=True)}
    if watch.rows - wanted_rows:
        sizes = [size for _, size in sorted(watch.rows)]
        if not Counter(sizes) - Counter(case.sizes):
            return "the partitions computed other rows than those of the micro-batches that scatter makes"
        return f"the partitions computed micro-batches of {sizes} rows; scatter makes {case.sizes}"
    if output.shape != right.shape:
        return (
            f"the output has shape {[*output.shape]}, not {[*right.shape]}; is it gathered along dimension 0?"
        )
    if not torch.allclose(output, right):
        return (
            "the output is not that of the layers, one micro-batch after the other. Does each task bind its own "
            "partition and batch when it is made, and does each result go back to its micro-batch?"
        )
    return ""


def _fault_of_workers(case: Case, watch: Watch) -> str:
    """Say which thread computed what it should not have, or which task ran alone."""
    for j, threads in sorted(watch.threads.items()):
        if watch.caller in threads:
            return f"partition {j} was computed by the thread that called forward, not by a worker"
        if len(threads) > 1:
            return f"partition {j} was computed by {len(threads)} threads: a partition has one worker for all clocks"
    at_work = {thread for threads in watch.threads.values() for thread in threads}
    if len(at_work) < len(case.balance):
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


def _fault_of_mode(case: Case, layers: list[_Layer]) -> str:
    wanted = case.special != "eval"
    mode = "evaluation" if wanted else "training"
    changed = any(layer.training != wanted for layer in layers)
    return f"the caller's layers are in {mode} mode afterwards" if changed else ""


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


def _fault_of_backward(case: Case, watch: Watch, layers: list[_Layer], twins: list[_Layer]) -> str:
    homes = [j for j, size in enumerate(case.balance) for _ in range(size)]
    for k, (j, layer, twin) in enumerate(zip(homes, layers, twins, strict=True)):
        if fault := _apart(layer.weight.grad, twin.weight.grad, f"layer {k}, in partition {j},"):
            return fault
    m = len(case.sizes)
    n = len(case.balance)
    for i in range(m):
        for j in range(n):
            wanted = 1 + (i < case.again)
            times = watch.computed[i, j]
            if times != wanted:
                last = f", the last of {m}," if i == m - 1 else ""
                return f"micro-batch {i}{last} was computed {times} × in partition {j}, not {wanted} ×"
    return ""


def _fault_of_recompute(case: Case, watch: Watch, asked: AskedForLayers | None) -> str:
    if asked is not None and watch.untold:
        return "is_recomputing() is not true while a layer computes again: with_checkpoint sees to that"
    if asked is not None:
        return asked.fault_of_recompute(len(case.sizes), len(case.balance), case.again)
    for (i, j), times in sorted(watch.graphs.items()):
        if times > 1:
            return (
                f"micro-batch {i} leaves two graphs in partition {j}, one of them in forward: a Checkpoint computes "
                "without one, and keeps x only"
            )
    return ""
