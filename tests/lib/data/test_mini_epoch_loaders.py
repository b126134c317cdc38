"""The loaders of an epoch have the rows that they were made for, workers that really have them, and an end."""

import gc
import multiprocessing
import threading
import time
import weakref

import pytest

from lib.data.meta import MetaFile
from lib.data.mini_epochs import _Ahead, mini_epoch_loaders
from lib.data.rank_dataset import RankDataset
from tests.lib.data.rank_rows import batches, dealt, note_what_runs_already, nothing_left_behind, number
from tests.lib.forks import needs_fork
from tests.lib.refusal import refuses


@pytest.fixture(autouse=True)
def what_runs_already():
    note_what_runs_already()


# --- the loaders of an epoch
@pytest.mark.parametrize("prefetch", [False, True])
@pytest.mark.parametrize("workers", [{}, {"num_workers": 2}, {"num_workers": 1, "persistent_workers": True}])
def test_loaders_deal_every_row_of_every_epoch(meta, prefetch, workers):
    dataset = RankDataset(meta, 2, 0, mini_epochs=2, transform=number)
    for epoch in (0, 1):
        seen = []
        for loader in mini_epoch_loaders(dataset, epoch, batch_size=50, prefetch=prefetch, **workers):
            seen.append(batches(loader))
            assert batches(loader) == seen[-1], "a loader may be iterated twice"
        assert seen == dealt(meta, 2, epoch, mini_epochs=2)[0]
    assert nothing_left_behind()


