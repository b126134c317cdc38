"""What is particular about the checks of notebook 06; what all exercises have in common is in test_detectors."""

import pytest
import torch

from support import built
from support.kit.mistakes import edited
from support.n06 import checks as n06


def test_a_mistake_is_recognised_by_what_it_does_be_it_a_ring_or_a_hook_that_waits():
    def own(tensor, dist):  # the blocking ring, in other words
        world = dist.get_world_size()
        rank = dist.get_rank()
        for _ in range(world - 1):
            dist.send(torch.zeros(len(tensor.tensor_split(world)[0])), (rank + 1) % world)

    message = n06.check_ring(own, own).message
    assert "waits in send to rank" in message
    assert message.endswith("begin with isend, then receive, then wait.")

    class Waits(built.MyDDP):
        def arrived(self, bucket):
            super().arrived(bucket)
            for _, _, handle in self.sent:
                handle.wait()

    blocking = next(wrong for why, wrong in n06.check_ddp.mistakes.items() if "blocking" in why)
    assert n06.check_ddp(Waits).message == n06.check_ddp(blocking).message


def test_a_ring_that_sends_to_the_left_or_whose_tensor_is_short_is_right_too():
    def left(tensor, dist, first=1, add=True):
        rank = dist.get_rank()
        world = dist.get_world_size()
        chunks = tensor.tensor_split(world)
        for step in range(world - 1):
            sending = dist.isend(chunks[(rank + first + step) % world], (rank - 1) % world)
            arriving = chunks[(rank + first + 1 + step) % world]
            received = torch.empty_like(arriving)
            dist.recv(received, (rank + 1) % world)
            arriving.copy_(arriving + received if add else received)
            sending.wait()

    assert n06.check_ring(left, lambda tensor, dist: left(tensor, dist, first=0, add=False))


def nothing(tensor, dist):
    tensor.mul_(1)


def to_everyone(tensor, dist):
    rank = dist.get_rank()
    world = dist.get_world_size()
    chunks = tensor.tensor_split(world)
    sending = [dist.isend(chunks[rank], (rank + hop) % world) for hop in range(1, world)]
    for hop in range(1, world):
        dist.recv(chunks[(rank - hop) % world], (rank - hop) % world)
    for handle in sending:
        handle.wait()


def by_the_centre(tensor, dist):
    rank = dist.get_rank()
    received = torch.empty_like(tensor)
    others = range(1, dist.get_world_size())
    for other in others:
        if rank == 0:
            dist.recv(received, other)
            tensor += received
    if rank > 0:
        dist.send(tensor, 0)
        dist.recv(tensor, 0)
    for other in others if rank == 0 else ():
        dist.send(tensor, other)


def whole_tensors(tensor, dist):
    rank = dist.get_rank()
    world = dist.get_world_size()
    passing = tensor.clone()
    for _ in range(world - 1):
        sending = dist.isend(passing, (rank + 1) % world)
        received = torch.empty_like(tensor)
        dist.recv(received, (rank - 1) % world)
        sending.wait()
        tensor += received
        passing = received


@pytest.mark.parametrize(
    "halves, told",
    [
        (
            (built.reduce_scatter, to_everyone),
            "rank 0 to 1 and 2, rank 1 to 0 and 2, rank 2 to 0 and 1; in a ring rank 0",
        ),
        (
            (by_the_centre, nothing),
            "rank 0 to 1 and 2, rank 1 to 0, rank 2 to 0; in a ring rank 0 sends to rank 1 only",
        ),
        ((whole_tensors, nothing), "with 3 ranks and 6 values a rank sends 12: the two halves of a ring send 8"),
        (
            (edited(built.reduce_scatter, ("world - 1)", "world - 2)")), nothing),
            "It sends 1 time there; W − 1 is right.",
        ),
    ],
)
def test_right_sums_on_other_ways_than_a_ring_are_refused_and_the_way_is_told(halves, told):
    assert told in n06.check_ring(*halves).message


@pytest.mark.parametrize("change, told", [
    (("], None", "]"), "backward returns as much as forward takes"),
    ((".chunk(ctx.dist.get_world_size())[ctx.dist.get_rank()]", ""), "the part that belongs to its own points only"),
    (("torch.cat(parts)", "torch.cat([own, *(p for p in parts if not p.equal(own))])"), "its own stand first"),
])  # fmt: skip
def test_what_torch_says_of_a_backward_is_told_in_words(change, told):
    assert told in n06.check_gather(edited(built.Gather, change)).message


def test_who_begins_too_early_or_has_not_written_finish_is_told_so_and_a_load_that_looks_too_late():
    early = edited(built.MyDDP, ("if all(parameter.grad is not None for parameter in bucket)", "if True"))
    assert "ask first whether all of its bucket are" in n06.check_ddp(early).message
    late = edited(
        built.load,
        ("if zlib", "state = torch.load(io.BytesIO(content)); model.load_state_dict(state['model'])\n    if zlib"),
    )
    assert "only after it has changed model or optimizer" in n06.check_state(built.save, late).message
    begun = n06.check_ddp(type("MyDDP", (built.MyDDP,), {"finish": lambda self: None}))
    assert begun.status == "wrong"
    assert "is never waited for" in begun.message


@pytest.mark.parametrize("change, told", [
    (('open(unfinished, "wb")', 'open(unfinished, "xb")'), "after a kill has left an unfinished file, save raises"),
    (("    file.flush()", "    file.flush(); os.replace(unfinished, path); os.replace(path, unfinished)"),
     "is not there"),
    (("os.replace(unfinished, path)", "import shutil; shutil.move(unfinished, path)"), "on bit for bit"),
])  # fmt: skip
def test_a_save_is_judged_by_every_moment_of_it(change, told):
    assert told in n06.check_state(edited(built.save, change), built.load).message
