"""A new notebook is its own files and one entry of the map: whatever looks at all notebooks finds it then.

Shown on a copy of the project, to which notebook 99 is added. The suite asks which tests find it; `make prove` also
runs them, and sees that without the entry they fail.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pytest

from support.course import COURSE
from tools.project import ROOT

LEFT_BEHIND = (".git", ".venv", "__pycache__", ".*_cache", ".hypothesis", "build", "screenshots", "shared")
BADGE = "[![Open In Colab](https://colab.research.google.com/assets/colab-badge.svg)]({address})"
SOMEWHERE = "https://colab.research.google.com/github/some/where/blob/main/notebooks/00_x.ipynb"
ENTRY = '    Chapter("99_toy", "A toy", TOGETHER, (0,), "toy"),\n'

TITLE = f"""# 99 · A toy

What is twice a number?

{BADGE.format(address=SOMEWHERE)}

| You will | Needs | CPU time | GPU time | Previous / next |
|---|---|---|---|---|
| write `double` | [00](00_start_here.ipynb) | 5 s | not needed | |"""
EXERCISE = """## Exercise 1: write double

<details><summary>Hint</summary>Add it to itself.</details>"""
CHAPTER = [
    TITLE,
    ">from support.n99 import checks\n\nmy_guess = None\nchecks.guess_sum(my_guess)",
    ">from lib.show.explore import explore\nfrom support.n99.figures import BARS_CONTROLS, draw_bars\n\n"
    "explore(draw_bars, **BARS_CONTROLS)",
    "## Break it\n\nTry another number.",
    EXERCISE,
    ">def double(number): ...",
    ">checks.check_double(double)",
]
SOLUTION = [
    "# 99 · A toy: solutions",
    "## Exercise 1: write double",
    ">from support.n99 import checks\n\n\ndef double(number):\n    return 2 * number",
    ">checks.check_double(double)",
]
CHECKS = '''"""A prediction and an exercise of notebook 99, a toy."""

from support.kit.exercise import Exercise, cases
from support.kit.guess import Guess, Tried

guess_sum = Guess("one and one", lambda: 2, tried=Tried(right=2, wrong=3))


def double(number: int) -> int:
    """Return twice a number."""
    return 2 * number


def _two_more(number: int) -> int:
    return number + 2


check_double = Exercise(
    "double", reference=double, cases=cases("number", [1, 2, 5]), mistakes={"That adds two.": _two_more}
)
'''
FIGURES = '''"""A figure of notebook 99, a toy."""

from matplotlib.figure import Figure

from lib.show.explore import whole
from lib.show.style import describe, new_figure

BARS_CONTROLS = dict(count=whole(1, 4, 2, "bars"))


def draw_bars(count: int) -> Figure:
    """Draw so many bars."""
    figure, axes = new_figure(4, 2)
    axes.bar(range(count), [1] * count)
    return describe(figure, f"{count} bars")
'''

#: What tests find of the notebook, by file: a part of the name of a test.
FOUND = {
    "tests/notebooks/test_hygiene.py": ["[99_toy.ipynb-has_alt_text]", "[solutions/99_toy.ipynb-has_a_title]"],
    "tests/support/test_exercises.py": ["[n99.guess_sum]"],
    "tests/support/test_detectors.py": [
        "stub_not_attempted[n99.check_double]",
        "[n99.check_double-That adds two.]",
        "[n99.check_double-gives None]",
    ],
    "tests/support/test_given_away.py": ["[n99.check_double]"],
    "tests/support/test_explorers.py": ["[99 explore(draw_bars]"],
    "tests/browser/test_widgets.py": ["[99_toy.ipynb]"],
}
#: Tests that look at all notebooks at once.
AT_ONCE = {
    "tests/support/test_course.py": "one_entry or goes_on or place",
    "tests/support/n00/test_figures.py": "map",
    "tests/tools/test_borders.py": "no_other_room",
    "tests/tools/test_readme.py": "table",
    "tests/site/test_pages.py": "the_map or every_notebook",
}


def notebook(cells: list[str]) -> nbformat.NotebookNode:
    """Return a notebook; the source of a code cell begins with ">"."""
    made = []
    for text in cells:
        new = nbformat.v4.new_code_cell if text.startswith(">") else nbformat.v4.new_markdown_cell
        made.append(new(text.removeprefix(">")))
    return nbformat.v4.new_notebook(cells=made)


def add_files(root: Path) -> None:
    """Add what belongs to the notebook alone."""
    nbformat.write(notebook(CHAPTER), root / "notebooks" / "99_toy.ipynb")
    nbformat.write(notebook(SOLUTION), root / "notebooks" / "solutions" / "99_toy.ipynb")
    room = root / "notebooks" / "support" / "n99"
    room.mkdir()
    (room / "checks.py").write_text(CHECKS, encoding="utf-8")
    (room / "figures.py").write_text(FIGURES, encoding="utf-8")


def add_entry(root: Path) -> None:
    file = root / "notebooks" / "support" / "course.py"
    text = file.read_text(encoding="utf-8")
    last = re.search(rf'(?m)^    Chapter\("{COURSE[-1].stem}".*\n', text)
    assert last
    file.write_text(text[: last.end()] + ENTRY + text[last.end() :], encoding="utf-8")


@dataclass(frozen=True)
class Copy:
    """A copy of the project to which the new notebook's own files were added, and what it held before."""

    root: Path
    before: dict[str, str]

    def changed(self) -> list[str]:
        """Return the files that were changed or added since."""
        now = contents(self.root)
        return [name for name in sorted(now) if self.before.get(name) != now[name]]


