"""Random numbers owned by (micro-batch, partition): the same whatever the threads do, and the same when recomputed.

torch has one generator for all threads of a process: two partitions at work at the same time would take their dropout
masks from it in an order that changes from run to run, and a recomputed mask would be another one.

Inside `with Seeds(m, n).own(i, j)` every operation that draws random numbers on a CPU takes them from a generator of
this (i, j), seeded anew at each entry. How: torch dispatches an operation by keys; one of them (made for tests, used by
nothing) is switched on for this thread, and the few operations that draw have a function there which fills in
`generator=`. All others fall through. Seeds come from the process's generator, so torch.manual_seed makes runs repeat;
where nothing is drawn it stays untouched. It costs 2 µs a task, and 4 µs an operation that draws.

Left alone: a call that names its generator; CUDA (a device has one worker and one generator, whose state a checkpoint
saves); Python's `random`, numpy. Not covered: a layer that handles the process's generator itself (torch.manual_seed,
fork_rng, or torch.utils.checkpoint around random layers inside a partition: use GPipe's checkpoint for these).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from lib.runtime.thread_state import this_thread

_NAME = "TESTING_ONLY_GenericMode"
_KEYS = torch._C.DispatchKeySet(torch._C._dispatch_key_parse(_NAME))
_DRAWS = """
    bernoulli_.float bernoulli_.Tensor bernoulli.out uniform_ normal_ random_ random_.from random_.to exponential_
    geometric_ cauchy_ log_normal_ multinomial multinomial.out poisson binomial _standard_gamma _sample_dirichlet
    normal.Tensor_float normal.Tensor_float_out normal.float_Tensor normal.float_Tensor_out normal.Tensor_Tensor
    normal.Tensor_Tensor_out randperm.generator_out rrelu_with_noise rrelu_with_noise.out rrelu_with_noise_
""".split()  # noqa: SIM905
"""The operations that draw on a CPU; all others that draw are made of these."""

_lock = threading.RLock()  # of the process's generator


class Seeds:
    """Hold a seed for each micro-batch i < m and partition j < n, drawn when the first of them is asked for."""

    def __init__(self, m: int, n: int) -> None:
        self.shape = (m, n)
        self._parent = this_thread.generator  # inside the partition of another pipeline: what that partition owns

    @cached_property
    def _table(self) -> Tensor:
        generator = torch.default_generator if self._parent is None else self._parent()
        return torch.empty(self.shape, dtype=torch.int64).random_(generator=generator)

    def __getitem__(self, place: tuple[int, int]) -> int:
        with _lock:  # two workers may ask first: the table is drawn once
            return int(self._table[place])

    @contextmanager
    def own(self, i: int, j: int) -> Iterator[None]:
        """Let this thread draw the random numbers of micro-batch i in partition j within a `with`."""
        made: list[torch.Generator] = []  # once something is drawn

        def generator() -> torch.Generator:
            if not made:
                made.append(torch.Generator().manual_seed(self[i, j]))
            return made[0]

        outside = this_thread.generator
        this_thread.generator = generator
        try:
            with nullcontext() if this_thread.listening else listening():
                yield
        finally:
            this_thread.generator = outside


@contextmanager
def listening() -> Iterator[None]:
    """Switch the key on for this thread. A worker does so once: it costs 2 µs each way."""
    if not _libraries:
        _register()
    this_thread.listening = True
    torch._C._dispatch_tls_set_dispatch_key_included(_NAME, True)
    try:
        yield
    finally:
        this_thread.listening = False
        torch._C._dispatch_tls_set_dispatch_key_included(_NAME, False)


def _from_own_generator(operation: Any) -> Callable[..., Any]:
    """Return the operation with the generator of this thread filled in."""
    names = [argument.name for argument in operation._schema.arguments]

    def draw(*args: Any, **kwargs: Any) -> Any:
        kwargs |= zip(names, args, strict=False)  # all by name, so that "generator" is found wherever it was given
        with torch._C._ExcludeDispatchKeyGuard(_KEYS):
            on_cpu = all(x.is_cpu for x in kwargs.values() if isinstance(x, Tensor))
            if on_cpu and kwargs.get("generator") is None and this_thread.generator is not None:
                kwargs["generator"] = this_thread.generator()
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
        _libraries.extend((everything, aten))
