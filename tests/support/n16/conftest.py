"""What a check remembers of its mistakes hangs on the trials, which files of this folder shorten."""

import pytest

from support.n16 import checks, warm


def forget():
    for number in range(1, 13):
        for cell in getattr(checks, f"check_job_{number}").judge.__closure__:
            if isinstance(cell.cell_contents, dict):
                cell.cell_contents.clear()


@pytest.fixture(autouse=True, scope="module")
def _nothing_remembered():
    limit = warm.LIMIT
    warm.LIMIT = 4 * limit  # a busy machine takes its time
    forget()
    yield
    forget()
    warm.LIMIT = limit
