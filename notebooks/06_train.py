"""Train a small CLIP on the digits, on as many ranks as torchrun starts. Notebook 16 starts it; so can you:

    PYTHONPATH=.. torchrun --nproc-per-node 2 06_train.py --out run

Every rank runs this whole file. It knows the others only by its number and by what they all-reduce. Killed at any time
and started again with the same --out, on any number of ranks, it goes on from the last saved state.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import signal
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from lib.data import DistributedSampler, MetaFile, NaiveDataset, RankDataset, mini_epoch_loaders
from lib.text import plural
from lib.training.launch import leave, meet
from lib.training.state import load_state, save_state
from support.digits import decode_image, parse_row, write_digits
from support.training import (
    Step,
    StepLog,
    TinyClip,
    accuracy,
    caption_loss,
    global_losses,
    next_attempt,
    read_steps,
    surviving,
)


def arguments() -> argparse.Namespace:
    """Read the command line; it is the same on every rank."""
    parser = argparse.ArgumentParser(description="Train a small CLIP on the digits, under torchrun.")
    parser.add_argument("--out", type=Path, required=True, help="folder of logs, state and result")
    parser.add_argument("--data", type=Path, default=Path("data/digits"), help="made if it is not there")
    parser.add_argument("--dataset", choices=("rank", "sampler"), default="rank")
    parser.add_argument("--mini-epochs", type=int, default=2, help="with --dataset rank")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64, help="of all ranks together")
    parser.add_argument("--learning-rate", type=float, default=0.005)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=0, help="of each rank's DataLoader")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="GPUs, if torch sees any")
    parser.add_argument("--save-every", type=int, default=5, help="steps")
    parser.add_argument("--state", type=Path, help="file with save and load of your own (notebook 16)")
    parser.add_argument("--fail-rank", type=int, default=-1, help="fails, in the first attempt")
    parser.add_argument("--fail-at", type=int, default=0, help="in this step")
    parser.add_argument(
        "--fail-attempt", type=int, default=0, help="of this attempt, counted over all starts"
    )
    parser.add_argument("--fail-how", choices=("kill", "raise", "exit"), default="kill")
    return parser.parse_args()


def start_rank(wanted: str | None) -> tuple[int, int, torch.device]:
    """Meet the other ranks; return this rank, how many there are, and the device.

    Raises RuntimeError where GPUs are wanted (or torch sees some) and this machine has fewer than ranks: a job that
    went on with the CPU would be a hundred times slower, and nobody would be told.
    """
    local_rank = int(os.environ["LOCAL_RANK"])
    local_ranks = int(os.environ["LOCAL_WORLD_SIZE"])
    gpus = torch.cuda.device_count()
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
        torch.cuda.set_device(device)  # else NCCL would guess
    patience = timedelta(seconds=60)  # nobody waits for ever
    store, rank, world_size = meet(patience)  # in a store that is new for each attempt
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=patience)
    return rank, world_size, device


def fail(how: str, step: int) -> None:
    """Fail on purpose."""
    if how == "raise":
        raise ValueError(f"the planted error in step {step}")
    sys.exit(3) if how == "exit" else os.kill(os.getpid(), signal.SIGKILL)


Dealer = RankDataset | DistributedSampler


def as_batch(
    folder: Path, device: torch.device, rows: list[str]
) -> tuple[torch.Tensor, list[str], list[int]]:
    """Read the images of some rows; return them with their captions and row numbers."""
    names, captions = zip(*map(parse_row, rows), strict=True)
    images = torch.stack([decode_image(folder / name) for name in names]).to(device)
    return images, list(captions), [int(Path(name).stem) - 1 for name in names]  # img/0001.png is row 0


def deal(meta: MetaFile, rank: int, world_size: int, args: argparse.Namespace) -> Dealer:
    """Return who deals a rank its rows: places rank, rank + W, rank + 2 W, … of an order that all ranks agree on."""
    if args.dataset == "rank":
        return RankDataset(meta, world_size, rank, args.seed, mini_epochs=args.mini_epochs)
    return DistributedSampler(NaiveDataset(meta), world_size, rank, seed=args.seed)


def loaders(dealer: Dealer, epoch: int, share: dict[str, Any]) -> Iterator[DataLoader[Any]]:
    """Return the loaders of an epoch, one for each mini-epoch; share: arguments that they have in common."""
    if isinstance(dealer, RankDataset):
        return mini_epoch_loaders(dealer, epoch, **share)
    dealer.set_epoch(epoch)
    all_rows: Any = dealer.dataset
    return iter([DataLoader(all_rows, sampler=dealer, **share)])


class Part(NamedTuple):
    """What a rank has of a batch of all ranks, which takes the places `begin` to `end` of an epoch's order.

    rows: the numbers of those that count. Images and captions are as many on every rank, and may be more.
    """

    epoch: int
    mini_epoch: int
    begin: int
    end: int
    images: torch.Tensor
    captions: list[str]
    rows: tuple[int, ...]


def parts(dealer: Dealer, size: int, epochs: range, consumed: int, share: dict[str, Any]) -> Iterator[Part]:
    """Yield this rank's part of each batch of some epochs of `size` rows; `consumed` of the first are done with."""
    world_size = dist.get_world_size()
    begin = consumed
    for epoch in epochs:
        for loader in loaders(dealer, epoch, share):
            for images, captions, rows in loader:
                # All ranks have equally many rows. Past the end of the order it begins anew: those don't count.
                end = min(size, begin + len(rows) * world_size)
                counting = len(range(begin + dist.get_rank(), end, world_size))
                mini_epoch = getattr(dealer, "mini_epoch", 0)
                yield Part(epoch, mini_epoch, begin, end, images, captions, tuple(rows[:counting]))
                begin = end
        begin = 0


