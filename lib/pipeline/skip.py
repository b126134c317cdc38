"""Layers that stash and pop: `yield stash("name", tensor)` in one, `tensor = yield pop("name")` in a later one.

Which partition stashes and which one pops a tensor, a SkipLayout knows before anything runs. Where the two differ, a
Portal hides the tensor from the autograd graph on the one and shows it again on the other: the partitions between
neither see nor keep it, and its gradient goes back through the portal. A SkipTracker holds what waits to be popped.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias
from uuid import UUID, uuid4

import torch
from torch import Tensor, nn

from lib.pipeline.checkpoint import is_checkpointing
from lib.pipeline.copy import Copy
from lib.runtime import recording
from lib.runtime.dependency import fork_batch, get_phony, join, join_batch
from lib.runtime.device import AbstractStream, get_device
from lib.runtime.microbatch import Batch
from lib.runtime.thread_state import during, this_thread


class stash(NamedTuple):
    """The command to keep `tensor` (or None) for the layer that pops `name`."""

    name: str
    tensor: Tensor | None


class pop(NamedTuple):
    """The command that gives back what was stashed under `name`."""

    name: str


class Skippable(nn.Module):
    """What `@skippable` puts before the class of a layer: a forward that serves the commands of the layer's own."""

    stashable_names: ClassVar[frozenset[str]]
    poppable_names: ClassVar[frozenset[str]]
    namespaces: Mapping[str, Namespace] = {}

    def __repr__(self) -> str:
        return f"@skippable({super().__repr__()})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        plain: Any = vars(type(self)).get("module_cls")  # not a subclass's
        with suppress(AttributeError):  # a local class
            # called as a function, skippable(…)(Layer) leaves the name to Layer; else pickle finds this class by it
            if attrgetter(plain.__qualname__)(sys.modules[plain.__module__]) is plain:
                return _new, (plain, self.stashable_names, self.poppable_names), vars(self)
        return super().__reduce_ex__(protocol)

    def stashable(self) -> Iterator[Key]:
        """Yield (namespace, name) of what this layer stashes."""
        return ((self.namespaces.get(name), name) for name in sorted(self.stashable_names))

    def poppable(self) -> Iterator[Key]:
        """Yield (namespace, name) of what this layer pops."""
        return ((self.namespaces.get(name), name) for name in sorted(self.poppable_names))

    def isolate(self, ns: Namespace, *, only: Iterable[str] | None = None) -> Self:
        """Put all skip tensors of this layer, or `only` those named, into a namespace; return the layer.

        Raises ValueError for a name that the layer does not declare.
        """
        declared = self.stashable_names | self.poppable_names
        names = declared if only is None else frozenset(only)
        if unknown := names - declared:
            raise ValueError(f"{_list(unknown)} not declared by this layer, which has {_list(declared)}")
        self.namespaces = {**self.namespaces, **dict.fromkeys(names, ns)}
        return self

    def forward(self, input: Any) -> Any:
        """Run the layer and serve its commands.

        Raises RuntimeError for a name that is not declared, or declared and not used, or popped and not stashed.
        """
        tracker, batch = current_skip_tracker(), Batch(input)
        # Popped before the layer asks, stashed after it has ended: a portal ties them to the layer's input and output.
        to_pop = {name: tracker.load(batch, ns, name) for ns, name in self.poppable()}
        stashed: dict[str, Tensor | None] = {}
        output = super().forward(batch.value)
        if isinstance(output, Generator):
            output = self._serve(output, to_pop, stashed)
        if missing := self.stashable_names - stashed.keys():
            raise RuntimeError(f"{_list(missing)} must be stashed but have not")
        if to_pop:
            raise RuntimeError(f"{_list(to_pop)} must be popped but have not")
        batch = Batch(output)
        for ns, name in self.stashable():
            tracker.save(batch, ns, name, stashed[name])
        return batch.value

    def _serve(self, layer: Generator[Any, Any, Any], to_pop: dict[str, Any], stashed: dict[str, Any]) -> Any:
        answer = None
        while True:
            try:
                command = layer.send(answer)
            except StopIteration as end:
                return end.value
            match command:
                case stash(name, tensor) if name in self.stashable_names:
                    stashed[name], answer = tensor, None
                case pop(name) if name in to_pop:
                    answer = to_pop.pop(name)
                case pop(name) if name in self.poppable_names:
                    raise RuntimeError(f"'{name}' has been popped already")
                case stash(name) | pop(name):
                    kind = "stash" if isinstance(command, stash) else "popp"
                    raise RuntimeError(f"'{name}' has not been declared as {kind}able")
                case _:
                    raise TypeError(f"{command!r} is not a command from @skippable; yield stash(...) or pop(...)")