@pytest.fixture
def copied(tmp_path: Path) -> Copy:
    root = tmp_path / "copy"
    shutil.copytree(ROOT, root, ignore=shutil.ignore_patterns(*LEFT_BEHIND))
    before = contents(root)
    add_files(root)
    return Copy(root, before)


def contents(root: Path) -> dict[str, str]:
    """Return a hash of every file, without what Python and pytest leave behind."""
    found = {}
    for path in root.rglob("*"):
        name = path.relative_to(root).as_posix()
        if path.is_file() and "__pycache__" not in name and "_cache/" not in name:
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def python(root: Path, *arguments: str, succeeds: bool = True) -> str:
    """Run Python in the copy; return what it prints."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, *arguments]
    result = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    printed = result.stdout + result.stderr
    assert (result.returncode == 0) == succeeds, printed[-4000:]
    return printed


def pytest_in(root: Path, *arguments: str, succeed: bool = True) -> str:
    """Run pytest in the copy; return what it prints."""
    return python(root, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments, succeeds=succeed)


OWN = [
    "notebooks/99_toy.ipynb",
    "notebooks/solutions/99_toy.ipynb",
    "notebooks/support/n99/checks.py",
    "notebooks/support/n99/figures.py",
]


@pytest.mark.costly
def test_every_test_of_all_notebooks_finds_a_new_one_and_the_tools_know_it(copied: Copy) -> None:
    add_entry(copied.root)
    assert copied.changed() == sorted([*OWN, "notebooks/support/course.py"])
    listed = pytest_in(copied.root, "--collect-only", *FOUND, "-k", "n99 or 99_ or 99")
    for file, names in FOUND.items():
        ids = [line for line in listed.splitlines() if line.startswith(file)]
        missing = [name for name in names if not any(name in each for each in ids)]
        assert missing == [], f"{file} does not find {missing} among {ids}"
    code = "from tools import project, test; print(project.find(['99'])); print(test.about(['99']))"
    said = python(copied.root, "-c", code)
    assert said.count("notebooks/99_toy.ipynb") == 2
    assert said.count("notebooks/solutions/99_toy.ipynb") == 2
    assert "n99 or 99_" in said


@pytest.mark.prove
@pytest.mark.timeout(1800)
def test_with_its_entry_a_new_notebook_passes_all_that_looks_at_it_and_without_it_is_missed(copied: Copy) -> None:
    lacking = pytest_in(copied.root, "tests/support/test_course.py", "-k", "one_entry", succeed=False)
    assert "99_toy" in lacking
    rooms = pytest_in(copied.root, "tests/tools/test_borders.py", "-k", "no_other_room", succeed=False)
    assert "n99" in rooms

    add_entry(copied.root)
    last = f"notebooks/{COURSE[-1].stem}.ipynb"
    assert last in python(copied.root, "-m", "tools.stamp")
    written = [*OWN, "notebooks/support/course.py", last]
    assert copied.changed() == sorted(written), "the stamp writes the last notebook's link to the new one"
    assert "99_toy.ipynb" in python(copied.root, "-m", "tools.save", "99")
    python(copied.root, "-m", "tools.readme")
    assert set(copied.changed()) <= {*written, "README.md", "README.zh.md", "docs/explorer.gif"}
    assert "[99 · A toy](notebooks/99_toy.ipynb)" in (copied.root / "README.md").read_text(encoding="utf-8")

    units = [file for file in FOUND if not file.startswith("tests/browser")]
    assert " passed" in pytest_in(copied.root, *units, "-k", "n99 or 99_ or 99")
    for file, names in AT_ONCE.items():
        assert " passed" in pytest_in(copied.root, file, "-k", names)
    cells = ["notebooks/99_toy.ipynb", "notebooks/solutions/99_toy.ipynb"]
    compare = ["--nbval", "--nbval-current-env", "--nbval-sanitize-with=tests/notebooks/sanitize.cfg"]
    assert " passed" in pytest_in(copied.root, *cells, *compare)
