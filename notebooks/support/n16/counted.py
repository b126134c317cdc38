"""What a job of notebook 16 does beside its result: on so many rows, in so many pieces, in this order.

Each function here runs in a rank in place of the job, and calls it by its name. What a job may do in several ways is
counted where all of them come through, in torch. Whoever takes another way is not counted: then there is no number.
"""

from __future__ import annotations

import gc
import inspect
import threading
import time
import weakref
from typing import ClassVar

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional as F

# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="assignment, var-annotated"
# ruff: noqa: D103


def with_rows_counted(dist, name, **given):
    rows = 0

    def count(module, inputs):
        nonlocal rows
        if isinstance(module, nn.Linear) and torch.is_grad_enabled():
            rows += len(inputs[0])

    handle = nn.modules.module.register_module_forward_pre_hook(count)
    try:
        return globals()[name](dist, **given), rows
    finally:
        handle.remove()


def with_tokens_counted(dist, name, **given):
    whole = F.cross_entropy
    tokens = []  # of each loss
    until = []  # so many losses had begun when its backward came; 0 as long as it has not come

    def counted(scores, target, *others, **named):
        loss = whole(scores, target, *others, **named)
        if loss.requires_grad:
            number = len(tokens)
            tokens.append(int((target != named.get("ignore_index", -100)).sum()))
            until.append(0)

            def note(gradient):
                until[number] = len(tokens)
                if gradient.ndim:  # a number for each place, of which some may be left out
                    tokens[number] = int(gradient.count_nonzero())

            loss.register_hook(note)
        return loss

    F.cross_entropy = counted
    try:
        got = globals()[name](dist, **given)
    finally:
        F.cross_entropy = whole
    # With each loss, those before it whose backward is still to come.
    at_once = [
        many + sum(other for other, end in zip(tokens[:number], until, strict=False) if end > number)
        for number, many in enumerate(tokens)
    ]
    return got, at_once, sum(many for many, end in zip(tokens, until, strict=True) if end)


def with_first_weights(dist, name, **given):
    from unittest import mock  # a rank gets the text of this function alone

    from torch.optim.optimizer import register_optimizer_step_pre_hook  # torch.optim hides its module

    first = []
    seeds = []
    whole = torch.manual_seed

    def noted(seed):
        seeds.append(int(seed))
        return whole(seed)

    class Noted(torch.Generator):
        def manual_seed(self, seed):
            seeds.append(int(seed))
            return super().manual_seed(seed)

    def keep(optimizer, *_):
        if not first:
            first.extend(
                each.detach().clone() for group in optimizer.param_groups for each in group["params"]
            )

    handle = register_optimizer_step_pre_hook(keep)
    try:
        with mock.patch.multiple(torch, manual_seed=noted, Generator=Noted):
            return globals()[name](dist, **given), first, seeds
    finally:
        handle.remove()


def with_largest_noted(dist, name, **given):
    whole = dist.all_reduce
    told = []

    def noted(tensor, op=dist.ReduceOp.SUM, *others, **named):
        if op == dist.ReduceOp.MAX and tensor.numel() == 1:
            told.append(tensor.item())
        return whole(tensor, op, *others, **named)

    dist.all_reduce = noted
    try:
        return globals()[name](dist, **given), told
    finally:
        dist.all_reduce = whole


def with_tasks_noted(dist, name, layers, **given):
    from support.n16.counted import note_messages  # a rank gets the text of this function alone

    tasks = []

    def note(module, inputs, out):
        if out.requires_grad:
            number = sum(kind == "F" for kind, _ in tasks)
            tasks.append(("F", number))
            out.register_hook(lambda _: tasks.append(("B", number)))

    handles = [layer.register_forward_hook(note) for layer in layers]
    put_back = note_messages(dist, tasks)
    try:
        return globals()[name](dist, layers=layers, **given), tasks
    finally:
        put_back()
        for handle in handles:
            handle.remove()


def with_outputs_counted(dist, name, layers, **given):
    from support.n16.counted import OutputsKept

    kept = OutputsKept(dist.get_world_size() - dist.get_rank() + 1)
    handles = [layer.register_forward_hook(kept.note) for layer in layers]
    try:
        # The ranks get the text of this one, too.
        return *with_tasks_noted(dist, name, layers, **given), (kept.most, kept.messages)
    finally:
        for handle in handles:
            handle.remove()


