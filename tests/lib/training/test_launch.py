"""torchrun() from a cell: what ranks say arrives, the right one is blamed, and no process is left, whatever happens."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import redirect_stdout
from dataclasses import dataclass
from datetime import timedelta

import psutil
import pytest

from lib.training.failures import Failure, RankLogs
from lib.training.launch import REPOSITORY, RankError, RankTimeoutError, Run, _Family, meet, torchrun
from tests.lib.refusal import refuses

# Scripts of ranks; those that need no torch start fast. Each is told a word that its processes can be found by.
START = """
import os, signal, subprocess, sys, time
from tests.lib.refusal import refuses
rank, word = int(os.environ["RANK"]), sys.argv[1]
"""
CHILD = START + 'subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", word])\n'
DETACHED = """
if os.fork() == 0:
    if os.fork() == 0: os.execvp(sys.executable, [sys.executable, "-c", "import time; time.sleep(600)", word])
    os._exit(0)
os.wait()
"""
# Three that are nobody's child when the rank has ended: one is left, one knows no environment, one has left by itself.
NO_ENVIRONMENT = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)', word], env={})\n"
ORPHANS = CHILD + NO_ENVIRONMENT + DETACHED
ALL_KNOWN = "while not os.path.exists(os.path.join(word, 'all known')): time.sleep(0.02)\n"
LAUNCHERS = 2 if sys.platform == "linux" else 1  # torchrun's agent, and there who stays above it
GROUP = "import torch, torch.distributed as dist\ndist.init_process_group('gloo')\n"


def script(folder, text):
    path = folder / "script.py"
    path.write_text(text)
    return path


def commands_that_know(word):
    alive = (p.info for p in psutil.process_iter(["cmdline", "status"]) if p.info["status"] != psutil.STATUS_ZOMBIE)
    return [info["cmdline"] for info in alive if str(word) in (info["cmdline"] or [])]


@pytest.fixture
def tell_when_all_are_known(tmp_path, monkeypatch):
    """Let ranks that wait for ALL_KNOWN go on when the launcher has seen the agent, both ranks and their children."""
    call_the_roll = _Family.call_the_roll

    def and_tell(family):
        call_the_roll(family)
        if len(family._known) >= LAUNCHERS + 4:
            (tmp_path / "all known").touch()

    monkeypatch.setattr(_Family, "call_the_roll", and_tell)


@pytest.mark.ranks
def test_lines_come_with_their_rank_and_torchruns_own_are_only_kept(tmp_path, capsys, monkeypatch):
    """Of a run that ends well, after a restart; what its ranks have left behind in both attempts ends with it."""
    text = ORPHANS + (
        "import importlib.util\n"
        "assert importlib.util.find_spec('lib') and importlib.util.find_spec('support')\n"
        "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
        "    if rank == 1: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    time.sleep(600)\n"
        "print('argument', word, 'threads', os.environ['OMP_NUM_THREADS'], os.environ['MORE'])\n"
        "print('imports from', *os.environ['PYTHONPATH'].split(os.pathsep)[:2])\n"
        "print('to stderr', file=sys.stderr)\n"
        "print('no newline', end='')\n"
    )
    monkeypatch.setattr("lib.training.launch.ROLL_CALL", 600)  # none of them is seen before its parent has ended
    began = time.monotonic()
    run = torchrun(script(tmp_path, text), tmp_path, max_restarts=1, timeout=60, environment={"MORE": "x"})
    ended = time.monotonic()
    assert commands_that_know(tmp_path) == []
    printed = capsys.readouterr().out.splitlines()
    for rank in (0, 1):
        mine = [line for line in printed if line.startswith(f"[rank {rank}] ")]
        assert sorted(mine) == [
            f"[rank {rank}] argument {tmp_path} threads 1 x",
            f"[rank {rank}] imports from {REPOSITORY} {REPOSITORY / 'notebooks'}",
            f"[rank {rank}] no newline",
            f"[rank {rank}] to stderr",
        ]
    assert len(printed) == 8
    assert [line for line in run.lines if not line.startswith("[torchrun]")] == printed
    assert run.returncode == 0
    assert 0 < run.seconds <= ended - began


@dataclass
class Ended:
    error: RankError
    printed: str
    left: list[list[str]]  # processes


@pytest.fixture(scope="module")
def group(tmp_path_factory):
    """Ranks that meet, say who listens, and lose rank 1; started again, they add, and rank 1 raises."""
    folder = tmp_path_factory.mktemp("group")
    text = (
        CHILD
        + GROUP
        + (
            "import psutil\n"
            "dist.barrier()\n"
            "for process in (psutil.Process(), psutil.Process(os.getppid())):\n"
            "    for c in process.net_connections('inet'):\n"
            "        if c.status == psutil.CONN_LISTEN: print('listens on', c.laddr.ip)\n"
            "sys.stdout.flush()\n"
            "dist.barrier()\n"
            "if rank == 1 and os.environ['TORCHELASTIC_RESTART_COUNT'] == '0': os.kill(os.getpid(), signal.SIGKILL)\n"
            "x = torch.ones(1); dist.all_reduce(x)\n"
            "print('sum', int(x), flush=True)\n"
            "dist.barrier()\n"
            "if rank == 1: raise ValueError('the planted error\\nin two lines')\n"
            "dist.barrier()\n"
        )
    )
    with redirect_stdout(io.StringIO()) as printed, pytest.raises(RankError) as caught:
        torchrun(script(folder, text), folder, max_restarts=1, timeout=100, quiet=True)
    return Ended(caught.value, printed.getvalue(), commands_that_know(folder))


@pytest.mark.costly
@pytest.mark.ranks
def test_a_rank_that_raises_is_blamed_a_restart_works_and_nothing_listens_to_other_machines(group):
    error = group.error
    assert str(error).startswith("rank 1 ended with ValueError: the planted error\n")
    assert (error.rank, error.exitcode, error.error) == (1, 1, "ValueError: the planted error")
    assert "script.py" in error.traceback
    assert str(error).endswith(error.traceback)
    assert not isinstance(error, RankTimeoutError)  # it was bounded by torchrun, which ended the peer
    assert isinstance(error.run, Run)
    assert error.run.returncode == 1
    assert group.left == []
    assert group.printed == ""
    assert {line.split()[-1] for line in group.error.run.lines if "listens on" in line} == {"127.0.0.1"}
    sums = [line for line in group.error.run.lines if "sum" in line]
    assert sums == ["[rank 0] sum 2", "[rank 1] sum 2"]


@pytest.mark.costly
@pytest.mark.ranks
@pytest.mark.usefixtures("tell_when_all_are_known")
def test_a_torchrun_that_is_killed_leaves_neither_ranks_nor_their_children(tmp_path):
    """Nor what nobody had seen start. A rank that is killed: the test above, and in test_training."""
    kill = "if rank == 1: os.kill(os.getppid(), signal.SIGKILL)\ntime.sleep(600)\n"
    text = CHILD + ALL_KNOWN + DETACHED + kill
    with pytest.raises(RankError, match="^torchrun itself was killed by SIGKILL$") as caught:
        torchrun(script(tmp_path, text), tmp_path, timeout=60, quiet=True)
    assert caught.value.rank is None
    assert caught.value.exitcode == -signal.SIGKILL
    assert commands_that_know(tmp_path) == []


@pytest.mark.costly
@pytest.mark.ranks
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux hands orphans to an ancestor")
def test_a_torchrun_that_is_killed_leaves_nobody_who_hides_from_it_either(tmp_path):
    """An orphan that knows no environment, in a session of its own: nothing but its ancestors tells whose it is."""
    hides = """
