"""Random numbers owned by (micro-batch, partition): the same whatever the threads do, and the same when recomputed.

torch has one generator for all threads of a process, so two partitions that compute at the same time would take their
dropout masks from it in an order that changes from run to run, and a recomputed mask would be another one.

Inside `with Seeds(m, n).own(i, j)` every operation on a CPU that draws random numbers takes them from a generator of
this (i, j) instead, seeded anew at each entry: a recomputation draws what the forward drew. How: torch dispatches an
operation by keys; one of them (made for tests of the dispatcher, used by nothing) is switched on for this thread only,
and the few operations that draw have a function there which fills in `generator=`. All others fall through.

covered      whatever ends in an operation of torch that draws on a CPU: F.dropout and its kin, attention with dropout,
             rand, randn_like, bernoulli_, multinomial, randperm, rrelu, torch.distributions, nn.init, …
left alone   a call that names its own generator; CUDA (a device has one worker and a generator of its own, whose state
             a checkpoint saves); Python's `random` and numpy
not covered  a layer that handles the state of the process's generator by itself: torch.manual_seed, fork_rng, or
             torch.utils.checkpoint around random layers inside a partition (use GPipe's checkpoint for these)
price        0.7 µs a task, 4 µs for an operation that draws, nothing for one that does not. Seeds come from the
             process's generator, so torch.manual_seed makes runs repeat; where nothing is drawn it stays untouched.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

_KEY = "TESTING_ONLY_GenericMode"
_DRAWS = """
    bernoulli_.float bernoulli_.Tensor bernoulli.out uniform_ normal_ random_ random_.from random_.to exponential_
    geometric_ cauchy_ log_normal_ multinomial multinomial.out poisson binomial _standard_gamma _sample_dirichlet
    normal.Tensor_float normal.Tensor_float_out normal.float_Tensor normal.float_Tensor_out normal.Tensor_Tensor
    normal.Tensor_Tensor_out randperm.generator_out rrelu_with_noise rrelu_with_noise.out rrelu_with_noise_
    native_dropout
""".split()  # noqa: SIM905
"""The operations that draw on a CPU; all others that draw are made of these."""


class _Owner(threading.local):
    draw: Own | None = None


_owner = _Owner()
_lock = threading.RLock()  # of the process's generator


class Seeds:
    """Hold a seed for each micro-batch i < m and partition j < n, drawn when the first of them is asked for."""

    def __init__(self, m: int, n: int) -> None:
        self._shape, self._parent = (m, n), _owner.draw
        self._table: list[list[int]] | None = None

    def __getitem__(self, place: tuple[int, int]) -> int:
        with _lock:
            if self._table is None:
                # inside the partition of another pipeline: from what that partition owns
                generator = self._parent.generator if self._parent else torch.default_generator
                self._table = (
                    torch.empty(self._shape, dtype=torch.int64).random_(generator=generator).tolist()
                )
        return self._table[place[0]][place[1]]

    def own(self, i: int, j: int) -> Own:
        """Return the context in which this thread draws the random numbers of micro-batch i in partition j."""
        return Own(self, i, j)


class Own:
    """Make this thread draw from a generator of its own within a `with`; see the top of this file."""

    __slots__ = ("_before", "_generator", "_place", "_seeds")

    def __init__(self, seeds: Seeds, i: int, j: int) -> None:
        self._seeds, self._place = seeds, (i, j)
        self._generator: torch.Generator | None = None

    @property
    def generator(self) -> torch.Generator:
        """The generator, made when something is drawn."""
        if self._generator is None:
            self._generator = torch.Generator().manual_seed(self._seeds[self._place])
        return self._generator

    def __enter__(self) -> None:
        self._before, _owner.draw = _owner.draw, self
        if self._before is None:
            torch._C._dispatch_tls_set_dispatch_key_included(_KEY, True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _owner.draw = self._before
        if self._before is None:
            torch._C._dispatch_tls_set_dispatch_key_included(_KEY, False)


def _from_own_generator(operation: Any) -> Callable[..., Any]:
    """Return the operation with the generator of the thread's owner filled in."""
    names = [argument.name for argument in operation._schema.arguments]
    place = names.index("generator") if "generator" in names else None

    def draw(*args: Any, **kwargs: Any) -> Any:
        torch._C._dispatch_tls_set_dispatch_key_included(_KEY, False)
        try:
            owner, on_cpu = _owner.draw, _device(args, kwargs).type == "cpu"
            if owner is None or not on_cpu:
                return operation(*args, **kwargs)
            if place is None:  # native_dropout takes no generator: lend it the process's one
                return _with_lent_state(owner.generator, operation, args, kwargs)
            if place < len(args):
                if args[place] is None:
                    args = (*args[:place], owner.generator, *args[place + 1 :])
            elif kwargs.get("generator") is None:
                kwargs["generator"] = owner.generator
            return operation(*args, **kwargs)
        finally:
            torch._C._dispatch_tls_set_dispatch_key_included(_KEY, True)

    return draw


def _device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device:
    return next(x.device for x in (*args, *kwargs.values()) if isinstance(x, Tensor))


def _with_lent_state(generator: torch.Generator, operation: Any, args: Any, kwargs: Any) -> Any:
    with _lock:
        before = torch.default_generator.get_state()
        torch.default_generator.set_state(generator.get_state())
        try:
            return operation(*args, **kwargs)
        finally:
            generator.set_state(torch.default_generator.get_state())
            torch.default_generator.set_state(before)


def _register() -> list[Any]:
    everything: Any = torch.library.Library("_", "IMPL", _KEY)  # type: ignore[no-untyped-call]
    everything.fallback(torch.library.fallthrough_kernel)
    aten: Any = torch.library.Library("aten", "IMPL", _KEY)  # type: ignore[no-untyped-call]
    for name in _DRAWS:
        packet, _, overload = name.partition(".")
        aten.impl(name, _from_own_generator(getattr(getattr(torch.ops.aten, packet), overload or "default")))
    return [everything, aten]


_libraries = _register()  # a registration ends with its object
