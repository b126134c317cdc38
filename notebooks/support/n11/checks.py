"""Predictions and exercises of notebook 11, the order of backward."""

# mypy: allow-untyped-calls

from __future__ import annotations

import inspect
import warnings
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import torch
from torch import Tensor

from lib.text import plural
from support.built import MyFork, MyJoin, depend, fence
from support.checks import Exercise, Guess, Tried, Verdict, letter, untouched
from support.n11 import runs
from support.n11.runs import Fence, MyCheckpoint, MyRecompute, engine_order, far_ahead, fenced, my_tie, step

# ---- predictions

SLIPS: dict[object, str] = {
    "B": "it is chain A that goes first. Read on for the reason.",
    12: "4 + 3 + 5 is the checkpoint in one node, in which the recomputation waits for the copy. It is 9.",
    7: "4 + 3 is when the recomputation ends if it waits for the copy; it need not. It is 9.",
    8: "3 + 5 forgets that the backward needs the gradient, too, and the copy takes longer. It is 9.",
}


class _Told(Guess):
    """A guess some of whose values are told apart."""

    def __call__(self, my_guess: object, *known: Any, **named: Any) -> Verdict:
        said = next((f"{slip}: {why}" for slip, why in SLIPS.items() if self.read(my_guess) == slip), "")
        return Verdict("note", f"You said {said}") if said else super().__call__(my_guess, *known, **named)


def _pair(said: Any) -> Any:
    return tuple(said) if isinstance(said, list) else said


guess_first = _Told(
    "the chain that goes backward first", lambda: "A", read=letter, tried=Tried(right="a", wrong="b")
)
guess_ticks = _Told(
    "the end of the partition's backward in ticks",
    lambda copy, again, back: max(copy, again) + back,
    tried=Tried(right=9, wrong=12, known=(4, 3, 5)),
)
guess_alive = Guess(
    "the most insides alive in partitions 0 and 1",
    lambda: tuple(runs.peaks(runs.order_of(8, 2, False))),
    read=_pair,
    tried=Tried(right=(2, 8), wrong=(8, 8)),
)
guess_changes = Guess("the number of gradient entries that change", lambda: 0, tried=Tried(right=0, wrong=4))
MISSING = (2, 1)
guess_missing = Guess(
    "the pair (i, j) whose tie was forgotten",
    lambda: MISSING,
    read=_pair,
    tried=Tried(right=(2, 1), wrong=(1, 1)),
)


# fmt: off
def forgetful_order() -> list[str]:
    """Return the order of a pipeline of 4 micro-batches in 2 partitions in which one tie was forgotten."""
    ran = fenced(4, 2, changed("i > 0", f"i > 0 and (i, j) != {MISSING}", depend, fence)[1])[0]
    return [op for op in ran if op[0] != "C"]


def elsewhere(work: Callable[..., Any], *arguments: Any) -> Any:
    """Call it in a new thread, whose sequence numbers begin at 0."""
    with ThreadPoolExecutor(1) as worker:
        return worker.submit(work, *arguments).result()


ERRORS = {  # what torch says: what is behind it
    "incorrect number of gradients": "backward returns one gradient for each argument of forward after ctx, or None.",
    "invalid gradient": "A gradient has the shape of its tensor. The phony's has no elements: return None for it.",
    "positional argument": "backward gets one gradient for each output of forward.",
    "KeyError: 'inside'": "Checkpoint looked for the inside before Recompute had left it there.",
}


def said_of(error: Exception) -> str:
    """Return what torch says of a wrong autograd function, and what is behind it."""
    text = f"{type(error).__name__}: {error}".splitlines()[0]
    return next((f"{text}. {why}" for sign, why in ERRORS.items() if sign in text), text)


def changed(old: str, new: str, *parts: Any) -> Any:
    """Return parts of ours with one line changed: a famous wrong answer."""
    text = "\n".join(map(inspect.getsource, parts))
    if old not in text:
        raise ValueError(f"{old!r} stands in none of these parts")
    space = dict(vars(inspect.getmodule(parts[0])))
    exec(compile("from __future__ import annotations\n" + text.replace(old, new), "<changed>", "exec"), space)
    wrong = [space[part.__name__] for part in parts]
    return wrong[0] if len(wrong) == 1 else tuple(wrong)


