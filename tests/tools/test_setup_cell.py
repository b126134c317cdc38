"""The set-up cell finds the project from a notebook's folder, and fetches it on Colab only, once."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools import setup_cell
from tools.project import ROOT, Address, address

ADDRESS = Address("https://github.com/someone/somewhere", "v9.9")

#: Runs the cell as a notebook's kernel would; on a machine that calls itself Colab, if asked to.
RUN = """
import os, sys, types
if sys.argv[1:] == ["colab"]:
    sys.modules["google.colab"] = types.ModuleType("google.colab")
from IPython.core.interactiveshell import InteractiveShell
InteractiveShell.instance().run_cell(sys.stdin.read()).raise_error()
import lib
print(os.getcwd(), lib.__file__, sys.modules["support"].__file__, sep="\\n")
"""


def run(folder: Path, colab: bool = False, text: str = setup_cell.text(ADDRESS), **environment: str) -> list[str]:
    command = [sys.executable, "-c", RUN, *(["colab"] if colab else [])]
    environment = {**os.environ, "IPYTHONDIR": str(folder / "ipython"), **environment}
    result = subprocess.run(command, cwd=folder, input=text, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout.splitlines()


def published(project: Path, address: Address) -> dict[str, str]:
    """Commit a project under its ref; return settings with which git finds it there, not at its address."""
    for command in ("init -q", "add -A", "-c user.name=a -c user.email=a@b -c commit.gpgsign=false commit -qm x"):
        subprocess.run(["git", *command.split()], cwd=project, check=True)
    subprocess.run(["git", "tag", address.ref], cwd=project, check=True)
    instead = {"GIT_CONFIG_KEY_0": f"url.{project.as_uri()}.insteadOf", "GIT_CONFIG_VALUE_0": address.repository}
    return {"GIT_CONFIG_COUNT": "1", **instead}


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
    (colab := tmp_path / "content").mkdir()
    clone, git = colab / "inside-distributed-training", published(project(tmp_path / "remote"), ADDRESS)
    found = run(colab, colab=True, **git)
    assert found == ["set up", str(clone / "notebooks"), *packages(clone)]
    assert run(colab, colab=True, GIT_ALLOW_PROTOCOL="none") == found, "nothing is fetched the second time"


def test_on_colab_the_course_itself_is_set_up_and_an_explorer_follows_its_control(tmp_path: Path) -> None:
    """ci.yml runs this with the versions that Colab has."""
    (colab := tmp_path / "content").mkdir()
    for name in ("lib", "notebooks/support"):
        shutil.copytree(ROOT / name, tmp_path / "remote" / name, ignore=shutil.ignore_patterns("__pycache__"))
    text = f"{setup_cell.text(address())}\n{EXPLORE}"
    *card, follows, folder, _, _ = run(colab, colab=True, text=text, **published(tmp_path / "remote", address()))
    assert (follows, folder) == ("True", str(colab / "inside-distributed-training" / "notebooks"))
    assert any("torch" in line for line in card), "the machine card"


EXPLORE = """
from lib.show.explore import explore
from support.n05.figures import HOLDERS_CONTROLS, draw_holders
controls, shown = explore(draw_holders, **HOLDERS_CONTROLS).widget.children
before, control = shown.value, controls.children[0]
control.index = 1 - min(control.index, 1)
print(before != shown.value)"""


def test_away_from_the_project_the_installed_one_is_used_and_the_cell_is_short_with_the_address(tmp_path: Path):
    for module in run(tmp_path)[-2:]:
        assert os.path.exists(module) and not Path(module).is_relative_to(tmp_path)
    text = setup_cell.text(address())
    assert len(text.splitlines()) <= 19 and address().repository in text and address().ref in text
