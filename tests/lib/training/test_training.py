"""Training on real ranks: the same gradients, the same losses, every row once, also when a rank dies on the way.

A rank that starts imports torch and makes its first DDP: four seconds of a core, the training itself takes less. So
there are three launches, and the first two run several scripts, one after the other:

    2 ranks      the gradients; an epoch undisturbed; one with a kill, a restart and its end; one that ends in a kill
    1 rank       the same epoch; what the last kill has left, gone on with; another seed; an error of its own
    3 ranks      what the last kill has left, gone on with: notebook 06's script as it is
"""

from __future__ import annotations

import json
import pickle
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch
from support.n06.runs import against_first, t_975
from support.runs import (
    CAPTIONS,
    DEALS,
    MISTAKES,
    REPAIRED,
    Data,
    Deal,
    TinyClip,
    accuracy,
    caption_loss,
    contrastive_loss,
    load_data,
    parts,
    study,
    tokens,
)
from torch.utils.data import DataLoader

from lib.data import DistributedSampler
from lib.data.digits import Digits, write_digits
from lib.training.launch import RankError, meet, torchrun
from lib.training.state import Step, StepLog, global_losses, load_state, next_attempt, read_steps, save_state, surviving

SCRIPT = Path(__file__).parents[3] / "notebooks" / "06_train.py"
ROWS, TEST_ROWS = 1437, 360


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_digits(tmp_path_factory.mktemp("data") / "digits")


@pytest.fixture(scope="module")
def data(digits: Path) -> Data:
    return load_data(digits)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """The model is small: a second thread only waits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def result(out: Path) -> dict[str, Any]:
    return dict(json.loads((out / "result.json").read_text()))


def counts_of_epoch(steps: Sequence[Step], epoch: int = 0) -> Counter[int]:
    return Counter(row for step in steps if step.epoch == epoch for row in step.rows)


EVERY_ROW_ONCE = Counter(range(ROWS))


# ---- the launches

JOBS = """
import json, os, runpy, sys
from pathlib import Path
import torch.distributed as dist
from lib.training import launch

def leave():  # launch.leave() ends the process; this one goes on
    dist.barrier()
    dist.destroy_process_group()

launch.leave = leave
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
for number, (product, refusal, *command) in enumerate(json.loads(sys.argv[1])):
    if Path(product).exists():  # this job was done before the restart
        continue
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


def training(digits: Path, out: Path, *arguments: object, refusal: object = "") -> Job:
    """Let the script of notebook 06 train an epoch of 60 rows a step; refusal: where a ValueError is written."""
    settings = ("--data", digits, "--out", out, "--epochs", 1, "--batch-size", 60)
    return [out / "result.json", refusal, SCRIPT, *settings, *arguments]


def run_jobs(folder: Path, jobs: list[Job], ranks: int, max_restarts: int = 0) -> RankError:
    """Run jobs, of which the last one fails."""
    (folder / "jobs.py").write_text(JOBS)
    text = json.dumps([[str(word) for word in job] for job in jobs])
    with pytest.raises(RankError) as caught:
        torchrun(folder / "jobs.py", text, ranks=ranks, max_restarts=max_restarts, timeout=150, quiet=True)
    return caught.value


FAILS = ("--fail-rank", 1, "--fail-how", "kill", "--fail-at")


@pytest.fixture(scope="module")
def of_two(digits: Path, data: Data, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RankError]:
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
def two_ranks(of_two: tuple[Path, RankError]) -> Path:
    """An epoch of two ranks with DistributedSampler, undisturbed; the state was saved after every step."""
    return of_two[0] / "two"


@pytest.fixture(scope="module")
def killed(of_two: tuple[Path, RankError]) -> Path:
    """What is left of two ranks with RankDataset, one of which was killed in the second mini-epoch, and no restart."""
    return of_two[0] / "killed"


@pytest.fixture(scope="module")
def of_one(digits: Path, killed: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RankError]:
    """What one rank leaves; at last it raises."""
    folder = tmp_path_factory.mktemp("of_one")
    shutil.copytree(killed, folder / "1")
    jobs = [
        training(digits, folder / "one", "--dataset", "sampler"),
        training(digits, folder / "1", "--fail-rank", 0, "--fail-at", 18),
        training(digits, killed, "--seed", 1, refusal=folder / "refusal"),
        training(digits, folder / "raises", "--fail-rank", 0, "--fail-at", 0, "--fail-how", "raise"),
    ]
    return folder, run_jobs(folder, jobs, ranks=1)


