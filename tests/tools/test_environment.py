"""`make lab` remakes the environment when a file behind it changed, and only then."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools import environment

DECIDE = ["requirements.txt", "constraints.txt", "pyproject.toml", "tools/nbconvert_config.py"]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose commands are taken down instead of executed: see `commands`."""
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
def commands(root: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    done: list[str] = []
    monkeypatch.setattr(environment, "create", lambda uv: ((root / ".venv").mkdir(), done.append("create")))
    monkeypatch.setattr(environment, "install", lambda uv, *arguments: done.append(" ".join(arguments)))
    return done


def update(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr("sys.argv", ["environment.py", *arguments])
    environment.main()


LAB = ["-r requirements.txt -c constraints.txt", "--no-deps -e ."]
TEST = ["-r requirements.txt -r requirements-test.txt -c constraints.txt", "--no-deps -e ."]


def test_it_is_made_once(root: Path, commands: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    update(monkeypatch)
    assert commands == ["create", *LAB]
    update(monkeypatch)
    assert commands == ["create", *LAB]


@pytest.mark.parametrize("name", DECIDE)
def test_a_changed_file_updates_it(root: Path, commands: list[str], monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    update(monkeypatch)
    (root / name).write_text("changed")
    update(monkeypatch)
    assert commands == ["create", *LAB, *LAB]


def test_the_test_tools_come_on_top_and_serve_the_lab_too(
    root: Path, commands: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    update(monkeypatch)
    update(monkeypatch, "--test")
    update(monkeypatch)
    assert commands == ["create", *LAB, *TEST]
    (root / "requirements-test.txt").write_text("changed")
    update(monkeypatch)
    assert commands == ["create", *LAB, *TEST]
    update(monkeypatch, "--test")
    assert commands == ["create", *LAB, *TEST, *TEST]


def test_an_installation_that_broke_off_is_done_again(
    root: Path, commands: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    update(monkeypatch)
    (root / "requirements.txt").write_text("changed")

    def fail(uv: str | None, *arguments: str) -> None:
        raise SystemExit("no network")

    with monkeypatch.context() as broken:
        broken.setattr(environment, "install", fail)
        with pytest.raises(SystemExit):
            update(broken)
    commands.clear()
    update(monkeypatch)
    assert commands == LAB


def test_jupyterlabs_news_are_off_in_this_environment(
    root: Path, commands: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    update(monkeypatch)
    page_config = json.loads((root / ".venv/etc/jupyter/labconfig/page_config.json").read_text())
    assert page_config == {"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": True}}


def test_uv_is_told_of_pips_local_wheels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UV_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_FIND_LINKS", "wheels more-wheels")
    assert environment.find_links() == {"UV_FIND_LINKS": "wheels,more-wheels"}
    monkeypatch.setenv("UV_FIND_LINKS", "mine")
    assert environment.find_links() == {}
