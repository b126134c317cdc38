"""RankDataset: this rank's rows of this mini-epoch, nothing else, in its own process and in workers."""

import gc
import json
import pickle
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler

from lib.data.meta import MetaFile
from lib.data.mini_epochs import mini_epoch_loaders
from lib.data.rank_dataset import NaiveDataset, RankDataset
from tests.lib.data.rank_rows import N, batches, dealt, note_what_runs_already, number
from tests.lib.forks import in_fork, needs_fork
from tests.lib.refusal import refuses


@pytest.fixture(autouse=True)
def what_runs_already():
    note_what_runs_already()


# --- dealing
def test_an_empty_file_is_an_empty_dataset(tmp_path):
    (tmp_path / "empty.txt").write_text("# nothing yet\n")
    with MetaFile(tmp_path / "empty.txt") as empty:
        for order in ("feistel", "torch"):
            dataset = RankDataset(empty, 2, 1, mini_epochs=3, order=order)
            assert len(dataset) == 0
            assert list(dataset) == []
            assert list(mini_epoch_loaders(dataset, 0, batch_size=2)) == []
            dataset.load_state_dict(dataset.state_dict(0))
        assert list(NaiveDataset(empty)) == []


@pytest.mark.parametrize("change, message", [
    ({"rank": 8}, "rank 8 is out of range for world_size 8; ranks are 0..7"),
    ({"rank": -1}, "rank -1"), ({"world_size": 0}, "world_size must be at least 1"),
    ({"mini_epochs": 0}, "mini_epochs must be at least 1"), ({"mini_epochs": 1.5}, "mini_epochs must be an integer"),
    ({"seed": 2**63}, "seed must be below"), ({"order": "random"}, "'torch' or 'feistel', not 'random'"),
])  # fmt: skip
def test_wrong_arguments_are_refused_at_once(meta, change, message):
    refuses(ValueError, message, RankDataset, **{"meta_file": meta, "world_size": 8, "rank": 0, **change})
    for name in (str(meta.path), Path(meta.path)):  # whose length is that of its letters
        refuses(TypeError, f"write MetaFile\\('{meta.path}'\\)", RankDataset, name, 8, 0)
    dataset = RankDataset(meta, 2, 0, mini_epochs=4)
    refuses(ValueError, "mini_epoch must be below 4, not 4", dataset.load, 4)
    dataset.set_epoch(2**62 - 1)
    for epoch, bound in ((-1, "at least 0"), (2**62, "below 4611686018427387904"), (1.0, "an integer")):
        refuses(ValueError, bound, dataset.set_epoch, epoch)
    assert dataset.epoch == 2**62 - 1
    for wrong in ({"batch_size": 0}, {"num_workers": -1}, {"epoch": -1}, {"epoch": 2**62}, {"batch_size": 2.5}):
        refuses(ValueError, "", mini_epoch_loaders, dataset, **{"epoch": 0, "batch_size": 5, **wrong})


def test_it_says_in_a_line_what_it_holds(meta):
    dataset = RankDataset(meta, 8, 3, mini_epochs=4)
    rows = f"{len(dataset)} of {len(meta)} rows"
    assert repr(dataset) == f"<RankDataset rank 3 of 8: {rows}, epoch 0, mini-epoch 0 of 4>"
    dataset.load(1)
    assert repr(dataset).endswith("epoch 0, mini-epoch 1 of 4, loaded>")


# --- items
def test_items_one_by_one_in_batches_and_iterated_are_the_same(meta):
    dataset = RankDataset(meta, 3, 1, mini_epochs=2)
    one_by_one = [dataset[i] for i in range(len(dataset))]
    assert one_by_one == dataset.__getitems__(range(len(dataset))) == list(dataset)
    assert dataset[-1] == one_by_one[-1]
    assert dataset[np.int64(3)] == dataset[torch.tensor(3)] == one_by_one[3]
    refuses(IndexError, f"there are {len(dataset)}", dataset.__getitem__, len(dataset))
    dataset.transform = str.upper
    assert list(dataset) == dataset.__getitems__(range(len(dataset))) == [row.upper() for row in one_by_one]


