"""Layers that stash and pop: `yield stash("name", tensor)` in one, `tensor = yield pop("name")` in a later one."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, ClassVar, NamedTuple, Self

from torch import Tensor, nn

from lib.pipeline.microbatch import Batch
from lib.pipeline.skip.namespace import Key, Namespace
from lib.pipeline.skip.tracker import current_skip_tracker


class stash(NamedTuple):
    """The command to keep `tensor` (or None) for the layer that pops `name`."""

    name: str
    tensor: Tensor | None


class pop(NamedTuple):
    """The command that gives back what was stashed under `name`."""

    name: str


class Skippable(nn.Module):
    """The base of all skippable layers; `@skippable` makes the subclasses. The decorated layer is in `.module`."""

    module_cls: ClassVar[type[nn.Module]]
    stashable_names: ClassVar[frozenset[str]]
    poppable_names: ClassVar[frozenset[str]]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self.module = self.module_cls(*args, **kwargs)
        self.namespaces: dict[str, Namespace] = {}

    def __repr__(self) -> str:
        return f"@skippable({self.module})"

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
        if names - declared:
            raise ValueError(
                f"{_list(names - declared)} not declared by this layer, which has {_list(declared)}"
            )
        self.namespaces.update(dict.fromkeys(names, ns))
        return self

    def forward(self, input: Any) -> Any:
        """Run the layer and serve its commands.

        Raises RuntimeError for a name that is not declared, or declared and not used, or popped and not stashed.
        """
        tracker, to_pop, stashed = current_skip_tracker(), dict[str, Any](), dict[str, Any]()
        if self.poppable_names:
            batch = Batch(input)
            for ns, name in self.poppable():
                try:
                    to_pop[name] = tracker.load(batch, ns, name)
                except KeyError:
                    raise RuntimeError(f"'{name}' has not been stashed") from None
            input = batch.tensor_or_tensors
        output = self.module(input)
        if isinstance(output, Generator):
            output = self._serve(output, to_pop, stashed)
        if missing := self.stashable_names - stashed.keys():
            raise RuntimeError(f"{_list(missing)} must be stashed but have not")
        if to_pop:
            raise RuntimeError(f"{_list(to_pop)} must be popped but have not")
        if stashed:
            batch = Batch(output)
            for ns, name in self.stashable():
                tracker.save(batch, ns, name, stashed[name])
            output = batch.tensor_or_tensors
        return output

    def _serve(self, layer: Generator[Any, Any, Any], to_pop: dict[str, Any], stashed: dict[str, Any]) -> Any:
        answer = None
        while True:
            try:
                command = layer.send(answer)
            except StopIteration as end:
                return end.value
            answer = None
            if isinstance(command, stash):
                if command.name not in self.stashable_names:
                    raise RuntimeError(f"'{command.name}' has not been declared as stashable")
                stashed[command.name] = command.tensor
            elif isinstance(command, pop):
                if command.name not in to_pop:
                    twice = command.name in self.poppable_names
                    problem = "been popped already" if twice else "not been declared as poppable"
                    raise RuntimeError(f"'{command.name}' has {problem}")
                answer = to_pop.pop(command.name)
            else:
                raise TypeError(f"{command!r} is not a command from @skippable; yield stash(...) or pop(...)")


def skippable(
    stash: Iterable[str] = (), pop: Iterable[str] = ()
) -> Callable[[type[nn.Module]], type[Skippable]]:
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
    declared = {"stashable_names": frozenset(stash), "poppable_names": frozenset(pop)}

    def decorate(module_cls: type[nn.Module]) -> type[Skippable]:
        # pickle finds a class by its name, which is now that of the new class: the layer's own is an attribute of it.
        place = {"__module__": module_cls.__module__, "__doc__": module_cls.__doc__}
        name, path = module_cls.__name__, module_cls.__qualname__
        inner = type(name, (module_cls,), {**place, "__qualname__": f"{path}.module_cls"})
        return type(name, (Skippable,), {**place, **declared, "__qualname__": path, "module_cls": inner})

    return decorate


def verify_skippables(module: nn.Sequential) -> None:
    """Check that every skip tensor has one stash and, later, one pop. Raises TypeError with all that does not match."""
    stashed: set[Key] = set()
    popped: set[Key] = set()
    wrong: list[str] = []
    for place, layer in module.named_children():
        if not isinstance(layer, Skippable):
            continue
        both = layer.stashable_names & layer.poppable_names
        wrong += [f"'{place}' declared '{name}' both as stashable and as poppable" for name in sorted(both)]
        for seen, keys, kind in (stashed, layer.stashable(), "stash"), (popped, layer.poppable(), "popp"):
            for key in (key for key in keys if key[1] not in both):
                if key in seen:
                    wrong.append(
                        f"'{place}' redeclared '{key[1]}' as {kind}able but not isolated by namespace"
                    )
                elif kind == "popp" and key not in stashed:
                    wrong.append(f"'{place}' declared '{key[1]}' as poppable but it was not stashed")
                else:
                    seen.add(key)
    unpopped = sorted(name for _, name in stashed - popped)
    wrong += [f"no module declared '{name}' as poppable but stashed" for name in unpopped]
    if wrong:
        raise TypeError("\n* ".join(["one or more pairs of stash and pop do not match:\n", *wrong]))


def _list(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(names))