# ---- exercise 1: the engine's rule

HIGHEST = "max(ready, key=lambda node: node._sequence_nr())"


def graphs() -> Iterator[tuple[str, Tensor]]:
    """Yield graphs, each with its name; no two nodes that can be ready together have the same number."""
    far_ahead()
    w, v = (torch.ones(2, requires_grad=True) for _ in "wv")
    yield "tanh(w * 2)", torch.tanh(w * 2)
    yield "exp(w * 2) + sin(w * 3)", torch.exp(w * 2) + torch.sin(w * 3)
    y = w * 2
    yield "y = w * 2, exp(y) + y", torch.exp(y) + y
    z = y * y
    yield "y = w * 2, z = y * y, sin(z) + z * v", torch.sin(z) + z * v
    yield "sin(w) + w * w", torch.sin(w) + w * w
    a, b = torch.tanh(w * 2) * 3, elsewhere(lambda: torch.sin(v * 2) * 3)
    yield "two chains, one of them made in another thread", a + b
    for _ in range(5):
        w = torch.sin(w) * torch.cos(w) + w
    yield "five rounds of w = sin(w) * cos(w) + w", w


def _check_engine(exercise: Exercise, answer: Callable[[Any], Any]) -> Verdict:
    suspects = dict(exercise.mistakes)
    for name, output in graphs():
        root: Any = output.grad_fn
        got = _tried(answer, root)
        if isinstance(got, Exception):
            return exercise.wrong(f"for {name} your code raised {type(got).__name__}: {got}.")
        if not isinstance(got, list):
            said = "returned None (is a `return` missing?)" if got is None else f"gave a {type(got).__name__}"
            return exercise.wrong(f"your function {said}, no list.")
        suspects = {why: f for why, f in suspects.items() if _tried(f, root) == got}
        real: list[Any] = []
        for x in engine_order(root):
            x.register_prehook(lambda *_, x=x, real=real: real.append(x))
        output.backward(torch.ones_like(output), retain_graph=True)
        if [*map(id, got)] != [*map(id, real)]:
            said = f"autograd ran {_told(real)}; yours says {_told(got)}. {next(iter(suspects), '')}"
            return exercise.wrong(f"for {name} {said}".rstrip())
    return exercise.right("the order in which autograd really ran seven graphs, node by node.")


def _tried(answer: Callable[[Any], Any], root: Any) -> Any:
    try:
        return answer(root)
    except Exception as error:
        return error


def _name(node: Any) -> str:
    return str(node.name()).split("::")[-1].removesuffix("Backward0") if hasattr(node, "name") else repr(node)


def _told(nodes: list[Any]) -> str:
    return " ".join(map(_name, nodes[:12])) + (" …" if nodes[12:] else "")


ENGINES = {
    "A leaf w has three users in sin(w) + w * w: one edge of sin and two of w * w. You counted nodes, not edges, so "
    "it ran before sin.": ("read\n        for x in following(node)", "read\n        for x in set(following(node))"),
    "A node is ready only when all its users have run, not the first of them.": (
        "if users[x] == 0:", "if x not in order + ready:"),
    "Among the ready nodes the highest number goes first; here it is the lowest.": ("max(ready", "min(ready"),
    "Here the node that has been ready for longest goes first; the numbers decide.": (HIGHEST, "ready[0]"),
    "Here the node that became ready last goes first; the numbers decide.": (HIGHEST, "ready[-1]"),
}
check_engine = Exercise(
    "the engine's rule",
    name="engine_order",
    reference=engine_order,
    judge=_check_engine,
    mistakes={why: changed(*edit, engine_order) for why, edit in ENGINES.items()} | {
        "AccumulateGrad is a node, too; it belongs into the list.": (
            lambda root: [node for node in engine_order(root) if "Accumulate" not in node.name()]),
        "All nodes in the order of their numbers: which of them are ready is forgotten.": (
            lambda root: sorted(engine_order(root), key=lambda node: -node._sequence_nr())),
        "The root itself runs, too, and first.": lambda root: engine_order(root)[1:],
    },
)
"""Exercise 1: which node runs when, against what autograd does."""


