"""The small CLIP that the rank scripts train, and the log of its steps (tests/lib/training: in real ranks)."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from support import training as clip
from support.training import CAPTIONS, Step, StepLog, TinyClip, global_losses, read_steps, surviving

IMAGES = torch.rand(20, 1, 8, 8, generator=torch.Generator().manual_seed(0))
DIGITS = torch.arange(20) % 10


def test_equal_seeds_make_equal_models_whose_logits_are_cosines_times_the_scale() -> None:
    before = torch.random.get_rng_state()
    one = TinyClip(seed=3)
    same = TinyClip(seed=3)
    other = TinyClip(seed=4)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    assert not torch.equal(one.words.weight, other.words.weight)
    model = TinyClip()
    logits = model(IMAGES[:5], CAPTIONS)
    assert logits.shape == (5, 10)
    assert logits.abs().max().item() <= 10.0 + 1e-4
    assert torch.allclose(model.embed_images(IMAGES[:5]).norm(dim=1), torch.ones(5))


def test_what_a_sample_adds_depends_on_its_batch_only_in_clips_loss() -> None:
    model = TinyClip()
    captions = [CAPTIONS[digit] for digit in DIGITS[:20]]
    alone = clip.caption_loss(model, IMAGES[:10], captions[:10], reduction="none")
    among = clip.caption_loss(model, IMAGES[:20], captions, reduction="none")[:10]
    assert torch.allclose(alone, among, atol=1e-6)
    halves = [clip.contrastive_loss(model, IMAGES[a:b], captions[a:b]) for a, b in ((0, 10), (10, 20))]
    assert not torch.isclose((halves[0] + halves[1]) / 2, clip.contrastive_loss(model, IMAGES[:20], captions), atol=0.1)


def test_tokens_name_what_they_do_not_know() -> None:
    assert clip.tokens(["a handwritten zero", "a handwritten nine"]).tolist() == [[0, 1, 2], [0, 1, 11]]
    with pytest.raises(ValueError, match="no 'printed'; it has a, handwritten, zero"):
        clip.tokens(["a printed zero"])
    with pytest.raises(ValueError, match="different lengths"):
        clip.tokens(["a zero", "a handwritten zero"])


def test_accuracy_without_a_process_group_and_without_images() -> None:
    captions = [CAPTIONS[digit] for digit in DIGITS[:10]]

    class Knows(TinyClip):
        def forward(self, images: torch.Tensor, captions: Sequence[str]) -> torch.Tensor:
            return torch.nn.functional.one_hot(DIGITS[: len(images)], 10).float()

    assert clip.accuracy(Knows(), [(IMAGES[:10], captions)]) == 1.0
    assert clip.accuracy(Knows(), [(IMAGES[:10], captions[1:] + captions[:1])]) < 0.5
    with pytest.raises(ValueError, match="no image"):
        clip.accuracy(Knows(), [])


def step(number: int, attempt: int = 0, rank: int = 0, rows: tuple[int, ...] = (1,), loss: float = 1.0) -> Step:
    return Step(attempt, 2, rank, 0, 0, number, rows, loss, 0.0, 1.0)


def test_a_step_survives_unless_done_again_later_and_losses_are_means_over_rows_not_ranks() -> None:
    steps = [*map(step, range(8)), *(step(n, 1) for n in range(5, 7)), *(step(n, 2) for n in range(5, 9))]
    assert [(s.attempt, s.step) for s in surviving(steps)] == [
        *((0, n) for n in range(5)),
        *((2, n) for n in range(5, 9)),
    ]
    # an attempt may end before it comes as far as the one before it: step 7 was done with weights that are lost
    assert [(s.attempt, s.step) for s in surviving(steps[:10])][-3:] == [(0, 4), (1, 5), (1, 6)]
    assert surviving([]) == []
    ranks = [step(0, rank=0, rows=(1, 2, 3), loss=1.0), step(0, rank=1, rows=(4,), loss=5.0)]
    empty = [step(1, rank=0, rows=(5,), loss=2.0), step(1, rank=1, rows=(), loss=0.0)]
    assert global_losses([*ranks, *empty]) == [2.0, 2.0]


def test_a_log_is_read_as_written_but_for_a_line_that_a_kill_cut_short(tmp_path: Path) -> None:
    assert clip.next_attempt(tmp_path) == 0
    for rank in (0, 10):
        StepLog(tmp_path, rank).write(step(0, rank=rank, rows=(3, 4)))
    StepLog(tmp_path, 0).write(step(1, attempt=2))
    (tmp_path / "rank1.jsonl").write_text('{"attempt": 7, "wor')
    (tmp_path / "ranking.jsonl").write_text("something else")
    assert [(s.attempt, s.step, s.rank, s.rows) for s in read_steps(tmp_path)] == [(0, 0, 0, (3, 4)),
        (0, 0, 10, (3, 4)), (2, 1, 0, (1,))]  # fmt: skip
    assert clip.next_attempt(tmp_path) == 3
    with pytest.raises(FileNotFoundError, match="nothing was trained there"):
        read_steps(tmp_path / "none")


@pytest.mark.parametrize("cut", [1, 30, 10**6])
def test_a_run_goes_on_after_a_line_that_was_cut_short_and_only_that_line_is_lost(tmp_path: Path, cut: int) -> None:
    for attempt in range(3):
        StepLog(tmp_path, 0).write(step(attempt, attempt, rows=(3, 4)))
        log = tmp_path / "rank0.jsonl"
        if attempt == 1:
            first, second = log.read_bytes().splitlines(keepends=True)
            log.write_bytes(first + second[:-cut])
    # without its newline the line says all the same what was done
    assert [s.step for s in read_steps(tmp_path)] == ([0, 1, 2] if cut == 1 else [0, 2])
    assert clip.next_attempt(tmp_path) == 3
    log.write_bytes(log.read_bytes() + b"\0\0\0\xff\n")  # as after a loss of power
    assert clip.next_attempt(tmp_path) == 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_second_run_into_the_same_folder_is_refused_until_the_process_of_the_first_has_ended(tmp_path: Path) -> None:
    """Also when a worker of the first one, which was forked, still lives."""
    ready = os.pipe()
    end = os.pipe()
    rank = os.fork()
    if rank == 0:  # no pytest in here
        log = StepLog(tmp_path, 0)
        log.write(step(0))
        if os.fork():
            os.write(ready[1], b"!")
            os.read(end[0], 1)
            os._exit(0)
        os.read(end[0], 1)  # the worker
        os._exit(0)
    try:
        assert os.read(ready[0], 1) == b"!"
        with pytest.raises(RuntimeError, match=f"another run is writing to '{tmp_path}'; .*choose another folder"):
            StepLog(tmp_path, 0)
        assert len(read_steps(tmp_path)) == 1
        StepLog(tmp_path, 1)  # of its own rank; in a run, rank 0 is always there
        os.kill(rank, 9)
        os.waitpid(rank, 0)
        StepLog(tmp_path, 0).write(step(1, 1))
        assert len(read_steps(tmp_path)) == 2
    finally:
        os.write(end[1], b"!!")
        for descriptor in (*ready, *end):
            os.close(descriptor)
