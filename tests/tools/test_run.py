"""`make run`, `make test` and `make bench` report what happened, and fail when something did."""

import gc
import json
import math
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest
from hypothesis import settings

from tests import sizes
from tests.bench import __main__ as bench
from tests.conftest import SET_ASIDE_AFTER, TESTS_SINCE, choose_size, pytest_runtest_teardown
from tools import run_all
from tools import test as suite


def write(path: Path, source: str) -> Path:
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)]), path)
    return path


@pytest.mark.costly
@pytest.mark.parametrize(
    ("source", "arguments", "verdict"),
    [("x = 1", [], "quick.ipynb"), ("x = 1", ["--limit=0"], "s  TOO SLOW: more than 0 s"), ("1 / 0", [], "s  FAILED")],
)
def test_run_reports_seconds_saves_nothing_and_fails_when_a_notebook_is_slow_or_broken(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    source: str,
    arguments: list[str],
    verdict: str,
) -> None:
    path = write(tmp_path / "quick.ipynb", source)
    good = write(tmp_path / "good.ipynb", "1")
    before = path.read_bytes()
    monkeypatch.setattr("sys.argv", ["run_all.py", str(path), str(good), *arguments])
    assert run_all.main() == (verdict != "quick.ipynb")
    assert verdict in capsys.readouterr().out
    assert path.read_bytes() == before


def report(folder: Path, *tests: str) -> tuple[int, int, int]:
    (folder / "test_it.py").write_text("import pytest\n" + "\n".join(tests))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml=report.xml", "test_it.py"]
    subprocess.run(command, cwd=folder, capture_output=True)
    return suite.counts(folder / "report.xml")


def test_the_summary_counts_passed_failed_and_skipped(tmp_path: Path) -> None:
    passes = "def test_a(): pass\n@pytest.mark.parametrize('x', [1, 2])\ndef test_b(x): pass"
    fails = "def test_c(): assert False\n@pytest.fixture\ndef broken(): 1 / 0\ndef test_d(broken): pass"
    skips = "def test_e(): pytest.skip()"
    assert report(tmp_path, passes, fails, skips) == (3, 2, 1)


@pytest.mark.parametrize(
    ("codes", "expected"), [((0, 0), 0), ((0, 1), 1), ((5, 0), 1), ((124, 0), 1)], ids=["ok", "failed", "none", "hung"]
)
def test_any_step_that_fails_fails_the_whole(monkeypatch, capsys, codes, expected):
    monkeypatch.setattr(
        suite, "everything", lambda: [suite.SuiteStep("first", [], [], 1), suite.SuiteStep("second", [], [], 1)]
    )
    answers = iter(codes)
    monkeypatch.setattr(suite, "run_step", lambda step, file, printed: next(answers))
    assert suite.main([]) == expected
    assert f"total: 0 passed, {expected} failed, 0 skipped" in capsys.readouterr().out


def test_steps_run_one_by_one_beside_the_others_and_are_printed_and_counted_at_the_end(monkeypatch, capsys):
    both_at_work = threading.Barrier(2)
    begun = []
    ended = []

    def run_step(step, report, printed):
        begun.append((step.name, [*ended]))
        if step.name != "another":
            both_at_work.wait(60)
        ended.append(step.name)
        if step.beside:
            print(f"a failure of {step.name}", file=printed)
        return int(step.beside)

    steps = [
        suite.SuiteStep("one", [], [], 1, beside=True),
        suite.SuiteStep("another", [], [], 1, beside=True),
        suite.SuiteStep("other", [], [], 1),
    ]
    monkeypatch.setattr(suite, "run_step", run_step)
    monkeypatch.setattr(suite, "everything", lambda: steps)
    assert suite.main([]) == 1
    assert "one" in dict(begun)["another"]
    told = capsys.readouterr().out
    places = [told.index(f"a failure of {name}") for name in ("one", "another")]
    assert places == sorted(places), "in the order of the steps"
    assert places[-1] < told.index("total: 0 passed, 2 failed, 0 skipped")


IN_COMPANY = """
import pathlib, pytest

HERE = pathlib.Path(__file__).parent

def seen(name):
    (HERE / name).open("a").write(".")
    return len((HERE / name).read_text())

def test_passes():
    seen("passes")

@pytest.mark.parametrize("word", ["a::b [c]"])
def test_passes_when_it_is_tried_once_more(word):
    assert seen("later") == 2

if (HERE / "fails").exists():
    def test_fails():
        assert seen("fails") == 0
"""


