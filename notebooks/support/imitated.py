"""Imitated ranks, in threads, which a check can judge: nobody can go on, calls that do not match, a wait forgotten.

in_threads(function, W)   runs `function(dist)` on W threads; `dist` imitates torch.distributed, and notices what real
                          ranks would only hang of, or would get wrong numbers from
Imitation                 such a `dist`; World is what those of all ranks share
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from support.imitated_memory import (
    Expected,
    InTransit,
    all_listed,
    dtype_named,
    in_one_piece,
    same_bytes,
    sum_of,
    without_gaps,
    writing,
)
from support.imitated_world import World as World
from support.kit.raised import standing
from support.kit.threads import Aside, StuckError

PATIENCE = 20.0  # seconds for ranks in threads, whose work takes milliseconds
ENDLESS = 2_000  # calls of a rank; what runs here makes some hundred, and each holds a tensor


class Handle:
    """What isend, irecv and async_op=True return."""

    def __init__(self, owner: Imitation, what: str, finish: Callable[[], None]) -> None:
        self._owner = owner
        self._what = what
        self._finish = finish
        self._asked = False
        self._over = False  # and whoever asked was told so
        owner.world.unwaited[owner.number].append(what)

    def wait(self) -> bool:
        """Return when it is done."""
        begun = self._owner.world.unwaited[self._owner.number]
        if self._what in begun:
            begun.remove(self._what)
            self._finish()
        elif not self._over:
            self._owner.world.events.append((self._owner.number, "waited again"))
        return True

    def is_completed(self) -> bool:
        """Say whether it is done: never when first asked, since nothing need have arrived by then; afterwards wait."""
        if self._asked and not self._over:
            self.wait()
            self._over = True
        self._asked = True
        return self._over


class Imitation:
    """Imitate what notebooks use of torch.distributed, for one rank. A send waits for its receive, as gloo's does.

    number: this rank's number in the world. members: those who belong to its group, in the group's order; none: all.
    """

    ReduceOp = dist.ReduceOp
    group = dist.group

    def __init__(self, world: World, number: int, members: Sequence[int] = ()) -> None:
        self.world = world
        self.number = number
        self._members = tuple(members or range(world.size))
        self._calls = world.calls_among.setdefault(self._members, []) if members else world.calls
        self._count = 0
        self._begun = 0

    def __getattr__(self, name: str) -> NoReturn:
        """Name what there is instead of what is lacking."""
        calls = sorted(call for call in vars(Imitation) if call[0].islower() and call != "among")
        raise AttributeError(f"this imitation of torch.distributed has no {name}; it has {', '.join(calls)}")

    def among(self, members: Sequence[int]) -> Imitation:
        """Return the same for a group of its own: its rank 0 is the first member, messages and collectives are its."""
        return Imitation(self.world, self.number, members)

    def is_initialized(self) -> bool:
        """Return True: whoever has this `dist` is a rank."""
        return True

    def get_rank(self) -> int:
        """Return this rank's number in the group."""
        return self._members.index(self.number)

    def get_world_size(self) -> int:
        """Return how many ranks there are in the group."""
        return len(self._members)

    def isend(self, tensor: Tensor, dst: int) -> Handle:
        """Begin to send."""
        return self._send(tensor, dst, "isend")

    def send(self, tensor: Tensor, dst: int) -> None:
        """Send, and return when it has been received."""
        self._send(tensor, dst, "send").wait()

    def irecv(self, tensor: Tensor, src: int) -> Handle:
        """Begin to receive: whoever sends it may go on, though nobody has waited for it here yet."""
        source = self._peer(src)
        in_one_piece(tensor, "irecv")
        expected = Expected()
        line = (self._members, source, self.number)
        with self.world.changed:
            queue = self.world.messages.setdefault(line, deque())
            if queue:
                expected.take(queue.popleft())
            else:
                self.world.expected.setdefault(line, deque()).append(expected)
            self.world.changed.notify_all()

        def finish() -> None:
            with self.world.changed:
                self.world.wait(self.number, f"irecv from rank {src}", lambda: expected.sent is not None)
            assert expected.sent is not None
            self._write(tensor, expected.sent, src)

        return Handle(self, self._name(f"irecv from rank {src}"), finish)

    def recv(self, tensor: Tensor, src: int) -> None:
        """Receive into a tensor, and return when it is there. Raises ValueError for another size or dtype."""
        source = self._peer(src)
        in_one_piece(tensor, "recv")
        with self.world.changed:
            queue = self.world.messages.setdefault((self._members, source, self.number), deque())
            self.world.wait(self.number, f"recv from rank {src}", lambda: bool(queue))
            message = queue.popleft()
            self._write(tensor, message.tensor, src)
            message.taken = True
            self.world.changed.notify_all()

    def _write(self, tensor: Tensor, sent: Tensor, src: int) -> None:
        """Write what rank src has sent. Raises ValueError for another size or dtype."""
        if sent.numel() != tensor.numel():
            sizes = f"{tensor.numel()} values of rank {src}, which sends {sent.numel()}"
            raise ValueError(f"rank {self.get_rank()} receives {sizes}")
        if sent.dtype != tensor.dtype:
            raise ValueError(
                f"rank {self.get_rank()} receives into {dtype_named(tensor)} what rank {src} "
                f"sends as {dtype_named(sent)}: bytes arrive, and would be read as other numbers"
            )
        with writing(tensor):
            tensor.copy_(sent.view_as(tensor))

    def broadcast(
        self, tensor: Tensor, src: int, group: None = None, async_op: bool = False
    ) -> Handle | None:
        """Give every rank the tensor of one; with async_op when the handle's `wait()` has returned."""
        _need_all(group)
        given = self._collective("broadcast", tensor, src)

        def finish() -> None:
            with writing(tensor):
                tensor.copy_(given()[src])

        return self._begun_or_over(f"broadcast of {tensor.numel()} values", finish, async_op)

    def reduce(self, tensor: Tensor, dst: int, op: Any = dist.ReduceOp.SUM, group: None = None) -> None:
        """Give one rank the sum or mean of all tensors; nobody knows what the others' hold afterwards: NaN."""
        _need_all(group)
        _need_sum(op)
        without_gaps(tensor, "reduce")
        given = self._collective("reduce", tensor, dst)
        with writing(tensor):
            if self.get_rank() == dst:
                tensor.copy_(self._sum_or_mean(given(), tensor, op))
            elif tensor.is_floating_point():
                tensor.fill_(torch.nan)

    def gather(
        self, tensor: Tensor, gather_list: Sequence[Tensor] | None = None, dst: int = 0, group: None = None
    ) -> None:
        """Give one rank the tensors of all, into a list that it has made. Raises ValueError if they do not fit it."""
        _need_all(group)
        expected = self.get_world_size() if self.get_rank() == dst else 0
        filled = all_listed("gather", gather_list, tensor, expected)
        given = self._collective("gather", tensor, dst)
        parts = given() if filled else ()
        for own, part in zip(filled, parts, strict=True):
            with writing(own):
                own.copy_(part)

    def scatter(
        self, tensor: Tensor, scatter_list: Sequence[Tensor] | None = None, src: int = 0, group: None = None
    ) -> None:
        """Give each rank a tensor out of the list of one. Raises ValueError if that is not one for each."""
        _need_all(group)
        expected = self.get_world_size() if self.get_rank() == src else 0
        dealt = all_listed("scatter", scatter_list, tensor, expected)
        given = self._collective("scatter", tensor, src, held=[part.detach().clone() for part in dealt])
        with writing(tensor):
            tensor.copy_(given()[src][self.get_rank()])

    def all_reduce(
        self, tensor: Tensor, op: Any = dist.ReduceOp.SUM, group: None = None, async_op: bool = False
    ) -> Handle | None:
        """Give every rank the sum or mean of all tensors; with async_op when the handle's `wait()` has returned."""
        _need_all(group)
        _need_sum(op)
        without_gaps(tensor, "all_reduce")
        given = self._collective("all_reduce", tensor)
        begun = tensor.detach().clone()
        what = self._name(f"all_reduce of {tensor.numel()} values")

        def finish() -> None:
            self.world.events.append((self.number, "waited"))
            if not same_bytes(tensor, begun):  # real ranks would add up whatever stands there by then
                raise ValueError(
                    f"the tensor of {what} was written to before its handle's wait() had returned"
                )
            with writing(tensor):
                tensor.copy_(self._sum_or_mean(given(), tensor, op))

        handle = Handle(self, what, finish)
        if async_op:
            return handle
        handle.wait()
        return None

    def all_reduce_coalesced(
        self, tensors: Sequence[Tensor], op: Any = dist.ReduceOp.SUM, group: None = None
    ) -> None:
        """Give every rank the sums or means of all ranks' tensors, one by one."""
        for tensor in tensors:
            self.all_reduce(tensor, op, group)

    def reduce_scatter_tensor(
        self, output: Tensor, input: Tensor, op: Any = dist.ReduceOp.SUM, group: None = None
    ) -> None:
        """Give each rank its part of the sum or mean of all inputs. Raises ValueError for parts of another size."""
        if input.numel() != output.numel() * self.get_world_size():
            sizes = f"{input.numel()} values in {self.get_world_size()} parts of {output.numel()}"
            raise ValueError(f"reduce_scatter_tensor can't cut {sizes}")
        total = input.detach().clone()
        self.all_reduce(total, op, group)
        with writing(output):
            output.copy_(total.view(self.get_world_size(), -1)[self.get_rank()].view_as(output))

    def all_gather(
        self, tensor_list: Sequence[Tensor], tensor: Tensor, group: None = None, async_op: bool = False
    ) -> Handle | None:
        """Give every rank the tensors of all, into a list that it has made; with async_op as in all_reduce.

        Raises ValueError if they do not fit the list.
        """
        _need_all(group)
        all_listed("all_gather", tensor_list, tensor, self.get_world_size())
        given = self._collective("all_gather", tensor)

        def finish() -> None:
            for own, part in zip(tensor_list, given(), strict=True):
                with writing(own):
                    own.copy_(part)

        return self._begun_or_over(f"all_gather of {tensor.numel()} values", finish, async_op)

    def all_gather_into_tensor(self, output_tensor: Tensor, input_tensor: Tensor, group: None = None) -> None:
        """Give every rank the tensors of all, one behind the other in a tensor of that size."""
        self.all_gather(
            list(output_tensor.view(self.get_world_size(), *input_tensor.shape)), input_tensor, group
        )

    def all_gather_object(self, object_list: list[Any], obj: Any, group: None = None) -> None:
        """Give every rank a copy of what each has, in a list that it has made."""
        _need_all(group)
        given = self._collective("all_gather_object", torch.zeros(0), held=[copy.deepcopy(obj)])()
        object_list[:] = [copy.deepcopy(each) for [each] in given]

    def barrier(self, group: None = None) -> None:
        """Wait for all ranks."""
        _need_all(group)
        self._collective("barrier", torch.zeros(0))()

    def _peer(self, rank: int) -> int:
        """Return the number in the world of another rank of the group."""
        last = self.get_world_size() - 1
        if rank == self.get_rank():
            raise ValueError(f"rank {rank} sends to itself, or waits for a message of its own")
        if not 0 <= rank <= last:
            raise ValueError(f"there is no rank {rank}: ranks are 0..{last}")
        return self._members[rank]

    def _sum_or_mean(self, parts: Sequence[Tensor], tensor: Tensor, op: Any) -> Tensor:
        total = sum_of(parts, tensor)
        return total / self.get_world_size() if op == dist.ReduceOp.AVG else total

    def _begun_or_over(self, what: str, finish: Callable[[], None], async_op: bool) -> Handle | None:
        """Return a handle that finishes when it is waited for, or finish."""
        if async_op:
            return Handle(self, self._name(what), finish)
        finish()
        return None

    def _name(self, what: str) -> str:
        self._begun += 1
        _end_a_loop(self._begun, what)
        return f"{what} (its call {self._begun})"

    def _send(self, tensor: Tensor, dst: int, what: str) -> Handle:
        target = self._peer(dst)
        in_one_piece(tensor, what)
        world = self.world
        message = InTransit(tensor.detach())
        with world.changed:
            line = (self._members, self.number, target)
            awaited = world.expected.get(line)
            if awaited:
                awaited.popleft().take(message)
            else:
                world.messages.setdefault(line, deque()).append(message)
            world.sent[self.number] += tensor.numel()
            world.posted.append((self.number, target))
            world.changed.notify_all()

        begun = tensor.detach().clone()
        name = self._name(f"{what} to rank {dst}")

        def finish() -> None:
            with world.changed:
                world.wait(self.number, f"{what} to rank {dst}", lambda: message.taken)
            if not same_bytes(tensor, begun):  # a real rank might have sent whatever stood there by then
                raise ValueError(
                    f"the tensor of {name} was written to before its handle's wait() had returned"
                )

        return Handle(self, name, finish)

    def _collective(
        self, kind: str, tensor: Tensor, end: int | None = None, held: Any = None
    ) -> Callable[[], list[Any]]:
        """Join the group's next collective; return what waits for the others and gives what they hold, by rank.

        held: in place of the tensor.
        """
        world = self.world
        number = self._count
        _end_a_loop(number, kind)
        same = (tensor.numel(), dtype_named(tensor), end)
        with world.changed:
            self._count += 1
            world.events.append((self.number, kind))
            if number == len(self._calls):
                self._calls.append({})
            call = self._calls[number]
            for other, (theirs, what, _) in call.items():
                if (theirs, what) != (kind, same):
                    ranks = {
                        self.get_rank(): _call(kind, same),
                        self._members.index(other): _call(theirs, what),
                    }
                    low, high = sorted(ranks)  # the same sentence whoever came first
                    raise ValueError(
                        f"collective {number}: rank {low} is in {ranks[low]}, rank {high} in {ranks[high]}"
                    )
            call[self.number] = kind, same, tensor.detach().clone() if held is None else held
            world.changed.notify_all()

        def given() -> list[Any]:
            with world.changed:
                waits_in = f"{kind}, its collective {number}"
                world.wait(self.number, waits_in, lambda: len(call) == len(self._members))
            return [call[member][2] for member in self._members]

        return given


