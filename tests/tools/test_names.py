"""Tests that need a GPU do not rot where there is none: every name that they use exists."""

import pytest

from tests.tools.names import missing_names
from tools.project import ROOT

GPU_TESTS = sorted((ROOT / "tests" / "gpu").glob("*.py"))


@pytest.mark.parametrize("path", GPU_TESTS, ids=[path.name for path in GPU_TESTS])
def test_every_name_that_a_gpu_test_uses_exists(path):
    missing = missing_names(path.read_text(encoding="utf-8"))
    assert not missing, "\n".join(missing)


@pytest.mark.parametrize(
    "line, sentence",
    [
        ("from lib.nowhere import run", "there is no module lib.nowhere"),
        ("from lib.runtime.device import streams", "lib.runtime.device has no streams"),
        ("import lib.runtime.streams", "there is no module lib.runtime.streams"),
        ("recordings.make_recording('preprocess')", "there is no recording preprocess"),
        ("recordings.load('preprocess')", "there is no recording preprocess"),
        ("recordings.nothing", "recordings has no nothing"),
        ("GPipe.nothing", "GPipe has no nothing"),
        ("torch.cuda.nothing()", "torch.cuda has no nothing"),
        ("monkeypatch.setattr(torch.cuda.Stream, 'wait', None)", "torch.cuda.Stream has no wait"),
        ("GPipe(model, [1], chunk=2)", "GPipe has no argument chunk"),
        ("program = 'import lib.nowhere'", "in a program in a string: line 1: there is no module lib.nowhere"),
    ],
)
def test_a_name_that_is_gone_is_found(line, sentence):
    source = f"import torch\nfrom lib.pipeline import GPipe\nfrom support import recordings\n{line}\n"
    (missing,) = missing_names(source)
    assert missing.removeprefix("line 4: ") == sentence


@pytest.mark.parametrize(
    "line",
    [
        "def test(recordings):\n    recordings.nothing()",  # an argument hides what was imported
        "model = GPipe(layers, [1], chunks=2)\nmodel.nothing",  # an object's own: unknown without running it
        "recordings.make_recording(name)",
        "recordings.make_recording('chunk_speed_gpu')",
        "torch.cuda.Stream.wait_event = None",
    ],
)
def test_what_exists_or_cannot_be_known_is_no_fault(line):
    source = f"import torch\nfrom lib.pipeline import GPipe\nfrom support import recordings\n{line}\n"
    assert missing_names(source) == []
