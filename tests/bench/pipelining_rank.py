"""A rank of torch.distributed.pipelining for bench_executor: when told, it does a step and says how long."""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from tests.bench.bench_executor import MICRO_BATCHES, POLL, data, stages


def main(folder: Path) -> None:
    """Do a step whenever a file go-K-NAME appears; rank 0 answers with took-K-NAME. End when there is a file `stop`."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    module, (x, target) = stages()[rank], data()
    stage = PipelineStage(module, rank, 2, torch.device("cpu"))
    schedules = {
        "GPipe": ScheduleGPipe(stage, MICRO_BATCHES, loss_fn=nn.functional.mse_loss),
        "1F1B": Schedule1F1B(stage, MICRO_BATCHES, loss_fn=nn.functional.mse_loss),
    }
    done: set[str] = set()
    while not (folder / "stop").exists():
        new = sorted(path.name for path in folder.glob("go-*") if path.name not in done)
        for name in new:
            done.add(name)
            module.zero_grad()
            dist.barrier()
            began = time.perf_counter()
            schedule = schedules[name.split("-")[2]]
            schedule.step(x) if rank == 0 else schedule.step(target=target, losses=[])
            dist.barrier()
            took = time.perf_counter() - began
            if rank == 0:
                (folder / f"{name}.part").write_text(str(took))
                (folder / f"{name}.part").rename(folder / name.replace("go", "took", 1))
        time.sleep(POLL)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