@pytest.mark.costly
@pytest.mark.parametrize("also_fails", [pytest.param(False, marks=pytest.mark.costly), True])
def test_what_fails_is_tried_once_more_alone_and_named(tmp_path, monkeypatch, capfd, also_fails):
    (tmp_path / "test_it.py").write_text(IN_COMPANY, encoding="utf-8")
    if also_fails:
        (tmp_path / "fails").touch()
    (tmp_path / "pytest.ini").write_text("[pytest]")
    monkeypatch.setattr(suite, "ROOT", tmp_path)
    monkeypatch.setattr(suite, "everything", lambda: [suite.SuiteStep("all", ["test_it.py"], ["-n", "2"], 5)])
    assert suite.main([]) == also_fails
    told = capfd.readouterr().out
    assert (tmp_path / "passes").read_text() == ".", "what has passed is not run again"
    assert (tmp_path / "later").read_text() == ".."
    assert f"total: 2 passed, {int(also_fails)} failed, 0 skipped" in told
    named = told.partition("all: failed at first, tried once more alone:")[2]
    assert ["test_passes_when" in named, "test_fails" in named] == [True, also_fails]


@pytest.mark.parametrize(("failed", "again"), [(0, 1), (1, 2), (2, 1)])
def test_many_failures_or_a_run_that_broke_off_are_not_tried_again(tmp_path, monkeypatch, failed, again):
    runs = []

    def run_step(step, report, printed):
        runs.append(step.tests)
        kept = suite.cache_of(report) / "v" / "cache"
        kept.mkdir(parents=True, exist_ok=True)
        (kept / "lastfailed").write_text(json.dumps({f"test_it.py::test_{k}": True for k in range(failed)}))
        return 1

    monkeypatch.setattr(suite, "TRIED_AGAIN", 1)
    monkeypatch.setattr(suite, "run_step", run_step)
    monkeypatch.setattr(suite, "everything", lambda: [suite.SuiteStep("one", ["test_it.py"], [], 1)])
    assert suite.main([]) == 1
    assert runs == [["test_it.py"], ["test_it.py::test_0"]][:again]


def test_of_a_notebook_all_cells_are_tried_again(tmp_path: Path) -> None:
    report = tmp_path / "cells.xml"
    kept = suite.cache_of(report) / "v" / "cache"
    kept.mkdir(parents=True)
    failed = ["notebooks/01_a.ipynb::Cell 3", "notebooks/01_a.ipynb::Cell 4", "tests/test_b.py::test_c[1]"]
    (kept / "lastfailed").write_text(json.dumps(dict.fromkeys(failed, True)))
    assert suite.what_failed(report) == ["notebooks/01_a.ipynb", "tests/test_b.py::test_c[1]"]
    assert suite.what_failed(tmp_path / "other.xml") == []


HANGS = """
import pathlib, signal, time

def test_ends():
    pass

def test_hangs_where_no_signal_is_heard():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGALRM])
    pathlib.Path(__file__).with_name("hangs").touch()
    time.sleep(600)
"""


@pytest.mark.parametrize(
    ("workers", "counted"),
    [
        pytest.param([], (0, 0, 0), id="alone"),
        pytest.param(["-n", "1"], (1, 1, 0), id="a worker", marks=pytest.mark.prove),
    ],
)
def test_what_hangs_says_where_and_a_worker_costs_its_own_test_alone(tmp_path: Path, workers, counted) -> None:
    (tmp_path / "test_hangs.py").write_text(HANGS, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "--junitxml=report.xml", "test_hangs.py", *workers]
    with (tmp_path / "stacks").open("w") as stacks:
        process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=stacks)
    while not (tmp_path / "hangs").exists():  # a busy machine may need long to begin
        time.sleep(0.05)
    suite.show_where_it_hangs(process)
    assert process.poll() is not None
    assert "in test_hangs_where_no_signal_is_heard" in (tmp_path / "stacks").read_text(encoding="utf-8")
    assert suite.counts(tmp_path / "report.xml") == counted


@pytest.mark.prove
def test_a_worker_that_dies_costs_its_own_test_alone(tmp_path: Path) -> None:
    dies = "import os\n" + "".join(f"def test_{k}(): pass\n" for k in range(9)) + "def test_dies(): os._exit(1)\n"
    for name in ("test_a.py", "test_b.py", "test_c.py"):
        (tmp_path / name).write_text(dies if name == "test_b.py" else dies.replace("os._exit(1)", "pass"))
    command = [sys.executable, "-m", "pytest", "--junitxml=report.xml", *suite.BOTH_CORES, "."]
    subprocess.run(command, cwd=tmp_path, capture_output=True)
    assert suite.counts(tmp_path / "report.xml") == (29, 1, 0)


def test_a_step_whose_time_is_up_is_ended(tmp_path: Path) -> None:
    (tmp_path / "test_hangs.py").write_text(HANGS, encoding="utf-8")
    step = suite.SuiteStep("hangs", [str(tmp_path / "test_hangs.py")], [], 2 / 60)
    assert suite.run_step(step, tmp_path / "report.xml") == 124