# ---- exercise 2: Fork and Join

def _check_fork_join(exercise: Exercise, answer: tuple[runs.AutogradFunction, runs.AutogradFunction]) -> Verdict:
    if any(untouched(x.backward) and "NotImplementedError" in x.backward.__code__.co_names for x in answer):
        return Verdict("open", f"Not attempted yet: {exercise.name}. A part of it still is a stub.")
    said = _fault_of_fork(answer[0]) or _fault_of_join(*answer)
    return Verdict("wrong", said) if said else exercise.right(f"{exercise.praise}.")


def _fault_of_fork(fork: runs.AutogradFunction) -> str:
    x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True) * 2
    try:
        forked, _ = fork.apply(x), fork.apply(x)  # a second one must not take the first one's edge
    except Exception as error:
        return f"MyFork.forward raised {type(error).__name__}: {error}"
    if not isinstance(forked, tuple) or len(forked) != 2 or not all(isinstance(y, Tensor) for y in forked):
        kind = "None: returned None (is a `return` missing?)" if forked is None else type(forked).__name__
        return f"MyFork.forward must return two tensors, (x, phony), not {kind}."
    y, phony = forked
    if y.shape != x.shape or not torch.equal(y, x):
        return "MyFork must not change x: its first output differs."
    if phony.numel():
        return f"The phony has {phony.numel()} elements. It carries an edge, no data: torch.empty(0) has none."
    if y.grad_fn is x.grad_fn:
        return "x came out as it went in, without a Fork node that made it: return x.detach(), autograd adds the node."
    if not phony.requires_grad or phony.grad_fn is not y.grad_fn:
        return ("The phony does not lead to this Fork: it must be an output of MyFork.forward, made there in each "
                "call and not outside, and not marked non-differentiable.")
    return ""


def _fault_of_join(fork: runs.AutogradFunction, join: runs.AutogradFunction) -> str:
    ran: list[str] = []
    x, y = (torch.tensor([1.0, 2.0, 3.0], requires_grad=True) for _ in "ab")
    far_ahead()
    try:
        a, phony = fork.apply(step(step(x, "a0", ran), "a1", ran))
        start = join.apply(y, phony)
        if not isinstance(start, Tensor):
            kind = "None: returned None (is a `return` missing?)" if start is None else type(start).__name__
            return f"MyJoin.forward must return one tensor, not {kind}."
        if start.shape != y.shape or not torch.equal(start, y):
            return "MyJoin must not change x: its output differs."
        b = elsewhere(lambda: step(step(start, "b0", ran), "b1", ran))
        (2 * a + 3 * b).sum().backward()
    except Exception as error:
        return f"MyFork and MyJoin: with them forward or backward raised {said_of(error)}"
    for name, function, grad, want in (("a", "MyFork", x.grad, 2.0), ("b", "MyJoin", y.grad, 3.0)):
        if grad is None or not grad.any():
            given = "Return grad_x; the phony's is not needed." if name == "a" else "Return grad_x, None."
            return f"{function}.backward returns None: chain {name} gets no gradient. {given}"
        if not torch.equal(grad, torch.full((3,), want)):
            return f"The gradient of chain {name} is {grad[0].item():g}, not {want:g}: {function} must not change it."
    if ran != ["b1", "b0", "a1", "a0"]:
        return (f"Backward ran {' '.join(ran)}, so nothing holds a back. Join must take the phony as an input of apply "
                "and return a tensor that a Join node made.")
    return ""


