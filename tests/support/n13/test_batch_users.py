"""Exercise 3 of notebook 13 and a user of several streams: overlap and the host's waits are theirs as well."""

from itertools import chain, count

import pytest

from support.kit.mistakes import edited
from support.n13 import checks as n13


def other(batches, gpu):
    """Copy one ahead, and remember in which stream the user of the batch before was."""
    side = gpu.new_stream("copy")
    loader = iter(batches)
    used = []
    last = gpu.current_stream()

    def fetch():
        for x in loader:
            with gpu.use_stream(side):
                return x.to(gpu.device, non_blocking=True), side.record_event()
        return None

    ready = fetch()
    while ready is not None:
        batch, copied = ready
        user = gpu.current_stream()
        if len(used) > 1:
            used.pop(0).synchronize()
        ready = fetch()
        user.wait_event(copied)
        batch.record_stream(user)
        last = user
        yield batch
        del batch
        used.append(user.record_event())
    del used, last


FETCHES = "        ready = fetch()\n        user.wait_event(copied)\n"
LAST = "    del used, last"
AT_THE_END = "    for event in used:\n        event.synchronize()\n"
ELSEWHERE = "if its user asks for each batch in another stream, "


@pytest.mark.parametrize("behind", [LAST, AT_THE_END, "    gpu.synchronize()"])
def test_the_host_may_wait_when_the_epoch_has_ended(behind):
    verdict = n13.check_prefetch(edited(other, (LAST, behind)))
    assert verdict.status == "right", verdict.message


def test_batches_that_are_taken_for_an_iterator_are_refused():
    nexts = ("        for x in loader:\n", "        while (x := next(loader, None)) is not None:\n")
    assert n13.check_prefetch(edited(other, nexts))
    said = n13.check_prefetch(edited(other, nexts, ("iter(batches)", "batches"))).message
    assert "object is not an iterator" in said


@pytest.mark.parametrize(
    "says, edits",
    [
        (
            ELSEWHERE + "the host stands still until F0 is done, the step just launched.",
            ((FETCHES, "        if user is not last:\n            last.synchronize()\n" + FETCHES),),
        ),
        (
            ELSEWHERE + "the host stands still until F3 is done, the step just launched.",
            (
                (
                    FETCHES,
                    "        if user is not last and len(gpu.streams) > 6:\n            last.synchronize()\n" + FETCHES,
                ),
            ),
        ),
        (
            ELSEWHERE + "F1 waits for the copy of batch 2, too.",
            (("user.wait_event(copied)", "user.wait_event(copied) if user is last else user.wait_stream(side)"),),
        ),
        (
            ELSEWHERE + "the host stands still until copy of batch 1 (copy) is done.",
            ((FETCHES, "        if user is not last:\n            copied.synchronize()\n" + FETCHES),),
        ),
        (
            "with 6 batches F0 waits for the copy of batch 1, too. Wait for the event behind its own copy",
            (("user.wait_event(copied)", "user.wait_event(side.record_event())"),),
        ),
    ],
)
def test_what_a_change_of_stream_costs_is_told(says, edits):
    verdict = n13.check_prefetch(edited(other, *edits))
    assert verdict.status == "wrong", verdict.message
    assert says in verdict.message, verdict.message


def test_a_host_that_lags_now_and_then_is_told_of_a_copy_where_it_does():
    every_other = edited(other, ("used.pop(0).synchronize()", "used[0].synchronize()\n            used.clear()"))
    message = n13.check_prefetch(every_other).message
    assert "When copy 10 takes its memory, 9 steps are launched, and the host has waited for 7." in message, message


def first_where_it_is_used(batches, gpu):
    """Copy the first batch in the stream of its step, as there is nothing to overlap yet; hand back by order."""
    side = gpu.new_stream("copy")
    ready = None
    for x in chain(batches, [None]):
        place = gpu.current_stream() if ready is None else side
        with gpu.use_stream(place):
            coming = None if x is None else (x.to(gpu.device, non_blocking=True), place.record_event())
        if ready is not None:
            user = gpu.current_stream()
            user.wait_event(ready[1])
            try:
                yield ready[0]
            finally:
                side.wait_stream(user)
        ready = coming
        del coming


