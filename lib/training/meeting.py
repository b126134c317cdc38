"""Where the ranks of one attempt meet, and how they part.

torchrun keeps its store when it starts the ranks anew, and with it the addresses of the dead ones; the new ones take
them for each other's: "Connection refused" (torch 2.13; pytorch #135712, #167288). So each attempt writes under a name
of its own. Without restarts, `init_process_group("gloo")` alone does the same.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous


def meet(timeout: timedelta) -> tuple[Store, int, int]:
    """Return store, rank and world size, for `init_process_group`, of a process that torchrun has started."""
    if "TORCHELASTIC_RESTART_COUNT" not in os.environ:
        raise RuntimeError(
            "this process has no rank: start the script with torchrun --nproc-per-node RANKS SCRIPT, or from Python "
            "with lib.training.launch.torchrun"
        )
    store, rank, world_size = next(rendezvous("env://", timeout=timeout))
    return PrefixStore(f"attempt {os.environ['TORCHELASTIC_RESTART_COUNT']}", store), rank, world_size


def leave() -> None:
    """Wait for the others, leave the group, and end this process: the last line of a rank that has done its work.

    DistributedDataParallel keeps gloo's threads alive. One that lets go of its last tensor while Python is being taken
    down aborts the process (SIGABRT, now and then, on a busy machine; pytorch #179291). So Python is not taken down.
    """
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
