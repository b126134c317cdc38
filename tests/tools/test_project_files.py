"""The files around the code agree with one another: requirements, pins, conda's environment, the Makefile."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import lib
from tests.tools.pinned import FILES, differing, installed, pins, requirements, with_the_pins
from tools.project import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.mark.parametrize("name", FILES)
def test_requirements_are_lower_bounds_with_a_reason_and_pinned_inside_their_range(name: str) -> None:
    """Lower bounds: a machine that has the packages downloads nothing."""
    for key, (requirement, reason) in requirements(name).items():
        assert [part.operator for part in requirement.specifier] == [">="], f"{requirement} in {name}"
        assert requirement.url is None
        assert requirement.marker is None
        assert not requirement.extras
        assert key in pins(), f"{requirement} of {name} has no pin in constraints.txt"
        assert requirement.specifier.contains(pins()[key]), f"{key}=={pins()[key]} is outside of {requirement}"
        assert reason, f"{name} does not say who needs {key}"


@with_the_pins
def test_the_pins_close_over_what_the_requirements_pull_in() -> None:
    waiting = [key for name in FILES for key in requirements(name)]
    seen = set()
    while waiting:
        name = waiting.pop()
        if name in seen or name.startswith(("nvidia-", "cuda-", "triton")):  # a CUDA torch pins these itself
            continue
        seen.add(name)
        needs = [Requirement(text) for text in distribution(name).requires or []]
        waiting += [canonicalize_name(r.name) for r in needs if r.marker is None or r.marker.evaluate({"extra": ""})]
    assert seen - pins().keys() == set()
    assert "torch" in seen
    assert "jupyter-client" in seen


@cache
def allowed_pythons() -> dict[str, SpecifierSet]:
    metadata = {name: distribution(name).metadata for name in pins() if name in installed()}
    return {name: SpecifierSet(data.get("Requires-Python") or "") for name, data in metadata.items()}


@with_the_pins
@pytest.mark.parametrize("python", ["3.11.2", "3.12.0", "3.13.0"])  # the first is Debian 12's own
def test_every_pin_is_for_every_python_that_the_project_runs_on(python: str) -> None:
    allowed = allowed_pythons()
    assert len(allowed) > 100
    assert [name for name, versions in allowed.items() if not versions.contains(python)] == []


def test_this_environment_has_the_pinned_versions() -> None:
    if not (ROOT / ".venv").exists() or not sys.prefix.startswith(str(ROOT)):
        pytest.skip("these tests run in another environment than .venv")
    assert differing() == []


def imported(path: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level}
    return {name.partition(".")[0] for name in names}


def test_whatever_lib_imports_is_required_and_the_package_itself_needs_torch_and_numpy_in_that_range() -> None:
    used = set().union(*(imported(path) for path in (ROOT / "lib").rglob("*.py")))
    used -= {*sys.stdlib_module_names, "lib", "google"}
    owners = packages_distributions()
    needed = {canonicalize_name(owners.get(name, [name])[0]) for name in used}
    assert needed - requirements("requirements.txt").keys() - {"ipython"} == set(), "jupyterlab brings ipython"
    ours = {canonicalize_name(Requirement(text).name): Requirement(text) for text in PROJECT["project"]["dependencies"]}
    theirs = requirements("requirements.txt")
    assert ours.keys() == {"torch", "numpy"}
    assert {name: r.specifier for name, r in ours.items()} == {name: theirs[name][0].specifier for name in ours}


def test_condas_environment_which_mybinder_builds_is_python_requirements_txt_and_a_compiler_from_one_channel() -> None:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    assert (environment["name"], environment["channels"]) == (PROJECT["project"]["name"], ["conda-forge"])
    python, *packages, compiler = environment["dependencies"]
    assert compiler == "cxx-compiler", "what pip can't bring: lib.simulated is built with it"
    wanted = [str(requirement) for requirement, _ in requirements("requirements.txt").values()]
    assert packages == ["pytorch" + one.removeprefix("torch") if one.startswith("torch>") else one for one in wanted]
    name, version = python.split("=")  # mybinder reads "python=", and takes a Python of its own for anything else
    assert name == "python"
    assert SpecifierSet(PROJECT["project"]["requires-python"]).contains(f"{version}.0")


def test_the_version_is_one_in_project_package_citation_and_tag_and_the_changelog_says_what_is_new_in_it() -> None:
    version = PROJECT["project"]["version"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert lib.__version__ == version == citation["version"]
    if re.fullmatch(r"v\d.*", ref := PROJECT["tool"]["idt"]["ref"]):  # pages.yml stamps a branch
        assert ref == f"v{version}"
    assert citation["repository-code"] == PROJECT["project"]["urls"]["Repository"]
    first = re.findall(r"(?m)^## (.+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))[0]
    assert first.startswith(f"{version}, ")


@pytest.mark.skipif(os.name == "nt", reason="a script for sh")
@pytest.mark.parametrize("version", ["3.10.14", "3.11.0", "3.12.1", "3.13.0", "3.14.0", "2.7.18"])
def test_find_python_takes_what_requires_python_allows(tmp_path: Path, version: str) -> None:
    """Fake Pythons that only report a version: the script must agree with pyproject.toml."""
    numbers = tuple(int(part) for part in version.split("."))
    fake = tmp_path / "fakepython"
    fake.write_text(f'#!/bin/sh\nexec {sys.executable} -c "import sys; sys.version_info = {numbers}; $2"\n')
    fake.chmod(0o755)
    for name in ["python3", "python3.13", "python3.12", "python3.11", "python"]:  # no other Python is found
        (tmp_path / name).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    command = ["/bin/sh", str(ROOT / "tools" / "find_python"), "fakepython"]
    result = subprocess.run(command, env=path, capture_output=True, text=True)
    if SpecifierSet(PROJECT["project"]["requires-python"]).contains(version):
        assert result.stdout.strip() == "fakepython"
    else:
        assert result.returncode == 1
        assert "make lab PYTHON=" in result.stderr


@pytest.mark.skipif(os.name == "nt" or shutil.which("make") is None, reason="no make on this machine")
def test_make_help_explains_every_target() -> None:
    shown = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for target in ["help", "lab", "copy", "test", "prove", "run", "save", "site", "bench", "lint", "stamp", "readme"]:
        assert re.search(rf"(?m)^  {target} +\w.{{8}}", shown), f"make help does not explain {target}"


@pytest.mark.skipif(os.name == "nt" or shutil.which("make") is None, reason="no make on this machine")
def test_make_lab_builds_the_simulated_device_while_jupyterlab_opens() -> None:
    steps = subprocess.run(["make", "-n", "lab"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert re.search(r"-m tools\.device &\n", steps), "beside it: nobody waits for a compiler"
    assert steps.index("tools.device") < steps.index("jupyterlab")


@pytest.mark.skipif(os.name == "nt", reason="the simulated device is for Linux and macOS")
def test_without_a_compiler_the_lab_opens_all_the_same_and_one_line_says_why_nothing_was_built(tmp_path: Path) -> None:
    hidden = {**os.environ, "PATH": "", "CXX": "", "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-m", "tools.device"], cwd=ROOT, env=hidden, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"No simulated GPU, so .*needs a C\+\+ compiler.*apt-get install g\+\+.*\n", done.stdout)


def test_whoever_runs_everything_gets_a_compiler() -> None:
    assert "command -v g++ >/dev/null || missing+=(g++)" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "cxx-compiler" in (ROOT / "environment.yml").read_text(encoding="utf-8")


def test_no_file_names_a_package_registrys_host() -> None:
    hosts = ["py" + "pi.org", "files.python" + "hosted.org", "conda.ana" + "conda.org", "download.py" + "torch.org"]
    tracked = [
        path
        for folder in ["lib", "tools", "tests", ".ci", ".github", "notebooks"]
        for path in (ROOT / folder).rglob("*")
    ]
    tracked += [
        path for path in ROOT.iterdir() if path.suffix in {".txt", ".toml", ".md", ".yml"} or path.name == "Makefile"
    ]
    files = [path for path in tracked if path.is_file() and path.suffix not in {".png", ".pyc"}]
    texts = {path: path.read_text(errors="ignore") for path in files}
    assert len(texts) > 20
    assert [f"{path}: {host}" for path, text in texts.items() for host in hosts if host in text] == []
