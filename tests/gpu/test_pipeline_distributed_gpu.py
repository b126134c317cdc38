"""The bridge on GPUs with NCCL: one GPU with several stages on it, two as a pipeline, four as two replicas of one."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from lib import schedules as tables
from lib.timeline import Recorder
from lib.training.launch import torchrun

#: The ranks are processes of their own, and NCCL speaks to CUDA only.
pytestmark = pytest.mark.cuda_only(reason="NCCL")

SCRIPT = """
import json, os, sys
from pathlib import Path
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.functional import mse_loss
from lib.schedules.distributed import DistributedPipeline
from lib.schedules.makers import MAKERS
from lib.timeline import Recorder
from lib.training.launch import leave

folder, partitions = Path(sys.argv[1]), int(sys.argv[2])
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
rank, replicas = dist.get_rank(), dist.get_world_size() // partitions
mesh = init_device_mesh("cuda", (replicas, partitions), mesh_dim_names=("data", "pipeline"))
torch.manual_seed(0)
build = lambda: nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(16, 16), nn.Tanh())])
weights, (x, y) = build().state_dict(), torch.randn(2, 16 * replicas, 16)
here, seen = slice(rank // partitions * 16, rank // partitions * 16 + 16), {}
for name in sys.argv[3].split(","):
    schedule = MAKERS[name].table(4, partitions, 2)
    whole, mine = build(), build()
    whole.load_state_dict(weights)
    mine.load_state_dict(weights)
    pipeline = DistributedPipeline(mine, [8 // schedule.stages] * schedule.stages, schedule, mse_loss, mesh=mesh)
    recorder, off = Recorder(folder / name), []
    for step in range(2):
        whole.zero_grad()
        mse_loss(whole(x), y).backward()
        for stage in pipeline.stages.values():
            stage.zero_grad()
        with recorder:
            pipeline.step(x[here], y[here])
        gradients = {key: parameter.grad for key, parameter in whole.named_parameters()}
        off += [(p.grad.cpu() - gradients[key]).abs().max().item()
                for stage in pipeline.stages.values() for key, p in stage.named_parameters()]
    seen[name] = {"off": max(off), "device": str(next(pipeline.parameters()).device)}
(folder / f"seen{rank}.json").write_text(json.dumps(seen))
leave()
"""


def launch(folder: Path, makers: tuple[str, ...], partitions: int, ranks: int) -> list[dict[str, Any]]:
    (folder / "script.py").write_text(SCRIPT)
    torchrun(folder / "script.py", folder, partitions, ",".join(makers), ranks=ranks, timeout=280, quiet=True)
    return [json.loads((folder / f"seen{rank}.json").read_text()) for rank in range(ranks)]


def assert_equal_to_the_cpu(seen: list[dict[str, Any]]) -> None:
    for rank, results in enumerate(seen):
        for found in results.values():
            assert found["off"] < 1e-3 and found["device"] == f"cuda:{rank}"  # TF32 may be on


def test_all_stages_on_one_gpu_are_the_plain_model(tmp_path: Path) -> None:
    assert_equal_to_the_cpu(launch(tmp_path, ("looped BFS", "ZB-V"), partitions=1, ranks=1))
    spans = Recorder(tmp_path / "looped BFS").trace()
    assert len(spans) == 2 * len([*tables.looped_bfs(4, 1, 2)]) and all(span.duration > 0 for span in spans)


@pytest.mark.parametrize("ranks", [2, 4], ids=["a pipeline", "two replicas, on all rows"])
def test_pipelines_of_two_gpus_are_the_plain_model(tmp_path: Path, ranks: int) -> None:
    if torch.cuda.device_count() < ranks:
        pytest.skip(f"needs {ranks} CUDA GPUs, one for each rank")
    makers = ("GPipe", "1F1B", "looped BFS", "ZB-V", "zero bubble (ZB-H1)")
    assert_equal_to_the_cpu(launch(tmp_path, makers, partitions=2, ranks=ranks))
