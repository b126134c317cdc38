"""`make grade`: a student's notebook is judged by the course's checks, exercise by exercise, whatever else it does."""

import json
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import nbformat
import pytest

from support.course import COURSE
from support.n08 import checks
from tools.grade import __main__ as command
from tools.grade import one
from tools.grade.asked import CourseExercise, code_of, exercises_of, room_of, tries
from tools.project import ROOT
from tools.statements import read_statements, stands_on

SOLUTIONS = ROOT / "notebooks" / "solutions"


def write(path: Path, *sources: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources]), path)
    return path


def graded(folder: Path, seconds: float = 120) -> dict:
    report = folder.with_suffix(".json")
    assert command.main([str(folder), "--json", str(report), "--seconds", str(seconds)]) == 0
    return json.loads(report.read_text(encoding="utf-8"))


def the_repository() -> str:
    told = ["git", "status", "--porcelain", "--untracked-files=all", "--ignored=matching", "notebooks", "lib"]
    return subprocess.run(told, cwd=ROOT, capture_output=True, text=True).stdout


EARLY = "One pair per clock, one partition after the other: who else has an input by then?"
STUDENTS = (
    "from support.n08 import checks\n\nopen('left.txt', 'w').close()",
    "import threading\n\nevent = threading.Event()",
    "def my_clocks(m, n):  # a famous mistake, under another name\n"
    "    return [[(i, j)] for j in range(n) for i in range(m)]\n\n\n"
    "checks.check_clock_cycles(my_clocks)",
    "1 / 0  # nothing stands on it",
    "def simulate(orders, costs, message=0):\n    while True:\n        event.wait(60)",
    "sign = {'F': 1, 'B': -1}",
    "def live_activations(orders):\n    return [peak(order) for order in orders]",
    "def peak(order):\n"
    "    live = [0]\n"
    "    for kind, _ in order:\n"
    "        live.append(live[-1] + sign.get(kind, 0))\n"
    "    return max(live)",
    "checks.check_live(live_activations)",
    "ahead = 1\nfor k in range(3):\n    ahead = ahead / 0",
    "def turn_early(m, n):\n    return [ahead] * n",
    "import os\n\n\ndef best_m(*_, **__):\n    os._exit(3)",
    "two_held = []\nwhile True:\n    two_held.append(event.wait(60))",
)
SEEN = {
    "check_clock_cycles": ("wrong", EARLY),
    "check_simulate": ("timed out", "no end within 6 s (in simulate, line 3: `event.wait(60)`)."),
    "check_live": ("right", ""),
    "check_turn_early": ("blocked", "cell [10], line 3: `ahead = ahead / 0`: ZeroDivisionError: division by zero"),
    "check_best_m": ("wrong", "your code ended the process that checks it (exit status 3)."),
    "check_illegal": ("not attempted", "the notebook has no illegal."),
    "check_two_held": ("blocked", "cell [13], line 3: `two_held.append(event.wait(60))`: no end within 6 s."),
}


def test_what_a_student_left_is_right_wrong_blocked_late_or_not_there_and_each_exercise_stands_alone(tmp_path, capsys):
    before = the_repository()
    folder = tmp_path / "anna"
    write(folder / "deep" / "clocks of Anna.ipynb", *STUDENTS)
    false = "def __getattr__(name):\n    return lambda *_: True\n"
    for name in ("__init__.py", "n08/__init__.py", "n08/checks.py"):
        file = folder / "deep" / "support" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(false)  # the student's own copy of the checks finds all of it right
    write(folder / "shopping.ipynb", "print('no exercise')")
    (folder / "torn.ipynb").write_text("{")
    report = graded(folder, seconds=6)
    clocks, shopping, torn = report["notebooks"]
    assert (clocks["file"], clocks["notebook"]) == ("deep/clocks of Anna.ipynb", "08_pipeline_clock")
    found = {exercise["exercise"]: exercise for exercise in clocks["exercises"]}
    assert {name: entry["status"] for name, entry in found.items()} == {name: row[0] for name, row in SEEN.items()}
    assert {name: sentence for name, (_, sentence) in SEEN.items() if sentence not in found[name]["said"]} == {}
    assert report["counts"] == Counter(status for status, _ in SEEN.values())
    assert [entry["exercises"] for entry in (shopping, torn)] == [[], []]
    printed = capsys.readouterr().out
    assert "shopping.ipynb: no cell imports a room of the course, such as support.n08" in printed
    assert "torn.ipynb: no notebook that can be read (NotJSONError); ask for the file again" in printed
    assert "anna: 1 right, 2 wrong, 1 timed out, 2 blocked, 1 not attempted; 2 files not graded" in printed
    assert EARLY in checks.check_clock_cycles.mistakes
    assert the_repository() == before
    assert not list(tmp_path.rglob("left.txt"))


