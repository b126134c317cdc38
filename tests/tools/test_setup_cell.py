"""The set-up cell finds the project from a notebook's folder, and fetches it on Colab only, once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools import setup_cell
from tools.project import Address, address

ADDRESS = Address("https://github.com/someone/somewhere", "v9.9")

#: Runs the cell as a notebook would, with `!git …` taken down instead of executed: it makes the folder as git would.
RUN = """
import os, sys, types
if sys.argv[1:] == ["colab"]:
    sys.modules["google.colab"] = types.ModuleType("google.colab")
source = sys.stdin.read()
commands = []
def shell(command):
    commands.append(command)
    project(command.split()[-1])
def project(folder):
    os.makedirs(os.path.join(folder, "lib"))
    os.makedirs(os.path.join(folder, "notebooks", "support"))
    for package in ("lib", "notebooks/support"):
        open(os.path.join(folder, package, "__init__.py"), "w").close()
    with open(os.path.join(folder, "notebooks", "support", "setup.py"), "w") as file:
        file.write("def setup(): print('set up')")
lines = [line.replace("!git", "shell(f'''git") + "''')" if "!git" in line else line for line in source.splitlines()]
exec("\\n".join(lines))
import lib
print(os.getcwd(), lib.__file__, sys.modules["support"].__file__, *commands, sep="\\n")
"""


def run(folder: Path, colab: bool = False) -> list[str]:
    command = [sys.executable, "-c", RUN, *(["colab"] if colab else [])]
    result = subprocess.run(command, cwd=folder, input=setup_cell.text(ADDRESS), capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def project(folder: Path) -> Path:
    for package in ("lib", "notebooks/support"):
        (folder / package).mkdir(parents=True)
        (folder / package / "__init__.py").touch()
    (folder / "notebooks" / "support" / "setup.py").write_text("def setup(): print('set up')")
    (folder / "notebooks" / "solutions").mkdir()
    return folder


def packages(root: Path) -> list[str]:
    return [str(root / "lib" / "__init__.py"), str(root / "notebooks" / "support" / "__init__.py")]


@pytest.mark.parametrize("place", ["notebooks", "notebooks/solutions"])
def test_a_notebook_uses_the_project_that_it_lies_in(tmp_path: Path, place: str) -> None:
    root = project(tmp_path / "clone")
    assert run(root / place) == ["set up", str(root / place), *packages(root)]


def test_colab_fetches_the_project_at_its_ref_once_and_goes_to_its_notebooks(tmp_path: Path) -> None:
    clone = tmp_path / "inside-distributed-training"
    *found, command = run(tmp_path, colab=True)
    assert found == ["set up", str(clone / "notebooks"), *packages(clone)]
    assert command.startswith("git clone --quiet --depth 1 --branch v9.9 https://github.com/someone/somewhere ")
    assert run(tmp_path, colab=True) == found, "no command the second time"


def test_away_from_the_project_the_installed_one_is_used_and_the_cell_is_short_with_the_address(tmp_path: Path):
    for module in run(tmp_path)[-2:]:
        assert os.path.exists(module) and not Path(module).is_relative_to(tmp_path)
    text = setup_cell.text(address())
    assert len(text.splitlines()) <= 19 and address().repository in text and address().ref in text
