"""No function that a notebook defines or prints above an exercise passes its check: the reader writes the mechanism."""

import ast
import html
import inspect
import itertools
import json
import linecache
import logging
import re
import signal
import textwrap
import time
from contextlib import contextmanager, suppress
from importlib import import_module

import pytest

from support.kit.compare import check_value
from support.kit.exercise import Exercise
from tests.rooms import EXERCISES
from tools.hygiene import joined
from tools.project import chapters

#: Where the job that the reader is given is healthy: what is asked is a forecast, and to leave the job alone.
HEALTHY = {"n16.check_job_3": {"job_3"}, "n16.check_job_9": {"job_9"}}

PATIENCE = 5.0  # seconds for one trial: the slowest right answer takes half of one

NUMBERS = {path.name[:2]: path for path in chapters()}


class TookTooLong(BaseException):
    """Not an Exception: a check would tell it as an error of the answer, and go on."""


def in_logging(frame):
    """Say whether logging runs, which holds its lock: around each fork, too, where Python forgets what is raised."""
    while frame is not None:
        if frame.f_code.co_filename == logging.__file__:
            return True
        frame = frame.f_back
    return False


@contextmanager
def at_most(seconds):
    """Raise TookTooLong in the body after so many seconds, and every 0.2 s until it ends; never behind it."""
    armed = True
    start = time.monotonic()

    def stop(_, frame):
        if armed and not in_logging(frame):  # or it rings again
            raise TookTooLong

    before = signal.signal(signal.SIGALRM, stop)
    left, interval = signal.setitimer(signal.ITIMER_REAL, 0)  # pytest's own limit uses the same timer
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds, 0.2)
            yield
        finally:
            armed = False
    finally:  # also when it was raised in the line above
        armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(0.001, left - (time.monotonic() - start)), interval)


def tree(text):
    """Parse a text without the notebook's own commands; what is no Python has no parts."""
    try:
        return ast.parse(re.sub(r"(?m)^(\s*)[!%].*$", r"\1pass", text))
    except SyntaxError:
        return ast.Module([], [])


class Shown:
    """What a reader has seen of a notebook, cell by cell: what it imports, defines and prints. No cell is run."""

    names = itertools.count()

    def __init__(self):
        self.space = {"__name__": "shown"}
        self.candidates = []

    def read(self, cell):
        text = joined(cell["source"])
        if cell["cell_type"] == "markdown":
            text = re.sub(r"(?s)<details>.*?</details>", "", text)
            self.printed("\n".join(re.findall(r"(?ms)^```\w*\n(.*?)^```", text)))
        elif cell["cell_type"] == "code":
            self.defined(text)
            for call in ast.walk(tree(text)):
                if isinstance(call, ast.Call) and ast.unparse(call.func).endswith(("getsource", "source_of")):
                    self.add(self.value(call.args[0]))
            for output in cell["outputs"]:
                data = output.get("data", {})
                self.printed(joined(output.get("text", "")) + joined(data.get("text/plain", "")))
                self.printed(html.unescape(re.sub(r"<[^>]*>", "", joined(data.get("text/html", "")))))

    def defined(self, text):
        """Define what a text defines, and import what it imports; of what it computes, take literals and lambdas."""
        file = f"<shown {next(self.names)}>"
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        for part in tree(text).body:
            calls = any(isinstance(at, ast.Call) for at in ast.walk(part))
            if isinstance(part, (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)) or (
                isinstance(part, ast.Assign) and (isinstance(part.value, ast.Lambda) or not calls)  # it may take long
            ):
                try:
                    exec(compile(ast.Module([part], []), file, "exec"), self.space)
                except Exception:  # it needs what a cell has computed
                    continue
                if isinstance(part, (ast.FunctionDef, ast.ClassDef)):
                    self.add(self.space[part.name])
                elif isinstance(part, ast.Assign) and isinstance(part.value, ast.Lambda):
                    self.add(self.space[part.targets[0].id])

    def printed(self, text):
        """Define the functions and classes that stand in a text between other lines."""
        block = r"(?m)^([ \t]*)(?:@.*\n\1)*(?:def|class) .*\n(?:(?:\1[ \t]+.*|[ \t]*)\n?)*"
        for found in re.finditer(block, text + "\n"):
            self.defined(textwrap.dedent(found[0]))

    def value(self, node):
        try:
            return eval(ast.unparse(node), self.space)
        except Exception:
            return None

    def add(self, thing):
        if callable(thing) and thing not in self.candidates:
            self.candidates.append(thing)


def stubs_of(cell, name):
    """Return the names of what a cell gives to the check of this name, none if it does not ask it."""
    text = joined(cell["source"])
    if cell["cell_type"] == "code" and name in text:
        for call in ast.walk(tree(text)):
            if isinstance(call, ast.Call):
                asked, *given = (ast.unparse(part).split(".")[-1] for part in (call.func, *call.args))
                if asked == name or name in given:
                    return [one for one in given if one != name]
    return []


def as_answer(candidate, stub):
    """Return a candidate with the stub's names for its arguments, as whoever copies it writes it; None: no fit."""
    if inspect.isclass(candidate) or not inspect.isfunction(stub):
        return candidate
    wanted = inspect.signature(stub)
    try:
        own = inspect.signature(candidate)
        own.bind(*wanted.parameters)
    except TypeError:  # it takes another number of arguments
        return None
    if [*own.parameters] == [*wanted.parameters]:
        return candidate
    return lambda *given, **named: candidate(*wanted.bind(*given, **named).args)


