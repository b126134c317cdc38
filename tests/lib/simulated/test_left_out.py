"""Every wait of lib is needed: without it there is a wrong number, a race, or an error.

A call that nobody misses fails here, and so does a new one that no program of left_out comes by.
"""

import ast
import json
import subprocess
import sys

import pytest

from tests.lib.simulated.left_out.judge import NOBODY, complaint, seen
from tests.lib.simulated.left_out.sites import OF_THREADS, ROOT, all_sites, switched

SOURCE = """
class Reader:
    def read(self):
        self.side.wait_event(self.other.record_event())
        return self.done.wait(1)

def tell(x, stream):
    x.record_stream(stream)
    x.record_stream(stream)
    x.recorded(stream)
"""
NAMES = [
    "a.py Reader.read: self.side.wait_event(self.other.record_event())",
    "a.py Reader.read: self.other.record_event()",
    "a.py Reader.read: self.done.wait(1)",
    "a.py tell: x.record_stream(stream)",
    "a.py tell: x.record_stream(stream) (2)",
]


def test_each_call_that_waits_or_records_gets_a_switch_of_its_own():
    assert switched("a.py", SOURCE)[1] == NAMES


class Noted:
    """Stand in for a tensor: it notes what is called."""

    def __init__(self):
        self.calls = []

    def record_stream(self, stream):
        self.calls.append(stream)

    def recorded(self, stream):
        self.calls.append("recorded")


@pytest.mark.parametrize("left_out", [None, *NAMES[-2:]])
def test_a_switch_leaves_out_one_call_and_no_other(left_out):
    tree, _ = switched("a.py", SOURCE)
    space = {"_kept": lambda name: name != left_out}
    exec(compile(tree, "a.py", "exec"), space)
    x = Noted()
    space["tell"](x, "side")
    assert x.calls == ["side"] * (1 if left_out else 2) + ["recorded"]


def test_what_waits_for_threads_is_still_there():
    found = set()
    for path in {path for path, _ in OF_THREADS}:
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        found |= {(path, ast.unparse(node)) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    assert found >= OF_THREADS


def test_a_call_that_nobody_misses_is_told(device):
    assert "nobody sees it" in complaint("a wait", seen("a wait", [lambda delay: None]))


def test_a_call_that_no_program_comes_by_is_told():
    assert "no scenario comes by" in complaint("a wait", NOBODY)


@pytest.fixture(scope="module")
def judged():
    """Let a process of its own, which imports lib with switches, try all of them."""
    command = [sys.executable, "-m", "tests.lib.simulated.left_out"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_programs_are_right_with_lib_as_it_is(judged):
    assert {name: says for name, says in judged["as it is"].items() if says} == {}


@pytest.mark.parametrize("name", all_sites())
def test_a_wait_that_is_left_out_is_seen(judged, name):
    assert not complaint(name, judged["left out"][name])
