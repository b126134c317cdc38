"""A table on real ranks: torch's engine computes what one process computes, in the order of our table, or says why not.

Starting ranks takes seconds, so there are two launches: 2 ranks that end in an error of a layer, 2 x 2 that end in a
kill. Before they end they write down what they saw, and the tests below read it.
"""

import json
import pickle
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import pipelining

from lib import schedules as tables
from lib.schedules import Schedule
from lib.schedules.distributed import EngineStage
from lib.schedules.makers import MAKERS
from lib.timeline import Recorder, Trace
from lib.training.launch import RankError, torchrun
from tests.sizes import size

pytestmark = pytest.mark.ranks

#: Tables at random, and as many damaged ones.
AT_RANDOM = size(suite=60, prove=300)

RUNTIME = "_PipelineScheduleRuntime"  # of torch: it does any table


def engine_of(maker):
    """Name the class that does a maker's table: the one that its entry names, if this torch has it."""
    if maker.torch_class is not None and hasattr(pipelining, maker.torch_class):
        return maker.torch_class
    return RUNTIME


ENGINES = {name: engine_of(maker) for name, maker in MAKERS.items() if maker.flushes}
ENGINES["by hand"] = RUNTIME

#: The micro-batches in pairs; the second of a pair has the first loss.
BY_HAND = """
    0F0 0F1 0F2 0F3  0I0 0I1 0W1 0W0 0B3 0B2
    1F1 1F0 1B0 1B1  1F3 1F2 1B3 1B2"""


def table(name: str) -> Schedule:
    if name == "by hand":
        return Schedule.from_text("pairs", BY_HAND)
    maker = MAKERS[name]
    return maker.table(max(4, maker.fewest(2)), 2, 2)


