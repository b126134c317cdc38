"""Imitated ranks notice what real ones would hang of; real ranks stay, and end when one of them dies."""

import os
import time
from itertools import product
from pathlib import Path
from types import FunctionType

import pytest
import torch

from support import built
from support.kit.source import source_of, write_module
from support.ranks import Ranks, StuckError, in_threads, unknown_to_a_rank


def shift(dist, send="isend"):
    rank = dist.get_rank()
    world = dist.get_world_size()
    sending = getattr(dist, send)(torch.full((2,), float(rank)), (rank + 1) % world)
    received = torch.empty(2)
    dist.recv(received, (rank - 1) % world)
    if sending:
        sending.wait()
    return received[0].item()


def test_messages_arrive_in_order_and_are_counted_and_it_is_noted_when_a_sum_is_waited_for():
    results, world = in_threads(shift, 3)
    assert results == [2, 0, 1]
    assert world.sent == {0: 2, 1: 2, 2: 2}
    assert not any(world.unwaited.values())
    for name in ("isend", "irecv"):
        _, world = in_threads(lambda dist: getattr(dist, name)(torch.ones(1), 1 - dist.get_rank()), 2)  # noqa: B023
        assert [begun[0].split(" (")[0] for begun in world.unwaited.values()] == [
            f"{name} {'to' if name == 'isend' else 'from'} rank {other}" for other in (1, 0)
        ]

    def early_and_late(dist):
        dist.all_reduce(torch.ones(1))
        handle = dist.all_reduce(torch.ones(1), async_op=True)
        dist.barrier()
        handle.wait()

    _, world = in_threads(early_and_late, 1)
    assert [what for _, what in world.events] == ["all_reduce", "waited", "all_reduce", "barrier", "waited"]


def test_who_asks_until_a_message_is_there_need_not_wait_and_who_asks_once_has_not_waited():
    def asks(dist, times):
        total = torch.ones(1)
        handle = dist.all_reduce(total, async_op=True)
        answers = [handle.is_completed() for _ in range(times)]
        return answers, total.item(), handle

    for times, answers, total in ((1, [False], 1.0), (3, [False, True, True], 2.0)):
        results, world = in_threads(lambda dist: asks(dist, times)[:2], 2)  # noqa: B023
        assert results == [(answers, total)] * 2
        assert all(map(bool, world.unwaited.values())) == (times == 1)
    _, world = in_threads(lambda dist: asks(dist, 2)[2].wait(), 2)
    assert [what for _, what in world.events].count("waited again") == 0


def test_nobody_waits_for_ever():
    with pytest.raises(StuckError, match="rank 0 waits in send to rank 1, rank 1 waits in send to rank 0"):
        in_threads(lambda dist: shift(dist, "send"), 2)
    with pytest.raises(StuckError, match="rank 0 waits in recv from rank 1, rank 1 has ended"):
        in_threads(lambda dist: dist.get_rank() == 1 or dist.recv(torch.empty(1), 1), 2)
    with pytest.raises(KeyError):  # the error of a rank, before the wait of its peer
        in_threads(lambda dist: {}["x"] if dist.get_rank() else dist.barrier(), 2)


