"""`import lib` costs little, needs only torch and numpy, and changes nothing."""

import subprocess
import sys

import pytest

import lib

HEAVY = ("matplotlib", "IPython", "ipywidgets", "sklearn", "PIL", "psutil", "jupyterlab", "tqdm", "pandas")


def fresh(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def test_import_lib_loads_nothing_but_itself():
    loaded = fresh(
        "import sys; before = set(sys.modules); import lib; print(*sorted(set(sys.modules) - before))"
    ).split()
    ours = [name for name in loaded if name.partition(".")[0] == "lib"]
    assert ours == ["lib", "lib._lazy", "lib.data"]
    assert "torch" not in loaded and "numpy" not in loaded


def test_the_public_names_need_only_torch_and_numpy():
    code = f"""
import sys
class Forbid:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in {HEAVY!r}:
            raise ImportError(f'lib must not need {{name}}')
sys.meta_path.insert(0, Forbid())
import torch
state = torch.random.get_rng_state()
import lib
for name in lib.__all__:
    getattr(lib, name)
import lib.data.digits
assert torch.equal(state, torch.random.get_rng_state()), 'a seed was set'
assert not torch.distributed.is_initialized()
assert not torch.cuda.is_initialized()
assert torch.get_num_threads() >= 1
print('fine')
"""
    assert fresh(code).strip() == "fine"


def test_figures_and_checks_are_above_and_never_imported_from_below():
    imports = "import sys, lib.data.digits, lib.data.samplers, lib.timeline"
    code = imports + "; print(*[name for name in sys.modules if name.startswith('lib.')])"
    below = fresh(code).split()
    assert not [name for name in below if name.split(".")[1] in ("figures", "checks", "notebook")]


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(AttributeError, match="DistributedSampler"):
        _ = lib.DistributedSamplr
    assert "Permutation" in dir(lib)


def test_the_samplers_are_importable_from_lib():
    from lib import DistributedSampler, Permutation, RandomSampler, SequentialSampler
    from lib.data import samplers

    assert DistributedSampler is samplers.DistributedSampler
    assert RandomSampler is samplers.RandomSampler
    assert SequentialSampler is samplers.SequentialSampler
    assert sorted(Permutation(5)) == list(range(5))
