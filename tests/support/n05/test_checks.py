"""What is particular about the checks of notebook 05; what all exercises have in common is in test_exercises."""

import array
import mmap
import os

import numpy as np

from support.n05 import checks, solved


def test_rows_that_are_kept_as_strings_are_found_wherever_they_hide():
    class Kept(solved.MyPacked):
        def __init__(self, rows):
            super().__init__(rows)
            self.again = lambda i: rows[i]  # in a closure

    assert "bytes a row in memory" in checks.check_packed(Kept).message


def test_other_right_ways_to_read_a_file_are_accepted():
    class Mapped(solved.MyFileDataset):
        def __init__(self, path, bounds):
            self.bounds = bounds
            with open(path, "rb") as file:
                self.text = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)

        def __getitem__(self, index):
            return self.text[self.bounds[index] : self.bounds[index + 1] - 1].decode()

    class Opening(solved.MyFileDataset):
        def __init__(self, path, bounds):
            self.bounds, self.path = bounds, path

        def __getitem__(self, index):
            with open(self.path, "rb") as file:  # slow, and right: a position of its own
                file.seek(self.bounds[index])
                return file.readline().decode().removesuffix("\n")

    for answer in (Mapped, Opening):
        assert checks.check_file(answer), checks.check_file(answer)


def test_a_shared_position_is_found_through_a_text_file_too():
    class Seeking(solved.MyFileDataset):
        def __init__(self, path, bounds):
            self.bounds, self.file = bounds, os.fdopen(os.open(path, os.O_RDONLY), "rb")

        def __getitem__(self, index):
            self.file.seek(self.bounds[index])
            return self.file.readline().decode().removesuffix("\n")

    assert "moved the position" in checks.check_file(Seeking).message


def test_an_index_made_row_by_row_is_told_what_it_takes():
    def by_line(path, block=1):
        bounds, place = [], 0
        with open(path, "rb") as file:
            for line in file:
                place += len(line)
                bounds.append(place)
        return np.array(bounds)

    assert "were in memory" in checks.check_index(by_line).message

    def compact(path, block=1):
        bounds, place = array.array("q"), 0
        with open(path, "rb") as file:
            for line in file:
                place += len(line)
                bounds.append(place)
        return np.array(bounds)

    assert checks.check_index(compact)


def test_a_client_that_connects_for_each_batch_is_counted():
    class Anew(solved.MyServerDataset):
        def __getitems__(self, indices):
            self.owner = None
            return super().__getitems__(indices)

    assert "you connected 2 times" in checks.check_client(Anew).message


def test_rows_that_stay_while_the_next_are_read_are_found_by_their_bytes():
    class Late(solved.MyRankDataset):
        def load(self, epoch, mini_epoch):
            rows = self.source.__getitems__(self.ids(epoch, mini_epoch))
            self.rows = solved.MyPacked(rows)

    assert "those of the one before are still in memory" in checks.check_rank_dataset(Late).message