check_fork_join = Exercise(
    "MyFork and MyJoin",
    name="forward and backward of MyFork and MyJoin",
    reference=(MyFork, MyJoin),
    answers=2,
    methods=("forward",),  # a backward that returns None is an answer, and a wrong one
    judge=_check_fork_join,
    praise="values and gradients untouched, and b goes backward before a",
)
"""Exercise 2: the phony, the values, the gradients, and the order that the edge forces."""


# ---- exercise 3: a checkpoint of two nodes, tied together

Halves: TypeAlias = tuple[runs.AutogradFunction, runs.AutogradFunction, Any]
Insides: TypeAlias = list[tuple[bool, Any]]


def _layer(w: Tensor, label: str, ran: list[str], insides: Insides) -> Callable[[Tensor], Tensor]:
    def function(x: Tensor) -> Tensor:
        ran.append(f"{'R' if torch.is_grad_enabled() else 'F'}{label}")
        insides.extend([(x.requires_grad, weakref.ref(x))] * torch.is_grad_enabled())
        return step(torch.tanh(x * w), f"B{label}", ran)

    return function


def two_partitions(halves: Halves, needs_grad: bool, ran: list[str]) -> tuple[list[Any], str]:
    """Send x through two checkpoints, each with a Wait behind its Checkpoint and a Copy behind its tie.

    Note what runs; return the gradients of the parameters and of x, and what is wrong with the insides, "" if nothing.
    The first is tied in a new thread, so that sequence numbers help nobody.
    """
    checkpoint, recompute, tie = halves
    weights = [torch.tensor([0.5, -1.0, 2.0], requires_grad=True) for _ in range(2)]
    leaf = torch.tensor([1.0, 2.0, -0.5], requires_grad=needs_grad)
    x, shared, insides = leaf * 2, list[dict[str, Any]](), Insides()
    far_ahead()
    for j, w in enumerate(weights):
        task = dict[str, Any](), _layer(w, f"{j}", ran, insides), x
        output = step(checkpoint.apply(torch.empty(0, requires_grad=True), *task), f"Wait{j}", ran)
        output = elsewhere(tie, output, *task) if j == 0 else tie(output, *task)
        if not isinstance(output, Tensor):
            raise TypeError(f"my_tie gave {output}, no tensor; where it returned None, a `return` is missing")
        if all(getattr(type(node), "_forward_cls", None) is not recompute for node in engine_order(output.grad_fn)):
            raise ValueError("no node of MyRecompute is among those that the edges of what my_tie returned lead to")
        x = step(output, f"Copy{j}", ran)
        shared.append(task[0])
    x.backward(torch.tensor([1.0, -2.0, 3.0]))
    faults = {  # x is what the loss hangs on: it is still there
        "the inside is still in `shared`": any("inside" in memory for memory in shared),
        "the inside is still alive": any(inside() is not None for _, inside in insides),
        "the new leaf of partition 0 asks for a gradient": [asks for asks, _ in insides] != [True, needs_grad],
    }
    return [*(w.grad for w in weights), leaf.grad], next((fault for fault, found in faults.items() if found), "")


def _check_halves(exercise: Exercise, answer: Halves) -> Verdict:
    for needs_grad in (True, False):
        case = f"an input that {'requires' if needs_grad else 'does not require'} grad"
        ran, grads, fault, error = got = _outcome(answer, needs_grad)
        order, right, _, _ = _outcome(exercise.reference, needs_grad)
        if isinstance(error, NotImplementedError):
            return Verdict("open", f"Not attempted yet: {exercise.name}. A part of it still is a stub.")
        alike = (why for why, x in exercise.mistakes.items() if str(_outcome(x, needs_grad)) == str(got))
        said = next((f" {why}" for why in alike), "")
        if error:
            return exercise.wrong(f"with {case}: {said_of(error)}{said}")
        if ran != order:
            if not said and (len(set(ran)) < len(ran) or sorted(ran) == sorted(order)):
                said = " MyRecompute recomputes, once and before the Wait; MyCheckpoint only uses what it left."
            return exercise.wrong(f"with {case} {' '.join(order)} was expected, yours ran {' '.join(ran)}.{said}")
        for name, grad, true in zip(("parameter 0", "parameter 1", "the input"), grads, right, strict=True):
            if grad != true:
                return exercise.wrong(f"with {case} the gradient of {name} is {grad}, not {true}.{said}")
        if fault:
            return exercise.wrong(f"with {case}, after backward, {fault}.{said}")
    return exercise.right(exercise.praise)


