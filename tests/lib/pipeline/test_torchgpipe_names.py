"""torchgpipe's vocabulary: every public name is here, and its own public suite runs where somebody has it.

git clone https://github.com/kakaobrain/torchgpipe && cd torchgpipe && git checkout v0.0.7
TORCHGPIPE_TESTS=…/torchgpipe/tests pytest tests/lib/pipeline/test_torchgpipe_names.py
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lib import pipeline
from tests.lib.pipeline.torchgpipe_modules import NAMES, module
from tools.project import ROOT

SUITE = os.environ.get("TORCHGPIPE_TESTS")
#: Tests that can't pass here, each with its reason.
LEFT_OUT = {
    "test_balance.py::test_deprecated_torchgpipe_balancing": "about a package that torchgpipe itself had given up",
    "test_deferred_batch_norm.py::test_input_requiring_grad": "changes a leaf in place: torch refuses that by now",
    "test_gpipe.py::test_batch_size_indivisible": "asks pytest for warns(None), which pytest 8 refuses",
    "test_gpipe.py::test_batch_size_small": "asks pytest for warns(None), which pytest 8 refuses",
    "test_gpipe.py::test_recommend_auto_balance": "looks for the path torchgpipe.balance in a message; ours says lib's",
    "test_inplace.py::test_inplace_on_requires_grad": "wants an error; here a layer in place gets a copy, and works",
    "test_inplace.py::test_inplace_incorrect_grad": "is expected to fail by a wrong gradient; here it is right",
}
MODULES_TOO = {"checkpoint", "worker", "copy"}


@pytest.mark.parametrize("path", NAMES)
def test_each_module_of_torchgpipe_finds_its_public_names_in_lib(path):
    missing = set(NAMES[path].split()) - set(vars(module(path)))
    assert not missing


def test_lib_pipeline_exports_all_names_of_torchgpipe_but_those_that_are_its_modules():
    internal = {"solve", "restore_rng_states", "wait"}  # of blockpartition, of checkpoints, of one run
    names = {name for names in NAMES.values() for name in names.split()}
    assert names - internal - MODULES_TOO <= set(pipeline.__all__)


def test_blockpartition_solves_for_the_blocks_themselves():
    assert pipeline.blockpartition.solve([1, 2, 3, 4, 5, 6], partitions=2) == [[1, 2, 3, 4], [5, 6]]
    assert pipeline.blockpartition.solve([0, 0], partitions=2) == [[0], [0]]


@pytest.mark.skipif(SUITE is None, reason="TORCHGPIPE_TESTS names no folder with torchgpipe's tests")
def test_the_public_suite_of_torchgpipe_passes():
    folder = Path(SUITE)
    left_out = [f"--deselect={folder.name}/{name}" for name in LEFT_OUT]
    plugin = ["-p", "torchgpipe_modules", "-p", "no:cacheprovider"]
    paths = os.pathsep.join(map(str, (ROOT, Path(__file__).parent)))  # their package `tests` stands before ours
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--rootdir", folder.parent, *plugin, *left_out, folder.name],
        cwd=folder.parent,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
