"""Exercise 2 of notebook 13: a timer that asks on, and timers that wait for the wrong thing or launch elsewhere."""

import time
from functools import partial

import pytest

from support.n13 import checks as n13


def asks_until_it_is_told(work, cuda):
    """Wait for nothing: ask for the time until it is there."""
    start = cuda.Event(enable_timing=True)
    end = cuda.Event(enable_timing=True)
    start.record()
    work()
    end.record()
    while True:
        try:
            return start.elapsed_time(end)
        except RuntimeError:
            continue


def test_a_timer_may_ask_until_the_marks_are_reached():
    verdict = n13.check_device_ms(asks_until_it_is_told)
    assert verdict.status == "right", verdict.message


def as_torch_allows(work, cuda):
    """Name what torch names, and give by place what torch takes by place."""
    start, end = (cuda.Event(True, True) for _ in range(2))
    with cuda.current_stream():
        start.record(cuda.current_stream(cuda.current_device()))
        work()
        end.record()
    end.synchronize()
    return start.elapsed_time(end_event=end)


def test_a_timer_may_call_torch_in_any_of_its_ways():
    verdict = n13.check_device_ms(as_torch_allows)
    assert verdict.status == "right", verdict.message


def by_the_host(work, cuda):
    """Round what a clock of the host has shown: no mark is anywhere."""
    began = time.thread_time()
    work()
    return round(1000 * (time.thread_time() - began))


def prints_what_it_knows(work, cuda):
    """Put the marks where they belong, and return nothing."""
    print(n13.check_device_ms.reference(work, cuda))


@pytest.mark.parametrize(
    "timer, says",
    [
        (by_the_host, "the device needs 6.0 ms, you say 0.0."),
        (prints_what_it_knows, "your function returned None (is a `return` missing?)."),
    ],
)
def test_of_marks_that_are_right_or_not_there_nobody_says_where_they_lie(timer, says):
    message = n13.check_device_ms(timer).message
    assert message.endswith(says), message


def waits(work, cuda, wait):
    """Let something wait, and then ask for the time."""
    start = cuda.Event(enable_timing=True)
    end = cuda.Event(enable_timing=True)
    start.record()
    work()
    end.record()
    wait(end, cuda)
    return start.elapsed_time(end)


def in_a_stream_of_its_own(work, cuda, behind=True):
    """Make a stream of its own the current one."""
    side = cuda.Stream()
    if behind:
        side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        return n13.check_device_ms.reference(work, cuda)


def never(work, cuda):
    """Put both marks, and no work, into the stream."""
    return n13.check_device_ms.reference(lambda: None, cuda)


def leaves_another_stream(work, cuda):
    """Enter a stream behind the work, and never leave it."""
    took = n13.check_device_ms.reference(work, cuda)
    cuda.stream(cuda.Stream()).__enter__()
    return took


def forgets(work, cuda, mark):
    """Put one of the two marks into the stream, and wait for the end."""
    start = cuda.Event(enable_timing=True)
    end = cuda.Event(enable_timing=True)
    (start if mark == "start" else end).record()
    work()
    end.synchronize()
    return start.elapsed_time(end)


@pytest.mark.parametrize(
    "says, wrong",
    [
        ("RuntimeError: both events must be recorded", partial(forgets, mark="start")),
        ("RuntimeError: both events must be recorded", partial(forgets, mark="end")),
        ("first let the host wait", lambda work, cuda: waits(work, cuda, lambda end, cuda: end.wait())),
        (
            "first let the host wait",
            lambda work, cuda: waits(work, cuda, lambda end, cuda: cuda.current_stream().wait_event(end)),
        ),
        ("work() launches into the stream that is current when it is called", in_a_stream_of_its_own),
        (
            "work() launches into the stream that is current when it is called",
            lambda work, cuda: in_a_stream_of_its_own(work, cuda, behind=False),
        ),
        ("work() was never called", never),
        ("Behind your timer another stream is current", leaves_another_stream),
        (
            "The milliseconds are a number, and '6.0' is a str",
            lambda work, cuda: str(n13.check_device_ms.reference(work, cuda)),
        ),
    ],
)
def test_a_timer_is_told_what_it_did_in_the_words_of_torch(says, wrong):
    verdict = n13.check_device_ms(wrong)
    assert verdict.status == "wrong"
    assert says in verdict.message, verdict.message
    assert "Model" not in verdict.message
    assert "Both marks" not in verdict.message
    assert "does not wait for that" not in verdict.message
