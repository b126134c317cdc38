"""Predictions and exercises of notebook 11, the order of backward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import torch
from torch import Tensor

from lib._values import plural
from lib.pipeline.pipeline import clock_cycles
from support.built import MyFork, MyJoin, depend, fence
from support.checks import Exercise, Guess, Verdict
from support.n11.runs import peaks, predict

Function: TypeAlias = Any  # a class derived from torch.autograd.Function
Fence: TypeAlias = Callable[[list[tuple[int, int]], list[Tensor], Callable[[Tensor, int], Tensor]], None]

# ---- predictions

guess_first = Guess(
    "the chain that goes backward first",
    lambda: "a",
    read=lambda said: said.strip().lower() if isinstance(said, str) else said,
)
"""Section 3: which of the two chains goes backward first."""
guess_ticks = Guess(
    "the end of partition 0's backward in ticks",
    lambda copy, recompute, backward: max(copy, recompute) + backward,
)
"""Section 5: a copy, a recomputation and a backward, where the first two need not wait for each other."""
guess_alive = Guess("the most insides alive in partition 1", lambda: peaks(predict(8, 2, False).ops)[-1])
"""Section 7: insides alive at once in the last of 2 partitions, 8 micro-batches, untied."""
guess_changes = Guess("the number of gradient entries that change", lambda: 0)
""" "Break it": does a phony without gradient change the gradients?"""


# ---- what the exercises are tried on: steps that note when they go backward, and threads


class Step(torch.autograd.Function):
    """Pass a tensor on; backward notes a label."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, label: str, ran: list[str]) -> Tensor:
        """Keep what to note."""
        ctx.note = label, ran
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Note it."""
        label, ran = ctx.note
        ran.append(label)
        return gradient, None, None


def step(x: Tensor, label: str, ran: list[str]) -> Tensor:
    """Apply a Step."""
    return Step.apply(x, label, ran)  # type: ignore[no-untyped-call,no-any-return]


def far_ahead() -> None:
    """Let this thread's sequence numbers run ahead of those of a new one."""
    x = torch.ones(1, requires_grad=True)
    for _ in range(64):
        x * 1


def elsewhere(work: Callable[..., Any], *arguments: Any) -> Any:
    """Call it in a new thread, whose sequence numbers begin at 0."""
    with ThreadPoolExecutor(1) as worker:
        return worker.submit(work, *arguments).result()


def said_of(error: Exception) -> str:
    """Return what torch says of a wrong autograd function, and what is behind it."""
    text = f"{type(error).__name__}: {error}".splitlines()[0]
    return next((f"{text}. {why}" for sign, why in ERRORS.items() if sign in text), text)


ERRORS = {  # what torch says: what is behind it
    "incorrect number of gradients": "backward returns one gradient for each argument of forward after ctx, None for "
    "what is no tensor.",
    "invalid gradient": "A gradient has the shape of its tensor. The phony's has no elements: return None for it.",
    "positional argument": "backward gets one gradient for each output of forward.",
    "KeyError": "Checkpoint looked for the inside before Recompute had left it there.",
}


# ---- exercise 1: the engine's rule


def engine_order(root: Any) -> list[Any]:
    """Return all nodes behind `root` in the order in which autograd will run them."""
    users, found = Counter[Any](), [root]
    for node in found:  # grows while it is read
        for following, _ in node.next_functions:
            if following is not None:
                users[following] += 1
                if users[following] == 1:
                    found.append(following)
    order, ready = [], [root]
    while ready:
        node = max(ready, key=lambda node: node._sequence_nr())
        ready.remove(node)
        order.append(node)
        for following, _ in node.next_functions:
            if following is not None:
                users[following] -= 1
                if users[following] == 0:
                    ready.append(following)
    return order


