"""What answers of notebook 11 are tried with: graphs that really go backward, and what autograd runs when."""

# mypy: allow-untyped-calls

from __future__ import annotations

import random
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby, permutations
from typing import Any, TypeAlias

import torch
from torch import Tensor

from support.built import MyRecompute, MyTwoNodeCheckpoint, my_tie
from support.kit.ending import ending
from support.kit.judged import Fault
from support.kit.raised import InCaseError, in_case, known_by, told_of
from support.kit.values import NO_RETURN, kind_of, short
from support.n11 import runs
from support.n11.memory import two_columns
from support.n11.runs import engine_order, far_ahead, note_sums, step

#: What an exception means, by words of its text.
MEANINGS = {
    "incorrect number of gradients": "backward returns one gradient for each argument of forward after ctx, or None.",
    "invalid gradient": "A gradient has the shape of its tensor. The phony's has no elements.",
    "positional argument": "The arguments are the stub's; backward gets one gradient for each output of forward.",
    "'inside'": "There is no inside where your code looks for it.",
}


def elsewhere(work: Callable[..., Any], *arguments: Any) -> Any:
    """Call it in a new thread, whose sequence numbers begin at 0."""
    with ThreadPoolExecutor(1) as worker:
        return worker.submit(work, *arguments).result()


# ---- exercise 1: the engine's rule

LINES = 1_000_000  # of Python that an answer may run for a graph


def graphs() -> Iterator[tuple[str, Tensor]]:
    """Yield graphs, each with its name; nodes with one number that are ready together run one right after the other."""
    far_ahead()
    w, v = (torch.ones(2, requires_grad=True) for _ in range(2))
    yield "tanh(c * w), c a constant", torch.tanh(torch.tensor(2.0) * w)  # an edge to nobody, before one
    yield "exp(w * 2) + sin(w * 3)", torch.exp(w * 2) + torch.sin(w * 3)
    y = w * v
    yield "y = w * v, exp(y) + y", torch.exp(y) + y
    y = w * 2
    z = y * y
    yield "y = w * 2, z = y * y, sin(z) + z * v", torch.sin(z) + z * v
    yield "sin(w) + w * w", torch.sin(w) + w * w
    a = torch.tanh(w * 2) * 3
    b = elsewhere(torch.mul, elsewhere(lambda: torch.sin(v * 2)), 3)  # both products have the number 0
    yield "two chains, one of them made in other threads", a + b
    y = w * 2
    alike = [elsewhere(function, y) for function in (torch.sin, torch.cos)]  # both have the number 0
    yield (
        "y = w * 2, exp(sin(y)) + cos(y), whose sin and cos new threads made",
        torch.exp(alike[0]) + alike[1],
    )
    y, z = (w * 2).unbind()
    yield "y, z = (w * 2).unbind(), y + exp(z), whose exp another thread made", y + elsewhere(torch.exp, z)
    for _ in range(5):
        w = torch.sin(w) * torch.cos(w) + w
    yield "five rounds of w = sin(w) * cos(w) + w", w
    for seed in range(1, 7):
        yield f"a random graph of {6 + seed} operations", _random_graph(random.Random(seed), 6 + seed)


def _random_graph(draw: random.Random, operations: int) -> Tensor:
    """Combine what there is at random; all that is left over ends in a sum. Of leaves there is one."""
    w = torch.ones(2, requires_grad=True)
    made = [w * 2]
    unused = [made[0]]
    for _ in range(operations):
        first, second = draw.choices(made, k=2)
        made.append(
            draw.choice((lambda a, b: a * b, lambda a, b: torch.sin(a) + b, torch.add))(first, second)
        )
        unused = [x for x in unused if x is not first and x is not second] + [made[-1]]
    return torch.stack(unused).sum()


