"""Training on real ranks: the same gradients, the same losses, every row once, also when a rank dies on the way.

A rank that starts imports torch and makes its first DDP: four seconds of a core, the training itself takes less. So
there are two launches, each of several scripts, one after the other:

    2 ranks      the gradients; an epoch undisturbed; one with a kill, a restart and its end; one that ends in a kill
    3 ranks      (costly; notebook 16 does it too) what the last kill has left, gone on with; then an error of its own
      1 of them  the epoch undisturbed, alone; what the last kill has left, gone on with; another seed
"""

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch

from lib.training.launch import RankError, torchrun
from lib.training.state import load_state
from support import training as clip
from support.deals import Deal, load_data, parts
from support.training import CAPTIONS, TinyClip, accuracy, caption_loss, contrastive_loss, global_losses

pytestmark = pytest.mark.ranks
SCRIPT = Path(__file__).parents[3] / "notebooks" / "06_train.py"
ROWS = 1437
TEST_ROWS = 360


@pytest.fixture(scope="module")
def data(digits):
    return load_data(digits)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def result(out):
    return dict(json.loads((out / "result.json").read_text()))


def counts_of_epoch(steps, epoch=0):
    return Counter(row for step in steps if step.epoch == epoch for row in step.rows)


EVERY_ROW_ONCE = Counter(range(ROWS))


JOBS = """
import json, os, runpy, sys, time
from pathlib import Path
import torch.distributed as dist
from lib.training import launch

def leave():  # launch.leave() ends the process; this one goes on
    dist.barrier()
    dist.destroy_process_group()

launch.leave = leave
attempt, ranks = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["WORLD_SIZE"]
for number, (product, refusal, *command) in enumerate(json.loads(sys.argv[1])):
    if Path(product).exists():  # this job was done before the restart
        continue
    alone = command[0] == "alone"
    os.environ["WORLD_SIZE"] = "1" if alone else ranks
    if alone and os.environ["RANK"] != "0":
        while not (Path(product).exists() or refusal and Path(refusal).exists()): time.sleep(0.05)
        continue
    command = command[alone:]
    os.environ["TORCHELASTIC_RESTART_COUNT"] = f"{attempt}{number}"  # the ranks meet anew, under another name
    sys.argv = command
    try:
        runpy.run_path(command[0], run_name="__main__")
    except ValueError as error:
        if not refusal:
            raise
        Path(refusal).write_text(str(error))
        dist.destroy_process_group()
"""
Job: TypeAlias = list[object]


def training(digits, out, *arguments, alone=False, refusal=""):
    """Let the script of notebook 06 train an epoch of 60 rows a step, on all ranks or on rank 0 alone.

    refusal: where a ValueError is written.
    """
    settings = ("--data", digits, "--out", out, "--epochs", 1, "--batch-size", 60)
    return [out / "result.json", refusal, *["alone"] * alone, SCRIPT, *settings, *arguments]


def run_jobs(folder, jobs, ranks, max_restarts=0):
    (folder / "jobs.py").write_text(JOBS)
    text = json.dumps([[str(word) for word in job] for job in jobs])
    with pytest.raises(RankError) as caught:
        torchrun(folder / "jobs.py", text, ranks=ranks, max_restarts=max_restarts, timeout=150, quiet=True)
    return caught.value


FAILS = ("--fail-rank", 1, "--fail-how", "kill", "--fail-at")


@pytest.fixture(scope="module")
def of_two(digits, data, tmp_path_factory):
    """What two ranks leave in their folders, and how they end: rank 1 is killed in `again`, and at last in `killed`."""
    folder = tmp_path_factory.mktemp("of_two")
    (folder / "gradients.py").write_text(GRADIENTS)
    np.savez(folder / "batch.npz", images=data.images[:24].numpy(), digits=data.digits[:24].numpy())
    out = folder / "gradients.npz"
    jobs: list[Job] = [
        [out, "", folder / "gradients.py", folder / "batch.npz", out],
        training(digits, folder / "two", "--dataset", "sampler", "--save-every", 1),
        training(digits, folder / "again", "--dataset", "sampler", *FAILS, 12),
        training(digits, folder / "killed", *FAILS, 18),
    ]
    return folder, run_jobs(folder, jobs, ranks=2, max_restarts=1)


