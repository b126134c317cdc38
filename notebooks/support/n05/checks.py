"""Exercises of notebook 05, 400 million rows; predictions stand in guesses.py, what answers do in trials.py."""

from __future__ import annotations

from support.kit.exercise import Exercise
from support.kit.judged import judged
from support.kit.mistakes import famous
from support.n05.guesses import guess_cold_hours as guess_cold_hours
from support.n05.guesses import guess_copied_percent as guess_copied_percent
from support.n05.guesses import guess_crops as guess_crops
from support.n05.guesses import guess_list_megabytes as guess_list_megabytes
from support.n05.guesses import guess_peak_megabytes as guess_peak_megabytes
from support.n05.guesses import guess_received as guess_received
from support.n05.guesses import guess_saved_hours as guess_saved_hours
from support.n05.solved import (
    MyFileDataset,
    MyPacked,
    MyRankDataset,
    MyServerDataset,
    epoch_batches,
    index_of,
)
from support.n05.trials import SHORT, fault_of_packed
from support.n05.trials_client import fault_of_client
from support.n05.trials_epoch import fault_of_epoch
from support.n05.trials_file import fault_of_file
from support.n05.trials_index import fault_of_index
from support.n05.trials_rank import fault_of_rank

check_packed = Exercise(
    "MyPacked",
    reference=MyPacked,
    methods=("__init__", "__len__", "__getitem__"),
    judge=judged(
        fault_of_packed, f"all rows come back; of {len(SHORT)} each takes text and offset, measured."
    ),
    mistakes=famous(
        MyPacked,
        {
            "An offset in a list is a Python object again, whose page is copied when it is read.": (
                "np.cumsum([0] + [len(row) for row in encoded])",
                "np.cumsum([0, *map(len, encoded)]).tolist()",
            ),
            "Count bytes, not letters: an Ä takes two bytes.": (
                "len(row) for row in encoded",
                "len(row) for row in rows",
            ),
            "N rows have N + 1 bounds, and the first is 0.": (
                "[0] + [len",
                "[len",
                "len(self.offsets) - 1",
                "len(self.offsets)",
                "self.offsets[i] : self.offsets[i + 1]",
                "self.offsets[i - 1] if i else 0 : self.offsets[i]",
            ),
            "The real file's text is longer than 32 bits can count.": (
                "for row in encoded])",
                "for row in encoded]).astype(np.int32)",
            ),
            "A row is a str: decode its bytes.": (".tobytes().decode()", ".tobytes()"),
        },
    ),
)
"""Exercise 1: rows as two arrays, tried for what they keep."""

check_index = Exercise(
    "index_of",
    reference=index_of,
    judge=judged(
        fault_of_index,
        "every bound is right, also across blocks, and only a few blocks of text were in memory.",
    ),
    mistakes=famous(
        index_of,
        {
            "The header became row 0: row 0 begins after the first newline.": (
                "place = [], 0",
                "place = [[0]], 0",
            ),
            "That is the newline itself; the next row begins one byte later.": ("newlines + 1", "newlines"),
            "Places count from the start of each block: add the bytes before it.": (
                "place + newlines",
                "newlines",
            ),
            "The end of the last row is missing: N rows have N + 1 bounds.": ("(bounds)", "(bounds)[:-1]"),
            "The whole text was read at once: read it in blocks.": ("file.read(block)", "file.read()"),
            "Collect the arrays of the blocks in a list, and join them once, at the end.": (
                "bounds.append(place + newlines + 1)",
                "bounds = np.append(bounds, place + newlines + 1)",
                "np.concatenate(bounds)",
                "np.array(bounds, np.int64)",
            ),
            "A line is read whole, however long it is: read blocks.": (
                "while text := file.read(block):",
                "for text in file:",
            ),
            'Letters are not bytes: open the file with "rb".': (
                'open(path, "rb")',
                'open(path, encoding="utf-8")',
                'np.frombuffer(text, np.uint8) == ord("\\n")',
                'np.array(list(text)) == "\\n"',
            ),
        },
    ),
)
"""Exercise 2: the bounds of a file, read in blocks."""

