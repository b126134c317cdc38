"""The course's real data: 1,797 handwritten digits as image files and a meta file, as an image–caption set comes.

    data/digits/meta.txt        #filename label
                                img/0001.png "a handwritten zero"
    data/digits/train.txt       the first 1,437 rows
    data/digits/test.txt        the other 360: later pages of the same source
    data/digits/img/0001.png    8 × 8 pixels, grey

Source: scikit-learn's `load_digits` (UCI, Optical Recognition of Handwritten Digits), which comes with the package.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
HEADER = "#filename label"
TRAIN_ROWS = 1437


def write_digits(folder: str | Path = "data/digits") -> Path:
    """Write the digits as PNG files and meta files, once, and return the folder.

    Does nothing where the folder is complete. It is made under another name and then renamed, so it is whole or absent,
    also when several ranks start at once. Raises FileExistsError if the folder exists but holds something else.
    """
    folder = Path(folder)
    if _complete(folder):
        return folder
    if folder.exists():
        raise FileExistsError(
            f"{folder} exists and is not the digits data; remove it or choose another folder"
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        _write_into(unfinished)
        unfinished.chmod(0o755)
        os.rename(unfinished, folder)
    except OSError:
        if not _complete(folder):  # otherwise another process was faster, and its folder is as good
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def _complete(folder: Path) -> bool:
    return all((folder / name).is_file() for name in ("meta.txt", "train.txt", "test.txt"))


def _write_into(folder: Path) -> None:
    from PIL import Image
    from sklearn.datasets import load_digits

    digits = load_digits()
    (folder / "img").mkdir()
    rows = []
    for number, (image, label) in enumerate(zip(digits.images, digits.target, strict=True), start=1):
        name = f"img/{number:04d}.png"
        Image.fromarray(np.round(image * (255 / 16)).astype(np.uint8)).save(folder / name)
        rows.append(f'{name} "a handwritten {WORDS[label]}"\n')
    for name, part in (("train.txt", rows[:TRAIN_ROWS]), ("test.txt", rows[TRAIN_ROWS:]), ("meta.txt", rows)):
        (folder / name).write_text(f"{HEADER}\n{''.join(part)}", encoding="utf-8")


def rows_of_file(meta_file: str | Path) -> list[str]:
    """Return the rows of a small meta file: no header lines (they start with #), no blank lines."""
    lines = Path(meta_file).read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.strip() and not line.startswith("#")]


def parse_row(row: str) -> tuple[str, str]:
    """Split a row such as `img/0001.png "a handwritten zero"` into file name and caption; ValueError if it is none."""
    name, separator, rest = row.strip().partition(" ")
    caption = rest.strip()
    if not separator or len(caption) < 2 or caption[0] != '"' or caption[-1] != '"':
        raise ValueError(f'a row reads: filename "caption", but this one is {row!r}')
    return name, caption[1:-1]


def digit_of(caption: str) -> int:
    """Return 7 for "a handwritten seven"; ValueError for a caption that names no digit."""
    word = caption.rpartition(" ")[2]
    if word not in WORDS:
        raise ValueError(f"the caption {caption!r} does not end in one of {', '.join(WORDS)}")
    return WORDS.index(word)


def decode_image(path: str | Path) -> torch.Tensor:
    """Read and decode one PNG file; returns float32 of shape (1, height, width) in 0..1."""
    from PIL import Image

    with Image.open(path) as image:
        pixels = np.asarray(image.convert("L"), dtype=np.float32)
    return torch.from_numpy(pixels / 255).unsqueeze(0)


class Digits(Dataset[tuple[Any, int]]):
    """The digits on disk: item i reads and decodes row i's image when it is asked for.

    split: "train" (1,437 rows), "test" (360) or "meta" (all). Items are (image, digit): float32 (1, 8, 8) in 0..1,
    or what `transform` makes of it, and an int. Raises FileNotFoundError where nothing was written.
    """

    def __init__(
        self,
        folder: str | Path = "data/digits",
        split: str = "train",
        transform: Callable[[torch.Tensor], Any] | None = None,
    ) -> None:
        if split not in ("train", "test", "meta"):
            raise ValueError(f"split must be 'train', 'test' or 'meta', not {split!r}")
        self.folder = Path(folder)
        if not _complete(self.folder):
            raise FileNotFoundError(
                f"no digits in {self.folder}; call write_digits({str(self.folder)!r}) first"
            )
        self.rows = [parse_row(row) for row in rows_of_file(self.folder / f"{split}.txt")]
        self.transform = transform

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        name, caption = self.rows[index]
        image: Any = decode_image(self.folder / name)
        if self.transform is not None:
            image = self.transform(image)
        return image, digit_of(caption)
