"""Small experiments of notebook 06, each in real ranks, which a training run would hide.

    torchrun --nproc-per-node 2 06_ranks.py FOLDER gradients buckets
    torchrun --nproc-per-node 2 06_ranks.py FOLDER uneven

gradients   is the mean of the ranks' gradients that of the whole batch? and are the parameters equal after the step?
buckets     when, during backward, does DDP all-reduce?
uneven      a rank that runs out of batches before the others: with join(), then without
"""

import argparse
import hashlib
import json
import os
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from lib.timeline import Recorder
from lib.training.launch import leave
from support.digits import Digits, write_digits
from support.training import TinyClip, caption_loss, contrastive_loss

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
BATCH = 32  # rows of all ranks together


class Gather(torch.autograd.Function):
    """Put the points of all ranks into one tensor; backward brings each rank the gradient of its own."""

    @staticmethod
    def forward(ctx, own):
        """Gather."""
        parts = [torch.empty_like(own) for _ in range(WORLD)]
        dist.all_gather(parts, own.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, gradient):
        """Add up what all ranks' losses say about this rank's points."""
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient.chunk(WORLD)[RANK]


class Gathered(nn.Module):
    """TinyClip whose logits are those of the images and captions of all ranks."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, images, captions):
        """Return the logits, (B, B) for the B samples of all ranks."""
        images, captions = self.model.embed_images(images), self.model.embed_captions(captions)
        return self.model.log_scale.exp() * Gather.apply(images) @ Gather.apply(captions).T


def gathered_loss(model, images, captions):
    """CLIP's loss over the logits of all ranks: the same number on every rank."""
    logits = model(images, captions)
    target = torch.arange(len(logits))
    return (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2


def summed(state, bucket):
    """Add the ranks' gradients and forget to divide: a communication hook as one writes it first."""
    return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0])


def flat(model):
    """Return all gradients as one vector."""
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def digest(model):
    """Return a short hash of every rank's parameters."""
    data = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    every = [""] * WORLD
    dist.all_gather_object(every, hashlib.sha256(data).hexdigest()[:8])
    return every


def gradients(folder):
    """Write gradients.json: distance of each way to the whole batch's gradient, and hashes of the parameters."""
    digits = Digits(write_digits(), "train")
    images = torch.stack([digits[row][0] for row in range(BATCH)]).double()
    captions = [digits.rows[row][1] for row in range(BATCH)]

    def own(counts):
        first = sum(counts[:RANK])
        part = slice(first, first + counts[RANK])
        return images[part], captions[part]

    def ddp_gradient(loss, counts, weight=1.0, hook=None, wrap=lambda model: model):
        model = DDP(wrap(TinyClip().double()))
        if hook is not None:
            model.register_comm_hook(None, hook)
        (weight * loss(model, *own(counts))).backward()
        return flat(model)

    def whole_gradient(loss):
        model = TinyClip().double()
        loss(model, images, captions).backward()
        return flat(model)

    even, uneven = [BATCH // WORLD] * WORLD, [BATCH - 8 * (WORLD - 1)] + [8] * (WORLD - 1)
    by_count = uneven[RANK] * WORLD / BATCH  # DDP divides by W; this undoes it and weighs by samples
    found = {
        "equal shares": ddp_gradient(caption_loss, even),
        "uneven shares": ddp_gradient(caption_loss, uneven),
        "uneven, weighted by count": ddp_gradient(caption_loss, uneven, by_count),
        "sum instead of mean": ddp_gradient(caption_loss, even, hook=summed),
        "contrastive, own negatives": ddp_gradient(contrastive_loss, even),
        "contrastive, gathered": ddp_gradient(gathered_loss, even, wrap=Gathered),
    }
    by_hand = TinyClip().double()
    caption_loss(by_hand, *own(even)).backward()
    for parameter in by_hand.parameters():  # what DDP does, without DDP
        dist.all_reduce(parameter.grad)
        parameter.grad /= WORLD
    result = {"by hand": float((flat(by_hand) - found["equal shares"]).abs().max())}
    for name, gradient in found.items():
        whole = whole_gradient(contrastive_loss if "contrastive" in name else caption_loss)
        distance, along = (gradient - whole).norm() / whole.norm(), gradient @ whole / (whole @ whole)
        result[name] = {"distance": float(distance), "length": float(along)}

    model = TinyClip(seed=RANK).double()  # every rank begins with weights of its own
    hashes = {"before DDP": digest(model)}
    ddp = DDP(model)
    hashes["in DDP"] = digest(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    caption_loss(ddp, *own(even)).backward()
    optimizer.step()
    hashes["after a step"] = digest(model)
    if RANK == 0:
        (folder / "gradients.json").write_text(json.dumps({**result, "hashes": hashes}))


def buckets(folder):
    """Write spans of backward and of each bucket's all-reduce, and buckets.json: how many there were in each step."""
    layers = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(8)])
    ddp = DDP(layers, bucket_cap_mb=8)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    recorder = Recorder(folder / "spans")
    now, computes = recorder.now, f"rank {RANK} computes"
    ready, calls = [], []

    def hook(state, bucket):
        call = {"bucket": bucket.index(), "values": bucket.buffer().numel(), "start": now()}
        calls.append(call)

        def done(future):
            call["end"] = now()
            return future.value()[0] / WORLD

        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(done)

    ddp.register_comm_hook(None, hook)
    for number, layer in enumerate(layers):
        layer.weight.register_post_accumulate_grad_hook(lambda _, n=number: ready.append((n, now())))
    counts = []
    for step in range(4):
        ready.clear(), calls.clear(), optimizer.zero_grad()
        loss = ddp(torch.randn(96, 1024, generator=torch.Generator().manual_seed(step))).square().mean()
        dist.barrier()
        begin = now()
        loss.backward()
        middle = now()
        optimizer.step()
        end = now()
        counts.append(len(calls))
    for number, end_of_layer in ready:  # of the last step; the first ones make the buckets
        recorder.add(computes, f"layer {number}", begin, end_of_layer, "backward")
        begin = end_of_layer
    recorder.add(computes, "step", middle, end, "step")
    for call in calls:
        name = f"bucket {call['bucket']}"
        recorder.add(f"rank {RANK} {name}", name, call["start"], call["end"], "transfer")
    if RANK == 0:
        (folder / "buckets.json").write_text(json.dumps(counts))


def uneven(folder):
    """Give rank 1 two batches less than rank 0."""
    group = dist.new_group(timeout=timedelta(seconds=3))
    model = DDP(nn.Linear(4, 1), process_group=group)
    batches = torch.ones(5 if RANK == 0 else 3, 8, 4)
    recorder, lane = Recorder(folder / "uneven"), f"rank {RANK}"

    def train(how):
        for step, batch in enumerate(batches):
            with recorder.span(lane, f"step {step}", "step"):
                time.sleep(0.2)  # stands for loading and forward
                model(batch).mean().backward()
            print(f"{how}: step {step} done", flush=True)

    with model.join():
        train("with join")
        used_up = recorder.now()
    if RANK == 1:
        recorder.add(lane, "zeros", used_up, recorder.now(), "transfer")
    train("without")
    with recorder.span(lane, "barrier", "wait"):
        dist.barrier(group)  # rank 1 waits here, rank 0 in its next all-reduce


def main():
    """Run the experiments that were asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("experiments", nargs="+", choices=("gradients", "buckets", "uneven"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    for name in arguments.experiments:
        globals()[name](arguments.folder)
    leave()


if __name__ == "__main__":
    main()