RANKS = """
import copy, json, os, pickle, random, signal, sys, time
from datetime import timedelta
from pathlib import Path
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.functional import mse_loss
from lib import schedules as tables
from lib.schedules import Schedule
from lib.schedules.distributed import DistributedPipeline
from lib.timeline import Recorder
from tests.lib.schedules.random_tables import can_run, damaged, legal_table

TABLES = pickle.loads((Path(sys.argv[1]) / "tables.pickle").read_bytes())  # by name
table = TABLES.__getitem__

class Halves(nn.Linear):
    # with a hook on what it returns: it must not count twice where backward is split
    def forward(self, x):
        h = super().forward(x)
        if h.requires_grad:
            h.register_hook(lambda gradient: gradient / 2)
        return h

def build():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(*[layer for _ in range(4) for layer in (Halves(5, 5), nn.Tanh())]).double()

def balance(schedule):
    return [3, 2, 1, 2] if schedule.stages == 4 else [5, 3]

class Fails(nn.Module):
    # fails in training, at the third micro-batch; the engine's first look at shapes is no training
    def __init__(self, how):
        super().__init__()
        self.how, self.seen = how, 0
    def forward(self, x):
        self.seen += 1
        if self.seen == 4 and self.how == "raise":
            raise ValueError("the planted error")
        if self.seen == 4 and self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        return x

@record
def main():
    folder, makers = Path(sys.argv[1]), sys.argv[2].split(",")
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, replicas = dist.get_rank(), dist.get_world_size() // 2
    mesh = init_device_mesh("cpu", (replicas, 2), mesh_dim_names=("data", "pipeline"))
    data = torch.Generator().manual_seed(1)
    x, y = torch.randn(2, 12 * replicas, 5, generator=data, dtype=torch.float64)
    here, seen = slice(rank // 2 * 12, rank // 2 * 12 + 12), {}
    run = lambda schedule, module, **more: DistributedPipeline(
        module, balance(schedule), schedule, mse_loss, mesh=mesh, **more)

    for maker in makers:
        schedule, whole, mine = table(maker), build(), build()
        if rank >= 2:  # replica 1 begins with other weights; it should take those of replica 0
            for parameter in mine.parameters():
                parameter.data.add_(1)
        pipeline = run(schedule, mine)
        optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (whole, pipeline)]
        recorder, losses = Recorder(folder / maker), []
        for step in range(3):
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss = mse_loss(whole(x), y)
            loss.backward()
            if step == 1:
                with recorder:
                    part = pipeline.step(x[here], y[here])
            else:
                part = pipeline.step(x[here], y[here])
            if part is not None:
                dist.all_reduce(part, group=mesh["data"].get_group())
                losses.append(abs(part.item() / replicas - loss.item()))
            elif schedule.rank_of[schedule.stages - 1] == rank % 2:
                raise AssertionError("the last stage is on this rank, and no loss")
            gradients = {name: parameter.grad for name, parameter in whole.named_parameters()}
            found = [(p.grad - gradients[name]).abs().max().item()
                     for stage in pipeline.stages.values() for name, p in stage.named_parameters()]
            for optimizer in optimizers:
                optimizer.step()
        weights = whole.state_dict()
        off = [(value - weights[name]).abs().max().item() for name, value in pipeline.state_dict().items()]
        seen[maker] = {"gradients": max(found), "losses": losses, "weights": max(off), "stages": [*pipeline.stages],
                       "names": [*pipeline.state_dict()], "engine": type(pipeline.engine).__name__,
                       "place": [pipeline.data_rank, pipeline.replicas, pipeline.pipeline_rank]}

    if replicas == 1:
        seen["refused"] = refused(run, x, y)
        seen["at random"] = [at_random(chance, mesh, faulty) for faulty in (False, True)
                             for chance in map(random.Random, range(int(sys.argv[4])))]
        seen["norm"] = norm(run, x, y)
    else:  # buffers of replica 1 are replica 0's
        with_buffers = nn.Sequential(nn.BatchNorm1d(5), *build()[1:]).double()
        with_buffers[0].running_mean.fill_(rank)
        seen["other order"] = other_order(x, y)
        seen["broadcast"] = []
        for maker in ("GPipe", "zero bubble (ZB-H1)"):
            first_stage = run(table(maker), with_buffers).stages.get(0)
            seen["broadcast"].append(first_stage[0].running_mean[0].item() if first_stage else None)
    (folder / f"seen{rank}.json").write_text(json.dumps(seen))
    dist.barrier()

    last = build()
    last[6 if rank == dist.get_world_size() - 1 else 0] = nn.Sequential(nn.Linear(5, 5).double(), Fails(sys.argv[3]))
    if rank != dist.get_world_size() - 1:
        last[0] = nn.Linear(5, 5).double()
    print("fails at", time.time(), flush=True)
    run(table("1F1B"), last).step(x[here], y[here])
    time.sleep(100)

def other_order(x, y):
    # The mesh column by column: ranks 0 and 1 are the replicas of stage 0.
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pipeline", "data"))
    whole = build()
    pipeline = DistributedPipeline(build(), [5, 3], table("GPipe"), mse_loss, mesh=mesh)
    here = slice(pipeline.data_rank * 12, pipeline.data_rank * 12 + 12)
    pipeline.step(x[here], y[here])
    mse_loss(whole(x), y).backward()
    gradients = {name: parameter.grad for name, parameter in whole.named_parameters()}
    stage = pipeline.stages[dist.get_rank() // 2]
    off = [(p.grad - gradients[name]).abs().max().item() for name, p in stage.named_parameters()]
    return {"place": [pipeline.data_rank, pipeline.pipeline_rank], "gradients": max(off)}

def refused(run, x, y):
    # Every rank is told the same, before a byte is sent.
    gpipe, said = table("GPipe"), {}
    def ask(name, call):
        try:
            call()
        except Exception as error:
            said[name] = [type(error).__name__, str(error)]
    pipeline = run(gpipe, build())
    ask("uneven", lambda: pipeline.step(x[:11], y[:11]))
    ask("too few", lambda: pipeline.step(x[:0], y[:0]))
    ask("nothing", lambda: pipeline.step())
    pipeline.step(x, y)
    ask("shorter", lambda: pipeline.step(x[:8], y[:8]))
    pipeline.step(x, y)  # a refused batch leaves the pipeline as it was
    make = lambda *arguments, **more: DistributedPipeline(*arguments, mse_loss, **more)
    from torch.distributed.device_mesh import init_device_mesh
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("pipeline",))
    ask("no data dimension", lambda: make(build(), [4, 4], gpipe, mesh=mesh).step(x, y))
    ask("balance", lambda: make(build(), [4, 5], gpipe, mesh=mesh))
    ask("empty stage", lambda: make(build(), [8, 0], gpipe, mesh=mesh))
    ask("stages", lambda: make(build(), [2, 2, 4], gpipe, mesh=mesh))
    ask("ranks", lambda: make(build(), [2, 2, 4], tables.gpipe(4, 3), mesh=mesh))
    ask("names", lambda: make(build(), [4, 4], gpipe, mesh=init_device_mesh("cpu", (2,), mesh_dim_names=("pp",))))
    ask("module", lambda: make(nn.Linear(5, 5), [4, 4], gpipe, mesh=mesh))
    frozen = nn.Sequential(nn.Tanh(), nn.Linear(5, 5)).double()
    ask("frozen", lambda: make(frozen, [1, 1], table("zero bubble (ZB-H1)"), mesh=mesh))
    def whole_backwards():
        make(frozen, [1, 1], gpipe, mesh=mesh).step(x, y)
        if dist.get_rank() == 1:
            expected = torch.autograd.grad(mse_loss(frozen(x), y), frozen[1].weight)
            torch.testing.assert_close(frozen[1].weight.grad, *expected)
    ask("frozen, whole backwards", whole_backwards)
    ask("table", lambda: make(build(), [4, 4], Schedule.from_text("x", "0F0 0B0\\n1B0 1F0"), mesh=mesh))
    ask("idle", lambda: make(build(), [8], Schedule.from_text("idle", "0F0 0B0\\n."), mesh=mesh))
    return said

def at_random(chance, mesh, faulty):
    # Return whether the table can run, why it is refused, and how far the gradients are from those of one process.
    schedule = legal_table(chance, 2, most=3)
    while not all(map(schedule.actions, range(2))):
        schedule = legal_table(chance, 2, most=3)
    n = schedule.stages
    if faulty:
        schedule = damaged(chance, schedule)
    torch.manual_seed(n)
    whole = nn.Sequential(*[nn.Linear(2, 2) for _ in range(n)]).double()
    x, y = torch.randn(2, 2 * schedule.micro_batches, 2, dtype=torch.float64)
    last = [a.micro_batch for _, a in schedule if a.op == "F" and a.stage == n - 1]
    seen = {"can run": can_run(schedule, n, schedule.micro_batches), "order": last, "refused": None}
    try:
        pipeline = DistributedPipeline(copy.deepcopy(whole), [1] * n, schedule, mse_loss, mesh=mesh)
    except Exception as error:
        seen["refused"] = f"{type(error).__name__}: {error}"
    refusals = torch.tensor(seen["refused"] is not None, dtype=torch.int)
    dist.all_reduce(refusals)
    if refusals:  # also if it was the other rank alone: the test will say so
        return seen
    loss = pipeline.step(x, y)
    expected = mse_loss(whole(x), y)
    expected.backward()
    gradients = dict(whole.named_parameters())
    seen["off"] = [(p.grad - gradients[name].grad).abs().max().item()
                   for stage in pipeline.stages.values() for name, p in stage.named_parameters()]
    seen["off"] += [] if loss is None else [abs(loss.item() - expected.item())]
    return seen

def norm(run, x, y):
    # Statistics after one step, against a plain loop over the micro-batches.
    whole = build()
    whole[6] = nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5)).double()
    pipeline = run(table("GPipe"), copy.deepcopy(whole))
    for part in x.chunk(4):
        whole(part)
    pipeline.step(x, y)
    expected = whole.state_dict()
    return {name: (value - expected[name]).abs().max().item()
            for name, value in pipeline.state_dict().items() if "running" in name or "tracked" in name}

main()
"""


