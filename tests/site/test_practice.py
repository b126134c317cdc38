"""Exercises in pages: which have an editor, what it knows, and that a page's verdict is the notebook's.

The page's Python is Pyodide; here the same files run in this one, with torch and NumPy hidden. In Pyodide itself they
run in tests/browser and in `make site CHECK=1`.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import zipfile
from collections import Counter
from io import BytesIO
from pathlib import Path

import pytest

from tests.rooms import EXERCISES
from tests.sizes import size
from tools.site import check_practice, in_page, practice, runtime
from tools.site.build import STATIC
from tools.site.practice import Practice

#: In the suite the first of so many famous mistakes of each exercise.
EVERY = size(suite=20, prove=1)


@pytest.fixture(scope="module")
def site(course_site):
    return course_site.folder


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    zipfile.ZipFile(BytesIO(runtime.course())).extractall(folder)
    return folder


ASK = "import sys, in_page; in_page.prepare(); print(*map(in_page.judge, list(sys.stdin)), sep='\\n')"


def answered(course: Path, jobs: list[dict]) -> list[dict]:
    """Return what the page's files say of some jobs, in a process that finds nothing else of ours."""
    asked = "".join(f"{json.dumps(job)}\n" for job in jobs)
    command = [sys.executable, "-c", ASK]
    said = subprocess.run(command, cwd=course, input=asked, capture_output=True, text=True, env={"PYTHONPATH": "."})
    assert said.returncode == 0, said.stderr[-2000:]
    return [json.loads(line) for line in said.stdout.splitlines()]


def of(site: Path) -> list[tuple[str, Practice]]:
    return [(page.name, one) for page in sorted(site.glob("[0-9]*.html")) for one in check_practice.practices(page)]


def test_every_exercise_that_needs_nothing_a_page_lacks_has_an_editor(site):
    found = [one.check for _, one in of(site)]
    left_out = {"n00.check_makespan", *practice.BY_THE_CLOCK}  # the first: the notebook shows how a check speaks
    assert set(found) == {name for name, exercise in EXERCISES.items() if exercise.portable} - left_out
    assert max(Counter(found).values()) == 1
    for page in sorted(site.glob("[0-9]*.html")):
        text = page.read_text(encoding="utf-8")
        exercises = text.count('<section class="exercise"')
        assert text.count("data-practice=") + text.count('class="practice-not"') == exercises, page.name


def test_the_page_says_what_the_notebook_says_of_solution_stub_and_mistakes(site, course):
    tried = []
    for name, one in of(site):
        solutions = site / "notebooks" / "solutions" / name.replace(".html", ".ipynb")
        tried += [(one, *each) for each in check_practice.codes(one, solutions, EVERY)]
    said = answered(course, [practice.job_of(one, code) for one, _, code, _ in tried])
    faults = [
        f"{one.check}, {what}: {check_practice.differs(verdict, wanted)}"
        for (one, what, _, wanted), verdict in zip(tried, said, strict=True)
        if check_practice.differs(verdict, wanted)
    ]
    assert faults == []
    assert len(tried) >= len(of(site)) * 3


def idle_share(code: str) -> dict:
    one = Practice("n00.check_idle_share", ["my_idle_share"], "", [(["random"], "import random")], "00/2")
    return practice.job_of(one, code)


DEFINED = "def my_idle_share(spans, lanes):\n    return "


