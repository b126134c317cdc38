"""What a worker has sent in tensors can be received only while that worker is there (notebook 01)."""

import queue
from contextlib import suppress

import pytest

from support.n01 import checks as n01
from support.n01 import on_processes
from support.n01.solved import load_in_order, work

CLEAR_UP = "send_home(team, orders, results, missing)"
SEND_HOME = "[queue.put(None) for queue in orders]"


def clearing_up(lines):
    """Return the solution with another end."""
    return work, n01.edited(load_in_order, (CLEAR_UP, lines), names={"queue": queue})


IS_RAISED = "                raise error\n"
LEAVES_TOO_SOON = {
    "behind an error None goes out before what is ordered is fetched": (
        work,
        n01._load((IS_RAISED, f"                {SEND_HOME}\n{IS_RAISED}")),
    ),
    "results are fetched while anybody is there": clearing_up(f"""{SEND_HOME}
        while any(w.is_alive() for w in team):
            try:
                results.get(timeout=.01)
            except queue.Empty:
                pass
        [w.join() for w in team]"""),
}
WHEN_THE_LISTS_END = (
    work,
    n01._load(
        (
            "            hand_out(1)\n",
            f"            hand_out(1)\n            if number + workers * prefetch == len(batches):\n"
            f"                {SEND_HOME}\n",
        )
    ),
)


@pytest.mark.costly
@pytest.mark.ranks
@pytest.mark.parametrize("answer", LEAVES_TOO_SOON.values(), ids=LEAVES_TOO_SOON)
def test_a_worker_that_leaves_before_its_tensors_are_fetched_is_told_so(answer):
    verdict = n01.check_loader(*answer)
    assert verdict.status == "wrong"
    assert [said for said in n01.check_loader.mistakes if said in verdict.message] == [on_processes.GONE]


@pytest.mark.ranks
@pytest.mark.parametrize("check", [n01.check_order, n01.check_loader])
@pytest.mark.costly
def test_a_worker_that_is_sent_home_when_the_lists_end_is_told_so(check):
    verdict = check(*WHEN_THE_LISTS_END)
    assert verdict.status == "wrong"
    assert [said for said in check.mistakes if said in verdict.message] == [on_processes.GONE]


@pytest.mark.ranks
def test_whoever_goes_on_behind_a_tensor_that_is_gone_is_right():
    """Nobody wanted it, and nothing hangs."""
    answer = n01.edited(
        load_in_order,
        (
            CLEAR_UP,
            f"""{SEND_HOME}
        for _ in missing:
            with suppress(OSError):
                results.get()
        [worker.join() for worker in team]""",
        ),
        names={"suppress": suppress},
    )
    assert n01.check_loader(work, answer).status == "right"
