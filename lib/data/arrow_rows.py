"""Rows in a memory-mapped Arrow file, as Hugging Face datasets hold them: the peer that notebook 05 compares with."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from typing import Any


def mapped_rows(rows: Sequence[str], path: str | os.PathLike[str]) -> Any:
    """Write rows to an Arrow file; return them mapped, an array with `take(ids)`. Raises ImportError without pyarrow.

    What is mapped lies in the page cache, which all processes share; the array keeps the file open.
    """
    pa: Any = importlib.import_module("pyarrow")  # it has no types

    table = pa.table({"row": pa.array(rows, pa.large_string())})
    with pa.OSFile(os.fspath(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=len(table))
    return pa.ipc.open_file(pa.memory_map(os.fspath(path))).read_all()["row"].chunk(0)
