"""What tests share: the environment of `make save`, the digits, and GPU tests that say why they are skipped."""

import os
import signal
from pathlib import Path

import pytest

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


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by -m
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
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
