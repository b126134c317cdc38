"""Random numbers owned by (micro-batch, partition): the same whatever the threads do, and the same when recomputed.

torch has one generator for all threads of a process: two partitions at work at the same time would take their dropout
masks from it in an order that changes from run to run, and a recomputed mask would be another one.

Inside `with Seeds(m, n).own(i, j)` every operation that draws random numbers on a CPU takes them from a generator of
this (i, j), seeded anew at each entry. How: torch dispatches an operation by keys; one of them (made for tests, used by
nothing) is switched on for this thread, and the few operations that draw have a function there which fills in
`generator=`. All others fall through. Seeds come from the process's generator, so torch.manual_seed makes runs repeat;
where nothing is drawn it stays untouched. It costs 2 µs a task, and 4 µs an operation that draws.

Left alone: a call that names its generator; CUDA (a device has one worker and one generator, whose state a checkpoint
saves); Python's `random`, numpy. torch.get_rng_state and set_rng_state mean this generator inside, so what forks and
restores "the state", as torch.utils.checkpoint does around a block, restores the numbers that the block has drawn.
Not covered: a layer that seeds the process's generator itself (torch.manual_seed).

A compiled layer is covered as well: its graph draws by the same operations. Should one draw in yet another way, it is
refused where a recomputation would draw other numbers (lib.runtime.compiled_draws).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from lib.runtime.compiled_draws import compiled_graphs_heard, note_draw
from lib.runtime.thread_state import PerThread

_NAME = "TESTING_ONLY_GenericMode"
_KEYS = torch._C.DispatchKeySet(torch._C._dispatch_key_parse(_NAME))
_DRAWS = """
    bernoulli_.float bernoulli_.Tensor bernoulli.out uniform_ normal_ random_ random_.from random_.to exponential_
    geometric_ cauchy_ log_normal_ multinomial multinomial.out poisson binomial _standard_gamma _sample_dirichlet
    normal.Tensor_float normal.Tensor_float_out normal.float_Tensor normal.float_Tensor_out normal.Tensor_Tensor
    normal.Tensor_Tensor_out randperm.generator_out rrelu_with_noise rrelu_with_noise.out rrelu_with_noise_
""".split()  # noqa: SIM905
"""The operations that draw on a CPU; all others that draw are made of these."""

_own_generator: PerThread[Callable[[], torch.Generator] | None] = PerThread(None)  # None: it has the process's
_listening: PerThread[bool] = PerThread(False)  # to the operations that draw

_lock = threading.RLock()  # of the process's generator


class Seeds:
    """Hold a seed for each micro-batch i < m and partition j < n, drawn when the first of them is asked for."""

    def __init__(self, m: int, n: int) -> None:
        self.shape = (m, n)
        self._parent = _own_generator.value  # inside the partition of another pipeline: what that partition owns

    @cached_property
    def _table(self) -> Tensor:
        generator = torch.default_generator if self._parent is None else self._parent()
        return torch.empty(self.shape, dtype=torch.int64).random_(generator=generator)

    def __getitem__(self, place: tuple[int, int]) -> int:
        with _lock:  # two workers may ask first: the table is drawn once
            return int(self._table[place])

    @contextmanager
    def own(self, i: int, j: int, *, backward: bool = False) -> Iterator[None]:
        """Let this thread draw the random numbers of micro-batch i in partition j within a `with`.

        backward: other numbers than those of forward.
        """
        made: list[torch.Generator] = []  # once something is drawn

        def generator() -> torch.Generator:
            if not made:
                made.append(torch.Generator().manual_seed(self[i, j] + backward))
            return made[0]

        outside = _own_generator.value
        _own_generator.value = generator
        try:
            with nullcontext() if _listening.value else listening():
                yield
        finally:
            _own_generator.value = outside


@contextmanager
def listening() -> Iterator[None]:
    """Switch the key on for this thread. A worker does so once: it costs 2 µs each way."""
    if not _libraries:
        _register()
    _listening.value = True
    torch._C._dispatch_tls_set_dispatch_key_included(_NAME, True)
    try:
        with compiled_graphs_heard() if "torch._dynamo" in sys.modules else nullcontext():
            yield
    finally:
        _listening.value = False
        torch._C._dispatch_tls_set_dispatch_key_included(_NAME, False)


def _get_rng_state() -> Tensor:
    """Return the state of the generator from which this thread draws on a CPU."""
    own = _own_generator.value
    return torch.default_generator.get_state() if own is None else own().get_state()


def _set_rng_state(new_state: Tensor) -> None:
    """Set the state of the generator from which this thread draws on a CPU."""
    own = _own_generator.value
    generator = torch.default_generator if own is None else own()
    generator.set_state(new_state)


def _from_own_generator(operation: Any) -> Callable[..., Any]:
    """Return the operation with the generator of this thread filled in."""
    names = [argument.name for argument in operation._schema.arguments]

    def draw(*args: Any, **kwargs: Any) -> Any:
        kwargs |= zip(names, args, strict=False)  # all by name, so that "generator" is found wherever it was given
        with torch._C._ExcludeDispatchKeyGuard(_KEYS):
            on_cpu = all(x.is_cpu for x in kwargs.values() if isinstance(x, Tensor))
            if on_cpu and kwargs.get("generator") is None and _own_generator.value is not None:
                note_draw(operation.name(), kwargs)
                kwargs["generator"] = _own_generator.value()
            return operation(**kwargs)

    return draw


_libraries: list[Any] = []  # a registration ends with its object, so these are kept for good


def _register() -> None:
    """Register the functions with torch's dispatcher, once in a process: at first use, not at import."""
    with _lock:
        if _libraries:  # another thread was here first
            return
        everything: Any = torch.library.Library("_", "IMPL", _NAME)  # type: ignore[no-untyped-call]
        everything.fallback(torch.library.fallthrough_kernel)
        aten: Any = torch.library.Library("aten", "IMPL", _NAME)  # type: ignore[no-untyped-call]
        for name in _DRAWS:
            packet, _, overload = name.partition(".")
            operation = getattr(getattr(torch.ops.aten, packet), overload or "default")
            aten.impl(name, _from_own_generator(operation))
        for place in (torch, torch.random):
            place.get_rng_state = _get_rng_state  # type: ignore[attr-defined]
            place.set_rng_state = _set_rng_state  # type: ignore[attr-defined]
        _libraries.extend((everything, aten))