check_file = Exercise(
    "MyFileDataset",
    reference=MyFileDataset,
    methods=("__init__", "__len__", "__getitem__", "__getitems__"),
    judge=judged(
        fault_of_file,
        "every row, each batch in the order asked for; opened once, nothing held, at most a page read around a row.",
    ),
    mistakes=famous(
        MyFileDataset,
        {
            "Forked workers share that position, and move it while another one reads: os.pread needs none.": (
                "os.open(path, os.O_RDONLY)",
                "open(path, 'rb', buffering=0)",
                "return os.pread(self.file, end - 1 - begin, begin)",
                "self.file.seek(begin); return self.file.read(end - 1 - begin)",
            ),
            "The rows between them belong to other batches.": (
                "rows = {index: self[index] for index in sorted(set(indices))}",
                "low, high = int(self.bounds[min(indices)]), int(self.bounds[max(indices) + 1]); "
                "text = os.pread(self.file, high - low, low); "
                "rows = {index: text[self.bounds[index] - low : self.bounds[index + 1] - 1 - low].decode() "
                "for index in indices}",
            ),
            "The newline belongs to the line, not to the row.": ("end - 1 - begin", "end - begin"),
            "Read front to back, so that neighbours are read together: sort first.": (
                "sorted(set(indices))",
                "indices",
            ),
            "A set has no order: sort it.": ("sorted(set(indices))", "set(indices)"),
            "sorted(…) makes a list of its own; .sort() changes that of the caller.": (
                "        rows = {index: self[index] for index in sorted(set(indices))}",
                "        asked = list(indices)\n        indices.sort()\n"
                "        rows = {index: self[index] for index in indices}",
                "for index in indices]",
                "for index in asked]",
            ),
            "Read as many bytes as the row has: the bounds say how many.": (
                "return os.pread(self.file, end - 1 - begin, begin).decode()",
                "return os.pread(self.file, 4096, begin).split(b'\\n')[0].decode()",
            ),
            "A row that is asked for twice is read twice: use set(indices).": (
                "sorted(set(indices))",
                "sorted(indices)",
            ),
            "The loader wants the rows in the order in which it asked.": (
                "for index in indices]",
                "for index in rows]",
            ),
        },
    ),
)
"""Exercise 3: rows straight from the file, for forked workers, too."""

check_client = Exercise(
    "MyServerDataset",
    reference=MyServerDataset,
    methods=("__init__", "ask", "__len__", "__getitem__", "__getitems__"),
    judge=judged(
        fault_of_client, "right rows, one connection in each process and one request a batch, counted."
    ),
    mistakes=famous(
        MyServerDataset,
        {
            "A new connection for each request: a process connects once, and keeps it.": (
                "self.owner != os.getpid()",
                "True",
            ),
            "Two processes on one connection take each other's answers: connect anew where os.getpid() is another.": (
                "self.owner != os.getpid()",
                "not self.owner",
            ),
            "That is the server's complaint, and a loader would train on it.": (
                "answer.status != 200",
                "False",
            ),
            "A complaint as well: every status but 200 must raise.": (
                "answer.status != 200",
                "answer.status == 404",
            ),
            "Rows between those of the batch are not wanted.": (
                'return self.ask("POST", "/rows", json.dumps([int(index) for index in indices]))',
                'low = min(indices); rows = self.ask("POST", "/rows", json.dumps([*range(low, max(indices) + 1)])); '
                "return [rows[index - low] for index in indices]",
            ),
            "The answer was not read to its end, and what is left of it is in the way.": (
                "value = json.loads(answer.read())",
                "",
                'value["message"]',
                "path",
                "return value",
                "return json.loads(answer.read())",
            ),
            "The answer is JSON: read it with json.loads.": (
                "json.loads(answer.read())",
                "answer.read().decode()",
            ),
        },
    ),
)
"""Exercise 6: rows from a server that counts connections and requests."""