@pytest.mark.parametrize(
    "code, status, words",
    [
        ("def my_idle_share(:", "failed", "Python can't read line 1: `def my_idle_share(:`"),
        (f"{DEFINED}random.random()", "wrong", "expected"),
        (f"{DEFINED}[0] * 10**17", "wrong", "your code raised MemoryError (in my_idle_share, line 2: "),
        (
            "x = [0] * 10**17",
            "failed",
            "Your code asks for more memory than a page has (in line 1: `x = [0] * 10**17`)",
        ),
        ("1 / 0", "failed", "Your code raised ZeroDivisionError: division by zero (in line 1: `1 / 0`)."),
        ("pass", "failed", "the check asks for my_idle_share"),
        ("import numpy as np", "lacks", "This page's Python lacks numpy"),
        (f"{DEFINED}__import__('torch').zeros(1)", "lacks", "This page's Python lacks torch"),
        ("exit()", "failed", "SystemExit"),
        ("x = input('?')", "failed", "a page has no keyboard for input(): write the value into the code (in line 1: "),
    ],
)
def test_code_that_fails_is_told_a_sentence_with_its_line(course, code, status, words):
    (said,) = answered(course, [idle_share(code)])
    assert said["status"] == status
    assert words in said["message"]


def test_what_is_printed_comes_back_but_no_flood(course):
    hello, flood = answered(course, [idle_share("print('hello')"), idle_share("print('x' * 10**6)")])
    assert hello["output"] == "hello\n"
    assert len(flood["output"]) == in_page.PRINTED


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python counts no jumps before 3.12; the page's does")
def test_a_loop_without_an_end_is_stopped_in_its_line(course):
    code = f"import in_page\nin_page.SECONDS = 0.1\n{DEFINED}[0 for _ in iter(int, 1)]"
    (said,) = answered(course, [idle_share(code)])
    assert "has not ended; it was stopped in line 4" in said["message"]


@pytest.mark.parametrize(("seconds", "slower"), [(10 * in_page.USUAL, 10), (in_page.USUAL / 10, 1)])
def test_on_a_slow_machine_a_call_may_run_longer_and_on_a_quick_one_as_long(monkeypatch, seconds, slower):
    clock = iter([0.0, seconds])
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    assert in_page.slowness() == pytest.approx(slower)


def test_what_the_notebook_defines_above_is_there_and_of_earlier_exercises_ours():
    above = [
        "from math import inf, pi\nx = 3\ny = f(3)",
        "def f(n):\n    ...",
        "g = checks.use(f, checks.check_f)",
        "!ls",
    ]
    found = [
        statement for source in [*above, "checks.check_f(f)"] for statement in practice.harmless_statements(source)
    ]
    assert found == [
        (["inf", "pi"], "from math import inf, pi"),
        (["x"], "x = 3"),
        (["f"], "def f(n):\n    ..."),
        (["g"], "g = checks.check_f.reference"),
        (["f"], "f = checks.check_f.reference"),
    ]
    assert in_page.given("print(g, x)", found) == ["x = 3", "g = checks.check_f.reference"]
    assert in_page.given("print(f, checks)", found)[-1] == "f = checks.check_f.reference"


def test_a_stub_keeps_its_comments_and_a_value_is_one_line():
    cell = "import os\n\n\ndef f(x):\n    # about four lines\n    ...\n\n\ny = None  # a list\nchecks.check_y(y)"
    assert practice.stub_of("f", [cell]) == "def f(x):\n    # about four lines\n    ..."
    assert practice.stub_of("y", [cell]) == "y = None  # a list"
    assert practice.stub_of("z", [cell, "!ls"]) == ""
    assert practice.called_check(cell) == ("check_y", ["y"])
    assert practice.called_check("checks.check_y(3)") is None


def test_what_needs_torch_says_so():
    needs = EXERCISES["n06.check_ring"].needs()
    assert "needs torch, threads and processes" in practice.cannot(practice.lacks(needs), "06_data")
    assert practice.lacks(EXERCISES["n08.check_live"].needs()) == ""
    assert practice.lacks({"cases": {"torch"}, "judge": {"numpy", "socket"}}) == "torch, NumPy, threads and processes"


def test_the_same_files_make_the_same_script():
    assert runtime.course() == runtime.course()
    assert runtime.python_script().startswith("window.pagePython(")
    megabytes = re.findall(r"loads Python, (\d+) MB", (STATIC / "practice.js").read_text(encoding="utf-8"))
    assert megabytes == [f"{len(runtime.python_script()) / 1e6:.0f}"]