def fault_of_engine(answer: Callable[[Any], Any]) -> str:
    """Compare with the order in which autograd really runs, graph by graph. Known by the orders of all graphs."""
    said = ""
    orders = []
    for name, output in graphs():
        root: Any = output.grad_fn
        if said:
            orders.append(_turns(answer, root))
            continue
        with in_case(f"for {name}"):
            got = ending(answer, root, lines=LINES)
        if got is None:
            return f"your function {NO_RETURN}, no list."
        if not isinstance(got, list):
            return f"your function gave a {type(got).__name__}, no list."
        strangers = [x for x in got if not hasattr(x, "next_functions")]
        if strangers:
            return f"for {name} the list holds {short(strangers[0])}, which is no node."
        got = [*got]  # what backward may still append comes too late
        real = _really_run(output)
        if _settled(got, id) != _settled(real, id):
            said = f"for {name} autograd ran {_told(real)}; yours says {_told(got)}."
            continue
        with in_case(f"for {name}, asked again,"):
            again = ending(answer, root, lines=LINES)
        if not isinstance(again, list) or _settled(again, id) != _settled(got, id):
            said = f"for {name} yours says {_told(got)}, and something else when asked again."
    return Fault(said, f"{said} {orders}") if said else ""


def _turns(answer: Callable[[Any], Any], root: Any) -> list[int] | str:
    """Return the answer's order of a graph, in numbers, or what it raised."""
    nodes = engine_order(root)
    try:
        return _settled(ending(answer, root, lines=LINES), nodes.index)
    except Exception as error:
        return type(error).__name__


def _settled(nodes: list[Any], key: Callable[[Any], int]) -> list[int]:
    """Return the key of each; neighbours with the same number, whose order autograd leaves open, are sorted by it."""
    runs_of_equals = groupby(nodes, key=lambda node: node._sequence_nr())
    return [one for _, equals in runs_of_equals for one in sorted(map(key, equals))]


def _really_run(output: Tensor) -> list[Any]:
    """Go backward; return the nodes in the order in which autograd has run them."""
    real: list[Any] = []
    for x in engine_order(output.grad_fn):
        x.register_prehook(lambda *_, x=x: real.append(x))
    output.backward(torch.ones_like(output), retain_graph=True)
    return real


def _name(node: Any) -> str:
    return str(node.name()).split("::")[-1].removesuffix("Backward0") if hasattr(node, "name") else repr(node)


def _told(nodes: list[Any]) -> str:
    return (" ".join(map(_name, nodes[:12])) or "nothing") + (" …" if nodes[12:] else "")


# ---- exercise 4: a checkpoint of two nodes, tied together

Halves: TypeAlias = tuple[runs.AutogradFunction, runs.AutogradFunction, Any]
OURS: Halves = (MyTwoNodeCheckpoint, MyRecompute, my_tie)


@dataclass
class _Seen:
    """What two partitions have come to."""

    ran: list[str]
    gradients: list[list[float] | None]  # of both parameters and of x, rounded
    fault: str  # of the insides, or of the edges
    edges: list[list[str]]  # from each Recompute, to these nodes
    left: list[list[bool]]  # in `shared` when Wait runs: which of its tensors have a graph; judges no answer


