"""Wrong datasets of a rank, and wrong loops over its loaders, that a reader of notebook 05 found accepted."""

import pytest
from torch.utils.data import DataLoader

from support.kit.mistakes import famous
from support.n05 import checks

LOOP = "    for mini_epoch in range(dataset.mini_epochs):\n"
LOAD = "dataset.load(epoch, mini_epoch)"
DEAL = "yield from DataLoader(dataset, **options)"
ANSWERS = {  # the exercise, what is said, (old, new, …)
    "the order goes round once": (
        "rank_dataset",
        "N, W, E = 1, 5, 1",
        ("[places % size]", "[np.where(places < size, places, places - size)]"),
    ),
    "an item seeds": (
        "rank_dataset",
        "reading an item leaves numpy's global",
        ("return self.rows[i]", "np.random.seed(i); return self.rows[i]"),
    ),
    "rows of the class": (
        "rank_dataset",
        "after another one was loaded",
        (
            "        self.rows = MyPacked",
            "        type(self).rows = MyPacked",
            "        self.rows = None\n",
            "        type(self).rows = None\n",
            "        self.rows: Any = None\n",
            "",
        ),
    ),
    "the seed of the class": (
        "rank_dataset",
        "after another one was loaded",
        ("self.mini_epochs, self.seed =", "self.mini_epochs, type(self).seed ="),
    ),
    "a seed of 1": ("rank_dataset", "without a seed, which is then 0", ("seed: int = 0", "seed: int = 1")),
    "few seeds": ("rank_dataset", "seed 1000003", ("seed=self.seed", "seed=self.seed % 8")),
    "few epochs": ("rank_dataset", "epoch 1001", ("epoch=epoch)", "epoch=epoch % 3)")),
    "parts as numpy splits": (
        "rank_dataset",
        "begins with turn T k // E, and yours are cut elsewhere",
        ("np.arange(begin, end)", "np.array_split(np.arange(turns), self.mini_epochs)[mini_epoch]"),
    ),
    "a share of the mini-epochs, in floats": (
        "rank_dataset",
        "N, W, E = 55, 1, 11",
        (
            "begin = turns * mini_epoch // self.mini_epochs",
            "begin = int(turns * (mini_epoch / self.mini_epochs))",
            "end = turns * (mini_epoch + 1) // self.mini_epochs",
            "end = int(turns * ((mini_epoch + 1) / self.mini_epochs))",
        ),
    ),
    "turns of a mini-epoch, in floats": (
        "rank_dataset",
        "N, W, E = 15, 1, 11",
        (
            "begin = turns * mini_epoch // self.mini_epochs",
            "begin = int(mini_epoch * (turns / self.mini_epochs))",
            "end = turns * (mini_epoch + 1) // self.mini_epochs",
            "end = int((mini_epoch + 1) * (turns / self.mini_epochs))",
        ),
    ),
    "errors of the rows are lost": (
        "epoch",
        "an error of a row",
        (
            "        yield from DataLoader(dataset, **options)",
            "        try: yield from DataLoader(dataset, **options)\n        except ValueError: pass",
        ),
    ),
    "errors of a worker are lost": (
        "epoch",
        "an error of a row, RuntimeError, is lost",
        (
            "        yield from DataLoader(dataset, **options)",
            "        try: yield from DataLoader(dataset, **options)\n        except (RuntimeError, IndexError): pass",
        ),
    ),
    "what the loader refuses is taken for an empty mini-epoch": (
        "epoch",
        "DataLoader refuses batch_size=0 with a ValueError",
        (
            DEAL,
            "try: loader = DataLoader(dataset, **options)\n        except ValueError: continue\n"
            "        yield from loader",
        ),
    ),
    "an empty mini-epoch goes to a loader that shuffles": (
        "epoch",
        "with shuffle=True the rows of an epoch, sorted,",
        ("continue", "pass"),
    ),
    "the epochs before are loaded, too": (
        "epoch",
        "epoch 1: when batch 0 of mini-epoch 0 comes, load was called for [0, 1, 2, 3, 0]",
        (
            LOOP,
            "    for before in range(epoch):\n"
            "        for part in range(dataset.mini_epochs): dataset.load(before, part)\n" + LOOP,
        ),
    ),
    "no load in the same epoch": (
        "rank_dataset",
        "load(0, 1) after load(0, 0) asked the source for no row",
        (
            "        self.rows = None\n        self",
            "        if getattr(self, 'last', None) == epoch: return\n"
            "        self.last = epoch; self.rows = None\n        self",
        ),
    ),
    "one loader for each mini-epoch, kept": (
        "epoch",
        "epoch 1, after epoch 0 of the same dataset",
        (
            LOOP,
            "    kept = dataset.__dict__.setdefault('loaders', {})\n" + LOOP,
            DEAL,
            "if mini_epoch not in kept: kept[mini_epoch] = DataLoader(dataset, **options)\n"
            "        yield from kept[mini_epoch]",
        ),
    ),
    "one batch behind": (
        "epoch",
        "load was called for [0, 1], not for [0]",
        (
            LOOP,
            "    held = None\n" + LOOP,
            DEAL,
            "for batch in DataLoader(dataset, **options):\n"
            "            if held is not None: yield held\n"
            "            held = batch\n    yield held",
        ),
    ),
    "the last batch after the next load": (
        "epoch",
        "load was called for",
        (
            DEAL,
            "batches = [*DataLoader(dataset, **options)]\n        yield from batches[:-1]\n"
            "        if mini_epoch + 1 < dataset.mini_epochs: dataset.load(epoch, mini_epoch + 1)\n"
            "        yield from batches[-1:]",
        ),
    ),
    "loaded twice": (
        "epoch",
        "load was called for [0, 0], not for [0]",
        (
            "        dataset.load(epoch, mini_epoch)\n",
            "        dataset.load(epoch, mini_epoch); dataset.load(epoch, mini_epoch)\n",
        ),
    ),
    "loaded once more": (
        "epoch",
        "at the end load was called for [0, 1, 2, 0]",
        (DEAL, DEAL + "\n    dataset.load(epoch, 0)"),
    ),
    "never shuffled": (
        "epoch",
        "with shuffle=True",
        (DEAL, "options = {**options, **({'shuffle': False} if 'shuffle' in options else {})}\n        " + DEAL),
    ),
    "nothing dropped": (
        "epoch",
        "'drop_last': True",
        (DEAL, "if 'batch_size' in options: options['drop_last'] = False\n        " + DEAL),
    ),
    "only some options": (
        "epoch",
        "batch_sampler",
        (
            DEAL,
            "known = ('batch_size', 'num_workers', 'persistent_workers', 'collate_fn', "
            "'multiprocessing_context', 'timeout', "
            "'drop_last', 'shuffle', 'generator', 'sampler', 'worker_init_fn')\n"
            "        yield from DataLoader(dataset, **{k: options[k] for k in known if k in options})",
        ),
    ),
    "always three": ("epoch", "mini_epochs = 1", ("range(dataset.mini_epochs)", "range(3)")),
    "two at least": ("epoch", "mini_epochs = 1", ("range(dataset.mini_epochs)", "range(max(2, dataset.mini_epochs))")),
    "few epochs to deal": ("epoch", "epoch 5", ("load(epoch,", "load(min(epoch, 2),")),
    "another seed at the end": ("epoch", "epoch 1", (DEAL, DEAL + "\n    dataset.seed += 1")),
    "the bounds of the real size, wrapped": (
        "rank_dataset",
        "for 8,589,934,595 rows",
        (
            "places = self.rank + self.world_size * np.arange(begin, end)",
            "places = (self.rank + self.world_size * np.arange(begin, end)) % 2**32",
        ),
    ),
    "the order of the first epoch is kept": (
        "rank_dataset",
        "of the same dataset: ",
        (
            "        return Permutation(size, seed=self.seed, epoch=epoch)[places % size]",
            "        self.order = getattr(self, 'order', None) or Permutation(size, seed=self.seed, epoch=epoch)\n"
            "        return self.order[places % size]",
        ),
    ),
    "the ids of a mini-epoch are kept, whatever the epoch": (
        "rank_dataset",
        "bytes are kept for each row",
        (
            "        return Permutation(size, seed=self.seed, epoch=epoch)[places % size]",
            "        self.kept = getattr(self, 'kept', {})\n"
            "        if mini_epoch not in self.kept:\n"
            "            order = Permutation(size, seed=self.seed, epoch=epoch)\n"
            "            self.kept[mini_epoch] = order[places % size]\n"
            "        return self.kept[mini_epoch]",
        ),
    ),
    "all rows are read with each load": (
        "rank_dataset",
        "load read the rows [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23], "
        "not [16, 19, 22].",
        (
            "self.source.__getitems__(self.ids(epoch, mini_epoch))",
            "[*map(self.source.__getitems__(range(len(self.source))).__getitem__, self.ids(epoch, mini_epoch))]",
        ),
    ),
    "all rows are packed at the start": (
        "rank_dataset",
        "bytes are kept for each row",
        ("        self.rows: Any = None", "        self.all = MyPacked(source.__getitems__(range(len(source))))"),
    ),
    "all turns are made, then cut": (
        "rank_dataset",
        "make this rank's places of this mini-epoch only",
        ("np.arange(begin, end)", "np.arange(turns, dtype=np.int32)[begin:end]"),
    ),
    "all places of the rank are asked for, then cut": (
        "rank_dataset",
        "'s places only",
        ("np.arange(begin, end)", "np.arange(turns)", "[places % size]", "[places % size][begin:end]"),
    ),
    "the order is walked through up to the places": (
        "rank_dataset",
        "ask it for this mini-epoch's places only",
        (
            "return Permutation(size, seed=self.seed, epoch=epoch)[places % size]",
            "import itertools; order = Permutation(size, seed=self.seed, epoch=epoch)\n"
            "        first, step = self.rank + self.world_size * begin, self.world_size\n"
            "        walk = itertools.islice(itertools.cycle(range(1)), 0) if first >= size else "
            "itertools.islice(order, first, min(size, self.world_size * end), step)\n"
            "        found = np.fromiter(walk, np.int64)\n"
            "        return np.append(found, order[places[len(found) :] % size])",
        ),
    ),
    "an empty mini-epoch leaves the rows of before": (
        "rank_dataset",
        "part 0: len should be 0, it is 1",
        (
            "        self.rows = None\n        self",
            "        if not len(self.ids(epoch, mini_epoch)): return\n        self.rows = None\n        self",
            "return len(self.rows)",
            "return len(self.rows or [])",
        ),
    ),
    "a mark for each row of the file": (
        "rank_dataset",
        "MB were in memory at a time",
        (
            "        self.rows = None\n        self",
            "        mine = np.zeros(len(self.source), bool)\n        mine[self.ids(epoch, mini_epoch)] = True\n"
            "        self.rows = None\n        self",
        ),
    ),
    "torch is seeded in load": (
        "rank_dataset",
        "load leaves torch's global random generator elsewhere",
        (
            "        self.rows = None\n        self",
            "        import torch; torch.manual_seed(epoch)\n        self.rows = None\n        self",
        ),
    ),
    "a worker that nobody asked for": (
        "epoch",
        "batches of 2, no workers, epoch 0",
        (LOOP, "    options.setdefault('num_workers', 1)\n" + LOOP),
    ),
    "it ends with the first empty mini-epoch": (
        "epoch",
        "for 3 rows, rank 0 of 5, 2 mini-epochs of [0, 1] rows",
        ("continue", "return"),
    ),
    "the batches of a load in a list": (
        "epoch",
        "what waits is a second copy of its rows",
        (DEAL, "yield from list(DataLoader(dataset, **options))"),
    ),
    "all loaders are kept": (
        "epoch",
        "2 loaders of earlier mini-epochs, or their iterators, are there",
        (
            LOOP,
            "    kept = []\n" + LOOP,
            DEAL,
            "kept.append(DataLoader(dataset, **options)); yield from kept[-1]",
        ),
    ),
    "all iterators are kept": (
        "epoch",
        "2 loaders of earlier mini-epochs, or their iterators, are there",
        (
            LOOP,
            "    kept = []\n" + LOOP,
            DEAL,
            "kept.append(iter(DataLoader(dataset, **options))); yield from kept[-1]",
        ),
    ),
    "turns of a mini-epoch, as numpy spaces them": (
        "rank_dataset",
        "N, W, E = 30, 1, 22",
        (
            "np.arange(begin, end)",
            "np.arange(*np.linspace(0, turns, self.mini_epochs + 1).astype(int)[mini_epoch:][:2])",
        ),
    ),
    "what was loaded last is there still": (
        "rank_dataset",
        "load(0, 0) after a load in which the source failed",
        (
            "        self.rows = None\n        self",
            "        if getattr(self, 'last', None) == (epoch, mini_epoch): return\n"
            "        self.rows = None\n        self",
            "self.ids(epoch, mini_epoch)))",
            "self.ids(epoch, mini_epoch))); self.last = epoch, mini_epoch",
        ),
    ),
    "a load that failed counts as done": (
        "rank_dataset",
        "load(0, 1) after a load in which the source failed",
        (
            "        self.rows = None\n        self",
            "        if getattr(self, 'last', None) == (epoch, mini_epoch): return\n"
            "        self.last = epoch, mini_epoch\n        self.rows = None\n        self",
        ),
    ),
    "ids one by one, of which none are floats": (
        "rank_dataset",
        "N, W, E = 3, 5, 2; seed 0, rank 0, epoch 0, part 0: ids has the type float64, not one of integers",
        (
            "return Permutation(size, seed=self.seed, epoch=epoch)[places % size]",
            "order = Permutation(size, seed=self.seed, epoch=epoch)\n"
            "        return np.array([order[int(place)] for place in places % size])",
        ),
    ),
    "an error of a load is lost": (
        "epoch",
        "an error of load, OSError, is lost",
        (LOAD, f"try: {LOAD}\n        except OSError: continue"),
    ),
    "a load is tried once more": (
        "epoch",
        "an error of load, OSError, is lost",
        (LOAD, f"try: {LOAD}\n        except OSError: {LOAD}"),
    ),
    "it ends with what is taken for nothing": (
        "epoch",
        "{'batch_size': None}",
        (
            DEAL,
            "batches = iter(DataLoader(dataset, **options))\n        while batch := next(batches, None): yield batch",
        ),
    ),
    "what is taken for nothing is left out": (
        "epoch",
        "{'batch_size': None}",
        (DEAL, "yield from filter(len, DataLoader(dataset, **options))"),
    ),
    "a batch of no rows": (
        "epoch",
        "a mini-epoch of no rows has no batch",
        ("            continue", "            yield []; continue"),
    ),
    "an empty mini-epoch is not loaded": (
        "epoch",
        "load was called for [1], not for [0, 1]",
        (f"        {LOAD}\n", f"        if not len(dataset.ids(epoch, mini_epoch)): continue\n        {LOAD}\n"),
    ),
    "a generator of its own": (
        "epoch",
        "a generator of the caller's",
        (
            DEAL,
            "import torch; yield from DataLoader(dataset, "
            "**{**options, **({'generator': torch.Generator().manual_seed(epoch)} if 'shuffle' in options else {})})",
        ),
    ),
    "a copy is loaded": (
        "epoch",
        "there is memory for one load",
        (LOOP, "    import copy; dataset = copy.copy(dataset)\n" + LOOP),
    ),
    "a copy of the rows is dealt": (
        "epoch",
        "there is memory for one load",
        (DEAL, "import copy; yield from DataLoader(copy.deepcopy(dataset), **options)"),
    ),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_a_wrong_answer_is_told_what_is_wrong_with_it(name):
    exercise, said, changes = ANSWERS[name]
    check = getattr(checks, f"check_{exercise}")
    verdict = check(famous(check.reference, {name: changes})[name])
    assert verdict.status == "wrong", verdict
    assert said in verdict.message, verdict


@pytest.mark.costly
def test_the_place_of_an_error_is_never_a_line_of_ours():
    def epoch_batches(dataset, epoch, **options):
        for mini_epoch in range(dataset.mini_epochs):
            loader = DataLoader(dataset, **options)
            dataset.load(epoch, mini_epoch)
            yield from loader

    verdict = checks.check_epoch(epoch_batches)
    assert verdict.status == "wrong", verdict
    assert "in epoch_batches, line" in verdict.message, verdict
