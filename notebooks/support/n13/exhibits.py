"""Three known bugs of the museum in notebook 13, as they were reported: word for word as the notebook has them."""

# mypy: allow-untyped-calls, allow-untyped-defs

from __future__ import annotations

import torch

RIGHT = 6000.0
"""What each of them should give."""


def handed_over(gpu, late):
    """sglang#37965: weights come in on a copy stream, layer by layer, and are used in another one."""
    copies = gpu.new_stream("copies")
    compute = gpu.current_stream()
    layers = [gpu.host(torch.full((1000,), i + 1.0), f"layer {i}") for i in range(3)]
    total = gpu.empty_like(layers[0]).zero_()
    for layer in layers:
        with gpu.use_stream(copies):
            weight = layer.to(gpu.device, non_blocking=True)
        compute.wait_stream(copies)
        gpu.sleep(late)
        total += weight
        del weight
    return total.sum()


def shared_buffer(gpu, late):
    """Megatron-LM#6207: the shards of a model are gathered, one after the other, into one buffer."""
    gather = gpu.new_stream("gather")
    compute = gpu.current_stream()
    shards = [gpu.host(torch.full((1000,), i + 1.0), f"shard {i}") for i in range(3)]
    with gpu.use_stream(gather):
        buffer = gpu.empty_like(shards[0])
    total = gpu.empty_like(shards[0]).zero_()
    for shard in shards:
        with gpu.use_stream(gather):
            buffer.copy_(shard, non_blocking=True)
        compute.wait_stream(gather)
        gpu.sleep(late)
        total += buffer
    return total.sum()


def refilled(gpu, late):
    """pytorch#126946: one pinned batch of the host is filled again and again."""
    side = gpu.new_stream("side")
    compute = gpu.current_stream()
    batch = gpu.host(torch.zeros(1000), "batch")
    total = gpu.empty_like(batch).zero_()
    for i in range(3):
        batch.fill_(i + 1.0)
        with gpu.use_stream(side):
            gpu.sleep(late)
            x = batch.to(gpu.device, non_blocking=True)
        compute.wait_stream(side)
        x.record_stream(compute)
        total += x
    return total.sum()


EXHIBITS = (handed_over, shared_buffer, refilled)
