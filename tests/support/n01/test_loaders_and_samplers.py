"""How a loader with workers is tried where batches are empty or exceptions, and where clearing up counts wrongly."""

import pytest

from support.n01 import checks as n01
from support.n01 import trials
from support.n01.solved import load_in_order, work

CLEAR_UP = "send_home(team, orders, results, missing)"
LISTS = "        for number, indices in islice(todo, count):\n"
AT_THE_START = "    todo = enumerate(batches)\n"
load = n01._load
worker = n01._work


def of_loads(*changes):
    return work, load(*changes)


SKIPS = of_loads((LISTS, LISTS + "            if not indices:\n                continue\n"))
ENDS = of_loads((LISTS, LISTS + "            if not indices:\n                break\n"))
GOES_HOME = worker(("        try:\n", "        if not indices:\n            return\n        try:\n")), load_in_order
SENDS_NOTHING = (
    worker(("        try:\n", "        if not indices:\n            continue\n        try:\n")),
    load_in_order,
)
ASKS_BEHIND_THE_START = of_loads(
    (AT_THE_START.rstrip(), "    pass"), ("    early = dict", AT_THE_START + "    early = dict")
)
RAISES_WHAT_CAME = of_loads(
    (
        "            yield batch",
        "            if isinstance(batch, Exception):\n                raise batch\n            yield batch",
    )
)


@pytest.mark.parametrize("check", [n01.check_order, n01.check_loader])
@pytest.mark.parametrize("answer", [SKIPS, ENDS, GOES_HOME, SENDS_NOTHING])
def test_whoever_leaves_out_an_empty_list_is_told_of_it(check, answer):
    verdict = check(*answer)
    assert verdict.status == "wrong"
    assert verdict.message.endswith(trials.EMPTY_LIST)


def test_a_sampler_that_raises_before_its_first_list_leaves_no_worker_behind():
    verdict = n01.check_loader(*ASKS_BEHIND_THE_START)
    assert verdict.status == "wrong"
    assert verdict.message.endswith(f"2 workers still there. {trials.NO_LIST}")


def test_a_batch_that_is_an_exception_is_handed_over():
    verdict = n01.check_loader(*RAISES_WHAT_CAME)
    assert verdict.status == "wrong"
    assert verdict.message.endswith(trials.NOTHING)


@pytest.mark.parametrize(
    "still_to_come",
    ["range(len(missing) + len(early) + 1)", "[*missing, number]"],
)
@pytest.mark.parametrize("home_first", [True, False])
def test_whoever_waits_for_what_has_arrived_is_not_told_that_a_worker_ended(still_to_come, home_first):
    fetches = f"[results.get() for _ in {still_to_come}]"
    lines = f"{fetches}; send_home(team, orders, results, ())"
    if home_first:
        lines = f"[queue.put(None) for queue in orders]; {fetches}; [worker.join() for worker in team]"
    verdict = n01.check_loader(*of_loads((CLEAR_UP, lines)))
    assert verdict.status == "wrong"
    assert verdict.message.endswith(trials.TOO_MANY)


def test_what_waits_for_ever_only_behind_an_error_is_told_so():
    fetches = "[results.get() for _ in [*missing, *([0] * (error is not None))]]"
    lines = f"[queue.put(None) for queue in orders]; {fetches}; [worker.join() for worker in team]"
    verdict = n01.check_loader(*of_loads(("    try:\n", "    error = None\n    try:\n"), (CLEAR_UP, lines)))
    assert verdict.status == "wrong"
    assert trials.GOES_HOME not in verdict.message
    assert verdict.message.endswith(trials.TOO_MANY)
