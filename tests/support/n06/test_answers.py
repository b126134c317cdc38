"""Answers to 06 that readers have written, but for MyDDP: wrong ones that a check took, right ones of other kinds."""

from itertools import product

import pytest
import torch

from support import built
from support.kit.mistakes import edited
from support.n06 import checks as n06
from support.n06 import solved
from support.n06.drawn import told_apart

# ---- exercise 1


def takes_the_greater(tensor, dist):
    """Right behind a sum of positive numbers, where what is finished is greater than what is not."""
    rank = dist.get_rank()
    world = dist.get_world_size()
    chunks = tensor.tensor_split(world)
    for step in range(world - 1):
        sending = dist.isend(chunks[(rank - step) % world], (rank + 1) % world)
        arriving = chunks[(rank - 1 - step) % world]
        received = torch.empty_like(arriving)
        dist.recv(received, (rank - 1) % world)
        arriving.copy_(torch.maximum(arriving, received))
        sending.wait()


def both_halves(tensor, dist):
    built.reduce_scatter(tensor, dist)
    built.all_gather(tensor, dist)


def nothing(tensor, dist):
    tensor.mul_(1)


def ring_with_buffer(buffer):
    return edited(built.reduce_scatter, ("torch.empty_like(arriving)", buffer))


KEPT = edited(
    built.reduce_scatter,
    ("torch.empty_like(arriving)", "kept.setdefault((rank, step), torch.empty_like(arriving))"),
    names={"kept": {}},
)
THROUGH_DOUBLE = edited(
    built.reduce_scatter,
    ("chunks = tensor.tensor_split(world)", "wide = tensor.double()\n    chunks = wide.tensor_split(world)"),
    ("        sending.wait()", "        sending.wait()\n    tensor.copy_(wide)"),
)
WAITS_TWICE = edited(built.reduce_scatter, ("sending.wait()", "sending.wait()\n        sending.wait()"))
ASKS_TORCH = edited(built.reduce_scatter, ("dist.get_rank()", "torch.distributed.get_rank()"), names={"torch": torch})


@pytest.mark.parametrize(
    ("halves", "told"),
    [
        ((built.reduce_scatter, takes_the_greater), "all_gather alone"),
        ((both_halves, nothing), "all_gather alone"),
        ((ring_with_buffer("torch.empty(len(arriving))"), built.all_gather), "float32"),
        ((ring_with_buffer("torch.empty(len(arriving), dtype=torch.int64)"), built.all_gather), "int64"),
        ((ring_with_buffer("torch.empty(len(arriving), dtype=torch.float64)"), built.all_gather), "float64"),
        ((KEPT, built.all_gather), "4 values"),
        ((THROUGH_DOUBLE, built.all_gather), "int64"),
        ((WAITS_TWICE, built.all_gather), "waits twice for one handle"),
        ((ASKS_TORCH, built.all_gather), "asked of the dist that you are given"),
        ((edited(built.reduce_scatter, ("(rank + 1) % world", "rank")), built.all_gather), "sends to itself"),
        (
            (
                edited(built.reduce_scatter, ("arriving += received", "arriving.copy_((arriving.float() + received))")),
                built.all_gather,
            ),
            "it should be",
        ),
    ],
)
def test_halves_that_are_right_only_behind_each_other_or_for_one_dtype_are_refused(halves, told):
    message = n06.check_ring(*halves).message
    assert told in message


def adds_to_zeros(tensor, dist):
    """Right: whatever stood in the other chunks is wiped first, then what arrives is added."""
    rank = dist.get_rank()
    world = dist.get_world_size()
    chunks = tensor.tensor_split(world)
    for number, chunk in enumerate(chunks):
        if number != rank:
            chunk.zero_()
    for step in range(world - 1):
        sending = dist.isend(chunks[(rank - step) % world], (rank + 1) % world)
        arriving = chunks[(rank - 1 - step) % world]
        received = torch.empty_like(arriving)
        dist.recv(received, (rank - 1) % world)
        arriving += received
        sending.wait()


def wipes_what_it_has_sent(tensor, dist):
    """Right: of the other chunks nothing is promised after the first half."""
    rank = dist.get_rank()
    built.reduce_scatter(tensor, dist)
    for number, chunk in enumerate(tensor.tensor_split(dist.get_world_size())):
        if number != rank:
            chunk.zero_()


def skips_what_is_empty(tensor, dist):
    """Right, and sends less."""
    rank = dist.get_rank()
    world = dist.get_world_size()
    chunks = tensor.tensor_split(world)
    for step in range(world - 1):
        leaving = chunks[(rank - 1 - step) % world]
        arriving = chunks[(rank - 2 - step) % world]
        sending = dist.isend(leaving, (rank + 1) % world) if len(leaving) else None
        if len(arriving):
            received = torch.empty_like(arriving)
            dist.recv(received, (rank - 1) % world)
            arriving += received
        if sending:
            sending.wait()