@dataclass
class Launch:
    folder: Path
    seen: list[dict[str, Any]]
    error: RankError
    seconds_to_end: float  # from the failure to when everything was gone


def launch(folder: Path, ranks: int, makers: tuple[str, ...], how: str) -> Launch:
    (folder / "script.py").write_text(RANKS)
    (folder / "tables.pickle").write_bytes(pickle.dumps({name: table(name) for name in ENGINES}))
    arguments = (folder, ",".join(makers), how, AT_RANDOM)
    with pytest.raises(RankError) as caught:
        torchrun(folder / "script.py", *arguments, ranks=ranks, timeout=150, quiet=True)
    ended = time.time()
    error = caught.value
    files = [folder / f"seen{rank}.json" for rank in range(ranks)]
    assert all(file.exists() for file in files), error  # else something else went wrong before
    times = [float(line.split()[-1]) for line in error.run.lines if "fails at" in line]
    return Launch(folder, [json.loads(file.read_text()) for file in files], error, ended - min(times))


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    """A pipeline of two ranks. In the end a layer of rank 1 raises."""
    return launch(tmp_path_factory.mktemp("two"), 2, tuple(ENGINES), "raise")


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    """Two replicas of such a pipeline. In the end rank 3 is killed in mid-schedule."""
    return launch(tmp_path_factory.mktemp("four"), 4, tuple(ENGINES)[:-1], "kill")