def _end_a_loop(calls: int, what: str) -> None:
    """Raise RuntimeError for a rank that calls for ever, before its calls fill the memory."""
    if calls >= ENDLESS:
        raise RuntimeError(
            f"{ENDLESS:,} calls of one rank, the last of them {what}: in a loop that does not end?"
        )


def _need_all(group: object) -> None:
    """Raise ValueError for a group that is not the one of all ranks."""
    if group is not None:
        raise ValueError(
            f"this imitation of torch.distributed knows the group of all ranks alone, not {group!r}"
        )


def _need_sum(op: object) -> None:
    """Raise ValueError for what is neither a sum nor a mean."""
    if op not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
        raise ValueError(f"this imitation of gloo sums and averages; not {op}")


def _call(kind: str, same: tuple[int, str, int | None]) -> str:
    """Name a collective as an error does; same: values, their dtype, and the rank from or to which they go."""
    size, dtype, end = same
    values = "" if kind in ("barrier", "all_gather_object") else f" of {size} {dtype} values"
    direction = "to" if kind in ("reduce", "gather") else "from"
    return f"{kind}{values}" + ("" if end is None else f" {direction} rank {end}")


def in_threads(function: Callable[[Any], Any], world_size: int) -> tuple[list[Any], World]:
    """Run `function(dist)` on so many imitated ranks; return their results, and the world with its counts.

    Raises what a rank raised, its own errors before the StuckError of those that waited for it; TimeoutError.
    """
    world = World(world_size)

    def live(rank: int) -> Any:
        try:
            return function(Imitation(world, rank))
        finally:
            world.end(rank)

    with Aside(*(partial(live, rank) for rank in range(world_size))) as aside:
        over = aside.over(PATIENCE)
        lines = filter(None, (standing(run.thread) for run in aside.runs))
        line = next((f" ({line})" for line in lines), "")
        world.close()
    if not over:
        raise TimeoutError(f"the ranks were not done after {PATIENCE:g} s{line}")
    errors = [run.error for run in aside.runs if run.error is not None]
    if errors:
        raise min(errors, key=lambda error: isinstance(error, StuckError))
    return [run.result for run in aside.runs], world
