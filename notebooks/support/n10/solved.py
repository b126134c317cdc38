"""What the solution of notebook 10 has, word for word, and no later notebook goes on from: a peak, and hooks."""

# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="var-annotated"
# ruff: noqa: D103

from itertools import count

import torch
from torch.autograd.graph import saved_tensors_hooks


def peak_bytes(sizes, starts):
    ends = [*starts[1:], len(sizes) - 1]
    peak = 0
    for j, (start, end) in enumerate(zip(starts, ends, strict=True)):
        kept = sum(sizes[first] for first in starts[: j + 1])
        inside = sum(sizes[start + 1 : end + 1])
        peak = max(peak, kept + inside)
    return peak


def hook_checkpoint(function, *inputs):
    random_state = torch.get_rng_state()
    numbers = count()
    again = {}

    def recompute():
        found = []
        keep = saved_tensors_hooks(lambda tensor: found.append(tensor.detach()), lambda nothing: nothing)
        with torch.random.fork_rng(devices=[]), torch.enable_grad(), keep:
            torch.set_rng_state(random_state)
            function(*inputs)
        again.update(enumerate(found))

    def unpack(number):
        if number not in again:
            recompute()
        return again.pop(number)

    with saved_tensors_hooks(lambda tensor: next(numbers), unpack):
        return function(*inputs)
