"""What is particular about the checks of notebook 06; what all exercises have in common is in test_exercises."""

import torch

from support import built
from support.n06 import checks as n06


def test_a_mistake_is_recognised_by_what_it_does_not_by_who_it_is():
    def own(tensor, dist):  # the blocking ring, in other words
        world, rank = dist.get_world_size(), dist.get_rank()
        for _ in range(world - 1):
            dist.send(torch.zeros(len(tensor.tensor_split(world)[0])), (rank + 1) % world)

    message = n06.check_ring(own, own).message
    assert "waits in send to rank" in message and message.endswith("begin with isend, then receive, then wait.")


def test_a_ring_that_sends_to_the_left_or_whose_tensor_is_short_is_right_too():
    def left(tensor, dist, first=1, add=True):
        rank, world = dist.get_rank(), dist.get_world_size()
        chunks = tensor.tensor_split(world)
        for step in range(world - 1):
            sending = dist.isend(chunks[(rank + first + step) % world], (rank - 1) % world)
            arriving = chunks[(rank + first + 1 + step) % world]
            received = torch.empty_like(arriving)
            dist.recv(received, (rank + 1) % world)
            arriving.copy_(arriving + received if add else received)
            sending.wait()

    assert n06.check_ring(left, lambda tensor, dist: left(tensor, dist, first=0, add=False))


def test_a_hook_that_waits_for_what_it_has_begun_stops_backward_as_a_blocking_one_does():
    class Waits(built.MyDDP):
        def arrived(self, bucket):
            super().arrived(bucket)
            for _, _, handle in self.sent:
                handle.wait()

    blocking = next(wrong for why, wrong in n06.check_ddp.mistakes.items() if "blocking" in why)
    assert n06.check_ddp(Waits).message == n06.check_ddp(blocking).message


def test_who_has_written_the_hooks_and_not_yet_finish_has_begun():
    begun = n06.check_ddp(type("MyDDP", (built.MyDDP,), {"finish": lambda self: None}))
    assert begun.status == "wrong" and "is never waited for" in begun.message