def test_every_suite_and_every_notebook_is_in_a_step() -> None:
    asked = {name for step in suite.everything() for name in step.tests}
    suites = {path.relative_to(suite.ROOT).parts[:2] for path in (suite.ROOT / "tests").rglob("test_*.py")}
    assert {"/".join(parts) for parts in suites} <= asked
    assert {path.relative_to(suite.ROOT).as_posix() for path in suite.notebooks()} <= asked


def test_bench_runs_what_is_named_and_fails_with_it(tmp_path, monkeypatch, capfd):
    folder = tmp_path / "tests" / "bench"
    folder.mkdir(parents=True)
    (folder / "bench_good.py").write_text("TAKES = 2\ndef main(): print('a table')")
    (folder / "bench_bad.py").write_text("TAKES = 3\ndef main(): 1 / 0")
    monkeypatch.setattr(bench, "FOLDER", folder)
    assert bench.main(["good"]) == 0
    assert "a table" in capfd.readouterr().out
    assert bench.main([]) == 1
    assert "Failed: bench_bad" in capfd.readouterr().err
    assert bench.main(["unknown"]) == 2
    assert "there are: bench_bad bench_good" in capfd.readouterr().err


def test_bench_says_first_what_each_table_takes_and_make_help_promises_their_sum() -> None:
    paths = sorted(bench.FOLDER.glob("bench_*.py"))
    seconds = sum(map(bench.declared, paths))
    said = bench.head(paths)
    assert [path.stem for path in paths if f"{path.stem:<20} {bench.declared(path):>4} s" not in said] == []
    assert f"together             {seconds:>4} s" in said
    makefile = (suite.ROOT / "Makefile").read_text(encoding="utf-8")
    promised = re.findall(r"(?m)^bench:.*\((\d+) minutes\)|benchmark tables.*\((\d+) minutes;", makefile)
    assert {int(number) for pair in promised for number in pair if number} == {math.ceil(seconds / 60)}


def test_a_benchmark_that_does_not_say_what_it_takes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bench_silent.py").write_text("def main(): pass")
    with pytest.raises(ValueError, match="bench_silent.py does not say what it takes"):
        bench.declared(tmp_path / "bench_silent.py")


def test_one_notebook_is_its_room_hygiene_cells_and_widgets() -> None:
    room, generic, cells, widgets = suite.about(["03"])
    assert room.tests == ["tests/support/n03"]
    assert "tests/notebooks" in generic.tests
    assert generic.options[-2:] == ["-k", "n03 or 03_"]
    assert cells.tests == ["notebooks/03_distributed_sampler.ipynb", "notebooks/solutions/03_distributed_sampler.ipynb"]
    assert (widgets.tests, widgets.options) == (["tests/browser/test_widgets.py"], ["-k", "03_"])


def test_fast_leaves_out_whatever_takes_long() -> None:
    (step,) = suite.fast()
    assert step.options[-2:] == ["-m", "not ranks"]
    assert "tests/property" in step.tests
    assert not {"tests/notebooks", "tests/browser", "--prove"} & {*step.tests, *step.options}


def chosen(option: str, *items: Any) -> list[str]:
    """Return the names of the tests that are run, of these; the others are reported as left out."""
    left_out: list[Any] = []
    config: Any = SimpleNamespace(
        getoption=lambda name: name == option,
        hook=SimpleNamespace(pytest_deselected=lambda items: left_out.extend(items)),
    )
    kept = list(items)
    choose_size(config, kept)
    assert len(kept) + len(left_out) == len(items)
    return [item.name for item in kept]


def item(name: str, mark: str = "", file: str = "tests/lib/test_it.py", **module: Any) -> Any:
    return SimpleNamespace(
        name=name,
        nodeid=f"{file}::{name}",
        originalname=name.partition("[")[0],
        path=suite.ROOT / file,
        get_closest_marker=lambda asked: mark if asked == mark else None,
        module=SimpleNamespace(**module),
    )


def test_the_suite_leaves_out_what_is_marked_and_prove_runs_all_that_it_leaves_out() -> None:
    items = [item("plain"), item("large", "prove"), item("sized", size=sizes.size), item("slow", "costly")]
    assert chosen("", *items) == ["plain", "sized", "slow"]
    assert chosen("--brief", *items) == ["plain", "sized"]
    assert chosen("--prove", *items) == ["large", "sized", "slow"]


