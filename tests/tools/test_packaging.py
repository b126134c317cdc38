"""`pip install -e .`: `lib` with its types and nothing else; a `lib` beside a script is found first, and the way out.

What the build backend makes of this project is unpacked into an empty environment, as pip would: nothing is fetched.
"""

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tools.pinned import with_the_pins
from tools.project import ROOT

BUILD = "import setuptools.build_meta as backend; print(backend.build_editable({folder!r}))"


class Environment:
    """An environment that has this project, as an editable install leaves it, and the packages around these tests."""

    def __init__(self, folder: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
        self.python = folder / "venv" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
        self.clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MYPYPATH")}
        where = "import sysconfig; print(sysconfig.get_path('purelib'))"
        self.packages = Path(self.run(folder, "-c", where).stdout.strip())

    def run(self, folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
        command = [self.python, *arguments]
        return subprocess.run(command, cwd=folder, env=self.clean, capture_output=True, text=True)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is built: this project's files for packaging, beside links to its folders."""
    folder = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE", "lib", "notebooks", "tools", "tests"):
        (folder / name).symlink_to(ROOT / name)
    return folder


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, source: Path) -> Environment:
    folder = tmp_path_factory.mktemp("installed")
    built = subprocess.run(
        [sys.executable, "-c", BUILD.format(folder=str(folder))], cwd=source, capture_output=True, text=True
    )
    assert built.returncode == 0, built.stderr
    made = Environment(folder)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        wheel.extractall(made.packages)
    return made


@pytest.fixture
def runs(installed: Environment, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(code: str, *options: str) -> subprocess.CompletedProcess[str]:
        script = tmp_path / "script.py"
        script.write_text(code)
        return installed.run(tmp_path, *options, script)

    return run


def test_the_install_is_a_path_to_the_project_and_no_import_hook(installed: Environment, source: Path) -> None:
    new = sorted(path.name for path in installed.packages.iterdir())
    assert [name for name in new if name.endswith(".py")] == []
    (path,) = installed.packages.glob("*.pth")
    assert path.read_text().strip() == str(source)


def test_lib_and_the_projects_folder_are_importable_from_anywhere_and_support_is_not(runs) -> None:
    found = "import importlib.util as u; print([bool(u.find_spec(name)) for name in ('lib', 'tools', 'support')])"
    assert runs(found).stdout == "[True, True, False]\n"


def test_a_lib_beside_the_script_is_found_first_and_python_P_is_the_way_out(runs, tmp_path: Path, source: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "__init__.py").write_text("mine = True")
    found = "import importlib.util as u; print(u.find_spec('lib').origin)"
    assert runs(found).stdout == f"{tmp_path / 'lib' / '__init__.py'}\n"
    assert "cannot import name 'GPipe'" in runs("from lib import GPipe").stderr
    assert runs(found, "-P").stdout == f"{source / 'lib' / '__init__.py'}\n"


CHECKED = """
from lib import DistributedSampler, GPipe
from lib.schedules import one_f_one_b, simulate

reveal_type(DistributedSampler([1], 8, 3).state_dict)
reveal_type(simulate(one_f_one_b(8, 2), forward=1, backward=2).bubble)
DistributedSampler([1], rank="three")
"""


@with_the_pins
def test_a_type_checker_sees_the_types_of_what_is_installed(installed: Environment, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(CHECKED)
    # torch is not there and its types are not asked for: what lib says of itself is
    command = [sys.executable, "-m", "mypy", "--python-executable", str(installed.python), "--cache-dir", os.devnull]
    done = subprocess.run([*command, "script.py"], cwd=tmp_path, env=installed.clean, capture_output=True, text=True)
    said = done.stdout
    said = said.replace("builtins.", "")
    assert 'Revealed type is "def (consumed: int) -> dict[str, Any]"' in said
    assert 'Revealed type is "float"' in said
    assert 'Argument "rank" to "DistributedSampler" has incompatible type "str"' in said
    assert "Cannot find implementation or library stub" not in said
