"""These tests run on CUDA, or on simulated GPUs in a process of their own; without either they are skipped.

python -m pytest tests/gpu                  on CUDA
python -m pytest tests/gpu --simulated      on simulated GPUs (`make test` does it)
"""

from collections.abc import Generator, Iterator

import pytest

#: How many are simulated: a device for each partition of the models that are tried.
DEVICES = 3


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--simulated"):
        from lib import simulated

        simulated.start(DEVICES)


@pytest.fixture(autouse=True)
def as_before(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let the next test find simulated GPUs that are idle and cost nothing."""
    yield
    if request.config.getoption("--simulated"):
        import torch

        from lib import simulated

        for index in range(DEVICES):
            torch.accelerator.synchronize(index)
        simulated.start(DEVICES)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let a test fail that skips itself on simulated GPUs: it runs there, or is marked `cuda_only`."""
    report = yield
    marked = item.get_closest_marker("cuda_only") is not None
    if item.config.getoption("--simulated") and report.skipped and not marked:
        report.outcome = "failed"
        report.longrepr = "skipped on simulated GPUs: let it run there, or mark it cuda_only and say why"
    return report
