"""Files that appear whole or not at all: on a full disk and after `kill -9`, too."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def whole_or_not_at_all(path: str | os.PathLike[str], mark: str | None = None) -> Iterator[Path]:
    """Yield a name beside `path`; what is written there gets the name `path` if all goes well, and is removed if not.

    To rename within a folder is one step of the file system: a reader finds the old file or the new one, never a half.

    mark: makes the name one that no other writer has; by default that of this process and thread.
    """
    path = Path(path)
    if not mark:
        mark = f"{os.getpid()}.{threading.get_ident()}"
    unfinished = path.with_name(f".{path.name}.{mark}")
    try:
        yield unfinished
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
