"""What the notebooks' solutions build and later notebooks go on from: yours, or ours if you skipped it.

Every definition stands below the number of its notebook, as its solution has it, or as the notebook itself shows it
where that is no exercise (tests/support/test_built.py compares).
"""

# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="assignment, var-annotated"
# ruff: noqa: D101, D102, D103

import io
import os
import sys
import threading
import zlib
from contextlib import contextmanager, nullcontext
from queue import SimpleQueue
from threading import Thread

import torch
from torch.nn import functional as F
from torch.utils._pytree import tree_flatten, tree_unflatten

from lib.runtime.device import current_stream

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
    times = -(-total // max(1, len(order)))
    order = (order * times)[:total]
    return order[rank::world_size]


share = my_share


class MyDistributedSampler:
    def __init__(self, dataset, num_replicas, rank, shuffle=True, seed=0, drop_last=False):
        if not 0 <= rank < num_replicas:
            raise ValueError(f"rank {rank} is none of the ranks 0 to {num_replicas - 1}")
        self.size = len(dataset)
        self.world_size = num_replicas
        self.rank = rank
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
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


# ---- 06: the ring, DDP, a gather with a gradient; 15 divides by them


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


def in_buckets(parameters, limits):
    buckets, limits = [[]], list(limits)
    for parameter in parameters:
        if sum(inside.numel() for inside in buckets[-1]) >= limits[0]:
            buckets.append([])
            limits = limits[1:] or limits
        buckets[-1].append(parameter)
    return buckets


class MyDDP:
    def __init__(self, module, dist, limits):
        self.module, self.dist, self.sent = module, dist, []
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor.detach(), src=0)
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self.waiting = in_buckets(trained[::-1], limits)
        for parameter in trained:
            parameter.register_post_accumulate_grad_hook(lambda _: self.send())

    def send(self):
        while self.waiting and all(parameter.grad is not None for parameter in self.waiting[0]):
            bucket = self.waiting.pop(0)
            flat = torch.cat([parameter.grad.flatten() for parameter in bucket])
            self.sent.append((bucket, flat, self.dist.all_reduce(flat, async_op=True)))

    def finish(self):
        if missing := [n for n, p in self.module.named_parameters() if p.requires_grad and p.grad is None]:
            raise RuntimeError(f"no gradient for {', '.join(missing)}")
        for bucket, flat, handle in self.sent:
            handle.wait()
            means = (flat / self.dist.get_world_size()).split([parameter.numel() for parameter in bucket])
            for parameter, mean in zip(bucket, means, strict=True):
                parameter.grad.copy_(mean.view_as(parameter))
        self.waiting, self.sent = [bucket for bucket, _, _ in self.sent], []


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


# ---- 07: a mini-batch, tensors in a nest, cut into micro-batches and put together again


def scatter(batch, chunks):
    leaves, nest = tree_flatten(batch)
    lengths = {len(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)}
    if len(lengths) != 1:
        raise ValueError(f"dimension 0 counts samples, but the tensors have {sorted(lengths)}")
    count = min(chunks, *lengths)
    cut = [leaf.tensor_split(count) if isinstance(leaf, torch.Tensor) else [leaf] * count for leaf in leaves]
    return [tree_unflatten(part, nest) for part in zip(*cut, strict=True)]


def gather(parts):
    flat = [tree_flatten(part) for part in parts]
    joined = []
    for same in zip(*(leaves for leaves, _ in flat), strict=True):
        joined.append(torch.cat(same) if isinstance(same[0], torch.Tensor) else same[0])
    return tree_unflatten(joined, flat[0][1])


# ---- 08: which pairs (micro-batch i, partition j) run at the same time


def clock_cycles(m, n):
    clocks = []
    for k in range(m + n - 1):
        clocks.append([(k - j, j) for j in range(n) if 0 <= k - j < m])
    return clocks


# ---- 09: a worker per partition, and the scheduler of a clock


def worker(in_queue, out_queue):
    """Serve the tasks of one partition until None comes."""
    while (task := in_queue.get()) is not None:
        try:
            answer = True, (task, task.compute())
        except BaseException:
            answer = False, sys.exc_info()
        out_queue.put(answer)
    out_queue.put((False, None))


serve = worker


@contextmanager
def spawn_workers(devices):
    """Start a worker per device (on a CPU: per partition), hand out (in_queues, out_queues), and end them."""
    keys = [
        j if device.type == "cpu" else (device.type, device.index or 0) for j, device in enumerate(devices)
    ]
    pairs = {key: (SimpleQueue(), SimpleQueue()) for key in keys}
    threads = [Thread(target=serve, args=pair, daemon=True) for pair in pairs.values()]
    for thread in threads:
        thread.start()
    try:
        yield [pairs[key][0] for key in keys], [pairs[key][1] for key in keys]
    finally:
        for in_queue, _ in pairs.values():
            in_queue.put(None)
        for thread in threads:
            thread.join()


def use_stream(stream):
    """Make a context manager: what its body launches goes into `stream`; on a CPU (None) nothing changes."""
    return nullcontext() if stream is None else torch.cuda.stream(stream)