if rank == 1:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            command = [sys.executable, "-c", "import time; time.sleep(600)", word]
            os.execve(sys.executable, command, {})
        os._exit(0)
    os.wait()
    os.kill(os.getppid(), signal.SIGKILL)
time.sleep(600)
"""
    with pytest.raises(RankError, match="^torchrun itself was killed by SIGKILL$"):
        torchrun(script(tmp_path, START + hides), tmp_path, timeout=60, quiet=True)
    assert commands_that_know(tmp_path) == []


@pytest.mark.ranks
def test_when_time_is_over_even_ranks_that_ignore_sigterm_end_and_their_last_words_are_told(tmp_path, monkeypatch):
    text = CHILD + (
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if rank == 0: print('waiting for the others', flush=True)\n"
        "time.sleep(600)\n"
    )

    def until_it_waits(agent, family, logs, deadline):
        while not any("waiting" in line for line in logs.lines) and time.monotonic() < deadline:
            family.call_the_roll()
            logs.read()
            time.sleep(0.05)
        return False

    monkeypatch.setattr("lib.training.launch._watch", until_it_waits)
    with pytest.raises(RankTimeoutError, match="not done after 60 s") as caught:
        torchrun(script(tmp_path, text), tmp_path, timeout=60, quiet=True)
    assert isinstance(caught.value, TimeoutError)
    assert caught.value.rank is None
    assert "rank 0 said last: waiting for the others; rank 1 said nothing" in str(caught.value)
    assert commands_that_know(tmp_path) == []


@pytest.mark.costly
@pytest.mark.ranks
@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="this system has no such signal")
def test_when_time_is_over_each_rank_that_has_met_the_others_is_told_with_its_line(tmp_path, monkeypatch):
    """The line of the script, though all wait inside of torch; a worker of a rank is no rank."""
    text = (
        "import os, time, torch, torch.distributed as dist\n"
        "from datetime import timedelta\n"
        "from lib.training.launch import meet\n"
        "def save():\n"
        "    print('step 3', flush=True); dist.all_gather([x, x], x)\n"
        "store, rank, world_size = meet(timedelta(seconds=60))\n"
        "dist.init_process_group('gloo', store=store, rank=rank, world_size=world_size)\n"
        "x = torch.ones(2)\n"
        "dist.barrier()\n"
        "if rank == 1 and os.fork() == 0: time.sleep(600)\n"
        "if rank == 0: save()\n"
        "print('step 3', flush=True); time.sleep(600)\n"
    )

    def until_all_wait(agent, family, logs, deadline):
        while sum("step 3" in line for line in logs.lines) < 2 and time.monotonic() < deadline:
            logs.read()
            time.sleep(0.05)
        return False

    monkeypatch.setattr("lib.training.launch._watch", until_all_wait)
    with pytest.raises(RankTimeoutError) as caught:
        torchrun(script(tmp_path, text), timeout=60, quiet=True)
    stands = "rank 0 said last: step 3, and stood in line 5; rank 1 said last: step 3, and stood in line 12"
    assert stands in str(caught.value)


@pytest.mark.costly
@pytest.mark.ranks
@pytest.mark.parametrize("there", [0, 2])
def test_it_may_be_over_at_any_time_while_ranks_are_being_started(tmp_path, monkeypatch, there):
    """When nothing is there yet; the agent and one process of a rank. All of them: the test above."""

    def until_so_many_are_there(agent, family, logs, deadline):
        while len(commands_that_know(tmp_path)) < there and time.monotonic() < deadline + 60:
            family.call_the_roll()
        return False

    if there:
        monkeypatch.setattr("lib.training.launch._watch", until_so_many_are_there)
    with pytest.raises(RankTimeoutError):
        torchrun(script(tmp_path, CHILD + "time.sleep(600)"), tmp_path, timeout=0.05, quiet=True)
    assert commands_that_know(tmp_path) == []


@pytest.mark.ranks
def test_an_interrupt_leaves_nothing_stays_one_and_while_processes_are_being_ended_saves_none(tmp_path):
    text = CHILD + "if rank == 0: os.kill(int(sys.argv[2]), signal.SIGINT)\ntime.sleep(600)\n"
    refuses(KeyboardInterrupt, "", torchrun, script(tmp_path, text), tmp_path, os.getpid(), timeout=60, quiet=True)
    assert commands_that_know(tmp_path) == []

    class Impatient(_Family):
        presses = 0

        def _each(self, processes, what, **how):
            if what == "kill" and not self.presses:
                self.presses = 1
                raise KeyboardInterrupt
            return super()._each(processes, what, **how)

    code = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', sys.argv[2], sys.argv[1]]); "
    sleep = "import time; time.sleep(600)"
    agent = subprocess.Popen([sys.executable, "-c", f"{code}{sleep}", str(tmp_path), sleep])
    while len(commands_that_know(tmp_path)) < 2:
        time.sleep(0.05)
    refuses(KeyboardInterrupt, "", Impatient(agent, "token").end)
    assert commands_that_know(tmp_path) == []


@pytest.mark.costly
@pytest.mark.ranks
def test_if_the_kernel_is_killed_torchrun_ends_its_ranks(tmp_path):
    ranks = script(tmp_path, CHILD + "time.sleep(600)")
    code = f"from lib.training.launch import torchrun; torchrun({str(ranks)!r}, {str(tmp_path)!r})"
    kernel = subprocess.Popen([sys.executable, "-c", code], cwd=REPOSITORY)
    while len(commands_that_know(tmp_path)) < LAUNCHERS + 4:  # and two ranks and their children
        assert kernel.poll() is None
        time.sleep(0.05)
    kernel.kill()
    kernel.wait()
    deadline = time.monotonic() + 60
    while commands_that_know(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert commands_that_know(tmp_path) == []


@pytest.mark.costly
@pytest.mark.ranks
def test_a_launcher_that_is_asked_to_end_is_gone_only_after_its_ranks(tmp_path):
    ranks = script(tmp_path, CHILD + "time.sleep(600)")
    command = [sys.executable, "-m", "lib.training.loopback", "--nproc-per-node", "1", "--rdzv-backend", "loopback"]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    launcher = subprocess.Popen([*command, ranks, tmp_path], env=environment, stderr=subprocess.DEVNULL)
    while len(commands_that_know(tmp_path)) < LAUNCHERS + 2:
        assert launcher.poll() is None
        time.sleep(0.05)
    launcher.terminate()
    launcher.wait()
    assert commands_that_know(tmp_path) == []


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"ranks": 0}, ValueError, "ranks must be at least 1, not 0"),
        ({"ranks": 1.5}, TypeError, "ranks must be an integer"),
        ({"max_restarts": -1}, ValueError, "max_restarts must be at least 0"),
        ({"timeout": 0}, ValueError, "timeout must be a number of seconds above 0, not 0"),
        ({"timeout": float("nan")}, ValueError, "timeout"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_starts(tmp_path, arguments, error, message):
    refuses(error, message, torchrun, script(tmp_path, ""), **arguments)
    refuses(FileNotFoundError, "no script 'no_such.py'", torchrun, "no_such.py", **arguments)


TABLE = "  rank      : {rank} (local_rank: {rank})\n  exitcode  : {code} (pid: 100{rank})\n"
FORCED = "W Unable to shutdown process 100{rank} via 15, forcefully exiting via 9\n"
LOST = "RuntimeError: [gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:1: Connection reset by peer"
HEAD = "Traceback (most recent call last):\n"
TRACEBACK = "[rank{rank}]: Traceback (most recent call last):\n[rank{rank}]:   File x\n[rank{rank}]: {error}\n"


def cause(folder, codes, errors, forced=(), attempt=0):
    for rank in {0, 1, *codes, *errors}:
        logs = folder / "ranks" / "none_x" / f"attempt_{attempt}" / str(rank)
        logs.mkdir(parents=True)
        (logs / "stdout.log").write_text("")
        error = TRACEBACK.format(rank=rank, error=errors[rank]) if rank in errors else ""
        (logs / "stderr.log").write_text(error)
    said = [FORCED.format(rank=rank) for rank in forced]
    said += [TABLE.format(rank=rank, code=code) for rank, code in codes.items()]
    (folder / "torchrun.log").write_text("".join(said))
    return RankLogs(folder, show=False).cause(1)


@pytest.mark.parametrize("codes, errors, expected", [
    ({0: 1, 1: 1}, {0: LOST, 1: "KeyError: 3"}, "rank 1 ended with KeyError: 3"),
    ({0: 1, 1: -9}, {0: LOST}, "rank 1 was killed by SIGKILL"),
    ({0: 1, 1: -9}, {0: "ValueError: later"}, "rank 1 was killed by SIGKILL"),
    ({0: 1, 1: -11}, {0: "ValueError: mine"}, "rank 0 ended with ValueError: mine"),  # Gloo may crash without its peer
    ({0: 1, 1: -11, 2: 3}, {0: LOST}, "rank 1 was killed by SIGSEGV"),
    ({0: 1, 1: 3}, {0: LOST}, "rank 1 ended with exit code 3"),
    # torchrun saw the peer first, and ended the culprit while it was still printing its error
    ({0: 1, 1: -15}, {0: LOST, 1: "ValueError: mine"}, "rank 1 ended with ValueError: mine"),
    ({0: -15, 1: 1}, {1: LOST}, "rank 1 ended with RuntimeError"),
    ({0: -15}, {}, "rank 0 was killed by SIGTERM"),
    # gloo's threads may abort a process that ends with an error, its own or an echo
    ({0: -6, 1: -6}, {0: LOST, 1: "KeyError: 3"}, "rank 1 ended with KeyError: 3"),
    ({0: 1, 1: -6}, {0: LOST}, "rank 1 was killed by SIGABRT"),
    ({0: 1}, {0: "torch.cuda.OutOfMemoryError: 3 GiB"}, "rank 0 ended with torch.cuda.OutOfMemoryError"),
    ({0: 1}, {0: "KeyboardInterrupt"}, "rank 0 ended with KeyboardInterrupt"),
    ({0: 1, 1: 1}, {0: "ValueError: a", 1: "ValueError: b"}, "rank 0 ended with ValueError: a"),
])  # fmt: skip
@pytest.mark.skipif(os.name == "nt", reason="no ranks on Windows")
def test_the_first_failure_is_told_from_its_echoes(tmp_path, codes, errors, expected):
    cause(tmp_path, {0: 1, 1: 1}, {0: "KeyError: of attempt 9", 1: LOST}, attempt=9)  # only the last attempt counts
    assert cause(tmp_path, codes, errors, attempt=10).message().startswith(expected)


@pytest.mark.parametrize("codes, errors, forced, expected", [
    ({0: -9, 1: 1}, {1: "ValueError: x"}, [0], "rank 1 ended with ValueError: x"),
    ({0: -9, 1: 3}, {}, [0], "rank 1 ended with exit code 3"),
    ({0: -9, 1: 1}, {0: "ValueError: mine", 1: LOST}, [0], "rank 0 ended with ValueError: mine"),
    ({0: -9, 1: -9}, {}, [0], "rank 1 was killed by SIGKILL"),
    ({0: -9, 1: 1}, {1: "ValueError: x"}, [], "rank 0 was killed by SIGKILL"),
])  # fmt: skip
@pytest.mark.skipif(os.name == "nt", reason="no ranks on Windows")
def test_a_rank_that_minds_no_sigterm_and_is_killed_for_it_is_not_blamed(tmp_path, codes, errors, forced, expected):
    assert cause(tmp_path, codes, errors, forced).message().startswith(expected)


def test_an_error_file_says_more_than_the_log(tmp_path):
    cause(tmp_path, {1: 1}, {1: "ValueError: from the log"})
    where = tmp_path / "ranks" / "none_x" / "attempt_0" / "1" / "error.json"
    where.write_text(json.dumps({"message": {"message": "ValueError: x", "extraInfo": {"py_callstack": "T"}}}))
    assert RankLogs(tmp_path, show=False).cause(1) == Failure(1, 1, "ValueError: x", "T", "ValueError: from the log")
    where.write_text('{"message": {"mess')  # killed while it wrote
    assert RankLogs(tmp_path, show=False).cause(1).error == "ValueError: from the log"


@pytest.mark.parametrize(
    "stderr, expected",
    [
        ("usage: x\nx.py: error: unrecognized: --y\n", "exit code 2: x.py: error: unrecognized: --y"),
        ('  File "x.py", line 1\n    f(\n     ^\nSyntaxError: never closed\n', "SyntaxError: never closed"),
        (f"{HEAD}  File x\nA: 1\n\nDuring …\n\n{HEAD}  File x\nB\n", "B"),
        (f"{HEAD}  File x\n", "exit code 2: File x"),  # ended while it was printed
        ("", "exit code 2"),
    ],
)
def test_a_rank_is_quoted_whatever_it_left(tmp_path, stderr, expected):
    cause(tmp_path, {0: 2}, {})
    (tmp_path / "ranks" / "none_x" / "attempt_0" / "0" / "stderr.log").write_text(stderr)
    assert RankLogs(tmp_path, show=False).cause(1).message().split("\n")[0] == f"rank 0 ended with {expected}"
    shutil.rmtree(tmp_path / "ranks")
    (tmp_path / "torchrun.log").write_text("usage: …\nrun.py: error: no such option\n\n")
    no_rank = RankLogs(tmp_path).cause(2).message()
    assert no_rank == "torchrun itself ended with exit code 2: run.py: error: no such option"


def test_a_line_is_taken_when_it_is_complete(tmp_path, capsys):
    folder = tmp_path / "ranks" / "none_x" / "attempt_0" / "3"
    folder.mkdir(parents=True)
    (tmp_path / "torchrun.log").write_text("a warning\n")
    logs = RankLogs(tmp_path)
    with open(folder / "stdout.log", "wb", buffering=0) as file:
        for part, expected in [
            (b"ste", ""),
            (b"p 1\nst", "[rank 3] step 1\n"),
            (b"ep \xc3", ""),
            (b"\xa9\n\n", "[rank 3] step é\n[rank 3] \n"),
        ]:
            file.write(part)
            logs.read()
            assert capsys.readouterr().out == expected
        file.write(b"the end")
    logs.read(to_the_end=True)
    assert logs.lines == ["[torchrun] a warning", *(f"[rank 3] {x}" for x in ("step 1", "step é", "", "the end"))]
    assert logs.last_words(5)[2:4] == ["rank 2 said nothing", "rank 3 said last: the end"]
    assert logs.last_words(4, {3: "line 7"})[3] == "rank 3 said last: the end, and stood in line 7"


def test_a_process_that_torchrun_did_not_start_is_told_how_to_be_started(monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT", raising=False)
    refuses(RuntimeError, "start the script with torchrun --nproc-per-node RANKS SCRIPT", meet, timedelta(seconds=1))