def graphs() -> Iterator[tuple[str, Tensor]]:
    """Yield graphs, each with its name; no two nodes that can be ready together have the same number."""
    far_ahead()
    w = torch.ones(2, requires_grad=True)
    yield "tanh(w * 2)", torch.tanh(w * 2)
    w = torch.ones(2, requires_grad=True)
    yield "exp(w * 2) + sin(w * 3)", torch.exp(w * 2) + torch.sin(w * 3)
    w = torch.ones(2, requires_grad=True)
    y = w * 2
    yield "y = w * 2, exp(y) + y", torch.exp(y) + y
    w, v = (torch.ones(2, requires_grad=True) for _ in "wv")
    y = w * 2
    z = y * y
    yield "y = w * 2, z = y * y, sin(z) + z * v", torch.sin(z) + z * v
    w, v = (torch.ones(2, requires_grad=True) for _ in "wv")
    a, b = torch.tanh(w * 2) * 3, elsewhere(lambda: torch.sin(v * 2) * 3)
    yield "two chains, one of them made in another thread", a + b
    x = torch.ones(2, requires_grad=True) * 1
    for _ in range(5):
        x = torch.sin(x) * torch.cos(x) + x
    yield "five rounds of x = sin(x) * cos(x) + x", x


def _check_engine(exercise: Exercise, answer: Callable[[Any], Any]) -> Verdict:
    suspects = dict(exercise.mistakes)
    for count, (name, output) in enumerate(graphs(), start=1):
        root: Any = output.grad_fn
        got = _tried(answer, root)
        if isinstance(got, Exception):
            return exercise.wrong(f"for {name} your code raised {type(got).__name__}: {got}.")
        if not isinstance(got, list):
            return exercise.wrong(
                "your function returned None (is a `return` missing?)."
                if got is None
                else f"a list of nodes is expected, not {type(got).__name__}."
            )
        suspects = {why: f for why, f in suspects.items() if _names(_tried(f, root)) == _names(got)}
        real = watched(engine_order(root))
        output.backward(torch.ones_like(output))
        if _names(got) != _names(real):
            said = next(iter(suspects), "")
            return exercise.wrong(
                f"for {name} autograd ran {_told(real)}; yours says {_told(got)}. {said}".rstrip()
            )
        if count > 1 and any(a is not b for a, b in zip(got, real, strict=True) if not _is_leaf(a)):
            return exercise.wrong(f"for {name} two nodes of the same name are exchanged.")
    return exercise.right(f"the order in which autograd really ran {count} graphs, node by node.")


def watched(nodes: list[Any]) -> list[Any]:
    """Return an empty list, to which each node is added when it runs."""
    ran: list[Any] = []
    for node in nodes:
        node.register_prehook(lambda *_, node=node: ran.append(node))
    return ran


def _tried(answer: Callable[[Any], Any], root: Any) -> Any:
    try:
        return answer(root)
    except Exception as error:
        return error


def _is_leaf(node: Any) -> bool:
    return str(node.name()).endswith("AccumulateGrad")


def _names(nodes: Any) -> list[str]:
    return (
        [node.name() if hasattr(node, "name") else repr(node) for node in nodes]
        if isinstance(nodes, list)
        else []
    )


def _told(nodes: list[Any]) -> str:
    names = [name.split("::")[-1].removesuffix("Backward0") for name in _names(nodes)]
    return " ".join(names[:12]) + (" …" if names[12:] else "")


def _by(pick: Callable[[list[Any]], Any], waits: bool = True) -> Callable[[Any], list[Any]]:
    """Return the rule with another choice among the ready, or one that does not wait for all users."""

    def order_of(root: Any) -> list[Any]:
        nodes = engine_order(root)
        users = Counter(x for node in nodes for x, _ in node.next_functions)
        order, ready = [], [root]
        while ready:
            node = pick(ready)
            ready.remove(node)
            order.append(node)
            for x, _ in node.next_functions:
                users[x] -= 1
                if x is not None and (not users[x] if waits else x not in order and x not in ready):
                    ready.append(x)
        return order

    return order_of


def _highest(ready: list[Any]) -> Any:
    return max(ready, key=lambda node: node._sequence_nr())


