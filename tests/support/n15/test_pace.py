"""A step of a pipeline takes as many ticks as its order needs: no rank keeps what another one waits for."""

from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import pytest

from lib.schedules import eager_one_f_one_b, gpipe, one_f_one_b, simulate
from support.kit.mistakes import edited
from support.kit.raised import Finding
from support.n15 import checks as n15
from support.n15.orders import pairs_of
from support.n15.pace import Listening, log_of, ticks_taken
from support.n15.solved import pipeline_step

_SENDS = "            dist.send(x.grad, before)\n"
_GOES_BACK = "    for x, y in kept:\n"


@pytest.mark.parametrize(
    "changes, took",
    [
        # the last rank goes back through all of them in one call, and rank 0 waits for it
        (
            (
                ("    kept, total = [], 0.0", "    kept, losses, total = [], [], 0.0"),
                ("            total += y.item()", "            losses.append(y)\n            total += y.item()"),
                (_GOES_BACK, "    if losses:\n        sum(losses).backward()\n" + _GOES_BACK),
                ("            y.backward()\n", "            pass\n"),
            ),
            "13 ticks, and 10",
        ),
        # a gradient goes back one micro-batch late
        (
            (
                (_GOES_BACK, "    late = []\n" + _GOES_BACK),
                (
                    _SENDS,
                    "            late.append(x.grad)\n"
                    "            if len(late) > 1:\n                dist.send(late.pop(0), before)\n"
                    "    for gradient in late:\n        dist.send(gradient, before)\n",
                ),
            ),
            "11 ticks, and 10",
        ),
        # rank 0 listens to all gradients before it goes back
        (
            (
                (
                    _GOES_BACK,
                    "    came = [torch.empty_like(y) for _, y in kept]\n"
                    "    if behind is not None:\n"
                    "        for gradient in came:\n            dist.recv(gradient, behind)\n" + _GOES_BACK,
                ),
                (
                    "            gradient = torch.empty_like(y)\n            dist.recv(gradient, behind)\n",
                    "            gradient = came.pop(0)\n",
                ),
            ),
            "13 ticks, and 10",
        ),
    ],
)
def test_a_rank_that_keeps_gradients_back_or_waits_for_all_of_them_is_told_the_ticks(changes, took):
    verdict = n15.check_pipeline_step(edited(pipeline_step, *changes))
    assert verdict.status == "wrong"
    assert took in verdict.message, verdict


def test_who_listens_early_and_waits_when_it_needs_the_gradient_loses_no_tick():
    early = edited(
        pipeline_step,
        (
            _GOES_BACK,
            "    came = [torch.empty_like(y) for _, y in kept]\n"
            "    coming = [dist.irecv(gradient, behind) for gradient in came if behind is not None]\n" + _GOES_BACK,
        ),
        (
            "            gradient = torch.empty_like(y)\n            dist.recv(gradient, behind)\n",
            "            gradient = came.pop(0)\n            coming.pop(0).wait()\n",
        ),
    )
    assert n15.check_pipeline_step(early), n15.check_pipeline_step(early)


def test_the_ticks_of_an_order_are_those_of_the_simulator():
    for make, m, n in ((gpipe, 4, 2), (gpipe, 3, 4), (one_f_one_b, 5, 3), (eager_one_f_one_b, 4, 3)):
        table = make(m, n)
        logs = [log_of(pairs_of(table, rank), rank, n) for rank in range(n)]
        assert ticks_taken(logs) == simulate(table, 1.0, 1.0).makespan
    with pytest.raises(ValueError, match="nobody sends"):
        ticks_taken([[("recv", 1)], []])


def test_a_handle_is_for_the_step_and_the_rank_that_got_it():
    dist = Mock()
    step = Listening(dist, [])
    first = step.isend(None, 1)
    second = step.irecv(None, 1)
    first.wait()
    with ThreadPoolExecutor(1) as other, pytest.raises(Finding, match="begun by another rank: something is kept"):
        other.submit(second.wait).result()
    step.end()
    with pytest.raises(Finding, match="begun in another step: something is kept between calls"):
        second.wait()
    dist.isend.return_value.wait.assert_called_once()
    dist.irecv.return_value.wait.assert_not_called()


def test_the_ticks_of_the_forwards_alone_tell_on_which_way_a_rank_was_late():
    there = [[("F", 0), ("F", 1), ("send", 1), ("send", 1)], [("recv", 0), ("F", 0), ("recv", 0), ("F", 1), ("B", 0)]]
    assert ticks_taken(there, "F") == 4
    assert ticks_taken(there) == 5
