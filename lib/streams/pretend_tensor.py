"""Tensors of a PretendGPU, and what an operator of torch does to the memory of its tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from lib.runtime.regions import Region, region_of
from lib.streams.pretend_memory import Block
from lib.streams.pretend_stream import PretendStream, need_own

_CPU = torch.device("cpu")


class OwnsTensors(Protocol):
    """What tensors ask of their PretendGPU."""

    forgets: frozenset[str]

    def note_made(self, x: PretendTensor) -> None:
        """Note in which stream a tensor was made."""

    def note_roots(self, tensors: Iterable[PretendTensor]) -> None:
        """Note that backward is about to begin at these tensors."""

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator, and note what it does."""

    def pin(self, x: PretendTensor) -> PretendTensor:
        """Return a pinned copy."""

    def move(self, x: Tensor, device: torch.device, non_blocking: bool) -> Tensor:
        """Return the tensor on another device."""

    def read_by_host(self, x: PretendTensor, label: str) -> None:
        """Note that the host reads a tensor."""


class PretendTensor(Tensor):
    """A tensor of the CPU that belongs to a PretendGPU: what is done with it is written down there.

    torch hands over every operator with such a tensor below autograd, so that those of backward are seen as well.
    """

    gpu: OwnsTensors
    block: Block
    plain: Tensor  # the same memory, as a tensor of the CPU that nobody watches
    made_in: PretendStream | None  # the stream that was in use when it was made, or written last; None on the host

    @classmethod
    def of(cls, plain: Tensor, gpu: OwnsTensors, block: Block) -> PretendTensor:
        """Return a tensor with the memory of `plain`; a leaf, that requires grad if that one does."""
        # torch declares this function without types
        tensor: PretendTensor = Tensor._make_subclass(cls, plain.detach(), plain.requires_grad)
        tensor.gpu = gpu
        tensor.block = block
        tensor.plain = plain.detach()
        gpu.note_made(tensor)
        return tensor

    @property
    def region(self) -> Region:
        """The bytes that it has of its block."""
        return region_of(self.plain, self.block.name)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch calls it so, and declares it otherwise
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operator at once, and note which memory it reads and writes."""
        kwargs = kwargs or {}
        first = next(x for x in tree_leaves((args, kwargs)) if isinstance(x, PretendTensor))
        return first.gpu.run(func, args, kwargs)

    # What follows a tensor of the CPU would answer otherwise than one of a GPU.

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # operators are enough

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """Where its memory is."""
        return self.block.device

    @property
    def is_cpu(self) -> bool:  # type: ignore[override]
        """Whether its memory is the host's."""
        return not self.block.on_device

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        """Whether its memory is a GPU's."""
        return self.block.on_device

    def is_pinned(self, device: object = None) -> bool:
        """Return whether a copy engine can read it by itself."""
        return self.block.pinned

    def pin_memory(self, device: object = None) -> PretendTensor:
        """Return a pinned copy; what is pinned is returned as it is, as torch does."""
        return self if self.block.pinned else self.gpu.pin(self)

    def record_stream(self, stream: Any) -> None:
        """Tell the allocator that this stream uses the tensor. Raises ValueError for one of another PretendGPU."""
        need_own(self.gpu, stream)
        if "record_stream" not in self.gpu.forgets:
            self.block.users.add(stream.name)

    def to(self, *args: Any, copy: bool = False, **kwargs: Any) -> Any:
        """Return it on another device, or of another dtype. Raises TypeError for the PretendGPU in a device's place."""
        if args and args[0] is self.gpu:
            raise TypeError("a PretendGPU is no torch.device: write x.to(gpu.device)")
        if args and isinstance(args[0], PretendTensor):
            args = (args[0].device, args[0].dtype, *args[1:])
        device, dtype, non_blocking, _ = torch._C._nn._parse_to(*args, **kwargs)
        moved: Tensor = self if device is None else self.gpu.move(self, device, non_blocking)
        if dtype is not None and dtype != moved.dtype:
            return Tensor.to(moved, dtype)
        return moved.clone() if copy and moved is self else moved

    def cuda(self, device: Any = None, non_blocking: bool = False, memory_format: Any = None) -> Any:
        """Return it on a GPU, by default the current one."""
        return self.gpu.move(self, gpu_named(device), non_blocking)

    def cpu(self, memory_format: Any = None) -> Any:
        """Return it on the host."""
        return self.gpu.move(self, _CPU, False)

    def new_tensor(  # type: ignore[override]
        self, data: Any, *, dtype: torch.dtype | None = None, device: Any = None, requires_grad: bool = False
    ) -> Tensor:
        """Return a copy of data, of this dtype and in this place unless told otherwise; the host waits for its own."""
        place = self.device if device is None else gpu_named(device)
        dtype = dtype or self.dtype
        if isinstance(data, PretendTensor):
            made = data.detach().to(place, dtype, copy=True)
        else:
            made = self.gpu.move(torch.as_tensor(data, dtype=dtype).clone(), place, non_blocking=False)
        return made.requires_grad_(requires_grad)

    def backward(self, *args: Any, **kwargs: Any) -> None:
        """Go backward from here, as torch does."""
        self.gpu.note_roots([self])
        super().backward(*args, **kwargs)  # type: ignore[no-untyped-call]

    def tolist(self) -> Any:
        """Return its values, once the host has them."""
        self.gpu.read_by_host(self, "tolist")
        return self.plain.tolist()

    def numpy(self, **kwargs: Any) -> Any:
        """Return its values, once the host has them."""
        self.gpu.read_by_host(self, "numpy")
        return self.plain.numpy(**kwargs)

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        self.gpu.read_by_host(self, "repr")
        text = repr(self.plain)
        return f"{text[:-1]}, device='{self.device}')" if self.block.on_device else text

    def as_subclass(self, cls: Any) -> Any:
        """Return the memory as a tensor of another class, which nobody watches: without the graph."""
        return self.plain.as_subclass(cls)


