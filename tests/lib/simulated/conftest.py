"""These tests start simulated devices, which changes torch for the whole process: they run in one of their own.

python -m pytest tests/lib/simulated --simulated        (`make test` does it)
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lib.simulated import Kernel, Link

#: These start no device, and run with everything else.
WITHOUT_A_DEVICE = {"test_build.py", "test_modelled_time.py"}

#: Bytes of each device.
MEMORY = 64 << 20


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    name = collection_path.name
    if not name.startswith("test_"):
        return None
    needs_a_device = name not in WITHOUT_A_DEVICE
    return None if needs_a_device == config.getoption("--simulated") else True


@pytest.fixture
def device() -> Iterator[Callable[..., None]]:
    """Start two devices; let them cost what a test asks for: device(kernel=Kernel(seconds=0.01))."""
    import torch

    from lib import simulated

    def start(**costs: object) -> None:
        free = {"kernel": Kernel(), "host_link": Link(), "peer_link": Link(), "forgets": ()}
        simulated.start(2, memory=MEMORY, **{**free, **costs})

    start()
    torch.manual_seed(0)
    yield start
    for index in range(2):
        torch.accelerator.synchronize(index)
    start()
