"""What notebook 02 asks of streams: files read in turns, through a shuffle buffer, and how mixed the batches are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from lib.arguments import integer
from support.n02.solved import buffered

FILES = 10
PHOTOS = 100  # in a file
BATCH = 20


def in_turns(files: Sequence[Sequence[int]], together: int) -> Iterator[int]:
    """Yield all items of all files; `together` of them are open at a time and give one item each in turn.

    Raises ValueError for less than one file at a time.
    """
    together = integer("together", together, at_least=1)
    for start in range(0, len(files), together):
        group = files[start : start + together]
        for place in range(max(map(len, group))):
            yield from (file[place] for file in group if place < len(file))


def archive() -> list[range]:
    """Return the files of an archive that is sorted by class: file f holds the photos f · 100 … f · 100 + 99."""
    return [range(file * PHOTOS, (file + 1) * PHOTOS) for file in range(FILES)]


def through_buffer(size: int, files: int, seed: int = 0) -> list[int]:
    """Return the order in which the archive's photos leave a buffer, `files` of its files being read in turns."""
    return list(buffered(in_turns(archive(), files), size, np.random.default_rng(seed)))


def classes_in_batches(order: Sequence[int], batch: int = BATCH) -> float:
    """Return how many classes a batch holds, on average; a photo's class is its file."""
    batches = [order[start : start + batch] for start in range(0, len(order), batch)]
    counts = [len({photo // PHOTOS for photo in photos}) for photos in batches]
    return sum(counts) / len(counts)


def file_sizes(count: int, total: int, seed: int = 0) -> list[int]:
    """Return the sizes of made-up files, together `total` items: most are near the mean, some twice as large.

    Raises ValueError for no file.
    """
    count = integer("count", count, at_least=1)
    drawn = np.random.default_rng(seed).lognormal(sigma=0.4, size=count)
    ends = np.round(np.cumsum(drawn) / drawn.sum() * total).astype(int)
    return [int(size) for size in np.diff(ends, prepend=0)]


def sorted_digits() -> tuple[Any, Any, Any, Any]:
    """Return images and classes for training, sorted by class, and for testing: the digits of the course's other data.

    Images are float64 of shape (items, 64) in 0..1; the first 1,437 of the source train, the other 360 test.
    """
    from sklearn.datasets import load_digits

    from support.digits import TRAIN_ROWS

    pixels, classes = load_digits(return_X_y=True)
    images = torch.from_numpy(pixels / 16)
    labels = torch.from_numpy(classes)
    order = torch.argsort(labels[:TRAIN_ROWS], stable=True)
    return images[order], labels[order], images[TRAIN_ROWS:], labels[TRAIN_ROWS:]