check_rank_dataset = Exercise(
    "MyRankDataset",
    reference=MyRankDataset,
    methods=("ids", "load", "__len__", "__getitem__"),
    judge=judged(
        fault_of_rank, "lib's rows in all cases, packed, one sweep a mini-epoch, and old rows go first."
    ),
    mistakes=famous(
        MyRankDataset,
        {
            "A contiguous piece: deal in turns, so that what all ranks used is the head of the order.": (
                "self.rank + self.world_size * np",
                "self.rank * turns + np",
            ),
            "The epoch is not in the order: every epoch deals the same rows.": ("epoch=epoch)", "epoch=0)"),
            "The seed is not in the order: whoever chooses another one gets the same.": (
                "seed=self.seed,",
                "seed=0,",
            ),
            "The last ranks get a row less: the head of the order is dealt again, so that all are equal.": (
                "-(-size // self.world_size)",
                "len(range(self.rank, size, self.world_size))",
            ),
            "The tail of the order is left to nobody.": (
                "-(-size // self.world_size)",
                "size // self.world_size",
            ),
            "turns // E for each mini-epoch loses the turns that are left over.": (
                "turns * mini_epoch // self.mini_epochs",
                "turns // self.mini_epochs * mini_epoch",
                "turns * (mini_epoch + 1) // self.mini_epochs",
                "begin + turns // self.mini_epochs",
            ),
            "Mini-epoch k begins with turn T k // E, and yours are cut elsewhere.": (
                "turns * mini_epoch // self.mini_epochs",
                "-(-turns // self.mini_epochs) * mini_epoch",
                "turns * (mini_epoch + 1) // self.mini_epochs",
                "min(turns, begin - (-turns // self.mini_epochs))",
            ),
            "A mini-epoch is one piece of the turns, not every E-th of them.": (
                "np.arange(begin, end)",
                "np.arange(mini_epoch, turns, self.mini_epochs)",
            ),
            "The items come in the order of the epoch.": (
                "return Permutation",
                "return np.sort(Permutation",
                "places % size]",
                "places % size])",
            ),
            "Where the order ends, its head is dealt again, not its last row.": (
                "places % size",
                "np.minimum(places, size - 1)",
            ),
            "Those are places in the order: ask Permutation for the rows at them.": (
                "return Permutation(size, seed=self.seed, epoch=epoch)[places % size]",
                "return places % size",
            ),
            "The epoch is in the seed as well: Permutation gets it as epoch=epoch only.": (
                "seed=self.seed,",
                "seed=self.seed + epoch,",
            ),
            "The rank is in the seed: then each rank shuffles otherwise, and rows are dealt twice or never.": (
                "seed=self.seed,",
                "seed=self.seed + self.rank,",
            ),
            "Let the old rows go before you read the new ones: set all that holds them to None.": (
                "        self.rows = None\n",
                "",
            ),
            "All rows at once: the source cannot read together what it is asked for row by row.": (
                "self.source.__getitems__(self.ids(epoch, mini_epoch))",
                "[self.source[i] for i in self.ids(epoch, mini_epoch)]",
            ),
            "A generator of your own does not disturb anybody: np.random.default_rng(…).": (
                "        self.rows = None\n        self.rows = MyPacked",
                "        np.random.seed(self.seed + epoch)\n        self.rows = None\n        self.rows = MyPacked",
            ),
            "Item i is the i-th row in memory, not row i of the file.": (
                "return self.rows[i]",
                "return self.source[i]",
            ),
        },
    ),
)
"""Exercise 4: the rows of a rank and a mini-epoch, as lib has them."""

check_epoch = Exercise(
    "epoch_batches",
    reference=epoch_batches,
    judge=judged(
        fault_of_epoch,
        "each mini-epoch's rows in their order, also where one is empty or workers persist; one load at a time.",
    ),
    mistakes=famous(
        epoch_batches,
        {
            "The loader's workers began before these rows were loaded, and hold the rows of then.": (
                "    for mini_epoch in",
                "    dataset.load(epoch, 0)\n    loader = DataLoader(dataset, **options)\n    for mini_epoch in",
                "yield from DataLoader(dataset, **options)",
                "yield from loader",
            ),
            "Those are the rows of epoch 0: load gets the epoch, too.": (
                "dataset.load(epoch, mini_epoch)",
                "dataset.load(0, mini_epoch)",
            ),
            "Batch size, workers and what else a DataLoader takes are the caller's: pass the options on.": (
                "DataLoader(dataset, **options)",
                "DataLoader(dataset, batch_size=2)",
            ),
            "The last mini-epoch belongs to the epoch, too.": (
                "range(dataset.mini_epochs)",
                "range(dataset.mini_epochs - 1)",
            ),
            "The loader takes what is in memory when it is iterated: load, then deal, in turn.": (
                "        dataset.load(epoch, mini_epoch)\n        if",
                "        dataset.load(epoch, mini_epoch)\n    for _ in range(dataset.mini_epochs):\n        if",
            ),
            "Hand out the batches of a mini-epoch before you load the next one.": (
                "    for mini_epoch in",
                "    batches = []\n    for mini_epoch in",
                "yield from DataLoader(dataset, **options)",
                "batches += DataLoader(dataset, **options)\n    yield from batches",
            ),
            "What is in memory is this rank's share already: a second deal takes a part of it.": (
                "DataLoader(dataset, **options)",
                "DataLoader(dataset, sampler=range(dataset.rank, len(dataset), dataset.world_size), **options)",
            ),
        },
    ),
)
"""Exercise 5: the batches of a whole epoch, from workers that hold the right rows."""
