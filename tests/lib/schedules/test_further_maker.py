"""A further schedule is a function and an entry of MAKERS: whoever asks for makers takes it, with no other change."""

import copy
import os
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.distributed import pipelining
from torch.nn.functional import mse_loss

from lib.schedules import Costs, choose
from lib.schedules.distributed import engine_for
from lib.schedules.executor import run
from lib.schedules.makers import MAKERS
from lib.show.schedule_table import draw_schedule, make, name_of
from lib.show.style import alt_text
from support.n14 import figures as n14
from support.n14 import runs as n14_runs
from tests.lib.schedules.further_maker import TOY
from tools.project import ROOT


@pytest.fixture(autouse=True)
def _with_the_toy(monkeypatch):
    monkeypatch.setitem(MAKERS, TOY.name, TOY)


def test_choose_tries_it_with_every_v():
    costs = {4: Costs([1.0] * 12, [2.0] * 12)}
    chosen = choose(costs, 2)
    tried = [name for name in (chosen.name, *chosen.passed_over) if name.startswith(TOY.name)]
    assert sorted(tried) == [f"there and back, m = 4, v = {v}" for v in range(2, 7)]
    assert chosen.passed_over["there and back, m = 4, v = 5"] == "its 10 stages do not divide 12 units"


def test_choose_takes_it_where_it_is_best(monkeypatch):
    monkeypatch.setattr("lib.schedules.choice.MAKERS", {name: MAKERS[name] for name in ("GPipe", TOY.name)})
    chosen = choose({4: Costs([1.0] * 4, [2.0] * 4)}, 2)
    assert chosen.name == "there and back, m = 4, v = 2"
    assert chosen.schedule == chosen.maker.make(4, 2, **chosen.parameters)


def test_pictures_make_it_by_its_name_and_call_it_so():
    schedule, changed = make(TOY.name, 4, 2, 3)
    assert (schedule.ranks, changed) == (TOY.make(4, 2, 3).ranks, "")
    assert name_of(TOY.make(4, 2, 3)) == TOY.name
    assert alt_text(draw_schedule(TOY.make(4, 2, 3))).startswith(f"{TOY.name}: ")


def test_notebook_14_draws_it_among_the_others_and_compares_it_with_torchs():
    assert TOY.name in n14.all_schedules(8, 4)
    assert f"{TOY.name}: " in alt_text(n14.draw_trade(8, 4, 0.0, 0.5))
    assert TOY in n14_runs.torch_keeps()


def test_the_executor_runs_it():
    torch.manual_seed(0)
    stages = [nn.Linear(3, 3).double() for _ in range(4)]
    plain = nn.Sequential(*copy.deepcopy(stages))
    x, target = torch.randn(2, 8, 3, dtype=torch.float64)
    mse_loss(plain(x), target).backward()
    run(TOY.make(4, 2, 2), stages, x, target, mse_loss)
    for ours, theirs in zip(nn.Sequential(*stages).parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_the_bridge_takes_the_class_of_torch_that_the_entry_names_once_torch_has_it(monkeypatch):
    class ScheduleThereAndBack(pipelining.schedules.PipelineScheduleMulti):
        def __init__(self, *given):
            self.given = given

    monkeypatch.setattr(pipelining, "ScheduleThereAndBack", ScheduleThereAndBack, raising=False)
    table = TOY.make(4, 2, 2)
    stages = [object(), object()]
    engine = engine_for(table, stages, mse_loss)
    assert isinstance(engine, ScheduleThereAndBack)
    assert engine.given == (stages, 4, mse_loss)


LOOPING = (
    "tests/lib/schedules/test_makers.py",
    "tests/lib/schedules/test_executor.py",
    "tests/lib/schedules/test_distributed.py",
    "tests/lib/show/test_schedule_table.py",
    "tests/support/n14/test_figures.py",
    "tests/gpu/test_executor_gpu.py",
)


def pytest_with_the_toy(*arguments):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.lib.schedules.further_maker", *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "notebooks")])}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.prove
@pytest.mark.timeout(1800)
def test_every_test_that_loops_over_makers_passes_with_it():
    properties = ("tests/property/test_schedule_properties.py", "tests/property/test_executor_properties.py")
    ran = pytest_with_the_toy(*LOOPING, *properties, "tests/lib/schedules/test_choice.py")
    assert ran.returncode == 0, ran.stdout


@pytest.mark.prove
def test_every_loop_of_a_test_over_makers_has_it():
    found = pytest_with_the_toy("--collect-only", *LOOPING)
    assert found.returncode == 0, found.stdout
    mine = [line for line in found.stdout.splitlines() if TOY.name in line]
    assert {line.partition("::")[0] for line in mine} == set(LOOPING)
