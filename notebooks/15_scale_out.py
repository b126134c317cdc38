"""Train an image tower on replicas x pipeline, as many ranks as torchrun starts. Notebook 15 starts it; so can you:

    PYTHONPATH=.. torchrun --nproc-per-node 4 15_scale_out.py --pipeline 2 --out run

Every rank runs this whole file: with 4 ranks and --pipeline 2 there are 2 replicas of the model, each cut in 2 stages.
A rank fills the layers of its own stages, and loads images or targets only where its stages need them.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import timedelta
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.functional import cross_entropy

from lib import schedules as makers
from lib.data import MetaFile, RankDataset, mini_epoch_loaders
from lib.schedules.distributed import DistributedPipeline
from lib.text import plural
from lib.timeline import Recorder
from lib.training.launch import leave, meet
from support.digits import decode_image, digit_of, parse_row, write_digits
from support.n15.tower import even_balance, fill, tower_on_meta
from support.training import Step, StepLog


def arguments() -> argparse.Namespace:
    """Read the command line; it is the same on every rank."""
    parser = argparse.ArgumentParser(
        description="Train an image tower on replicas x pipeline, under torchrun."
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of logs and spans")
    parser.add_argument("--data", type=Path, default=Path("data/digits"), help="made if it is not there")
    parser.add_argument("--pipeline", type=int, default=2, help="ranks of a pipeline")
    parser.add_argument("--schedule", default="one_f_one_b", help="gpipe, one_f_one_b, zero_bubble_h1 …")
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=320, help="of all replicas together")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--record", type=int, default=8, help="record the spans of so many last steps")
    parser.add_argument("--width", type=int, default=192, help="of the tower")
    parser.add_argument("--workers", type=int, default=1, help="of the loader, where there is one")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="GPUs, if torch sees any")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def join(wanted: str | None) -> tuple[int, int, torch.device]:
    """Meet the other ranks; return this rank, how many there are, and the device.

    Raises RuntimeError where GPUs are wanted (or torch sees some) and this machine has fewer than ranks: a job that
    went on with the CPU would be a hundred times slower, and nobody would be told.
    """
    local_rank = int(os.environ["LOCAL_RANK"])
    local_ranks = int(os.environ["LOCAL_WORLD_SIZE"])
    gpus = torch.cuda.device_count()
    bound: dict[str, Any] = {}
    if wanted == "cpu" or (wanted is None and not gpus):
        backend = "gloo"
        device = torch.device("cpu")
    elif gpus < local_ranks:
        raise RuntimeError(
            f"{plural(local_ranks, 'rank')} on this machine, but torch sees {plural(gpus, 'GPU')}: start no more than "
            "there are, or say --device cpu"
        )
    else:
        # the number on this machine: rank 8 of two machines with 8 GPUs is GPU 0 of the second
        backend = "nccl"
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
        bound = {"device_id": device}  # else NCCL guesses the GPU, and connects late
    patience = timedelta(seconds=60)  # nobody waits for ever
    store, rank, world_size = meet(patience)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=patience, **bound)
    return rank, world_size, device


def as_batch(
    folder: Path, first: bool, last: bool, rows: list[str]
) -> tuple[Tensor | None, Tensor | None, tuple[int, ...]]:
    """Return what a rank needs of some rows: images the first stage, targets the last; and their numbers."""
    names, captions = zip(*map(parse_row, rows), strict=True)
    images = targets = None
    if first:
        images = torch.stack([decode_image(folder / name) for name in names]).double()
    if last:
        targets = torch.tensor([digit_of(caption) for caption in captions])
    return images, targets, tuple(int(Path(name).stem) - 1 for name in names)  # img/0001.png is row 0


Loaded = tuple[int, int, Tensor | None, Tensor | None, tuple[int, ...]]
NOTHING: Loaded = (0, 0, None, None, ())  # a rank in the middle takes what comes, and has no loader


def loaded(dataset: RankDataset, epochs: int, share: dict[str, Any]) -> Iterator[Loaded]:
    """Yield the epoch and the mini-epoch of each batch, and what `as_batch` makes of it."""
    for epoch in range(epochs):
        for loader in mini_epoch_loaders(dataset, epoch, drop_last=True, **share):
            for batch in loader:
                yield epoch, dataset.mini_epoch, *batch


def place_of(pipeline: DistributedPipeline) -> dict[str, Any]:
    """Return what torchrun has told this rank, and where it stands in the mesh."""
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR")
    place: dict[str, Any] = {name: os.environ[name] for name in names}
    place |= {"data": pipeline.data_rank, "pipeline": pipeline.pipeline_rank, "stages": [*pipeline.stages]}
    place |= {"backend": dist.get_backend(), "last": pipeline.last}
    return place


@record  # torchrun is told which error a rank ended with, not only that it did
def main() -> None:
    """Find this rank's place, build its stages, load its rows, train."""
    args = arguments()
    rank, world_size, device = join(args.device)
    args.out.mkdir(parents=True, exist_ok=True)

    # 1. The mesh: which replica am I in, and where in its pipeline?
    if world_size % args.pipeline:
        raise ValueError(f"{world_size} ranks do not make pipelines of {args.pipeline}")
    replicas = world_size // args.pipeline
    mesh = init_device_mesh(device.type, (replicas, args.pipeline), mesh_dim_names=("data", "pipeline"))

    # 2. The model: made without memory; this rank fills the layers of its own stages.
    model = tower_on_meta(width=args.width)
    schedule = getattr(makers, args.schedule)(args.micro_batches, args.pipeline)
    balance = even_balance(len(model), schedule.stages)
    for stage, owner in schedule.rank_of.items():
        if owner == mesh.get_local_rank("pipeline"):
            begin = sum(balance[:stage])
            fill(model[begin : begin + balance[stage]], begin, args.seed)
    pipeline = DistributedPipeline(model, balance, schedule, cross_entropy, mesh=mesh, device=device)
    optimizer = torch.optim.SGD(pipeline.parameters(), lr=0.01, momentum=0.9)

    # 3. The data: rows are dealt to replicas. The first stage decodes images, the last one reads targets.
    folder = write_digits(args.data)
    meta = MetaFile(folder / "train.txt")
    dataset = RankDataset(meta, replicas, pipeline.data_rank, args.seed, mini_epochs=2)
    collate = partial(as_batch, folder, pipeline.first, pipeline.last)
    share: dict[str, Any] = {"batch_size": args.batch_size // replicas, "collate_fn": collate}
    if args.workers:
        share |= {"num_workers": args.workers, "multiprocessing_context": "fork"}
    loads = pipeline.first or pipeline.last
    epochs = args.steps  # more than enough
    batches = loaded(dataset, epochs, share) if loads else repeat(NOTHING)

    # 4. Train.
    log = StepLog(args.out, rank)
    steps = zip(range(args.steps), batches, strict=False)
    for step, (epoch, mini_epoch, images, targets, rows) in steps:
        recorded = step >= args.steps - args.record
        if recorded:
            dist.barrier()  # so that all begin together: a picture of one step, not of two
        start = time.time()
        with Recorder(args.out / f"spans{step}") if recorded else nullcontext():
            optimizer.zero_grad()
            loss = pipeline.step(images, targets)  # forward, backward, and the mean over replicas
        optimizer.step()
        loss = 0.0 if loss is None else loss.item()  # known where the last stage is
        log.write(Step(0, world_size, rank, epoch, mini_epoch, step, rows, loss, start, time.time()))
    held = sum(p.numel() for p in model.parameters() if not p.is_meta)
    has = " and ".join(
        what for what, here in (("images", pipeline.first), ("targets", pipeline.last)) if here
    )
    print(f"{device}, stages {[*pipeline.stages]}: {held:,} parameters, loads {has or 'nothing'}")

    # 5. Leave behind: who I was, and my weights.
    own = {name: p.detach().cpu() for name, p in model.named_parameters() if not p.is_meta}
    torch.save(own, args.out / f"weights{rank}.pt")
    (args.out / f"place{rank}.json").write_text(json.dumps(place_of(pipeline)))
    leave()


if __name__ == "__main__":
    main()
