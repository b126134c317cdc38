"""Layers that stash and pop: `yield stash("name", tensor)` in one, `tensor = yield pop("name")` in a later one.

A SkipTracker holds what waits to be popped. Which partition stashes and which one pops a tensor, a SkipLayout knows
before anything runs; where the two differ, the tensor goes through a portal (lib.pipeline.portal).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from functools import cache, partial
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple, Self

from torch import Tensor, nn

from lib.pipeline.skip_tracker import Key, Namespace, current_skip_tracker
from lib.runtime.microbatch import Batch


class stash(NamedTuple):
    """The command to keep `tensor` (or None) for the layer that pops `name`."""

    name: str
    tensor: Tensor | None


class pop(NamedTuple):
    """The command that gives back what was stashed under `name`."""

    name: str


# ---- the layers


class Skippable(nn.Module):
    """What `@skippable` puts before the class of a layer: a forward that serves the commands of the layer's own."""

    stashable_names: ClassVar[frozenset[str]]
    poppable_names: ClassVar[frozenset[str]]
    namespaces: Mapping[str, Namespace] = {}

    def __repr__(self) -> str:
        return f"@skippable({super().__repr__()})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        # Pickle finds a class by its name. A decorator @skippable(…) takes the name of the layer's class: all is well.
        # Called as a function, skippable(…)(Layer) leaves the name to Layer: then we pickle Layer and what to add.
        layer_class: Any = vars(type(self)).get("module_cls")  # not inherited: a subclass has a name of its own
        if layer_class is not None and _has_its_name(layer_class):
            return _new, (layer_class, self.stashable_names, self.poppable_names), vars(self)
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
        tracker = current_skip_tracker()
        batch = Batch(input)
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
        """Answer each command of the layer, taking from `to_pop` and putting into `stashed`; return its output."""
        answer = None
        while True:
            try:
                command = layer.send(answer)
            except StopIteration as end:
                return end.value
            match command:
                case stash(name, tensor) if name in self.stashable_names:
                    stashed[name] = tensor
                    answer = None
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


@cache  # so that pickle, which makes the class again, makes the same one
def _skippable_class(module_cls: type[nn.Module], stash: frozenset[str], pop: frozenset[str]) -> type[Skippable]:
    own = {name: getattr(module_cls, name) for name in ("__module__", "__qualname__", "__doc__")}
    own |= {"module_cls": module_cls, "stashable_names": stash, "poppable_names": pop}
    return type(module_cls.__name__, (Skippable, module_cls), own)


def _has_its_name(cls: type) -> bool:
    """Say whether pickle would find this class by its name; a class inside a function it does not."""
    try:
        found: object = attrgetter(cls.__qualname__)(sys.modules[cls.__module__])
    except AttributeError:
        return False
    return found is cls


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
        for name in sorted(both):
            wrong.append(f"'{place}' declared '{name}' both as stashable and as poppable")
        stashes = [key for key in layer.stashable() if key[1] not in both]
        pops = [key for key in layer.poppable() if key[1] not in both]
        for key in stashes:
            if key in stashed:
                wrong.append(f"'{place}' redeclared '{key[1]}' as stashable but not isolated by namespace")
        for key in pops:
            if key in popped:
                wrong.append(f"'{place}' redeclared '{key[1]}' as poppable but not isolated by namespace")
        for key in pops:
            if key not in stashed:
                wrong.append(f"'{place}' declared '{key[1]}' as poppable but it was not stashed")
        popped.update(stashed.intersection(pops))
        stashed.update(stashes)
    for name in sorted(name for _, name in stashed - popped):
        wrong.append(f"no module declared '{name}' as poppable but stashed")
    if wrong:
        raise TypeError("\n* ".join(["one or more pairs of stash and pop do not match:\n", *wrong]))


def _list(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(names))
