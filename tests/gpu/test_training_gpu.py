"""Training on GPU ranks: NCCL is taken where each rank has a GPU, and the run is the one that CPU ranks make."""

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lib.training.launch import RankError, torchrun
from lib.training.state import load_state
from support.training import TinyClip, read_steps, surviving

#: The ranks are processes of their own, and NCCL speaks to CUDA only.
pytestmark = [pytest.mark.ranks, pytest.mark.cuda_only(reason="NCCL")]
SCRIPT = Path(__file__).parents[2] / "notebooks" / "06_train.py"
NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}
two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA GPUs, one for each rank")


def train(digits: Path, out: Path, *arguments: object, ranks: int, **more: Any) -> dict[str, Any]:
    settings = ("--data", digits, "--out", out, "--epochs", 1, "--dataset", "sampler", "--save-every", 1)
    torchrun(SCRIPT, *settings, *arguments, ranks=ranks, timeout=240, quiet=True, **more)
    return dict(json.loads((out / "result.json").read_text()))


@pytest.fixture(scope="module")
def on_cpu(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return train(digits, tmp_path_factory.mktemp("cpu"), ranks=1, environment=NO_GPU)


def assert_same_run(gpu: dict[str, Any], cpu: dict[str, Any]) -> None:
    assert (gpu["backend"], cpu["backend"]) == ("nccl", "gloo")
    # TF32 convolutions: three digits at first, then each step inherits the last one's difference
    assert gpu["losses"][:3] == pytest.approx(cpu["losses"][:3], rel=0.01)
    assert gpu["losses"][-1] == pytest.approx(cpu["losses"][-1], rel=0.5)
    assert abs(gpu["accuracy"] - cpu["accuracy"]) < 0.05


def test_a_rank_with_a_gpu_trains_as_one_without_and_its_state_loads_on_a_cpu(digits, on_cpu, tmp_path):
    result = train(digits, tmp_path, ranks=1)
    assert_same_run(result, on_cpu)
    model = TinyClip()
    before = model.words.weight.detach().clone()
    with np.load(tmp_path / "state.npz", allow_pickle=False) as file:
        text = json.loads(str(file["json"]))
    more = load_state(tmp_path / "state.npz", model, torch.optim.Adam(model.parameters()), text["identity"])
    assert more["step"] == len(result["losses"]) and not torch.equal(model.words.weight, before)


def test_more_ranks_than_gpus_are_refused_unless_they_ask_for_the_cpu(digits, on_cpu, tmp_path):
    if torch.cuda.device_count() > 3:
        pytest.skip(f"{torch.cuda.device_count()} GPUs are enough for four ranks")
    with pytest.raises(RankError, match="4 ranks on this machine, but torch sees"):
        train(digits, tmp_path, ranks=4)
    result = train(digits, tmp_path, "--device", "cpu", ranks=4)
    assert result["backend"] == "gloo"
    assert result["losses"][:3] == pytest.approx(on_cpu["losses"][:3], rel=1e-4)


@two_gpus
def test_two_ranks_on_two_gpus_train_as_one_on_the_cpu(digits: Path, on_cpu: dict[str, Any], tmp_path: Path) -> None:
    assert_same_run(train(digits, tmp_path, ranks=2), on_cpu)


@two_gpus
def test_a_rank_that_is_killed_ends_its_nccl_peer_and_a_restart_counts_every_row_once(digits: Path, tmp_path: Path):
    fault = ("--fail-rank", 1, "--fail-at", 12, "--fail-how", "kill")
    with pytest.raises(RankError) as caught:
        train(digits, tmp_path / "dead", *fault, ranks=2)
    assert (caught.value.rank, caught.value.exitcode) == (1, -signal.SIGKILL)
    train(digits, tmp_path / "again", *fault, ranks=2, max_restarts=1)
    rows = [row for step in surviving(read_steps(tmp_path / "again")) for row in step.rows]
    assert sorted(rows) == list(range(1437))
