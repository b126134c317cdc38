"""Exercise 3 of notebook 13 at its edges: blocks at worst, the end of the epoch, pools, and a host that asks."""

from functools import partial
from itertools import chain

import pytest

from support.kit.mistakes import edited
from support.n13 import checks as n13
from support.n13.prefetchers import by_order, without_a_bound
from support.n13.prefetching import SlowestGPU, User, blocks_of


def bounded(batches, gpu):
    """Copy one ahead; the host waits for the step before the last."""
    side = gpu.new_stream()
    used = []
    ready = None
    for x in chain(batches, [None]):
        if len(used) > 1:
            used.pop(0).synchronize()
        with gpu.use_stream(side):
            coming = None if x is None else (x.to(gpu.device, non_blocking=True), side.record_event())
        if ready is not None:
            gpu.current_stream().wait_event(ready[1])
            ready[0].record_stream(gpu.current_stream())
            yield ready[0]
            used.append(gpu.current_stream().record_event())
        ready = coming
        del coming


def in_turn(batches, gpu, count):
    """Take no memory for a batch: so many buffers, and the copy waits until its buffer has been read."""
    side = gpu.new_stream("copy")
    buffers = []
    used = []
    ready = None
    try:
        for i, x in enumerate(chain(batches, [None])):
            coming = None
            if x is not None:
                with gpu.use_stream(side):
                    if len(buffers) < count:
                        buffers.append(gpu.empty_like(x))
                    if i >= count:
                        side.wait_event(used[i - count])
                    buffers[i % count].copy_(x, non_blocking=True)
                    coming = buffers[i % count], side.record_event()
            if ready is not None:
                gpu.current_stream().wait_event(ready[1])
                yield ready[0]
                used.append(gpu.current_stream().record_event())
            ready = coming
    finally:
        side.wait_stream(gpu.current_stream())


WAITS = "        if len(used) > 1:\n            used.pop(0).synchronize()\n"
RECORDS = "            ready[0].record_stream(gpu.current_stream())\n"
ASKS = WAITS.replace(
    "used.pop(0).synchronize()\n", "event = used.pop(0)\n            while not event.query():\n                pass\n"
)
MAKES = "    side = gpu.new_stream()\n"


@pytest.mark.parametrize("right", [bounded, edited(bounded, (WAITS, ASKS)), partial(in_turn, count=4), by_order])
def test_four_blocks_are_enough_however_they_are_had_and_a_host_may_ask_until_a_step_is_done(right):
    verdict = n13.check_prefetch(right)
    assert verdict.status == "right", verdict.message


@pytest.mark.parametrize(
    "says, wrong",
    [
        ("may take 5 blocks", edited(bounded, ("len(used) > 1", "len(used) > 2"))),
        ("the host has waited for 8", edited(bounded, ("len(used) > 1", "len(used) > 2"))),
        (
            "`record_stream` holds a dropped block back",
            edited(
                without_a_bound,
                (
                    "            yield ready[0]\n",
                    "            yield ready[0]\n            side.wait_stream(gpu.current_stream())\n",
                ),
            ),
        ),
        ("the host has waited for 0", without_a_bound),
        (
            "They are copied in 12 streams",
            edited(bounded, (MAKES, ""), (WAITS, WAITS + "        side = gpu.new_stream()\n")),
        ),
        (
            "behind the last batch its next owner",
            edited(bounded, (RECORDS, f"            if coming is not None:\n    {RECORDS}")),
        ),
        ("a list or variable of yours keeps", partial(in_turn, count=6)),
    ],
)
def test_a_prefetcher_that_takes_more_or_leaves_the_last_batch_is_told_what_is_true_of_it(says, wrong):
    verdict = n13.check_prefetch(wrong)
    assert verdict.status == "wrong", verdict.message
    assert says in verdict.message, verdict.message


def test_behind_a_drop_stands_a_mark_of_the_allocators_own():
    user = User("unlucky")
    assert isinstance(user.gpu, SlowestGPU)
    assert blocks_of(user.use(bounded, 40).operations) == 4
    assert blocks_of(User().use(bounded, 40).operations) == 3
    assert blocks_of(User("unlucky").use(by_order, 40).operations) == 2