def trace(run: Launch, maker: str) -> Trace:
    return Recorder(run.folder / maker).trace()


@pytest.mark.parametrize("maker", ENGINES)
def test_gradients_losses_and_weights_are_those_of_one_process(two: Launch, maker: str) -> None:
    for seen in two.seen:
        assert seen[maker]["gradients"] < 1e-6
        assert seen[maker]["weights"] < 1e-6
        assert all(off < 1e-6 for off in seen[maker]["losses"])
    assert sorted(len(seen[maker]["losses"]) for seen in two.seen) == [0, 3]  # the loss is where the last stage is


@pytest.mark.parametrize("maker", ENGINES)
def test_torchs_class_for_a_table_or_else_its_runtime_does_what_our_table_says_in_its_order(two: Launch, maker: str):
    assert {seen[maker]["engine"] for seen in two.seen} == {ENGINES[maker]}
    for rank in range(2):
        done = [span.label for span in trace(two, maker).only(lane=f"rank {rank}")]
        assert done == [str(action) for action in table(maker).actions(rank)]


@pytest.mark.parametrize("maker", ["GPipe", "1F1B", "interleaved 1F1B", "ZB-V"])
def test_measured_spans_have_the_lanes_labels_and_kinds_of_the_simulated_ones(two: Launch, maker: str) -> None:
    measured = trace(two, maker)
    predicted = tables.simulate(table(maker))
    assert sorted(measured.lanes) == sorted(predicted.lanes)
    assert {(s.lane, s.label, s.kind) for s in measured} == {(s.lane, s.label, s.kind) for s in predicted}


def test_the_clock_is_one_for_all_ranks_and_layers_keep_their_names_of_the_whole_model(two: Launch):
    ends = {span.label: span.end for span in trace(two, "GPipe")}
    starts = {span.label: span.start for span in trace(two, "GPipe")}
    for i in range(4):
        assert ends[f"0F{i}"] <= starts[f"1F{i}"], "the activation has arrived"
        assert ends[f"1B{i}"] <= starts[f"0B{i}"], "the gradient has arrived"
    looped = [seen["looped BFS"] for seen in two.seen]
    assert [seen["stages"] for seen in looped] == [[0, 2], [1, 3]]
    assert looped[0]["names"] == ["0.weight", "0.bias", "2.weight", "2.bias"]  # stage 2, layer 5, has no parameters
    assert looped[1]["names"] == ["4.weight", "4.bias", "6.weight", "6.bias"]
    assert [seen["ZB-V"]["stages"] for seen in two.seen] == [[0, 3], [1, 2]]


def test_batch_norm_counts_each_micro_batch_once_and_an_error_of_a_layer_is_the_runs_in_bounded_time(two: Launch):
    """torch's engine finds out the shapes by a forward on memory as it is: left alone, BatchNorm would count that."""
    off = {name: value for seen in two.seen for name, value in seen["norm"].items()}
    assert sorted(off) == ["6.1.num_batches_tracked", "6.1.running_mean", "6.1.running_var"]
    assert max(off.values()) < 1e-12
    assert str(two.error).startswith("rank 1 ended with ValueError: the planted error\n")
    assert "in 1F2: stage 1, forward of micro-batch 2" in "\n".join(two.error.run.lines)
    assert two.seconds_to_end < 60  # its peer would sleep for longer, and waits for 60 seconds where it waits


@pytest.mark.parametrize("what, kind, words", [
    ("uneven", "ValueError", "11 rows of inputs do not make 4 equal micro-batches"),
    ("too few", "ValueError", "0 rows of inputs do not make 4"),
    ("nothing", "TypeError", "pipeline rank 0 needs inputs: a tensor, not NoneType"),
    ("shorter", "ValueError", "8 rows of inputs after batches of 12"),
    ("balance", "BalanceError", "balance [4, 5] does not cut 8 layers"),
    ("empty stage", "BalanceError", "balance [8, 0] does not cut 8 layers into stages of at least one"),
    ("stages", "ValueError", "gpipe has 2 stages, the balance 3: [2, 2, 4]"),
    ("ranks", "ValueError", 'gpipe has 3 ranks, the mesh 2 in its dimension "pipeline"'),
    ("names", "ValueError", '("data", "pipeline") or ("pipeline",), not (\'pp\',)'),
    ("module", "TypeError", "must be nn.Sequential"),
    ("frozen", "ValueError", "loses gradients there if stage 0 has nothing to train"),
    ("table", "ScheduleError", "1B0"),
    ("idle", "ValueError", "pipeline rank 1 has nothing to do in idle, and torch's engine takes no such rank"),
])  # fmt: skip
def test_what_cannot_work_is_refused_at_once_on_every_rank(two: Launch, what: str, kind: str, words: str) -> None:
    for rank, seen in enumerate(two.seen):
        found, message = seen["refused"][what]
        expected = words if rank == 0 else words.replace("inputs", "targets").replace("rank 0", "rank 1")
        assert found == kind
        assert expected in message
        assert not {"no data dimension", "frozen, whole backwards"} & seen["refused"].keys()  # nothing is wrong there


