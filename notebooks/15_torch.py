"""What torch does by itself, in two ranks, without lib.pipeline. Notebook 15 starts it; argument: a folder.

1  The tower as a pipeline of two ranks, 1F1B, on the batch that lies in the folder.
2  Two replicas in DDP, each a pipeline of two stages in one rank, with a whole backward and with a split one.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.elastic.multiprocessing.errors import record
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS,
)
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from lib.training.launch import leave
from support.n15.runs import tower


@record
def main() -> None:
    """Do both, and write what came out: rank 0's gradients, and whether they are those of rank 1."""
    folder, cpu, found = Path(sys.argv[1]), torch.device("cpu"), {}
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    with np.load(folder / "batch.npz") as file:
        images, targets = torch.from_numpy(file["images"]), torch.from_numpy(file["targets"])

    # 1. A pipeline of two ranks.
    part = tower().double()[4 * rank : 4 * rank + 4]
    stage = PipelineStage(part, stage_index=rank, num_stages=2, device=cpu)
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=cross_entropy)
    losses: list[torch.Tensor] = []
    if rank == 0:
        schedule.step(images)
    else:
        schedule.step(target=targets, losses=losses)
        (folder / "torch.json").write_text(json.dumps(torch.stack(losses).mean().item()))

    # 2. Two replicas. Each takes half of the batch; DDP should give both the same gradients.
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("data", "pipeline"))
    data, alone = mesh["data"].get_group(), mesh["pipeline"].get_group()
    for name, kind in {"whole": ScheduleLoopedBFS, "split": ScheduleInterleavedZeroBubble}.items():
        model = tower().double()
        parts = [
            DistributedDataParallel(model[:4], process_group=data),
            DistributedDataParallel(model[4:], process_group=data),
        ]
        stages = [PipelineStage(part, j, 2, cpu, group=alone) for j, part in enumerate(parts)]
        kind(stages, n_microbatches=4, loss_fn=cross_entropy).step(images[rank::2], target=targets[rank::2])
        for j, part in enumerate(parts):
            mine = torch.cat([parameter.grad.flatten() for parameter in part.parameters()])
            both = [torch.empty_like(mine) for _ in range(2)]
            dist.all_gather(both, mine)
            found[f"{name} backward, stage {j}"] = torch.equal(*both)
    if rank == 0:
        (folder / "ddp.json").write_text(json.dumps(found))
    leave()


if __name__ == "__main__":
    main()