@pytest.mark.parametrize(
    "halves",
    [
        (built.reduce_scatter, adds_to_zeros),
        (wipes_what_it_has_sent, built.all_gather),
        (skips_what_is_empty, built.all_gather),
    ],
)
def test_halves_that_do_more_than_they_must_are_right(halves):
    verdict = n06.check_ring(*halves)
    assert verdict, verdict.message
    assert "nobody sends more than 2 (W − 1) chunks" in verdict.message


def test_halves_that_never_receive_are_not_told_that_they_receive_too_late():
    sends = edited(
        built.reduce_scatter,
        ("        dist.recv(received, (rank - 1) % world)\n", ""),
    )
    message = n06.check_ring(sends, built.all_gather).message
    assert "What you have sent is waited for before anybody receives" in message


# ---- exercise 3


def test_a_weight_that_is_wrong_in_its_eighth_digit_is_told_in_digits_that_show_it():
    wrong = edited(solved.sharded_step, ("own.grad = ", "own.grad = (1 + 1e-7) * "))
    message = n06.check_shard(wrong).message
    got, due = (part.split()[0].rstrip(".;,") for part in (message.split(" is ")[1], message.split("has ")[1]))
    assert got != due


@pytest.mark.parametrize(
    ("got", "due", "told"),
    [
        (1.5, 2.0, ("1.5", "2")),
        (0.0355604812, 0.0355604801, ("0.035560481", "0.035560480")),
        (float("nan"), 1.0, ("nan", "1")),
        (0.1 + 0.2, 0.3, ("0.30000000000000004", "0.29999999999999999")),
    ],
)
def test_two_numbers_are_told_with_digits_that_part_them(got, due, told):
    assert told_apart(got, due) == told


def sums_weights(weights, gradient, own, optimizer, dist):
    """Wrong: it hands round by adding up, with all other chunks at zero."""
    rank = dist.get_rank()
    world = dist.get_world_size()
    built.reduce_scatter(gradient, dist)
    own.grad = gradient.tensor_split(world)[rank] / world
    optimizer.step()
    weights.zero_()
    weights.tensor_split(world)[rank].copy_(own.detach())
    built.reduce_scatter(weights, dist)
    built.all_gather(weights, dist)


def test_a_sharded_step_of_three_halves_is_told_so_whatever_it_sends_in_them():
    message = n06.check_shard(sums_weights).message
    assert "sends half as much again" in message
    assert "all-reduce" not in message


def straight_to_the_owners(weights, gradient, own, optimizer, dist, times=0):
    """Send chunks to their owners, and back so, in place of a ring: right if each message is waited for once."""
    rank = dist.get_rank()
    world = dist.get_world_size()
    others = [(rank + hop) % world for hop in range(1, world)]
    parts = gradient.tensor_split(world)
    sending = [dist.isend(parts[other], other) for other in others]
    total = parts[rank].clone()
    for other in others:
        received = torch.empty_like(total)
        dist.recv(received, other)
        total += received
    own.grad = total / world
    optimizer.step()
    chunks = weights.tensor_split(world)
    chunks[rank].copy_(own.detach())
    sending += [dist.isend(chunks[rank], other) for other in others]
    for other in others:
        dist.recv(chunks[other], other)
    for handle in sending * times:
        handle.wait()


@pytest.mark.parametrize(
    ("times", "told"),
    [(0, "is never waited for"), (1, "nobody sends more"), (2, "waits twice for one handle")],
)
def test_a_sharded_step_waits_once_for_what_it_sends(times, told):
    def step(*given):
        straight_to_the_owners(*given, times=times)

    verdict = n06.check_shard(step)
    assert told in verdict.message
    assert bool(verdict) == (times == 1)


def hands_round_by_the_centre(weights, gradient, own, optimizer, dist):
    rank = dist.get_rank()
    world = dist.get_world_size()
    built.reduce_scatter(gradient, dist)
    own.grad = gradient.tensor_split(world)[rank] / world
    optimizer.step()
    chunks = weights.tensor_split(world)
    chunks[rank].copy_(own.detach())
    for other in range(1, world):
        if rank == 0:
            dist.recv(chunks[other], other)
        elif rank == other:
            dist.send(chunks[rank], 0)
    for to, chunk in product(range(1, world), range(world)):
        if rank == 0 and to != chunk:
            dist.send(chunks[chunk], to)
        elif rank == to != chunk:
            dist.recv(chunks[chunk], 0)


def test_a_centre_is_told_a_number_that_two_halves_do_not_exceed():
    message = n06.check_shard(hands_round_by_the_centre).message
    assert "a rank sends 42 values; two halves send at most 36" in message


def test_who_writes_into_own_is_told_how_to_write():
    writes = edited(solved.sharded_step, ("    optimizer.step()", "    own.copy_(own)\n    optimizer.step()"))
    assert "write into own.detach()" in n06.check_shard(writes).message


# ---- exercise 4