def train_on(ddp: nn.Module, optimizer: torch.optim.Optimizer, part: Part) -> float:
    """Make one step; return the mean loss of this rank's rows, 0.0 where none counts."""
    losses = caption_loss(ddp, part.images, part.captions, reduction="none")[: len(part.rows)]
    # DDP takes the mean over ranks; what counts is the sum over all rows by their number.
    optimizer.zero_grad()
    (losses.sum() * dist.get_world_size() / (part.end - part.begin)).backward()
    optimizer.step()
    return losses.sum().item() / max(1, len(part.rows))


def evaluate(model: TinyClip, folder: Path, collate: Callable[[list[str]], Any]) -> dict[str, Any]:
    """Return the share of the test rows that are right, over all ranks, and how many rows there are.

    Each row counts once, so shares may differ by one: hence no padding, and no collective in the loop.
    """
    test = NaiveDataset(MetaFile(folder / "test.txt"))
    sampler = DistributedSampler(test, dist.get_world_size(), dist.get_rank(), shuffle=False, pad=False)
    right = accuracy(model, DataLoader(test, 64, sampler=sampler, collate_fn=collate))
    return {"accuracy": right, "test_rows": len(test)}


@record  # torchrun is told which error a rank ended with, not only that it did
def main() -> None:
    """Train, save, evaluate."""
    args = arguments()
    began = time.time()
    rank, world_size, device = start_rank(args.device)
    if args.batch_size % world_size:
        raise ValueError(f"a batch of {args.batch_size} can't be shared evenly by {world_size} ranks")
    args.out.mkdir(parents=True, exist_ok=True)
    own = runpy.run_path(str(args.state)) if args.state else {}
    folder = write_digits(args.data)
    state_file = args.out / ("state.pt" if own else "state.npz")
    attempt = next_attempt(args.out)

    # 1. The data, read where this rank needs it.
    meta = MetaFile(folder / "train.txt")
    collate = partial(as_batch, folder, device)
    share = {"batch_size": args.batch_size // world_size, "num_workers": args.workers, "collate_fn": collate}
    dealer = deal(meta, rank, world_size, args)

    # 2. The model, the same on every rank; and where an earlier attempt has left off.
    model = TinyClip(seed=args.seed).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.learning_rate)
    step = first_epoch = consumed = 0
    identity = {"seed": args.seed, "text": zlib.crc32(meta.path.read_bytes())}
    if state_file.exists():
        into = (state_file, model, optimizer)
        state = own["load"](*into) if own else load_state(*into, identity)
        dealer.load_state_dict(state["dealer"])
        step = state["step"]
        first_epoch = state["dealer"]["epoch"]
        consumed = state["dealer"]["consumed"]

    # 3. Train.
    ddp = DistributedDataParallel(model)
    log = StepLog(args.out, rank)
    for part in parts(dealer, len(meta), range(first_epoch, args.epochs), consumed, share):
        start = time.time()
        if (rank, step, attempt) == (args.fail_rank, args.fail_at, args.fail_attempt):
            fail(args.fail_how, step)
        loss = train_on(ddp, optimizer, part)
        where = (attempt, world_size, rank, part.epoch, part.mini_epoch, step)
        log.write(Step(*where, part.rows, loss, start, time.time()))
        step += 1
        if rank == 0 and step % args.save_every == 0:
            more = {"step": step, "dealer": dealer.state_dict(part.end)}
            if own:
                own["save"](state_file, model, optimizer, more)
            else:
                save_state(state_file, model, optimizer, identity, **more)

    # 4. Evaluate.
    result = evaluate(model, folder, collate)
    dist.barrier()  # now the logs of all ranks are complete
    if rank == 0:
        result |= {"world_size": world_size, "attempts": attempt + 1, "backend": dist.get_backend()}
        result |= {"losses": global_losses(surviving(read_steps(args.out))), "seconds": time.time() - began}
        (args.out / "result.json").write_text(json.dumps(result) + "\n")
        found = f"accuracy {result['accuracy']:.3f} on {result['test_rows']} test rows"
        print(f"{step} steps on {world_size} ranks ({device}), {found}")
    leave()


if __name__ == "__main__":
    main()
