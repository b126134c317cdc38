"""The repairs of faults S1 to S6 and S9 taken back, one by one: what the fuzz must find, or it says nothing.

Each is an edit of the source in memory, as small as the fault was: a text that stands there once, and what to put in
its place. The names are those of issue 21.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest import mock

import torch

from lib.pipeline import layer, portal_tracker, watch
from lib.runtime import compiled_draws, no_gradient, random_state, sharing
from lib.schedules import split_backward, stage


class Edit(NamedTuple):
    """In the function `name` of `owner`, a class or module, put `new` in the place of `old`."""

    owner: Any
    name: str
    old: str
    new: str


TAKEN_BACK = {
    # The way back of a skip tensor leads along the micro-batch, where a layer may let go of it.
    "S1": [
        Edit(portal_tracker.SkipTrackerThroughPortals, "copy", "next, portal.way_back)", "next, fork_batch(batch))"),
        Edit(portal_tracker.SkipTrackerThroughPortals, "leave", "if self._hidden:", "if False:"),
    ],
    # What forks and restores "the state" means the generator of the process.
    "S2": [
        Edit(random_state, "_get_rng_state", "own = _own_generator.value", "own = None"),
        Edit(random_state, "_set_rng_state", "own = _own_generator.value", "own = None"),
    ],
    # A compiled graph runs for the first time where nobody sees what it draws.
    "S3": [
        Edit(compiled_draws, "compiled_graphs_heard", "if not before:", "if True:"),
        Edit(compiled_draws.CompiledDraws, "noted", "if not torch.equal", "if False and not torch.equal"),
        Edit(compiled_draws.CompiledDraws, "compared", "if again != self.first", "if False"),
    ],
    # W goes through hooks that I has been through.
    "S4": [
        Edit(split_backward, "_walk_branches", "_zeros(g)) for node", "g) for node"),
        Edit(split_backward, "_walk_branches", "hooks.callback(arrives_again(node, arrived[node]))", "pass"),
    ],
    "S5, fused steps": [
        Edit(watch._Parameters, "are_as_they_were", "and self.steps.count == self.step", ""),
        Edit(watch._Parameters, "written", "or last.get(id(parameter), 0) > self.step", ""),
    ],
    "S5, layers, hooks and settings": [
        Edit(watch.ModuleWatch, "_look_anew", "for change in look_in_backward", "for change in [] and look_in_backward")
    ],
    "S5, frozen since": [Edit(watch.ModuleWatch, "_look_anew", "self.found += self.parameters.switched()", "pass")],
    "S5, through .data": [Edit(watch.ModuleWatch, "check", "+ self.values.changed()", "")],
    "S6, in a GPipe": [Edit(sharing.Crossing, "note", "SHARED if shared else needed", "needed")],
    "S6, in an Executor": [Edit(stage.Stage, "forward", "crossing.refuse_writes()", "pass")],
    # What the loss ignores is come to with None, of which some functions make zeros.
    "S9": [Edit(no_gradient, "_tell", "to_visit = [*nodes]", "to_visit = []")],
}


@contextmanager
def taken_back(name: str) -> Iterator[None]:
    """Take a repair back within a `with`. Raises AssertionError if its text does not stand where it is looked for."""
    with random_state.listening():
        pass  # registers what the edits replace
    edits: dict[tuple[Any, str], str] = {}
    for owner, function, old, new in TAKEN_BACK[name]:
        source = edits.get((owner, function)) or source_of(owner, function)
        assert source.count(old) == 1, f"{old!r} stands {source.count(old)} times in {function}"
        edits[owner, function] = source.replace(old, new)
    with ExitStack() as stack:
        for (owner, function), source in edits.items():
            put(stack, owner, function, source)
        yield


def source_of(owner: Any, name: str) -> str:
    return textwrap.dedent(inspect.getsource(getattr(owner, name)))


def put(stack: ExitStack, owner: Any, name: str, source: str) -> None:
    """Put a function made of this source in its place, wherever a module of lib, or torch, has taken it from there."""
    before = inspect.getattr_static(owner, name)
    module = owner if inspect.ismodule(owner) else inspect.getmodule(owner)
    made: dict[str, Any] = {}
    exec(compile(source, f"<{name}, taken back>", "exec"), vars(module), made)
    new = made[name]
    stack.enter_context(mock.patch.object(owner, name, new))
    if inspect.ismodule(owner):
        for other in (layer, watch, stage, random_state, torch, torch.random):
            for alias, value in vars(other).items():
                if value is before:
                    stack.enter_context(mock.patch.object(other, alias, new))
                    break
