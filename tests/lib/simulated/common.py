"""What these tests share: the time that something takes, a stream, a tensor that arrives late."""

import time

import torch


def seconds(function):
    """Return how long a call takes until all devices are done."""
    for index in range(torch.accelerator.device_count()):
        torch.accelerator.synchronize(index)
    start = time.perf_counter()
    function()
    for index in range(torch.accelerator.device_count()):
        torch.accelerator.synchronize(index)
    return time.perf_counter() - start


def new_stream(index=0):
    return torch.Stream(torch.device("simgpu", index))


def late(value, *, stream, wait=0.3, size=1000):
    """Return a tensor that `stream` fills with a value after a while."""
    with stream:
        x = torch.empty(size, device=stream.device)
        torch.simgpu.sleep(wait)
        x.fill_(value)
    return x
