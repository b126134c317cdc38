"""Notebook 13's checks: the reference passes, a stub is neutral, famous wrong answers are told what is wrong."""

from __future__ import annotations

import pytest
from support.n13 import checks as answers
from support.n13 import checks as n13

from lib.streams import find_races
from lib.streams.races import happens_before, waits


@pytest.mark.parametrize(
    "guess, truth",
    [
        (n13.guess_wait_stream, 15),
        (n13.guess_half, 250),
        (n13.guess_step, 6),
        (n13.guess_waits, 0),
        (n13.guess_chunks, 12),
    ],
)
def test_a_guess_is_only_commented_on(guess, truth):
    assert "that is it" in guess(truth).message
    for other in (None, "x", truth + 40):
        assert guess(other).status in ("open", "note")
        assert "that is it" not in guess(other).message


# ---- exercise 1


def test_the_list_lacks_one_wait_and_that_is_a_race():
    assert len(find_races(n13.damaged_list())) == 1
    assert len(waits(n13.damaged_list())) == 2 * 5 + 2 * 3 - 1


@pytest.mark.parametrize("answer", [None, ...])
def test_an_untouched_answer_is_open(answer):
    assert n13.check_missing(answer).status == "open"


@pytest.mark.parametrize("answer", [("F3", "D1"), ["f3", "d1"]])
def test_the_missing_wait_is_found(answer):
    assert n13.check_missing(answer)


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
    assert sum(map(bool, verdicts)) == 1
    assert {verdict.status for verdict in verdicts} == {"right", "wrong"}


def test_one_more_wait_orders_the_two():
    operations = n13.damaged_list()
    labels = {op.label: number for number, op in enumerate(operations) if op.kind == "launch"}
    repaired = n13.with_wait(operations, labels["D1"], labels["F3"])
    assert find_races(repaired) == []
    assert len(happens_before(repaired)) == len(happens_before(operations))


# ---- exercise 2


def stub(copy_in, compute, copy_out, overhead): ...


def test_the_formula_is_near_enough_everywhere():
    assert n13.check_chunks(answers.true_chunks)
    assert n13.check_chunks(stub).status == "open"


@pytest.mark.parametrize("why, wrong", n13.MISTAKES.items(), ids=lambda x: getattr(x, "__name__", ""))
def test_a_wrong_count_is_told_its_mistake_and_the_case(why, wrong):
    verdict = n13.check_chunks(wrong)
    assert verdict.status == "wrong"
    assert why in verdict.message and "for copy_in" in verdict.message and "ticks" in verdict.message


@pytest.mark.parametrize(
    "wrong, says",
    [
        (lambda *x: None, "returned None"),
        (lambda *x: 0, "no number of chunks"),
        (lambda *x: 3.5, "no number of chunks"),
        (lambda *x: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_what_is_no_count_is_told(wrong, says):
    def answer(copy_in, compute, copy_out, overhead):
        return wrong(copy_in)

    verdict = n13.check_chunks(answer)
    assert verdict.status == "wrong" and says in verdict.message


# ---- exercise 3


def test_the_reference_prefetcher_passes_and_the_stub_is_open():
    assert n13.check_prefetch(answers.true_prefetch)

    def my_prefetch(batches, gpu): ...

    assert n13.check_prefetch(my_prefetch).status == "open"


def test_a_wait_for_the_stream_before_the_next_copy_is_as_good():
    def prefetch(batches, gpu):
        side, ready = gpu.new_stream("copy"), None
        for x in batches:
            if ready is not None:
                gpu.current_stream().wait_stream(side)
                ready.record_stream(gpu.current_stream())
            with gpu.use_stream(side):
                coming = x.to("cuda", non_blocking=True)
            if ready is not None:
                yield ready
            ready = coming
            del coming
        if ready is not None:
            gpu.current_stream().wait_stream(side)
            ready.record_stream(gpu.current_stream())
            yield ready

    assert n13.check_prefetch(prefetch)


@pytest.mark.parametrize(
    "wrong, says",
    [
        (answers.no_wait, "must wait for the copy"),
        (answers.no_record, "record_stream tells the allocator"),
        (answers.waits_for_all, "wait_stream waits for all"),
        (answers.drops_last, "batch 5 is lost"),
        (answers.nothing_ahead, "nothing is prefetched"),
        (answers.same_stream, "nothing overlaps"),
        (answers.host_waits, "the host stands still"),
        (lambda batches, gpu: list(batches), "not a tensor on the device"),
        (lambda batches, gpu: 3, "TypeError"),
        (lambda batches, gpu: reversed(list(answers.true_prefetch(batches, gpu))), "in order, got 5, 4"),
        (lambda batches, gpu: (y for y in answers.true_prefetch(batches * 2, gpu)), "there is no end"),
    ],
)
def test_famous_wrong_prefetchers_are_told_what_is_wrong(wrong, says):
    verdict = n13.check_prefetch(wrong)
    assert verdict.status == "wrong" and says in verdict.message, verdict.message
