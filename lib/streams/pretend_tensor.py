"""Tensors of a PretendGPU, and what an operator of torch does to the memory of its tensors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from copy import deepcopy
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from lib.runtime.regions import Region, region_of
from lib.streams.pretend_memory import Block
from lib.streams.pretend_stream import PretendStream, need_own

_CPU = torch.device("cpu")
_ASKED_FOR_HOST = torch.device("cpu", 0)
"""The host, where somebody names it: torch itself says "cpu", for it takes all our tensors to be there."""


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

    def host(self, x: Tensor, name: str = "input", *, pinned: bool = True) -> PretendTensor:
        """Return a tensor of the CPU as one that this GPU knows."""

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

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Call torch's function, and see what it asks of places: what operators are told of them is torch's belief."""
        kwargs = kwargs or {}
        if func is torch.get_device:
            return args[0].get_device()
        if func is Tensor.type_as or (func is Tensor.to and any(isinstance(y, Tensor) for y in args[1:2])):
            return _made_like(*args, **kwargs)
        if kwargs.get("device") is not None:
            place = device_named(kwargs["device"])
            kwargs = {**kwargs, "device": _ASKED_FOR_HOST if place.type == "cpu" else place}
        made = torch._C._disabled_torch_function_impl(func, types, args, kwargs)
        return _where_it_was_made(made, args) if type(made) is Tensor else made

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
        """Return a pinned copy; what is pinned is returned as it is. Raises RuntimeError for memory of a GPU."""
        if self.block.on_device:
            raise RuntimeError(f"memory of {self.device} can't be pinned, only the host's: write x.cpu().pin_memory()")
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
        asked = parse_to(*args, copy=copy, **kwargs)
        moved = self if asked.device is None else self.gpu.move(self, asked.device, asked.non_blocking)
        return moved_as(self, moved, asked)

    def cuda(self, device: Any = None, non_blocking: bool = False, memory_format: Any = None) -> Any:
        """Return it on a GPU, by default the current one."""
        return self.to(gpu_named(device), non_blocking=non_blocking, memory_format=memory_format)

    def cpu(self, memory_format: Any = None) -> Any:
        """Return it on the host."""
        return self.to(_CPU, memory_format=memory_format)

    def get_device(self) -> int:
        """Return the number of its GPU; -1 for the host."""
        return -1 if self.device.index is None else self.device.index

    def new(self, *args: Any, **kwargs: Any) -> Any:
        """Return a tensor of these sizes or numbers, in this place."""
        return self.gpu.move(self.plain.new(*args, **kwargs), self.device, non_blocking=False)

    def new_tensor(  # type: ignore[override]
        self, data: Any, *, dtype: torch.dtype | None = None, device: Any = None, requires_grad: bool = False
    ) -> Tensor:
        """Return a copy of data, of this dtype and in this place unless told otherwise; the host waits for its own."""
        place = self.device if device is None else device_named(device)
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
        """Return its values, once the host has them. Raises TypeError for memory of a GPU, as torch does."""
        if self.block.on_device and not kwargs.get("force"):
            raise TypeError(f"numpy can't have memory of {self.device}: write x.cpu().numpy()")
        self.gpu.read_by_host(self, "numpy")
        return self.plain.numpy(**kwargs)

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        self.gpu.read_by_host(self, "repr")
        numbers, *rest = re.split(r"(?=, (?:size|dtype)=)", repr(self.plain)[:-1], maxsplit=1)
        place = f", device='{self.device}'" if self.block.on_device else ""
        graph = ", requires_grad=True" if self.requires_grad else ""
        if self.grad_fn is not None:
            graph = f", grad_fn=<{type(self.grad_fn).__name__}>"
        return f"{numbers}{place}{''.join(rest)}{graph})"

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self.dim() == 0 else object.__format__(self, spec)

    @property
    def data(self) -> Tensor:
        """The same memory, as a tensor that autograd knows nothing of."""
        return Tensor.data.__get__(self)  # type: ignore[attr-defined,no-any-return]

    @data.setter
    def data(self, value: Tensor) -> None:
        given = value if isinstance(value, PretendTensor) else self.gpu.host(value, pinned=False)
        Tensor.data.__set__(self, given)  # type: ignore[attr-defined]
        self.block = given.block
        self.plain = given.plain

    def type(self, dtype: Any = None, non_blocking: bool = False, **_: Any) -> Any:
        """Return the name of its type, or it as one of another."""
        if dtype is None:
            name = self.plain.type()
            return name.replace("torch.", "torch.cuda.") if self.block.on_device else name
        if isinstance(dtype, str):
            place = torch.device("cuda" if ".cuda." in dtype else "cpu")
            return self.to(place, getattr(torch, dtype.rpartition(".")[2]).dtype, non_blocking=non_blocking)
        return self.to(dtype, non_blocking=non_blocking)

    def __copy__(self) -> Any:
        return PretendTensor.of(self.plain, self.gpu, self.block).requires_grad_(self.requires_grad)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Return a copy in new memory of its place, with its gradient. Raises RuntimeError for no leaf, as torch."""
        if id(self) in memo:
            return memo[id(self)]
        if not self.is_leaf:
            raise RuntimeError("of a tensor that was computed there is no deep copy: write copy.deepcopy(x.detach())")
        copied = self.detach().clone().requires_grad_(self.requires_grad)
        memo[id(self)] = copied
        copied.__dict__.update({name: value for name, value in self.__dict__.items() if name not in copied.__dict__})
        copied.grad = deepcopy(self.grad, memo)
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Be saved as a tensor of the CPU, and come back as one: where it is loaded there may be no GPU."""
        self.gpu.read_by_host(self, "save")
        saved = self.plain.detach().requires_grad_(self.requires_grad)
        return saved.__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    def as_subclass(self, cls: Any) -> Any:
        """Return the memory as a tensor of another class, which nobody watches: without the graph."""
        return self.plain.as_subclass(cls)


