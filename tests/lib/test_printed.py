"""What the main classes print of themselves, and that the examples of their docstrings run."""

import contextlib
import inspect
import io
import textwrap

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from lib import (
    DevicePrefetcher,
    DistributedSampler,
    GPipe,
    Permutation,
    RandomSampler,
    Recorder,
    SequentialSampler,
    StreamPipeline,
)
from lib.data import FileDataset, MetaFile, MetaServer, NaiveDataset, RankDataset, ServerDataset
from lib.data.meta import Packed
from lib.schedules import Costs, choose, one_f_one_b, simulate
from lib.schedules.executor import Executor, run
from lib.streams import PretendGPU, find_races


def resumed() -> DistributedSampler:
    sampler = DistributedSampler(range(1_000), 4, 1, seed=7, order="feistel", drop_last=True)
    sampler.load_state_dict({**sampler.state_dict(400), "epoch": 2})
    return sampler


STREAMS = PretendGPU(forgets=["wait_event"])
SAID = {
    "<SequentialSampler: 9 indices>": SequentialSampler(range(9)),
    "<RandomSampler: 9 indices, seed None>": RandomSampler(range(9)),
    "<DistributedSampler rank 1 of 4: 3 of 10 indices, epoch 0, seed 0, torch order>": DistributedSampler(
        range(10), 4, 1
    ),
    "<DistributedSampler rank 3 of 4: 2 of 10 indices, epoch 0, seed 0, no shuffle, no padding>": DistributedSampler(
        range(10), 4, 3, shuffle=False, pad=False
    ),
    "<DistributedSampler rank 1 of 4: 150 of 1,000 indices, epoch 2, seed 7, feistel order, drop_last, "
    "400 used before>": resumed(),
    "<DevicePrefetcher of a list: nothing ahead, on a CPU>": DevicePrefetcher([1], "cpu"),
    "<DevicePrefetcher of a list: depth 3>": DevicePrefetcher([], STREAMS, depth=3),
    "<StreamPipeline: 4 chunks, depth 2, one after the other, on a CPU>": StreamPipeline(abs, 4, device="cpu"),
    "<StreamPipeline: 4 chunks, depth 2, three streams>": StreamPipeline(abs, 4, device=PretendGPU()),
    "<PretendGPU: 0 operations in 2 streams, forgets wait_event>": STREAMS,
    "<ServerDataset at 127.0.0.1:9: not asked yet>": ServerDataset("127.0.0.1", 9),
    "<Executor of 'one_f_one_b': 2 stages on cpu, cpu>": Executor(one_f_one_b(4, 2), [nn.ReLU(), nn.ReLU()]),
}


@pytest.mark.parametrize("said", SAID)
def test_an_object_says_what_it_is(said):
    assert repr(SAID[said]) == said


def test_datasets_and_server_say_how_many_rows(tmp_path):
    path = tmp_path / "rows.txt"
    path.write_text("a\nb\nc\n")
    meta = MetaFile(path)
    assert repr(NaiveDataset(meta)) == "<NaiveDataset: 3 rows>"
    assert repr(FileDataset(meta)) == f"<FileDataset of {meta!r}>"
    assert repr(RankDataset(meta, 2, 1)).startswith("<RankDataset rank 1 of 2: 2 of 3 rows, epoch 0")
    server = MetaServer(meta)
    assert repr(server) == f"<MetaServer at {server.url}: 3 rows, not started>"
    with server.start():
        assert repr(server).endswith("3 rows, serving>")
        rows = ServerDataset(server.host, server.port)
        assert len(rows) == 3
        assert repr(rows).endswith(": 3 rows>")
    assert repr(server).endswith("3 rows, closed>")


def test_a_recorder_counts_its_spans_and_a_printed_gpipe_has_its_settings_above_its_layers():
    recorder = Recorder()
    recorder.add("a", "b", 0, 1)
    assert repr(recorder).startswith("<Recorder: 1 spans of this process so far")
    model = GPipe(nn.Sequential(nn.ReLU(), nn.Tanh()), [1, 1], devices=["cpu", "cpu"], chunks=4)
    printed = repr(model)
    assert "balance=[1, 1], chunks=4, checkpoint='except_last', on cpu, cpu" in printed
    assert "Tanh()" in printed


def test_help_shows_no_address_of_a_function():
    methods = [RankDataset.read, RankDataset.__init__, DistributedSampler.__init__, run, choose]
    methods += [MetaFile.rows, MetaFile.packed, MetaFile.pack, Packed.rows]
    for method in methods:
        assert "<function" not in str(inspect.signature(method))


@pytest.mark.parametrize("shown", [DistributedSampler, Permutation, choose, find_races, run, simulate, Costs])
def test_the_example_of_a_docstring_runs(shown):
    code = textwrap.dedent(inspect.cleandoc(shown.__doc__).split("Example:\n")[1])
    names = {"DataLoader": DataLoader, "dataset": range(10), "torch": torch, "nn": nn, "Costs": Costs, "run": run}
    names |= {"DistributedSampler": DistributedSampler, "Permutation": Permutation, "choose": choose}
    names |= {"one_f_one_b": one_f_one_b, "PretendGPU": PretendGPU, "DevicePrefetcher": DevicePrefetcher}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, names | {"find_races": find_races, "simulate": simulate})
    if shown is find_races:
        assert (
            printed.getvalue()
            == "sum (compute) reads A while C0 (copy) may still write it: nothing lets sum wait for C0\n"
        )
