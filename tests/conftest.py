"""What tests share: the environment of `make save`, the digits, the two sizes of a test, GPU tests that say why not."""

import os
import signal
from pathlib import Path

import pytest

from tests.sizes import VARIABLE, size
from tools.execute import ENVIRONMENT

for name, value in ENVIRONMENT.items():
    os.environ.setdefault(name, value)

# A shell that starts `make test &` lets it ignore Ctrl-C; what tests tell of interrupts must not depend on that.
signal.signal(signal.SIGINT, signal.default_int_handler)

GPU = Path(__file__).parent / "gpu"


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from support.digits import write_digits

    return write_digits(tmp_path_factory.mktemp("data") / "digits")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--prove", action="store_true", help="run what is larger than the suite needs, in its full size")
    parser.addoption("--simulated", action="store_true", help="start simulated GPUs: for a process of their own")


def pytest_configure(config: pytest.Config) -> None:
    # Set in both cases: a pytest that a test starts must not inherit the size of the run around it.
    os.environ[VARIABLE] = "1" if config.getoption("--prove") else "0"


def has_two_sizes(item: pytest.Item) -> bool:
    """Say whether a test is a property, of which more examples can be tried, or its file asks for sizes."""
    is_property = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
    return is_property or getattr(getattr(item, "module", None), "size", None) is size


def choose_size(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is marked `prove`; with --prove, leave out what the suite has run at the same size."""
    chosen: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        marked = item.get_closest_marker("prove") is not None
        wanted = marked or has_two_sizes(item) if config.getoption("--prove") else not marked
        (chosen if wanted else left_out).append(item)
    if left_out:
        items[:] = chosen
        config.hook.pytest_deselected(items=left_out)


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by -m
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    choose_size(config, items)
    for item in items:
        if GPU in item.path.parents:
            item.add_marker(pytest.mark.gpu)
    needs_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if not needs_gpu:
        return
    import torch

    if not torch.cuda.is_available():
        for item in needs_gpu:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU, and torch sees none here"))
