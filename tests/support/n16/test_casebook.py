"""The cases of notebook 16: sick as the notebook has them, right in more than one way, and forecasts that come true."""

import ast
import json
import os

import pytest
import torch

from lib.training.launch import RankError, torchrun
from support.kit.mistakes import edited
from support.kit.source import source_of
from support.n16 import case_four_numbers, case_friday, case_good_at_home, case_higher_curve, checks
from support.n16.rank import GONE, LEFT, first_line
from support.n16.warm import on_ranks, stands_told
from tests.sizes import size
from tools.hygiene import joined
from tools.project import ROOT

NAME = "16_when_it_breaks.ipynb"
SICK = {
    "job_1": case_friday.sick_1(),
    "job_2": case_four_numbers.sick_2(),
    "job_3": case_higher_curve.job_3,
    "job_4": case_good_at_home.sick_4(),
}
RIGHT = {
    "job_1": case_friday.job_1,
    "job_2": case_four_numbers.job_2,
    "job_3": case_higher_curve.job_3,
    "job_4": case_good_at_home.job_4,
}
FORECASTS = {f"forecast_{number}": getattr(checks, f"check_job_{number}").reference[1] for number in range(1, 5)}


@pytest.fixture(autouse=True, scope="module")
def two_worlds():
    """Try a job with two of its trials in the suite; with all to prove, and Friday, whose last one finds a mistake."""
    kept = {case: case.TRIALS for case in (case_four_numbers, case_higher_curve, case_good_at_home)}
    for case, trials in kept.items():
        whole = isinstance(trials, tuple)
        case.TRIALS = size(suite=trials[:2] if whole else dict([*trials.items()][:2]), prove=trials)
    yield
    for case, trials in kept.items():
        case.TRIALS = trials


