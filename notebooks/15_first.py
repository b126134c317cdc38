"""Train the reader's pipeline on as many ranks as torchrun starts, two stages a replica. Notebook 15 starts it.

Argument: a folder with mine.py (`pipeline_step` and `average`, which a cell of the notebook writes) and rows.pt.
"""

import os
import runpy
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from lib.training.launch import leave
from support.n15.tower import tower

folder = Path(sys.argv[1])
mine = runpy.run_path(str(folder / "mine.py"))
pipeline_step = mine["pipeline_step"]
average = mine["average"]

dist.init_process_group("gloo")
rank = dist.get_rank()
replicas = dist.get_world_size() // 2
mesh = init_device_mesh("cpu", (replicas, 2), mesh_dim_names=("data", "pipeline"))
replica = mesh.get_local_rank("data")
j = mesh.get_local_rank("pipeline")
before, behind = (None, rank + 1) if j == 0 else (rank - 1, None)

part = tower()[4 * j : 4 * j + 4]
optimizer = torch.optim.SGD(part.parameters(), lr=0.02, momentum=0.9)
images, targets, batches = torch.load(folder / "rows.pt")
losses = []
for batch in batches:
    rows = batch[replica::replicas]
    given = (images[rows] if j == 0 else None, targets[rows] if j == 1 else None)
    optimizer.zero_grad()
    losses.append(pipeline_step(part, *given, 4, before, behind, (len(rows) // 4, 192), dist))
    average(part.parameters(), replicas, mesh.get_group("data"), dist)
    optimizer.step()

place = {name: os.environ[name] for name in ("RANK", "GROUP_RANK", "LOCAL_RANK", "MASTER_ADDR")}
torch.save((place, replica, j, losses, part.state_dict()), folder / f"first{rank}.pt")
leave()  # wait for the others, then end the group and this process
