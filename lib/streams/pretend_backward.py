"""Backward on a PretendGPU: each operator in the stream of its forward, and streams wait where autograd lets them.

torch's engine does so on a GPU ("Stream semantics of backward passes"). A node of the graph has the stream that was
current when forward made its output; the node that adds up the gradient of a leaf, the one where the leaf was used
first. Of two streams, if they are two:

    begin          that of the first node waits for the one that is current where backward is called
    node to node   that of the next node, before that one runs, waits for what the node before has launched, and is
                   noted as a user of the gradient's memory
    end            the one that is current where backward was called waits for those of the leaves

Two gradients of one tensor are added up in the stream of the node that takes them. A PretendGPU that forgets wait_event
forgets autograd's, too, as a simulated device does.

A PretendTensor hears of operators, below autograd. There it sees the nodes of the tensors that an operator is given,
and which node is running: so the stream is switched when that one first asks for it. Not seen is the node where
torch.autograd.backward or .grad begins with a gradient that was given, outside of in_place_of_cuda: it runs in the
current stream. There a function in Python that returns what it made in a stream of its own counts for that stream;
within in_place_of_cuda, as on a GPU, for the one that is current when forward has returned. And what a hook of a node
(not of a tensor) launches counts for the node that takes the gradient.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.graph import Node

from lib.streams.pretend_stream import PretendEvent, PretendStream
from lib.streams.pretend_tensor import PretendTensor

_STREAM = "lib: stream of forward"  # a mark in the metadata that torch keeps for each node


class HasStreams(Protocol):
    """What a backward asks of its PretendGPU."""

    streams: list[PretendStream]
    default_streams: list[PretendStream]
    current_device: int
    in_use: list[PretendStream]


@dataclass
class _Call:
    """One call of backward: what was in use where it was called, which node runs, and what is on its way."""

    task: int  # torch's number of it
    device: int
    in_use: list[PretendStream]  # by device
    began: list[PretendEvent]  # in each of these
    node: Node | None = None
    is_over: bool = False  # the node has launched all that it has to, and hands on
    reached: dict[Node, list[PretendEvent]] = field(default_factory=dict)  # what it has still to wait for
    handed_on: set[Node] = field(default_factory=set)
    takers: dict[int, Node] = field(default_factory=dict)  # of what the node hands on, by id


class BackwardStreams:
    """Switch the streams of a PretendGPU while backward runs, and let them wait for each other."""

    def __init__(self, gpu: HasStreams) -> None:
        self.gpu = gpu
        self._calls: list[_Call] = []  # a node may call backward: the last one runs
        self._unfinished: list[type[Node]] = []  # of the functions in Python whose forward has not returned

    # ---- in forward

    def note(self, tensors: Iterable[PretendTensor]) -> None:
        """Note the streams of the nodes that have made these tensors, and of those of the leaves right behind them."""
        for x in tensors:
            node = x.grad_fn
            if node is None or type(node) in self._unfinished or not _mark(node, x.made_in):
                continue
            node.register_hook(self._hand_on)
            for child, _ in node.next_functions:
                leaf: Any = getattr(child, "variable", None)  # a node that adds up the gradient of a leaf has one
                if child is not None and isinstance(leaf, PretendTensor) and leaf.block.on_device:
                    _mark(child, self._used_in(leaf, x.made_in))

    @contextmanager
    def unfinished(self, nodes: type[Node]) -> Iterator[None]:
        """Note no stream for a function's nodes within a `with`: torch saves their outputs before forward is over."""
        self._unfinished.append(nodes)
        try:
            yield
        finally:
            self._unfinished.pop()

    def _used_in(self, leaf: PretendTensor, stream: PretendStream | None) -> PretendStream:
        """Return the stream that was in use on a leaf's device when it was used to make something in a stream."""
        if stream is not None and stream.device == leaf.block.device:
            return stream
        return self.gpu.in_use[leaf.block.device.index]  # moved to another device: as far as we know

    # ---- in backward

    def look(self, tensors: Iterable[object] = ()) -> None:
        """Switch to the stream of the node that runs now, if backward does; `tensors` are what it works on."""
        task = torch._C._current_graph_task_id()
        if task != -1 and all(call.task != task for call in self._calls):
            self._begin(task)
        while self._calls and self._calls[-1].task != task:  # it has raised, or was called by the node that runs now
            self._leave(self._calls[-1])
        if not self._calls:
            return
        call = self._calls[-1]
        node = torch._C._current_autograd_node()
        if node is not call.node:
            self._enter(call, node)
        if call.is_over:
            for taker in [call.takers[id(x)] for x in tensors if id(x) in call.takers]:
                self._wait_and_use(call, taker)

    def _begin(self, task: int) -> None:
        gpu = self.gpu
        in_use = list(gpu.in_use)
        only_defaults = len(gpu.streams) == len(gpu.default_streams)  # then nobody has to wait
        began = [] if only_defaults else [stream.record_event() for stream in in_use]
        call = _Call(task, gpu.current_device, in_use, began)
        self._calls.append(call)
        engine: Any = torch.autograd.Variable._execution_engine
        engine.queue_callback(partial(self._end, call))

    def _enter(self, call: _Call, node: Node | None) -> None:
        call.node = node
        call.is_over = False
        call.takers.clear()
        stream = None if node is None else _stream_of(node)
        if node is None or stream is None:  # on the CPU, in the thread that called backward
            self.gpu.in_use[:] = call.in_use
            self.gpu.current_device = call.device
            return
        index = stream.device.index
        if node not in call.reached:  # backward begins here
            call.reached[node] = [] if stream is call.in_use[index] else [call.began[index]]
        self.gpu.in_use[:] = self.gpu.default_streams  # on a GPU, in the thread of that one
        self._wait_and_use(call, node)

    def _wait_and_use(self, call: _Call, node: Node) -> None:
        stream = self._wait(call, node)
        self.gpu.in_use[stream.device.index] = stream
        self.gpu.current_device = stream.device.index

    def _wait(self, call: _Call, node: Node) -> PretendStream:
        """Let the stream of a node wait for what was handed to it since it last did; return the stream."""
        stream = _stream_of(node)
        assert stream is not None
        for event in call.reached[node]:
            stream.wait_event(event)
        call.reached[node] = []
        return stream

    def _hand_on(self, made: Sequence[Tensor | None], _arrived: Sequence[Tensor | None]) -> None:
        """Note for the next nodes what they have to wait for: all that this one has launched, and it is through."""
        self.look()
        call = self._calls[-1]
        node = call.node
        assert node is not None
        call.is_over = True
        call.handed_on.add(node)
        for (child, _), grad in zip(node.next_functions, made, strict=True):
            taker = None if child is None else _stream_of(child)
            if child is None or taker is None or not isinstance(grad, PretendTensor):
                continue
            giver = _stream_of(node)
            if giver is None or giver.device != taker.device:
                giver = self.gpu.default_streams[taker.device.index]  # a copy between devices has let this one wait
            call.takers[id(grad)] = child
            to_wait_for = call.reached.setdefault(child, [])
            if taker is not giver:
                to_wait_for.append(giver.record_event())
                grad.block.users.add(taker.name)

    def _end(self, call: _Call) -> None:
        if call not in self._calls:
            return
        while call in self._calls:
            self._leave(self._calls[-1])
        last = [self._wait(call, node) for node in call.reached if node not in call.handed_on]
        for stream in dict.fromkeys(last):
            caller = call.in_use[stream.device.index]
            if caller is not stream:
                caller.wait_event(stream.record_event())

    def _leave(self, call: _Call) -> None:
        self._calls.remove(call)
        self.gpu.in_use[:] = call.in_use
        self.gpu.current_device = call.device


def _mark(node: Node, stream: PretendStream | None) -> bool:
    """Note the stream of a node, None for one on the CPU; return whether that is new."""
    known: Any = node.metadata
    if _STREAM in known:
        return False
    known[_STREAM] = stream
    return True


def _stream_of(node: Node) -> PretendStream | None:
    known: Any = node.metadata
    stream: PretendStream | None = known.get(_STREAM)
    return stream