def _outcome(halves: Halves, needs_grad: bool) -> tuple[list[str], list[Any], str, Exception | None]:
    """Return what ran, the gradients in round numbers, what is wrong with the insides, and the error."""
    ran = list[str]()
    try:
        with warnings.catch_warnings(action="ignore"):  # of torch, on a gradient asked of what is no leaf
            grads, fault = two_partitions(halves, needs_grad, ran)
    except Exception as error:
        return ran, [], "", error
    told = [None if grad is None else [round(value, 3) for value in grad.tolist()] for grad in grads]
    return ran, told, fault, None


HALVES = {
    "Where x requires grad the new leaf must, too, or the gradient ends there.": (
        ".requires_grad_(x.requires_grad)", ""),
    "Where x requires no grad, the new leaf must not either: its gradient costs time, and nobody wants it.": (
        "requires_grad_(x.requires_grad)", "requires_grad_(True)"),
    "x is to get the gradient of the new leaf, x.grad: `gradient` is that of the output.": (
        "None, x.grad", "None, gradient"),
    "The inside is out of `shared`, but ctx holds it, so it lives as long as the loss: a local name is enough.": (
        "x, output = ctx", "x, output = ctx.inside = ctx"),
    "Nothing leads to Recompute: the Join is missing, or its result is thrown away.": (
        "return MyJoin.apply(output, phony)", "return output"),
    "Only sequence numbers put Recompute before Checkpoint here: take its phony from a Fork of the output.": (
        "output, phony = MyFork.apply(output)", "phony = torch.empty(0, requires_grad=True)"),
    "Inside backward no graph is recorded unless one asks for it: with torch.enable_grad().": (
        "with torch.enable_grad():", "if True:"),
    "The inside must begin with a new leaf (x.detach()), or the nested backward runs on into what made x.": (
        "x = x.detach().requires_grad_(x.requires_grad)", "x.requires_grad and x.retain_grad()"),
    "torch.autograd.grad for x alone leaves the parameters without their gradients.": (
        "torch.autograd.backward(output, gradient)",
        "x.grad = torch.autograd.grad(output, x, gradient, allow_unused=True)[0]"),
    "The nested backward must begin with the gradient that arrived, not with ones.": (
        "backward(output, gradient)", "backward(output.sum())"),
    "After backward the inside is still in `shared`, so its memory is not free: take it out (pop).": (
        '.pop("inside")', '["inside"]'),
}
check_halves = Exercise(
    "a checkpoint of two nodes",
    name="both backward functions and my_tie",
    reference=(MyCheckpoint, MyRecompute, my_tie),
    answers=3,
    judge=_check_halves,
    praise="gradients as without a checkpoint, each inside computed once more, before the Wait, and then let go.",
    mistakes={why: changed(*edit, MyCheckpoint, MyRecompute, my_tie) for why, edit in HALVES.items()},
)
"""Exercise 3: Checkpoint.backward, Recompute.backward, and the tie between them."""


# ---- exercise 4: depend and fence