def test_only_copies_behind_the_first_can_overlap_a_step():
    verdict = n13.check_prefetch(first_where_it_is_used)
    assert verdict.status == "right", verdict.message


def a_stream_for_each(batches, gpu):
    """Copy into two buffers in turn, each time in a new stream, and wait for nobody who reads them."""
    buffers = []
    ready = None
    for i, x in enumerate(chain(batches, [None])):
        coming = None
        if x is not None:
            side = gpu.new_stream("copy")
            with gpu.use_stream(side):
                if len(buffers) < 2:
                    buffers.append(gpu.empty_like(x))
                buffers[i % 2].copy_(x, non_blocking=True)
            coming = buffers[i % 2], side.record_event()
        if ready is not None:
            gpu.current_stream().wait_event(ready[1])
            yield ready[0]
        ready = coming


def test_where_two_copies_race_nothing_is_said_of_who_uses_the_batch():
    message = n13.check_prefetch(a_stream_for_each).message
    assert "nothing lets copy of batch 2 wait for copy of batch 0. Nobody has given the block back" in message, message


RECORDS = "        batch.record_stream(user)\n"
DROPS = "        del batch\n"


@pytest.mark.parametrize("which, late", [("batch 0", "not used"), ("the last batch", "ready is None")])
def test_whoever_leaves_behind_the_first_or_the_last_batch_lets_nobody_come_too_early(which, late):
    too_late = edited(
        other,
        (RECORDS, f"        if not ({late}):\n    {RECORDS}"),
        (DROPS, f"        if {late}:\n    {RECORDS}{DROPS}"),
    )
    verdict = n13.check_prefetch(too_late)
    assert verdict.status == "wrong", verdict.message
    assert f"if its user leaves the loop behind {which}, its next owner (copy)" in verdict.message


def test_who_made_the_loop_is_not_who_asks_for_the_first_batch():
    def for_who_made_it(batches, gpu):
        maker = gpu.current_stream()
        turn = count()
        return n13.one_ahead(
            batches,
            gpu,
            lambda user, side, y, copied: (
                (user if next(turn) else maker).wait_event(copied),
                y.record_stream(user),
            ),
        )

    verdict = n13.check_prefetch(for_who_made_it)
    assert verdict.status == "wrong", verdict.message
    assert ELSEWHERE + "F0 (another) reads A while copy of batch 0 (copy) may still write" in verdict.message


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_generator_that_goes_on_when_its_user_has_left_is_refused():
    goes_on = edited(
        other,
        ("        yield batch\n", "        try:\n            yield batch\n        except:\n            pass\n"),
    )
    verdict = n13.check_prefetch(goes_on)
    assert verdict.status == "wrong", verdict.message
    assert "When its user has left the loop, a generator may yield no more." in verdict.message


def test_a_part_of_each_batch_is_not_the_batch():
    verdict = n13.check_prefetch(edited(other, ("yield batch\n", "yield batch[:1]\n")))
    assert verdict.status == "wrong", verdict.message
    assert "item 0 has shape [1], its batch [4]" in verdict.message


def test_where_the_step_before_the_last_races_too_nothing_is_said_of_the_last_yield():
    held = edited(
        other,
        ("    used = []\n", "    used = []\n    held = []\n"),
        (
            "            used.pop(0).synchronize()\n",
            "            side.wait_event(used.pop(0))\n            del held[0]\n",
        ),
        ("        batch.record_stream(user)\n", "        held.append(batch)\n"),
    )
    message = n13.check_prefetch(held).message
    assert "if its user leaves the loop behind batch 1" in message
    assert message.endswith("nothing lets its next owner wait for F0."), message


COPIES = "                return x.to(gpu.device, non_blocking=True), side.record_event()\n"


@pytest.mark.parametrize("most, status", [(99, "wrong"), (4, "right")])
def test_pinned_batches_are_collected_by_who_never_lets_go_of_them(most, status):
    keeps = edited(
        other,
        ("    used = []\n", "    used = []\n    kept = []\n"),
        (COPIES, f"                kept.append(x)\n                del kept[:-{most}]\n{COPIES}"),
    )
    verdict = n13.check_prefetch(keeps)
    assert verdict.status == status, verdict.message
    assert (status == "wrong") == ("batches of the loader are still held" in verdict.message), verdict.message
