"""Rows of a meta file as a dataset that holds none of them: `FileDataset` reads each from the file when it is asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.utils.data import Dataset

from lib.data.meta import MetaFile


class FileDataset(Dataset[Any]):
    """Read rows from the text by its index: item i is row i, or transform(row). Nothing is held, whatever N is.

    It needs no loading and no epoch, so any sampler and persistent workers go with it. The price is paid at each
    access: two reads a row, one of the index and one of the text, in the system's page cache if there is memory for it
    (all processes of a machine share that, and give it back when others need it), else on the disk.

    `__getitems__`, which torch's DataLoader calls, reads a batch at once: sorted, and rows that lie close together in
    one read. transform: applied to a row (a str) when it is taken. Close `meta_file` when done.

    Reads never move a position in the file, so forked workers and threads may share it; a pickled copy, as a spawned
    worker gets, is a path, and opens the files again.

    Raises IndexError outside -N..N-1 (a negative index counts from the end, as in a list), and what MetaFile raises:
    RuntimeError if the text has changed since it was opened, also by the time a copy opens it.
    """

    def __init__(self, meta_file: MetaFile, *, transform: Callable[[str], Any] | None = None) -> None:
        self.meta_file = meta_file
        self.transform = transform

    def __len__(self) -> int:
        return len(self.meta_file)

    def __repr__(self) -> str:
        return f"<FileDataset of {self.meta_file!r}>"

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__((index,))[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return the items of one batch, in the order asked for."""
        there = range(len(self))
        try:
            rows = self.meta_file.rows([there[index] for index in indices])
        except IndexError:
            wrong = next(int(index) for index in indices if not -len(there) <= index < len(there))
            raise IndexError(f"item {wrong} is out of range: there are {len(there)}") from None
        return rows if self.transform is None else [self.transform(row) for row in rows]
