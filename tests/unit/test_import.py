"""`import lib` costs little, needs only torch and numpy, and changes nothing."""

import ast
import subprocess
import sys
from collections.abc import Set
from graphlib import TopologicalSorter
from pathlib import Path

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


def imports_of(file: Path, modules: Set[str]) -> set[str]:
    """Return the modules that a file imports when it is imported itself: not in functions, not for types."""
    tree, found = ast.parse(file.read_text()), set()
    blocks = [tree.body]
    while blocks:
        for node in blocks.pop():
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = {f"{node.module}.{alias.name}" for alias in node.names}
                found |= names if names <= modules else names | {node.module}
            elif isinstance(node, ast.If) and ast.unparse(node.test) != "TYPE_CHECKING":
                blocks += [node.body, node.orelse]
            elif isinstance(node, ast.Try):
                blocks += [node.body, *(handler.body for handler in node.handlers)]
    return found & modules


def test_imports_look_down_and_go_round_in_no_circle():
    root = Path(lib.__file__).parent
    files = {
        ".".join(file.relative_to(root.parent).with_suffix("").parts).removesuffix(".__init__"): file
        for file in root.rglob("*.py")
    }
    graph = {module: imports_of(file, files.keys()) - {module} for module, file in files.items()}
    list(TopologicalSorter(graph).static_order())  # raises CycleError
    folders = {}
    for module, imported in graph.items():
        for other in imported:
            a, b = (".".join(name.split(".")[:2]) for name in (module, other))
            if a != b and "lib" not in (a, b):
                folders.setdefault(a, set()).add(b)
    list(TopologicalSorter(folders).static_order())
    for low in ("lib.data", "lib.pipeline", "lib.streams"):
        assert not folders[low] & {"lib.figures", "lib.checks", "lib.notebook", "lib.experiments"}, low


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
