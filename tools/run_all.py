"""Run notebooks from top to bottom, save nothing in them, and report the seconds of each.

make run              all of them; one: make run NB=03
make run RECORD=1     and keep the seconds in notebooks/recorded/seconds.json: make test begins with the longest
"""

from __future__ import annotations

import argparse
import sys
import time

import nbformat

from support import recordings
from tools.execute import FAILURES, execute
from tools.project import ROOT, find


def main() -> int:
    """Run the command line; return 1 when a notebook fails or takes longer than the limit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", default=["all"], metavar="NB", help="a number, a stem, a path, or all")
    parser.add_argument("--limit", type=float, default=60, help="seconds that one notebook may take (60)")
    parser.add_argument("--record", action="store_true", help="keep the seconds, when all notebooks ran")
    options = parser.parse_args()
    if options.record and options.names != ["all"]:
        parser.error("only a run of all notebooks is recorded")
    rows: list[tuple[str, float, str]] = []
    for path in find(options.names):
        notebook = nbformat.read(path, as_version=4)
        verdict = "ok"
        start = time.monotonic()
        try:
            execute(notebook, path.parent)
        except FAILURES as error:
            verdict = "FAILED"
            print(error, file=sys.stderr)
        seconds = time.monotonic() - start
        if verdict == "ok" and seconds > options.limit:
            verdict = f"TOO SLOW: more than {options.limit:g} s"
        rows.append(
            (path.relative_to(ROOT / "notebooks").as_posix() if ROOT in path.parents else path.name, seconds, verdict)
        )
        print(f"{rows[-1][0]:<44} {seconds:6.1f} s  {verdict}", flush=True)
    print(f"{'all ' + str(len(rows)):<44} {sum(seconds for _, seconds, _ in rows):6.1f} s")
    if options.record and all(verdict != "FAILED" for *_, verdict in rows):
        chapters = {name: round(seconds, 1) for name, seconds, _ in rows if "/" not in name}
        file = recordings.save_recording("seconds", {"seconds": chapters}, command="make run RECORD=1")
        print(f"recorded in {file.name}")
    return 0 if all(verdict == "ok" for *_, verdict in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
