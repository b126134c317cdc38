"""Run the suite, step by step, and end with its slowest tests and one summary.

    make test            everything that it takes to trust a change
    make test NB=03      one notebook: its room, its hygiene, every cell of it and its solution, its widgets
    make test FAST=1     lib, its properties, the tools: no notebook and no room of one, no browser, no real ranks
    make prove           what that leaves out (tests/conftest.py): full sizes, all cases, what is costly

Two cores share everything: four processes for the units, since many a test waits for a rank. Beside them run, one
after another, the cells of notebooks, browsers and simulated GPUs, which mostly wait. All are through at about the same
time. So whatever is compared must hold on a busy machine too; what a notebook only measures is shown, not compared.

Some tests have to wait for a while and then say that nothing will come: a thread, a rank, a page. On a slow machine in
such company a while can be too short. So a few that fail are tried once more, alone. What fails then has failed; what
passes is counted as passed, and named at the end.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TextIO

import psutil

from tools import lab
from tools.execute import ENVIRONMENT, SHARED_CORES
from tools.project import ROOT, find, notebooks

#: The tools begin: the longest test of all is one of theirs, the type checker, and at the end it would run alone.
FOLDERS = ["tools", "lib", "support", "site", "property", "notebooks", "gpu"]
#: Who is through takes over half of what another has left. When a worker dies, its test fails and another goes on.
BOTH_CORES = ["-n", "4", "--dist", "worksteal"]
#: Without real ranks few tests wait, and a process takes 10 seconds of a core to import and to collect.
FEW_WAIT = ["-n", "3", "--dist", "worksteal"]
#: The cells of a notebook share a kernel. Elsewhere never: when a worker dies so, xdist 3.8 waits for ever (its 1378).
WHOLE_FILES = ["--dist", "loadfile", "--no-loadscope-reorder"]
#: One test after another, in one worker: when it dies, pytest still reports.
ALONE = ["-n", "1"]
#: More failures than these are no matter of company.
TRIED_AGAIN = 30
#: A test in full size may take half an hour (its mark says so); in the suite none does (pyproject.toml).
LONGER = ["-o", "faulthandler_timeout=2000"]
ONE_KERNEL = ["-p", "tools.one_kernel"]
#: Strictly: every stored output is compared. A cell that takes ten minutes hangs: what measures threads that hand over
#: to each other takes seconds alone, and minutes where eight processes share two slow cores.
COMPARE = [
    "--nbval",
    "--nbval-current-env",
    "--nbval-cell-timeout=600",
    "--nbval-sanitize-with=tests/notebooks/sanitize.cfg",
]
#: The folder whose sitecustomize.py every Python process of the suite runs first.
QUICK = ROOT / "tools" / "quick"
SLOWEST = 10
#: These tests look at every room.
GENERIC = ("exercises", "detectors", "given_away", "explorers")
#: The step that needs a browser.
WIDGETS = "widgets in a browser"
#: These tests run notebooks, or the suite itself, a compiler, `make lint`, a Python that imports torch anew.
RUN = (
    *(f"tools/test_{name}.py" for name in ("save", "export", "grade", "setup_cell", "copies", "run", "style")),
    "lib/simulated/test_build.py",
    "lib/test_import.py",
)
#: A quarter of the examples of each property, a few cases of a room's test, nothing costly (tests/conftest.py).
BRIEF = ["--hypothesis-profile=few", "--brief"]


@dataclass
class SuiteStep:
    """One call of pytest: what it is about, its tests, its options, and the minutes after which it hangs.

    beside: whether it runs beside the other steps. Of such steps one runs at a time; what they print comes at the end.
    """

    name: str
    tests: list[str]
    options: list[str]
    minutes: float
    beside: bool = False


def units() -> list[str]:
    """Return the folders whose tests need neither a stored notebook's cells nor a browser."""
    return [f"tests/{name}" for name in FOLDERS if (ROOT / "tests" / name).exists()]


