"""Make a meta file of any size: image names and captions, 44 bytes a row on average, some GB a second."""

from __future__ import annotations

import os

import numpy as np

from lib._arguments import integer

WORDS = "a an the red blue green small large old young dog cat bird horse girl boy car tree on in by under sea snow"
HEADER = "# image caption\n"
ROW_BYTES = 44.0  # on average


def write_captions(path: str | os.PathLike[str], rows: int) -> int:
    """Write a header and rows like `img/000000007.jpg "a small dog on the grass"`; return how many bytes they take.

    The captions differ in length and repeat every thousand rows; the names do not repeat. Every machine gets the same
    rows. Raises ValueError for more than a billion.
    """
    rows = integer("rows", rows, at_least=0, below=10**9 + 1)
    thousand = _thousand()
    line_starts = np.flatnonzero(np.concatenate([[True], thousand[:-1] == ord("\n")]))
    with open(path, "wb") as file:
        file.write(HEADER.encode())
        for first in range(0, rows, 1_000_000):
            numbers = np.arange(first // 1000, -(-min(rows, first + 1_000_000) // 1000))
            block = np.tile(thousand, (len(numbers), 1))
            for digit in range(6):  # the last three of nine are those of the thousand rows
                value = (numbers // 10 ** (5 - digit) % 10 + ord("0")).astype(np.uint8)
                block[:, line_starts + len("img/") + digit] = value[:, None]
            extra = first + 1000 * len(numbers) - rows
            end = block.size - (len(thousand) - int(line_starts[1000 - extra]) if 0 < extra < 1000 else 0)
            file.write(block.reshape(-1)[:end].data)
        return file.tell()


def _thousand() -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """Return a thousand rows whose captions have 12 to 34 letters, as bytes."""
    random, words = np.random.default_rng(0), WORDS.split()
    text = []
    for row in range(1000):
        length, caption = random.integers(12, 35), ""
        while len(caption) < length:
            caption += words[random.integers(len(words))] + " "
        text.append(f'img/{row:09}.jpg "{caption[:length].strip().ljust(length, "s")}"\n')
    return np.frombuffer("".join(text).encode(), np.uint8)
