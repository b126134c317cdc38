"""All that is written passes `make lint`, and what looks over the prose notices a fault of each kind."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools.pinned import with_the_pins
from tools import prose
from tools.project import ROOT

RECIPE = (ROOT / "Makefile").read_text(encoding="utf-8").split("\nlint:")[1].split("\n\n")[0]
COMMANDS = re.findall(r"(?m)^\t@(\$.+)$", RECIPE)


@with_the_pins
@pytest.mark.parametrize("command", COMMANDS)
def test_make_lint_has_nothing_to_say(command: str) -> None:
    folder = Path(sys.executable).parent
    words = command.replace("$(dir $(PY))", f"{folder}/").replace("$(PY)", sys.executable).split()
    result = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-1000:]


def test_make_lint_runs_all_that_is_needed() -> None:
    assert [next(name for name in TOOLS if name in command) for command in COMMANDS] == TOOLS


TOOLS = ["ruff check", "ruff format --check", "mypy", "tools.prose", *["check_jsonschema"] * 4, "zizmor"]


def test_a_misspelling_a_dead_link_and_a_picture_without_words_are_named_with_their_file(tmp_path: Path) -> None:
    wrong = "recie" + "ve"
    picture = "![]" + "(a.png)"
    (tmp_path / "README.md").write_text(f"We {wrong}.\n\n[x](no.md) {picture} [out](https://example.org/a).\n")
    (tmp_path / "a.png").touch()
    (tmp_path / "notebooks" / "data").mkdir(parents=True)
    (tmp_path / "notebooks" / "data" / "loaded.txt").write_text(wrong)
    raw = {"cells": [{"cell_type": "markdown", "source": ["fine\n", wrong]}], "metadata": {}}
    (tmp_path / "notebooks" / "00_x.ipynb").write_text(json.dumps(raw))
    assert prose.misspelled(tmp_path) == [
        "README.md:1: " + f"{wrong} ==> receive",
        "notebooks/00_x.ipynb:2: " + f"{wrong} ==> receive",
    ]
    assert [fault.split(": ")[0] for fault in prose.wrong_links(tmp_path)] == ["README.md", "README.md"]
    assert prose.outside(tmp_path) == {"https://example.org/a": ["README.md"]}