def skippable(stash: Iterable[str] = (), pop: Iterable[str] = ()) -> Callable[[type[nn.Module]], type[Skippable]]:
    """Declare what a layer stashes and pops; its forward is then a generator that yields the commands.

    Each name is stashed once and popped once, later; `verify_skippables` checks that. The layers work in a plain
    nn.Sequential as well; in a GPipe the tensor does not pass through the partitions between.

        @skippable(stash=["early"])                    @skippable(pop=["early"])
        class Encode(nn.Module):                       class Decode(nn.Module):
            def forward(self, x):                          def forward(self, x):
                yield stash("early", x)                        early = yield pop("early")
                return self.conv(x)                            return self.conv(x) + early
    """
    for kind, names in (("stash", stash), ("pop", pop)):
        if isinstance(names, str):
            raise TypeError(f"{kind} takes a list of names: {kind}=[{names!r}], not {names!r}")
    return partial(_skippable_class, stash=frozenset(stash), pop=frozenset(pop))


@cache  # also for pickle, which makes the class again
def _skippable_class(module_cls: type[nn.Module], stash: frozenset[str], pop: frozenset[str]) -> type[Skippable]:
    own = {name: getattr(module_cls, name) for name in ("__module__", "__qualname__", "__doc__")}
    own |= {"module_cls": module_cls, "stashable_names": stash, "poppable_names": pop}
    return type(module_cls.__name__, (Skippable, module_cls), own)


def _new(module_cls: type[nn.Module], stash: frozenset[str], pop: frozenset[str]) -> Skippable:
    cls = _skippable_class(module_cls, stash=stash, pop=pop)  # type: ignore[arg-type]
    return cls.__new__(cls)


def verify_skippables(module: nn.Sequential) -> None:
    """Check that every skip tensor has one stash and, later, one pop. Raises TypeError with all that does not match."""
    stashed: set[Key] = set()
    popped: set[Key] = set()
    wrong: list[str] = []
    for place, layer in module.named_children():
        if not isinstance(layer, Skippable):
            continue
        both = layer.stashable_names & layer.poppable_names
        stashes = [key for key in layer.stashable() if key[1] not in both]
        pops = [key for key in layer.poppable() if key[1] not in both]
        again = "able but not isolated by namespace"
        wrong += [f"'{place}' declared '{name}' both as stashable and as poppable" for name in sorted(both)]
        wrong += [f"'{place}' redeclared '{key[1]}' as stash{again}" for key in stashes if key in stashed]
        wrong += [f"'{place}' redeclared '{key[1]}' as popp{again}" for key in pops if key in popped]
        early = [key[1] for key in pops if key not in stashed]
        wrong += [f"'{place}' declared '{name}' as poppable but it was not stashed" for name in early]
        popped.update(stashed.intersection(pops))
        stashed.update(stashes)
    unpopped = sorted(name for _, name in stashed - popped)
    wrong += [f"no module declared '{name}' as poppable but stashed" for name in unpopped]
    if wrong:
        raise TypeError("\n* ".join(["one or more pairs of stash and pop do not match:\n", *wrong]))


def _list(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(names))


# ---- the layout


class SkipLayout:
    """The routes of all skip tensors: {(namespace, name): (partition that stashes, partition that pops)}."""

    def __init__(self, num_partitions: int, skip_routes: Mapping[Key, tuple[int, int]]) -> None:
        routes = sorted(skip_routes.items(), key=lambda route: route[1])  # namespaces have no order
        self.by_partition = [
            [(prev_j, ns, name) for (ns, name), (prev_j, next_j) in routes if prev_j != next_j == j]
            for j in range(num_partitions)
        ]
        self.crossing = {key for key, (prev_j, next_j) in routes if prev_j != next_j}

    def copy_policy(self, next_j: int) -> Iterator[tuple[int, Namespace | None, str]]:
        """Yield (partition that stashed it, namespace, name) of all that partition `next_j` gets from others."""
        yield from self.by_partition[next_j]

    def requires_copy(self, ns: Namespace | None, name: str) -> bool:
        """Say whether this skip tensor is popped in another partition than it is stashed in."""
        return (ns, name) in self.crossing