def test_any_table_is_refused_by_every_rank_before_a_byte_is_sent_or_gives_the_gradients_of_one_process(two: Launch):
    """Legal tables, then as many damaged ones, some of which can run."""
    tables = list(zip(*(seen["at random"] for seen in two.seen), strict=True))
    for mine, theirs in tables:
        assert mine["refused"] == theirs["refused"], "one rank would wait for the other"
        assert (mine["refused"] is None) == mine["can run"], mine
        if mine["refused"] is None:
            assert max(*mine["off"], *theirs["off"]) < 1e-12, mine
        else:
            assert mine["refused"].startswith(("ScheduleError: ", "ValueError: "))
    legal = [mine for mine, _ in tables[:AT_RANDOM]]
    faulty = [mine for mine, _ in tables[AT_RANDOM:]]
    assert len(legal) == len(faulty) == AT_RANDOM
    assert all(mine["can run"] for mine in legal)
    turned = [mine for mine in legal if mine["order"] != sorted(mine["order"])]
    assert len(turned) > AT_RANDOM / 4, "losses come in another order than micro-batches"
    harmless = [mine for mine in faulty if mine["refused"] is None]
    assert AT_RANDOM / 30 < len(harmless) < AT_RANDOM / 3


@pytest.mark.parametrize("wrapped", [False, True])
def test_the_error_of_a_layer_keeps_its_cause_and_names_the_action(wrapped: bool) -> None:
    """torch's engine wraps what a layer raises in F, B and I, but not in W."""
    stage = object.__new__(EngineStage)
    stage.stage_index = 1
    stage.order = [2, 0, 1]
    stage.device = torch.device("cpu")
    error = ValueError("of the layer")
    cause = KeyError("of the error")

    def work() -> None:
        try:
            raise error from cause
        except ValueError as layers:
            if wrapped:
                raise RuntimeError("of the engine") from layers
            raise

    with pytest.raises(ValueError, match="of the layer") as caught, stage._doing("W", 0):
        work()
    assert caught.value is error
    assert error.__cause__ is cause
    assert error.__notes__ == ["in 1W2: stage 1, weight of micro-batch 2"]


@pytest.mark.costly
@pytest.mark.parametrize("maker", [*ENGINES][:-1])
def test_two_replicas_on_half_the_rows_each_are_one_process_on_all_rows(four: Launch, maker: str) -> None:
    """Also where the backward is split: there DDP alone would leave each replica with gradients of its own."""
    for rank, seen in enumerate(four.seen):
        assert seen[maker]["place"] == [rank // 2, 2, rank % 2]
        assert seen[maker]["gradients"] < 1e-6
        assert seen[maker]["weights"] < 1e-6
        assert all(off < 1e-6 for off in seen[maker]["losses"])


@pytest.mark.costly
def test_replicas_do_one_table_the_mesh_may_be_turned_round_and_a_rank_that_is_killed_ends_all(four: Launch):
    for rank, seen in enumerate(four.seen):
        assert seen["other order"]["place"] == [rank % 2, rank // 2]
        assert seen["other order"]["gradients"] < 1e-6
    assert four.seen[2]["broadcast"] == [0.0, 0.0]
    measured = trace(four, "1F1B")
    assert sorted(measured.lanes) == [f"rank {rank}" for rank in range(4)]
    for rank in range(2):
        lanes = [[s.label for s in measured.only(lane=f"rank {r}")] for r in (rank, rank + 2)]
        assert lanes[0] == lanes[1] == [str(action) for action in table("1F1B").actions(rank)]
    told = [line for line in four.error.run.lines if line.startswith("[torchrun]")]
    assert (four.error.rank, four.error.exitcode) == (3, -signal.SIGKILL), "\n".join(told)
    assert four.seconds_to_end < 60