def test_of_a_rooms_test_the_suite_runs_a_few_cases_spread_over_all_and_of_others_each() -> None:
    many = [item(f"test_a[{k}]", file="tests/support/n03/test_it.py") for k in range(12)]
    few = [item(f"test_b[{k}]", file="tests/support/n03/test_it.py") for k in range(2)]
    elsewhere = [item(f"test_a[{k}]", file="tests/support/test_it.py") for k in range(12)]
    brief = ["test_a[0]", "test_a[6]"]
    assert chosen("--brief", *many) == brief
    assert chosen("--brief", *few, *elsewhere) == [one.name for one in (*few, *elsewhere)]
    assert chosen("--prove", *many, *few, *elsewhere) == [one.name for one in many if one.name not in brief]
    assert chosen("", *many) == [one.name for one in many]


def test_a_test_that_collects_garbage_does_not_go_through_what_was_there_before_all_tests() -> None:
    assert gc.get_freeze_count() > len(gc.get_objects())


@pytest.mark.parametrize(
    ("since", "file_of_the_next", "aside"),
    [
        pytest.param(SET_ASIDE_AFTER, "tests/lib/test_other.py", True, id="between files, after many tests"),
        pytest.param(SET_ASIDE_AFTER, "tests/lib/test_it.py", False, id="within a file"),
        pytest.param(3, "tests/lib/test_other.py", False, id="soon again"),
    ],
)
def test_what_is_imported_meanwhile_is_set_aside_between_two_files(
    since: int, file_of_the_next: str, aside: bool
) -> None:
    config = SimpleNamespace(stash={TESTS_SINCE: since})
    one = item("a")
    one.config = config
    following = item("b", file=file_of_the_next)
    teardown = pytest_runtest_teardown(one, following)
    next(teardown)
    imported_meanwhile: list[Any] = []
    next(teardown, None)
    in_sight = any(imported_meanwhile is each for each in gc.get_objects())
    assert in_sight is not aside


def test_a_size_is_the_suites_unless_prove_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(sizes.VARIABLE, "0")
    assert sizes.size(suite=1, prove=2) == 1
    monkeypatch.setenv(sizes.VARIABLE, "1")
    assert sizes.size(suite=1, prove=2) == 2


WHEN_IMPORTED = settings()  # what a property of this file would get


def test_no_property_has_a_time_limit_in_whatever_folder_it_stands(pytestconfig: pytest.Config) -> None:
    few = pytestconfig.getoption("--hypothesis-profile") == "few"
    assert WHEN_IMPORTED.deadline is None
    assert WHEN_IMPORTED.max_examples == sizes.size(suite=25 if few else 100, prove=1_000)


def test_prove_asks_for_full_sizes_of_all_units() -> None:
    first, devices, widgets = suite.prove()
    assert (first.tests, devices.tests, widgets.tests) == (suite.units(), ["tests/lib/simulated"], ["tests/browser"])
    assert all("--prove" in step.options for step in (first, devices, widgets))
    assert "--simulated" in devices.options


def test_the_longest_notebook_starts_first_one_never_timed_before_all_and_solutions_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = tmp_path / "notebooks" / "recorded" / "seconds.json"
    recorded.parent.mkdir(parents=True)
    recorded.write_text(json.dumps({"seconds": {"a.ipynb": 3, "b.ipynb": 20}}))
    monkeypatch.setattr(suite, "ROOT", tmp_path)
    names = [f"notebooks/{name}.ipynb" for name in ("solutions/b", "a", "b", "new")]
    ordered = suite.cells([tmp_path / name for name in names]).tests
    assert ordered == [f"notebooks/{name}.ipynb" for name in ("new", "b", "a", "solutions/b")]


def test_the_slowest_tests_of_all_steps_are_named(tmp_path: Path) -> None:
    for name, seconds in (("a", 3), ("b", 20)):
        case = f'<testcase classname="tests.x" name="test_{name}" time="{seconds}"/>'
        (tmp_path / name).write_text(f"<testsuites><testsuite>{case}</testsuite></testsuites>")
    lines = suite.slowest([tmp_path / "a", tmp_path / "b", tmp_path / "missing"])
    assert [line.split() for line in lines] == [["20.0", "s", "tests.x::test_b"], ["3.0", "s", "tests.x::test_a"]]
    assert suite.slowest([tmp_path / "a", tmp_path / "b"], number=1) == lines[:1]


@pytest.mark.parametrize(("found", "ci", "fetched"), [(None, "", True), (None, "true", False), ("/x", "", False)])
def test_a_missing_browser_is_fetched_once_but_not_in_ci(monkeypatch, found, ci, fetched):
    commands: list[list[str]] = []
    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr(suite.lab, "find_chromium", lambda: found)
    monkeypatch.setattr(suite.subprocess, "run", lambda command, **_: commands.append(command))
    suite.get_browser()
    assert bool(commands) == fetched