def cells(paths: list[Path], processes: int = 4, beside: bool = False) -> SuiteStep:
    """Return the step that runs notebooks and compares each cell: the longest first, one never timed before all.

    Solutions come last.
    """
    recorded = ROOT / "notebooks" / "recorded" / "seconds.json"
    seconds = json.loads(recorded.read_text(encoding="utf-8"))["seconds"]

    def late(path: Path) -> float:
        if path.parent.name == "solutions":
            return 0
        return -float(seconds.get(path.name, math.inf))

    names = [path.relative_to(ROOT).as_posix() for path in sorted(paths, key=late)]
    options = [*COMPARE, "-n", str(processes), *WHOLE_FILES, *ONE_KERNEL]
    return SuiteStep("cells of notebooks", names, options, 60, beside)


def simulated() -> SuiteStep:
    """Return the step of the simulated GPUs: once started, they change torch for the whole process.

    Their kernels take the time that they were given, which is not the processor's.
    """
    options = ["--simulated", "--brief", "-n", "2", "--dist", "worksteal"]
    return SuiteStep("simulated GPUs", ["tests/lib/simulated"], options, 30, beside=True)


def on_simulated_gpus() -> SuiteStep:
    """Return the step of the tests that want a GPU: on simulated ones, which are others than those of `simulated`."""
    options = ["--simulated", "-n", "2", "--dist", "load"]
    return SuiteStep("GPU tests, simulated", ["tests/gpu"], options, 30, beside=True)


def widgets() -> SuiteStep:
    """Return the step that drives each page and each widget: a browser mostly waits for a kernel."""
    return SuiteStep(WIDGETS, ["tests/browser"], ["--brief", "-n", "2", "--dist", "worksteal"], 60, beside=True)


def everything() -> list[SuiteStep]:
    """Return the steps of `make test`."""
    return [
        SuiteStep("units, properties, hygiene", units(), [*BOTH_CORES, *BRIEF], 60),
        cells(notebooks(), processes=2, beside=True),
        widgets(),
        simulated(),
        on_simulated_gpus(),
    ]


def fast() -> list[SuiteStep]:
    """Return the step of `make test FAST=1`."""
    folders = ["tests/lib", "tests/property", "tests/tools"]
    slow = [f"--ignore=tests/{name}" for name in RUN]
    return [SuiteStep("units and properties", folders, [*slow, *BRIEF, *FEW_WAIT, "-m", "not ranks"], 20)]


def prove() -> list[SuiteStep]:
    """Return the steps of `make prove`."""
    steps = [
        SuiteStep("full sizes", units(), BOTH_CORES, 120),
        simulated(),
        widgets(),
    ]
    for step in steps:
        step.options = [*step.options, "--prove", *LONGER]
        step.minutes = 120
    return steps


def about(names: list[str]) -> list[SuiteStep]:
    """Return the steps of `make test NB=…`."""
    chosen = find(names)
    numbers = sorted({path.name[:2] for path in chosen})
    rooms = [room for number in numbers if (ROOT / (room := f"tests/support/n{number}")).exists()]
    generic = ["tests/notebooks", *(f"tests/support/test_{name}.py" for name in GENERIC)]
    asked = " or ".join(f"n{number} or {number}_" for number in numbers)
    widgets = " or ".join(f"{number}_" for number in numbers)
    return [
        SuiteStep("room", rooms, BOTH_CORES, 20),
        SuiteStep("exercises, explorers, hygiene", generic, [*BOTH_CORES, "-k", asked], 20),
        cells(chosen),
        SuiteStep(WIDGETS, ["tests/browser/test_widgets.py"], ["-k", widgets], 40),
    ]


