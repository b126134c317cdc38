"""Datasets and loops over loaders that keep all of the contract but one clause, and what each is told."""

import pytest

from support.kit.mistakes import famous
from support.n05 import checks

LOOP = "    for mini_epoch in range(dataset.mini_epochs):\n"
LOAD = "dataset.load(epoch, mini_epoch)"
DEAL = "yield from DataLoader(dataset, **options)"
SKIP = "        if not len(dataset):\n            continue  # a loader that shuffles refuses an empty dataset\n"
IDS = "self.ids(epoch, mini_epoch)"
READ = f"self.source.__getitems__({IDS})"
PACK = f"MyPacked({READ})"
IN_PARTS = """
    def in_parts(self, ids):
        order = np.argsort(ids, kind="stable")
        back = np.argsort(order, kind="stable")
        parts = np.split(order, range(800, len(order), 800))
        rows = [row for part in parts for row in self.source.__getitems__(ids[part])]
        return MyPacked([rows[place] for place in back])

    def __len__"""
OPEN = "self.bounds, self.file = bounds, os.open(path, os.O_RDONLY)"
PREAD = "return os.pread(self.file, end - 1 - begin, begin).decode()"
ANSWERS = {  # the exercise, what is said, (old, new, …)
    "items are bytes": ("rank_dataset", "item 0 should be", ("return self.rows[i]", "return self.rows[i].encode()")),
    "items without the spaces at their ends": (
        "rank_dataset",
        "item 0 should be",
        ("return self.rows[i]", "return self.rows[i].strip()"),
    ),
    "rows packed by their letters": (
        "rank_dataset",
        "item 0 should be",
        (
            f"        self.rows = {PACK}",
            f"        rows = {READ}\n        self.rows = MyPacked(rows)\n"
            "        self.rows.offsets = np.cumsum([0, *map(len, rows)])",
            "return self.rows[i]",
            "part = self.rows.data[self.rows.offsets[i] : self.rows.offsets[i + 1]]\n"
            "        return part.tobytes().decode(errors='replace')",
        ),
    ),
    "the length is that of the ids asked for last": (
        "rank_dataset",
        "the numbers of the items",
        (
            "return Permutation(size, seed=self.seed, epoch=epoch)[places % size]",
            "self.mine = Permutation(size, seed=self.seed, epoch=epoch)[places % size]\n        return self.mine",
            "return len(self.rows)",
            "return min(len(self.rows), len(self.mine))",
        ),
    ),
    "rows as wide as the longest": (
        "rank_dataset",
        "bytes are kept for each row",
        (
            PACK,
            f"np.array([row.encode() for row in {READ}], 'S')",
            "return self.rows[i]",
            "return self.rows[i].decode()",
        ),
    ),
    "what can be gone through once is asked for": (
        "rank_dataset",
        "object of type 'map' has no len() (in load",
        (READ, f"self.source.__getitems__(map(int, {IDS}))"),
    ),
    "each item that was read is kept": (
        "rank_dataset",
        "bytes are kept for each row",
        (
            "        self.rows = None\n",
            "        self.rows = None\n        self.kept = {}\n",
            "return self.rows[i]",
            "return self.kept.setdefault(i, self.rows[i])",
        ),
    ),
    "800 at a time": (
        "rank_dataset",
        "for 1,500 rows the source was asked 2 times",
        (PACK, f"self.in_parts({IDS})", "\n    def __len__", IN_PARTS),
    ),
    "a sampler of the caller's does not reach the loader": (
        "epoch",
        "'sampler': [1, 0]",
        (DEAL, f"options.pop('sampler', None); {DEAL}"),
    ),
    "what the caller's workers begin with does not reach the loader": (
        "epoch",
        "it is [['row 00015', 'row 00024', 'by worker'",
        (DEAL, f"options.pop('worker_init_fn', None); {DEAL}"),
    ),
    "torch is seeded where it shuffles": (
        "epoch",
        "torch's global random generator is set to a seed",
        (LOOP, f"    import torch\n    if options.get('shuffle'): torch.manual_seed(epoch)\n{LOOP}"),
    ),
    "each batch that was handed out is kept": (
        "epoch",
        "rows of earlier mini-epochs are still there",
        (
            LOOP,
            f"    kept = []\n{LOOP}",
            DEAL,
            "for batch in DataLoader(dataset, **options): kept.append([*batch]); yield batch",
        ),
    ),
    "the bytes of the last row are where every thread puts them": (
        "file",
        "row 17 stands in an attribute after it has been read: keep no row.",
        (PREAD, "self.text = os.pread(self.file, end - 1 - begin, begin); return self.text.decode()"),
    ),
    "one buffer for all threads": (
        "file",
        "row 17 stands in an attribute after it has been read: keep no row.",
        (
            OPEN,
            f"{OPEN}; self.buffer = bytearray(int(np.diff(bounds).max()))",
            PREAD,
            "os.preadv(self.file, [memoryview(self.buffer)[: end - begin]], begin)\n"
            "        return self.buffer[: end - 1 - begin].decode()",
        ),
    ),
    "rows are read together where two pages lie between them": (
        "file",
        "read its rows, and not what lies around them.",
        (
            "rows = {index: self[index] for index in sorted(set(indices))}",
            "rows, runs = {}, []\n"
            "        for index in sorted(set(indices)):\n"
            "            if not runs or self.bounds[index] - self.bounds[runs[-1][-1] + 1] > 8_192: runs.append([])\n"
            "            runs[-1].append(index)\n"
            "        for run in runs:\n"
            "            begin = int(self.bounds[run[0]])\n"
            "            text = os.pread(self.file, int(self.bounds[run[-1] + 1]) - begin, begin)\n"
            "            for index in run:\n"
            "                end = self.bounds[index + 1] - 1\n"
            "                rows[index] = text[self.bounds[index] - begin : end - begin].decode()",
        ),
    ),
    "the loader of a copy has a name": (
        "epoch",
        "the rows of an earlier mini-epoch are still held when another one is loaded",
        (DEAL, "import copy; loader = DataLoader(copy.copy(dataset), **options); yield from loader"),
    ),
    "rows have a name": (
        "epoch",
        "the rows of an earlier mini-epoch are still held when another one is loaded",
        (DEAL, f"rows = dataset.rows; {DEAL}"),
    ),
    "all loaders are kept, each with a part that is everything": (
        "epoch",
        "2 loaders of earlier mini-epochs, or their iterators, are there",
        (
            LOOP,
            f"    from torch.utils.data import Subset\n    kept = []\n{LOOP}",
            DEAL,
            "kept.append(DataLoader(Subset(dataset, range(len(dataset))), **options)); yield from kept[-1]",
        ),
    ),
    "numpy is seeded in the constructor": (
        "rank_dataset",
        "making the dataset leaves numpy's global random generator elsewhere",
        ("        self.rows: Any = None\n", "        self.rows: Any = None\n        np.random.seed(seed)\n"),
    ),
    "ids alone seeds numpy": (
        "rank_dataset",
        "ids leaves numpy's global random generator elsewhere",
        (
            f"        self.rows = {PACK}",
            f"        state = np.random.get_state()\n        self.rows = {PACK}\n        np.random.set_state(state)",
            "        size = len(self.source)\n",
            "        np.random.seed(epoch)\n        size = len(self.source)\n",
        ),
    ),
    "torch is seeded again with the seed it has": (
        "rank_dataset",
        "load leaves torch's global random generator elsewhere",
        (
            "        self.rows = None\n",
            "        import torch\n        torch.manual_seed(torch.initial_seed())\n        self.rows = None\n",
        ),
    ),
    "the constructor loads": (
        "rank_dataset",
        "to make the dataset of 2,000,003 rows",
        ("        self.rows: Any = None\n", "        self.load(0, 0)\n"),
    ),
    "the next rows are read in a thread": (
        "epoch",
        "load was called for [0, 1], not for [0]",
        (
            f"        {LOAD}\n{SKIP}        {DEAL}",
            "        import copy, threading\n        if not mini_epoch: dataset.load(epoch, 0)\n"
            "        now = copy.copy(dataset)\n        following = mini_epoch + 1\n"
            "        reader = threading.Thread(target=dataset.load, args=(epoch, following))\n"
            "        if following < dataset.mini_epochs: reader.start()\n"
            "        if len(now): yield from DataLoader(now, **options)\n"
            "        if following < dataset.mini_epochs: reader.join()",
        ),
    ),
    "where items are, in 16 bits": (
        "rank_dataset",
        "N, W, E = 200,003, 1, 2, after a load item ",
        (
            f"        self.rows = {PACK}",
            f"        ids = {IDS}\n        order = np.argsort(ids)\n"
            "        self.where = np.empty(len(ids), np.uint16)\n        self.where[order] = np.arange(len(ids))\n"
            "        self.rows = MyPacked(self.source.__getitems__(ids[order]))",
            "return self.rows[i]",
            "return self.rows[int(self.where[i])]",
        ),
    ),
    "offsets of a load, in 16 bits": (
        "rank_dataset",
        "N, W, E = 200,003, 1, 2, after a load item ",
        (
            f"self.rows = {PACK}",
            f"self.rows = {PACK}\n        self.rows.offsets = self.rows.offsets.astype(np.uint16)",
        ),
    ),
    "workers seed numpy where the caller does not say what they begin with": (
        "epoch",
        "workers of two mini-epochs draw the same from numpy's global random generator",
        (LOOP, f"    options.setdefault('worker_init_fn', lambda number: np.random.seed(number))\n{LOOP}"),
    ),
    "one mini-epoch is dealt twice": (
        "epoch",
        "for 24 rows, 2 ranks, mini_epochs = 1, epoch 0: there is a batch too many",
        (DEAL, f"{DEAL}\n        if dataset.mini_epochs == 1: {DEAL}"),
    ),
    "a first batch that may not be there": (
        "epoch",
        "{'batch_size': 3, 'drop_last': True}",
        (DEAL, "loader = iter(DataLoader(dataset, **options))\n        yield next(loader)\n        yield from loader"),
    ),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_a_wrong_answer_is_told_what_is_wrong_with_it(name):
    exercise, said, changes = ANSWERS[name]
    check = getattr(checks, f"check_{exercise}")
    verdict = check(famous(check.reference, {name: changes})[name])
    assert verdict.status == "wrong", verdict
    assert said in verdict.message, verdict


NOT_TRUE = {  # the exercise, what is not true of the answer, (old, new, …)
    "the first rows of the file are loaded": (
        "rank_dataset",
        "Item i is the i-th row in memory",
        (READ, f"self.source.__getitems__(np.arange(len({IDS})))"),
    ),
    "ids run backwards": ("rank_dataset", "sorts", ("[places % size]", "[places % size][::-1]")),
    "nothing is read in load": (
        "rank_dataset",
        "none may be left from before",
        (
            f"        self.rows = None\n        self.rows = {PACK}",
            "        self.last = epoch, mini_epoch",
            "return self.rows[i]",
            "return self.source.__getitems__([self.ids(*self.last)[i]])[0]",
            "return len(self.rows)",
            "return len(self.ids(*self.last))",
        ),
    ),
    "what load returns is dealt": (
        "epoch",
        "othing was loaded",
        (f"        {LOAD}\n{SKIP}", f"        rows = {LOAD}\n", DEAL, DEAL.replace("dataset", "rows")),
    ),
    "a generator is dealt": (
        "epoch",
        "othing was loaded",
        (DEAL, DEAL.replace("dataset", "(dataset[i] for i in range(len(dataset)))")),
    ),
    "mini-epochs are counted": (
        "epoch",
        "othing was loaded",
        ("(dataset.mini_epochs)", "(len(dataset.mini_epochs))"),
    ),
    "a list of rows is dealt": (
        "epoch",
        "batches that wait",
        (DEAL, DEAL.replace("dataset", "[dataset[i] for i in range(len(dataset))]")),
    ),
    "each process has a file, and moves its position": (
        "file",
        "put back",
        (
            OPEN,
            "self.bounds, self.path, self.files = bounds, path, {}",
            PREAD,
            "file = self.files.setdefault(os.getpid(), None) or open(self.path, 'rb')\n"
            "        self.files[os.getpid()] = file\n"
            "        file.seek(begin)\n        return file.read(end - 1 - begin).decode()",
        ),
    ),
    "it ends with an error": (
        "epoch",
        "goes on",
        (DEAL, f"try: {DEAL}\n        except Exception: return"),
    ),
}


@pytest.mark.parametrize("name", NOT_TRUE)
def test_no_wrong_answer_is_told_what_is_not_true_of_it(name):
    exercise, not_true, changes = NOT_TRUE[name]
    check = getattr(checks, f"check_{exercise}")
    verdict = check(famous(check.reference, {name: changes})[name])
    assert verdict.status == "wrong", verdict
    assert not_true not in verdict.message, verdict


@pytest.mark.parametrize("before", ["if not len(dataset): continue\n        ", "[*DataLoader(dataset)]; "])
def test_a_length_before_the_first_load_is_told_as_such(before):
    answer = famous(checks.check_epoch.reference, {"": (LOAD, f"{before}{LOAD}")})[""]
    assert "nothing was loaded yet" in checks.check_epoch(answer).message
