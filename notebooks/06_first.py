"""Train a small network on the digits, on as many ranks as torchrun starts. Notebook 06 starts it; so can you:

PYTHONPATH=.. torchrun --nproc-per-node 2 06_first.py weights.pt
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

from lib.training.launch import leave
from support.digits import Digits, write_digits

cuda = torch.cuda.is_available()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
dist.init_process_group("nccl" if cuda else "gloo")
rank = dist.get_rank()
world_size = dist.get_world_size()

torch.manual_seed(rank)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10)).double().to(device)
ddp = DDP(model)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.5)

digits = Digits(write_digits(), "train")
sampler = DistributedSampler(digits, shuffle=True, seed=0)
loader = DataLoader(digits, batch_size=60 // world_size, sampler=sampler, drop_last=True)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for images, targets in loader:
        loss = nn.functional.cross_entropy(ddp(images.double().to(device)), targets.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} on {device}: {len(loader)} steps of {len(images)} rows, loss {loss.item():.3f}")

if rank == 0:
    torch.save(model.state_dict(), sys.argv[1])
leave()