@pytest.mark.parametrize(
    "call, words",
    [
        (
            lambda dist: dist.all_reduce(torch.ones(2 + dist.get_rank())),
            "rank 0 is in all_reduce of 2 float32 values, rank 1 in all_reduce of 3 float32 values",
        ),
        (
            lambda dist: dist.barrier() if dist.get_rank() else dist.all_reduce(torch.ones(2)),
            "collective 0: rank . is in",
        ),
        (lambda dist: dist.recv(torch.ones(1), 5), "there is no rank 5: ranks are 0..1"),
        (lambda dist: dist.all_gather([], torch.ones(1)), "needs a list of 2 tensors, not 0"),
        (lambda dist: dist.gather(torch.ones(1)), "gather needs a list of 2 tensors, not 0"),
        (
            lambda dist: dist.scatter(torch.ones(1), [torch.ones(1)] * 2 * (1 - dist.get_rank()) or [torch.ones(1)]),
            "scatter needs a list of 0 tensors, not 1",
        ),
        (
            lambda dist: dist.all_reduce(torch.ones(1), torch.distributed.ReduceOp.MAX),
            "this imitation .* sums and averages",
        ),
        (
            lambda dist: dist.reduce(torch.ones(2), dist.get_rank()),
            "rank 0 is in reduce of 2 float32 values to rank 0, rank 1 in reduce of 2 float32 values to rank 1",
        ),
        (lambda dist: dist.reduce(torch.ones(4)[::2], 0), "a view with gaps"),
        (
            lambda dist: dist.send(torch.ones(3), 1) if dist.get_rank() == 0 else dist.recv(torch.ones(2), 0),
            "receives 2 values of rank 0, which sends 3",
        ),
        (
            lambda dist: dist.send(torch.arange(3), 1) if dist.get_rank() == 0 else dist.recv(torch.ones(3), 0),
            "rank 1 receives into float32 what rank 0 sends as int64",
        ),
        (lambda dist: dist.isend(torch.ones(1), dist.get_rank()), "rank . sends to itself"),
        (lambda dist: dist.isend(torch.ones(4)[::2], 1 - dist.get_rank()), "isend of a view with gaps"),
        (lambda dist: dist.all_reduce(torch.ones(4)[::2]), "a view with gaps"),
        (
            lambda dist: dist.all_reduce(torch.ones(2, dtype=torch.float64 if dist.get_rank() else torch.float32)),
            "rank 0 is in all_reduce of 2 float32 values, rank 1 in all_reduce of 2 float64 values",
        ),
        (
            lambda dist: dist.all_gather([torch.ones(2)] * 2, torch.arange(2)),
            r"tensor 0 of the list is \[2\] in float32, yours is \[2\] in int64",
        ),
    ],
)
def test_calls_that_do_not_match_are_refused(call, words):
    with pytest.raises(ValueError, match=words):
        in_threads(call, 2)


@pytest.mark.parametrize(
    "call",
    [
        lambda dist: dist.isend(torch.ones(1), 1 - dist.get_rank()),
        lambda dist: dist.all_reduce(torch.ones(1), async_op=True),
        lambda dist: dist.barrier(),
    ],
)
def test_a_loop_that_calls_for_ever_is_stopped_before_it_fills_the_memory(call):
    def for_ever(dist):
        while True:
            call(dist)

    with pytest.raises(RuntimeError, match="in a loop that does not end"):
        in_threads(for_ever, 2)


def test_a_group_has_numbers_messages_and_collectives_of_its_own():
    def twice(dist):
        among = dist.among([2, 0]) if dist.get_rank() != 1 else None
        total = torch.tensor([float(dist.get_rank())])
        if among is None:
            dist.all_reduce(total)
            return total.item()
        theirs = total.clone()
        among.all_reduce(theirs)
        dist.all_reduce(total)
        return total.item(), theirs.item(), among.get_rank(), shift(among)

    assert in_threads(twice, 3)[0] == [(3, 2, 1, 0), 3, (3, 2, 0, 1)]
    with pytest.raises(StuckError, match="rank 0 waits in barrier, its collective 0, rank 1 waits in recv from rank 1"):
        in_threads(lambda dist: dist.among([1, 0]).recv(torch.ones(1), 1) if dist.get_rank() else dist.barrier(), 2)


def collectives(dist):
    assert dist.is_initialized()
    rank = dist.get_rank()
    parts = [torch.empty(2) for _ in range(dist.get_world_size())]
    own = torch.tensor([1.0, 10.0]) * (rank + 1)
    given = torch.full((2,), float(rank))
    dist.all_gather(tensor_list=parts, tensor=own)
    dist.all_gather(parts, own, async_op=True).wait()
    dist.broadcast(given, src=1, async_op=True).wait()
    handle = dist.all_reduce(own, async_op=True)
    handle.wait()
    dist.barrier()
    total = torch.tensor([rank + 1.0])
    dist.reduce(total, 1)
    dist.broadcast(total, src=1)
    return torch.cat([*parts, given, total, own]).tolist()


def dies(dist):
    if dist.get_rank() == 1:
        os.kill(os.getpid(), 9)
    dist.barrier()


def annotated(path: Path) -> Path:
    return path


def lacks(dist):
    return absent  # noqa: F821


def fails(dist):
    if dist.get_rank() == 1:
        raise ValueError("a parrot")


def fails_while_others_wait(dist):
    if dist.get_rank() == 1:
        raise ValueError("a parrot")
    dist.barrier()


def sleeps(dist):
    time.sleep(60)


def asked(dist, number):
    return number, dist.get_rank()


def called_with(dist, work, number):
    return work(dist, number)


