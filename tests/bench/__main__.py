"""Print every benchmark table: `make bench`, or `python -m tests.bench samplers` for those whose name contains a word.

A benchmark is a module bench_*.py of this folder with a function main() that prints its table, and TAKES: its seconds
on a calm machine with 2 cores. Each runs in a process of its own, so that one's memory is not counted for another. What
all of them take together stands in the Makefile (tests/tools/test_run.py holds it to their sum).
"""

import ast
import os
import subprocess
import sys
import time
from pathlib import Path

FOLDER = Path(__file__).parent
LIMIT_SECONDS = 1200


def declared(path: Path) -> int:
    """Return the seconds that a benchmark says it TAKES, without importing it. Raises ValueError if it says nothing."""
    for statement in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "TAKES":
            return int(ast.literal_eval(statement.value))
    raise ValueError(f"{path.name} does not say what it takes: TAKES = …")


def head(chosen: list[Path]) -> str:
    """Return what is printed first: what is measured, and how long each of it takes."""
    lines = [f"  {path.stem:<20} {declared(path):>4} s" for path in chosen]
    total = sum(map(declared, chosen))
    return "\n".join(["On a calm machine with 2 cores:", *lines, f"  {'together':<20} {total:>4} s", ""])


def run(path: Path) -> int:
    """Run a benchmark in a process of its own and print its seconds; return its exit code, 124 when time is up."""
    root = FOLDER.parents[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "notebooks")])}
    code = f"import importlib; importlib.import_module('tests.bench.{path.stem}').main()"
    print(f"== {path.stem} ==", flush=True)
    start = time.monotonic()
    try:
        result = subprocess.run([sys.executable, "-c", code], env=environment, timeout=LIMIT_SECONDS).returncode
    except subprocess.TimeoutExpired:
        result = 124
    print(f"({time.monotonic() - start:.0f} s; {declared(path)} s on a calm machine)\n", flush=True)
    return result


def main(words: list[str]) -> int:
    paths = sorted(FOLDER.glob("bench_*.py"))
    chosen = [path for path in paths if not words or any(word in path.stem for word in words)]
    if not chosen:
        print(f"No benchmark fits {words}; there are: {' '.join(path.stem for path in paths)}", file=sys.stderr)
        return 2
    print(head(chosen), flush=True)
    failed = [path.stem for path in chosen if run(path)]
    if failed:
        print(f"Failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
