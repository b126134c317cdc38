"""Steps that nobody times are free in exercise 5 of notebook 01, and a mean that was rounded is none."""

from itertools import islice

import pytest

from support.n01 import timing
from support.n01.checks import check_times


def nothing(batch):
    pass


def seconds_of(batches, use, clock):
    """Return seconds a batch, the first left out, which goes on having a name."""
    iterator = iter(batches)
    first = next(iterator)
    use(first)
    begun = clock()
    count = 0
    for batch in iterator:
        use(batch)
        count += 1
    return (clock() - begun) / count


def on_a_batch_that_is_kept(loader, step, clock):
    """The loop is left, and its workers may go on; what is timed comes behind a whole loop."""
    kept = list(islice(loader, 8))
    step(kept[0])
    alone = seconds_of(loader, nothing, clock)
    return seconds_of(kept, step, clock), alone, seconds_of(loader, step, clock)


def on_the_first_batch_of_a_loop(loader, step, clock):
    """Eight others are kept."""
    step(next(iter(loader)))
    kept = [batch for number, batch in enumerate(loader) if number < 8]
    return seconds_of(kept, step, clock), seconds_of(loader, nothing, clock), seconds_of(loader, step, clock)


def beside_names_for_batches_that_are_not_kept(loader, step, clock):
    """Eight are kept; loop variables name others, and one is being made."""
    kept = []
    for batch in loader:
        if len(kept) < 8:
            kept.append(batch)

    return seconds_of(kept, step, clock), seconds_of(loader, nothing, clock), seconds_of(loader, step, clock)


@pytest.mark.parametrize("answer", [on_a_batch_that_is_kept, on_the_first_batch_of_a_loop])
def test_a_step_that_nobody_times_may_run_whenever(answer):
    verdict = check_times(answer)
    assert verdict.status == "right", verdict


@pytest.mark.parametrize("digits", [2, 3])
def test_a_mean_that_was_rounded_is_wrong_where_steps_take_milliseconds(digits):
    def rounded(loader, step, clock):
        return [round(seconds, digits) for seconds in on_the_first_batch_of_a_loop(loader, step, clock)]

    verdict = check_times(rounded)
    assert verdict.status == "wrong"
    assert "due are step 0.0047, loader 0.0013, both 0.0068 seconds a batch" in verdict.message


def test_nine_kept_batches_are_counted_without_the_one_that_is_gone():
    def nine(loader, step, clock):
        step(next(iter(loader)))
        kept = [batch for number, batch in enumerate(loader) if number < 9]
        return seconds_of(kept, step, clock), seconds_of(loader, nothing, clock), seconds_of(loader, step, clock)

    assert f"The step ran on 9 kept batches. {timing.HOLDS}" in check_times(nine).message


def test_names_for_batches_keep_none():
    verdict = check_times(beside_names_for_batches_that_are_not_kept)
    assert verdict.status == "right", verdict
