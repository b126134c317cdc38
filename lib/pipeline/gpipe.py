"""GPipe: an nn.Sequential cut into partitions, through which every mini-batch runs in micro-batches."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, NoReturn, TypeAlias, cast

import torch
from torch import nn

from lib._arguments import integer
from lib.pipeline import microbatch
from lib.pipeline.batchnorm import DeferredBatchNorm, mini_batch
from lib.pipeline.microbatch import TensorOrTensors
from lib.pipeline.pipeline import Pipeline
from lib.pipeline.skip.layout import inspect_skip_layout
from lib.pipeline.skip.skippable import verify_skippables
from lib.pipeline.stream import AbstractStream, new_stream
from lib.pipeline.worker import Workers

Device: TypeAlias = torch.device | int | str


class BalanceError(ValueError):
    """A balance that does not fit the module."""


def _advice(problem: str) -> str:
    return (
        f"{problem}\n\nlib.pipeline.balance finds one:\n\n"
        "    from lib.pipeline import GPipe, balance_by_time\n"
        "    balance = balance_by_time(partitions, module, sample)\n"
        "    model = GPipe(module, balance, chunks=8)"
    )


def flatten_sequential(module: nn.Sequential) -> nn.Sequential:
    """Return the layers of nested Sequentials in one Sequential, so that a partition may end between any two of them.

    The layers are the same objects; "1.0" becomes "1_0". A Sequential with a forward or hooks of its own stays whole.
    Raises TypeError for what is no nn.Sequential.
    """
    if not isinstance(module, nn.Sequential):
        raise TypeError(f"module must be nn.Sequential to be flattened, not {type(module).__name__}")

    def layers(sequential: nn.Sequential, prefix: str) -> Iterator[tuple[str, nn.Module]]:
        for name, child in sequential._modules.items():
            assert child is not None
            plain = isinstance(child, nn.Sequential) and type(child).forward is nn.Sequential.forward
            if plain and not (child._forward_hooks or child._forward_pre_hooks):
                yield from layers(cast(nn.Sequential, child), f"{prefix}{name}_")
            else:
                yield prefix + name, child

    return nn.Sequential(OrderedDict(layers(module, "")))


def verify_module(module: nn.Sequential) -> None:
    """Raise TypeError unless this is an nn.Sequential, ValueError if a layer or a parameter is in it twice."""
    if not isinstance(module, nn.Sequential):
        raise TypeError(f"module must be nn.Sequential to be partitioned, not {type(module).__name__}")
    children = list(module.children())  # each object once
    layers, different = len(module), len(children)
    if layers != different:
        raise ValueError(f"module with duplicate children is not supported: {layers}, {different} different")
    apart, different = sum(len(list(x.parameters())) for x in children), len(list(module.parameters()))
    if apart != different:
        what = "module with duplicate parameters in distinct children is not supported"
        raise ValueError(f"{what}: {apart}, {different} different")


def split_module(
    module: nn.Sequential, balance: Iterable[int], devices: Iterable[torch.device]
) -> tuple[nn.ModuleList, list[int], list[torch.device]]:
    """Return (partitions, balance, devices): partition j has balance[j] layers, on devices[j]; the rest is dropped.

    Raises BalanceError if the numbers don't fit, IndexError if there are fewer devices than partitions.
    """
    balance, devices = [integer("a number of the balance", layers) for layers in balance], list(devices)
    if len(module) != sum(balance):
        numbers = f"(module: {len(module)}, sum of balance: {sum(balance)})"
        raise BalanceError(f"module and sum of balance have different length {numbers}")
    if any(layers < 1 for layers in balance):
        raise BalanceError(f"all balance numbers must be positive integer (balance: {balance})")
    if len(balance) > len(devices):
        numbers = f"(devices: {len(devices)}, partitions: {len(balance)})"
        raise IndexError(f"too few devices to hold given partitions {numbers}; a device may be named again")
    layers = iter(module.named_children())
    partitions = nn.ModuleList()
    for size, device in zip(balance, devices, strict=False):
        partitions.append(nn.Sequential(OrderedDict(next(layers) for _ in range(size))).to(device))
    return partitions, balance, devices[: len(balance)]


class GPipe(nn.Module):
    """Compute as `module` does, in partitions on several devices that work on different micro-batches at the same time.

        model = GPipe(nn.Sequential(a, b, c, d), balance=[2, 2], chunks=8)
        output = model(input.to(model.devices[0]))
        loss = loss_function(output, target.to(model.devices[-1]))

    balance: the number of layers of each partition. devices: one for each partition; by default the CUDA devices, or
    the CPU for all where there is none. chunks: micro-batches a mini-batch. checkpoint: which of them keep only the
    inputs of the partitions and are computed again in backward: "always" all, "except_last" all but the last (for which
    it would save nothing), "never" none; in eval mode none. deferred_batch_norm: see lib.pipeline.batchnorm. chunks=1
    with checkpoint="never" is plain model parallelism.

    Input and output are a tensor or a tuple of tensors with the batch in dimension 0; so is what passes between two
    partitions, of any dtype. Random numbers repeat under torch.manual_seed, but are not those of `module` alone (see
    lib.pipeline.random_state). On a CPU partitions overlap in forward; backward runs in one thread, autograd's for all
    CPUs. Worker threads live as long as the model; pickle, deepcopy and fork leave them behind. The state dict has the
    partitions in its keys; one of `module` can be loaded all the same.

    Raises TypeError if module is no nn.Sequential, ValueError for a wrong balance, chunks < 1, an unknown checkpoint
    mode, a layer or parameter used twice, IndexError for fewer devices than partitions. An error in a layer reaches the
    caller as the same object, with a note that names the micro-batch and the partition.
    """

    _pipeline: ClassVar[type[Pipeline]] = Pipeline

    def __init__(
        self,
        module: nn.Sequential,
        balance: Iterable[int] | None = None,
        *,
        devices: Iterable[Device] | None = None,
        chunks: float = 1,
        checkpoint: str = "except_last",
        deferred_batch_norm: bool = False,
    ) -> None:
        super().__init__()
        if balance is None:
            raise ValueError(_advice("balance is required"))
        whole = int(chunks) if isinstance(chunks, float) and chunks.is_integer() else chunks
        self.chunks = integer("number of chunks", whole, at_least=1)
        self.checkpoint = str(checkpoint)
        if self.checkpoint not in ("always", "except_last", "never"):
            raise ValueError(f"checkpoint is not one of 'always', 'except_last', or 'never': {checkpoint!r}")
        verify_module(module)
        verify_skippables(module)
        if deferred_batch_norm:
            module = DeferredBatchNorm.convert_deferred_batch_norm(module, self.chunks)
        balance = list(balance)
        if devices is None:
            devices = range(torch.cuda.device_count()) or ["cpu"] * len(balance)
        try:
            parts = split_module(module, balance, [torch.device(device) for device in devices])
        except BalanceError as error:
            raise BalanceError(_advice(str(error))) from None
        self.partitions, self.balance, self.devices = parts
        self._defers = any(isinstance(layer, DeferredBatchNorm) for layer in module.modules())
        self._skip_layout = inspect_skip_layout(cast(Iterable[nn.Sequential], self.partitions))
        self._without_runtime()

    def _without_runtime(self) -> None:
        """Begin without threads and streams: they are made in the first forward."""
        self._copy_streams: list[list[AbstractStream]] = []
        self._idle: list[Workers] = []  # wait for the next forward; more than one after nested calls
        weakref.finalize(self, _stop, self._idle)

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        del state["_copy_streams"], state["_idle"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._without_runtime()

    def __len__(self) -> int:
        return sum(self.balance)

    def __iter__(self) -> Iterator[nn.Module]:
        for partition in self.partitions:
            yield from cast(nn.Sequential, partition)

    def __getitem__(self, index: int) -> nn.Module:
        return list(self)[index]

    def to_sequential(self) -> nn.Sequential:
        """Return the layers in a plain nn.Sequential, each where it is: for saving, or for eval on one device."""
        return nn.Sequential(OrderedDict(x for part in self.partitions for x in part.named_children()))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        homes = {name: j for j, part in enumerate(self.partitions) for name, _ in part.named_children()}
        for key in [key for key in state_dict if key.startswith(prefix)]:
            name = key[len(prefix) :].partition(".")[0]
            if name in homes:
                state_dict[f"{prefix}partitions.{homes[name]}.{key[len(prefix) :]}"] = state_dict.pop(key)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def cuda(self, device: Device | None = None) -> NoReturn:
        """Raise TypeError: where each partition is, is said by `devices`."""
        raise _denied("cuda()")

    def cpu(self) -> NoReturn:
        """Raise TypeError: where each partition is, is said by `devices`."""
        raise _denied("cpu()")

    def to(self, *args: Any, **kwargs: Any) -> GPipe:
        """Change the dtype; raises TypeError for a device, or a tensor that stands for one."""
        device_like = (torch.device, int, str, torch.Tensor)
        if {"device", "tensor", "other"} & kwargs.keys() or (args and isinstance(args[0], device_like)):
            raise _denied("to() a device")
        return super().to(*args, **kwargs)

    def forward(self, input: TensorOrTensors) -> TensorOrTensors:
        """Return what the layers make of `input`, from devices[0] to devices[-1]; raises TypeError, ValueError."""
        microbatch.check(input)
        if not self.devices:
            return input
        batches = microbatch.scatter(input, self.chunks)
        stop = {"always": len(batches), "except_last": len(batches) - 1, "never": 0}[self.checkpoint]
        if not (self.training and torch.is_grad_enabled()):
            stop = 0
        if not self._copy_streams or len(self._copy_streams[0]) < len(batches):
            self._copy_streams = [[new_stream(device) for _ in batches] for device in self.devices]
        partitions, layout = cast(list[nn.Sequential], self.partitions), self._skip_layout
        pipeline = self._pipeline(batches, partitions, self.devices, self._copy_streams, layout, stop)
        whole: AbstractContextManager[None] = mini_batch(self.partitions) if self._defers else nullcontext()
        with whole:
            workers = self._workers()
            try:
                pipeline.run(workers)
            except BaseException:
                workers.stop()  # after an interrupt they may still be at work
                raise
            self._idle.append(workers)
        return microbatch.gather(batches)

    def _workers(self) -> Workers:
        while self._idle:
            workers = self._idle.pop()  # atomic: a forward in another thread, or inside a layer, takes others
            if workers.alive:
                return workers
        return Workers(self.devices)


def _denied(what: str) -> TypeError:
    return TypeError(f"denied to move parameters and buffers by {what}: see devices= of GPipe")


def _stop(idle: list[Workers]) -> None:
    for workers in idle:
        workers.stop()