class OutputsKept:
    """How many outputs, and how many handles of messages, a rank keeps when another output is there, at most."""

    def __init__(self, allowed):
        self.allowed = allowed
        self.most = 0
        self.messages = 0
        self.alive = []

    def note(self, module, inputs, out):
        """Count this one and those that are still there."""
        if not out.requires_grad:
            return
        self.alive.append(StorageWeakRef(out.untyped_storage()))
        self._forget()
        if len(self.alive) > self.allowed:
            gc.collect()
            time.sleep(0.05)  # a thread that has sent one has it a little longer
            self._forget()
        self.most = max(self.most, len(self.alive))
        self.messages = max(self.messages, len(MessageSent.kept))

    def _forget(self):
        self.alive = [each for each in self.alive if not each.expired()]


class MessageSent:
    """What isend returns, here kept alive by us, so that a message whose handle is dropped does not hang its peer."""

    kept: ClassVar = weakref.WeakSet()

    def __init__(self, work, to, dropped):
        self.kept.add(self)
        self.work = work
        self.to = to
        self.dropped = dropped
        self.waited = False

    def wait(self, *timeout):
        """Wait as the work does."""
        self.waited = True
        return self.work.wait(*timeout)

    def is_completed(self):
        """Ask the work."""
        self.waited = self.waited or self.work.is_completed()
        return self.work.is_completed()

    def __getattr__(self, asked):
        return getattr(self.work, asked)

    def __del__(self):
        if not self.waited:
            self.dropped.append((self.to, self.work))


#: Collectives of which no rank returns before all have come.
MEETINGS = ("barrier", "monitored_barrier", "all_reduce", "all_gather")


def noting_meetings(collective, tasks):
    """Return the collective, which notes itself where it is one of all ranks that is waited for."""
    names = inspect.signature(collective)

    def noted(*inputs, **named):
        given = names.bind(*inputs, **named).arguments
        if given.get("group") is None and not given.get("async_op"):
            tasks.append(("W", sum(kind == "W" for kind, _ in tasks)))
        return collective(*inputs, **named)

    return noted


def note_messages(dist, tasks):
    """Note each message that the main thread sends, and each meeting of all; return what ends the noting.

    A message is ("S", peer), and all come through isend. A handle that nobody keeps is told where the next message
    begins. A meeting is ("W", its number).
    """
    inside = dist.distributed_c10d
    begin = {name: getattr(inside, name) for name in ("isend", "irecv", *MEETINGS)}
    dropped = []

    def kept():
        if dropped:
            raise RuntimeError(
                "what isend has returned is gone before anybody has waited for it: keep it and wait for it, or the "
                "message may never leave"
            )

    def isend(tensor, dst=None, group=None, tag=0, group_dst=None):
        kept()
        to = group_dst if dst is None else dst
        if threading.current_thread() is threading.main_thread():
            tasks.append(("S", to))
        work = begin["isend"](tensor, dst, group, tag, group_dst)
        return None if work is None else MessageSent(work, to, dropped)

    def irecv(*tensor, **named):
        kept()
        return begin["irecv"](*tensor, **named)

    def have(functions):
        for owner in (dist, inside):
            for name, function in functions.items():
                setattr(owner, name, function)

    meetings = {name: noting_meetings(begin[name], tasks) for name in MEETINGS}
    have({"isend": isend, "irecv": irecv, **meetings})

    def put_back():
        have(begin)
        if any(to < dist.get_rank() for to, _ in dropped):  # of a forward, its gradient says that it has come
            kept()

    return put_back


def with_looks_counted(dist, name, **given):
    looks = []
    words = len(given["embedding"])
    places = (  # F.softmax comes through the first
        (torch.Tensor, "softmax"),
        (torch, "softmax"),
        (F, "scaled_dot_product_attention"),
    )
    kept = [getattr(owner, function) for owner, function in places]

    def counting(function):
        def count(*inputs, **named):
            if function is kept[-1]:
                keys = inputs[1] if len(inputs) > 1 else named["key"]
                looks.append(keys.shape[-2])
            else:
                scores = inputs[0] if inputs else named["input"]
                if scores.shape[-1] != words:  # else it is a loss
                    looks.append(scores.shape[-1])
            return function(*inputs, **named)

        return count

    for (owner, function), whole in zip(places, kept, strict=True):
        setattr(owner, function, counting(whole))
    try:
        return globals()[name](dist, **given), looks
    finally:
        for (owner, function), whole in zip(places, kept, strict=True):
            setattr(owner, function, whole)