def run_step(step: SuiteStep, report: Path, printed: TextIO | None = None) -> int:
    """Run one step, printing into `printed` if there is one; return pytest's exit code, 124 when its time is up."""
    kept = f"cache_dir={cache_of(report)}"
    command = [sys.executable, "-m", "pytest", f"--junitxml={report}", "-o", kept, *step.tests, *step.options]
    print(f"\n=== {step.name} ===", file=printed, flush=True)
    paths = os.pathsep.join(filter(None, [str(QUICK), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, **ENVIRONMENT, **SHARED_CORES, "PYTHONPATH": paths}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # else each process compiles all of lib and of the tests
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=printed, stderr=printed)
    try:
        return process.wait(60 * step.minutes)
    except subprocess.TimeoutExpired:
        show_where_it_hangs(process)
        return 124
    except KeyboardInterrupt:
        process.wait(30)
        raise


def cache_of(report: Path) -> Path:
    """Return the folder where pytest keeps what it knows of the run behind a report."""
    return report.with_suffix(".cache")


def what_failed(report: Path) -> list[str]:
    """Return what failed in the run behind a report, as pytest is asked for it: a test, or a notebook as a whole.

    The cells of a notebook share a kernel: none can be run without those above it.
    """
    kept = cache_of(report) / "v" / "cache" / "lastfailed"
    if not kept.exists():
        return []
    names = json.loads(kept.read_text(encoding="utf-8"))
    files = {name: name.partition("::")[0] for name in names}
    return sorted({file if file.endswith(".ipynb") else name for name, file in files.items()})


def show_where_it_hangs(process: subprocess.Popen[bytes]) -> None:
    """Let pytest's processes print where each of their threads stands; then end pytest, with its report if it can.

    pytest answers SIGABRT with the stacks of all threads, also where a thread keeps Python's lock for ever. A worker
    that ends so is reported as crashed, with the test that it ran, and the others' results are written.
    """
    pytest = psutil.Process(process.pid)
    workers = [child for child in pytest.children() if "-c" in child.cmdline()]  # execnet starts them so
    for hanging in workers or [pytest]:
        with suppress(psutil.NoSuchProcess):
            hanging.send_signal(signal.SIGABRT)
    for end in (process.terminate, process.kill):  # asked to, pytest ends its kernels and browsers itself
        with suppress(subprocess.TimeoutExpired):
            process.wait(60)
            return
        end()


def counts(report: Path) -> tuple[int, int, int]:
    """Return how many tests passed, failed and were skipped, from pytest's JUnit report."""
    if not report.exists():
        return 0, 0, 0
    suites = list(ElementTree.parse(report).getroot().iter("testsuite"))
    total, errors, failures, skipped = (
        sum(int(suite.get(name, 0)) for suite in suites) for name in ("tests", "errors", "failures", "skipped")
    )
    return total - errors - failures - skipped, errors + failures, skipped


def slowest(reports: list[Path], number: int = SLOWEST) -> list[str]:
    """Return a line for each of the slowest tests of all reports."""
    cases = [
        (float(case.get("time", 0)), f"{case.get('classname')}::{case.get('name')}")
        for report in reports
        if report.exists()
        for case in ElementTree.parse(report).getroot().iter("testcase")
    ]
    return [f"{seconds:8.1f} s  {name}" for seconds, name in sorted(cases, reverse=True)[:number]]


def get_browser() -> None:
    """Let playwright fetch its own chromium, once, where this machine has none; CI must bring one."""
    if lab.find_chromium() is None and not os.environ.get("CI"):
        print("No chromium on this machine: playwright fetches one (170 MB, into your cache).", flush=True)
        with suppress(subprocess.TimeoutExpired):
            subprocess.run([sys.executable, "-m", "playwright", "install", "chromium"], timeout=600)


def planned(options: argparse.Namespace) -> list[SuiteStep]:
    """Return the steps that are asked for."""
    if options.fast:
        return fast()
    if options.prove:
        return prove()
    if options.names:
        return about(options.names)
    return everything()


def ended(code: int) -> str:
    """Return what a line of the summary says of an exit code: nothing where the counts say it."""
    if code == 124:
        return " (out of time)"
    return f" (pytest ended with {code})" if code > 1 else ""


class Ran(NamedTuple):
    """What came of a step. alone: what failed at first and was tried once more, which `counts` and `code` know of."""

    step: SuiteStep
    code: int
    counts: tuple[int, int, int]
    seconds: float
    report: Path
    alone: tuple[str, ...] = ()

    def __str__(self) -> str:
        passed, failed, skipped = self.counts
        counted = f"{passed:6} passed {failed:4} failed {skipped:4} skipped"
        return f"{self.step.name:<32} {counted} {self.seconds:6.0f} s{ended(self.code)}"


def ran(step: SuiteStep, folder: Path, printed: TextIO | None = None) -> Ran:
    """Run a step, with its report in a folder, and return what came of it."""
    start = time.monotonic()
    report = folder / f"{step.name}.xml"
    if step.name == WIDGETS:
        get_browser()
    code = run_step(step, report, printed)
    passed, failed, skipped = counts(report)
    if code and not failed:  # collection failed, nothing ran, or time was up
        failed = 1
    return Ran(step, code, (passed, failed, skipped), time.monotonic() - start, report)


def ran_aside(step: SuiteStep, folder: Path) -> Ran:
    """Run a step, with its report and what it prints in a folder, and return what came of it."""
    with printed_by(step, folder).open("w", encoding="utf-8") as printed:
        return ran(step, folder, printed)


def printed_by(step: SuiteStep, folder: Path) -> Path:
    """Return the file of what a step prints that runs beside others."""
    return folder / f"{step.name}.txt"


def run_all(steps: list[SuiteStep], folder: Path) -> list[Ran]:
    """Run the steps one after another, and meanwhile, in their own turn, those that run beside them."""
    beside = [step for step in steps if step.beside]
    others = [step for step in steps if not step.beside]
    with ThreadPoolExecutor(1) as aside:
        waiting = [aside.submit(ran_aside, step, folder) for step in beside]
        done = [ran(step, folder) for step in others]
        done += [future.result() for future in waiting]
    for step in beside:
        print(printed_by(step, folder).read_text(encoding="utf-8"), flush=True)
    return done


def tried_again(first: Ran, folder: Path) -> Ran:
    """Run once more, alone, what failed in a step, if it is little; return what came of both."""
    names = what_failed(first.report)
    if first.code != 1 or not 0 < len(names) <= TRIED_AGAIN:
        return first
    options = [*first.step.options, *ALONE]
    second = ran(SuiteStep(f"{first.step.name}, alone", names, options, first.step.minutes), folder)
    passed, failed, skipped = first.counts
    still = second.counts[1]
    return Ran(
        first.step,
        second.code,
        (passed + failed - still, still, skipped),
        first.seconds + second.seconds,
        first.report,
        tuple(names),
    )


def main(arguments: list[str] | None = None) -> int:
    """Run every step, whatever the others did; return 1 when anything failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NB", help="a number, a stem or a path; else everything")
    parser.add_argument("--fast", action="store_true", help="no notebook, no browser, no real ranks")
    parser.add_argument("--prove", action="store_true", help="what is larger than the suite needs, in its full size")
    options = parser.parse_args(arguments)
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="idt-test-") as folder:
        done = [tried_again(one, Path(folder)) for one in run_all(planned(options), Path(folder))]
        print(f"\nthe {SLOWEST} slowest tests:\n" + "\n".join(slowest([one.report for one in done])))
    for one in done:
        again = "".join(f"\n  {name}" for name in one.alone)
        print(f"\n{one.step.name}: failed at first, tried once more alone:{again}" if again else "", end="")
    print("\n" + "\n".join(map(str, done)))
    passed, failed, skipped = map(sum, zip(*(one.counts for one in done), strict=True))
    print(f"together {time.monotonic() - start:.0f} s")
    print(f"total: {passed} passed, {failed} failed, {skipped} skipped", flush=True)
    return 1 if any(one.code for one in done) else 0


if __name__ == "__main__":
    sys.exit(main())
