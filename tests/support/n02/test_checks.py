"""What is particular about the checks of notebook 02; what all exercises have in common is in test_detectors."""

from itertools import islice

import pytest
from torch.utils.data import get_worker_info

from support.n02 import checks as n02
from support.n02.runs import as_worker


class Loader(n02.Loader):
    def __iter__(self):
        return map(self.load, self.batch_sampler)

    def load(self, indices):
        return self.collate_fn([self.dataset[index] for index in indices])


@pytest.mark.parametrize("exercise, mistake, said", [
    (n02.check_loader, "An iterator that is kept", "collate_fn is sum), second epoch: for size = 5, "),
    (n02.check_loader, "All batches are loaded", "items and lists taken when the first batch comes: for size = 5, "),
    (n02.check_pooled, "Every epoch has the order", "half of the items), second epoch: for size = 24, "),
    (n02.check_pooled, "Each reading may be", "shuffled at each reading: for size = 24, "),
    (n02.check_pooled, "Count what the sampler names.", "len: for size = 24, "),
    (n02.check_epoch_keys, "Only set_epoch sets", "iterated a second time: for size = 3, "),
    (n02.check_pooled, "A pool holds pool × batch_size indices; yours holds pool.", "batch_size = 2, pool = 4, "),
    (n02.check_dealt, "Every item comes once, but", "for size = 13, rank = 1, world_size = 3, worker = 1, "),
    (n02.check_repaired, "Asked again after other items",
     "Items 0 to 3 have [(85, 1), (51, 0), (30, 0), (7, 0)] in epoch 0"),
])  # fmt: skip
def test_a_fault_is_told_where_it_shows(exercise, mistake, said):
    wrong = next(answer for sentence, answer in exercise.mistakes.items() if sentence.startswith(mistake))
    assert said in exercise(wrong).message


def test_whoever_collects_the_stream_first_is_told_that_a_stream_may_have_no_end():
    class Collected(n02.Dealt):
        def __iter__(self):
            return iter([*super().__iter__()])

    verdict = n02.check_dealt(Collected)
    assert verdict.status == "wrong" and "a stream without end: " in verdict.message
    assert "this stream has no end" in verdict.message


def test_whoever_forgets_that_there_may_be_no_workers_is_told_what_happened():
    class Dealt(n02.Dealt):
        def __iter__(self):
            info = get_worker_info()
            first, step = self.places(info.id, info.num_workers)
            return islice(self.read(), first, None, step)

    verdict = n02.check_dealt(Dealt)
    assert "worker = 0, workers = 0 your code raised AttributeError: 'NoneType'" in verdict.message
    assert "get_worker_info() is None without workers" in verdict.message


def test_whatever_makes_the_numbers_of_seed_epoch_and_index_is_right_and_a_seed_that_is_left_out_is_not():
    # the hash of whole numbers is the same in every process
    assert n02.check_repaired(n02._repaired(source=lambda self, *key: abs(hash((self.seed, *key)))))
    without = n02.check_repaired(n02._repaired(source=lambda self, *key: abs(hash(key))))
    assert "Another seed changes nothing" in without.message


@pytest.mark.parametrize(
    "source",
    [
        lambda self, epoch, index: self.seed ^ (epoch * self.size + index),
        lambda self, epoch, index: self.seed + epoch * self.size + index,
        lambda self, epoch, index: self.seed + 1000 * epoch + index,
        lambda self, epoch, index: 1000 * self.seed + epoch * self.size + index,
        lambda self, epoch, index: (self.seed ^ epoch, index),
        lambda self, epoch, index: (epoch, self.seed + index),
    ],
)
def test_two_seeds_share_no_items_however_the_seed_is_mixed_with_the_rest(source):
    assert "Items of seed 1 have the numbers" in n02.check_repaired(n02._repaired(source=source)).message


def test_a_guess_of_another_shape_is_told_which_is_asked_for_and_no_truth():
    for guess, comment, *known in (
        (10, n02.guess_loads),
        ([4, 2], n02.guess_table, {"a": (4, 2)}),
        ("ten", n02.guess_handed_out),
        ([20], n02.guess_streamed),
    ):
        said = comment(guess, *known).message
        assert f"please, not {guess!r}. " in said and "=" not in said


@pytest.mark.parametrize("flip", [lambda crop: 0, lambda crop: crop // 50, lambda crop: 1 - crop % 2])
def test_a_flip_that_follows_from_the_crop_is_found_out(flip):
    class Tied(n02.Repaired):
        def __getitem__(self, key):
            index, crop, _ = super().__getitem__(key)
            return index, crop, flip(crop)

    assert "The crop tells the flip" in n02.check_repaired(Tied).message


@pytest.mark.parametrize("near", [8, 12])
def test_a_wrong_idea_of_the_indices_on_their_way_is_not_called_close(near):
    assert "close" not in n02.guess_handed_out(near).message


def test_who_plays_a_worker_is_one_only_inside_and_with_no_workers_not_even_there():
    with as_worker(1, 3, dataset="copy") as info:
        assert get_worker_info() is info and (info.id, info.num_workers, info.dataset) == (1, 3, "copy")
        with as_worker(0, 0):
            assert get_worker_info() is None
        assert get_worker_info() is info
    assert get_worker_info() is None
