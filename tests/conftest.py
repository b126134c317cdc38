"""What tests share: the environment of `make save`, the digits, the sizes of a test, GPU tests that say why not."""

import gc
import os
import signal
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sizes import VARIABLE, size
from tools.execute import ENVIRONMENT, SHARED_CORES

for name, value in {**ENVIRONMENT, **SHARED_CORES}.items():
    os.environ.setdefault(name, value)

# A shell that starts `make test &` lets it ignore Ctrl-C; what tests tell of interrupts must not depend on that.
signal.signal(signal.SIGINT, signal.default_int_handler)

GPU = Path(__file__).parent / "gpu"
ROOMS = Path(__file__).parent / "support"
#: After so many tests, what has been imported meanwhile is set aside, too.
SET_ASIDE_AFTER = 150
#: Of a room's test with more cases `make test` runs so many, spread over all; these are answers, and readers go on.
CASES = 2
TESTS_SINCE = pytest.StashKey[int]()


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from support.digits import write_digits

    return write_digits(tmp_path_factory.mktemp("data") / "digits")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--prove", action="store_true", help="run what is larger than the suite needs, in its full size")
    parser.addoption("--brief", action="store_true", help="as make test: few cases of a room's test, nothing costly")
    parser.addoption("--simulated", action="store_true", help="start simulated GPUs: for a process of their own")


def pytest_configure(config: pytest.Config) -> None:
    # Set in both cases: a pytest that a test starts must not inherit the size of the run around it.
    os.environ[VARIABLE] = "1" if config.getoption("--prove") else "0"
    set_examples()
    if config.getoption("--simulated"):  # a simulated GPU is refused beside a real one
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def set_examples() -> None:
    """Give every property, wherever it stands, its number of examples and no time limit: a busy machine is no error."""
    from hypothesis import settings

    settings.register_profile("unhurried", deadline=None, max_examples=size(suite=100, prove=1_000))
    settings.register_profile("few", deadline=None, max_examples=25)  # make test FAST=1 asks for it
    settings.load_profile("unhurried")


def has_two_sizes(item: pytest.Item) -> bool:
    """Say whether a test is a property, of which more examples can be tried, or its file asks for sizes."""
    is_property = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
    return is_property or getattr(getattr(item, "module", None), "size", None) is size


def further_cases(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield the cases of tests of rooms that are more than a few, spread over all cases of their test."""
    families = defaultdict(list)
    for item in items:
        if ROOMS in item.path.parents[1:]:
            families[item.path, getattr(item, "originalname", item.name)].append(item)
    for cases in families.values():
        kept = {k * len(cases) // CASES for k in range(CASES)}
        yield from (case for k, case in enumerate(cases) if k not in kept)


def choose_size(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is marked `prove`, with --brief also what is costly; --prove runs all that --brief leaves out."""
    chosen: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    further = {item.nodeid for item in further_cases(items)}
    for item in items:
        to_prove = item.get_closest_marker("prove") is not None
        costly = item.get_closest_marker("costly") is not None or item.nodeid in further
        if config.getoption("--prove"):
            wanted = to_prove or costly or has_two_sizes(item)
        else:
            wanted = not to_prove and not (costly and config.getoption("--brief"))
        (chosen if wanted else left_out).append(item)
    if left_out:
        items[:] = chosen
        config.hook.pytest_deselected(items=left_out)


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by -m
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    choose_size(config, items)
    files = {item.path for item in items}  # far fewer than tests
    on_gpus = {path for path in files if GPU in path.parents}
    for item in items:
        if item.path in on_gpus:
            item.add_marker(pytest.mark.gpu)
    needs_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if needs_gpu:
        skip_without_gpu(needs_gpu, simulated=config.getoption("--simulated"))


def skip_without_gpu(items: list[pytest.Item], *, simulated: bool) -> None:
    """Skip what needs a GPU where torch sees none; where GPUs are simulated, what is marked `cuda_only`."""
    import torch

    for item in items:
        marker = item.get_closest_marker("cuda_only")
        if simulated and marker is not None:
            item.add_marker(pytest.mark.skip(reason=f"only on CUDA: {marker.kwargs['reason']}"))
        elif not simulated and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU, and torch sees none here"))


def set_aside(config: pytest.Config) -> None:
    """Hide what is alive from the garbage collector.

    Hundreds of tests and checks ask for a collection, and each would go through all that torch and pytest have made:
    a fifth of a second, and a fifth of the time of all units.
    """
    gc.collect()
    gc.freeze()
    config.stash[TESTS_SINCE] = 0


def pytest_collection_finish(session: pytest.Session) -> None:
    set_aside(session.config)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    yield
    item.config.stash[TESTS_SINCE] += 1
    if nextitem is not None and nextitem.path == item.path:
        return
    forgotten = gc.get_freeze_count() == 0  # what a check sets aside for itself it brings back
    if forgotten or item.config.stash[TESTS_SINCE] >= SET_ASIDE_AFTER:
        set_aside(item.config)
