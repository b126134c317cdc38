"""Run the whole suite, step by step, and end with one summary.

    make test

Units, properties and hygiene share two cores, and so do the browsers: nothing there depends on the clock. The cells of
the notebooks run alone, because they measure and what they say is compared.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

from tools.execute import ENVIRONMENT
from tools.project import ROOT, notebooks


@dataclass
class Step:
    """One call of pytest: what it is about, its arguments, and the minutes after which it hangs."""

    name: str
    arguments: list[str]
    minutes: float


def steps() -> list[Step]:
    """Return the steps in order; one that has nothing to run is left out."""
    first = ["tests/unit", "tests/property", "tests/notebooks", "tests/gpu"]
    planned = [Step("units, properties, hygiene", [*first, "-n", "2", "--dist", "loadfile"], 30)]
    if list((ROOT / "tests" / "bench").glob("test_*.py")):
        planned.append(Step("paired benchmarks", ["tests/bench"], 10))
    if notebooks():
        compare = ["--nbval", "--nbval-current-env", "--nbval-cell-timeout=120"]
        compare += ["--nbval-sanitize-with=tests/notebooks/sanitize.cfg"]
        files = [str(path.relative_to(ROOT)) for path in notebooks()]
        planned.append(Step("every cell of every notebook", [*files, *compare], 40))
    planned.append(Step("widgets in a browser", ["tests/browser", "-n", "2", "--dist", "worksteal"], 40))
    return planned


def run(step: Step, report: Path) -> int:
    """Run one step; return pytest's exit code, 124 when its time is up."""
    command = [sys.executable, "-m", "pytest", f"--junitxml={report}", *step.arguments]
    print(f"\n=== {step.name} ===", flush=True)
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **ENVIRONMENT})
    try:
        return process.wait(60 * step.minutes)
    except subprocess.TimeoutExpired:
        process.terminate()  # pytest ends its kernels and browsers itself
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
        return 124
    except KeyboardInterrupt:
        process.wait(30)
        raise


def counts(report: Path) -> tuple[int, int, int]:
    """Return how many tests passed, failed and were skipped, from pytest's JUnit report."""
    if not report.exists():
        return 0, 0, 0
    suites = list(ElementTree.parse(report).getroot().iter("testsuite"))
    total, errors, failures, skipped = (
        sum(int(suite.get(name, 0)) for suite in suites)
        for name in ("tests", "errors", "failures", "skipped")
    )
    return total - errors - failures - skipped, errors + failures, skipped


def main() -> int:
    """Run every step, whatever the others did; return 1 when anything failed."""
    rows, sums, codes = [], [0, 0, 0], []
    with tempfile.TemporaryDirectory(prefix="idt-test-") as folder:
        for number, step in enumerate(steps()):
            start, report = time.monotonic(), Path(folder, f"{number}.xml")
            code = run(step, report)
            passed, failed, skipped = counts(report)
            if code and not failed:  # collection failed, nothing ran, or time was up
                failed = 1
            codes.append(code)
            sums = [a + b for a, b in zip(sums, (passed, failed, skipped), strict=True)]
            end = " (out of time)" if code == 124 else f" (pytest ended with {code})" if code > 1 else ""
            seconds = time.monotonic() - start
            rows.append(
                f"{step.name:<32} {passed:6} passed {failed:4} failed {skipped:4} skipped {seconds:6.0f} s{end}"
            )
    print("\n" + "\n".join(rows))
    print("total: {} passed, {} failed, {} skipped".format(*sums), flush=True)
    return 1 if any(codes) else 0


if __name__ == "__main__":
    sys.exit(main())