ONE_DIST = edited(built.Gather, ("ctx.dist", "Gather.dist"))
ONE_WORLD = edited(
    built.Gather,
    ("ctx.dist = dist", "ctx.dist = dist\n        Gather.world = dist.get_world_size()"),
    ("ctx.dist.get_world_size()", "Gather.world"),
)
ONE_SHAPE = edited(
    built.Gather,
    ("ctx.dist = dist", "ctx.dist = dist\n        Gather.rows = len(own)"),
    (".chunk(ctx.dist.get_world_size())", ".split(Gather.rows)"),
)
FLOAT = edited(built.Gather, ("torch.empty_like(own)", "torch.empty(own.shape)"))


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (ONE_DIST, "two gathers"),
        (ONE_WORLD, "three gathers"),
        (ONE_SHAPE, "three gathers"),
        (FLOAT, "float32"),
    ],
)
def test_a_gather_that_keeps_its_state_on_the_class_or_knows_one_dtype_is_refused(answer, told):
    message = n06.check_gather(answer).message
    assert told in message


BY_ROWS = edited(
    built.Gather,
    ("ctx.dist = dist", "ctx.dist, ctx.rows = dist, len(own)"),
    (".chunk(ctx.dist.get_world_size())", ".split(ctx.rows)"),
)


TWO_AXES = edited(
    built.Gather,
    ("total.chunk(ctx.dist.get_world_size())", "total.view(ctx.dist.get_world_size(), -1, gradient.shape[1])"),
)


@pytest.mark.parametrize("answer", [BY_ROWS, TWO_AXES])
def test_a_gather_for_matrices_that_remembers_its_rows_or_counts_them_is_right(answer):
    verdict = n06.check_gather(answer)
    assert verdict, verdict.message


BY_VIEW = ("gradient.clone()", "gradient.clone().view(-1).view_as(gradient)")
BY_SLICES = ("ctx.dist.all_reduce(total)", "[ctx.dist.all_reduce(rows) for rows in total]")
BY_RING = ("ctx.dist.all_reduce(total)", "reduce_scatter(total, ctx.dist)")


@pytest.mark.parametrize("change", [BY_VIEW, BY_SLICES, BY_RING])
def test_a_gather_that_needs_a_gradient_in_rows_is_refused_and_is_told_how_it_lies(change):
    """Behind `torch.einsum("id,jd->ij", left, gathered)` a gradient lies column by column."""
    message = n06.check_gather(edited(built.Gather, change, names={"reduce_scatter": built.reduce_scatter})).message
    assert "a gradient that lies column by column" in message
    assert "flatten() puts it in rows" in message


def test_behind_an_einsum_a_gradient_lies_column_by_column():
    gathered = torch.ones(6, 3, requires_grad=True)
    seen = []
    gathered.register_hook(lambda gradient: seen.append(gradient.stride()))
    torch.einsum("id,jd->ij", torch.ones(4, 3), gathered).square().sum().backward()
    assert seen == [(1, 6)]


def test_a_gather_that_gives_out_one_tensor_twice_is_told_of_more_places_than_the_class():
    once = (
        "return torch.cat(parts)",
        "return kept.setdefault((own.shape, dist.get_rank(), len(parts)), torch.cat(parts))",
    )
    assert "or in a global" in n06.check_gather(edited(built.Gather, once, names={"kept": {}})).message


def test_a_gather_whose_sums_lie_in_one_tensor_for_all_calls_of_a_shape_is_refused():
    place = "ctx.dist.get_rank(), ctx.dist.get_world_size(), gradient.shape, gradient.dtype"
    kept = ("gradient.clone()", f"kept.setdefault(({place}), gradient.clone()).copy_(gradient)")
    message = n06.check_gather(edited(built.Gather, kept, names={"kept": {}})).message
    assert "three gathers under way" in message
    assert "in a global" in message


def test_a_ring_whose_sums_lie_in_a_cast_copy_is_not_told_of_a_sum_that_it_has_not():
    cast = edited(built.reduce_scatter, ("tensor.tensor_split", "tensor.float().tensor_split"))
    message = n06.check_ring(cast, built.all_gather).message
    assert "Your tensor is as it was" in message
    assert "a + b" not in message


# ---- what a real rank knows


def in_a_cell(thing, *changes):
    """Return an answer of the notebook, which uses what is not sent with it."""
    made = edited(thing, *changes, names={"hop": lambda number: number, "torch": torch})
    made.__module__ = "__main__"
    return made


@pytest.mark.parametrize("hop", ["hop", ""])
@pytest.mark.parametrize(
    ("check", "answers", "change"),
    [
        (n06.check_ring, (built.reduce_scatter, built.all_gather), ("rank + 1", "{}(rank + 1)")),
        (n06.check_ddp, (built.MyDDP,), ("src=0", "src={}(0)")),
        (n06.check_shard, (solved.sharded_step,), ("/ world", "/ {}(world)")),
        (n06.check_gather, (built.Gather,), ("gradient.clone()", "{}(gradient.clone())")),
    ],
)
def test_an_answer_of_a_cell_that_needs_what_is_outside_of_it_is_refused_here_and_not_by_the_real_ranks(
    check, answers, change, hop
):
    old, new = change
    verdict = check(*(in_a_cell(answer, (old, new.format(hop))) for answer in answers))
    if hop:
        assert "a real rank would not know hop" in verdict.message
    else:
        assert verdict, verdict.message