@pytest.mark.costly
@pytest.mark.ranks
def test_a_function_may_be_an_argument_and_is_called_by_the_arguments_name_whatever_its_own_is():
    of_a_cell = FunctionType(asked.__code__, globals())
    of_a_cell.__module__ = "__main__"  # of a notebook: no other process can import it
    ranks = Ranks(2)
    try:
        assert ranks.run(called_with, work=of_a_cell, number=7) == [(7, 0), (7, 1)]
    finally:
        ranks.close()


@pytest.mark.costly
@pytest.mark.ranks
def test_after_a_failure_real_ranks_are_gone_and_the_next_call_has_its_own_results():
    ranks = Ranks(2)
    try:
        with pytest.raises(RuntimeError, match="rank 1: ValueError: a parrot"):
            ranks.run(fails_while_others_wait)
        assert ranks._processes == []
        assert ranks.run(asked, number=5) == [(5, 0), (5, 1)]
        old = [process.pid for process in ranks._processes]
        with pytest.raises(TimeoutError, match="rank 0, rank 1 not done after 0.5 s; all ranks were ended"):
            ranks.run(sleeps, patience=0.5)
        assert ranks._processes == []
        for pid in old:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
        assert ranks.run(asked, number=6) == [(6, 0), (6, 1)]
    finally:
        ranks.close()


@pytest.mark.ranks
def test_real_ranks_stay_do_what_imitated_ones_do_and_start_anew_after_a_death():
    ranks = Ranks(2)
    try:
        assert ranks.run(collectives) == in_threads(collectives, 2)[0]
        known = [process.pid for process in ranks._processes]
        with pytest.raises(RuntimeError, match=r"rank 1: ValueError: a parrot"):
            ranks.run(fails)
        with pytest.raises(RuntimeError, match="'absent' is not defined .*; a rank knows torch, nn, F"):
            ranks.run(lacks)
        assert ranks.run(collectives)[0][-2:] == [3, 30]
        assert known == [p.pid for p in ranks._processes]
        with pytest.raises(RuntimeError, match="rank 1 was killed by SIGKILL"):
            ranks.run(dies)
        assert ranks._processes == []
    finally:
        ranks.close()


def keeps_a_global(dist: Path):
    global kept
    kept = dist.get_rank()
    return kept


def needs_in_a_lambda(dist):
    return (lambda: product(dist))()


def needs_as_a_default(dist, work=asked):
    return work(dist, 0)


def test_what_a_text_needs_is_unknown_to_a_rank_but_not_what_it_makes_itself_or_what_is_sent_too():
    assert unknown_to_a_rank(keeps_a_global) == ""
    assert unknown_to_a_rank(needs_in_a_lambda) == "product"
    assert unknown_to_a_rank(needs_as_a_default) == "asked"
    assert unknown_to_a_rank(needs_as_a_default, "asked") == ""


@torch.no_grad()
def wrapped(dist):
    return dist.get_rank()


def test_the_text_of_functions_and_classes_is_found(tmp_path):
    assert source_of(fails).startswith("def fails(dist):")
    assert "staticmethod" in source_of(built.Gather)
    assert source_of(wrapped).startswith("@torch.no_grad()\ndef wrapped(dist):")
    with pytest.raises(ValueError, match="no text of <lambda>"):
        source_of(lambda: 0)
    with pytest.raises(ValueError, match="no text of dies"):
        source_of(torch.no_grad()(dies))  # a call wraps it, and its text would leave that out
    write_module(tmp_path / "state.py", fails, dies, annotated)
    space = {}
    exec((tmp_path / "state.py").read_text(), space)
    assert callable(space["dies"])
    assert space["annotated"](3) == 3, "a module of theirs has no Path, and needs none"


def waits_in_vain(dist):
    if dist.get_rank() == 0:
        try:
            dist.barrier()
        except RuntimeError as error:
            return "Timed out" in str(error)
    return None


@pytest.mark.costly
@pytest.mark.ranks
def test_ranks_start_anew_after_a_collective_has_timed_out_though_they_caught_its_error(monkeypatch):
    monkeypatch.setattr("support.ranks.COLLECTIVE", 1.0)
    ranks = Ranks(2)
    try:
        assert ranks.run(waits_in_vain) == [True, None]
        assert ranks.run(collectives) == in_threads(collectives, 2)[0]
    finally:
        ranks.close()
