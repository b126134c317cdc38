"""The checks of notebook 02: the right answer passes, the stub is open, named wrong answers are told what is wrong."""

import pytest

from lib.checks import n02

GUESSES = {
    n02.guess_asker: "Sampler",
    n02.guess_obeyed: 2,
    n02.guess_handed_out: 10,
    n02.guess_loads: 0,
    n02.guess_distinct: 632,
    n02.guess_second_epoch: 0,
}


@pytest.mark.parametrize("check", GUESSES, ids=lambda check: check.__name__)
def test_a_guess_is_commented_on_and_never_fails(check):
    assert check(None).status == "note"
    assert "that is it" in check(GUESSES[check]).message
    assert "Read on" in check("forty-two").message


def strided_class(passes):
    """Make the exercise's class from a function (size, stride) -> an iterable for each pass."""

    class Strided:
        def __init__(self, dataset, stride):
            self.size, self.stride = len(dataset), stride

        def __iter__(self):
            return iter(passes(self.size, self.stride))

    return Strided


def right(size, stride):
    for start in range(stride):
        yield from range(start, size, stride)


def test_strided_passes_and_its_stub_is_open():
    class Stub:
        def __iter__(self): ...

    assert n02.check_strided(strided_class(right))
    assert n02.check_strided(Stub).status == "open"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda size, stride: range(0, size, stride), "stop after the first run"),
        (lambda size, stride: (i * stride % size for i in range(size)), "common factor"),
        (
            lambda size, stride: (
                start + k * stride for start in range(stride) for k in range(size // stride)
            ),
            "tail of the dataset is lost",
        ),
        (lambda size, stride: range(size), "order that the dataset has anyway"),
    ],
)
def test_wrong_strides_are_named(wrong, says):
    verdict = n02.check_strided(strided_class(wrong))
    assert verdict.status == "wrong"
    assert says in verdict.message
    assert "size = " in verdict.message


def test_a_sampler_that_is_used_up_after_one_pass_is_named():
    class UsedUp:
        def __init__(self, dataset, stride):
            self.iterator = right(len(dataset), stride)

        def __iter__(self):
            return self.iterator

    verdict = n02.check_strided(UsedUp)
    assert verdict.status == "wrong"
    assert "second epoch" in verdict.message
    assert "begin anew" in verdict.message


def test_an_endless_sampler_is_stopped():
    def endless(size, stride):
        while True:
            yield 0

    assert n02.check_strided(strided_class(endless)).status == "wrong"


def batches(indices, batch_size, drop_last):
    cut = [indices[start : start + batch_size] for start in range(0, len(indices), batch_size)]
    return [batch for batch in cut if len(batch) == batch_size or not drop_last]


def test_batches_passes_and_its_stub_is_open():
    def stub(indices, batch_size, drop_last): ...

    def as_generator(indices, batch_size, drop_last):
        yield from batches(indices, batch_size, drop_last)

    assert n02.check_batches(batches)
    assert n02.check_batches(as_generator)
    assert n02.check_batches(stub).status == "open"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (
            lambda indices, batch_size, drop_last: batches(indices, batch_size, True),
            "short last batch is lost",
        ),
        (lambda indices, batch_size, drop_last: batches(indices, batch_size, False), "still there"),
        (
            lambda indices, batch_size, drop_last: [indices[i : i + batch_size] for i in range(len(indices))],
            "overlap",
        ),
        (
            lambda indices, batch_size, drop_last: batches(indices, batch_size, False)[
                : -1 if drop_last else None
            ],
            "a full one went",
        ),
    ],
)
def test_wrong_batches_are_named(wrong, says):
    verdict = n02.check_batches(wrong)
    assert verdict.status == "wrong"
    assert says in verdict.message
    assert "batch_size = " in verdict.message


def pooled(lengths, order, batch_size, pool, key=None, size=None):
    size = size or pool * batch_size
    cut = []
    for first in range(0, len(order), size):
        part = sorted(order[first : first + size], key=key or (lambda i: lengths[i]))
        cut += [part[start : start + batch_size] for start in range(0, len(part), batch_size)]
    return cut


def test_pools_passes_and_its_stub_is_open():
    def stub(lengths, order, batch_size, pool): ...

    assert n02.check_pools(pooled)
    assert n02.check_pools(stub).status == "open"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda lengths, order, batch_size, pool: pooled(lengths, order, batch_size, 1000), "whole epoch"),
        (
            lambda lengths, order, batch_size, pool: pooled(
                lengths, order, batch_size, pool, key=lambda i: i
            ),
            "not by the index itself",
        ),
        (
            lambda lengths, order, batch_size, pool: pooled(
                lengths, order, batch_size, pool, size=batch_size
            ),
            "yours holds batch_size",
        ),
        (
            lambda lengths, order, batch_size, pool: pooled(lengths, order, batch_size, pool, size=pool),
            "yours holds",
        ),
        (
            lambda lengths, order, batch_size, pool: [
                [lengths[i] for i in batch] for batch in pooled(lengths, order, batch_size, pool)
            ],
            "These are lengths",
        ),
        (
            lambda lengths, order, batch_size, pool: [
                order[start : start + batch_size] for start in range(0, len(order), batch_size)
            ],
            "Nothing is sorted",
        ),
    ],
)
def test_wrong_pools_are_named(wrong, says):
    verdict = n02.check_pools(wrong)
    assert verdict.status == "wrong"
    assert says in verdict.message