def stored(path):
    cells = json.loads((ROOT / "notebooks" / path).read_text(encoding="utf-8"))["cells"]
    code = [joined(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    parts = [part for text in code if "support.setup" not in text for part in ast.parse(text).body]
    return {part.name: ast.dump(part) for part in parts if isinstance(part, ast.FunctionDef)}


def tree(function):
    return ast.dump(ast.parse(source_of(function)).body[0])


@pytest.mark.parametrize("name", SICK)
def test_the_notebook_has_the_sick_job_and_its_solution_the_right_one(name):
    assert stored(NAME)[name] == tree(SICK[name])
    assert stored(f"solutions/{NAME}")[name] == tree(RIGHT[name])


# ---- repairs of other kinds

MINE = "    mine = torch.arange(rank, len(rows), world)\n"
CUT = (
    MINE,
    "    share = max(1, len(rows) // world)\n    mine = torch.arange(rank, share * world, world) % len(rows)\n",
)
SAMPLED = (MINE, "    mine = torch.tensor(list(DistributedSampler(rows, world, rank, shuffle=False)))\n")
WHOLE = (
    MINE,
    "    whole = world * batch_size\n"
    "    mine = torch.arange(rank, -(-len(rows) // whole) * whole, world) % len(rows)\n",
)
ENOUGH = (MINE, "    mine = torch.arange(rank, max(world, len(rows)), world) % len(rows)\n")
EMPTY = (MINE, "    mine = torch.arange(len(rows))[rank::world]\n")
JOINED = (
    "        for batch in order.split(batch_size):\n",
    "        batches = list(order.split(batch_size)) if len(order) else []\n        most = torch.tensor(len(batches))\n"
    "        dist.all_reduce(most, op=dist.ReduceOp.MAX)\n        batches += [order[:0]] * (int(most) - len(batches))\n"
    "        for batch in batches:\n",
)
SEEN = ("            seen.append", "            if len(batch):\n                seen.append")
SUMMED = (
    "F.mse_loss(model(rows[batch]), targets[batch])",
    "F.mse_loss(model(rows[batch]), targets[batch], reduction='sum') / max(1, len(batch))",
)
TOGETHER = (
    ("manual_seed(1000 * epoch + rank)", "manual_seed(epoch)"),
    ("mine[torch.randperm(len(mine), generator=random)]", "torch.randperm(len(rows), generator=random)"),
    (
        "for batch in order.split(batch_size):\n",
        "for whole in order.split(batch_size * world):\n            batch = whole[rank::world]\n",
    ),
    (SUMMED[0], SUMMED[1].replace("max(1, len(batch))", "len(whole) * world")),
)
ASKED = (
    "            loss = F.mse_loss",
    "            more = torch.ones(())\n            dist.all_reduce(more)\n"
    "            if more < world:\n                break\n            loss = F.mse_loss",
)
SAID_SO = (
    '        print(f"epoch',
    '        else:\n            dist.all_reduce(torch.zeros(()))\n        print(f"epoch',
)
GATHERED = (
    "    dist.all_reduce(right)\n    dist.all_reduce(seen)\n    return (right / seen).item()",
    "    parts = [None] * dist.get_world_size()\n    dist.all_gather_object(parts, (right.item(), seen.item()))\n"
    "    return sum(part[0] for part in parts) / sum(part[1] for part in parts)",
)
BLOCKS = (
    "range(dist.get_rank(), len(dataset), dist.get_world_size())",
    "torch.arange(len(dataset)).tensor_split(dist.get_world_size())[dist.get_rank()].tolist()",
)
DIVIDED = (
    ("lr=learning_rate / world", "lr=learning_rate"),
    ("dist.all_reduce(parameter.grad)", "dist.all_reduce(parameter.grad)\n                parameter.grad /= world"),
)
NOT_KEPT = ("persistent_workers=workers > 0", "persistent_workers=False")
MADE_ANEW = (
    ("    loader = DataLoader(dataset, 4", "    loader = lambda: DataLoader(dataset, 4"),
    ("in loader:", "in loader():"),
)
BY_INDEX = (
    ("(self, index):\n", "(self, asked):\n            epoch, index = asked\n"),
    ("self.epoch * len", "epoch * len"),
    ("    loader = DataLoader(dataset, 4, sampler=sampler,",
     "    class Told(Sampler):\n        def __len__(self):\n            return len(sampler)\n\n"
     "        def __iter__(self):\n            return iter([(dataset.epoch, index) for index in sampler])\n\n"
     "    loader = DataLoader(dataset, 4, sampler=Told(),"),
)  # fmt: skip

REPAIRS = {
    "1 cut": ("job_1", edited(SICK["job_1"], CUT)),
    "1 padded to whole batches": ("job_1", edited(SICK["job_1"], WHOLE)),
    "1 dealt by the sampler": ("job_1", edited(SICK["job_1"], SAMPLED)),
    "1 asked before each step": ("job_1", edited(SICK["job_1"], ENOUGH, ASKED, SAID_SO)),
    "1 joined with gradients of zero": ("job_1", edited(SICK["job_1"], EMPTY, JOINED, SUMMED, SEEN)),
    "1 one order of all, weighed by rows": ("job_1", edited(SICK["job_1"], EMPTY, *TOGETHER)),
    "2 gathered": ("job_2", edited(RIGHT["job_2"], GATHERED)),
    "2 in blocks": ("job_2", edited(RIGHT["job_2"], BLOCKS)),
    "3 divided, and the whole rate": ("job_3", edited(RIGHT["job_3"], *DIVIDED)),
    "4 workers not kept": ("job_4", edited(SICK["job_4"], NOT_KEPT)),
    "4 a loader for each epoch": ("job_4", edited(SICK["job_4"], *MADE_ANEW)),
    "4 the epoch in the index": ("job_4", edited(SICK["job_4"], *BY_INDEX)),
}


@pytest.mark.parametrize("repair", REPAIRS)
def test_repairs_of_other_kinds_are_right(repair):
    name, job = REPAIRS[repair]
    check = getattr(checks, f"check_{name}")
    verdict = check(job, check.reference[1])
    assert verdict, verdict.message


@pytest.mark.parametrize("given, told", [
    (None, "still the stub: forecast_1"), ((63, 11), "(63, 11) is not what comes out there"),
    (63, "2 numbers in parentheses"), ("a", "2 numbers in parentheses, not 'a'"),
    ((63, True), "2 numbers in parentheses"), ((63, 9), "(63, 9) is not what comes out there"),
    ([63, 10.0], "✓"),
])  # fmt: skip
def test_a_forecast_is_two_numbers_and_what_is_due_is_not_said(given, told):
    verdict = checks.check_job_1(RIGHT["job_1"], given)
    assert told in f"{'✓' * bool(verdict)} {verdict.message}"


FRIDAY = "share = -(-len(rows) // world)  # rounded up"


@pytest.mark.parametrize("change, told", [
    ((FRIDAY, "share = len(rows) // world + 1"), "2 times a row comes again; less than a batch a rank would do"),
    ((FRIDAY, "share = (len(rows) // (world * batch_size) + 1) * batch_size"), "2 times a row comes again"),
    (("1000 * epoch + rank", "1000 * min(epoch, 2) + rank"), "takes its rows in epoch 3 in the order of epoch 2"),
])  # fmt: skip
@pytest.mark.costly
def test_friday_is_tried_at_the_edge_of_its_promises(change, told):
    assert (
        told
        in checks.check_job_1(edited(checks.check_job_1.reference[0], change), checks.check_job_1.reference[1]).message
    )


# ---- who reads

SHAPE = ("torch.randn(rows[index].shape, generator=random)", "torch.randn(rows.shape[1:], generator=random)")
COPIED = (
    ("    dataset = Noisy()", "    own = [row for row in rows]\n    dataset = Noisy()"),
    ("rows[index]", "own[index]"),
)
READ_AGAIN = (
    ("for row, x in zip(numbers, pictures, strict=True)", "for row, x in map(dataset.__getitem__, numbers.tolist())"),
)
NO_READER = (
    ("            random = torch.Generator().manual_seed(int(self.epoch) * len(rows) + index)\n", ""),
    ("index, rows[index] + torch.randn(rows[index].shape, generator=random)", "index, index"),
    (
        "zip(numbers, pictures, strict=True)",
        "[(n, rows[n] + torch.randn(3, generator=torch.Generator().manual_seed(epoch * len(rows) + n)))\n"
        "                for n in numbers.tolist()]",
    ),
)


def test_rows_may_be_asked_for_their_shape():
    verdict = case_good_at_home.check_job_4(edited(case_good_at_home.job_4, SHAPE), case_good_at_home.FORECAST_4)
    assert verdict, verdict.message


@pytest.mark.parametrize("changes, told", [
    (READ_AGAIN, "reads 36 rows itself, beside its workers"),
    (NO_READER, "reads 18 rows itself, and no worker touches"),
    (COPIED, "reads 13 rows itself, and no worker touches"),
])  # fmt: skip
def test_a_trainer_that_reads_is_told_what_its_workers_do(changes, told):
    job = edited(case_good_at_home.job_4, *changes)
    assert told in case_good_at_home.check_job_4(job, case_good_at_home.FORECAST_4).message


# ---- forecasts that come true


@pytest.mark.parametrize("world, count, batch, epochs", [(2, 33, 4, 3), (3, 31, 5, 2)])
def test_as_many_ranks_fail_as_the_forecast_counts_and_so_many_steps_are_left(world, count, batch, epochs):
    stands = on_ranks(SICK["job_1"], world, {**case_friday.drawn_1(count), "batch_size": batch, "epochs": epochs})
    batches = [-(-len(range(rank, count, world)) // batch) for rank in range(world)]
    failing = [rank for rank, stand in enumerate(stands) if stand.value == GONE]
    assert failing == [rank for rank in range(world) if batches[rank] > min(batches)]
    assert len(stands[0].said) < epochs
    many = [{-(-len(range(rank, rows, 64)) // 25) for rank in range(64)} for rows in range(100_001, 101_601)]
    apart = {max(each) - min(each) for each in many if len(each) > 1}
    assert FORECASTS["forecast_1"] == (sum(len(each) > 1 for each in many), 10 * apart.pop())
    assert not apart


def test_the_evaluation_counts_the_first_rows_twice():
    rows = torch.eye(4)[torch.arange(10) % 4]
    model = torch.nn.Linear(4, 4, bias=False)
    model.weight.data = torch.eye(4)
    labels = torch.arange(10) % 4
    labels[:3] = (labels[:3] + 1) % 4
    given = {"model": model, "rows": rows, "labels": labels, "batch_size": 4}
    got = on_ranks(SICK["job_2"], 4, given)[0].value
    assert got == pytest.approx(7 / 12)  # of 12 rows the first two, which are wrong, came twice
    assert FORECASTS["forecast_2"] == pytest.approx(900 / (64 * -(-1000 // 64)))


def test_four_ranks_that_divide_are_one_with_the_batch_and_the_rate_of_the_forecast():
    batch, rate = FORECASTS["forecast_3"]
    data = {**case_higher_curve.drawn_3(96), "epochs": 3}
    job = SICK["job_3"]
    divided = edited(job, DIVIDED[1])
    of_four = on_ranks(divided, 4, {**data, "batch_size": 8, "learning_rate": 0.2})[0].value
    of_one = on_ranks(job, 1, {**data, "batch_size": batch, "learning_rate": rate})[0].value
    assert torch.allclose(of_four["weight"], of_one["weight"], rtol=0, atol=1e-12)


def test_a_row_has_a_picture_for_each_start_of_the_job():
    pictures = set()
    for first, end in ((0, 3), (3, 5), (5, 7)):
        given = {"rows": torch.zeros(4, 3), "epochs": end, "first_epoch": first, "workers": 2}
        (stand,) = on_ranks(SICK["job_4"], 1, given)
        pictures |= {tuple(picture) for _, number, picture in stand.value if number == 0}
    assert len(pictures) == FORECASTS["forecast_4"]


# ---- what the notebook says of tools, and of a real job

STARTED = """
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

{job}

dist.init_process_group("gloo")
rows = torch.randn(33, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
job_1(dist, rows, rows.sum(1, keepdim=True), 4, 3)
print("through", dist.get_rank(), flush=True)
os._exit(0)  # while Python is taken down, gloo's threads may abort the process (pytorch #179291)
"""


@pytest.mark.costly
def test_under_torchrun_the_rank_that_did_nothing_wrong_fails_and_the_other_ends(tmp_path):
    script = tmp_path / "friday.py"
    script.write_text(STARTED.format(job=source_of(SICK["job_1"])), encoding="utf-8")
    with pytest.raises(RankError) as failed:
        torchrun(script, ranks=2, quiet=True)
    assert failed.value.rank == 0
    assert any(word in str(failed.value) for word in LEFT)
    assert any("through 1" in line for line in failed.value.run.lines)


def test_a_barrier_at_the_end_makes_both_ranks_wait_and_detail_sees_equal_calls():
    given = {**case_friday.drawn_1(33), "batch_size": 4, "epochs": 3}
    waits = edited(SICK["job_1"], ('    return {"seen"', '    dist.barrier()\n    return {"seen"'))
    assert [stand.how for stand in on_ranks(waits, 2, given)] == ["stands", "stands"]
    stands = on_ranks(SICK["job_1"], 2, given, environment={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})
    assert [len(stand.said) for stand in stands] == [2, 3]  # it lets two epochs pass
    assert "CollectiveFingerPrint" not in stands[0].told
    assert [stand.how for stand in stands] == ["raised", "done"]
    assert "Ranks 1 failed to pass" in stands[0].told


# ---- what is asked before it is shown


def test_torch_load_takes_a_flipped_bit_without_a_word(tmp_path):
    torch.save({"weight": torch.ones(1000)}, tmp_path / "flipped.pt")
    content = bytearray((tmp_path / "flipped.pt").read_bytes())
    content[len(content) // 8 * 4 + 2] ^= 64
    (tmp_path / "flipped.pt").write_bytes(content)
    weight = torch.load(tmp_path / "flipped.pt")["weight"]
    wrong = int((weight != 1).sum())
    assert "that is it" in checks.guess_flipped("B" if wrong else "C").message


def test_a_monitored_barrier_that_rank_0_does_not_reach_names_nobody():
    def job(dist):
        if dist.get_rank() == 0:
            dist.all_reduce(torch.zeros(1))
        dist.monitored_barrier(timeout=timedelta(seconds=1))  # noqa: F821

    stands = on_ranks(job, 3, {})
    named = sum(stand.how == "raised" for stand in stands)
    assert "that is it" in checks.guess_named(named).message


# ---- ranks


def test_ranks_say_where_they_stand_what_they_have_raised_and_that_they_were_killed():
    def job(dist, how):
        print("begun")
        if how == "die" and dist.get_rank() == 1:
            os._exit(3)
        if how == "raise" and dist.get_rank() == 1:
            raise ValueError("no")
        dist.barrier()

    assert stands_told(on_ranks(job, 2, {"how": ""})) == "rank 0 has ended, rank 1 has ended"
    raised = on_ranks(job, 2, {"how": "raise"})
    assert stands_told(raised).startswith("rank 0 stands (line ")
    assert "rank 1 raised ValueError: no (line " in stands_told(raised)
    assert "dist.barrier()" in stands_told(raised)
    assert raised[0].said == ("begun",)
    assert on_ranks(job, 2, {"how": "die"})[1].value == "nothing: its process has died"


def test_a_rank_knows_nothing_of_the_one_before_and_none_stays_behind():
    def job(dist):
        kept = getattr(torch, "kept", 0)
        torch.kept = 1
        return kept, os.getpid()

    for _ in range(2):
        stands = on_ranks(job, 2, {})
        assert [stand.value[0] for stand in stands] == [0, 0]
        for stand in stands:
            with pytest.raises(ProcessLookupError):
                os.kill(stand.value[1], 0)


def test_only_a_name_that_a_rank_lacks_is_told_where_to_define_it():
    assert first_line(NameError("name 'scale' is not defined")).endswith("text alone: define and import inside it")
    assert first_line(UnboundLocalError("no value yet")) == "UnboundLocalError: no value yet"