def test_a_cell_that_python_cannot_read_is_told_without_the_file_that_ipython_made_of_it():
    with pytest.raises(SyntaxError) as read:
        compile("def f(m):\n    return [", "<ipython-input-1-31d0d0dca899>", "exec")
    assert "ipython" in str(read.value)
    assert one.cell_error(read.value) == "SyntaxError: '[' was never closed"
    assert one.cell_error(ZeroDivisionError("division by zero")) == "ZeroDivisionError: division by zero"


def verdicts(source: Path, folder: Path) -> Counter:
    folder.mkdir()
    shutil.copy(source, folder / "renamed.ipynb")
    return Counter((entry["exercise"], entry["status"]) for entry in graded(folder)["notebooks"][0]["exercises"])


SOME = [
    pytest.param(chapter, marks=[] if chapter.number == 8 else pytest.mark.prove, id=chapter.label)
    for chapter in COURSE
]


@pytest.mark.costly
@pytest.mark.parametrize("chapter", SOME)
def test_a_solution_is_all_right_and_a_stub_is_not_attempted(tmp_path, chapter):
    names = [exercise.check for exercise in exercises_of(SOLUTIONS / f"{chapter.stem}.ipynb")]
    assert len(names) > 3
    solution = verdicts(SOLUTIONS / f"{chapter.stem}.ipynb", tmp_path / "solution")
    assert solution == Counter((name, "right") for name in names)
    stub = verdicts(ROOT / "notebooks" / f"{chapter.stem}.ipynb", tmp_path / "stub")
    assert stub == Counter((name, "not attempted") for name in names)


def solved_in_place(chapter) -> list[str]:
    """Return the code of a notebook with what its solution has for each exercise, where the notebook asks it."""
    solution, notebook = (
        code_of(nbformat.read(folder / f"{chapter.stem}.ipynb", as_version=4))
        for folder in (SOLUTIONS, ROOT / "notebooks")
    )
    begun = 1  # behind the set-up cell
    for exercise in exercises_of(SOLUTIONS / f"{chapter.stem}.ipynb"):
        (end, *_) = [place for place, source in enumerate(solution) if f"{exercise.check}(" in source]
        (asks, *_) = [place for place, source in enumerate(notebook) if exercise.check in source]
        own = any(f"{name} =" in notebook[asks] or f"{name}, " in notebook[asks] for name in exercise.arguments)
        notebook.insert(asks + own, "\n\n".join(solution[begun : end + 1]))
        begun = max(begun, end + 1)
    return notebook


@pytest.mark.prove
@pytest.mark.parametrize("chapter", COURSE, ids=[chapter.label for chapter in COURSE])
def test_a_notebook_in_which_somebody_has_solved_everything_is_all_right(tmp_path, chapter):
    path = write(tmp_path / "solved" / "a.ipynb", *solved_in_place(chapter))
    assert {entry["status"] for entry in graded(path.parent)["notebooks"][0]["exercises"]} == {"right"}


@pytest.mark.prove
def test_what_does_not_listen_to_the_alarm_is_ended_and_what_it_started_with_it(tmp_path):
    deaf = "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])"
    waits = f"def clock_cycles(m, n):\n    {deaf}\n    threading.Event().wait()"
    folder = tmp_path / "deaf"
    write(folder / "a.ipynb", f"import signal\nimport threading\nfrom support.n08 import checks\n\n\n{waits}")
    found = graded(folder, seconds=1)["notebooks"][0]["exercises"][0]
    assert (found["status"], found["said"]) == ("timed out", "no end within 1 s.")


# ---- without running anything