@pytest.fixture(scope="module")
def two_ranks(of_two):
    """An epoch of two ranks with DistributedSampler, undisturbed; the state was saved after every step."""
    return of_two[0] / "two"


@pytest.fixture(scope="module")
def killed(of_two):
    """What is left of two ranks with RankDataset, one of which was killed in the second mini-epoch, and no restart."""
    return of_two[0] / "killed"


@pytest.fixture(scope="module")
def of_three(digits, killed, tmp_path_factory):
    """What three ranks leave, and what one of them leaves alone; at last rank 0 raises."""
    folder = tmp_path_factory.mktemp("of_three")
    for ranks in ("1", "3"):
        shutil.copytree(killed, folder / ranks)
    fault = ("--fail-rank", 0, "--fail-at", 18)
    jobs = [
        training(digits, folder / "3", *fault),
        training(digits, folder / "1", *fault, alone=True),
        training(digits, folder / "one", "--dataset", "sampler", alone=True),
        training(digits, killed, "--seed", 1, alone=True, refusal=folder / "refusal"),
        training(digits, folder / "raises", "--fail-rank", 0, "--fail-at", 0, "--fail-how", "raise"),
    ]
    return folder, run_jobs(folder, jobs, ranks=3)


GRADIENTS = """
import sys, numpy as np, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from support.training import CAPTIONS, TinyClip, caption_loss, contrastive_loss, accuracy
from lib.training.launch import leave
dist.init_process_group("gloo")
rank = dist.get_rank()
images = torch.from_numpy(np.load(sys.argv[1])["images"])
captions = [CAPTIONS[digit] for digit in np.load(sys.argv[1])["digits"]]
part = slice(rank, None, 2)
out = {}

def gradient(name, loss):
    ddp = DistributedDataParallel(TinyClip())
    loss(ddp).backward()
    out[name] = torch.cat([p.grad.flatten() for p in ddp.parameters()]).numpy()

mine = images[part], captions[part]
short = (images[:7], captions[:7]) if rank == 0 else (images[7:], captions[7:])
none = (images[:0], captions[:0]) if rank == 0 else (images, captions)
gradient("caption", lambda m: caption_loss(m, *mine))
gradient("contrastive", lambda m: contrastive_loss(m, *mine))
gradient("uneven, mean of means", lambda m: caption_loss(m, *short))
gradient("uneven, sum over all by their number", lambda m: caption_loss(m, *short, reduction="sum") * 2 / len(images))
gradient("one rank has no row", lambda m: caption_loss(m, *none, reduction="sum") * 2 / len(images))
uneven = [(images[:5], captions[:5]), (images[5:7], captions[5:7])] if rank == 0 else [(images[7:], captions[7:])]
out["accuracy"] = accuracy(TinyClip(), uneven)
if rank == 0:
    np.savez(sys.argv[2], **out)
leave()
"""


@pytest.fixture(scope="module")
def gradients(data, of_two):
    """What rank 0 of 2 has after backward, and what one process has for the whole batch of 24."""
    with np.load(of_two[0] / "gradients.npz", allow_pickle=False) as file:
        found: dict[str, Any] = {name: file[name] for name in file.files}
    captions = [CAPTIONS[digit] for digit in data.digits[:24]]
    for name, loss in (("whole caption", caption_loss), ("whole contrastive", contrastive_loss)):
        model = TinyClip()
        torch.autograd.backward(loss(model, data.images[:24], captions))
        found[name] = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).numpy()
    found["whole accuracy"] = accuracy(TinyClip(), [(data.images[:24], captions)])
    return found


def difference(gradients, name, whole):
    return float(np.abs(gradients[name] - gradients[whole]).max())


@pytest.mark.costly
def test_the_gradient_of_two_ranks_is_that_of_the_whole_batch_if_each_sample_counts_for_itself(gradients):
    assert np.abs(gradients["whole caption"]).max() > 0.1
    assert difference(gradients, "caption", "whole caption") < 1e-6
    assert difference(gradients, "contrastive", "whole contrastive") > 0.01, "CLIP's negatives are the batch"
    assert float(gradients["accuracy"]) == gradients["whole accuracy"], "counts of all ranks are added"
    assert difference(gradients, "uneven, mean of means", "whole caption") > 0.01
    assert difference(gradients, "uneven, sum over all by their number", "whole caption") < 1e-6
    assert difference(gradients, "one rank has no row", "whole caption") < 1e-6


