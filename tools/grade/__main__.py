"""Grade a folder of a student's notebooks against the exercises of the course.

make grade FOLDER=anna                  a table, and build/grades/anna.json
make grade FOLDER=anna JSON=anna.json   the JSON elsewhere
make grade FOLDER=anna SECONDS=30       how long an exercise may take, with the cells that it stands on (120)

Each notebook runs in a process of its own, on a copy of the course that is thrown away: its checks are the course's,
whatever lies beside the student's file, and nothing that a cell writes by name reaches this folder. Of a notebook only
what its exercises stand on is run.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import nbformat

from lib.arguments import seconds_above_zero
from support.course import COURSE, Chapter
from tools.grade.asked import code_of, exercises_of, room_of, tries
from tools.project import ROOT
from tools.statements import read_statements

SIGNS = {"right": "✓", "wrong": "✗", "timed out": "✗", "blocked": "!", "not attempted": "○"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 1 if there is nothing to grade."""
    parser = argparse.ArgumentParser(prog="make grade", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="the student's notebooks, in whatever folders below it")
    parser.add_argument("--json", type=Path, help="where the JSON goes (build/grades/FOLDER.json)")
    parser.add_argument("--seconds", type=_seconds, default=120, help="that an exercise may take, with its cells (120)")
    options = parser.parse_args(arguments)
    if not hasattr(os, "fork"):
        parser.error("this needs Linux or macOS; on Windows run it in WSL")
    if options.folder.is_file():
        parser.error(f"{options.folder} is a file: give the folder that it lies in")
    if not options.folder.is_dir():
        parser.error(f"there is no folder {options.folder}")
    folder = options.folder.resolve()
    notebooks = [path for path in sorted(folder.rglob("*.ipynb")) if ".ipynb_checkpoints" not in path.parts]
    if not notebooks:
        parser.error(f"{options.folder} has no notebook")
    graded = []
    for path in notebooks:
        entry = {"file": path.relative_to(folder).as_posix(), **grade(path, options.seconds)}
        print(verdict_table(entry), end="\n\n", flush=True)
        graded.append(entry)
    counts = Counter(exercise["status"] for entry in graded for exercise in entry["exercises"])
    print(f"{folder.name}: {_sum(counts, sum('why' in entry for entry in graded))}")
    file = options.json or ROOT / "build" / "grades" / f"{folder.name}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    report = {"folder": folder.name, "seconds": options.seconds, "counts": counts, "notebooks": graded}
    file.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"written: {file}")
    return 0 if counts else 1


def _seconds(text: str) -> float:
    """Read how long an exercise may take; raises ArgumentTypeError for what is no time above 0."""
    try:
        return seconds_above_zero("it", float(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number of seconds above 0, not {text!r}") from None


def _sum(counts: Counter[str], left_out: int) -> str:
    """Say how many exercises got which grade, and how many files could not be graded: their reasons stand above."""
    said = ", ".join(f"{counts[status]} {status}" for status in SIGNS if counts[status]) or "no exercise"
    return f"{said}; {left_out} file{'s' * (left_out != 1)} not graded" if left_out else said


def grade(path: Path, seconds: float) -> dict[str, Any]:
    """Return of a student's notebook which one of the course it is, how long it took, and each exercise's grade.

    Or why it can't be graded, and no exercise.
    """
    nothing: dict[str, Any] = {"notebook": "", "exercises": []}
    try:
        notebook = nbformat.read(path, as_version=4)
    except Exception as error:  # whatever a broken file makes of the reader
        return {**nothing, "why": f"no notebook that can be read ({type(error).__name__}); ask for the file again"}
    chapter = next((chapter for chapter in COURSE if chapter.room == room_of(notebook)), None)
    if chapter is None:
        return {**nothing, "why": "no cell imports a room of the course, such as support.n08"}
    start = time.monotonic()
    exercises = _graded(notebook, chapter, path.parent.resolve(), seconds)
    took = round(time.monotonic() - start, 1)
    return {"notebook": chapter.stem, "title": chapter.name, "took": took, "exercises": exercises}


def _graded(notebook: Any, chapter: Chapter, beside: Path, seconds: float) -> list[dict[str, Any]]:
    """Run a notebook's exercises in a process of its own, and return the grades in the order of the course."""
    statements = read_statements(code_of(notebook))
    exercises = exercises_of(ROOT / "notebooks" / "solutions" / f"{chapter.stem}.ipynb")
    job = {
        "room": chapter.room,
        "seconds": seconds,
        "beside": [str(beside)],
        "sources": [statement.code for statement in statements],
        "cells": [statement.cell + 1 for statement in statements],
        "exercises": [
            {"check": exercise.check, "tries": [asdict(way) for way in tries(statements, exercise)]}
            for exercise in exercises
        ],
    }
    with _copy_of_the_course() as course:
        file = course / "job.json"
        file.write_text(json.dumps(job), encoding="utf-8")
        command = [sys.executable, "-m", "tools.grade.one", str(file)]
        done = subprocess.run(
            command, cwd=course / "notebooks", env=_environment(course), stdout=subprocess.PIPE, text=True
        )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    for exercise in exercises[len(found) :]:
        why = f"the process that grades ended before it, with exit status {done.returncode}."
        found.append({"exercise": exercise.check, "title": exercise.check, "status": "blocked", "said": why})
    return found


@contextmanager
def _copy_of_the_course() -> Iterator[Path]:
    """Copy what notebooks import and read, without notebooks, for as long as the block lasts."""
    with tempfile.TemporaryDirectory(prefix="grade-", ignore_cleanup_errors=True) as folder:
        course = Path(folder) / "course"
        left_out = shutil.ignore_patterns("*.ipynb", "__pycache__", "solutions", ".ipynb_checkpoints")
        for part in ("lib", "notebooks", "tools/grade"):
            shutil.copytree(ROOT / part, course / part, ignore=left_out)
        shutil.copy(ROOT / "tools" / "__init__.py", course / "tools")
        (course / "tmp").mkdir()
        yield course


def _environment(course: Path) -> dict[str, str]:
    """Return an environment in which Python finds the copy first, and writes nothing beside what it imports."""
    return os.environ | {
        "PYTHONPATH": os.pathsep.join([str(course), str(course / "notebooks")]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "MPLBACKEND": "Agg",
        "TQDM_DISABLE": "1",
        "TMPDIR": str(course / "tmp"),
    }


def verdict_table(entry: dict[str, Any]) -> str:
    """Return what is said of a notebook: a line for each exercise, with the check's sentence where it isn't right."""
    if "why" in entry:
        return f"{entry['file']}: {entry['why']}"
    lines = [f"{entry['title']}   {entry['file']}   {entry['took']:g} s"]
    titles = Counter(exercise["title"] for exercise in entry["exercises"])
    for exercise in entry["exercises"]:
        status = exercise["status"]
        said = exercise["said"] if status not in ("right", "not attempted") else ""
        which = f" ({exercise['exercise']})" if titles[exercise["title"]] > 1 else ""
        lines.append(f"  {SIGNS[status]} {status:<14} {exercise['title']}{which}")
        lines += [f"      {said}"] if said else []
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
