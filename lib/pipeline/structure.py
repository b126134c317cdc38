"""What layers, parameters, hooks and settings a partition has: whether they are what they were in forward.

What a layer itself changes in its forward, a counter or a cache, it changes again in the recomputation: that is no
difference. Which attributes these are shows in what is another after a forward than it was before; and what changes
while backward runs is the work of hooks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping
from itertools import chain
from operator import attrgetter, call, is_, itemgetter
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, NamedTuple, cast

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils.weak import WeakIdKeyDictionary

from lib.runtime.partitions import HOOKS


def dotted(module: nn.Module, attribute: str) -> str:
    """Return how a message names an attribute: Dropout.p."""
    return f"{type(module).__name__}.{attribute}"


_PARTS = ("_modules", "_parameters")
_TABLES = (*HOOKS, *_PARTS)
_hooks_of = attrgetter(*HOOKS)
_parts_of = attrgetter(*_PARTS)
_PLAIN = frozenset((bool, int, float, complex, str, type(None), torch.dtype))
_FUNCTIONS = (FunctionType, BuiltinFunctionType, MethodType)
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
_MISSING = object()

_own: MutableMapping[nn.Module, set[tuple[str, str | int]]] = WeakIdKeyDictionary()
"""By module: what it or a hook of its was seen to change by itself: ("settings", name) or ("hooks", number)."""


class Facts(NamedTuple):
    """What a module has. No object that could hold a graph: it would hold its own forward's watch, and those before."""

    settings: dict[str, object]
    layers: dict[str, int]  # by name, its id
    parameters: dict[str, int]  # by name, its id
    hooks: dict[int, str]  # by torch's number, which comes only once: the table in which it stands


_MAY_BE_OWN = ("settings", "hooks")
"""Facts that a layer may change by itself: it does not replace a layer or a parameter."""


def _facts_of(module: nn.Module) -> Facts:
    settings = {name: _setting(value) for name, value in vars(module).items()}
    layers = module._modules
    parameters = module._parameters
    return Facts(
        settings={name: value for name, value in settings.items() if value is not _MISSING},
        layers=dict(zip(layers, map(id, layers.values()), strict=True)),
        parameters=dict(zip(parameters, map(id, parameters.values()), strict=True)),
        hooks={number: table for table, hooks in zip(HOOKS, _hooks_of(module), strict=True) for number in hooks},
    )


def _setting(value: object) -> object:
    """Return what to keep of an attribute that says how a layer computes, _MISSING for any other."""
    if _is_plain(value):
        return value
    if isinstance(value, _FUNCTIONS):
        return id(value)
    return _MISSING


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return type(value) in _PLAIN


class Change(NamedTuple):
    """What is another than in forward: a setting, a layer, a parameter or a hook; what it was; what a message says."""

    module: nn.Module
    kind: str  # the field of Facts
    key: str | int
    before: object
    attribute: str

    def __str__(self) -> str:
        return dotted(self.module, self.attribute)

    @property
    def may_be_own(self) -> bool:
        """Whether a layer may do this by itself."""
        return self.kind in _MAY_BE_OWN


def _changes(module: nn.Module, before: Facts, now: Facts) -> Iterator[Change]:
    own = _own.get(module, set())
    for kind in Facts._fields:
        was: dict[str | int, Any] = getattr(before, kind)
        is_now: dict[str | int, Any] = getattr(now, kind)
        both = {**was, **is_now}
        for key, value in both.items():
            old = was.get(key, _MISSING)
            if old == is_now.get(key, _MISSING) or (kind, key) in own:
                continue
            if key != "_is_full_backward_hook":  # goes with the hooks
                yield Change(module, kind, key, old, attribute=value if kind == "hooks" else str(key))


