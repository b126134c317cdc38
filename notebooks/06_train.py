"""Train a small CLIP on the digits, on as many ranks as torchrun starts. Notebook 06 starts it; so can you:

    torchrun --nproc-per-node 2 06_train.py --out run

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
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
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
    parser.add_argument("--state", type=Path, help="file with save and load of your own (notebook 06)")
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


def as_batch(
    folder: Path, device: torch.device, rows: list[str]
) -> tuple[torch.Tensor, list[str], list[int]]:
    """Read the images of some rows; return them with their captions and row numbers."""
    names, captions = zip(*map(parse_row, rows), strict=True)
    images = torch.stack([decode_image(folder / name) for name in names]).to(device)
    return images, list(captions), [int(Path(name).stem) - 1 for name in names]  # img/0001.png is row 0


def loaders(
    dealer: RankDataset | DistributedSampler, epoch: int, share: dict[str, Any]
) -> Iterator[DataLoader[Any]]:
    """Return the loaders of an epoch, one for each mini-epoch; share: arguments that they have in common."""
    if isinstance(dealer, RankDataset):
        return mini_epoch_loaders(dealer, epoch, **share)
    dealer.set_epoch(epoch)
    all_rows: Any = dealer.dataset
    return iter([DataLoader(all_rows, sampler=dealer, **share)])


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

    # 1. The data. Both ways deal places rank, rank + W, rank + 2 W, … of an order that all ranks agree on.
    meta = MetaFile(folder / "train.txt")
    collate = partial(as_batch, folder, device)
    share: dict[str, Any] = {"batch_size": args.batch_size // world_size, "collate_fn": collate}
    share |= {"num_workers": args.workers}
    dealer: RankDataset | DistributedSampler
    if args.dataset == "rank":
        dealer = RankDataset(meta, world_size, rank, args.seed, mini_epochs=args.mini_epochs)
    else:
        dealer = DistributedSampler(NaiveDataset(meta), world_size, rank, seed=args.seed)

    # 2. The model, the same on every rank; and where an earlier attempt has left off.
    model = TinyClip(seed=args.seed).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.learning_rate)
    step = first_epoch = consumed = 0
    identity = {"seed": args.seed, "text": zlib.crc32(meta.path.read_bytes())}
    if state_file.exists():
        into = (state_file, model, optimizer)
        state = own["load"](*into) if own else load_state(*into, identity)
        dealer.load_state_dict(state["dealer"])
        step, first_epoch, consumed = state["step"], state["dealer"]["epoch"], state["dealer"]["consumed"]
    ddp, log = DistributedDataParallel(model), StepLog(args.out, rank)

    # 3. Train.
    for epoch in range(first_epoch, args.epochs):
        for loader in loaders(dealer, epoch, share):
            for images, captions, rows in loader:
                start = time.time()
                if (rank, step, attempt) == (args.fail_rank, args.fail_at, args.fail_attempt):
                    fail(args.fail_how, step)
                # All ranks have equally many rows. Past the end of the order it begins anew: those don't count.
                end = min(len(meta), consumed + len(rows) * world_size)
                mine = len(range(consumed + rank, end, world_size))
                losses = caption_loss(ddp, images, captions, reduction="none")[:mine]
                # DDP takes the mean over ranks; what counts is the sum over all rows by their number.
                optimizer.zero_grad()
                (losses.sum() * world_size / (end - consumed)).backward()
                optimizer.step()
                where = (attempt, world_size, rank, epoch, getattr(dealer, "mini_epoch", 0), step)
                loss = losses.sum().item() / max(1, mine)
                log.write(Step(*where, tuple(rows[:mine]), loss, start, time.time()))
                consumed = end
                step += 1
                if rank == 0 and step % args.save_every == 0:
                    more = {"step": step, "dealer": dealer.state_dict(consumed)}
                    if own:
                        own["save"](state_file, model, optimizer, more)
                    else:
                        save_state(state_file, model, optimizer, identity, **more)
        consumed = 0

    # 4. Evaluate: each test row once, so shares may differ by one. Hence no padding, and no collective in the loop.
    test = NaiveDataset(MetaFile(folder / "test.txt"))
    part = DistributedSampler(test, world_size, rank, shuffle=False, pad=False)
    right = accuracy(model, DataLoader(test, 64, sampler=part, collate_fn=collate))
    dist.barrier()  # now the logs of all ranks are complete
    if rank == 0:
        result: dict[str, Any] = {"accuracy": right, "test_rows": len(test)}
        result |= {"world_size": world_size, "attempts": attempt + 1, "backend": dist.get_backend()}
        result |= {"losses": global_losses(surviving(read_steps(args.out))), "seconds": time.time() - began}
        (args.out / "result.json").write_text(json.dumps(result) + "\n")
        print(f"{step} steps on {world_size} ranks ({device}), accuracy {right:.3f} on {len(test)} test rows")
    leave()


if __name__ == "__main__":
    main()
