"""Grade one notebook, in a process of its own that has the course and no more: what `make grade` starts for each.

python -m tools.grade.one JOB    a JSON file; prints a line of JSON for each exercise

An exercise is asked in a copy of this process, which first runs the statements that it stands on. So an endless loop, a
crash or what a cell leaves behind concerns that exercise alone; a copy costs milliseconds, importing torch seconds.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from lib.training.failures import signal_name
from support.kit import exercise as kit
from support.kit import raised
from support.kit.exercise import Exercise
from support.kit.raised import named, place, told_of
from support.kit.verdict import Verdict

RIGHT = "right"
WRONG = "wrong"
OPEN = "not attempted"
BLOCKED = "blocked"
LATE = "timed out"
#: The first of these that a way to ask an exercise comes to is what the exercise is worth.
MERIT = (RIGHT, WRONG, LATE, OPEN, BLOCKED)
GRACE = 5.0  # seconds for code that does not listen to the alarm


#: One way to ask an exercise: a Try of asked.py, as JSON has it.
WayAsJson = dict[str, Any]
#: What came of it: status and sentence, or the statement that is reached.
Found = dict[str, Any]


class AnswerTimedOut(BaseException):
    """The time of an exercise is up: no Exception, since answers catch those."""


@dataclass
class Grades:
    """What is known so far: it goes into every copy."""

    room: Any
    seconds: float
    sources: list[str]
    cells: list[int]
    statuses: dict[int, str] = field(default_factory=dict)  # by id of the exercise
    failed: dict[int, str] = field(default_factory=dict)  # by index of a statement: why it blocks


def main(arguments: list[str]) -> int:
    """Run the command line."""
    job = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    _nothing_is_printed()
    sys.path += job["beside"]
    shell = _shell()
    raised.NOT_THE_READERS += (str(Path(__file__).parent),)
    room = import_module(f"support.{job['room']}.checks")
    grades = Grades(room, job["seconds"], job["sources"], job["cells"])
    for task in job["exercises"]:
        exercise = getattr(room, task["check"])
        found = _best(grades, shell, exercise, task["tries"])
        grades.statuses[id(exercise)] = found["status"]
        title = exercise.name or exercise.what
        print(json.dumps({"exercise": task["check"], "title": title, **found}), file=answers, flush=True)
    return 0


def _nothing_is_printed() -> None:
    """Let whatever cells print, also from C and from processes that they start, go nowhere."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)


def _shell() -> InteractiveShell:
    """Return a shell as a notebook's kernel has one: its commands work, and functions keep their text."""
    config = Config()
    config.HistoryManager.enabled = False  # it would start a thread, and write into the home folder
    config.InteractiveShell.colors = "NoColor"
    return InteractiveShell.instance(config=config)


def _best(grades: Grades, shell: InteractiveShell, exercise: Exercise, ways: list[WayAsJson]) -> Found:
    """Ask an exercise in every way, up to the first in which it is right; return what is best."""
    found: list[Found] = []
    for way in ways:
        broken = next((grades.failed[index] for index in way["statements"] if index in grades.failed), None)
        if broken is not None:
            found.append({"status": BLOCKED, "said": broken})
            continue
        outcome = _in_a_copy(grades, partial(_asked, grades, shell, exercise, way))
        index = outcome.pop("at", None)
        if outcome["status"] == BLOCKED and index is not None:
            grades.failed[index] = outcome["said"]
        found.append(outcome)
        if outcome["status"] == RIGHT:
            break
    return min(found, key=lambda outcome: MERIT.index(outcome["status"]))


# ---- in the copy


def _asked(grades: Grades, shell: InteractiveShell, exercise: Exercise, way: dict[str, Any]) -> Iterator[Found]:
    """Run the statements of a way, then the check: yield each place that is reached, and at last what came of it."""
    ask = Exercise.__call__
    _let_cells_go_on_from_what_is_known(grades)
    needed = set(way["statements"])
    for index in sorted({*way["first"], *needed}):
        yield {"at": index if index in needed else None}
        error = _run(shell, grades.sources[index])
        if isinstance(error, AnswerTimedOut):
            why = f"{_cell(grades, index)}{_line(error)}: no end within {grades.seconds:g} s."
        elif error is not None:
            why = f"{_cell(grades, index)}{_line(error)}: {cell_error(error)}"
        if error is not None and index in needed:
            yield {"status": BLOCKED, "said": why, "at": index}
            return
    yield {"at": None}
    yield _verdict(grades, shell, lambda *answers: ask(exercise, *answers), exercise, way["arguments"])