def given_away(cells, name, exercise, patience=PATIENCE):
    """Return the names of what is shown above the exercise and passes its check, in the place of each answer."""
    shown = Shown()
    for cell in cells:
        if stubs := stubs_of(cell, name):
            shown.defined(joined(cell["source"]))  # the stub may stand in the check's cell
            break
        shown.read(cell)
    else:
        raise AssertionError(f"no cell asks {name}")
    right = exercise.references
    found = set()
    for place, stub in enumerate(right):
        own = shown.space.get(stubs[place]) if place < len(stubs) else None
        for candidate in shown.candidates:
            answer = as_answer(candidate, own)
            if answer is None or not callable(stub) or inspect.isclass(candidate) != inspect.isclass(stub):
                continue  # another kind of thing is asked for
            with suppress(TookTooLong), at_most(patience):
                if exercise(*right[:place], answer, *right[place + 1 :]).status == "right":
                    found.add(candidate.__name__)
    return found


#: Exercises whose trial takes more than a second of a core for what is no answer.
SLOW = {"n02.check_noise", "n03.check_score", "n08.check_best_m"}


@pytest.fixture
def _soon(monkeypatch):
    monkeypatch.setattr(import_module("support.n09.checks"), "PATIENCE", 0.15)


@pytest.mark.filterwarnings("ignore")  # what does not fit an exercise may raise in a thread, or start a loader
@pytest.mark.usefixtures("_soon")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.costly] if name in SLOW else []) for name in EXERCISES]
)
def test_no_function_shown_above_an_exercise_passes_its_check(name):
    room, check = name.split(".")
    cells = json.loads(NUMBERS[room[1:]].read_text(encoding="utf-8"))["cells"]
    assert given_away(cells, check, EXERCISES[name]) <= HEALTHY.get(name, set())


def test_a_trial_that_ends_as_its_time_does_leaves_no_timer_and_the_limit_of_the_test_around_it():
    own, _ = signal.getitimer(signal.ITIMER_REAL)
    for trial in range(200):
        with suppress(TookTooLong), at_most(0.002):
            end = time.perf_counter() + 0.0019 + trial * 1e-6
            while time.perf_counter() < end:
                pass
        left, again = signal.getitimer(signal.ITIMER_REAL)
        assert again == 0, "it ticks on"
        assert left <= own
        assert bool(left) == bool(own)


def test_a_trial_whose_time_ends_while_logging_holds_its_lock_is_ended_when_it_has_let_go():
    """Else a worker of GPipe that compiles its layer waits for the lock for ever, tests later in this process."""
    passed = []

    class Slow(logging.Handler):
        def emit(self, record):
            end = time.perf_counter() + 0.1
            while time.perf_counter() < end:
                pass
            passed.append(record)

    with suppress(TookTooLong), at_most(0.02):
        Slow().handle(logging.makeLogRecord({}))
        while True:
            pass
    assert len(passed) == 1


# From here on: what is planted is found.


def code(source, stdout=""):
    outputs = [{"output_type": "stream", "name": "stdout", "text": stdout}] * bool(stdout)
    return {"cell_type": "code", "source": source, "outputs": outputs}


def markdown(source):
    return {"cell_type": "markdown", "source": source}


RIGHT = "def shown(numbers, shift=0):\n\n    return math.fsum(numbers) / len(numbers) + shift\n"
LAMBDA = code("shown = lambda x: sum(x) / len(x)")
ASKED = [code("def my_mean(values): ..."), code("checks.check_mean(my_mean)")]
PLANTS = {  # what stands above the exercise, and what of it gives it away
    "nothing does": ([code("def half(x):\n    return x / 2", "1.5\ndef is a word\n"), markdown("x")], set()),
    "a definition": ([code("import math\n\n\n" + RIGHT)], {"shown"}),
    "a lambda, below what never ends": ([code("def endless(x):\n    while True:\n        pass"), LAMBDA], {"<lambda>"}),
    "a print": ([code("import math"), code("tell()", f"1\n\n{textwrap.indent(RIGHT, '  ')}\n2\n")], {"shown"}),
    "a source": ([code("import inspect\nimport statistics"), code("inspect.getsource(statistics.fmean)")], {"fmean"}),
    "a quotation": ([code("import math"), markdown(f"Look:\n\n```python\n{RIGHT}```\n")], {"shown"}),
    "a folded hint may": ([code("import math"), markdown(f"<details>\n\n```python\n{RIGHT}```\n</details>")], set()),
    "what comes later may": ([*ASKED, LAMBDA], set()),
}


@pytest.mark.parametrize("name", PLANTS)
def test_what_gives_an_exercise_away_is_found_however_it_is_shown(name):
    cells, culprits = PLANTS[name]
    exercise = Exercise(
        "the mean", reference=lambda values: sum(values) / len(values), cases=[{"values": [1, 2, 6]}, {"values": [0.5]}]
    )
    assert given_away([*cells, *ASKED], "check_mean", exercise, patience=0.1) == culprits


def test_of_several_answers_each_is_tried_beside_the_right_others():
    exercise = Exercise(
        "the ends",
        reference=(min, max),
        answers=2,
        judge=lambda exercise, two: check_value([f([2, 1, 3]) for f in two], [1, 3], what="the ends"),
    )
    asked = [code("def low(x): ...\n\n\ndef high(x): ..."), code("checks.check_ends(low, high)")]
    above = code("def largest(x):\n    return sorted(x)[-1]")
    assert given_away([above, *asked], "check_ends", exercise) == {"largest"}
