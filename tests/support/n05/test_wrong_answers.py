"""Wrong answers to the exercises of notebook 05 that a reader found accepted, or told a sentence untrue of them."""

import pytest

from support.kit.mistakes import famous
from support.n05 import checks, trials

INIT = "self.bounds, self.file = bounds, os.open(path, os.O_RDONLY)"
PREAD = "return os.pread(self.file, end - 1 - begin, begin).decode()"
READ = "text = os.read({0}, end - 1 - begin); os.lseek({0}, old, 0); return text.decode()"
AS_TEXT = ("while text := file.read(block):", "for text in iter(lambda: file.read(block), ''):")
ANSWERS = {  # the exercise, what is said, (old, new, …)
    "the caller's rows are cleared": (
        "packed",
        "the caller's list was changed: it had 5 rows, now it is []",
        ("        self.data =", "        rows.clear()\n        self.data ="),
    ),
    "the arrays are the class's": (
        "packed",
        "after other rows were packed, too",
        ("self.data =", "type(self).data =", "self.offsets =", "type(self).offsets ="),
    ),
    "all offsets for one row": (
        "packed",
        "take its two offsets and its own bytes only",
        ("self.offsets[i] : self.offsets[i + 1]", "slice(*self.offsets.tolist()[i : i + 2])"),
    ),
    "bytes in 64 bits": ("packed", "the type int64, not uint8", ("np.uint8)", "np.uint8).astype(np.int64)")),
    "no bytes, in floats": (
        "packed",
        "of no rows, self.data has the type float64, not uint8",
        ('b"".join(encoded), np.uint8)', 'b"".join(encoded), np.uint8) if rows else np.array([])'),
    ),
    "lengths in a third array": (
        "packed",
        "15.0 bytes are kept for each row, text and offset need 11",
        (
            "        self.offsets =",
            "        self.lengths = np.array([*map(len, encoded)], np.int32)\n        self.offsets =",
        ),
    ),
    "a column of bounds": ("index", "has the shape (6, 1), not (6,)", ("np.flatnonzero", "np.argwhere")),
    "much for one row, and batches as they should be": (
        "file",
        "for row 17, which has 27 bytes, you read 65563: the bounds say how many.",
        (
            PREAD,
            "return os.pread(self.file, 65_536 + end - 1 - begin, begin)[: end - 1 - begin].decode()\n\n"
            "    def one(self, index):\n"
            "        begin, end = int(self.bounds[index]), int(self.bounds[index + 1])\n        " + PREAD,
            "self[index] for index in sorted",
            "self.one(index) for index in sorted",
        ),
    ),
    "the bytes of a few rows are kept": (
        "file",
        "row 17, asked for a second time, is not read again",
        (
            "    def __getitem__",
            "    import functools\n\n    @functools.lru_cache\n    def kept(self, begin, size):\n"
            "        return os.pread(self.file, size, begin)\n\n    def __getitem__",
            PREAD,
            "return self.kept(begin, end - 1 - begin).decode()",
        ),
    ),
    "lengths are kept with the first row": (
        "file",
        "24 kB are held: keep `bounds` as it is",
        (PREAD, "self.sizes = np.diff(self.bounds) if index == 0 else self.sizes\n        " + PREAD),
    ),
    "all lengths for a batch": (
        "file",
        "are in memory at a time: take their bounds and their own bytes only",
        ("        rows = {", "        sizes = np.diff(self.bounds)\n        rows = {"),
    ),
    "no rows, in floats": (
        "packed",
        "of no rows, self.offsets has the type float64",
        ("np.cumsum([0] + [len(row) for row in encoded])", "np.append([0], np.cumsum([len(row) for row in encoded]))"),
    ),
    "rows without their spaces": ("packed", "a row with spaces", ("row.encode()", "row.strip().encode()")),
    "bytes with a sign": ("packed", "the type int8, not uint8", ("np.uint8)", "np.int8)")),
    "the text before a row, too": (
        "packed",
        "take its two offsets and its own bytes only",
        (
            "self.data[self.offsets[i] : self.offsets[i + 1]].tobytes()",
            "self.data[: self.offsets[i + 1]].tobytes()[self.offsets[i] :]",
        ),
    ),
    "some rows are kept": (
        "packed",
        "a string that is kept somewhere",
        ("    def __getitem__", "    import functools\n\n    @functools.lru_cache(64)\n    def __getitem__"),
    ),
    "a copy has a position of its own": (
        "file",
        "moves the position of an open file",
        (
            PREAD,
            "copy = os.dup(self.file); old = os.lseek(copy, 0, 1); os.lseek(copy, begin, 0); " + READ.format("copy"),
        ),
    ),
    "the position is put back": (
        "file",
        "moves the position of an open file",
        (PREAD, "old = os.lseek(self.file, 0, 1); os.lseek(self.file, begin, 0); " + READ.format("self.file")),
    ),
    "rows kept for all datasets": (
        "file",
        "is kept somewhere",
        (
            "    def __getitem__",
            "    CACHE = {}\n\n    def __getitem__",
            PREAD,
            "return self.CACHE.setdefault((self.path, index), os.pread(self.file, end - 1 - begin, begin).decode())",
            INIT,
            "self.path = path; " + INIT,
        ),
    ),
    "opened for each row, beside a file that is kept": (
        "file",
        "opened again where a row is read",
        (
            INIT,
            "self.path = path; " + INIT,
            PREAD,
            "with open(self.path, 'rb') as file: return os.pread(file.fileno(), end - 1 - begin, begin).decode()",
        ),
    ),
    "opened for each batch": (
        "file",
        "opened again for each batch",
        (
            INIT,
            "self.path = path; " + INIT,
            "        rows = {",
            "        os.close(self.file); self.file = os.open(self.path, os.O_RDONLY)\n        rows = {",
        ),
    ),
    "one file for all datasets": (
        "file",
        "while another file is open, too",
        (INIT, "self.bounds = bounds; type(self).file = os.open(path, os.O_RDONLY)"),
    ),
    "no rows have no first": (
        "file",
        "min() ",
        ("        rows = {", "        low = min(indices)\n        rows = {"),
    ),
    "the caller's array is sorted": (
        "file",
        "the array of indices is [0, 3, 3], and it belongs to the caller",
        (
            "        rows = {",
            "        asked = list(indices)\n        if hasattr(indices, 'sort') and not isinstance(indices, list):\n"
            "            indices.sort()\n        rows = {",
            "for index in indices]",
            "for index in asked]",
        ),
    ),
    "two pages more": (
        "file",
        "for row 17, which has 27 bytes, you read 8219: the bounds say how many.",
        (PREAD, "return os.pread(self.file, end - 1 - begin + 8192, begin)[: end - 1 - begin].decode()"),
    ),
    "the bounds as a list, each time": (
        "file",
        "take its two bounds and its own bytes only",
        (
            "begin, end = int(self.bounds[index]), int(self.bounds[index + 1])",
            "begin, end = self.bounds.tolist()[index : index + 2]",
        ),
    ),
    "the first row is dropped where it is empty": (
        "packed",
        "self.offsets",
        ("row.encode() for row in rows]", "row.encode() for row in (rows[1:] if rows and not rows[0] else rows)]"),
    ),
    "joined by r_ with every block": (
        "index",
        "copied anew with every block",
        (
            "bounds, place = [], 0",
            "bounds, place = np.zeros(0, np.int64), 0",
            "bounds.append(place + newlines + 1)",
            "bounds = np.r_[bounds, place + newlines + 1]",
            "np.concatenate(bounds)",
            "bounds",
        ),
    ),
    "bytes added to bytes with every block": (
        "index",
        "copied anew with every block",
        (
            "bounds, place = [], 0",
            "bounds, place = b'', 0",
            "bounds.append(place + newlines + 1)",
            "bounds = bounds + (place + newlines + 1).tobytes()",
            "np.concatenate(bounds)",
            "np.frombuffer(bounds, np.int64)",
        ),
    ),
    "an array added to an array with every block": (
        "index",
        "copied anew with every block",
        (
            "bounds, place = [], 0",
            "import array; bounds, place = array.array('q'), 0",
            "bounds.append(place + newlines + 1)",
            "bounds = bounds + array.array('q', (place + newlines + 1).tolist())",
            "np.concatenate(bounds)",
            "np.array(bounds)",
        ),
    ),
    "a block of its own choice": (
        "index",
        "one of your reads brings up to 65,536 bytes",
        ("file.read(block)", "file.read(1 << 16)"),
    ),
    "at least a page": (
        "index",
        "one of your reads brings up to 4,096 bytes",
        ("file.read(block)", "file.read(max(block, 4096))"),
    ),
    "a kilobyte at most": ("index", "you read 905 pieces", ("file.read(block)", "file.read(min(block, 1_000))")),
    "four kilobytes at most": (
        "index",
        "blocks of 1048576 bytes, of which it has 1, you read",
        ("file.read(block)", "file.read(min(block, 4_096))"),
    ),
    "no block by default": (
        "index",
        "rows, read without saying how large a block is",
        ("block: int = 1 << 20", "block: int = 0"),
    ),
    "the epoch before says whether there are rows": (
        "epoch",
        "with shuffle=True the rows of an epoch",
        ("    for", "    before = dataset.rows and len(dataset)\n    for", "if not len", "if not before and not len"),
    ),
    "rows from a map, of which a cold one brings whole neighbourhoods": (
        "file",
        "no read was seen: read by os.pread.",
        (
            INIT,
            "import mmap; " + INIT + "; self.text = mmap.mmap(self.file, 0, prot=mmap.PROT_READ)",
            PREAD,
            "return self.text[begin : end - 1].decode()",
        ),
    ),
    "rows from a map of numpy's": (
        "file",
        "no read was seen: read by os.pread.",
        (
            INIT,
            INIT + "; self.text = np.memmap(path, np.uint8, 'r')",
            PREAD,
            "return self.text[begin : end - 1].tobytes().decode()",
        ),
    ),
    "a file object whose position is put back": (
        "file",
        "moves the position of an open file",
        (
            "os.open(path, os.O_RDONLY)",
            "open(path, 'rb', buffering=0)",
            PREAD,
            "self.file.seek(begin); text = self.file.read(end - 1 - begin); self.file.seek(0); return text.decode()",
        ),
    ),
    "the bounds of the class": (
        "file",
        "while another file is open, too, of 5 rows, len(dataset) should be 5, it is 2",
        ("self.bounds, self.file = bounds,", "type(self).bounds, self.file = bounds,"),
    ),
    "the bounds of the first file": (
        "file",
        "opened as the second file, of 2 rows",
        (
            "self.bounds, self.file = bounds,",
            "vars(type(self)).get('bounds') is None and setattr(type(self), 'bounds', bounds); self.file =",
        ),
    ),
    "places in 32 bits": (
        "file",
        "for a file of 6.4 GB, of which most is empty",
        (
            "int(self.bounds[index]), int(self.bounds[index + 1])",
            "(int(np.int64(self.bounds[i]).astype(np.uint32)) for i in (index, index + 1))",
        ),
    ),
    "the first of its lines, as str sees them": (
        "file",
        "should be",
        ("return os.pread", "text = os.pread", ".decode()", ".decode(); return (text.splitlines() or [text])[0]"),
    ),
    "rows without the spaces at their ends": ("file", "should be", (".decode()", ".decode().rstrip()")),
    "rows without what ends a line elsewhere": ("file", "\\r", (".decode()", ".decode().rstrip('\\r\\n')")),
    "a line ends with a return, too": (
        "index",
        "the index of a file of 2 rows",
        (
            'np.frombuffer(text, np.uint8) == ord("\\n")',
            "np.isin(np.frombuffer(text, np.uint8), [10, 13])",
        ),
    ),
    "rows gathered where every thread gathers": (
        "file",
        "while another thread reads",
        (
            "rows = {index: self[index] for index in sorted(set(indices))}",
            "self.rows = {}\n        for index in sorted(set(indices)): self.rows[index] = self[index]",
            "return [rows[index] for index in indices]",
            "got = [self.rows[index] for index in indices]; self.rows = {}\n        return got",
        ),
    ),
    "a row's begin where every thread keeps it": (
        "file",
        "while another thread reads",
        (
            "begin, end = int(self.bounds[index]), int(self.bounds[index + 1])",
            "self.begin = int(self.bounds[index])\n        end = int(self.bounds[index + 1])",
            "end - 1 - begin, begin",
            "end - 1 - self.begin, self.begin",
        ),
    ),
    "an empty array of floats to begin with": (
        "index",
        "the index has the type float64, not one of integers of 64 bits",
        ("bounds, place = [], 0", "bounds, place = [np.array([])], 0"),
    ),
    "blocks of letters": (
        "index",
        "bytes",
        (
            'open(path, "rb")',
            'open(path, encoding="utf-8", newline="")',
            "np.frombuffer(text, np.uint8)",
            "np.frombuffer(text.encode(), np.uint8)",
            "place += len(text)",
            "place += len(text.encode())",
        ),
    ),
    "rows without the zeros at their ends": (
        "packed",
        "packed[",
        (".tobytes().decode()", ".tobytes().rstrip(b'\\0').decode()"),
    ),
    "rows without a mark at their begin": (
        "packed",
        "packed[",
        (".tobytes().decode()", ".tobytes().decode('utf-8-sig')"),
    ),
    "letters put together with their accents": (
        "packed",
        "self.offsets",
        ("row.encode() for", "__import__('unicodedata').normalize('NFC', row).encode() for"),
    ),
    "an end that is awaited as text": ("index", "you read on and on", AS_TEXT),
    "the lengths of rows in 16 bits": (
        "file",
        "of a row of 70,000 letters 4,4",
        (
            INIT,
            INIT + "; self.sizes = np.diff(bounds).astype(np.uint16)",
            "end - 1 - begin",
            "int(self.sizes[index]) - 1",
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


def test_rows_that_an_answer_clears_are_there_for_the_next_one():
    test_a_wrong_answer_is_told_what_is_wrong_with_it("the caller's rows are cleared")
    assert len(trials.ROWS) == 5
    assert checks.check_packed(checks.check_packed.reference)