class Snapshot:
    """What layers, parameters, hooks and settings a partition has; `holds()` says, fast, that it has them still.

    All modules are looked at four times a step, nearly always to find nothing new. So C does the loops: the dicts in
    which torch keeps what a module has are as long as they were, and hold the same.
    """

    def __init__(self, partition: nn.Module) -> None:
        everything = [*partition.modules()]
        self.parameters = [
            (module, name, parameter)
            for module in everything
            for name, parameter in module._parameters.items()
            if parameter is not None and not is_lazy(parameter)
        ]
        self.tensors = [parameter for _, _, parameter in self.parameters]
        # whether a layer has still to make its parameters
        self.incomplete = any(is_lazy(cast(Any, x)) for module in everything for x in module._parameters.values())

        # A module of TorchScript is closed: it has what follows in C++.
        self.modules = [module for module in everything if not isinstance(module, torch.jit.ScriptModule)]
        self.facts = [*map(_facts_of, self.modules)]
        self._attributes = [*map(vars, self.modules)]
        self._parts = [*chain.from_iterable(map(_parts_of, self.modules))]
        hooks = [*chain.from_iterable(map(_hooks_of, self.modules))]
        self._dicts = [*self._attributes, *self._parts, *hooks]
        self._sizes = [*map(len, self._dicts)]
        self._hooks = [*filter(None, hooks)]
        self._hook_numbers = [*chain.from_iterable(self._hooks)]
        self._layers_and_parameters = [*self._layers_and_parameters_now()]
        self._settings_of = [itemgetter(*_TABLES, *_settings_in(module)) for module in self.modules]
        self._settings = self._settings_now()
        # Neither functions nor what else an attribute may be are held, but by id: they could hold a graph.
        self._others = [
            (attributes, name, id(value))
            for attributes in self._attributes
            for name, value in attributes.items()
            if name not in _OF_EVERY_MODULE and not _is_plain(value)
        ]

    def _layers_and_parameters_now(self) -> Iterator[object]:
        return chain.from_iterable(map(dict.values, self._parts))

    def _settings_now(self) -> list[object]:
        return [*map(call, self._settings_of, self._attributes)]

    def holds(self) -> bool:
        """Say that all is as it was; if not, `changes` tells what, if anything."""
        if [*map(len, self._dicts)] != self._sizes:
            return False
        try:
            return (
                self._settings_now() == self._settings
                and all(map(is_, self._layers_and_parameters_now(), self._layers_and_parameters))
                and [*chain.from_iterable(self._hooks)] == self._hook_numbers
                and all(id(attributes.get(name)) == number for attributes, name, number in self._others)
            )
        except (KeyError, RuntimeError, ValueError):  # a setting is gone, or now a tensor, which does not just equal
            return False

    def changes(self) -> list[Change]:
        """Return what is another than it was."""
        if self.holds():
            return []
        now = map(_facts_of, self.modules)
        return [*chain.from_iterable(map(_changes, self.modules, self.facts, now))]


def _settings_in(module: nn.Module) -> list[str]:
    """Return the names of its settings, but for functions and what it changes by itself."""
    own = _own.get(module, set())
    return [name for name, value in vars(module).items() if _is_plain(value) and ("settings", name) not in own]


class Structure:
    """What layers, parameters, hooks and settings the modules of a partition have, as they were in a forward."""

    def __init__(self, before: Snapshot) -> None:
        self.before = before
        self.found: list[Change] = []  # when the backward that runs now came here

    def look(self, looked: Iterable[Structure]) -> list[Change]:
        """Return what has changed. looked: who has looked in the same backward, earlier: what came since is its own."""
        self.found = []
        for change in self.before.changes():
            if change.may_be_own and any(other.has_seen_before(change) for other in looked):
                _take_for_own(change)
            else:
                self.found.append(change)
        return self.found

    def has_seen_before(self, change: Change) -> bool:
        """Say whether this one, when it looked, still saw what the other remembers."""
        if change in self.found:
            return False
        for module, facts in zip(self.before.modules, self.before.facts, strict=True):
            if module is change.module:
                known = getattr(facts, change.kind)
                return bool(known.get(change.key, _MISSING) == change.before)
        return False

    def learn(self) -> bool:
        """Take what has changed since the look for the modules' own; return whether layers or parameters have."""
        changes = [change for change in self.before.changes() if change not in self.found]
        for change in changes:
            if change.may_be_own:
                _take_for_own(change)
        return not all(change.may_be_own for change in changes)


def _take_for_own(change: Change) -> None:
    _own.setdefault(change.module, set()).add((change.kind, change.key))
