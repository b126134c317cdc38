"""How a loader is tried where batches are empty or exceptions, samplers change, and clearing up counts wrongly."""

from itertools import islice

import pytest

from support.n01 import alone, trials
from support.n01 import checks as n01
from support.n01.solved import OneProcessLoader, load_in_order, work

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


class BeginsAnewAtItsEnd(OneProcessLoader):
    """The loader is its own iterator, and takes a new pass when the one before is used up."""

    place = None

    def __iter__(self):
        return self

    def __next__(self):
        self.place = self.place or super().__iter__()
        for batch in self.place:
            return batch
        self.place = None
        raise StopIteration


class CountsWhenItIsMade(OneProcessLoader):
    """Each loop is as long as the pass that the sampler had before the first."""

    def __init__(self, dataset, batches, collate):
        super().__init__(dataset, batches, collate)
        self.count = len(batches)

    def __iter__(self):
        return islice(super().__iter__(), self.count)


def test_a_loop_inside_a_loop_that_never_ends_is_told_so():
    verdict = n01.check_alone(BeginsAnewAtItsEnd)
    assert verdict.status == "wrong"
    assert verdict.message.endswith(f"gives more than 9 pairs, due are 9. {alone.ONE_FOR_ALL}")


def test_a_loop_has_as_many_batches_as_the_sampler_has_lists_then():
    verdict = n01.check_alone(CountsWhenItIsMade)
    assert verdict.status == "wrong"
    assert verdict.message.endswith(f"then the sampler has 5 lists, and 3 batches came. {alone.STALE}")


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
