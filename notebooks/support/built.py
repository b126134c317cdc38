"""What the notebooks' solutions build and later notebooks go on from: yours, or ours if you skipped it.

Every definition stands below the number of its notebook, as its solution has it (tests/support/test_built.py compares).
"""

# mypy: allow-untyped-defs, allow-untyped-calls
# ruff: noqa: D101, D102, D103

import io
import os
import threading
import zlib

import torch
from torch.nn import functional as F

# ---- 00: one step of data-parallel training, all ranks in one process; 06 does the same by messages


def my_step(replicas, batches, learning_rate):
    for replica, (rows, labels) in zip(replicas, batches, strict=True):
        F.cross_entropy(replica(rows), labels).backward()
    for weights in zip(*(replica.parameters() for replica in replicas), strict=True):
        mean = sum(weight.grad for weight in weights) / len(weights)
        with torch.no_grad():
            for weight in weights:
                weight -= learning_rate * mean
                weight.grad = None


# ---- 03: what a rank reads; 04 and 06 deal with it


def my_share(order, world_size, rank, drop_last=False):
    steps = len(order) // world_size if drop_last else -(-len(order) // world_size)
    total = steps * world_size
    times = -(-total // len(order))
    order = (order * max(1, times))[:total]
    return order[rank::world_size]


share = my_share


class MyDistributedSampler:
    def __init__(self, dataset, num_replicas, rank, shuffle=True, seed=0, drop_last=False):
        self.size, self.world_size, self.rank = len(dataset), num_replicas, rank
        self.shuffle, self.seed, self.drop_last = shuffle, seed, drop_last
        self.epoch = 0

    def __iter__(self):
        order = list(range(self.size))
        if self.shuffle:
            generator = torch.Generator().manual_seed(self.seed + self.epoch)
            order = torch.randperm(self.size, generator=generator).tolist()
        return iter(share(order, self.world_size, self.rank, self.drop_last))

    def __len__(self):
        return self.size // self.world_size if self.drop_last else -(-self.size // self.world_size)

    def set_epoch(self, epoch):
        self.epoch = epoch


# ---- 06: the ring, DDP, a gather with a gradient, a state that outlives a kill; 15 divides by them


def reduce_scatter(tensor, dist):
    rank, world = dist.get_rank(), dist.get_world_size()
    chunks = tensor.tensor_split(world)
    for step in range(world - 1):
        sending = dist.isend(chunks[(rank - 1 - step) % world], (rank + 1) % world)
        arriving = chunks[(rank - 2 - step) % world]
        received = torch.empty_like(arriving)
        dist.recv(received, (rank - 1) % world)
        arriving += received
        sending.wait()


def all_gather(tensor, dist):
    rank, world = dist.get_rank(), dist.get_world_size()
    chunks = tensor.tensor_split(world)
    for step in range(world - 1):
        sending = dist.isend(chunks[(rank - step) % world], (rank + 1) % world)
        dist.recv(chunks[(rank - 1 - step) % world], (rank - 1) % world)
        sending.wait()


class MyDDP:
    def __init__(self, module, dist):
        self.dist, self.sent = dist, []
        for tensor in module.state_dict().values():
            dist.broadcast(tensor, src=0)
        last_first = list(module.parameters())[::-1]
        half = len(last_first) // 2
        for bucket in (last_first[:half], last_first[half:]):
            for parameter in bucket:
                parameter.register_post_accumulate_grad_hook(lambda _, bucket=bucket: self.arrived(bucket))

    def arrived(self, bucket):
        if all(parameter.grad is not None for parameter in bucket):
            flat = torch.cat([parameter.grad.flatten() for parameter in bucket])
            self.sent.append((bucket, flat, self.dist.all_reduce(flat, async_op=True)))

    def finish(self):
        for bucket, flat, handle in self.sent:
            handle.wait()
            means = (flat / self.dist.get_world_size()).split([parameter.numel() for parameter in bucket])
            for parameter, mean in zip(bucket, means, strict=True):
                parameter.grad.copy_(mean.view_as(parameter))
        self.sent = []


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, own, dist):
        ctx.dist = dist
        parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, own.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, gradient):
        total = gradient.clone()
        ctx.dist.all_reduce(total)
        return total.chunk(ctx.dist.get_world_size())[ctx.dist.get_rank()], None


def save(path, model, optimizer, more):
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "more": more}
    buffer = io.BytesIO()
    torch.save(state, buffer)
    content = buffer.getvalue()
    unfinished = f"{path}.unfinished"
    with open(unfinished, "wb") as file:
        file.write(zlib.crc32(content).to_bytes(4, "little") + content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, path)


def load(path, model, optimizer):
    with open(path, "rb") as file:
        checksum, content = file.read(4), file.read()
    if zlib.crc32(content).to_bytes(4, "little") != checksum:
        raise ValueError(f"{path} is damaged: its checksum does not fit its content")
    state = torch.load(io.BytesIO(content), map_location="cpu")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["more"]


# ---- 10: a checkpoint as one autograd function, and what production needs around it; 12's pipeline calls it


class MyCheckpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, *inputs):
        kind = inputs[0].device.type
        ctx.function, ctx.random_state = function, torch.get_rng_state()
        ctx.autocast = kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
        ctx.save_for_backward(*inputs)
        return function(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        inputs = [x.detach().requires_grad_(x.requires_grad) for x in ctx.saved_tensors]
        with torch.random.fork_rng(devices=[]), torch.enable_grad(), torch.autocast(*ctx.autocast):
            torch.set_rng_state(ctx.random_state)
            output = ctx.function(*inputs)
        torch.autograd.backward(output, gradient)
        return None, *(x.grad for x in inputs)


Checkpoint = MyCheckpoint
here = threading.local()


def is_recomputing():
    return getattr(here, "recomputing", False)


def my_checkpoint(function, *inputs):
    def run(phony, *inputs):
        before = is_recomputing()
        here.recomputing = before or torch.is_grad_enabled()
        try:
            return function(*inputs)
        finally:
            here.recomputing = before

    phony = torch.empty(0, device=inputs[0].device, requires_grad=True)
    versions = [x._version for x in inputs]
    output = Checkpoint.apply(run, phony, *inputs)
    if [x._version for x in inputs] != versions:
        raise RuntimeError(
            "the function changed its input in place: recompute would start from the changed one"
        )
    return output
