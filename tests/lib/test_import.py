"""`import lib` costs little, needs only torch and numpy, and changes nothing. (Who may import whom: test_borders.)"""

import os
import subprocess
import sys

import pytest

import lib
from tests.lib.refusal import refuses

HEAVY = ("matplotlib", "IPython", "ipywidgets", "sklearn", "scipy", "PIL", "psutil", "jupyterlab", "tqdm", "pandas")


def fresh(code):
    kept = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}  # byte code, as everywhere
    return subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, env=kept).stdout


def test_the_public_names_need_only_torch_and_numpy():
    code = f"""
import sys
class Forbid:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in {HEAVY!r}:
            raise ImportError(f'lib must not need {{name}}')
sys.meta_path.insert(0, Forbid())
import lib, lib.data, lib.schedules.executor, lib.training.launch
print('fine')
"""
    assert fresh(code) == b"fine\n"


def test_importing_starts_nothing_sets_no_seed_and_opens_no_cuda():
    code = """import threading, torch
state = torch.random.get_rng_state()
import lib, lib.schedules.executor, lib.streams, lib.training.launch
assert torch.equal(state, torch.random.get_rng_state()), 'a seed was set'
assert not torch.distributed.is_initialized()
assert not torch.cuda.is_initialized()
assert threading.active_count() == 1
assert not lib.runtime.random_state._libraries, 'registered with the dispatcher before anything ran'
print('fine')
"""
    assert fresh(code) == b"fine\n"


@pytest.mark.costly
def test_importing_is_quick_where_torch_is_imported_already():
    timed = "import time{}; start = time.process_time(); import {}; print(time.process_time() - start)"
    whole = float(fresh(timed.format("", "torch")))
    tries = (float(fresh(timed.format(", torch", "lib"))) for _ in range(5))  # a busy machine may need more than one
    assert any(seconds < 0.1 * whole for seconds in tries), f"import lib takes over a tenth of torch's {whole:.3f} s"


def test_an_unknown_name_is_an_attribute_error_and_the_known_ones_are_listed():
    refuses(AttributeError, "DistributedSamplr", getattr, lib, "DistributedSamplr")
    assert set(lib.__all__) <= set(dir(lib))


@pytest.mark.parametrize("package", [lib, lib.data, lib.pipeline, lib.streams])
def test_what_a_package_promises_is_there(package):
    assert package.__all__ == sorted(package.__all__)
    assert all(hasattr(package, name) for name in package.__all__)
    if package is not lib:  # a name means the same thing in lib and in its part
        assert all(getattr(lib, name) is getattr(package, name) for name in {*lib.__all__} & {*package.__all__})
