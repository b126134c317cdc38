"""The modules of a partition: whether they are, before they compute again, what they were in forward.

Looked at are their layers, hooks and settings (lib.pipeline.structure), their parameters, and if wanted all values
(lib.pipeline.checksums). Most writes to a parameter show in autograd's version counter, a step of a fused optimizer
does not.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import cache
from operator import attrgetter
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from lib.pipeline.checksums import Checksums
from lib.pipeline.looking import look_in_backward
from lib.pipeline.structure import Snapshot, Structure, dotted
from lib.runtime.microbatch import Batch

Snapshots: TypeAlias = dict[nn.Module, Snapshot]
"""By partition: as it was in the last forward."""


class ModuleWatch:
    """Look whether a module is as it was in one forward.

    check_values: read all parameters and buffers, each time. snapshots: where the last forward has left what it saw of
    the module; mostly it is as it was then.
    """

    def __init__(self, module: nn.Module, *, check_values: bool = False, snapshots: Snapshots | None = None) -> None:
        self.module = module
        self.check_values = check_values
        self.snapshots = {} if snapshots is None else snapshots
        self.backward = -1  # the last call of backward that came here, by torch's number
        self.found: list[str] = []  # in it
        self._begin()

    def _begin(self) -> None:
        snapshot = self.snapshots.get(self.module)
        if snapshot is None or snapshot.incomplete or snapshot.changes():
            snapshot = Snapshot(self.module)
            self.snapshots[self.module] = snapshot
        self.structure = Structure(snapshot)
        self.parameters = _Parameters(snapshot)
        self.values = Checksums(self.module.modules() if self.check_values else [])

    def forward_ended(self) -> None:
        """Take what has changed since this began for the layers' own doing, but for written parameters."""
        before = self.parameters
        written = self.values.written_buffers()
        if self.structure.learn() or self.structure.before.incomplete:
            self._begin()  # a layer has made layers or parameters
            self.parameters.go_on_from(before)
        self.parameters.look_who_needs_grad()
        self.values.leave_out(written)

    def look(self) -> None:
        """Look at all but the values, once in each call of backward.

        What changes while it runs is the work of hooks, as in a wrapper that counts gradients: so it is good to look
        before a micro-batch that is not recomputed goes backward.
        """
        number = torch._C._current_graph_task_id()
        if number != self.backward:
            self.backward = number
            self._look_anew(number)

    def _look_anew(self, number: int) -> None:
        self.found = [str(change) for change in look_in_backward(self.structure, number)]
        self.found += self.parameters.switched()

    def check(self) -> None:
        """Raise RuntimeError, naming what has changed, if the modules would not compute what they did in forward.

        Parameters are looked at each time: a hook of theirs may be an optimizer.
        """
        self.look()
        if not (self.found or self.check_values) and self.parameters.are_as_they_were():
            return
        names = dict.fromkeys(self.found + self.parameters.written() + self.values.changed())
        if names:
            raise RuntimeError(
                f"{', '.join(names)} changed between forward and backward: the recomputation would not be what ran; "
                "change it before forward or after backward, or use checkpoint='never'"
            )


def end_forward(watches: Sequence[ModuleWatch], last: Batch) -> None:
    """Tell the watches that forward is through, and have them look before `last`, the last micro-batch, goes backward.

    It goes first. In "except_last" it is not recomputed, and hooks of its may change settings.
    """
    for watch in watches:
        watch.forward_ended()

    def look(*_: object) -> None:
        for watch in watches:
            watch.look()

    for node in {x.grad_fn for x in last if x.grad_fn is not None}:
        node.register_prehook(look)


_version = attrgetter("_version")
_requires_grad = attrgetter("requires_grad")


class _Parameters:
    """The parameters of modules as they were: version, memory, whether they want a gradient, the last step."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.steps = _watched_steps()
        self.step = self.steps.count
        self.found = snapshot.parameters
        self.tensors = snapshot.tensors
        self.versions = [*map(_version, self.tensors)]
        # `parameter.data = new` changes neither the object nor its version, only its memory. The old one is held: its
        # address is not given to another.
        self.storages = [*map(Tensor.untyped_storage, self.tensors)]
        self.addresses = [*map(Tensor.data_ptr, self.tensors)]
        self.look_who_needs_grad()

    def look_who_needs_grad(self) -> None:
        """Note which parameters want a gradient."""
        self.requires_grad = [*map(_requires_grad, self.tensors)]

    def go_on_from(self, other: _Parameters) -> None:
        """Take what the other knows, and has known for longer, of the parameters that both have."""
        self.step = other.step
        places = {id(parameter): place for place, parameter in enumerate(other.tensors)}
        for k, parameter in enumerate(self.tensors):
            place = places.get(id(parameter))
            if place is not None:
                self.versions[k] = other.versions[place]
                self.storages[k] = other.storages[place]
                self.addresses[k] = other.addresses[place]

    def switched(self) -> list[str]:
        """Return the names of those frozen or unfrozen since."""
        now = [*map(_requires_grad, self.tensors)]
        if now == self.requires_grad:
            return []
        both = zip(self.found, now, self.requires_grad, strict=True)
        return [dotted(module, f"{name}.requires_grad") for (module, name, _), a, b in both if a is not b]

    def are_as_they_were(self) -> bool:
        """Say, quickly, that none was written and no optimizer has stepped; where one has, `written` tells whose."""
        return (
            [*map(_version, self.tensors)] == self.versions
            and [*map(Tensor.data_ptr, self.tensors)] == self.addresses
            and self.steps.count == self.step
        )

    def written(self) -> list[str]:
        """Return the names of those that were written since, as far as this leaves a trace, or have other memory."""
        last = self.steps.last
        kept = zip(self.found, self.versions, self.addresses, strict=True)
        return [
            dotted(module, name)
            for (module, name, parameter), version, address in kept
            if parameter._version != version
            or parameter.data_ptr() != address
            or last.get(id(parameter), 0) > self.step
        ]


class _Steps:
    """The optimizer steps of this process, which fused kernels hide from autograd: how many, and whose."""

    def __init__(self) -> None:
        self.count = 0
        # By id: the number of its last step. One that is gone may leave its id to another; whoever asks holds his
        # parameters since before the steps that he asks for.
        self.last: dict[Hashable, int] = {}

    def note(self, optimizer: Optimizer, *_: object) -> None:
        """Note a step, and which parameters it has moved: those that had a gradient."""
        self.count += 1
        for group in optimizer.param_groups:
            stepped = [id(parameter) for parameter in group["params"] if parameter.grad is not None]
            self.last.update(dict.fromkeys(stepped, self.count))


@cache
def _watched_steps() -> _Steps:
    """Return the steps since the first call, which has torch tell of all that follow."""
    steps = _Steps()
    register_optimizer_step_post_hook(steps.note)
    return steps