def test_first_use_loads_the_first_mini_epoch_and_a_load_that_fails_can_be_tried_again(meta, monkeypatch):
    dataset = RankDataset(meta, 2, 0, mini_epochs=4)
    assert dataset._packed is None, "nothing is read before it is needed"
    assert len(dataset) == 125
    first = dataset[0]
    dataset.load(0)
    assert dataset[0] == first
    dataset.set_epoch(0)
    assert dataset._packed is not None, "the same epoch again changes nothing"
    dataset.set_epoch(1)
    assert dataset._packed is None, "the old rows do not stay for another epoch"
    assert dataset[0] != first
    with monkeypatch.context() as broken:
        broken.setattr(meta, "pack", lambda *arguments: (_ for _ in ()).throw(OSError("disk")))
        refuses(OSError, "disk", dataset.load, 1)
    assert dataset._packed is None
    dataset.transform = number
    assert list(dataset) == dealt(meta, 2, 1, mini_epochs=4)[0][1], "it is still mini-epoch 1, and can be tried again"


def test_old_rows_are_freed_before_new_ones_are_read(tmp_path):
    path = tmp_path / "long.txt"
    path.write_text("".join(f"{i} {'x' * 1000}\n" for i in range(8000)))
    with MetaFile(path) as meta:
        dataset = RankDataset(meta, 1, 0, mini_epochs=2)
        dataset.load(0)
        payload = dataset.packed.nbytes
        gc.collect()
        tracemalloc.start()
        base = tracemalloc.get_traced_memory()[0]
        dataset.load(1)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert 4_000_000 < payload < 4_100_000
        # numpy reports its arrays; the old rows were allocated before tracing and are freed unseen
        assert peak - base < payload + 5_000_000
        rows = dataset._packed
        dataset.meta_file.close()
        refuses(ValueError, "closed", dataset.load, 0)
        assert dataset._packed is None
        assert rows is not None


# --- stop and resume
def test_after_the_resumed_epoch_the_next_one_is_whole(meta):
    dataset = RankDataset(meta, 2, 0, mini_epochs=4)
    dataset.load_state_dict(RankDataset(meta, 2, 0, mini_epochs=4).state_dict(600))
    assert dataset.first_mini_epoch == 2
    assert dataset.num_samples == 200
    refuses(ValueError, r"mini-epoch 0 of epoch 0 was used before the restart.*\[2, 3\]", dataset.load, 0)
    assert sum(len(batches(loader)) for loader in mini_epoch_loaders(dataset, 0, batch_size=16)) == 200
    dataset.set_epoch(1)
    assert dataset.first_mini_epoch == 0
    assert dataset.num_samples == 500
    state = dataset.state_dict(N)
    assert (state["consumed"], state["mini_epoch"]) == (N, 4), "at the end nothing is left"
    dataset.load_state_dict(state)
    assert len(dataset) == 0
    assert list(mini_epoch_loaders(dataset, 1, batch_size=8)) == list(dataset) == []
    refuses(ValueError, "the next epoch: call set_epoch", dataset.load, 3)
    assert len(list(mini_epoch_loaders(dataset, 2, batch_size=8))) == 4
    state = RankDataset(meta, 2, 0, mini_epochs=4).state_dict(500)
    dataset = RankDataset(meta, 2, 0, mini_epochs=8)  # the rest goes to as few as keep their size
    dataset.load_state_dict(state)
    assert (state["mini_epoch"], dataset.first_mini_epoch, len(dataset)) == (2, 4, 62)


def test_the_end_of_an_epoch_is_where_each_row_was_used_or_left_out(meta):
    for drop_last, last, numbers in ((False, 999, (1000, 1001, 1002)), (True, 998, (999, 1000))):
        dataset = RankDataset(meta, 3, 0, mini_epochs=4, drop_last=drop_last)  # 1002 turns, or 999
        ends = [dataset.state_dict(number) for number in (last, *numbers)]
        assert [(state["mini_epoch"], state["consumed"]) for state in ends] == [(3, last), *[(4, 1000)] * len(numbers)]
        for state in ends:
            dataset.load_state_dict(state)
            assert dataset.num_samples == (1 if state is ends[0] and not drop_last else 0)