class Task:
    """Say how a partition computes a micro-batch: `compute` in a worker, `finalize` in the scheduler's thread."""

    def __init__(self, stream, *, compute, finalize=None):
        self.stream = stream
        self._compute = compute
        self._finalize = finalize
        self.grad = torch.is_grad_enabled()  # of the thread that makes the task
        self.threads = torch.get_num_threads()

    def compute(self):
        torch.get_num_threads()  # a thread that has not asked yet may lose what is set
        torch.set_num_threads(self.threads)
        with torch.set_grad_enabled(self.grad), use_stream(self.stream):
            return self._compute()

    def finalize(self, batch):
        if self._finalize is not None:
            with use_stream(self.stream):
                self._finalize(batch)


def run_clock(tasks, in_queues, out_queues):
    """Run the tasks of a clock at the same time; return {partition: batch}, or raise the first error."""
    for j, task in tasks.items():
        in_queues[j].put(task)
    answers = [out_queues[j].get() for j in tasks]
    for ok, payload in answers:
        if not ok:
            raise payload[1]
    batches = {}
    for j, (_, (task, batch)) in zip(tasks, answers, strict=True):
        task.finalize(batch)
        batches[j] = batch
    return batches


# ---- 10: a checkpoint as one autograd function, and what production needs around it; 12's pipeline calls it


class MyCheckpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, *inputs):
        kind = inputs[0].device.type
        ctx.function = function
        ctx.autocast = kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
        ctx.random_state = torch.get_rng_state()
        ctx.devices = [] if kind == "cpu" else [inputs[0].device]  # which draws from a generator of its own
        ctx.device_states = [torch.get_device_module(kind).get_rng_state(device) for device in ctx.devices]
        ctx.save_for_backward(*inputs)
        return function(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        kind = ctx.autocast[0]
        inputs = [x.detach().requires_grad_(x.requires_grad) for x in ctx.saved_tensors]
        unchanged = torch.random.fork_rng(ctx.devices, device_type=kind)
        with unchanged, torch.enable_grad(), torch.autocast(*ctx.autocast):
            torch.set_rng_state(ctx.random_state)
            for device, state in zip(ctx.devices, ctx.device_states, strict=True):
                torch.get_device_module(kind).set_rng_state(state, device)
            output = ctx.function(*inputs)
        if output.requires_grad:
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
        raise RuntimeError("the function changed its input in place: a recompute would start from that")
    return output


# ---- 11: edges without data, copies with their backward, a checkpoint of two nodes, the fence; 12 is made of them


class MyFork(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.detach(), torch.empty(0, device=x.device)

    @staticmethod
    def backward(ctx, grad_x, grad_phony):
        return grad_x


class MyJoin(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, phony):
        return x.detach()

    @staticmethod
    def backward(ctx, grad_x):
        return grad_x, None


Fork = MyFork
Join = MyJoin


def moved(x, source, target):
    """Return x on the device of `target`, copied in these two streams."""
    user = current_stream(target.device)
    with source, target:
        y = x.to(target.device)
    x.record_stream(source)
    y.record_stream(user)
    return y


class MyCopy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, prev_stream, next_stream, x):
        ctx.streams = prev_stream, next_stream
        return moved(x, prev_stream, next_stream)

    @staticmethod
    def backward(ctx, gradient):
        prev_stream, next_stream = ctx.streams
        return None, None, moved(gradient, next_stream, prev_stream)


class MyWait(torch.autograd.Function):
    @staticmethod
    def forward(ctx, prev_stream, next_stream, x):
        ctx.streams = prev_stream, next_stream
        next_stream.wait_stream(prev_stream)
        return x.detach()

    @staticmethod
    def backward(ctx, gradient):
        prev_stream, next_stream = ctx.streams
        prev_stream.wait_stream(next_stream)
        return None, None, gradient


Copy = MyCopy
Wait = MyWait


class MyTwoNodeCheckpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, phony, shared, function, x):
        ctx.shared = shared
        return function(x)

    @staticmethod
    def backward(ctx, gradient):
        x, output = ctx.shared.pop("inside")
        torch.autograd.backward(output, gradient)
        return None, None, None, x.grad


class MyRecompute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, phony, shared, function, x):
        ctx.shared, ctx.function = shared, function
        ctx.save_for_backward(x)
        return phony.detach()

    @staticmethod
    def backward(ctx, grad_phony):
        (x,) = ctx.saved_tensors
        x = x.detach().requires_grad_(x.requires_grad)
        with torch.enable_grad():
            ctx.shared["inside"] = x, ctx.function(x)
        return None, None, None, None


def my_tie(output, shared, function, x):
    """Hang a Recompute beside the output of a Checkpoint; return the output."""
    output, phony = Fork.apply(output)
    phony = MyRecompute.apply(phony, shared, function, x)
    return Join.apply(output, phony)


def depend(batches, i):
    batches[i - 1], phony = Fork.apply(batches[i - 1])
    batches[i] = Join.apply(batches[i], phony)


def fence(clock, batches, copy):
    """Prepare the batches of a clock: tie each to the micro-batch before it, bring it to its partition."""
    for i, j in clock:
        if i > 0:
            depend(batches, i)
        if j > 0:
            batches[i] = copy(batches[i], j)


# ---- 16: a state that outlives a kill


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