def _check_fence(exercise: Exercise, answer: Fence) -> Verdict:
    for m, n in ((3, 2), (2, 3), (1, 2), (3, 1), (5, 3)):
        where = f"for {plural(m, 'micro-batch', 'micro-batches')} in {plural(n, 'partition')}"
        (ran, gradient, leads), got = (_fenced(m, n, f) for f in (exercise.reference, answer))
        error = got[1]
        if isinstance(error, NotImplementedError):
            return Verdict("open", f"Not attempted yet: depend, which your fence calls. {error}".strip())
        alike = (why for why, f in exercise.mistakes.items() if str(_fenced(m, n, f)) == str(got))
        said = "" if str(got) == str((ran, gradient, leads)) else next((f" {why}" for why in alike), "")
        if isinstance(error, Exception):
            return exercise.wrong(f"{where} your code raised {said_of(error)}.{said}")
        if error != gradient:
            return exercise.wrong(f"{where} the gradient isn't the plain model's. Fork and Join change no value.{said}")
        if got[0] != ran:
            k = next((k for k, (a, b) in enumerate(zip(got[0], ran, strict=False)) if a != b), len(ran))
            told = f"{' '.join(got[0][:k])} and then {(*got[0], 'nothing')[k]}".removeprefix(" and then ")
            want = f"backward should run {' '.join(ran)}"
            return exercise.wrong(f"{where} {want}, with yours it runs {told} (C: a copy).{said}")
        if got[2] != leads:
            name = next((name for name in leads if leads[name] != got[2].get(name)), "")
            told = f"from {name} they should lead to {' '.join(leads.get(name, [])) or 'nothing'}"
            return exercise.wrong(f"{where} the order is right here, but not by the edges: {told}.{said}")
    return exercise.right(exercise.praise)


def _fenced(m: int, n: int, prepare: Fence) -> tuple[list[str], Any, dict[str, list[str]]]:
    """Return what ran, the gradient or else the error, and to which Checkpoints and copies the edges lead from each."""
    try:
        ran, gradient, output = fenced(m, n, prepare)
    except Exception as error:
        return [], error, {}
    named = {x: name for x in engine_order(output.grad_fn) if (name := runs.operation(x))}
    leads = {name: sorted(named[y] for y in engine_order(x)[1:] if y in named) for x, name in named.items()}
    return ran, None if gradient is None else gradient.tolist(), leads


FIRST = "        if i > 0:\n            depend(batches, i)\n"
THEN = "        if j > 0:\n            batches[i] = copy(batches[i], j)\n"
FENCES = {
    "Nothing is held back: the phony must come from a Fork of i - 1 and be joined to i, and what Join returns must be "
    "stored.": ("batches[i], phony)", "batches[i], torch.empty(0))"),
    "Partition 0 is not tied: every pair with i > 0 needs it, whatever j is.": ("i > 0", "i > 0 and j > 0"),
    "Only partition 0 is tied: for every pair with i > 0 fork batches[i - 1], the output of (i - 1, j).": (
        "i > 0", "i > 0 and not j"),
    "Micro-batch 1 has one before it, 0: every pair with i > 0 is tied.": ("i > 0", "i > 1"),
    "Micro-batch 0 has nobody before it, and batches[-1] is the last one: tie only with i > 0.": ("i > 0", "True"),
    "No copy is made: with j > 0 the batch must come from the partition before.": ("j > 0", "False"),
    "Partition 0 has nobody to copy from: copy only with j > 0.": ("j > 0", "True"),
    "copy takes the partition that the batch goes to: j, not j - 1.": ("], j)", "], j - 1)"),
    "Only the first pair of a clock is tied; all of them must be.": ("i > 0", "i and (i, j) in clock[:1]"),
    "Each is tied to the one before it; here all are tied to micro-batch 0.": ("i - 1]", "0]"),
    "When i is tied, i - 1 has been copied to the next partition already: go through the clock from its beginning.": (
        "in clock:", "in clock[::-1]:"),
    "The copy stands before the tie, so (i - 1, j) does not wait for the copy's way back: tie first, then copy.": (
        FIRST + THEN, THEN + FIRST),
    "All copies stand before the first tie, so i - 1 has left its partition when i is tied to it: tie and copy pair by "
    "pair.": (FIRST + THEN, THEN + "    for i, j in clock:\n" + FIRST),
}
check_fence = Exercise(
    "fence",
    name="fence and depend",
    reference=fence,
    judge=_check_fence,
    praise="in five pipelines backward runs in the order of a fence that ties every pair, and the edges see to it.",
    mistakes={why: changed(*edit, depend, fence)[1] for why, edit in FENCES.items()},
)
"""Exercise 4: the order in which a fenced pipeline goes backward, and the edges that make it."""
