"""Two sizes of one test: what the suite needs, and what `make prove` runs before a note is closed.

    number = size(suite=50, prove=5_000)  # rows, seeds, rounds, examples, …
    ranks = size(suite=(1, 3), prove=range(1, 9))

A size is asked for where the test is written, in a decorator too. `pytest --prove` (tests/conftest.py) says which one
holds, and runs only what differs from the suite: tests marked `prove`, and the files that ask for a size.
"""

import os
from typing import TypeVar

Value = TypeVar("Value")

#: Set by `pytest --prove` before it reads a test, so that each process of the run sees it.
VARIABLE = "IDT_PROVE"


def size(*, suite: Value, prove: Value) -> Value:
    """Return the size that holds in this run."""
    return prove if os.environ.get(VARIABLE) == "1" else suite
