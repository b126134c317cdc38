"""Wrong answers to exercises 1 and 2 whose places wrap beyond 32 bits, or which read by numpy, and right ones."""

import pytest

from support.kit.mistakes import famous
from support.n05 import checks

BY_NUMBER = (
    'with open(path, "rb") as file:',
    "with open(path, 'rb', buffering=0) as opened:\n        file = opened.fileno()",
)
NARROW = (
    "place + newlines + 1",
    "(place + newlines + 1).astype(np.int32)",
    "np.concatenate(bounds)",
    "np.concatenate(bounds).astype(np.int64)",
)
PACK = 'self.data = np.frombuffer(b"".join(encoded), np.uint8)\n        '
OFFSETS = "self.offsets = np.cumsum([0] + [len(row) for row in encoded])"
ROOM = "self.data = np.empty(self.offsets[-1], np.uint8)"
COPY = (
    "for number, row in enumerate(encoded): "
    "self.data[self.offsets[number] : self.offsets[number + 1]] = np.frombuffer(row, np.uint8)"
)
SHORT = OFFSETS.replace("encoded])", "encoded], dtype=np.int32).astype(np.int64)")
LENGTHS = "np.array([0] + [len(row) for row in encoded], np.int32)"
OF_SHORT_LENGTHS = f"self.offsets = np.cumsum({LENGTHS}, dtype=np.int64)"
OPEN = 'open(path, "rb")'
READ = "text := file.read(block)"
LOAD = "len(text := np.fromfile(file, np.uint8, block))"
OF_NUMPY = "np.frombuffer(text, np.uint8)"
ANSWERS = {  # the exercise, what is said, (old, new, …)
    "places of os.read in 32 bits": (
        "index",
        "it went through a number that is too small",
        (*BY_NUMBER, "file.read(block)", "os.read(file, block)", *NARROW),
    ),
    "the header has as many bytes as ours": (
        "index",
        "of a file of 2 rows with the header '#', read in blocks of 3 bytes, should be [2, 5, 7], it is [16, 5, 7]",
        ("return np.concatenate(bounds)", "bounds[0][:1] = 16\n    return np.concatenate(bounds)"),
    ),
    "places of os.pread in 32 bits": (
        "index",
        "it went through a number that is too small",
        (*BY_NUMBER, "file.read(block)", "os.pread(file, block, place)", *NARROW),
    ),
    "lengths added up in 32 bits": (
        "packed",
        "it went through a number that is too small",
        ("for row in encoded])", "for row in encoded], dtype=np.int32).astype(np.int64)"),
    ),
    "lengths added up in 32 bits without a sign": (
        "packed",
        "it went through a number that is too small",
        ("for row in encoded])", "for row in encoded], dtype=np.uint32).astype(np.int64)"),
    ),
    "lengths added up as short floats": (
        "packed",
        "it went through a number that is too small",
        ("for row in encoded])", "for row in encoded], dtype=np.float32).astype(np.int64)"),
    ),
    "places wrap at 2**32": (
        "index",
        "it went through a number that is too small",
        ("place += len(text)", "place = (place + len(text)) % 2**32"),
    ),
    "places wrap at 2**31": (
        "index",
        "it went through a number that is too small",
        ("bounds.append(place + newlines + 1)", "bounds.append((np.int64(place).astype(np.int32) + newlines + 1))"),
    ),
    "places through a short float": (
        "index",
        "it went through a number that is too small",
        (
            "bounds.append(place + newlines + 1)",
            "bounds.append((np.float32(place) + newlines.astype(np.float32) + 1).astype(np.int64))",
        ),
    ),
    "lengths added up in 32 bits, and room made first": (
        "packed",
        "it went through a number that is too small",
        (PACK, "", OFFSETS, f"{SHORT}; {ROOM}\n        {COPY}"),
    ),
    "room made first, and each row written by its own length": (
        "packed",
        "it went through a number that is too small",
        (
            PACK,
            "",
            OFFSETS,
            f"{SHORT}; {ROOM}\n        {COPY}".replace(
                "self.offsets[number] : self.offsets[number + 1]", "self.offsets[number] + np.arange(len(row))"
            ),
        ),
    ),
    "room made first, and offsets an attribute at the end": (
        "packed",
        "it went through a number that is too small",
        (
            PACK,
            "",
            OFFSETS,
            f"{SHORT}; {ROOM}\n        {COPY}".replace("self.offsets", "offsets") + "\n        self.offsets = offsets",
        ),
    ),
    "lengths and their sums in 32 bits, and room made first": (
        "packed",
        "it went through a number that is too small",
        (
            PACK,
            "",
            OFFSETS,
            f"{SHORT}; {ROOM}\n        {COPY}".replace("[0] + [len(row) for row in encoded], ", f"{LENGTHS}, "),
        ),
    ),
    "ends alone, without a sign, as a list": (
        "packed",
        "it went through a number that is too small",
        (
            PACK,
            "",
            OFFSETS,
            "ends = np.cumsum([len(row) for row in encoded], dtype=np.uint32).tolist()\n"
            "        self.data = np.empty(ends[-1] if ends else 0, np.uint8)\n"
            "        for end, row in zip(ends, encoded):\n"
            "            self.data[end - len(row) : end] = np.frombuffer(row, np.uint8)\n"
            "        self.offsets = np.array([0, *ends])",
        ),
    ),
    "numpy reads as much as it likes": (
        "index",
        "one of your reads brings up to 8,192 bytes",
        (READ, LOAD.replace("block", "8192"), OF_NUMPY, "text"),
    ),
    "numpy reads as much as it likes, by the file's name": (
        "index",
        "one of your reads brings up to 8,192 bytes",
        (READ, "len(text := np.fromfile(path, 'u1', 8192, offset=place))", OF_NUMPY, "text"),
    ),
    "numpy reads numbers of eight bytes": (
        "index",
        "one of your reads brings up to",
        (
            READ,
            "len(text := np.fromfile(path, 'i8', block, '', place).view('u1')) "
            "or len(text := np.fromfile(path, 'u1', block, '', place))",
            OF_NUMPY,
            "text",
        ),
    ),
    "numpy reads all that is left": (
        "index",
        "you read all that is left of it at once",
        (READ, LOAD.replace(", block", ""), OF_NUMPY, "text"),
    ),
    "numpy reads on at the end": (
        "index",
        "you read on and on",
        (READ, LOAD.replace("len(", "(").removesuffix(")") + ") is not None", OF_NUMPY, "text"),
    ),
    "a buffer of numbers of eight bytes": (
        "index",
        "one of your reads brings up to",
        (
            OPEN,
            'open(path, "rb", buffering=0)',
            READ,
            "count := file.readinto(text := np.empty(block, np.int64))",
            OF_NUMPY,
            "text.view(np.uint8)[:count]",
            "len(text)",
            "count",
        ),
    ),
    "places of numpy's reads in 32 bits": (
        "index",
        "it went through a number that is too small",
        (READ, LOAD, OF_NUMPY, "text", *NARROW),
    ),
    "sizes of numpy's reads in 32 bits": (
        "index",
        "it went through a number that is too small",
        (
            READ,
            "(text := np.fromfile(path, np.uint8, block, offset=place)).size",
            OF_NUMPY,
            "text",
            "len(text)",
            "text.nbytes",
            *NARROW,
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


RIGHT = {  # the exercise, (old, new, …)
    "a file with a large buffer, as some file systems give it": (
        "file",
        (
            "os.open(path, os.O_RDONLY)",
            "open(path, 'rb', buffering=1 << 17)",
            "os.pread(self.file",
            "os.pread(self.file.fileno()",
        ),
    ),
    "room made first": ("packed", (PACK, "", OFFSETS, f"{OFFSETS}; {ROOM}\n        {COPY}")),
    "room as text, and offsets row by row": (
        "packed",
        (
            PACK,
            'self.data = np.empty(len("".join(rows).encode()), np.uint8)\n        ',
            OFFSETS,
            "self.offsets = np.zeros(len(rows) + 1, np.int64)\n        for number, row in enumerate(encoded):\n"
            "            self.offsets[number + 1] = self.offsets[number] + len(row)\n"
            "            self.data[self.offsets[number] : self.offsets[number + 1]] = np.frombuffer(row, np.uint8)",
        ),
    ),
    "lengths where offsets will be, and room by their sum": (
        "packed",
        (
            PACK,
            "",
            OFFSETS,
            "self.offsets = np.array([0] + [len(row) for row in encoded])\n"
            "        self.data = np.empty(self.offsets.sum(), np.uint8)\n"
            f"        np.cumsum(self.offsets, out=self.offsets)\n        {COPY}",
        ),
    ),
    "lengths in 32 bits, offsets in 64": (
        "packed",
        (OFFSETS, OF_SHORT_LENGTHS),
    ),
    "lengths in 32 bits, and room made first": (
        "packed",
        (
            PACK,
            "",
            OFFSETS,
            f"{OF_SHORT_LENGTHS}; {ROOM}\n        {COPY}",
        ),
    ),
    "room that doubles, and is joined": (
        "index",
        (
            "bounds, place = [], 0",
            "bounds, count, place = np.empty(16, np.int64), 0, 0",
            "bounds.append(place + newlines + 1)",
            "while count + len(newlines) > len(bounds):\n"
            "                bounds = np.concatenate([bounds, np.empty(len(bounds), np.int64)])\n"
            "            bounds[count : count + len(newlines)] = place + newlines + 1\n"
            "            count += len(newlines)",
            "np.concatenate(bounds)",
            "bounds[:count].copy()",
        ),
    ),
    "numpy reads blocks": ("index", (READ, LOAD, OF_NUMPY, "text")),
    "numpy reads blocks, of which only sizes are asked": (
        "index",
        (
            READ,
            "(text := np.fromfile(file, dtype='B', count=block)).size",
            OF_NUMPY,
            "text",
            "len(text)",
            "text.size",
        ),
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_answer_is_accepted(name):
    exercise, changes = RIGHT[name]
    check = getattr(checks, f"check_{exercise}")
    verdict = check(famous(check.reference, {name: changes})[name])
    assert verdict, verdict
