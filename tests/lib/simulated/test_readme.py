"""What README and docs/simulated.md print of the simulated device, run as it stands there."""

import re
import subprocess
import sys

import pytest

from tools.project import ROOT


@pytest.mark.costly
def test_the_example_finds_the_missing_wait_and_measures_overlap(device):
    done = printed_by("docs/simulated.md")
    assert done.stdout == "0.5\nnan 500000.0\n", done.stderr


def test_the_first_example_of_readme_names_the_race_and_measures_overlap(device):
    """In 12 lines. The share is as wide as a busy machine makes it."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    code, printed = re.findall(r"```(?:python|text)\n(.*?)```", text, re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) == 12
    race, share = printed.splitlines()
    found = printed_by("README.md")
    said = found.stdout.splitlines()
    assert said[:1] == [race], found.stderr
    assert share == "0.9"
    assert 0.6 <= float(said[1]) <= 1


def printed_by(name):
    """Run the first example of a page in a process of its own."""
    code = (ROOT / name).read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=120)