def inspect_skip_layout(partitions: Iterable[nn.Sequential]) -> SkipLayout:
    """Return the layout of the skippable layers in `partitions`, those inside other layers included."""
    partitions = list(partitions)
    routes: dict[Key, tuple[int, int]] = {}
    stashed_at: dict[Key, int] = {}
    for j, partition in enumerate(partitions):
        for layer in partition.modules():
            if isinstance(layer, Skippable):
                routes.update({key: (stashed_at[key], j) for key in layer.poppable() if key in stashed_at})
                stashed_at.update(dict.fromkeys(layer.stashable(), j))
    return SkipLayout(len(partitions), routes)


# ---- portals
#
# Phonies tie the three functions to the way of the micro-batch itself, so that they run in this order:
#
#     forward     Blue  ->  Copy  ->  Orange          Blue: hide.  Copy: to the other device.  Orange: show.
#     backward    Blue  <-  Copy  <-  Orange          Orange puts the gradient into the portal, Blue takes it out.


class _Step(torch.autograd.Function):
    """Call `there` in forward and `back` in backward, which has the gradient of what `there` has returned."""

    @classmethod
    def run(cls, there: Callable[[], Any], back: Callable[[Tensor], Any], input: Tensor | None) -> Tensor:
        output: Tensor = cls.apply(there, back, input)  # type: ignore[no-untyped-call]
        return output

    @staticmethod
    def forward(ctx: Any, there: Callable[[], Tensor], back: Callable[[Tensor], Any], input: Tensor | None) -> Tensor:
        ctx.back = back
        return there().detach()

    @staticmethod
    def backward(ctx: Any, *grad: Tensor) -> tuple[None, None, Tensor | None]:
        return None, None, ctx.back(*grad)


class PortalBlue(_Step):
    """The tensor leaves the graph; in backward its gradient enters."""


class PortalCopy(_Step):
    """The tensor goes to another device; in backward its gradient comes from there."""


class PortalOrange(_Step):
    """The tensor enters the graph; in backward its gradient leaves."""


class Portal:
    """Hold a tensor for `tensor_life` uses, then let it go; hold its gradient for one.

    blue() and orange() are one use each, copy() is none. None needs no step of autograd, and gets no phony.
    """

    def __init__(self, tensor: Tensor | None, tensor_life: int) -> None:
        self.grad: Tensor | None = None
        self.hides_grad = False  # whether there was a graph to hide
        self.put_tensor(tensor, tensor_life)

    def put_tensor(self, tensor: Tensor | None, tensor_life: int) -> None:
        """Hold `tensor` for `tensor_life` uses."""
        self.tensor, self.tensor_life = tensor if tensor_life > 0 else None, tensor_life

    def use_tensor(self) -> Tensor | None:
        """Return the tensor, and let it go if this was the last use. Raises RuntimeError if it has been used up."""
        if self.tensor_life <= 0:
            raise RuntimeError("tensor in portal has been removed")
        tensor = self.tensor
        self.put_tensor(tensor, self.tensor_life - 1)
        return tensor

    def put_grad(self, grad: Tensor) -> None:
        """Hold the gradient of the tensor."""
        self.grad = grad

    def use_grad(self) -> Tensor:
        """Return the gradient and let it go."""
        if self.grad is None:
            raise RuntimeError("grad in portal has been removed or never set")
        grad, self.grad = self.grad, None
        return grad

    def blue(self) -> Tensor | None:
        """Hide the tensor; return a phony to join to the micro-batch."""
        tensor = self.use_tensor()
        if tensor is None:
            return None
        phony = partial(get_phony, tensor.device, requires_grad=False)
        tied = PortalBlue.run(phony, lambda _: None if self.grad is None else self.use_grad(), tensor)
        self.hides_grad = tied.requires_grad
        return tied

    def copy(self, prev: AbstractStream, next: AbstractStream, phony: Tensor | None) -> Tensor | None:
        """Move the tensor to the device of the `next` stream; takes a forked phony, returns one to join."""
        place = recording.here()

        def there() -> Tensor:
            (self.tensor,) = Copy.apply(prev, next, self.tensor)  # type: ignore[no-untyped-call]
            return get_phony(get_device(next), requires_grad=False)

        def back(_: Tensor) -> None:
            if self.grad is not None:
                with recording.span("copy", place, next):
                    (self.grad,) = Copy.apply(next, prev, self.grad)  # type: ignore[no-untyped-call]

        return None if self.tensor is None else PortalCopy.run(there, back, phony)

    def orange(self, phony: Tensor | None) -> Tensor | None:
        """Show the tensor again; `phony` is forked from the micro-batch."""
        return self.use_tensor() if self.tensor is None else PortalOrange.run(self.use_tensor, self.put_grad, phony)


# ---- trackers: tensors wait in a dictionary, or in portals