def device_named(device: int | str | torch.device) -> torch.device:
    """Return the device; a number is that of a GPU."""
    return torch.device("cuda", device) if isinstance(device, int) else torch.device(device)


def gpu_named(device: int | str | torch.device | None) -> torch.device:
    """Return what x.cuda(device) asks for; None is the current device. Raises ValueError for what is no GPU."""
    named = device_named("cuda" if device is None else device)
    if named.type != "cuda":
        raise ValueError(f"x.cuda(device) takes a GPU, such as 0 or 'cuda:0', not {device!r}; write x.to({device!r})")
    return named


def _made_like(x: Tensor, other: Tensor, *more: Any, **kwargs: Any) -> Tensor:
    """Return x where another tensor is, and of its dtype; one of the two is ours."""
    ours = next(y for y in (x, other) if isinstance(y, PretendTensor))
    asked = parse_to(other, *more, **kwargs)
    return moved_as(x, ours.gpu.move(x, other.device, asked.non_blocking), asked)


def _where_it_was_made(made: Tensor, args: tuple[Any, ...]) -> Tensor:
    """Return it where the first tensor is: torch's code in C++ may fill memory that no operator tells us of."""
    first = next((x for x in tree_leaves(args) if isinstance(x, Tensor)), None)
    if made is first or not isinstance(first, PretendTensor):
        return made
    return first.gpu.move(made, first.device, non_blocking=False)


def asked_for(device: torch.device, place: torch.device) -> torch.device:
    """Return where an operator is to put its result, which is told `device` and has tensors in `place`."""
    return place if device == _CPU else device


class AskedFor(NamedTuple):
    """What x.to(...) asks for."""

    device: torch.device | None
    dtype: torch.dtype | None
    non_blocking: bool
    copy: bool
    memory_format: torch.memory_format | None


def parse_to(*args: Any, copy: bool = False, **kwargs: Any) -> AskedFor:
    """Read the arguments of x.to: a device, a dtype, both, or a tensor to be like."""
    if kwargs.get("device") is not None:  # not by name: a function with a place is one that makes a tensor there
        args = (kwargs.pop("device"), *args)
    if args and isinstance(args[0], Tensor):
        args = (args[0].device, args[0].dtype, *args[1:])
    elif args and isinstance(args[0], int):
        args = (device_named(args[0]), *args[1:])
    places = 4 if args and not isinstance(args[0], torch.dtype) else 3
    if len(args) == places:
        copy = args[-1]
        args = args[:-1]
    device, dtype, non_blocking, memory_format = torch._C._nn._parse_to(*args, **kwargs)
    return AskedFor(device, dtype, non_blocking, copy, memory_format)


def moved_as(x: Tensor, moved: Tensor, asked: AskedFor) -> Tensor:
    """Return what x.to(...) gives, of which the way to its device is done."""
    layout = asked.memory_format or torch.preserve_format
    changed = Tensor.to(moved, asked.dtype or moved.dtype, memory_format=layout)
    return changed.clone(memory_format=layout) if asked.copy and changed is x else changed


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
