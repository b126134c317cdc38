"""Notebook 05's checks accept the answer, leave a stub alone, and call famous mistakes by their names."""

from __future__ import annotations

import pytest

from lib.checks import n05
from lib.checks import n05_answers as answers
from lib.data.captions import write_captions
from lib.data.meta import MetaFile
from lib.data.rank_dataset import RankDataset
from lib.data.samplers import DistributedSampler


def stub(*arguments): ...


class StubDataset:
    def __init__(self, meta_file, world_size, rank, mini_epochs):
        self.meta_file, self.share = meta_file, (world_size, rank, mini_epochs)

    def load(self, epoch, mini_epoch): ...

    def __len__(self): ...

    def __getitem__(self, i): ...


@pytest.mark.parametrize(
    "check, right",
    [
        (n05.check_mini_epoch_ids, answers.true_ids),
        (n05.check_rank_dataset, answers.ReferenceDataset),
        (n05.check_memory_of, answers.true_memory),
        (n05.check_rows_of_epochs, answers.right_loop),
    ],
)
def test_the_right_answer_is_accepted(check, right):
    assert check(right).status == "right"


@pytest.mark.parametrize("check", [n05.check_mini_epoch_ids, n05.check_memory_of, n05.check_rows_of_epochs])
def test_a_stub_is_neither_right_nor_wrong(check):
    assert check(stub).status == "open"


def test_a_class_with_one_stub_left_is_not_attempted():
    class HalfWay(answers.ReferenceDataset):
        def load(self, epoch, mini_epoch): ...

    assert n05.check_rank_dataset(StubDataset).status == "open"
    assert n05.check_rank_dataset(HalfWay).status == "open"


@pytest.mark.parametrize(
    "wrong, says",
    [
        (answers.contiguous_ids, "A contiguous piece"),
        (answers.same_epoch_ids, "The epoch is not in it"),
        (answers.parts_first_ids, "E before W"),
        (answers.unpadded_ids, "The last ranks get a row less"),
        (answers.dropped_ids, "The tail of the order is left to nobody"),
        (answers.floored_ids, "loses the turns that are left"),
        (answers.every_nth_ids, "Every E-th turn"),
        (lambda size, *share: list(range(size)), "position 0: expected [22, 19, 16], got [0, 1, 2"),
    ],
)
def test_wrong_ids_are_named_with_the_first_case_that_shows_them(wrong, says):
    verdict = n05.check_mini_epoch_ids(wrong)
    assert verdict.status == "wrong"
    assert "for size = " in verdict.message
    assert says in verdict.message


@pytest.mark.parametrize(
    "wrong, says",
    [
        (answers.HoldsAll, "That is the whole file"),
        (answers.KeepsOld, "The rows of the last mini-epoch are still there"),
        (answers.LoadsOnce, "The second load changed nothing"),
        (answers.RowsOfTheFile, "not row i of the file"),
        (answers.ForgetsTheEpoch, "Every epoch must deal the rows anew"),
    ],
)
def test_wrong_datasets_are_named(wrong, says):
    verdict = n05.check_rank_dataset(wrong)
    assert verdict.status == "wrong"
    assert "rank = " in verdict.message
    assert says in verdict.message


@pytest.mark.parametrize(
    "wrong, says",
    [
        (answers.one_rank_only, "That is one rank"),
        (answers.workers_copy, "Workers share packed rows"),
        (answers.no_workers, "Workers copy a list of str"),
        (answers.only_workers, "The rank itself holds a copy too"),
        (answers.as_in_the_file, "In a list a row is a Python object"),
        (answers.no_mini_epochs, "one mini-epoch at a time"),
    ],
)
def test_wrong_memory_is_named(wrong, says):
    verdict = n05.check_memory_of(wrong)
    assert verdict.status == "wrong"
    assert "for way = " in verdict.message
    assert says in verdict.message


@pytest.mark.parametrize(
    "wrong, says",
    [
        (answers.kept_loader, "and through kept workers"),
        (answers.kept_over_parts, "The workers are kept"),
        (answers.first_part_only, "Only mini-epoch 0 of each epoch"),
        (answers.no_set_epoch, "Every epoch is epoch 0"),
    ],
)
def test_wrong_loops_are_named(wrong, says):
    verdict = n05.check_rows_of_epochs(wrong)
    assert verdict.status == "wrong"
    assert "for world_size = 2" in verdict.message
    assert says in verdict.message


def test_the_reference_ids_are_those_of_our_sampler_cut_in_mini_epochs():
    for rank in range(4):
        sampler = DistributedSampler(range(26), 4, rank, order="feistel")
        sampler.set_epoch(2)
        parts = [list(answers.true_ids(26, 4, rank, 3, part, 2)) for part in range(3)]
        assert [i for part in parts for i in part] == list(sampler)
        assert [len(part) for part in parts] == [2, 2, 3]


def test_kept_workers_give_the_first_epoch_again_and_new_ones_do_not(tmp_path):
    write_captions(tmp_path / "tiny.txt", 24)
    with MetaFile(tmp_path / "tiny.txt") as tiny:
        truth = answers.true_rows(RankDataset(tiny, 4, 0), 3)
        assert answers.kept_loader(RankDataset(tiny, 4, 0), 3) == [truth[0]] * 3
        assert answers.right_loop(RankDataset(tiny, 4, 0), 3) == truth
        assert truth[0] != truth[1]


@pytest.mark.parametrize(
    "comment, right, wrong",
    [
        (lambda g: n05.guess_list_megabytes(g, 2_000_000), 208, 88),
        (lambda g: n05.guess_peak_megabytes(g, 2_000_000), 1248, 416),
        (lambda g: n05.guess_copied_percent(g, 500_000), 93, 6),
        (n05.guess_kept, "slower", "faster"),
        (n05.guess_rank_megabytes, 275, 2200),
        (n05.guess_received, 0, 2),
    ],
)
def test_a_guess_is_only_commented_on(comment, right, wrong):
    assert comment(None).status == comment(right).status == comment(wrong).status == "note"
    assert "No guess yet" in comment(None).message
    assert "that is it" in comment(right).message
    assert "that is it" not in comment(wrong).message