check_engine = Exercise(
    "the engine's rule",
    name="engine_order",
    reference=engine_order,
    judge=_check_engine,
    mistakes={
        "A node is ready only when all its users have run, not the first of them.": _by(
            _highest, waits=False
        ),
        "Among the ready nodes the highest number goes first; here it is the lowest.": _by(
            lambda ready: min(ready, key=lambda node: node._sequence_nr())
        ),
        "Here the node that has been ready for longest goes first; the numbers decide.": _by(
            lambda ready: ready[0]
        ),
        "Here the node that became ready last goes first; the numbers decide.": _by(lambda ready: ready[-1]),
        "AccumulateGrad is a node, too; it belongs into the list.": lambda root: [
            node for node in engine_order(root) if not _is_leaf(node)
        ],
        "All nodes in the order of their numbers: which of them are ready is forgotten.": lambda root: sorted(
            engine_order(root), key=lambda node: -node._sequence_nr()
        ),
        "The root itself runs, too, and first.": lambda root: engine_order(root)[1:],
    },
)
"""Exercise 1: which node runs when, against what autograd does."""


# ---- exercise 2: Fork and Join


def _check_fork_join(exercise: Exercise, answer: tuple[Function, Function]) -> Verdict:
    problem = _problem_of_fork(answer[0]) or _problem_of_join(*answer) or _problem_of_order(*answer)
    return Verdict("wrong", problem) if problem else exercise.right(f"{exercise.praise}.")


def _problem_of_fork(fork: Function) -> str:
    x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True) * 2
    try:
        forked = fork.apply(x)
    except Exception as error:
        return f"MyFork.forward raised {type(error).__name__}: {error}"
    if forked is None:
        return (
            "MyFork.forward returned None (is a `return` missing?); it must return two tensors, (x, phony)."
        )
    if not isinstance(forked, tuple) or len(forked) != 2 or not all(isinstance(y, Tensor) for y in forked):
        return f"MyFork.forward must return two tensors, (x, phony), not {type(forked).__name__}."
    y, phony = forked
    if y.shape != x.shape or not torch.equal(y, x):
        return "MyFork must not change x: its first output differs."
    if phony.numel():
        return (
            f"The phony has {phony.numel()} elements. It carries an edge, no data: torch.empty(0) has none."
        )
    if y.grad_fn is x.grad_fn:
        return "x came out as it went in, without a Fork node behind it: return x.detach(), autograd adds the node."
    if not phony.requires_grad or phony.grad_fn is not y.grad_fn:
        return (
            "The phony does not require grad, so it leads nowhere: it must be an output of MyFork.forward, not made "
            "outside, and not marked non-differentiable."
        )
    return ""


def _tied(fork: Function, join: Function) -> tuple[list[str], Tensor | None, Tensor | None]:
    """Return the order of backward and both gradients of chains a (this thread) and b (another one), b tied to a."""
    ran: list[str] = []
    x, y = (torch.ones(3, requires_grad=True) for _ in "ab")
    far_ahead()
    a, phony = fork.apply(step(step(x, "a0", ran), "a1", ran))
    start = join.apply(y, phony)
    b = elsewhere(lambda: step(step(start, "b0", ran), "b1", ran))
    (2 * a + 3 * b).sum().backward()
    return ran, x.grad, y.grad


def _problem_of_join(fork: Function, join: Function) -> str:
    _, phony = fork.apply(torch.ones(3, requires_grad=True) * 2)
    other = torch.tensor([4.0, 5.0, 6.0], requires_grad=True) * 1
    try:
        joined = join.apply(other, phony)
    except Exception as error:
        return f"MyJoin.forward raised {type(error).__name__}: {error}"
    if joined is None:
        return "MyJoin.forward returned None (is a `return` missing?)."
    if not isinstance(joined, Tensor):
        return f"MyJoin.forward must return one tensor, not {type(joined).__name__}."
    if joined.shape != other.shape or not torch.equal(joined, other):
        return "MyJoin must not change x: its output differs."
    return ""


def _problem_of_order(fork: Function, join: Function) -> str:
    try:
        ran, grad_a, grad_b = _tied(fork, join)
    except Exception as error:
        return f"backward raised {said_of(error)}"
    for name, function, grad, want in (("a", "MyFork", grad_a, 2.0), ("b", "MyJoin", grad_b, 3.0)):
        if grad is None or not grad.any():
            return f"Chain {name} gets no gradient: {function}.backward must hand on that of its tensor."
        if not torch.equal(grad, torch.full((3,), want)):
            return f"The gradient of chain {name} is {grad[0].item():g}, not {want:g}: {function} must not change it."
    if ran != ["b1", "b0", "a1", "a0"]:
        return (
            f"Backward ran {' '.join(ran)}, so nothing holds a back. Join must take the phony as an input of apply "
            "and return a tensor with a Join node behind it: x.detach(), not x."
        )
    return ""


