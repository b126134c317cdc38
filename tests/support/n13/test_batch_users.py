"""Exercise 3 of notebook 13 and a user of several streams: overlap and the host's waits are theirs as well."""

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


@pytest.mark.parametrize(
    "says, edits",
    [
        (
            ELSEWHERE + "the host stands still until all is computed.",
            ((FETCHES, "        if user is not last:\n            last.synchronize()\n" + FETCHES),),
        ),
        (
            ELSEWHERE + "the host stands still until F4 is done, the step just launched.",
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