class _Layers:
    """Two layers that note what runs, with which new leaf, and what is left of it."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.asks: list[bool] = []  # for a gradient: each new leaf
        self.insides: list[Any] = []  # weak references to each new leaf and to each output that has a graph
        self.edges: list[list[str]] = []  # from each Recompute, to these nodes
        self.left: list[list[bool]] = []  # in `shared` when Wait runs: which of its tensors have a graph
        self.inputs: dict[str, set[int]] = {}  # of each layer: where what it got lies in memory
        self.outputs: set[int] = set()  # where they lie in memory, those that have a graph
        self.has_copied = False  # whether `shared` held another output when Wait ran
        self.lacks_inside = False  # whether `shared` had no input and output in "inside" when Wait ran
        # of gradients on their way through a Checkpoint: where each lies in memory
        self.places: dict[str, int] = {}

    def layer(self, w: Tensor, label: str) -> Callable[[Tensor], Tensor]:
        def function(x: Tensor) -> Tensor:
            self.ran.append(f"{'R' if torch.is_grad_enabled() else 'F'}{label}")
            self.inputs.setdefault(label, set()).add(x.data_ptr())
            y = step(torch.tanh(x * w), f"B{label}", self.ran)
            if torch.is_grad_enabled():
                self.asks.append(x.requires_grad)
                self.insides += map(weakref.ref, (x, y))
                self.outputs.add(y.data_ptr())
                self._watch_inside(x, y, label)
            return y

        return function

    def _watch_inside(self, x: Tensor, y: Tensor, label: str) -> None:
        """Note where the gradient lies with which the nested backward begins, and that of the new leaf."""
        node: Any = y.grad_fn
        node.register_prehook(lambda got: self._note(f"began {label}", got[0]))
        if x.requires_grad and x.is_leaf:
            x.register_post_accumulate_grad_hook(lambda x: self._note(f"leaf {label}", x.grad))

    def look_into(self, memory: dict[str, Any]) -> None:
        """Note what Recompute has left in `shared`."""
        self.left.append(_graphs_in(memory))
        self.lacks_inside |= len([*_tensors_in(memory.get("inside"))]) < 2
        ends = [x for x in _tensors_in(memory.get("inside")) if x.grad_fn is not None]
        self.has_copied |= any(x.data_ptr() not in self.outputs for x in ends)

    def watch(self, node: Any, label: str) -> None:
        """Note where the gradient lies that a Checkpoint gets, and the one that it hands on to x."""
        node.register_prehook(lambda got: self._note(f"arrived {label}", got[0]))
        node.register_hook(lambda given, got: self._note(f"given {label}", given[-1]))

    def _note(self, what: str, gradient: Tensor | None) -> None:
        if gradient is not None:
            self.places[what] = gradient.data_ptr()

    def copied(self) -> str:
        """Say which gradient was copied, "" for none."""
        places = self.places
        if self.has_copied:
            return "the output in `shared` was a copy of what the function gave, in other memory"
        for before, after, told in (
            ("arrived", "began", "the nested backward had begun with a copy of the gradient that arrived"),
            ("leaf", "given", "x had got a copy of the new leaf's gradient"),
        ):
            pairs = [(f"{before} {label}", f"{after} {label}") for label in self.inputs]
            if any(a in places and b in places and places[a] != places[b] for a, b in pairs):
                return f"{told}, in other memory"
        return ""


def two_partitions(halves: Halves, needs_grad: bool, layers: _Layers) -> _Seen:
    """Send x through two checkpoints, each with a Wait behind its Checkpoint and a Copy behind its tie.

    The first is tied in a new thread, so that sequence numbers help nobody.
    """
    checkpoint, recompute, tie = halves
    ran = layers.ran
    weights = [two_columns(0.5, -1.0, 2.0, 1.5) for _ in range(2)]
    leaf = x = two_columns(1.0, 2.0, -0.5, 1.5).requires_grad_(needs_grad)
    # what it raises by itself needs no Checkpoint
    tie(torch.ones(3, requires_grad=True) * 2, {}, torch.tanh, x)
    shared: list[dict[str, Any]] = []
    edges = layers.edges
    by_numbers = ""
    far_ahead()
    for j, w in enumerate(weights):
        memory: dict[str, Any] = {}
        task = memory, layers.layer(w, f"{j}"), x
        output = step(checkpoint.apply(torch.empty(0, requires_grad=True), *task), f"Wait{j}", ran)
        waited = output.data_ptr()
        wait: Any = output.grad_fn
        if wait is not None:
            wait.register_prehook(lambda *_, memory=memory: layers.look_into(memory))
            layers.watch(wait.next_functions[0][0], f"{j}")
        output = elsewhere(tie, output, *task) if j == 0 else tie(output, *task)
        if not isinstance(output, Tensor):
            return _Seen(ran, [], f"my_tie gave {kind_of(output)}, no tensor", edges, layers.left)
        hung = [node for node in engine_order(output.grad_fn) if _is_of(recompute, node)]
        if len(hung) <= j:
            return _Seen(ran, [], _NO_RECOMPUTE, edges, layers.left)
        own = next((node for node in hung if node.shared is memory), None)
        if own is None:
            another = "Recompute got another `shared` than the Checkpoint has"
            return _Seen(ran, [], another, edges, layers.left)
        if output.data_ptr() != waited:
            told = "what my_tie returned lies in other memory than the output"
            return _Seen(ran, [], told, edges, layers.left)
        edges.append(_edges_of(own))
        if f"Wait{j}" not in [getattr(node, "note", [""])[0] for node in engine_order(own)]:
            by_numbers = _BY_NUMBERS
        x = step(output, f"Copy{j}", ran)
        shared.append(memory)
    summed = note_sums(x)
    x.backward(two_columns(1.0, -2.0, 3.0, 0.5).detach())
    nodes = engine_order(x.grad_fn)  # x is what the loss hangs on: it is still there
    # an x that asks for no gradient may be handed on itself: it is the caller's, whoever else holds it
    layers.insides = [inside for inside in layers.insides if needs_grad or inside() is not leaf]
    fault = _fault_of_insides(shared, nodes, layers, needs_grad) or told_of_sum(summed()) or by_numbers
    return _Seen(ran, [_rounded(each.grad) for each in (*weights, leaf)], fault, edges, layers.left)


_BY_NUMBERS = (
    "it turns out that no edge leads from Recompute to the Wait: only numbers let Recompute go first"
)


def _graphs_in(memory: dict[str, Any]) -> list[bool]:
    left = memory.get("inside", ())
    return [x.grad_fn is not None for x in left if isinstance(x, Tensor)] if isinstance(left, tuple) else []


def told_of_sum(givers: str) -> str:
    """Say what autograd adds up, "" for nothing."""
    if not givers:
        return ""
    return (
        f"one tensor had got two gradients, of {givers}: autograd adds them up as soon as both are launched, and "
        "waits for no copy that may still bring one of them. Let each tensor have one user that sends a gradient"
    )


def _is_of(function: runs.AutogradFunction, node: Any) -> bool:
    return getattr(type(node), "_forward_cls", None) is function


def _edges_of(node: Any) -> list[str]:
    """Return to which nodes edges lead, by label or name; "nothing" for an argument that needs no gradient."""
    ends = [end for end, _ in node.next_functions]
    return ["nothing" if end is None else str(getattr(end, "note", [_name(end)])[0]) for end in ends]


_NO_RECOMPUTE = "no node of MyRecompute is among those that the edges of what my_tie returned lead to"


def _fault_of_insides(
    shared: list[dict[str, Any]], nodes: list[Any], layers: _Layers, needs_grad: bool
) -> str:
    """Say who still holds an inside: `shared`, the ctx of a node, or somebody else."""
    alive = [tensor for inside in layers.insides if (tensor := inside()) is not None]
    if any(_holds(memory, alive) for memory in shared):
        return "the inside is still in `shared`"
    for node in nodes:
        own = [
            kept
            for kept in getattr(node, "__dict__", {}).values()
            if all(kept is not memory for memory in shared)
        ]
        if _holds(own, alive):
            return f"the inside is still held by the ctx of {_name(node).removesuffix('Backward')}"
    if alive:
        return "an inside is still alive: something that outlives backward holds it"
    if any(len(places) > 1 for places in layers.inputs.values()):
        return "the recomputation had begun with a copy of x, in other memory"
    if layers.asks != [True, needs_grad]:
        return "the new leaf of partition 0 asks for a gradient"
    if not needs_grad and "given 0" in layers.places:
        return "x, which asks for no gradient, had got one"
    return layers.copied()


def _holds(thing: Any, tensors: list[Tensor]) -> bool:
    """Return whether it is one of these tensors, or a container that one is in, however deep."""
    return any(x is tensor for x in _tensors_in(thing) for tensor in tensors)


def _tensors_in(thing: Any) -> Iterator[Tensor]:
    """Yield the tensors in a container, however deep, or the tensor itself."""
    if isinstance(thing, dict):
        thing = list(thing.values())
    if isinstance(thing, list | tuple | set):
        for part in thing:
            yield from _tensors_in(part)
    elif isinstance(thing, Tensor):
        yield thing


def _rounded(gradient: Tensor | None) -> list[float] | None:
    return None if gradient is None else [round(value, 3) for value in gradient.flatten().tolist()]


def fault_of_two_nodes(answer: Halves) -> str:
    """Compare with ours: what runs, the gradients, and what is left of the insides."""
    for needs_grad in (True, False):
        case = f"with an input that {'requires' if needs_grad else 'does not require'} grad"
        layers = _Layers()
        try:
            with in_case(case, MEANINGS):
                got = two_partitions(answer, needs_grad, layers)
        except InCaseError as error:
            return Fault(told_of(error), f"{layers.ran} {layers.edges} {known_by(error)}")
        fault = _fault_of_seen(got, two_partitions(OURS, needs_grad, _Layers()))
        if fault:
            return Fault(f"{case}{fault}", f"{case} {got}")
    where = 'Recompute must leave the inside in `shared["inside"]`, its input and its output.'
    misplaced = where if layers.lacks_inside else ""
    return _fault_of_three(answer) or misplaced


def three_at_once(halves: Halves, order: tuple[int, ...]) -> tuple[list[str], list[list[float] | None]]:
    """Send x through three checkpoints side by side, whose insides all exist before the first is used.

    order: in which the checkpoints are made, by a new thread; backward uses the insides in the opposite order. Returns
    what ran, and the gradients of the three parameters.
    """
    checkpoint, _, tie = halves
    layers = _Layers()
    weights = [torch.tensor([0.5, -1.0, 2.0 + k], requires_grad=True) for k in range(3)]
    x = torch.tensor([1.0, 2.0, -0.5], requires_grad=True) * 2
    tasks: list[Any] = [({}, layers.layer(w, f"{k}"), x) for k, w in enumerate(weights)]
    far_ahead()

    def made() -> dict[int, Tensor]:
        return {k: checkpoint.apply(torch.empty(0, requires_grad=True), *tasks[k]) for k in order}

    outputs = elsewhere(made)
    tied = [tie(outputs[k], *tasks[k]) * (k + 1) for k in range(3)]
    torch.stack(tied).sum().backward()
    return layers.ran, [_rounded(w.grad) for w in weights]


def _fault_of_three(answer: Halves) -> str:
    case = "with three checkpoints side by side, all of whose insides exist before the first is used"
    for order in permutations(range(3)):
        with in_case(case, MEANINGS):
            ran, gradients = three_at_once(answer, order)
        right_order, right = three_at_once(OURS, order)
        if ran != right_order:
            told = f"{' '.join(right_order)} was expected, yours ran {' '.join(ran)}"
        elif gradients != right:
            told = f"the parameters' gradients are {gradients}, not {right}"
        else:
            continue
        return f"{case}, {told}. Each Checkpoint must take the inside of its own pair, which is in `shared`."
    return ""


def _fault_of_seen(got: _Seen, ours: _Seen) -> str:
    """Say how what was seen differs from ours, behind the case."""
    if not got.gradients:
        return f": {got.fault}."
    if got.ran != ours.ran:
        said = f" {' '.join(ours.ran)} was expected, yours ran {' '.join(got.ran)}."
        if len(set(got.ran)) < len(got.ran) or sorted(got.ran) == sorted(ours.ran):
            said += " MyRecompute recomputes, once and before the Wait; MyTwoNodeCheckpoint only uses what it left."
        return said
    names = ("parameter 0", "parameter 1", "the input")
    for name, gradient, right in zip(names, got.gradients, ours.gradients, strict=True):
        if gradient != right:
            return f" the gradient of {name} is {gradient}, not {right}."
    return f", after backward, {got.fault}." if got.fault else ""