def test_wrong_states_are_refused_and_change_nothing(meta):
    dataset = RankDataset(meta, 2, 0, seed=1, mini_epochs=4)
    state = dataset.state_dict(100)
    assert json.loads(json.dumps(state)) == state
    wrong = dict(seed=[2], size=[5], order=["torch"], version=[0], consumed=[N + 1, -1, 2.0], mini_epoch=[5, -1, None])
    for key, values in {**wrong, "mini_epochs": ["4", None, [4], 4.0, 0, True], "epoch": [-1, 2**62, "0"]}.items():
        for value in values:
            refuses(ValueError, f"{key}", dataset.load_state_dict, {**state, key: value})
    for change in ({"mini_epoch": 4}, {"mini_epochs": 1, "mini_epoch": 1}, {"consumed": N}):
        with pytest.raises(ValueError, match=r"contradicts itself: \d+ of 1000 rows are used, .* take it anew"):
            dataset.load_state_dict({**state, **change})
    half = {key: state[key] for key in state if key not in ("epoch", "consumed")}
    refuses(ValueError, "epoch, consumed missing", dataset.load_state_dict, half)
    refuses(TypeError, "state_dict", dataset.load_state_dict, "a path")
    assert dataset.state_dict()["consumed"] == 0
    refuses(ValueError, "use only 1000 rows", dataset.state_dict, N + 1)
    dataset.load_state_dict(state)
    refuses(ValueError, "at least 100", dataset.state_dict, 99)


# --- workers
@needs_fork
def test_forked_workers_share_what_was_loaded_and_do_not_silently_load_copies_of_their_own(meta):
    dataset = RankDataset(meta, 2, 0)
    dataset.load(0)
    loader = DataLoader(dataset, batch_size=32, num_workers=2, multiprocessing_context="fork")
    assert batches(loader) == list(dataset)
    shuffled = DataLoader(dataset, batch_size=32, sampler=RandomSampler(dataset))
    assert sorted(batches(shuffled)) == sorted(dataset)
    alone = DataLoader(RankDataset(meta, 2, 0), batch_size=32, num_workers=1, multiprocessing_context="fork")
    refuses(RuntimeError, r"call load\(0\) before the loader is iterated", batches, alone)


def test_a_spawned_worker_reads_its_rows_again_and_a_persistent_one_keeps_the_old_epoch(meta):
    dataset = RankDataset(meta, 2, 1, mini_epochs=2)
    dataset.set_epoch(3)
    dataset.load(1)
    assert len(pickle.dumps(dataset)) < 2000
    loader = DataLoader(dataset, 64, num_workers=1, multiprocessing_context="spawn", persistent_workers=True)
    first = batches(loader)
    assert first == list(dataset)
    dataset.set_epoch(1)  # the trap that mini_epoch_loaders avoids
    dataset.load(0)
    assert batches(loader) == first != list(dataset)
    loader._iterator._shutdown_workers()


@needs_fork
def test_reading_in_workers_makes_no_page_of_the_rows_private(tmp_path):
    """Copy-on-read: counting references to Python objects writes to their pages; bytes in an array have none."""
    psutil = pytest.importorskip("psutil")
    if not hasattr(psutil.Process().memory_full_info(), "uss"):
        pytest.skip("this system does not tell what is private")
    path = tmp_path / "many.txt"
    path.write_text("".join(f"img/{i:06}.png a caption of some length, like others\n" for i in range(60_000)))

    def private_growth(dataset):
        """Read all rows in a forked process and return by how many bytes its private memory grew."""

        def read():
            process = psutil.Process()
            before = process.memory_full_info().uss
            for i in range(len(dataset)):
                dataset[i]
            return process.memory_full_info().uss - before

        return in_fork(read)

    with MetaFile(path) as meta:
        rank = RankDataset(meta, 1, 0)
        rank.load(0)
        packed = private_growth(rank)
        naive = private_growth(NaiveDataset(meta))
    assert packed < 2_000_000 < naive