@pytest.mark.costly
def test_one_rank_and_two_have_the_same_losses_and_the_accuracy_of_their_weights_alone(of_three, two_ranks, data):
    one = result(of_three[0] / "one")
    two = result(two_ranks)
    assert len(one["losses"]) == -(-ROWS // 60)
    assert one["losses"] == pytest.approx(two["losses"], rel=1e-3)  # each step inherits the last one's rounding
    assert one["losses"][:3] == pytest.approx(two["losses"][:3], rel=1e-5)
    assert one["losses"][-1] < 0.5 * one["losses"][0]
    assert abs(one["accuracy"] - two["accuracy"]) < 2 / TEST_ROWS
    model = TinyClip()
    with np.load(two_ranks / "state.npz", allow_pickle=False) as file:
        identity = json.loads(str(file["json"]))["identity"]
    load_state(two_ranks / "state.npz", model, torch.optim.Adam(model.parameters()), identity)
    captions = [CAPTIONS[digit] for digit in data.test_digits]
    assert len(captions) == result(two_ranks)["test_rows"] == TEST_ROWS
    assert result(two_ranks)["accuracy"] == accuracy(model, [(data.test_images, captions)])


def test_a_rank_killed_in_mid_epoch_is_started_again_and_ends_where_an_undisturbed_run_ends(of_two, two_ranks):
    folder, error = of_two
    assert str(error) == "rank 1 was killed by SIGKILL"
    # of two kills; torchrun names who it saw end first, and that may be the peer that lost its connection
    assert any("failed (exitcode: -9) local_rank: 1" in line for line in error.run.lines)
    steps = clip.read_steps(folder / "again")
    done = [sorted({s.step for s in steps if s.attempt == attempt}) for attempt in (0, 1)]
    assert done == [list(range(12)), list(range(10, 24))]  # saved after 10; 10 and 11 are done again
    assert counts_of_epoch(steps) != EVERY_ROW_ONCE
    assert counts_of_epoch(clip.surviving(steps)) == EVERY_ROW_ONCE
    assert result(folder / "again")["losses"] == pytest.approx(result(two_ranks)["losses"], rel=1e-4)


@pytest.mark.costly
@pytest.mark.parametrize("ranks", [1, 3])
def test_another_number_of_ranks_goes_on_from_the_state_of_two(of_three, killed, ranks):
    before = clip.read_steps(killed)
    assert {step.mini_epoch for step in before} == {0, 1}
    assert not (killed / "result.json").exists()
    out = of_three[0] / str(ranks)  # their own fault is for the first attempt only
    steps = clip.read_steps(out)
    assert {(step.attempt, step.world_size) for step in steps} == {(0, 2), (1, ranks)}
    assert min(step.step for step in steps if step.attempt == 1) == 15
    assert counts_of_epoch(clip.surviving(steps)) == EVERY_ROW_ONCE
    assert global_losses(before)[:15] == result(out)["losses"][:15]
    assert result(out)["accuracy"] > 0.7


@pytest.mark.costly
def test_a_rank_that_dies_raises_or_has_a_state_of_another_seed_ends_with_its_own_error(of_three, killed):
    assert str(of_three[1]).startswith("rank 0 ended with ValueError: the planted error in step 0\n")
    assert "06_train.py" in of_three[1].traceback
    assert "saved with seed=0, this run has seed=1" in (of_three[0] / "refusal").read_text()
    assert not (killed / "result.json").exists()


def test_the_study_trains_what_the_script_trains(digits, two_ranks, data):
    assert counts_of_epoch(clip.read_steps(two_ranks)) == EVERY_ROW_ONCE
    (order,) = parts(Deal("full shuffle"), data, 0)
    steps = clip.read_steps(two_ranks)
    assert [len(step.rows) for step in steps if step.step == steps[-1].step] == [29, 28], "1437 rows are odd"
    for number in {step.step for step in steps}:
        trained_on = sorted(row for step in steps if step.step == number for row in step.rows)
        assert trained_on == sorted(order[60 * number : 60 * (number + 1)].tolist())
