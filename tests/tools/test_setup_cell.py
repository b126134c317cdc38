"""The set-up cell finds the project from a notebook's folder, and fetches it on Colab only, once."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tools import setup_cell
from tools.project import ROOT, Address, address

ADDRESS = Address("https://github.com/someone/somewhere", "v9.9", "9.9.0")

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


Finished = subprocess.CompletedProcess[str]


def execute(folder: Path, colab: bool, text: str, start: str, environment: Mapping[str, str]) -> Finished:
    """Run the cell in a folder, in a Python of its own. start: what that Python runs before."""
    command = [sys.executable, "-c", start + RUN, *(["colab"] if colab else [])]
    environment = {**os.environ, "IPYTHONDIR": str(folder / "ipython"), **environment}
    return subprocess.run(command, cwd=folder, input=text, env=environment, capture_output=True, text=True)


def run(folder: Path, colab: bool = False, text: str = setup_cell.text(ADDRESS), **environment: str) -> list[str]:
    result = execute(folder, colab, text, "", environment)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout.splitlines()


#: Begins a Python in which this project is not installed.
NOT_INSTALLED = f"""
import sys
sys.path[:] = [entry for entry in sys.path if "site-packages" in entry or not entry.startswith({str(ROOT)!r})]
"""


def failure(folder: Path, colab: bool = False, **environment: str) -> tuple[str, str]:
    """Run the cell where the project must not be found; return its error, and all that is shown."""
    result = execute(folder, colab, setup_cell.text(ADDRESS), NOT_INSTALLED, environment)
    assert result.returncode != 0, "the project was found"
    error = result.stderr.strip().splitlines()
    begin = max(number for number, line in enumerate(error) if "Error: " in line)
    return "\n".join(error[begin:]), result.stdout + result.stderr


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
    (folder / "notebooks" / "support" / "setup.py").write_text("def setup(version): print('set up', version)")
    (folder / "notebooks" / "solutions").mkdir()
    return folder


def packages(root: Path) -> list[str]:
    return [str(root / "lib" / "__init__.py"), str(root / "notebooks" / "support" / "__init__.py")]


@pytest.mark.parametrize("place", ["notebooks", "notebooks/solutions"])
def test_a_notebook_uses_the_project_that_it_lies_in(tmp_path: Path, place: str) -> None:
    root = project(tmp_path / "clone")
    assert run(root / place) == ["set up 9.9.0", str(root / place), *packages(root)]


def test_colab_fetches_the_project_at_its_ref_once_and_goes_to_its_notebooks(tmp_path: Path) -> None:
    (colab := tmp_path / "content").mkdir()
    clone = colab / "inside-distributed-training"
    git = published(project(tmp_path / "remote"), ADDRESS)
    found = run(colab, colab=True, **git)
    assert found == ["set up 9.9.0", str(clone / "notebooks"), *packages(clone)]
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


#: What the cell says where there is no project.
MISSING = f"""ModuleNotFoundError: This notebook needs the project around it. Fetch it:
git clone --depth 1 --branch v9.9 {ADDRESS.repository} inside-distributed-training
(if git finds no v9.9: without --branch v9.9)"""


def test_a_downloaded_notebook_without_the_project_says_how_to_fetch_it(tmp_path: Path) -> None:
    error, _ = failure(tmp_path)
    assert error == MISSING


def test_on_colab_a_tag_that_is_not_there_is_told_by_git_and_how_to_go_on_by_the_cell(tmp_path: Path) -> None:
    (colab := tmp_path / "content").mkdir()
    git = published(project(tmp_path / "remote"), replace(ADDRESS, ref="v0.0"))
    error, shown = failure(colab, colab=True, **git)
    assert error == MISSING
    assert "Remote branch v9.9 not found" in shown


def test_on_colab_without_a_way_to_the_repository_nothing_half_fetched_is_used(tmp_path: Path) -> None:
    (colab := tmp_path / "content").mkdir()
    error, shown = failure(colab, colab=True, GIT_ALLOW_PROTOCOL="none")
    assert error == MISSING
    assert "fatal: transport 'https' not allowed" in shown


def test_on_colab_a_folder_of_the_projects_name_that_is_another_is_not_taken_for_it(tmp_path: Path) -> None:
    (tmp_path / "inside-distributed-training").mkdir()
    error, _ = failure(tmp_path, colab=True)
    assert error == MISSING


def test_after_the_command_that_the_error_names_the_cell_finds_the_project(tmp_path: Path) -> None:
    (colab := tmp_path / "content").mkdir()
    git = published(project(tmp_path / "remote"), ADDRESS)
    command = MISSING.splitlines()[1].split()
    subprocess.run(command, cwd=colab, env={**os.environ, **git}, check=True, capture_output=True)
    clone = colab / "inside-distributed-training"
    assert run(colab, colab=True)[:2] == ["set up 9.9.0", str(clone / "notebooks")]
    assert run(clone / "notebooks")[:2] == ["set up 9.9.0", str(clone / "notebooks")]


@pytest.mark.costly
def test_away_from_the_project_it_says_so_also_where_lib_is_installed(tmp_path: Path) -> None:
    result = execute(tmp_path, False, setup_cell.text(ADDRESS), "import lib", {})
    assert result.returncode != 0
    assert MISSING in result.stderr


def test_the_cell_is_short_and_has_the_address() -> None:
    text = setup_cell.text(address())
    assert len(text.splitlines()) <= 24
    assert f'ref = "{address().ref}"\nrepository = "{address().repository}"\n' in text
