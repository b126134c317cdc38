"""Print every benchmark table: `make bench`, or `python -m tests.bench samplers` for those whose name contains a word.

A benchmark is a module bench_*.py in this folder with a function main() that prints its table. Each runs in a process
of its own, so that one's memory is not counted for another.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

FOLDER = Path(__file__).parent
LIMIT_SECONDS = 1200


def main(words: list[str]) -> int:
    modules = [path.stem for path in sorted(FOLDER.glob("bench_*.py"))]
    chosen = [name for name in modules if not words or any(word in name for word in words)]
    if not chosen:
        print(f"No benchmark fits {words}; there are: {' '.join(modules) or 'none'}", file=sys.stderr)
        return 2
    root = FOLDER.parents[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "notebooks")])}
    failed = []
    for name in chosen:
        print(f"== {name} ==", flush=True)
        start = time.monotonic()
        code = f"import importlib; importlib.import_module('tests.bench.{name}').main()"
        try:
            result = subprocess.run([sys.executable, "-c", code], env=environment, timeout=LIMIT_SECONDS).returncode
        except subprocess.TimeoutExpired:
            result = 124
        failed += [name] if result else []
        print(f"({time.monotonic() - start:.0f} s)\n", flush=True)
    if failed:
        print(f"Failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