@pytest.fixture(scope="module")
def of_three(digits: Path, killed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What three ranks leave, as notebook 06 starts them."""
    folder = tmp_path_factory.mktemp("of_three")
    shutil.copytree(killed, folder / "3")
    _, _, script, *arguments = training(digits, folder / "3", "--fail-rank", 0, "--fail-at", 18)
    torchrun(str(script), *arguments, ranks=3, timeout=150, quiet=True)
    return folder


# ---- real ranks: gradients

GRADIENTS = """
import sys, numpy as np, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from support.runs import CAPTIONS, TinyClip, caption_loss, contrastive_loss, accuracy
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
def gradients(data: Data, of_two: tuple[Path, RankError]) -> dict[str, Any]:
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


def difference(gradients: dict[str, Any], name: str, whole: str) -> float:
    return float(np.abs(gradients[name] - gradients[whole]).max())


@pytest.mark.ranks
def test_the_gradient_of_two_ranks_is_that_of_the_whole_batch_if_each_sample_counts_for_itself(
    gradients: dict[str, Any],
) -> None:
    assert np.abs(gradients["whole caption"]).max() > 0.1
    assert difference(gradients, "caption", "whole caption") < 1e-6


@pytest.mark.ranks
def test_it_is_not_for_clips_loss_whose_negatives_are_the_batch(gradients: dict[str, Any]) -> None:
    assert difference(gradients, "contrastive", "whole contrastive") > 0.01


@pytest.mark.ranks
def test_with_uneven_shares_the_mean_of_means_is_wrong_and_the_weighted_sum_is_right(gradients: dict[str, Any]) -> None:
    assert difference(gradients, "uneven, mean of means", "whole caption") > 0.01
    assert difference(gradients, "uneven, sum over all by their number", "whole caption") < 1e-6
    assert difference(gradients, "one rank has no row", "whole caption") < 1e-6


@pytest.mark.ranks
def test_accuracy_adds_the_counts_of_all_ranks(gradients: dict[str, Any]) -> None:
    assert float(gradients["accuracy"]) == gradients["whole accuracy"]


# ---- real ranks: the script


@pytest.mark.ranks
def test_one_rank_and_two_ranks_have_the_same_losses_and_accuracy(
    of_one: tuple[Path, RankError], two_ranks: Path
) -> None:
    one, two = result(of_one[0] / "one"), result(two_ranks)
    assert len(one["losses"]) == -(-ROWS // 60)
    assert one["losses"] == pytest.approx(two["losses"], rel=1e-3)  # each step inherits the last one's rounding
    assert one["losses"][:3] == pytest.approx(two["losses"][:3], rel=1e-5)
    assert one["losses"][-1] < 0.5 * one["losses"][0]
    assert abs(one["accuracy"] - two["accuracy"]) < 2 / TEST_ROWS


@pytest.mark.ranks
def test_every_row_counts_once_though_1437_rows_are_odd(two_ranks: Path) -> None:
    steps = read_steps(two_ranks)
    assert counts_of_epoch(steps) == EVERY_ROW_ONCE
    last = [len(step.rows) for step in steps if step.step == steps[-1].step]
    assert last == [29, 28]


@pytest.mark.ranks
def test_the_accuracy_of_ranks_is_exactly_that_of_the_same_weights_in_one_process(two_ranks: Path, data: Data) -> None:
    model = TinyClip()
    load(two_ranks, model)
    captions = [CAPTIONS[digit] for digit in data.test_digits]
    assert len(captions) == result(two_ranks)["test_rows"] == TEST_ROWS
    assert result(two_ranks)["accuracy"] == accuracy(model, [(data.test_images, captions)])


@pytest.mark.ranks
def test_a_rank_killed_in_mid_epoch_is_started_again_and_ends_where_an_undisturbed_run_ends(
    of_two: tuple[Path, RankError], two_ranks: Path
) -> None:
    folder, error = of_two
    kills = [line for line in error.run.lines if "failed (exitcode: -9) local_rank: 1" in line]
    assert len(kills) == 2  # this one, and that of `killed`
    steps = read_steps(folder / "again")
    done = [sorted({s.step for s in steps if s.attempt == attempt}) for attempt in (0, 1)]
    assert done == [list(range(12)), list(range(10, 24))]  # saved after 10; 10 and 11 are done again
    assert counts_of_epoch(steps) != EVERY_ROW_ONCE
    assert counts_of_epoch(surviving(steps)) == EVERY_ROW_ONCE
    assert result(folder / "again")["losses"] == pytest.approx(result(two_ranks)["losses"], rel=1e-4)


@pytest.mark.ranks
@pytest.mark.parametrize("ranks", [1, 3])
def test_another_number_of_ranks_goes_on_from_the_state_of_two(
    request: pytest.FixtureRequest, killed: Path, ranks: int
) -> None:
    before = read_steps(killed)
    assert {step.mini_epoch for step in before} == {0, 1} and not (killed / "result.json").exists()
    # their own fault is for the first attempt only
    out = request.getfixturevalue("of_one")[0] / "1" if ranks == 1 else request.getfixturevalue("of_three") / "3"
    steps = read_steps(out)
    assert {(step.attempt, step.world_size) for step in steps} == {(0, 2), (1, ranks)}
    assert min(step.step for step in steps if step.attempt == 1) == 15
    assert counts_of_epoch(surviving(steps)) == EVERY_ROW_ONCE
    assert global_losses(before)[:15] == result(out)["losses"][:15]
    assert result(out)["accuracy"] > 0.7


@pytest.mark.ranks
def test_a_rank_that_dies_or_raises_ends_the_run_with_its_own_error(
    of_one: tuple[Path, RankError], of_two: tuple[Path, RankError]
) -> None:
    assert str(of_two[1]) == "rank 1 was killed by SIGKILL"
    assert str(of_one[1]).startswith("rank 0 ended with ValueError: the planted error in step 0\n")
    assert "06_train.py" in of_one[1].traceback


@pytest.mark.ranks
def test_a_state_of_another_seed_is_refused(of_one: tuple[Path, RankError], killed: Path) -> None:
    assert "saved with seed=0, this run has seed=1" in (of_one[0] / "refusal").read_text()
    assert not (killed / "result.json").exists()


def test_a_process_that_torchrun_did_not_start_is_told_how_to_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT", raising=False)
    with pytest.raises(RuntimeError, match="start the script with torchrun --nproc-per-node RANKS SCRIPT"):
        meet(timedelta(seconds=1))


# ---- exact evaluation


@pytest.mark.parametrize("world_size", [2, 7, 400])
def test_shares_of_an_evaluation_hold_each_of_360_rows_once(world_size: int) -> None:
    shares = [
        list(DistributedSampler(range(TEST_ROWS), world_size, rank, shuffle=False, pad=False))
        for rank in range(world_size)
    ]
    assert sorted(row for share in shares for row in share) == list(range(TEST_ROWS))
    assert {len(share) for share in shares} <= {TEST_ROWS // world_size, TEST_ROWS // world_size + 1}


def test_accuracy_without_a_process_group_and_without_images(data: Data) -> None:
    captions = [CAPTIONS[digit] for digit in data.digits[:10]]

    class Knows(TinyClip):
        def forward(self, images: torch.Tensor, captions: Sequence[str]) -> torch.Tensor:
            return torch.nn.functional.one_hot(data.digits[: len(images)], 10).float()

    assert accuracy(Knows(), [(data.images[:10], captions)]) == 1.0
    assert accuracy(Knows(), [(data.images[:10], captions[1:] + captions[:1])]) < 0.5
    with pytest.raises(ValueError, match="no image"):
        accuracy(Knows(), [])


# ---- the model


def test_equal_seeds_make_equal_models_and_the_global_generator_is_left_alone() -> None:
    before = torch.random.get_rng_state()
    one, same, other = TinyClip(seed=3), TinyClip(seed=3), TinyClip(seed=4)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    assert not torch.equal(one.words.weight, other.words.weight)


def test_logits_are_cosines_times_the_scale(data: Data) -> None:
    model = TinyClip()
    logits = model(data.images[:5], CAPTIONS)
    assert logits.shape == (5, 10)
    assert logits.abs().max().item() <= 10.0 + 1e-4
    assert torch.allclose(model.embed_images(data.images[:5]).norm(dim=1), torch.ones(5))


def test_what_a_sample_adds_depends_on_its_batch_only_in_clips_loss(data: Data) -> None:
    model, captions = TinyClip(), [CAPTIONS[digit] for digit in data.digits[:20]]
    alone = caption_loss(model, data.images[:10], captions[:10], reduction="none")
    among = caption_loss(model, data.images[:20], captions, reduction="none")[:10]
    assert torch.allclose(alone, among, atol=1e-6)
    halves = [contrastive_loss(model, data.images[a:b], captions[a:b]) for a, b in ((0, 10), (10, 20))]
    assert not torch.isclose((halves[0] + halves[1]) / 2, contrastive_loss(model, data.images[:20], captions), atol=0.1)


def test_tokens_name_what_they_do_not_know() -> None:
    assert tokens(["a handwritten zero", "a handwritten nine"]).tolist() == [[0, 1, 2], [0, 1, 11]]
    with pytest.raises(ValueError, match="no 'printed'; it has a, handwritten, zero"):
        tokens(["a printed zero"])
    with pytest.raises(ValueError, match="different lengths"):
        tokens(["a zero", "a handwritten zero"])


# ---- the state


def trained(steps: int = 3, width: int = 32) -> tuple[TinyClip, torch.optim.Adam]:
    model = TinyClip(width)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    advance(model, optimizer, steps)
    return model, optimizer


def advance(model: TinyClip, optimizer: torch.optim.Optimizer, steps: int) -> None:
    images = torch.linspace(0, 1, 640).view(10, 1, 8, 8)
    for _ in range(steps):
        optimizer.zero_grad()
        torch.autograd.backward(caption_loss(model, images, CAPTIONS))
        optimizer.step()


def load(folder: Path, model: TinyClip) -> dict[str, Any]:
    """Load what the script has saved, whatever its identity."""
    with np.load(folder / "state.npz", allow_pickle=False) as file:
        identity = json.loads(str(file["json"]))["identity"]
    return load_state(folder / "state.npz", model, torch.optim.Adam(model.parameters()), identity)


def weights(model: torch.nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def equal(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_a_state_continues_bit_for_bit(tmp_path: Path) -> None:
    model, optimizer = trained()
    save_state(tmp_path / "s.npz", model, optimizer, {"seed": 0}, step=3, place={"epoch": 1})
    other, its_optimizer = trained(steps=1)
    assert load_state(tmp_path / "s.npz", other, its_optimizer, {"seed": 0}) == {"step": 3, "place": {"epoch": 1}}
    for one, its in ((model, optimizer), (other, its_optimizer)):
        advance(one, its, 2)
    assert equal(weights(model), weights(other))


def test_a_state_of_before_the_first_step_can_be_saved(tmp_path: Path) -> None:
    model, optimizer = trained(steps=0)
    save_state(tmp_path / "s.npz", model, optimizer, {})
    assert load_state(tmp_path / "s.npz", *trained(), {}) == {}


def test_whoever_dies_while_saving_leaves_the_old_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s.npz"
    save_state(path, *trained(), {}, step=1)
    before = path.read_bytes()

    def die_half_way(file: Any, **arrays: object) -> None:
        file.write(b"PK half")
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "savez", die_half_way)
    with pytest.raises(KeyboardInterrupt):
        save_state(path, *trained(), {}, step=2)
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == ["s.npz"]
    monkeypatch.undo()
    (tmp_path / ".s.npz.unfinished").write_bytes(b"of one that was killed")
    save_state(path, *trained(), {}, step=3)
    assert load_state(path, *trained(), {}) == {"step": 3} and [p.name for p in tmp_path.iterdir()] == ["s.npz"]


@pytest.mark.parametrize("damage", ["cut", "empty", "text", "flipped", "pickle", "foreign", "format"])
def test_a_file_that_is_no_state_is_refused_and_nothing_is_changed(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "s.npz"
    save_state(path, *trained(), {})
    content = path.read_bytes()
    if damage == "pickle":
        np.savez(path, allow_pickle=True, json=np.array([print], dtype=object))
    elif damage == "foreign":
        np.savez(path, x=np.zeros(3))
    elif damage == "format":
        np.savez(path, json=np.array('{"format": 99, "groups": [], "identity": {}, "more": {}}'))
    else:
        middle = len(content) // 2
        flipped = content[:middle] + bytes([content[middle] ^ 255]) + content[middle + 1 :]
        changed = {"cut": content[:middle], "empty": b"", "text": b"hello", "flipped": flipped}
        path.write_bytes(changed[damage])
    model, optimizer = trained(steps=1)
    before = weights(model)
    with pytest.raises(ValueError, match="s.npz .*remove it to begin anew"):
        load_state(path, model, optimizer, {})
    assert equal(weights(model), before)


def test_a_pickle_in_place_of_a_state_is_not_run(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path(tmp_path / "exploded").touch, ())

    (tmp_path / "s.npz").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(ValueError, match="no training state"):
        load_state(tmp_path / "s.npz", *trained(), {})
    assert not (tmp_path / "exploded").exists()


def test_a_state_of_another_model_or_run_is_refused_and_says_what_differs(tmp_path: Path) -> None:
    path = tmp_path / "s.npz"
    save_state(path, *trained(), {"seed": 0, "text": 7})
    model, optimizer = trained(steps=1, width=16)
    before = weights(model)
    with pytest.raises(
        ValueError, match=r"another model: image_encoder.5.bias has shape \(32,\) in the file and \(16,\)"
    ):
        load_state(path, model, optimizer, {"seed": 0, "text": 7})
    with pytest.raises(ValueError, match="saved with text=7, this run has text=8; choose another folder"):
        load_state(path, model, optimizer, {"seed": 0, "text": 8})
    with pytest.raises(ValueError, match="this run has more=1"):
        load_state(path, model, optimizer, {"seed": 0, "text": 7, "more": 1})
    assert equal(weights(model), before)
    with pytest.raises(FileNotFoundError):
        load_state(tmp_path / "none.npz", model, optimizer, {})


# ---- the log


def step(number: int, attempt: int = 0, rank: int = 0, rows: tuple[int, ...] = (1,), loss: float = 1.0) -> Step:
    return Step(attempt, 2, rank, 0, 0, number, rows, loss, 0.0, 1.0)


def test_a_step_survives_unless_a_later_attempt_did_it_again() -> None:
    steps = [*map(step, range(8)), *(step(n, 1) for n in range(5, 7)), *(step(n, 2) for n in range(5, 9))]
    assert [(s.attempt, s.step) for s in surviving(steps)] == [
        *((0, n) for n in range(5)),
        *((2, n) for n in range(5, 9)),
    ]
    # an attempt may end before it comes as far as the one before it: step 7 was done with weights that are lost
    assert [(s.attempt, s.step) for s in surviving(steps[:10])][-3:] == [(0, 4), (1, 5), (1, 6)]
    assert surviving([]) == []


def test_losses_are_means_over_rows_not_over_ranks() -> None:
    ranks = [step(0, rank=0, rows=(1, 2, 3), loss=1.0), step(0, rank=1, rows=(4,), loss=5.0)]
    empty = [step(1, rank=0, rows=(5,), loss=2.0), step(1, rank=1, rows=(), loss=0.0)]
    assert global_losses([*ranks, *empty]) == [2.0, 2.0]


def test_a_log_is_read_as_written_but_for_a_line_that_a_kill_cut_short(tmp_path: Path) -> None:
    assert next_attempt(tmp_path) == 0
    for rank in (0, 10):
        StepLog(tmp_path, rank).write(step(0, rank=rank, rows=(3, 4)))
    StepLog(tmp_path, 0).write(step(1, attempt=2))
    (tmp_path / "rank1.jsonl").write_text('{"attempt": 7, "wor')
    (tmp_path / "ranking.jsonl").write_text("something else")
    assert [(s.attempt, s.step, s.rank, s.rows) for s in read_steps(tmp_path)] == [
        (0, 0, 0, (3, 4)),
        (0, 0, 10, (3, 4)),
        (2, 1, 0, (1,)),
    ]
    assert next_attempt(tmp_path) == 3
    with pytest.raises(FileNotFoundError, match="nothing was trained there"):
        read_steps(tmp_path / "none")


# ---- the study


@pytest.mark.parametrize("deal", [*DEALS, *MISTAKES, REPAIRED], ids=lambda deal: deal.name)
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_every_way_to_deal_uses_each_row_once_an_epoch(data: Data, deal: Deal, world_size: int) -> None:
    for epoch in (0, 1):
        dealt = [*parts(deal, data, epoch, seed=5, world_size=world_size)]
        assert len(dealt) == deal.mini_epochs
        assert Counter(np.concatenate(dealt).tolist()) == EVERY_ROW_ONCE


def test_the_full_shuffle_is_the_same_for_any_number_of_ranks(data: Data) -> None:
    orders = [np.concatenate([*parts(Deal("full shuffle"), data, 1, 0, ranks)]) for ranks in (1, 2, 7)]
    assert np.array_equal(orders[0], orders[1]) and np.array_equal(orders[0], orders[2])


def test_only_dealing_anew_gives_a_mini_epoch_other_rows_in_the_next_epoch(data: Data) -> None:
    def first(deal: Deal, epoch: int) -> set[int]:
        return set(next(iter(parts(deal, data, epoch))).tolist())

    assert first(Deal("rank", 8), 0) != first(Deal("rank", 8), 1)
    assert first(Deal("rank, once", 8), 0) == first(Deal("rank, once", 8), 1)
    assert first(Deal("blocks", 8), 0) == first(Deal("blocks", 8), 1)


def test_blocks_of_a_sorted_file_hold_few_classes_and_dealt_rows_hold_all(data: Data) -> None:
    blocks, dealt = Deal("blocks", 8, sorted_file=True), REPAIRED
    assert max(len({*data.digits[part].tolist()}) for part in parts(blocks, data, 0)) <= 4
    assert min(len({*data.digits[part].tolist()}) for part in parts(dealt, data, 0)) == 10


@pytest.mark.ranks
def test_the_study_trains_what_the_script_trains(digits: Path, two_ranks: Path, data: Data) -> None:
    """The batches of two real ranks, put together, are those that the study trains on in one process."""
    (order,) = parts(Deal("full shuffle"), data, 0)
    steps = read_steps(two_ranks)
    for number in {step.step for step in steps}:
        trained_on = sorted(row for step in steps if step.step == number for row in step.rows)
        assert trained_on == sorted(order[60 * number : 60 * (number + 1)].tolist())


def test_a_study_is_reproducible_pairs_its_seeds_and_sees_the_mistake(data: Data) -> None:
    deals = (Deal("full shuffle"), Deal("rank", 8), Deal("blocks", 8, sorted_file=True))
    threads, seen = torch.get_num_threads(), []
    results = study(data, [3, 4], deals, epochs=3, on_result=lambda deal, seed, _: seen.append((deal, seed)))
    assert torch.get_num_threads() == threads
    assert seen == [(deal, seed) for seed in (3, 4) for deal in deals]
    assert results["rank, E = 8"] == study(data, [3, 4], deals[1:2], epochs=3)["rank, E = 8"]
    table = {row.name: row for row in against_first(results)}
    assert table["full shuffle"].mean > 0.85 and abs(table["rank, E = 8"].difference) < 0.08
    assert table["blocks, E = 8, sorted file"].difference < -0.2


def test_a_deal_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="how must be one of full shuffle, rank"):
        Deal("at random")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="one mini-epoch, not 2"):
        Deal("full shuffle", 2)
    with pytest.raises(ValueError, match="mini_epochs must be at least 1"):
        Deal("rank", 0)


def test_a_difference_is_taken_seed_by_seed() -> None:
    base = [{"accuracy": x} for x in (0.1, 0.5, 0.9)]
    better = [{"accuracy": x} for x in (0.11, 0.52, 0.93)]
    first, row = against_first({"a": base, "b": better})
    assert (first.difference, first.low, first.high, first.settled) == (0, 0, 0, False)
    half = 4.3026527 * 0.01 / 3**0.5
    assert (row.difference, row.low, row.high) == pytest.approx((0.02, 0.02 - half, 0.02 + half))
    assert not row.settled and row.deviation > 0.4  # the spread over seeds would hide it; pairs nearly show it
    with pytest.raises(ValueError, match="one seed"):
        against_first({"a": base[:1]})
    with pytest.raises(ValueError, match="the same seeds"):
        against_first({"a": base, "b": better[:2]})


@pytest.mark.parametrize(
    "freedom, expected", [(1, 12.706), (2, 4.303), (3, 3.182), (9, 2.262), (19, 2.093), (99, 1.984)]
)
def test_students_t_is_that_of_the_tables(freedom: int, expected: float) -> None:
    assert t_975(freedom) == pytest.approx(expected, abs=5e-4)


def test_the_recorded_study_has_enough_seeds_and_its_table_follows_from_its_results() -> None:
    from support.recordings import load as recorded

    record = recorded("rank_accuracy")
    assert record["seeds"] >= 20 and record["rows"] == ROWS and record["test_rows"] == TEST_ROWS
    assert [*record["results"]] == [deal.name for deal in (*DEALS, *MISTAKES, REPAIRED)]
    assert all(len(rows) == record["seeds"] for rows in record["results"].values())
    for what, table in record["comparison"].items():
        for row, again in zip(table, against_first(record["results"], what), strict=True):
            assert row["name"] == again.name and row["low"] == pytest.approx(again.low)


def test_the_loader_of_digits_and_the_study_see_the_same_images(digits: Path, data: Data) -> None:
    images, numbers = next(iter(DataLoader(Digits(digits, "test"), 8)))
    assert torch.equal(images, data.test_images[:8]) and torch.equal(numbers, data.test_digits[:8])