check_fork_join = Exercise(
    "MyFork and MyJoin",
    name="forward and backward of MyFork and MyJoin",
    reference=(MyFork, MyJoin),
    answers=2,
    methods=("forward", "backward"),
    judge=_check_fork_join,
    praise="values and gradients untouched, and b goes backward before a",
)
"""Exercise 2: the phony, the values, the gradients, and the order that the edge forces."""


# ---- exercise 3: a checkpoint of two nodes, tied together


class MyCheckpoint(torch.autograd.Function):
    """Compute without a graph; go backward through the inside that Recompute has left."""

    @staticmethod
    def forward(ctx: Any, phony: Tensor, shared: dict[str, Any], function: Any, x: Tensor) -> Tensor:
        """Compute: an autograd function's forward runs without grad mode."""
        ctx.shared = shared
        return function(x)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Go backward through the inside."""
        x, output = ctx.shared.pop("inside")
        torch.autograd.backward(output, gradient)
        return None, None, None, x.grad


class MyRecompute(torch.autograd.Function):
    """Keep the input; compute the inside when backward comes by."""

    @staticmethod
    def forward(ctx: Any, phony: Tensor, shared: dict[str, Any], function: Any, x: Tensor) -> Tensor:
        """Keep the input."""
        ctx.shared, ctx.function = shared, function
        ctx.save_for_backward(x)
        return phony.detach()

    @staticmethod
    def backward(ctx: Any, grad_phony: Tensor) -> Any:
        """Compute once more, with a graph."""
        (x,) = ctx.saved_tensors
        x = x.detach().requires_grad_(x.requires_grad)
        with torch.enable_grad():
            ctx.shared["inside"] = x, ctx.function(x)
        return None, None, None, None


def my_tie(output: Tensor, shared: dict[str, Any], function: Any, x: Tensor) -> Tensor:
    """Hang a Recompute beside the output of a Checkpoint; return the output."""
    output, phony = MyFork.apply(output)  # type: ignore[no-untyped-call]
    phony = MyRecompute.apply(phony, shared, function, x)  # type: ignore[no-untyped-call]
    return MyJoin.apply(output, phony)  # type: ignore[no-untyped-call,no-any-return]


def _layer(w: Tensor, label: str, ran: list[str]) -> Callable[[Tensor], Tensor]:
    def function(x: Tensor) -> Tensor:
        ran.append(f"{'R' if torch.is_grad_enabled() else 'F'}{label}")
        return step(torch.tanh(x * w), f"B{label}", ran)

    return function


Halves: TypeAlias = tuple[Function, Function, Any]


def two_partitions(
    halves: Halves, needs_grad: bool, ran: list[str]
) -> tuple[list[Tensor | None], list[dict[str, Any]]]:
    """Send x through two checkpoints, each with a Wait behind its Checkpoint and a Copy behind its tie.

    Note what runs; return the gradients of the parameters and of x, and what the two shared. The first is tied in a
    new thread, so that sequence numbers help nobody.
    """
    checkpoint, _, tie = halves
    weights = [torch.tensor([0.5, -1.0, 2.0], requires_grad=True) for _ in range(2)]
    leaf = torch.tensor([1.0, 2.0, -0.5], requires_grad=needs_grad)
    x, shared = leaf * 2, list[dict[str, Any]]()
    far_ahead()
    for j, w in enumerate(weights):
        memory, function, input = dict[str, Any](), _layer(w, f"{j}", ran), x
        phony = torch.empty(0, requires_grad=True)
        output = step(checkpoint.apply(phony, memory, function, input), f"Wait{j}", ran)
        output = (
            elsewhere(tie, output, memory, function, input)
            if j == 0
            else tie(output, memory, function, input)
        )
        if not isinstance(output, Tensor):
            raise TypeError("my_tie returned None (is a `return` missing?)" if output is None else
                            f"my_tie must return the output, a tensor, not {type(output).__name__}")  # fmt: skip
        x = step(output, f"Copy{j}", ran)
        shared.append(memory)
    x.backward(torch.tensor([1.0, -2.0, 3.0]))
    return [*(w.grad for w in weights), leaf.grad], shared


def _check_halves(exercise: Exercise, answer: Halves) -> Verdict:
    order = list[str]()
    wanted, _ = two_partitions(exercise.reference, True, order)
    for needs_grad in (True, False):
        case = f"an input that {'requires' if needs_grad else 'does not require'} grad"
        ran = list[str]()
        try:
            grads, shared = two_partitions(answer, needs_grad, ran)
        except NotImplementedError:
            return Verdict("open", f"Not attempted yet: {exercise.name}. A part of it still is a stub.")
        except Exception as error:
            return exercise.wrong(f"with {case}: {said_of(error)}{_mistake(exercise, answer, needs_grad)}")
        if ran != order:
            return exercise.wrong(
                f"with {case} {' '.join(order)} was expected, yours ran {' '.join(ran)}."
                f"{_mistake(exercise, answer, needs_grad)}"
            )
        for name, grad, right in zip(("parameter 0", "parameter 1", "the input"), grads, wanted, strict=True):
            if (needs_grad or name != "the input") and (grad is None or not torch.allclose(grad, right)):  # type: ignore[arg-type]
                told = "None" if grad is None else [round(value, 3) for value in grad.tolist()]
                expected = [round(value, 3) for value in right.tolist()]  # type: ignore[union-attr]
                return exercise.wrong(
                    f"with {case} the gradient of {name} is {told}, not {expected}."
                    f"{_mistake(exercise, answer, needs_grad)}"
                )
        if any(memory.get("inside") is not None for memory in shared):
            return exercise.wrong(next(why for why in exercise.mistakes if "(pop)" in why))
    return exercise.right(exercise.praise)


def _outcome(halves: Halves, needs_grad: bool) -> Any:
    ran = list[str]()
    try:
        grads, _ = two_partitions(halves, needs_grad, ran)
        return ran, [None if grad is None else grad.tolist() for grad in grads]
    except Exception as error:
        return ran, type(error), str(error).splitlines()[:1]


def _mistake(exercise: Exercise, answer: Halves, needs_grad: bool) -> str:
    got = _outcome(answer, needs_grad)
    return next(
        (f" {why}" for why, wrong in exercise.mistakes.items() if _outcome(wrong, needs_grad) == got), ""
    )


def _wrong_checkpoint(backward: Callable[..., Any]) -> Halves:
    return type("MyCheckpoint", (MyCheckpoint,), {"backward": staticmethod(backward)}), MyRecompute, my_tie


def _wrong_recompute(detach: bool = True, graph: bool = True) -> Halves:
    def backward(ctx: Any, grad_phony: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        x = x.detach().requires_grad_(x.requires_grad) if detach else x
        with torch.set_grad_enabled(graph):
            ctx.shared["inside"] = x, ctx.function(x)
        return None, None, None, None

    wrong: Any = type("MyRecompute", (MyRecompute,), {"backward": staticmethod(backward)})

    def tie(output: Tensor, shared: Any, function: Any, x: Tensor) -> Any:
        output, phony = MyFork.apply(output)  # type: ignore[no-untyped-call]
        return MyJoin.apply(output, wrong.apply(phony, shared, function, x))  # type: ignore[no-untyped-call]

    return MyCheckpoint, wrong, tie


def _of_x_alone(ctx: Any, gradient: Tensor) -> Any:
    x, output = ctx.shared.pop("inside")
    return None, None, None, *torch.autograd.grad(output, x, gradient, allow_unused=True)


def _from_ones(ctx: Any, gradient: Tensor) -> Any:
    x, output = ctx.shared.pop("inside")
    output.sum().backward()
    return None, None, None, x.grad


def _kept(ctx: Any, gradient: Tensor) -> Any:
    x, output = ctx.shared["inside"]
    torch.autograd.backward(output, gradient)
    return None, None, None, x.grad


def _without_join(output: Tensor, shared: Any, function: Any, x: Tensor) -> Any:
    forked, phony = MyFork.apply(output)  # type: ignore[no-untyped-call]
    MyRecompute.apply(phony, shared, function, x)  # type: ignore[no-untyped-call]
    return forked


def _without_fork(output: Tensor, shared: Any, function: Any, x: Tensor) -> Any:
    phony = MyRecompute.apply(torch.empty(0, requires_grad=True), shared, function, x)  # type: ignore[no-untyped-call]
    return MyJoin.apply(output, phony)  # type: ignore[no-untyped-call]


check_halves = Exercise(
    "a checkpoint of two nodes",
    name="both backward functions and my_tie",
    reference=(MyCheckpoint, MyRecompute, my_tie),
    answers=3,
    judge=_check_halves,
    praise="gradients as without a checkpoint, each inside computed once more, before the Wait, and then let go.",
    mistakes={
        "Nothing leads to Recompute: the Join is missing, or its result is thrown away.": (
            (MyCheckpoint, MyRecompute, _without_join)
        ),
        "Only sequence numbers put Recompute before Checkpoint here: take its phony from a Fork of the output.": (
            (MyCheckpoint, MyRecompute, _without_fork)
        ),
        "Inside backward no graph is recorded unless one asks for it: with torch.enable_grad().": (
            _wrong_recompute(graph=False)
        ),
        "The inside must begin with a new leaf (x.detach()), or the nested backward runs on into what made x.": (
            _wrong_recompute(detach=False)
        ),
        "torch.autograd.grad for x alone leaves the parameters without their gradients.": (
            _wrong_checkpoint(_of_x_alone)
        ),
        "The nested backward must begin with the gradient that arrived, not with ones.": (
            _wrong_checkpoint(_from_ones)
        ),
        "After backward the inside is still in `shared`, so its memory is not free: take it out (pop).": (
            _wrong_checkpoint(_kept)
        ),
    },
)
"""Exercise 3: Checkpoint.backward, Recompute.backward, and the tie between them."""


# ---- exercise 4: depend and fence


def fenced(m: int, n: int, prepare: Fence) -> tuple[list[str], Tensor | None]:
    """Run a pipeline of checkpoints with this fence; return what backward ran, and the gradient of the parameter.

    One worker computes all partitions, as in torchgpipe on a CPU. C is the way back of a copy.
    """
    ran, w = list[str](), torch.full((2,), 0.5, requires_grad=True)
    batches = [torch.full((1, 2), 1.0 + i) for i in range(m)]
    far_ahead()

    def layer(label: str) -> Callable[[Tensor], Tensor]:
        def function(x: Tensor) -> Tensor:
            ran.extend([f"R{label}"] * torch.is_grad_enabled())
            return step(x * w + 1, f"B{label}", ran)

        return function

    with ThreadPoolExecutor(1) as worker:
        for clock in clock_cycles(m, n):
            numbers = {j: i for i, j in clock}
            prepare(clock, batches, lambda x, j, numbers=numbers: step(x, f"C{numbers[j]}{j}", ran))
            tasks = {(i, j): ({}, layer(f"{i}{j}"), batches[i]) for i, j in clock}
            outputs = {
                pair: worker.submit(MyCheckpoint.apply, torch.empty(0, requires_grad=True), *task).result()
                for pair, task in tasks.items()
            }
            for (i, j), task in tasks.items():
                batches[i] = my_tie(outputs[i, j], *task)
    torch.cat(batches).sum().backward()
    return ran, w.grad


def _check_fence(exercise: Exercise, answer: Fence) -> Verdict:
    for m, n in ((3, 2), (2, 2), (1, 2), (3, 1), (5, 3)):
        where = f"for {plural(m, 'micro-batch', 'micro-batches')} in {plural(n, 'partition')}"
        ran, gradient = fenced(m, n, fence)
        try:
            got = fenced(m, n, answer)
        except NotImplementedError as error:
            return Verdict("open", f"Not attempted yet: depend, which your fence calls. {error}".strip())
        except Exception as error:
            return exercise.wrong(f"{where} your code raised {said_of(error)}.")
        if got[1] is None or not torch.equal(got[1], gradient):  # type: ignore[arg-type]
            return exercise.wrong(
                f"{where} the gradient is not that of the plain model. Fork and Join change no value."
            )
        if got[0] != ran:
            said = next(
                (f" {why}" for why, f in exercise.mistakes.items() if fenced(m, n, f)[0] == got[0]), ""
            )
            k = next((k for k, (a, b) in enumerate(zip(got[0], ran, strict=False)) if a != b), len(ran))
            told = f"{' '.join(got[0][:k])} and then {(*got[0], 'nothing')[k]}".removeprefix(" and then ")
            return exercise.wrong(
                f"{where} backward should run {' '.join(ran)}, with yours it runs {told} (C: a copy).{said}"
            )
    return exercise.right(exercise.praise)


def _by_tying(tie: Callable[[list[Tensor], int, int], None], copied: Callable[[int], bool] = bool) -> Fence:
    def wrong(
        clock: list[tuple[int, int]], batches: list[Tensor], copy: Callable[[Tensor, int], Tensor]
    ) -> None:
        for i, j in clock:
            if i > 0:
                tie(batches, i, j)
            if copied(j):
                batches[i] = copy(batches[i], j)

    return wrong


def _dead(batches: list[Tensor], i: int, j: int) -> None:
    batches[i - 1] = MyFork.apply(batches[i - 1])[0]  # type: ignore[no-untyped-call]
    batches[i] = MyJoin.apply(batches[i], torch.empty(0))  # type: ignore[no-untyped-call]


def _first_only(
    clock: list[tuple[int, int]], batches: list[Tensor], copy: Callable[[Tensor, int], Tensor]
) -> None:
    for i, j in clock[:1]:
        fence([(i, j)], batches, copy)
    for i, j in clock[1:]:
        _by_tying(lambda *_: None)([(i, j)], batches, copy)


check_fence = Exercise(
    "fence",
    name="fence and depend",
    reference=fence,
    judge=_check_fence,
    praise="in five pipelines backward runs in the order of a fence that ties every pair, and the gradients stay.",
    mistakes={
        "Nothing is held back: the phony must come from a Fork of i - 1 and be joined to i, and both results stored.": (
            _by_tying(_dead)
        ),
        "Partition 0 is not tied: every pair with i > 0 needs it, whatever j is.": _by_tying(
            lambda batches, i, j: depend(batches, i) if j else None
        ),
        "Only partition 0 is tied: every pair with i > 0 needs it, whatever j is.": _by_tying(
            lambda batches, i, j: None if j else depend(batches, i)
        ),
        "No copy is made: with j > 0 the batch must come from the partition before.": _by_tying(
            lambda batches, i, j: depend(batches, i), lambda j: False
        ),
        "Partition 0 has nobody to copy from: copy only with j > 0.": _by_tying(
            lambda batches, i, j: depend(batches, i), lambda j: True
        ),
        "Only the first pair of a clock is tied; all of them must be.": _first_only,
    },
)
"""Exercise 4: the order in which a fenced pipeline goes backward."""


# ---- exercise 5: which fence forgot its tie, seen from the order alone

MISSING = (2, 1)


def forgetful_order() -> list[str]:
    """Return the order of a pipeline of 4 micro-batches in 2 partitions in which one tie was forgotten."""

    def forgets(batches: list[Tensor], i: int, j: int) -> None:
        if (i, j) != MISSING:
            depend(batches, i)

    return [op for op in fenced(4, 2, _by_tying(forgets))[0] if op[0] != "C"]


def _pair(said: Any) -> Any:
    return tuple(said) if isinstance(said, Iterable) and not isinstance(said, str) else said


check_missing = Exercise(
    "the pair (i, j) whose tie was forgotten",
    reference=MISSING,
    judge=lambda exercise, answer: exercise.compare(_pair(answer)),
    mistakes={
        "That is where the tie should lead (its Fork); the fence of the later micro-batch makes it.": (1, 1),
        "That tie is there: in partition 0 every micro-batch is done before the one below it begins.": (2, 0),
        "That tie is there: R21 comes after B31.": (3, 1),
        "Micro-batch first, then partition.": (1, 2),
    },
)
"""Exercise 5: the fence (i, j) that forgot to depend."""
