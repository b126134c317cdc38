"""GPipe: an nn.Sequential cut into partitions, through which every mini-batch runs in micro-batches.

How it differs from the module that it was made of, beyond speed and memory:

Forward. Random numbers repeat under torch.manual_seed, but are not those of the module alone
(lib.runtime.random_state); what is computed again draws the same, also inside torch.utils.checkpoint and in a compiled
layer, or raises RuntimeError where torch has other code for it by then. Layers see the caller's contextvars. A write
into one of two tensors that share memory across a cut raises RuntimeError.

Threads. On a CPU partitions overlap in forward; backward runs in one thread, autograd's for all CPUs. Where the caller
is in a mode that only its thread can have (FlopCounterMode, save_on_cpu; see lib.runtime.thread_state), all runs there.
Worker threads live as long as the model; pickle, deepcopy and fork leave them behind.

Backward of what is checkpointed goes in parts: hooks of parameters are called for each, torch.autograd.grad and
backward(inputs=…) don't reach parameters. What comes out of it wants a gradient, also where all parameters before are
frozen: a layer that then writes in place what the one before has saved raises torch's own error ("never" works, and
inplace=False). Backward comes to all that a partition returned: the hook of a tensor that the loss ignores is called
with None. But it makes nothing of nothing: a layer to which no gradient comes has None, also where a function in it (a
compiled layer has one) would make zeros; torch's reentrant checkpoint, which adds them by itself, is refused there.

Recomputation. What is recomputed is what ran, or backward raises RuntimeError before it, naming what has changed since
forward (lib.pipeline.watch):
- a parameter, also by a fused optimizer, by `p.data = …`, by torch.func.functional_call, or in requires_grad;
- train or eval, or another attribute of a layer that is a number, str, bool, None or a tuple of such (Dropout.p);
- a layer or a hook (forward, backward) that came, went, or took another's place.
What layers change in their own forward, or their hooks in backward, is not meant: counters, caches, statistics. Not
seen without `check`: writes through `p.data` and to buffers. Not seen at all: what an attribute of another kind holds,
hooks for all modules. With checkpoint="never" all this is as in the plain module.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, ClassVar, NoReturn, cast

import torch
from torch import nn

from lib.arguments import integer
from lib.pipeline.batchnorm import convert_deferred_batch_norm, mini_batch
from lib.pipeline.pipeline import Pipeline
from lib.pipeline.skip import verify_skippables
from lib.pipeline.skip_layout import inspect_skip_layout
from lib.pipeline.watch import Snapshots
from lib.pipeline.worker import Workers
from lib.runtime import microbatch
from lib.runtime.device import AbstractStream, Device, accelerators, has_streams, locate, named_device, new_stream
from lib.runtime.microbatch import TensorOrTensors
from lib.runtime.partitions import BalanceError, split_module, verify_module


class _Runtime:
    """Threads and streams of a model, made in its first forward; a copy of the model, or one from a file, has none."""

    def __init__(self) -> None:
        self.copy_streams: list[list[AbstractStream]] = []
        self.snapshots: Snapshots = {}  # of the partitions, in the last forward that was checkpointed
        self.idle: list[Workers] = []  # wait for the next forward; more than one after nested calls

    def __reduce__(self) -> tuple[type[_Runtime], tuple[()]]:
        return _Runtime, ()

    def workers(self, devices: list[torch.device]) -> Workers:
        """Take workers that nobody else has; put them back into `idle` afterwards."""
        while self.idle:
            workers = self.idle.pop()  # atomic: a forward in another thread, or inside a layer, takes others
            if workers.alive:
                return workers
        return Workers(devices)

    def streams(self, devices: list[torch.device], count: int) -> list[list[AbstractStream]]:
        """Return a stream for each micro-batch on each device, the same ones in every forward."""
        if not self.copy_streams or len(self.copy_streams[0]) < count:
            self.copy_streams = [[new_stream(device) for _ in range(count)] for device in devices]
        return self.copy_streams


class GPipe(nn.Module):
    """Compute as `module` does, in partitions on several devices that work on different micro-batches at the same time.

        model = GPipe(nn.Sequential(a, b, c, d), balance=[2, 2], chunks=8)
        output = model(input.to(model.devices[0]))
        loss = loss_function(output, target.to(model.devices[-1]))

    balance: the number of layers of each partition.
    devices: one for each partition; by default the GPUs, or the CPU for all where there is none.
    chunks: micro-batches a mini-batch. chunks=1 with checkpoint="never" is plain model parallelism.
    checkpoint: which micro-batches keep only the inputs of the partitions and are computed again in backward: "always"
    all, "except_last" all but the last (for which it would save nothing), "never" none; in eval mode none.
    deferred_batch_norm: see lib.pipeline.batchnorm.
    check: look for writes to parameters and buffers that leave no trace, too (p.data.clamp_()): every recomputation
    then reads all of its partition's first, which took more than half as long again where layers are small.

    Input and output are a tensor or a tuple of tensors with the batch in dimension 0; so is what passes between two
    partitions, of any dtype. What is computed again is what ran, or backward raises RuntimeError, naming the parameter,
    setting, layer or hook that has changed since forward. The state dict has the partitions in its keys; one of
    `module` can be loaded all the same. Random numbers, threads, hooks, and what else is not as in `module`: see the
    docstring of this file, lib.pipeline.gpipe.

    Raises TypeError if module is no nn.Sequential, ValueError for a wrong balance, chunks < 1, an unknown checkpoint
    mode, a layer, parameter or buffer of a BatchNorm used twice, IndexError for fewer devices than partitions,
    RuntimeError for a device that is not here. An error in a layer reaches the caller as the same object, with a note
    that names the micro-batch and the partition.
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
        check: bool = False,
    ) -> None:
        super().__init__()
        if balance is None:
            raise BalanceError("balance is required")
        if isinstance(chunks, float) and chunks.is_integer():
            chunks = int(chunks)  # 8.0, as batch_size / rows gives it
        self.chunks = integer("number of chunks", chunks, at_least=1)
        self.checkpoint = str(checkpoint)
        if self.checkpoint not in ("always", "except_last", "never"):
            raise ValueError(f"checkpoint is not one of 'always', 'except_last', or 'never': {checkpoint!r}")
        self.check = bool(check)
        verify_module(module)
        verify_skippables(module)
        if deferred_batch_norm:
            module = convert_deferred_batch_norm(module, self.chunks)
        balance = _counts(balance, len(module))
        if devices is None:
            devices = accelerators() or ["cpu"] * len(balance)
        self.partitions, self.balance, self.devices = split_module(module, balance, _found(devices, len(balance)))
        self._skip_layout = inspect_skip_layout(cast(Iterable[nn.Sequential], self.partitions))
        self._runtime = _Runtime()

    def extra_repr(self) -> str:
        """Return what a printed model says of its pipeline, above its partitions."""
        places = ", ".join(map(str, self.devices))
        return f"balance={self.balance}, chunks={self.chunks}, checkpoint={self.checkpoint!r}, on {places}"

    def __len__(self) -> int:
        return sum(self.balance)

    def __iter__(self) -> Iterator[nn.Module]:
        return chain.from_iterable(cast(Iterable[nn.Sequential], self.partitions))

    def __getitem__(self, index: int) -> nn.Module:
        return list(self)[index]

    def to_sequential(self) -> nn.Sequential:
        """Return the layers in a plain nn.Sequential, each where it is: for saving, or for eval on one device."""
        layers = [named for partition in self.partitions for named in partition.named_children()]
        return nn.Sequential(OrderedDict(layers))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # In a state dict of the plain module a layer's key is "2.weight"; ours is "partitions.1.2.weight".
        partition_of = {name: j for j, part in enumerate(self.partitions) for name, _ in part.named_children()}
        for key in [key for key in state_dict if key.startswith(prefix)]:
            inner = key.removeprefix(prefix)
            layer = inner.partition(".")[0]
            if layer in partition_of:
                state_dict[f"{prefix}partitions.{partition_of[layer]}.{inner}"] = state_dict.pop(key)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def cuda(self, device: Device | None = None) -> NoReturn:
        """Raise TypeError, as `cpu` does and `to` with a device: where each partition is, is said by `devices`."""
        raise TypeError("denied to move parameters and buffers to a device: see devices= of GPipe")

    cpu = cuda

    def to(self, *args: Any, **kwargs: Any) -> GPipe:
        """Change the dtype; raises TypeError for a device, or a tensor that stands for one."""
        by_name = not {"device", "tensor", "other"}.isdisjoint(kwargs)
        by_place = len(args) > 0 and isinstance(args[0], (torch.device, int, str, torch.Tensor))
        if by_name or by_place:
            self.cuda()
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
        partitions = cast(list[nn.Sequential], self.partitions)
        runtime = self._runtime
        copy_streams = runtime.streams(self.devices, len(batches))
        pipeline = self._pipeline(
            batches,
            partitions,
            self.devices,
            copy_streams,
            self._skip_layout,
            checkpoint_stop=stop,
            check_values=self.check,
            snapshots=runtime.snapshots,
        )
        workers = runtime.workers(self.devices)
        with mini_batch(self.partitions):
            pipeline.run(workers)
        runtime.idle.append(workers)  # if nothing was raised: after an interrupt they may still be at work
        return microbatch.gather(batches)


def _counts(balance: object, layers: int) -> list[int]:
    """Return a balance as a list; raises BalanceError for anything but counts, a number of partitions for one."""
    if isinstance(balance, Iterable) and not isinstance(balance, str):
        return list(balance)
    half = layers // 2
    fitting = [layers - half, half] if half else [layers]
    raise BalanceError(f"balance must say how many layers each partition has, as {fitting}, not {balance!r}")


def _found(devices: object, partitions: int) -> list[torch.device]:
    """Return devices by their names; raises TypeError for a single one, RuntimeError for one that is not here.

    What lies behind the last partition is not looked for: nothing will be put there.
    """
    if not isinstance(devices, Iterable) or isinstance(devices, str):
        raise TypeError(f"devices must be one for each partition, as ['cpu', 'cpu'], not {devices!r}")
    found = [named_device(device) for device in devices]
    for device in found[:partitions]:
        if has_streams(device):
            locate(device)
    return found


# torch.compile leaves forward and all that it calls alone: a graph has no place for threads and queues.
_frame = torch._C._dynamo.eval_frame
_skip = _frame._FrameAction.SKIP
_frame.set_code_exec_strategy(GPipe.forward.__code__, _frame._FrameExecStrategy(_skip, _skip))
