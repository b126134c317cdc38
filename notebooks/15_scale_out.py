"""Train an image tower on replicas x pipeline, as many ranks as torchrun starts. Notebook 15 starts it; so can you:

    torchrun --nproc-per-node 4 15_scale_out.py --pipeline 2 --out run

Every rank runs this whole file: with 4 ranks and --pipeline 2 there are 2 replicas of the model, each cut in 2 stages.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.functional import cross_entropy

from lib import schedules as makers
from lib.data import MetaFile, RankDataset, mini_epoch_loaders
from lib.schedules.distributed import DistributedPipeline
from lib.timeline import Recorder
from lib.training.launch import leave, meet
from support.digits import decode_image, digit_of, parse_row, write_digits
from support.n15.runs import even_balance, tower
from support.training import Step, StepLog


def arguments() -> argparse.Namespace:
    """Read the command line; it is the same on every rank."""
    parser = argparse.ArgumentParser(
        description="Train an image tower on replicas x pipeline, under torchrun."
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of logs, spans and weights")
    parser.add_argument("--data", type=Path, default=Path("data/digits"), help="made if it is not there")
    parser.add_argument("--pipeline", type=int, default=2, help="ranks of a pipeline")
    parser.add_argument("--schedule", default="one_f_one_b", help="gpipe, one_f_one_b, zero_bubble_h1 …")
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=320, help="of all replicas together")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--record", type=int, default=8, help="record the spans of so many last steps")
    parser.add_argument(
        "--deal", choices=("replica", "rank"), default="replica", help="who gets rows of its own"
    )
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def join() -> tuple[int, int, torch.device]:
    """Meet the other ranks; return this rank, how many there are, and the device."""
    patience = timedelta(seconds=60)  # nobody waits for ever
    store, rank, world_size = meet(patience)
    gpu = torch.cuda.is_available() and torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    backend, device = (
        ("nccl", torch.device("cuda", int(os.environ["LOCAL_RANK"])))
        if gpu
        else ("gloo", torch.device("cpu"))
    )
    if gpu:
        torch.cuda.set_device(device)  # its number on this machine, not among all ranks
    bound = {"device_id": device} if gpu else {}  # else NCCL guesses the GPU, and connects late
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=patience, **bound)
    return rank, world_size, device


@record  # torchrun is told which error a rank ended with, not only that it did
def main() -> None:
    """Find this rank's place, build its stages, load its rows, train."""
    args = arguments()
    rank, world_size, device = join()
    args.out.mkdir(parents=True, exist_ok=True)

    # 1. The mesh: which replica am I in, and where in its pipeline?
    if world_size % args.pipeline:
        raise ValueError(f"{world_size} ranks do not make pipelines of {args.pipeline}")
    replicas = world_size // args.pipeline
    mesh = init_device_mesh(device.type, (replicas, args.pipeline), mesh_dim_names=("data", "pipeline"))

    # 2. The model: every rank makes all of it, alike, and keeps its stages.
    model = tower(seed=args.seed).double()  # so that rounding can't be taken for a mistake
    schedule = getattr(makers, args.schedule)(args.micro_batches, args.pipeline)
    balance = even_balance(len(model), schedule.stages)
    pipeline = DistributedPipeline(model, balance, schedule, cross_entropy, mesh=mesh, device=device)
    optimizer = torch.optim.SGD(pipeline.parameters(), lr=0.01, momentum=0.9)

    # 3. The data: dealt to replicas. The ranks of one replica load the same rows.
    shares, mine = (replicas, pipeline.data_rank) if args.deal == "replica" else (world_size, rank)
    folder = write_digits(args.data)
    dataset = RankDataset(MetaFile(folder / "train.txt"), shares, mine, args.seed, mini_epochs=2)

    def collate(rows: list[str]) -> tuple[Tensor, Tensor, tuple[int, ...]]:
        names, captions = zip(*map(parse_row, rows), strict=True)
        images = torch.stack([decode_image(folder / name) for name in names])
        numbers = tuple(int(Path(name).stem) - 1 for name in names)  # img/0001.png is row 0
        return images.double(), torch.tensor([digit_of(caption) for caption in captions]), numbers

    def batches() -> Iterator[tuple[int, int, Tensor, Tensor, tuple[int, ...]]]:
        for epoch in range(args.steps):  # more than enough
            share = args.batch_size // replicas
            for loader in mini_epoch_loaders(
                dataset, epoch, batch_size=share, collate_fn=collate, drop_last=True
            ):
                for batch in loader:
                    yield epoch, dataset.mini_epoch, *batch

    # 4. Train. The first stage takes the images, the last one the targets; what is between takes what comes.
    log = StepLog(args.out, rank)
    for step, (epoch, mini_epoch, images, targets, rows) in zip(range(args.steps), batches(), strict=False):
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

    # 5. Leave behind: who I was, and what my stages have learned.
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR")
    place = {name: os.environ[name] for name in names}
    place |= {"data": pipeline.data_rank, "pipeline": pipeline.pipeline_rank, "stages": [*pipeline.stages]}
    place |= {"backend": dist.get_backend(), "last": pipeline.last}
    (args.out / f"place{rank}.json").write_text(json.dumps(place))
    weights = {name: value.cpu().numpy() for name, value in pipeline.state_dict().items()}
    np.savez(args.out / f"weights{rank}.npz", allow_pickle=False, **weights)
    leave()


if __name__ == "__main__":
    main()
