"""What is particular about the checks of notebook 13; what all exercises have in common is in test_exercises."""

from functools import partial
from itertools import islice

import pytest

from lib.streams import DevicePrefetcher, find_races
from lib.streams.races import happens_before, waits
from support.n13 import checks as n13


def test_the_list_lacks_one_wait_that_is_a_race_and_one_more_orders_the_two():
    assert len(find_races(n13.damaged_list())) == 1 and len(waits(n13.damaged_list())) == 2 * 5 + 2 * 3 - 1
    assert n13.check_missing(["f3", "d1"])
    operations = n13.damaged_list()
    labels = {op.label: number for number, op in enumerate(operations) if op.kind == "launch"}
    repaired = n13.with_wait(operations, labels["D1"], labels["F3"])
    assert find_races(repaired) == [] and len(happens_before(repaired)) == len(happens_before(operations))


@pytest.mark.parametrize(
    "answer, says",
    [
        (("D1", "F3"), "Who must wait"),
        (("F1", "C1"), "already waits"),
        (("F4", "F3"), "already waits"),
        (("C4", "D0"), "already waits"),
        (("F3", "D2"), "more than it must"),
        (("D1", "C3"), "launched after"),
        (("C3", "D0"), "no conflict"),
        (("F9", "C1"), "there is no 'F9'"),
        ("F3", "no pair"),
        (3, "no pair"),
    ],
)
def test_a_wrong_pair_is_told_why(answer, says):
    verdict = n13.check_missing(answer)
    assert verdict.status == "wrong" and says in verdict.message


def test_every_pair_of_labels_gets_a_verdict_and_only_one_is_right():
    labels = [f"{kind}{i}" for kind in "CFD" for i in range(5)]
    verdicts = [n13.check_missing((a, b)) for a in labels for b in labels]
    assert sum(map(bool, verdicts)) == 1 and {verdict.status for verdict in verdicts} == {"right", "wrong"}


@pytest.mark.parametrize("wrong", n13.check_chunks.mistakes.values())
def test_a_wrong_count_is_told_its_case_and_its_time(wrong):
    message = n13.check_chunks(wrong).message
    assert "for copy_in" in message and "ticks" in message


@pytest.mark.parametrize(
    "wrong, says",
    [
        (lambda *x: 0, "no number of chunks"),
        (lambda *x: 3.5, "no number of chunks"),
    ],
)
def test_what_is_no_count_is_told(wrong, says):
    verdict = n13.check_chunks(wrong)
    assert verdict.status == "wrong" and says in verdict.message


def record(gpu, batch):
    batch.record_stream(gpu.current_stream())


def but(before):
    """Return the right prefetcher, but with its own before(gpu, side, batch, event) that a batch is handed over."""
    return lambda batches, gpu: n13.one_ahead(batches, gpu, before)


def wait_before_the_next_copy(batches, gpu):
    side, ready = gpu.new_stream("copy"), None
    for x in [*batches, None]:
        if ready is not None:
            gpu.current_stream().wait_stream(side)
            record(gpu, ready)
        with gpu.use_stream(side):
            coming = None if x is None else x.to("cuda", non_blocking=True)
        if ready is not None:
            yield ready
        ready = coming
        del coming


def nothing_ahead(batches, gpu):
    side = gpu.new_stream("copy")
    for x in batches:
        with gpu.use_stream(side):
            y = x.to("cuda", non_blocking=True)
        gpu.current_stream().wait_stream(side)
        record(gpu, y)
        yield y


def test_a_wait_for_the_stream_before_the_next_copy_is_as_good_as_one_for_an_event():
    assert n13.check_prefetch(wait_before_the_next_copy)


def bounded(keep, batches, gpu):
    """Let the host wait until all steps but the latest `keep` are done."""
    used = []
    for batch in n13.one_ahead(batches, gpu):
        yield batch
        del batch
        used.append(gpu.current_stream().record_event())
        if len(used) > keep:
            used.pop(0).synchronize()


@pytest.mark.parametrize("depth", [2, 3, 9])
def test_a_host_that_waits_for_an_older_step_is_no_fault_as_in_our_own_prefetcher(depth):
    assert n13.check_prefetch(lambda batches, gpu: iter(DevicePrefetcher(batches, gpu, depth)))
    assert n13.check_prefetch(partial(bounded, depth - 1))


@pytest.mark.parametrize(
    "wrong, says",
    [
        (partial(bounded, 0), "stands still until all is computed"),
        (but(lambda gpu, side, batch, event: record(gpu, batch)), "must wait for the copy"),
        (
            but(lambda gpu, side, batch, event: gpu.current_stream().wait_event(event)),
            "record_stream tells the allocator",
        ),
        (
            but(lambda gpu, side, batch, _: (gpu.current_stream().wait_stream(side), record(gpu, batch))),
            "wait_stream waits for all",
        ),
        (
            but(lambda gpu, _, batch, event: (event.synchronize(), record(gpu, batch))),
            "stands still until copy of batch 0",
        ),
        (lambda batches, gpu: islice(n13.one_ahead(batches, gpu), len(batches) - 1), "batch 5 is lost"),
        (nothing_ahead, "nothing is prefetched"),
        (lambda batches, gpu: iter([x.to("cuda", non_blocking=True) for x in batches]), "nothing overlaps"),
        (lambda batches, gpu: list(batches), "not a tensor on the device"),
        (lambda batches, gpu: 3, "TypeError"),
        (lambda batches, gpu: reversed(list(n13.one_ahead(batches, gpu))), "in order, got 5, 4"),
        (lambda batches, gpu: n13.one_ahead(batches * 2, gpu), "there is no end"),
    ],
)
def test_famous_wrong_prefetchers_are_told_what_is_wrong(wrong, says):
    verdict = n13.check_prefetch(wrong)
    assert verdict.status == "wrong" and says in verdict.message, verdict.message
