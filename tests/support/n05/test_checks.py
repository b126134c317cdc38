"""What is particular about the checks of notebook 05; what all exercises have in common is in test_detectors."""

import array
import itertools
import os
import re

import numpy as np
import pytest
from torch.utils.data import DataLoader

from support.kit.mistakes import famous
from support.n05 import checks, solved

ID = "self.ids(epoch, mini_epoch)"
ANSWERS = {  # wrong ones of which the fault itself says what is wrong: the exercise, what is said, (old, new, …)
    "the strings are kept": (
        "packed",
        "bytes are kept for each row, text",
        ("encoded = [", "self.rows = list(map(str.swapcase, rows)); encoded = ["),
    ),
    "the strings that were asked for are kept": (
        "packed",
        "packed[17] is a string that is kept somewhere",
        (
            "encoded = [",
            "self.cache = {}; encoded = [",
            "return self.data",
            "return self.cache.setdefault(i, self.data",
            ".decode()",
            ".decode())",
        ),
    ),
    "strings in a closure": (
        "packed",
        "bytes are kept for each row, text",
        ("encoded = [", "self.again = lambda i: rows[i]; encoded = ["),
    ),
    "no rows are not thought of": (
        "packed",
        "for no rows, as a rank may have in a mini-epoch: your code raised",
        ("encoded = [row.encode() for row in rows]", "encoded = [row.encode() for row in rows]; rows[0]"),
    ),
    "a length that is one too many": (
        "packed",
        "of 5 rows, len(packed) should be 5, it is 6",
        ("len(self.offsets) - 1", "len(self.offsets)"),
    ),
    "an array of strings": (
        "packed",
        "self.data has the type object, not uint8",
        (
            'np.frombuffer(b"".join(encoded), np.uint8)',
            "np.array(rows, object)",
            "self.data[self.offsets[i] : self.offsets[i + 1]].tobytes().decode()",
            "self.data[i]",
        ),
    ),
    "an array that grows by hand": (
        "index",
        "copied anew with every block",
        (
            "bounds, place = [], 0",
            "bounds, place = np.zeros(0, np.int64), 0",
            "bounds.append(place + newlines + 1)",
            "old = bounds; bounds = np.empty(len(old) + len(newlines), np.int64); "
            "bounds[: len(old)] = old; bounds[len(old) :] = place + newlines + 1",
            "np.concatenate(bounds)",
            "bounds",
        ),
    ),
    "bounds of 32 bits": (
        "index",
        "the index of the type int32 cannot count to 17.2 GB",
        ("np.concatenate(bounds)", "np.concatenate(bounds).astype(np.int32)"),
    ),
    "an object for each bound": (
        "index",
        "kB were in memory at a time",
        ("bounds.append", "bounds.extend", "np.concatenate(bounds)", "np.array(bounds)"),
    ),
    "a list of bounds": (
        "index",
        "one numpy array, not list",
        ("np.concatenate(bounds)", "np.concatenate(bounds).tolist()"),
    ),
    "the text in memory": (
        "file",
        "kB are held: keep `bounds` as it is",
        (
            "os.open(path, os.O_RDONLY)",
            "open(path, 'rb').read()",
            "os.pread(self.file, end - 1 - begin, begin)",
            "self.file[begin : end - 1]",
        ),
    ),
    "a list of the bounds": ("file", "kB are held: keep `bounds` as it is", ("= bounds,", "= bounds.tolist(),")),
    "a cache of rows": (
        "file",
        "are held: keep no row, nor anything else that grows with the file",
        (
            "self.bounds, self.file =",
            "self.cache = {}; self.bounds, self.file =",
            "return os.pread",
            "return self.cache.setdefault(index, os.pread",
            ".decode()",
            ".decode())",
        ),
    ),
    "a cache of batches": (
        "file",
        "are held: keep no row, nor anything else that grows with the file",
        (
            "self.bounds, self.file =",
            "self.cache = {}; self.bounds, self.file =",
            "rows = {index: self[index]",
            "rows = self.cache; rows |= {index: self[index]",
        ),
    ),
    "opened and closed": (
        "file",
        "opened again where a row is read: open it once",
        (
            "os.open(path, os.O_RDONLY)",
            "path",
            "return os.pread(self.file, end - 1 - begin, begin).decode()",
            "with open(self.file, 'rb') as file: return os.pread(file.fileno(), end - 1 - begin, begin).decode()",
        ),
    ),
    "opened and left open": (
        "file",
        "opened again where a row is read: open it once",
        ("os.open(path, os.O_RDONLY)", "path", "os.pread(self.file,", "os.pread(os.open(self.file, os.O_RDONLY),"),
    ),
    "a position in a text file": (
        "file",
        "moved the position",
        (
            "os.open(path, os.O_RDONLY)",
            "os.fdopen(os.open(path, os.O_RDONLY), 'rb')",
            "return os.pread(self.file, end - 1 - begin, begin).decode()",
            "self.file.seek(begin); return self.file.readline().decode().removesuffix(chr(10))",
        ),
    ),
    "another error": ("client", "dataset[5] raises KeyError, not an IndexError", ("(IndexError if", "(KeyError if")),
    "a request a row": (
        "client",
        "for a batch of 9 rows the server had 9 requests: send one POST",
        ('self.ask("POST", "/rows", json.dumps([int(index) for index in indices]))', "[self[i] for i in indices]"),
    ),
    "all rows for one": (
        "client",
        "one by one, the server had to give the rows [0, 1, 2, 3, 4, 0, 1,",
        (
            'return self.ask("GET", f"/get/{index}")',
            'return self.ask("POST", "/rows", json.dumps([*range(len(self))]))[index]',
        ),
    ),
    "all rows in each process": (
        "client",
        "dataset[0], asked a second time, was not asked of the server",
        (
            "self.address, self.owner =",
            "self.all = None; self.address, self.owner =",
            'return self.ask("GET", f"/get/{index}")',
            "self.all = self.all or self.__getitems__(range(len(self))); return self.all[index]",
        ),
    ),
    "a cache of answers": (
        "client",
        "dataset[0], asked a second time, was not asked of the server",
        (
            "self.address, self.owner =",
            "self.cache = {}; self.address, self.owner =",
            'return self.ask("GET", f"/get/{index}")',
            "return self.cache.get(index) or self.cache.setdefault(index, self.ask('GET', f'/get/{index}'))",
        ),
    ),
    "a connection a batch": (
        "client",
        "you connected 2 times",
        ('return self.ask("POST"', 'self.owner = None; return self.ask("POST"'),
    ),
    "rows that stay while the next are read": (
        "rank_dataset",
        "those of the one before are still in memory",
        ("        self.rows = None\n", ""),
    ),
    "the whole order": (
        "rank_dataset",
        "ask it for this mini-epoch's places only",
        ("epoch=epoch)[places % size]", "epoch=epoch)[np.arange(size)][places % size]"),
    ),
    "the places of all ranks, cut": (
        "rank_dataset",
        "make this rank's places of this mini-epoch only",
        (
            "places = self.rank + self.world_size * np.arange(begin, end)",
            "places = np.arange(begin * self.world_size, end * self.world_size)[self.rank :: self.world_size]",
        ),
    ),
    "rows of before": (
        "rank_dataset",
        "none may be left from before",
        (
            f"self.source.__getitems__({ID})",
            f"self.grown({ID}.tolist())",
            "    def __len__",
            """
    def grown(self, ids):
        self.kept = getattr(self, "kept", {})
        new = [i for i in ids if i not in self.kept]
        self.kept.update(zip(new, self.source.__getitems__(new)))
        return [self.kept[i] for i in ids]

    def __len__""",
        ),
    ),
    "in batches of 256, each packed": (
        "rank_dataset",
        "in a load for 1,500 rows the source was asked 6 times",
        (
            f"MyPacked(self.source.__getitems__({ID}))",
            f"MyPacked([row for part in np.array_split({ID}, max(1, -(-len({ID}) // 256))) "
            "for row in self.source.__getitems__(part)])",
        ),
    ),
    "in two requests, each over the whole file": (
        "rank_dataset",
        "in a load 2 requests sweep the file 2 times",
        (
            f"MyPacked(self.source.__getitems__({ID}))",
            f"MyPacked([row for part in np.split({ID}, range(1000, len({ID}), 1000)) "
            "for row in self.source.__getitems__(part)])",
        ),
    ),
    "Python's own generator seeded": (
        "rank_dataset",
        "load leaves Python's global random generator elsewhere",
        (
            "        self.rows = None\n        self.rows = MyPacked",
            "        import random; random.seed(epoch)\n        self.rows = None\n        self.rows = MyPacked",
        ),
    ),
    "a list of ids": (
        "rank_dataset",
        "bytes are kept for each row: text and offset need",
        ("        self.rows = None\n", f"        self.rows = None\n        self.kept = {ID}.tolist()\n"),
    ),
    "a list of rows": (
        "rank_dataset",
        "bytes are kept for each row: text and offset need",
        (f"MyPacked(self.source.__getitems__({ID}))", f"self.source.__getitems__({ID})"),
    ),
    "a list of numbers": (
        "rank_dataset",
        "ids should return a numpy array, not list",
        ("[places % size]", "[places % size].tolist()"),
    ),
    "row by row": (
        "rank_dataset",
        "for 3 rows the source was asked 3 times: it can read rows together only",
        (f"self.source.__getitems__({ID})", f"[self.source[i] for i in {ID}]"),
    ),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_a_wrong_answer_is_told_what_is_wrong_with_it(name):
    exercise, said, changes = ANSWERS[name]
    check = getattr(checks, f"check_{exercise}")
    verdict = check(famous(check.reference, {name: changes})[name])
    assert verdict.status == "wrong", verdict
    assert said in verdict.message, verdict


@pytest.mark.parametrize("guess, said", [(104e6, "right in another unit"), (0.1, "asks for MB"), (44, "Read on")])
def test_a_guess_in_another_unit_or_with_its_unit_is_understood(guess, said):
    assert said in checks.guess_list_megabytes(guess, 1_000_000).message
    assert "that is it" in checks.guess_received("epoch 0").message


def test_famous_wrong_guesses_are_told_where_they_come_from():
    assert "one sixteenth" in checks.guess_copied_percent(6, 500_000).message
    assert "workers that share it" in checks.guess_peak_megabytes(208, 1_000_000).message
    for spared in (5.69, 6.7, 6.79, 6.8, 6.9, 6.94):
        assert "(reading that is spared, as if training waited" in checks.guess_saved_hours(spared).message
    assert "at 250 MB a second" in checks.guess_cold_hours(70 / 3600).message
    assert "at 250 MB a second" in checks.guess_cold_hours(0.02).message
    assert "that is it" in checks.guess_saved_hours(0).message
    assert "both were given one seed" in checks.guess_crops("different").message


def test_a_number_near_a_famous_one_is_not_taken_for_it():
    for hit in (97, 98):
        assert "that is it" in checks.guess_copied_percent(hit, 500_000).message
    assert "(a few pages too many" in checks.guess_copied_percent(100, 500_000).message
    assert "another unit" not in checks.guess_copied_percent(1, 500_000).message
    for megabytes in (43, 51, 53):
        assert "the file" not in checks.guess_list_megabytes(megabytes, 1_000_000).message


def test_other_right_ways_to_find_the_bounds_are_accepted():
    def two_passes(path, block=1 << 20):
        def places():
            with open(path, "rb") as file:
                for first in itertools.count(0, block):
                    text = file.read(block)
                    if not text:
                        return
                    yield first + 1 + np.flatnonzero(np.frombuffer(text, np.uint8) == 10)

        bounds = np.empty(sum(map(len, places())), np.int64)
        filled = 0
        for found in places():
            bounds[filled : filled + len(found)] = found
            filled += len(found)
        return bounds

    def by_pattern(path, block=1 << 20):
        found = []
        place = 0
        with open(path, "rb") as file:
            while text := file.read(block):
                found.append(np.array([place + match.end() for match in re.finditer(b"\n", text)], np.int64))
                place += len(text)
        return np.concatenate(found)

    def letters_of_a_byte(path, block=1 << 20):
        found = []
        place = 0
        with open(path, encoding="latin-1", newline="") as file:
            while text := file.read(block):
                found.append(place + 1 + np.flatnonzero(np.frombuffer(text.encode("latin-1"), np.uint8) == 10))
                place += len(text)
        return np.concatenate(found)

    for answer in (two_passes, by_pattern, letters_of_a_byte):
        assert checks.check_index(answer), checks.check_index(answer)


def test_other_right_ways_to_pack_load_and_deal_are_accepted():
    class Counting(solved.MyPacked):
        def __init__(self, rows):
            super().__init__(rows)
            self.size = len(rows)  # more than is asked for, and no fault

        def __len__(self):
            return self.size

    class Sorted(solved.MyRankDataset):
        def load(self, epoch, mini_epoch):  # asks front to back, 1,000 rows at a time
            self.rows = None
            ids = self.ids(epoch, mini_epoch)
            order = np.argsort(ids, kind="stable")
            parts = [order[k : k + 1000] for k in range(0, len(order), 1000)]
            rows = [row for part in parts for row in self.source.__getitems__(ids[part])]
            back = np.empty(len(ids), np.int64)
            back[order] = np.arange(len(ids))
            self.rows = solved.MyPacked([rows[place] for place in back])

    def with_shuffle_off(dataset, epoch, **options):
        part = 0
        while part < dataset.mini_epochs:
            dataset.load(epoch, part)
            part += 1
            if not len(dataset):
                continue
            loader = DataLoader(dataset, **{"shuffle": False, **options})
            yield from loader
            del loader

    right = (
        (checks.check_packed, Counting),
        (checks.check_rank_dataset, Sorted),
        (checks.check_epoch, with_shuffle_off),
    )
    for check, answer in right:
        assert check(answer), check(answer)


def test_a_seed_of_the_global_generator_is_found_though_it_stands_there_already():
    seeding = checks.check_rank_dataset.mistakes[
        "A generator of your own does not disturb anybody: np.random.default_rng(…)."
    ]
    state = np.random.get_state()  # noqa: NPY002
    try:
        for seed in (0, 1, 2):
            np.random.seed(seed)  # noqa: NPY002
            assert "numpy's global random generator" in checks.check_rank_dataset(seeding).message
    finally:
        np.random.set_state(state)  # noqa: NPY002


def test_other_right_ways_to_read_a_file_are_accepted():
    class Late(solved.MyFileDataset):
        def __init__(self, path, bounds):
            self.bounds = bounds
            self.path = path
            self.file = None

        def __getitem__(self, index):
            self.file = self.file or os.open(self.path, os.O_RDONLY)  # in the process that reads
            return super().__getitem__(index)

    class Near(solved.MyFileDataset):
        def __getitems__(self, indices):  # rows that lie within a page of each other come in one read
            wanted = sorted(set(indices))
            rows = {}
            while wanted:
                low = int(self.bounds[wanted[0]])
                near = [index for index in wanted if int(self.bounds[index + 1]) <= low + 4096]
                text = os.pread(self.file, int(self.bounds[near[-1] + 1]) - low, low)
                for index in near:
                    rows[index] = text[self.bounds[index] - low : self.bounds[index + 1] - 1 - low].decode()
                wanted = wanted[len(near) :]
            return [rows[index] for index in indices]

    for answer in (Late, Near):
        assert checks.check_file(answer), checks.check_file(answer)


def test_an_index_made_row_by_row_is_told_what_it_takes():
    def by_line(kind):
        def index(path, block=1):
            bounds = kind()
            place = 0
            with open(path, "rb") as file:
                for line in file:
                    place += len(line)
                    bounds.append(place)
            return np.array(bounds)

        return index

    def by_length(path, block=1):  # small ints are no new objects: short rows would not show it
        with open(path, "rb") as file:
            return np.cumsum([len(line) for line in file])

    for answer in (by_line(list), by_length, by_line(lambda: array.array("q"))):
        assert "one of your reads brings up to 36 bytes" in checks.check_index(answer).message
