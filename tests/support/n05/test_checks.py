"""What is particular about the checks of notebook 05; what all exercises have in common is in test_exercises."""

from lib.data.meta import MetaFile
from lib.data.rank_dataset import RankDataset, mini_epoch_loaders
from lib.data.samplers import DistributedSampler
from support.n05 import checks as n05
from support.n05.runs import write_captions


def new_loaders(dataset, epochs):
    """Return the rows of every epoch, through a new loader for every mini-epoch."""
    return [
        [row for loader in mini_epoch_loaders(dataset, epoch, batch_size=4, num_workers=1)
         for batch in loader for row in batch]
        for epoch in range(epochs)
    ]  # fmt: skip


def test_a_class_with_one_stub_left_is_not_attempted_and_one_that_deals_its_rows_itself_is_right():
    class HalfWay(n05.check_rank_dataset.reference):
        def load(self, epoch, mini_epoch): ...

    assert n05.check_rank_dataset(HalfWay).status == "open"

    class MyRankDataset:
        def __init__(self, meta_file, world_size, rank, mini_epochs):
            self.meta_file, self.share = meta_file, (len(meta_file), world_size, rank, mini_epochs)

        def load(self, epoch, mini_epoch):
            ids = n05.check_mini_epoch_ids.reference(*self.share, mini_epoch, epoch)
            self.rows = list(self.meta_file.rows(ids))

        def __len__(self):
            return len(self.rows)

        def __getitem__(self, index):
            return self.rows[index]

    assert n05.check_rank_dataset(MyRankDataset)


def test_ids_that_deal_nothing_are_shown_the_first_counterexample():
    message = n05.check_mini_epoch_ids(lambda size, *share: list(range(size))).message
    assert "for size = 24, " in message and "position 0: expected [22, 19, 16], got [0, 1, 2" in message


def test_the_reference_ids_are_those_of_our_sampler_cut_in_mini_epochs():
    for rank in range(4):
        sampler = DistributedSampler(range(26), 4, rank, order="feistel")
        sampler.set_epoch(2)
        parts = [list(n05.check_mini_epoch_ids.reference(26, 4, rank, 3, part, 2)) for part in range(3)]
        assert [i for part in parts for i in part] == list(sampler)
        assert [len(part) for part in parts] == [2, 2, 3]


def test_kept_workers_give_the_first_epoch_again_and_new_ones_do_not(tmp_path):
    kept = n05.check_rows_of_epochs.mistakes["Only mini-epoch 0, and through kept workers."]
    write_captions(tmp_path / "tiny.txt", 24)
    with MetaFile(tmp_path / "tiny.txt") as tiny:
        truth = n05.check_rows_of_epochs.reference(RankDataset(tiny, 4, 0), 3)
        assert kept(RankDataset(tiny, 4, 0), 3) == [truth[0]] * 3
        assert new_loaders(RankDataset(tiny, 4, 0), 3) == truth and truth[0] != truth[1]
    assert n05.check_rows_of_epochs(new_loaders)
