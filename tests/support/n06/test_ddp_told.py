"""What the check of MyDDP in notebook 06 tells of answers that slip or send other messages."""

import pytest

from support import built, imitated
from support.kit.mistakes import edited
from support.kit.raised import InCaseError
from support.n06 import checks as n06
from support.n06.ddp_trials import fault_of_ddp

_SENT = "self.sent.append((bucket, flat, self.dist.all_reduce(flat, async_op=True)))"


@pytest.mark.parametrize(
    "slip", [("trained[::-1], limits", "trained.reverse(), limits"), (_SENT, f"self.sent = {_SENT}")]
)
def test_a_none_that_is_no_gradient_is_not_taken_for_one(slip):
    message = n06.check_ddp(edited(built.MyDDP, slip)).message
    assert "'NoneType' object" in message
    assert "gradient" not in message


class FindsABucketByShape(built.MyDDP):
    """Of two parameters of one shape it knows the bucket of the last; in the chain both lie in one."""

    def __init__(self, module, dist, limits):
        super().__init__(module, dist, limits)
        self.place = {parameter.shape: n for n, bucket in enumerate(self.waiting) for parameter in bucket}

    def send(self):
        if all(self.place[parameter.shape] == len(self.sent) for bucket in self.waiting[:1] for parameter in bucket):
            super().send()


def test_a_ddp_that_shares_nothing_between_models_is_not_told_that_it_does():
    verdict = n06.check_ddp(FindsABucketByShape)
    assert verdict.status == "wrong"
    assert "two models" not in verdict.message


def test_a_ddp_that_keeps_its_messages_on_the_dist_is_refused_where_two_models_have_the_same():
    message = n06.check_ddp(edited(built.MyDDP, ("self.sent", "self.dist.sent"))).message
    assert "two models in one process, over the same dist" in message


def test_a_ddp_that_broadcasts_its_buckets_is_not_told_that_it_sends_nothing():
    sent = "self.dist.broadcast(flat, src=0)"
    slip = ("self.dist.all_reduce(flat, async_op=True)", sent), ("handle.wait()", "pass")
    message = n06.check_ddp(edited(built.MyDDP, *slip)).message
    assert "all-reduce" in message
    assert "sent" not in message


def test_a_ddp_whose_broadcasts_are_under_way_at_the_same_time_is_right():
    answer = edited(
        built.MyDDP,
        ("dist.broadcast(tensor.detach(), src=0)", "begun.append(dist.broadcast(tensor.detach(), 0, async_op=True))"),
        ("        for tensor in", "        begun = []\n        for tensor in"),
        ("        trained = [", "        for handle in begun:\n            handle.wait()\n        trained = ["),
    )
    verdict = n06.check_ddp(answer)
    assert verdict, verdict.message


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


def test_a_ddp_that_sends_one_bucket_for_ever_is_stopped_and_told_its_line():
    answer = edited(built.MyDDP, ("self.waiting.pop(0)", "self.waiting[0]"))
    assert "a loop that does not end? (in send, line" in n06.check_ddp(answer).message


class NeverLeavesItsLoop(built.MyDDP):
    def send(self):
        while any(parameter.grad is None for parameter in self.waiting[0]):
            pass


def test_a_ddp_whose_hook_never_ends_is_waited_for_once(monkeypatch):
    monkeypatch.setattr(imitated, "PATIENCE", 0.1)
    with pytest.raises(InCaseError) as caught:
        fault_of_ddp(NeverLeavesItsLoop)
    assert (caught.value.case, type(caught.value.error)) == ("on 1 rank", TimeoutError)
