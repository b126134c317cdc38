"""The code, the tests and the notebooks keep the style and the types that `make lint` checks."""

import subprocess
import sys

import pytest

from tools.project import ROOT


@pytest.mark.parametrize("command", ["ruff check", "ruff format --check", "mypy"])
def test_make_lint_has_nothing_to_say(command: str) -> None:
    result = subprocess.run([sys.executable, "-m", *command.split()], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-1000:]