def gpu_named(device: int | str | torch.device | None) -> torch.device:
    """Return what x.cuda(device) asks for; None is the current device."""
    if device is None:
        return torch.device("cuda")
    return torch.device("cuda", device) if isinstance(device, int) else torch.device(device)


# ---- what an operator does


class Effects(NamedTuple):
    """What an operator reads and writes of the tensors that it is given, and whether the host waits for it."""

    reads: list[PretendTensor]
    writes: list[PretendTensor]
    synchronises: bool


_WRITES_UNSAID = {"native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "batch_norm_update_stats"}
_WRITES_UNSAID |= {"batch_norm_gather_stats", "batch_norm_gather_stats_with_counts"}
"""Operators that write running statistics although torch's own description of them, the schema, doesn't say so."""
_WAITED_FOR = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
"""torch's marks of operators whose result the host must know: a number, or how many elements there are."""
_SHAPE_ONLY = {"ones_like", "zeros_like", "full_like", "rand_like", "randn_like", "randint_like"}
_SHAPE_ONLY |= {"new_zeros", "new_ones", "new_full"}
"""Of the tensor that these are given they want to know the shape and the dtype: nothing is read."""
_BY_MASK = {"index", "index_put_", "index_put", "_index_put_impl_"}
"""Only with a mask among the indices do these have to know how many elements it names."""


def effects_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Effects:
    """Return what an operator will do to these tensors, by its schema."""
    reads: list[PretendTensor] = []
    writes: list[PretendTensor] = []
    for argument, value in _bound(func, args, kwargs):
        tensors = [x for x in tree_leaves(value) if isinstance(x, PretendTensor)]
        written = argument.alias_info is not None and argument.alias_info.is_write
        if written or _is_running_statistic(func, argument.name, args, kwargs):
            writes += tensors
        only_written = written and argument.kwarg_only  # what is given as out=
        if not only_written and operator_name(func) not in _SHAPE_ONLY:
            reads += tensors
    if torch.Tag.inplace_view in func.tags:  # x.t_(): x becomes a view of its own memory
        return Effects([], [], False)
    return Effects(reads, writes, _is_waited_for(func, args, kwargs))


def _bound(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Yield each argument of the operator's schema that was given, with its value."""
    for place, argument in enumerate(func._schema.arguments):
        if argument.name in kwargs:
            yield argument, kwargs[argument.name]
        elif place < len(args):
            yield argument, args[place]


def _is_running_statistic(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if operator_name(func) not in _WRITES_UNSAID or name not in ("running_mean", "running_var"):
        return False
    given = {argument.name: value for argument, value in _bound(func, args, kwargs)}
    return bool(given.get("training", True))


def _is_waited_for(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if operator_name(func) in _BY_MASK:
        indices = [x for x in tree_leaves(args[1]) if isinstance(x, Tensor)]
        one_value = operator_name(func) != "index" and args[2].numel() == 1  # torch makes masked_fill_ of it
        return any(x.dtype in (torch.bool, torch.uint8) for x in indices) and not one_value
    return not _WAITED_FOR.isdisjoint(func.tags)


def operator_name(func: Any) -> str:
    """Return the name of an operator, such as "add_"."""
    name: str = func._schema.name
    return name.partition("::")[2]
