"""`make lab` remakes the environment when a file behind it changed, and only then."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tools import environment

DECIDE = ["requirements.txt", "constraints.txt", "pyproject.toml", "tools/nbconvert_config.py"]


LAB = ["-r requirements.txt -c constraints.txt", "--no-deps -e ."]
TEST = ["-r requirements.txt -r requirements-test.txt -c constraints.txt", "--no-deps -e ."]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "tools").mkdir()
    for name in [*DECIDE, "requirements-test.txt"]:
        (tmp_path / name).write_text(name)
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    monkeypatch.setattr(environment, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(environment, "STAMP", tmp_path / ".venv" / "idt-stamp.json")
    monkeypatch.setattr(environment, "python_works", (tmp_path / ".venv").exists)
    monkeypatch.setattr(environment.shutil, "which", lambda name: None)
    return tmp_path


@pytest.fixture
def update(root: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Bring the environment up to date; return the commands so far, which are taken down instead of executed."""
    done: list[str] = []
    monkeypatch.setattr(environment, "create", lambda uv: ((root / ".venv").mkdir(), done.append("create")))
    monkeypatch.setattr(environment, "install", lambda uv, *arguments: done.append(" ".join(arguments)))

    def run(*arguments: str) -> list[str]:
        monkeypatch.setattr("sys.argv", ["environment.py", *arguments])
        environment.main()
        return done

    return run


@pytest.mark.parametrize("name", DECIDE)
def test_it_is_made_once_and_a_changed_file_updates_it(root: Path, update: Callable[..., list[str]], name: str) -> None:
    assert update() == ["create", *LAB]
    assert update() == ["create", *LAB]
    (root / name).write_text("changed")
    assert update() == ["create", *LAB, *LAB]
    page_config = json.loads((root / ".venv/etc/jupyter/labconfig/page_config.json").read_text())
    assert page_config == {"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": True}}, "news are off"


def test_the_test_tools_come_on_top_and_serve_the_lab_too(root: Path, update: Callable[..., list[str]]) -> None:
    update()
    update("--test")
    assert update() == ["create", *LAB, *TEST]
    (root / "requirements-test.txt").write_text("changed")
    assert update() == ["create", *LAB, *TEST]
    assert update("--test") == ["create", *LAB, *TEST, *TEST]


def test_an_installation_that_broke_off_is_done_again(root, update, monkeypatch):
    update()
    (root / "requirements.txt").write_text("changed")

    def fail(uv: str | None, *arguments: str) -> None:
        raise SystemExit("no network")

    with monkeypatch.context() as broken:
        broken.setattr(environment, "install", fail)
        with pytest.raises(SystemExit):
            update()
    assert update() == ["create", *LAB, *LAB]


def test_uv_is_told_of_pips_local_wheels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UV_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_FIND_LINKS", "wheels more-wheels")
    assert environment.find_links() == {"UV_FIND_LINKS": "wheels,more-wheels"}
    monkeypatch.setenv("UV_FIND_LINKS", "mine")
    assert environment.find_links() == {}
