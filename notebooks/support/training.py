"""What the rank scripts of notebooks 15 and 16 train, and what they write down of it: a small CLIP, a log of steps."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from support.digits import WORDS, digit_of

# ---- A CLIP that trains in seconds: an image and its caption should meet at the same point .
#
#     image    (B, 1, 8, 8)         ── convolutions ──┐
#                                                      ├── points on the unit sphere in 32 dimensions
#     caption  "a handwritten one"  ── mean of words ──┘
#
#     logits[i, j] = scale · image i · caption j
#
# Two losses over these logits; what differs is which captions an image is held against.
#
#     caption_loss        all ten that there are    of each sample for itself: its mean may be taken over ranks
#     contrastive_loss    those of its own batch    of the batch: on two ranks it is another loss
#
# The second is CLIP's (Radford et al. 2021, arXiv:2103.00020). Implementations gather the points of all ranks for it.

CAPTIONS = tuple(f"a handwritten {word}" for word in WORDS)
VOCABULARY = {word: number for number, word in enumerate(("a", "handwritten", *WORDS))}


def tokens(captions: Iterable[str]) -> Tensor:
    """Return the words of captions as numbers, int64 of shape (captions, words).

    Raises ValueError for a word that is not in the vocabulary and for captions that differ in length.
    """
    words = [caption.split() for caption in captions]
    unknown = sorted({word for row in words for word in row} - VOCABULARY.keys())
    if unknown:
        raise ValueError(f"the vocabulary has no {unknown[0]!r}; it has {', '.join(VOCABULARY)}")
    if len({len(row) for row in words}) > 1:
        raise ValueError("captions of different lengths do not make one tensor; give them one by one")
    return torch.tensor([[VOCABULARY[word] for word in row] for row in words], dtype=torch.int64)


def targets(captions: Sequence[str]) -> Tensor:
    """Return which of the ten each caption is, int64 of shape (captions,)."""
    return torch.tensor([digit_of(caption) for caption in captions], dtype=torch.int64)


class TinyClip(nn.Module):
    """An image encoder and a text encoder into one space; `model(images, captions)` is the logits.

    images: float32 (B, 1, 8, 8). captions: C strings. Returns (B, C): cosine of image and caption, times a learned
    scale. seed: of the first weights, drawn without touching the global generator. The model is the same in all ranks.
    """

    def __init__(self, width: int = 32, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)  # only in here: fork_rng puts the state back
            self.image_encoder = nn.Sequential(
                nn.Conv2d(1, 8, 3, padding=1),
                nn.ReLU(),
                nn.Conv2d(8, 16, 3, padding=1, stride=2),
                nn.ReLU(),
                nn.Flatten(),
                nn.Linear(16 * 4 * 4, width),
            )
            self.words = nn.EmbeddingBag(len(VOCABULARY), width, mode="mean")
            self.text_encoder = nn.Linear(width, width)
        self.log_scale = nn.Parameter(torch.tensor(10.0).log())

    def embed_images(self, images: Tensor) -> Tensor:
        """Return points on the unit sphere, (B, width)."""
        return F.normalize(self.image_encoder(images), dim=1)

    def embed_captions(self, captions: Sequence[str]) -> Tensor:
        """Return points on the unit sphere, (C, width)."""
        bags = tokens(captions).to(self.log_scale.device)
        return F.normalize(self.text_encoder(self.words(bags)), dim=1)

    def forward(self, images: Tensor, captions: Sequence[str]) -> Tensor:
        """Return the logits, (B, C)."""
        return self.log_scale.exp() * self.embed_images(images) @ self.embed_captions(captions).T


def caption_loss(
    model: nn.Module,
    images: Tensor,
    captions: Sequence[str],
    reduction: Literal["mean", "sum", "none"] = "mean",
) -> Tensor:
    """Return how surprised the model is by each image's caption among all ten; model: TinyClip, or DDP around it.

    What a sample adds does not depend on its batch, so a mean over samples is a mean over ranks. "none": (B,).
    """
    target = targets(captions).to(images.device)
    return F.cross_entropy(model(images, CAPTIONS), target, reduction=reduction)


def contrastive_loss(model: nn.Module, images: Tensor, captions: Sequence[str]) -> Tensor:
    """Return CLIP's loss: image i is to find caption i among those of the batch, and caption i its image.

    What a sample adds depends on who else is in the batch: the mean over two halves is not that of the whole.
    """
    logits = model(images, captions)
    target = torch.arange(len(images), device=images.device)
    return (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2


@torch.no_grad()
def accuracy(model: nn.Module, loader: Iterable[Sequence[Any]]) -> float:
    """Return the share of images whose nearest of the ten captions is their own.

    loader: yields (images, captions, …). Under torch.distributed each rank gives what it has, however many that are:
    hits and images are summed over the ranks, then divided. Raises ValueError where no rank has an image.
    """
    parameter = next(model.parameters())
    counts = torch.zeros(2, dtype=torch.int64, device=parameter.device)
    for images, captions, *_ in loader:
        nearest = model(images.to(parameter.device), CAPTIONS).argmax(dim=1)
        target = targets(captions).to(parameter.device)
        counts += torch.stack([(nearest == target).sum(), torch.tensor(len(target), device=parameter.device)])
    if dist.is_available() and dist.is_initialized():
        dist.all_reduce(counts)
    hits, images_seen = counts.tolist()
    if not images_seen:
        raise ValueError("no image to evaluate on: the loader was empty on every rank")
    return float(hits / images_seen)


# ---- The log of steps: a JSON line for each step of a rank. Of a run whose rank has died, some of them count no more:
#
#     attempt 0    step 0  1  2  3  4 | 5  6 †          saved after step 4; a rank died in step 7
#     attempt 1                         5  6  7  8      begins where the state was saved: 5 and 6 are done again
#
# What attempt 0 did in steps 5 and 6 is lost with the weights.


@dataclass(frozen=True)
class Step:
    """One rank's part of one step.

    step: counted from the start of training, the same for all ranks. rows: numbers of the rows in the meta file. loss:
    mean over these rows, 0.0 if there are none. start, end: in seconds of `time.time()`, one clock for all ranks of a
    machine: right for drawing, not for measuring, for a clock that is set jumps.
    """

    attempt: int
    world_size: int
    rank: int
    epoch: int
    mini_epoch: int
    step: int
    rows: tuple[int, ...]
    loss: float
    start: float
    end: float


class StepLog:
    """Append a rank's steps to FOLDER/rank{r}.jsonl, each as it is done: a kill later takes none of them away.

    The folder is this run's until the process ends, however it does. Raises RuntimeError in a second one meanwhile:
    two would mix their steps, and each go on from the other's state. (Not on Windows, which has no such lock.)
    """

    def __init__(self, folder: str | os.PathLike[str], rank: int) -> None:
        self._path = Path(folder) / f"rank{rank}.jsonl"
        lock = os.open(self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT)
        weakref.finalize(self, os.close, lock)
        try:
            import fcntl

            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # unlike flock(), not inherited by workers
        except ImportError:
            pass
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):  # another: a file system without locks
                where = f"another run is writing to {os.fspath(folder)!r}"
                raise RuntimeError(f"{where}; wait for its end, or choose another folder") from None

    def write(self, step: Step) -> None:
        """Append one line."""
        with open(self._path, "a+b") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(0, end - 1))
            cut = file.read(1) not in (b"", b"\n")
            line = json.dumps(asdict(step)).encode() + b"\n"
            if cut:  # what a full disk or a loss of power has cut short stays a line of its own
                line = b"\n" + line
            file.write(line)


def read_steps(folder: str | os.PathLike[str]) -> list[Step]:
    """Return the steps of all ranks and attempts, in order of attempt, step and rank.

    A line that is cut short, by a kill or a full disk, is left out. Raises FileNotFoundError for a folder that does not
    exist.
    """
    if not Path(folder).is_dir():
        raise FileNotFoundError(f"no folder {os.fspath(folder)!r}: nothing was trained there")
    steps = []
    for path in Path(folder).glob("rank*.jsonl"):
        if re.fullmatch(r"rank\d+\.jsonl", path.name):
            for text in path.read_bytes().split(b"\n"):
                with contextlib.suppress(ValueError):  # no JSON
                    line = json.loads(text)
                    steps.append(Step(**{**line, "rows": tuple(line["rows"])}))
    return sorted(steps, key=lambda step: (step.attempt, step.step, step.rank))


def next_attempt(folder: str | os.PathLike[str]) -> int:
    """Return one more than the highest attempt that has done a step; 0 for the first."""
    return 1 + max((step.attempt for step in read_steps(folder)), default=-1)


def surviving(steps: Iterable[Step]) -> list[Step]:
    """Return the steps that no later attempt has done again."""
    steps = list(steps)
    first: dict[int, int] = {}  # the step with which each attempt begins
    for step in steps:
        first[step.attempt] = min(step.step, first.get(step.attempt, step.step))

    def survives(step: Step) -> bool:
        return all(step.step < begin for attempt, begin in first.items() if attempt > step.attempt)

    return [step for step in steps if survives(step)]


def global_losses(steps: Iterable[Step]) -> list[float]:
    """Return the mean loss of each global batch, over the rows of all ranks; give it the steps that survived."""
    sums: dict[int, tuple[float, int]] = {}
    for step in steps:
        loss, rows = sums.get(step.step, (0.0, 0))
        sums[step.step] = loss + step.loss * len(step.rows), rows + len(step.rows)
    return [loss / rows for _, (loss, rows) in sorted(sums.items())]