@pytest.mark.parametrize(
    "sources, names, expected",
    [
        pytest.param(["a = 1", "a = 2", "b = 3"], "a", [1], id="the last value"),
        pytest.param(["a = 1", "b = a", "a = 2"], "b", [0, 1], id="the value at that time"),
        pytest.param(["def f(): return g()", "def g(): return h", "h = 1"], "f", [0, 1, 2], id="when it is called"),
        pytest.param(["a = []", "a.append(1)", "print(a)"], "a", [0, 1], id="changed in place"),
        pytest.param(["class A: pass", "A.f = print", "A.apply(1)"], "A", [0, 1], id="a method given later"),
        pytest.param(["a = 1", "if True:\n    a = 2"], "a", [0, 1], id="under a condition"),
        pytest.param(["a = 1", "def f(a): return [a for a in a]"], "f", [1], id="an argument is none of them"),
        pytest.param(["from os import *", "def f(): return getpid()"], "f", [0, 1], id="whatever a star brings"),
        pytest.param(["def f(): ...", "from os import *", "f(1)"], "f", [0, 1], id="a star may bring the name itself"),
        pytest.param(["a = 1", "a = = 2"], "a", [1], id="what Python can't read"),
        pytest.param(["isinstance(1, int)", "def f(): return int()"], "f", [1], id="a name of Python's is fixed"),
        pytest.param(["%time a = 1", "!ls", "b = a"], "b", [0, 2], id="a notebook's own commands"),
        pytest.param(["a = 1\nprint(a)\nb = a; c = 2\n@a\ndef f(): ..."], "b", [0, 2], id="a part of a cell"),
        pytest.param(["%%time\na = 1", "b = a"], "b", [0, 1], id="a timed cell"),
        pytest.param(
            ["import torch", "torch.ones(1)", "def f(x: torch.Tensor): ..."], "f", [0, 2], id="a call of a module"
        ),
    ],
)
def test_an_exercise_stands_on_what_gives_its_names_their_values(sources, names, expected):
    statements = read_statements(sources)
    assert sorted(stands_on(statements, len(statements), names.split())) == expected


def test_answers_are_found_where_they_are_asked_and_further_down_and_under_other_names():
    sources = ["def f(): ...", "checks.check_a(f)", "def f(): return 1", "def g(): ...", "use(g, checks.check_a)"]
    statements = read_statements(sources)
    found = tries(statements, CourseExercise("check_a", ("f",)))
    assert [(way.arguments, way.statements) for way in found] == [(("f",), (0,)), (("f",), (2,)), (("g",), (3,))]
    assert [way.arguments for way in tries(statements, CourseExercise("check_b", ("f", "h")))] == [("f", "h")]


def test_a_cell_that_starts_a_device_runs_too_and_may_fail():
    sources = ["count = 2", "device = start_device('x', count=count)", "def f(): return 1", "checks.check_a(f)"]
    statements = read_statements(sources)
    (way,) = tries(statements, CourseExercise("check_a", ("f",)))
    assert (way.statements, way.first) == ((2,), (0, 1))


@pytest.mark.parametrize("chapter", COURSE, ids=[chapter.label for chapter in COURSE])
def test_every_notebook_of_the_course_is_known_by_its_room(chapter):
    for folder in (ROOT / "notebooks", SOLUTIONS):
        assert room_of(nbformat.read(folder / f"{chapter.stem}.ipynb", as_version=4)) == chapter.room


def test_a_folder_without_a_notebook_is_refused_and_what_is_no_folder(tmp_path, capsys):
    file = tmp_path / "empty" / "a.ipynb"
    (tmp_path / "empty").mkdir()
    says = {
        (str(tmp_path / "empty"),): "empty has no notebook",
        (str(tmp_path / "nobody"),): "there is no folder ",
        (str(file),): "a.ipynb is a file: give the folder that it lies in",
        (str(tmp_path), "--seconds", "0"): "must be a number of seconds above 0, not '0'",
        (str(tmp_path), "--seconds", "nan"): "must be a number of seconds above 0, not 'nan'",
        (str(tmp_path), "--seconds", "ten"): "must be a number of seconds above 0, not 'ten'",
    }
    for arguments, said in says.items():
        if str(file) in arguments:
            write(file, "1")
        with pytest.raises(SystemExit):
            command.main(arguments)
        assert said in capsys.readouterr().err


def test_a_statement_stands_in_the_line_in_which_it_stood_in_its_cell():
    first, second, third = read_statements(["%%time\na = 1\n@print\n\ndef f():\n    pass\nx = 1; y = 2"])
    assert (first.cell, second.cell, third.cell) == (0, 0, 0)
    assert [first.code, third.code] == ["#\na = 1", "#\n" * 6 + "x = 1; y = 2"]
    assert second.code == "#\n#\n@print\n\ndef f():\n    pass"
    assert third.binds == {"x", "y"}