def _verdict(
    grades: Grades, shell: InteractiveShell, ask: Callable[..., Verdict], exercise: Exercise, arguments: list[str]
) -> Found:
    """Return what the check says of the answers that the cells have left."""
    try:
        answers = [eval(text, shell.user_global_ns, shell.user_ns) for text in arguments]
    except NameError as error:
        return {"status": OPEN, "said": f"the notebook has no {error.name}."}
    if any(answer is ours for answer in answers for ours in exercise.references if callable(ours)):
        return {"status": OPEN, "said": "this is the course's own answer."}
    try:
        verdict = ask(*answers)
    except AnswerTimedOut as error:
        return {"status": LATE, "said": f"no end within {grades.seconds:g} s{_where(error)}."}
    except BaseException as error:
        return {"status": WRONG, "said": told_of(error)}
    if verdict.status == "open":
        return {"status": OPEN, "said": "the stub is still there."}
    return {"status": RIGHT if verdict.status == "right" else WRONG, "said": verdict.message}


def _let_cells_go_on_from_what_is_known(grades: Grades) -> None:
    """Let a check that stands in a cell say nothing, and `use` take the answers that were found right.

    An exercise is asked once, behind its cells: what hangs in the first one must not block the second.
    """

    def use(answer: Any, exercise: Exercise, ours: Any = None) -> Any:
        if grades.statuses.get(id(exercise)) == RIGHT:
            return answer
        return exercise.reference if ours is None else ours

    Exercise.__call__ = lambda self, *answers: Verdict("note", "asked behind this cell")  # type: ignore[method-assign]
    kit.use = use
    grades.room.use = use


def _run(shell: InteractiveShell, source: str) -> BaseException | None:
    """Run a statement, and return what it raised."""
    result = shell.run_cell(source, store_history=False)
    error: BaseException | None = result.error_before_exec or result.error_in_exec
    return error


def _cell(grades: Grades, index: int) -> str:
    return f"cell [{grades.cells[index]}]"


def _where(error: BaseException) -> str:
    where = place(error)
    return f" ({where})" if where else ""


def cell_error(error: BaseException) -> str:
    """Return what a cell raised; of a SyntaxError without the file that IPython made of the cell."""
    if isinstance(error, SyntaxError) and error.msg:
        return f"{type(error).__name__}: {error.msg}"
    return named(error)


def _line(error: BaseException) -> str:
    """Return in which line of a cell an error arose, with the line."""
    if isinstance(error, SyntaxError) and error.text:
        return f", line {error.lineno}: `{error.text.strip()}`"
    where = place(error)
    return f", {where.partition(', ')[2]}" if where else ""


# ---- around the copy


def _in_a_copy(grades: Grades, work: Callable[[], Iterator[Found]]) -> Found:
    """Return the last thing that `work` yields in a copy of this process, with all that it starts ended behind it."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _answer_and_end(work, writing, grades.seconds)
    os.close(writing)
    deadline = time.monotonic() + grades.seconds + GRACE
    reached: Found = {"at": None}
    try:
        for reached in _lines(reading, deadline):
            if "status" in reached:
                return reached
    finally:
        os.close(reading)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
    late = time.monotonic() >= deadline and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    return _ended_early(grades, reached["at"], "" if late else _death(status))


def _death(status: int) -> str:
    """Say how a process ended."""
    if os.WIFSIGNALED(status):
        return signal_name(-os.WTERMSIG(status))
    return f"exit status {os.waitstatus_to_exitcode(status)}"


def _ended_early(grades: Grades, index: int | None, death: str) -> Found:
    """Say that a copy came to no end, or how it died, in a cell or in the check."""
    if index is not None:
        why = f"ended its process ({death})" if death else f"came to no end within {grades.seconds:g} s"
        return {"status": BLOCKED, "said": f"{_cell(grades, index)} {why}.", "at": index}
    if death:
        return {"status": WRONG, "said": f"your code ended the process that checks it ({death})."}
    return {"status": LATE, "said": f"no end within {grades.seconds:g} s."}


def _lines(reading: int, deadline: float) -> Iterator[Found]:
    """Yield what the copy says, line by line, until it ends or the time is up."""
    waiting = b""
    while select.select([reading], [], [], max(0.0, deadline - time.monotonic()))[0]:
        said = os.read(reading, 65536)
        if not said:
            return
        *lines, waiting = (waiting + said).split(b"\n")
        yield from map(json.loads, lines)


def _answer_and_end(work: Callable[[], Iterator[Found]], writing: int, seconds: float) -> NoReturn:
    """Write what is reached into the pipe, and end without what Python does at its end: that is the parent's."""

    def too_late(*_: object) -> None:
        raise AnswerTimedOut

    with suppress(BaseException):
        os.setsid()
        signal.signal(signal.SIGALRM, too_late)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        for reached in work():
            os.write(writing, json.dumps(reached).encode() + b"\n")
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
