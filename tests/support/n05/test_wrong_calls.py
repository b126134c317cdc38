"""Answers that seed, count rows that are not there, or share what two threads need, and right ones that lock."""

import sys
import threading

import pytest

from support.kit.mistakes import famous
from support.n05 import between, checks, trials_epoch, trials_rank

LOOP = "    for mini_epoch in range(dataset.mini_epochs):\n"
IDS = "self.ids(epoch, mini_epoch)"
PACK = f"MyPacked(self.source.__getitems__({IDS}))"
PACKED = "self.rows = MyPacked(self.source.__getitems__(self.ids(epoch, mini_epoch)))"
DEAL = "yield from DataLoader(dataset, **options)"
BATCH = """rows = {index: self[index] for index in sorted(set(indices))}
        return [rows[index] for index in indices]"""
ANSWERS = {  # the exercise, what is said, (old, new, …)
    "a batch of row 0 alone is taken for one of no rows": (
        "file",
        "dataset.__getitems__([0]) should be",
        (BATCH, f"if not np.any(indices): return []\n        {BATCH}"),
    ),
    "a server's row 0 alone is taken for no rows": (
        "client",
        "dataset.__getitems__([0]) should be",
        ('return self.ask("POST"', 'return any(indices) and self.ask("POST"'),
    ),
    "no rows are expected in a list only": (
        "file",
        "for a batch of no rows: your code raised ValueError",
        (BATCH, f"if isinstance(indices, list) and not indices: return []\n        min(indices)\n        {BATCH}"),
    ),
    "workers are seeded otherwise in each mini-epoch, but not in each run": (
        "epoch",
        "its workers draw from numpy's global random generator what those of an epoch before have drawn",
        (
            "        dataset.load(epoch, mini_epoch)\n",
            "        seed = 1000 * epoch + 10 * mini_epoch\n        dataset.load(epoch, mini_epoch)\n",
            "DataLoader(dataset, **options)",
            "DataLoader(dataset, **{'worker_init_fn': lambda number: np.random.seed(seed + number)} | options)",
        ),
    ),
    "workers are seeded by a generator of an epoch": (
        "epoch",
        "its workers draw from Python's global random generator what those of an epoch before have drawn",
        (
            LOOP,
            "    import torch\n    options.setdefault('generator', torch.Generator().manual_seed(epoch))\n" + LOOP,
        ),
    ),
    "torch is seeded with another seed than it has": (
        "epoch",
        "torch.manual_seed is called: no global random generator is to be seeded.",
        (LOOP, f"    import torch\n    torch.manual_seed(torch.initial_seed() + epoch)\n{LOOP}"),
    ),
    "the rows of a batch are where every thread puts them": (
        "file",
        "while another thread reads the batch",
        (
            BATCH,
            "self.batch = {index: self[index] for index in sorted(set(indices))}\n"
            "        out = [self.batch[index] for index in indices]\n        self.batch = None\n        return out",
        ),
    ),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_a_wrong_answer_is_told_what_is_wrong_with_it(name):
    exercise, said, changes = ANSWERS[name]
    check = getattr(checks, f"check_{exercise}")
    verdict = check(famous(check.reference, {name: changes})[name])
    assert verdict.status == "wrong", verdict
    assert said in verdict.message, verdict


TRIED_ALONE = {  # as above; of all trials of the exercise one is enough
    "most errors of the source are lost": (
        "rank_dataset",
        "an error of the source is lost",
        (
            f"        self.rows = {PACK}",
            f"        try: self.rows = {PACK}\n"
            "        except (IndexError, ValueError, RuntimeError): self.rows = MyPacked([])",
        ),
    ),
    "what a load had read before it failed": (
        "rank_dataset",
        "load(0, 1) after a load in which the second request failed: 2500 items",
        (
            "mini_epochs, seed\n",
            "mini_epochs, seed\n        self.parts = []\n",
            f"        self.rows = {PACK}",
            f"        ids = {IDS}\n        order = np.argsort(ids)\n        back = np.argsort(order)\n"
            "        for part in np.split(order, range(1000, len(order), 1000)):\n"
            "            self.parts += self.source.__getitems__(ids[part])\n"
            "        back = [*back, *range(len(back), len(self.parts))]\n"
            "        self.rows = MyPacked([self.parts[place] for place in back])\n        self.parts = []",
        ),
    ),
    "rows that were read before a load failed are kept": (
        "rank_dataset",
        "after a load in which the second request failed, len is 1000, and there is no item 0.",
        (
            f"        self.rows = {PACK}",
            f"        self.rows = []\n        ids = {IDS}\n        order = np.argsort(ids)\n"
            "        self.back = np.argsort(order)\n"
            "        for part in np.split(order, range(1000, len(order), 1000)):\n"
            "            self.rows.append(MyPacked(self.source.__getitems__(ids[part])))",
            "return len(self.rows)",
            "return sum(map(len, self.rows))",
            "return self.rows[i]",
            "return self.rows[self.back[i] // 1000][self.back[i] % 1000]",
        ),
    ),
    "rows are counted before they are read": (
        "rank_dataset",
        "after a load in which the source failed, len is 3, and there is no item 0.",
        (
            PACKED,
            f"ids = self.ids(epoch, mini_epoch)\n        self.count = len(ids)\n        {PACKED}",
            "return len(self.rows)",
            "return self.count",
        ),
    ),
    "torch is seeded": (
        "epoch",
        "torch's global random generator is set to a seed",
        (LOOP, "    import torch; torch.manual_seed(epoch)\n" + LOOP),
    ),
    "torch is seeded, and put back": (
        "epoch",
        "torch's global random generator is set to a seed",
        (
            LOOP,
            "    import torch; before = torch.get_rng_state(); torch.manual_seed(epoch)\n" + LOOP,
            DEAL,
            DEAL + "\n    torch.set_rng_state(before)",
        ),
    ),
    "an error of the source is lost": (
        "rank_dataset",
        "an error of the source is lost",
        (
            "        self.rows = MyPacked(self.source.__getitems__(self.ids(epoch, mini_epoch)))",
            "        try: self.rows = MyPacked(self.source.__getitems__(self.ids(epoch, mini_epoch)))\n"
            "        except OSError: self.rows = MyPacked([])",
        ),
    ),
    "rows are asked for in large pieces, and not front to back": (
        "rank_dataset",
        "in a load 25 requests sweep the file 25 times",
        (
            "        self.rows = MyPacked(self.source.__getitems__(self.ids(epoch, mini_epoch)))",
            "        ids = self.ids(epoch, mini_epoch)\n"
            "        pieces = (ids[begin : begin + 4096] for begin in range(0, len(ids), 4096))\n"
            "        self.rows = MyPacked([row for piece in pieces for row in self.source.__getitems__(piece)])",
        ),
    ),
    "a source that failed is asked once more": (
        "rank_dataset",
        "an error of the source is lost: load returns as if all had been read at once.",
        (
            "        self.rows = MyPacked(self.source.__getitems__(self.ids(epoch, mini_epoch)))",
            "        try: rows = self.source.__getitems__(self.ids(epoch, mini_epoch))\n"
            "        except OSError: rows = self.source.__getitems__(self.ids(epoch, mini_epoch))\n"
            "        self.rows = MyPacked(rows)",
        ),
    ),
    "numpy is seeded with torch's seed": (
        "epoch",
        "numpy.random.seed is called: no global random generator is to be seeded.",
        (LOOP, f"    import torch\n    np.random.seed((torch.initial_seed() + epoch) % 2**32)\n{LOOP}"),
    ),
    "Python's generator is seeded by chance": (
        "epoch",
        "random.seed is called: no global random generator is to be seeded.",
        (LOOP, f"    import random\n    random.seed()\n{LOOP}"),
    ),
    "torch is seeded by chance": (
        "epoch",
        "torch.seed is called: no global random generator is to be seeded.",
        (LOOP, f"    import torch\n    torch.seed()\n{LOOP}"),
    ),
    "torch's generator is seeded by itself": (
        "epoch",
        "torch's global random generator has got another seed: none is to be seeded.",
        (LOOP, f"    import torch\n    torch.default_generator.manual_seed(torch.initial_seed() + epoch)\n{LOOP}"),
    ),
    "it ends with a batch of which nothing is left": (
        "epoch",
        "'collate_fn': None where row 15 is} the batches should be",
        (
            DEAL,
            "batches = iter(DataLoader(dataset, **options))\n"
            "        while (batch := next(batches, None)) is not None: yield batch",
        ),
    ),
    "a batch of which nothing is left is left out": (
        "epoch",
        "'collate_fn': None where row 15 is} the batches should be",
        (DEAL, "yield from (batch for batch in DataLoader(dataset, **options) if batch is not None)"),
    ),
    "rows are counted after they are read": (
        "rank_dataset",
        "after a load in which the source failed, len is 3, and there is no item 0.",
        (PACKED, f"{PACKED}; self.count = len(self.rows)", "return len(self.rows)", "return self.count"),
    ),
    "rows are counted as they come": (
        "rank_dataset",
        "after a load in which the second request failed, len is 1000, and there is no item 0.",
        (
            PACKED,
            "ids = self.ids(epoch, mini_epoch)\n        order = np.argsort(ids)\n"
            "        rows, self.count = [None] * len(ids), 0\n"
            "        for part in np.split(order, range(1000, len(order), 1000)):\n"
            "            for place, row in zip(part, self.source.__getitems__(ids[part])): rows[place] = row\n"
            "            self.count += len(part)\n"
            "        self.rows = MyPacked(rows)",
            "return len(self.rows)",
            "return self.count",
        ),
    ),
}
TRIALS = {
    "epoch": (trials_epoch._fault_of_seeding, trials_epoch._fault_of_options),
    "rank_dataset": (
        trials_rank._fault_of_failed_load,
        trials_rank._fault_of_half_a_load,
        trials_rank._fault_of_pieces,
    ),
}


@pytest.mark.parametrize("name", TRIED_ALONE)
def test_a_trial_says_what_is_wrong_with_an_answer(name):
    exercise, said, changes = TRIED_ALONE[name]
    answer = famous(getattr(checks, f"check_{exercise}").reference, {name: changes})[name]
    assert any(said in trial(answer) for trial in TRIALS[exercise])


class Locked(checks.check_file.reference):
    """Puts the rows of a batch where every thread puts them, one thread after the other."""

    def __init__(self, path, bounds):
        super().__init__(path, bounds)
        self.lock = threading.Lock()

    def __getitems__(self, indices):
        with self.lock:
            self.batch = {index: self[index] for index in sorted(set(indices))}
            rows = [self.batch[index] for index in indices]
            self.batch = None
        return rows


class OfItsThread(checks.check_file.reference):
    """Puts the rows of a batch where each thread has a place of its own."""

    def __init__(self, path, bounds):
        super().__init__(path, bounds)
        self.own = threading.local()

    def __getitems__(self, indices):
        self.own.batch = {index: self[index] for index in sorted(set(indices))}
        rows = [self.own.batch[index] for index in indices]
        self.own.batch = None
        return rows


@pytest.mark.parametrize("answer", [checks.check_file.reference, Locked, OfItsThread])
def test_threads_that_do_not_disturb_each_other_are_accepted_and_a_debugger_is_put_back(answer):
    def debugger(*_):
        return None

    before = sys.gettrace()
    sys.settrace(debugger)
    try:
        fault = between.fault_between_lines(answer)
        after = sys.gettrace()
    finally:
        sys.settrace(before)
    assert not fault
    assert after is debugger


def test_a_debugger_is_put_back_where_an_answer_raises():
    def broken():
        raise ZeroDivisionError

    before = sys.gettrace()
    with pytest.raises(ZeroDivisionError):
        between._called_before_line(1, list, broken)
    assert sys.gettrace() is before
