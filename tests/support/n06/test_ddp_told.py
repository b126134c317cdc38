"""What the check of MyDDP in notebook 06 tells of answers that slip or send other messages."""

import pytest

from support import built
from support.kit.mistakes import edited
from support.n06 import checks as n06

_SENT = "self.sent.append((bucket, flat, self.dist.all_reduce(flat, async_op=True)))"


@pytest.mark.parametrize(
    "slip", [("trained[::-1], limits", "trained.reverse(), limits"), (_SENT, f"self.sent = {_SENT}")]
)
def test_a_none_that_is_no_gradient_is_not_taken_for_one(slip):
    message = n06.check_ddp(edited(built.MyDDP, slip)).message
    assert "'NoneType' object" in message
    assert "gradient" not in message


class SendsNothingAlone(built.MyDDP):
    def send(self):
        if self.dist.get_world_size() > 1:
            super().send()


class OneBucketLater(built.MyDDP):
    def finish(self):
        super().finish()
        self.waiting = [sum(self.waiting, [])]


class WaitsAgain(built.MyDDP):
    handles = ()

    def send(self):
        super().send()
        if not self.waiting:
            self.handles = [*self.handles, *(handle for _, _, handle in self.sent)]
            for handle in self.handles:
                handle.wait()


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (SendsNothingAlone, "on 1 rank: right gradients, but on rank 0 no bucket makes an all-reduce in step 0."),
        (OneBucketLater, "the messages of step 1 have [94] values; in_buckets makes [15, 44, 35]."),
        (WaitsAgain, "waits for a sum 12 times in step 2, and 6 times in step 0."),
    ],
)
def test_what_is_told_of_messages_is_counted_step_by_step(answer, told):
    assert told in n06.check_ddp(answer).message