@pytest.mark.parametrize("batch_size", [1, 7, 499, 500, 501])
def test_a_batch_may_have_one_row_or_more_rows_than_there_are(meta, batch_size):
    dataset = RankDataset(meta, 2, 0, transform=number)
    seen = [batch.tolist() for loader in mini_epoch_loaders(dataset, 0, batch_size=batch_size) for batch in loader]
    assert [row for batch in seen for row in batch] == dealt(meta, 2)[0][0]
    assert len(seen) == -(-500 // batch_size)
    assert {len(batch) for batch in seen[:-1]} <= {batch_size}


@pytest.mark.parametrize("prefetch", [False, True])
def test_leaving_the_loop_early_or_by_an_error_leaves_no_worker_and_no_thread(meta, prefetch):
    def train(transform):
        dataset = RankDataset(meta, 2, 0, mini_epochs=3, transform=transform)
        for loader in mini_epoch_loaders(dataset, 0, batch_size=10, num_workers=2, prefetch=prefetch):
            for _ in loader:
                return

    train(number)
    assert nothing_left_behind()
    refuses(ValueError, "invalid literal for int", train, int)
    assert nothing_left_behind()


def test_a_loader_ends_when_the_next_one_is_taken_and_the_epoch_must_not_change_under_the_loop(meta):
    dataset = RankDataset(meta, 2, 0, mini_epochs=3)
    loaders = mini_epoch_loaders(dataset, 0, batch_size=10, num_workers=1)
    half_read = iter(next(loaders))
    next(half_read)
    assert len(multiprocessing.active_children()) == 1
    second = next(loaders)
    assert not multiprocessing.active_children()
    refuses(RuntimeError, "this loader is over", next, half_read)
    assert len(batches(second)) == len(dataset)
    dataset.set_epoch(1)
    refuses(RuntimeError, "set to epoch 1 while epoch 0", next, loaders)
    for loader in list(mini_epoch_loaders(dataset, 0, batch_size=10, num_workers=1)):  # collected first, used later
        refuses(RuntimeError, "take the next loader", iter, loader)
    assert not multiprocessing.active_children(), "nor were workers started"


def noted_reads(monkeypatch, broken=()):
    """Note each reading: which mini-epoch, and whether in the main thread."""
    read = RankDataset.read
    reads = []

    def note(self, mini_epoch, *rest):
        reads.append((mini_epoch, threading.current_thread() is threading.main_thread()))
        if mini_epoch in broken:
            raise OSError("disk")
        return read(self, mini_epoch, *rest)

    monkeypatch.setattr(RankDataset, "read", note)
    return reads


def test_prefetch_reads_the_next_rows_while_these_are_used_and_nothing_after_the_last(meta, monkeypatch):
    dataset = RankDataset(meta, 2, 0, mini_epochs=3)
    reads = noted_reads(monkeypatch)
    for turn, loader in enumerate(mini_epoch_loaders(dataset, 0, batch_size=50, prefetch=True)):
        assert len(reads) == turn + 1, "not before the workers of this loader run"
        iterator = iter(loader)
        loader._ahead.wait()
        assert len(reads) == min(turn + 2, 3)
        assert len(list(iterator)) == -(-len(dataset) // 50)
        assert len(batches(loader)) == len(dataset)
        assert len(reads) == min(turn + 2, 3), "a second pass reads nothing"
    assert reads == [(0, True), (1, False), (2, False)]
    assert nothing_left_behind()
    noted_reads(monkeypatch, broken=[1])  # an error of the thread comes with the rows that it should have read
    loaders = mini_epoch_loaders(dataset, 0, batch_size=50, prefetch=True)
    assert len(batches(next(loaders))) == len(dataset)
    refuses(OSError, "disk", next, loaders)
    assert nothing_left_behind()


def test_without_more_arguments_loaders_read_nothing_ahead_start_nothing_and_keep_the_order(meta, monkeypatch):
    dataset = RankDataset(meta, 2, 0, mini_epochs=3)
    reads = noted_reads(monkeypatch)
    threads = {*threading.enumerate()}
    for turn, loader in enumerate(mini_epoch_loaders(dataset, 0, batch_size=50)):
        assert reads == [(mini_epoch, True) for mini_epoch in range(turn + 1)]
        rows = batches(loader)
        assert reads == [(mini_epoch, True) for mini_epoch in range(turn + 1)]
        assert rows == list(dataset)
        assert {*threading.enumerate()} <= threads
        assert not multiprocessing.active_children()
    assert turn == 2


def test_a_second_pass_waits_for_the_thread_that_reads(meta, monkeypatch):
    """A worker that is forked while a thread holds a lock has a copy of it that nobody will open."""
    asked = threading.Event()
    read = RankDataset.read
    wait = _Ahead.wait
    done = []

    def slow(self, mini_epoch, *rest):
        if mini_epoch == 1:
            asked.wait(10)
            time.sleep(0.02)  # a reading that goes on while it is waited for
            done.append(mini_epoch)
        return read(self, mini_epoch, *rest)

    monkeypatch.setattr(RankDataset, "read", slow)
    monkeypatch.setattr(_Ahead, "wait", lambda self: (asked.set() if self._future else None, wait(self)))
    loaders = mini_epoch_loaders(RankDataset(meta, 2, 0, mini_epochs=2), 0, batch_size=50, prefetch=True)
    loader = next(loaders)
    iter(loader)
    assert done == []
    iter(loader)
    assert done == [1]
    asked.set()


def test_what_is_no_rank_dataset_is_refused_at_once():
    refuses(TypeError, "must be a RankDataset, not list", mini_epoch_loaders, [1, 2], 0, batch_size=1)


# --- rows that change under a loop
def other_loop(dataset):
    for loader in mini_epoch_loaders(dataset, 0, batch_size=50):
        batches(loader)


CHANGES = {  # and whether the loop goes on with its next loader
    "another epoch": (lambda dataset: dataset.set_epoch(1), False),
    "and back": (lambda dataset: (dataset.set_epoch(1), dataset.set_epoch(0)), False),
    "and loaded": (lambda dataset: (dataset.set_epoch(1), dataset.load(0)), False),
    "a state": (lambda dataset: dataset.load_state_dict(dataset.state_dict(100)), False),
    "another mini-epoch": (lambda dataset: dataset.load(2), True),
    "another loop": (other_loop, True),
}


@pytest.mark.parametrize("prefetch", [False, True])
@pytest.mark.parametrize("change, goes_on", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("after", [0, 9])
def test_a_loader_whose_rows_are_changed_refuses_the_next_batch(meta, change, goes_on, prefetch, after):
    """Without workers it takes its rows from the dataset, batch by batch: they would be those of another part."""
    dataset = RankDataset(meta, 1, 0, mini_epochs=3, transform=number)
    loaders = mini_epoch_loaders(dataset, 0, batch_size=20, prefetch=prefetch)
    (parts,) = dealt(meta, 1, mini_epochs=3)
    loader = next(loaders)
    iterator = iter(loader)
    assert [int(row) for _ in range(after) for row in next(iterator)] == parts[0][: 20 * after]
    rows = weakref.ref(dataset.packed)
    change(dataset)
    assert rows() is None, "no loader keeps what the dataset has let go"
    refuses(RuntimeError, r"rows of this loader are gone.*of its own", next, iterator)
    refuses(RuntimeError, "rows of this loader are gone", iter, loader)
    if goes_on:
        assert [batches(loader) for loader in loaders] == parts[1:]
    else:
        refuses(RuntimeError, "while epoch 0 was dealt, or given a state: begin the loop again", next, loaders)


@needs_fork
def test_workers_hold_their_rows_whatever_becomes_of_the_dataset(meta):
    dataset = RankDataset(meta, 1, 0, mini_epochs=3, transform=number)
    loaders = mini_epoch_loaders(dataset, 0, batch_size=20, num_workers=1)
    loader = next(loaders)
    iterator = iter(loader)
    other_loop(dataset)
    dataset.set_epoch(1)
    assert [int(row) for batch in iterator for row in batch] == dealt(meta, 1, mini_epochs=3)[0][0]
    refuses(RuntimeError, "rows of this loader are gone", iter, loader)  # new workers would hold other rows
    loaders.close()
    assert nothing_left_behind()


def test_of_a_dataset_in_one_part_a_loop_within_the_loop_is_right_they_have_the_same_rows(meta):
    dataset = RankDataset(meta, 1, 0, transform=number)
    rows = dealt(meta, 1)[0][0]
    for loader in mini_epoch_loaders(dataset, 0, batch_size=500):
        for k, batch in enumerate(loader):
            assert [*map(int, batch)] == rows[500 * k : 500 * (k + 1)]
            assert [batches(inner) for inner in mini_epoch_loaders(dataset, 0, batch_size=500)] == [rows]


def test_leaving_early_stops_a_long_prefetch(tmp_path, monkeypatch):
    from lib.data import samplers

    monkeypatch.setattr(samplers, "BLOCK", 10)
    path = tmp_path / "many.txt"
    path.write_text("".join(f"row {i}\n" for i in range(20_000)))
    with MetaFile(path) as meta:
        dataset = RankDataset(meta, 1, 0, mini_epochs=2)
        asked = []
        ids = RankDataset.ids

        def slow(self, mini_epoch):
            for block in ids(self, mini_epoch):
                asked.append(mini_epoch)
                if mini_epoch == 1:
                    time.sleep(0.01)
                yield block

        monkeypatch.setattr(RankDataset, "ids", slow)
        for loader in mini_epoch_loaders(dataset, 0, batch_size=50, prefetch=True):
            next(iter(loader))
            break
        gc.collect()
        assert asked.count(1) < 1000