@dataclass(frozen=True, slots=True)
class Namespace:
    """Different from every other namespace, equal to its own copies, pickled ones as well.

    Layers that are built alike can then be used twice: `Encoder().isolate(ns1), Encoder().isolate(ns2)`.
    """

    id: UUID = field(default_factory=uuid4)


Key: TypeAlias = tuple[Namespace | None, str]
"""A skip tensor: its namespace, None if it is not isolated, and its name."""


class SkipTracker:
    """Keep stashed tensors as they are: all that layers on one device need."""

    def __init__(self) -> None:
        self.tensors: dict[Key, Tensor | None] = {}

    def save(self, batch: Batch, ns: Namespace | None, name: str, tensor: Tensor | None) -> None:
        """Keep a stashed tensor. `batch` is the output of the layer that stashed it."""
        self.tensors[ns, name] = tensor

    def load(self, batch: Batch, ns: Namespace | None, name: str) -> Tensor | None:
        """Return a tensor to pop, or raise RuntimeError. `batch` is the input of the layer that pops it."""
        if (ns, name) not in self.tensors:
            raise RuntimeError(f"'{name}' has not been stashed")
        return self.tensors.pop((ns, name))


class SkipTrackerThroughPortals(SkipTracker):
    """Lead a skip tensor that changes partition through a portal; one tracker for each micro-batch of a pipeline.

    Phonies tie a portal to all tensors of the micro-batch that require grad: the first one may be an integer mask,
    which can't hold a tie.
    """

    def __init__(self, skip_layout: SkipLayout) -> None:
        super().__init__()
        self.skip_layout = skip_layout
        self.portals: dict[Key, Portal] = {}

    def save(self, batch: Batch, ns: Namespace | None, name: str, tensor: Tensor | None) -> None:
        """Hide a stashed tensor in a portal, if it is popped elsewhere."""
        if not self.skip_layout.requires_copy(ns, name):
            return super().save(batch, ns, name, tensor)
        if (ns, name) in self.portals:  # recomputed: orange has had its share, only this blue is left
            self.portals[ns, name].put_tensor(tensor, tensor_life=1)
        else:  # blue now, orange later; once more orange if the partition that pops is going to be recomputed
            self.portals[ns, name] = Portal(tensor, tensor_life=3 if is_checkpointing() else 2)
        phony = self.portals[ns, name].blue()
        if phony is not None and phony.requires_grad and this_thread.hidden is not None:
            this_thread.hidden.append(phony)
        if phony is not None and phony.requires_grad and not join_batch(batch, phony):
            lanes = [lane for lane, x in enumerate(batch) if x.is_floating_point() or x.is_complex()]
            if not lanes:
                raise _no_way_back(name, "stashes it returns")
            for lane in lanes:
                batch[lane] = join(batch[lane], phony)
        return None

    def load(self, batch: Batch, ns: Namespace | None, name: str) -> Tensor | None:
        """Show a hidden tensor in the partition that pops it."""
        if not self.skip_layout.requires_copy(ns, name):
            return super().load(batch, ns, name)
        portal, phony = self.portals[ns, name], fork_batch(batch)
        if portal.hides_grad and phony is None and torch.is_grad_enabled():
            raise _no_way_back(name, "pops it takes")
        return portal.orange(phony)

    def copy(self, batch: Batch, prev: AbstractStream, next: AbstractStream, ns: Namespace | None, name: str) -> None:
        """Move a hidden tensor to the partition that pops it, as part of the way of `batch` to that partition."""
        phony = self.portals[ns, name].copy(prev, next, fork_batch(batch))
        if phony is not None:
            join_batch(batch, phony)


SkipTrackerThroughPotals = SkipTrackerThroughPortals  # as torchgpipe spells it


def _no_way_back(name: str, layer: str) -> RuntimeError:
    return RuntimeError(
        f"the gradient of skip tensor '{name}' has no way back: the layer that {layer} no tensor that could carry a "
        "gradient; let a floating-point tensor go beside it, or pop it in the partition that stashes it"
    )


def use_skip_tracker(skip_tracker: SkipTracker) -> AbstractContextManager[None]:
    """Make `skip_tracker` the one of the current thread inside the block."""
    return during(skip_tracker=skip_tracker)


def current_skip_tracker() -> SkipTracker:
    """Return the tracker of the current thread; outside of a pipeline each thread has a plain one of its own."""
    if this_thread.skip_tracker is None:
        this_thread.skip_tracker = SkipTracker()
    tracker: SkipTracker = this_thread.skip_tracker
    return tracker
