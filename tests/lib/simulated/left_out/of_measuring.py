"""Programs that measure: a time begins and ends when the device is there, and not when the host is."""

import threading

import torch
from torch import nn

from lib.data import headspace
from lib.measure import measure
from lib.memory import device_peak
from lib.pipeline.balance import profile_times
from lib.runtime.device import new_stream, use_stream
from lib.runtime.recording import device_span
from lib.simulated import sleep
from lib.timeline import Recorder
from tests.lib.simulated.left_out.scenario import WHERE, Late, costs, scenario

HERE = torch.device(WHERE[0])


@scenario
def the_time_of_a_run_is_the_time_of_its_kernels(delay):
    costs()
    timing = measure(lambda: sleep(delay), device=HERE, repeats=2)
    assert timing.median >= 0.9 * delay, timing


@scenario
def what_was_launched_before_does_not_count(delay):
    costs()
    side = new_stream(HERE)
    with use_stream(side):
        sleep(10 * delay)
    here = torch.accelerator.current_stream()
    timing = measure(lambda: here.wait_stream(side), device=HERE, warmup=0, repeats=1)
    assert timing.median < 5 * delay, timing


@scenario
def the_time_of_a_layer_is_the_time_of_its_kernels(delay):
    costs()
    (seconds,) = profile_times(nn.Sequential(Late(2 * delay)), torch.ones(2, 2), 0.0, HERE)
    assert seconds >= 2 * delay, f"{seconds} s"


@scenario
def the_time_of_a_step_is_the_time_of_its_kernels(delay):
    costs()
    found = headspace([torch.ones(2)] * 6, lambda batch: sleep(delay), batches=2)
    assert found.step >= 0.9 * delay, f"{found.step} s"


@scenario
def memory_that_is_still_used_from_before_does_not_count(delay):
    costs()
    side = new_stream(HERE)
    before = torch.ones(1 << 20, device=HERE)
    with use_stream(side):
        sleep(delay)
        before.sum()
    before.record_stream(side)
    del before
    with device_peak() as peak:
        side.synchronize()
        inside = torch.ones(1 << 18, device=HERE)
    assert peak.extra == inside.nbytes, f"{peak.extra} bytes"


@scenario
def spans_of_a_stream_that_nobody_waits_for_are_read(delay):
    costs()
    side = new_stream(HERE)
    with Recorder() as recorder, use_stream(side), device_span(side, "side", "S", "compute"):
        sleep(delay)
    (span,) = recorder.trace()
    assert span.duration >= 0.9 * delay, span


@scenario
def spans_are_read_while_another_thread_launches(delay):
    # the clocks of host and device meet at an event that comes late
    costs()
    side = new_stream(HERE)
    ended = threading.Event()

    def launch():
        while not ended.is_set():
            sleep(delay / 10)
            torch.accelerator.current_stream().synchronize()

    thread = threading.Thread(target=launch)
    thread.start()
    try:
        with Recorder() as recorder, use_stream(side), device_span(side, "side", "S", "compute"):
            sleep(delay / 10)
    finally:
        ended.set()
        thread.join()
    (span,) = recorder.trace()
    assert span.duration > 0, span
