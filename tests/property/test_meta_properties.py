"""Whatever the bytes of a meta file, its rows are those that a few lines of plain Python find."""

import os
import tempfile
from pathlib import Path
from unittest import mock

from hypothesis import example, given, settings
from hypothesis import strategies as st

from lib.data import meta, meta_index, meta_text
from lib.data.meta import MetaFile
from lib.data.rank_dataset import NaiveDataset
from tests.lib.refusal import refuses
from tests.sizes import size


def oracle(content: bytes) -> list[str]:
    lines = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    rows = [line.removesuffix(b"\r") for line in lines if not line.startswith(b"#") and line.strip(b" \t\r\v\f")]
    return [row.decode("utf-8", "surrogateescape") for row in rows]


words = [b"\n", b"\r\n", b"\r", b"#", b" ", b"\t", b"\x0b", b"\xef\xbb\xbf", b"\xff", "雪".encode(), b"a", b"row\n"]
pieces = st.sampled_from([*words, b"x" * 90])
contents = st.one_of(st.binary(max_size=200), st.lists(pieces, max_size=300).map(b"".join))
sizes = st.sampled_from([3, 5, 16, 100, 1 << 20])


@given(
    content=contents,
    block=sizes,
    window=sizes,
    far=st.sampled_from([0, 8, 1 << 15]),
    chunk=st.sampled_from([1, 5, 4096]),
    data=st.data(),
)
@example(content=b"\xef\xbb\xbf#", block=3, window=3, far=0, chunk=1, data=None)
@example(content=b"\xef\xbb", block=3, window=3, far=0, chunk=1, data=None)  # half a byte order mark is a row
def test_rows_are_the_lines_that_are_neither_headers_nor_blank(content, block, window, far, chunk, data):
    rows = oracle(content)
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.multiple(meta, CHUNK=chunk, FEW=2),
        mock.patch.multiple(meta_text, BLOCK=block, WINDOW=window, FAR=far, FEW=2),
        mock.patch.object(meta_index, "SWEEP", 2),
    ):
        path = Path(folder) / "meta.txt"
        path.write_bytes(content)
        with MetaFile(path) as file:
            assert len(file) == len(rows)
            assert file.rows(range(len(rows))) == rows == NaiveDataset(file).rows
            if rows and data is not None:
                ids = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=50))
                assert file.rows(ids) == [rows[i] for i in ids] == list(file.packed(ids))


@given(content=contents, keep=st.floats(0, 1, exclude_max=True))
def test_a_shorter_index_is_never_accepted(content, keep):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "meta.txt"
        path.write_bytes(content)
        MetaFile(path).close()
        index = Path(f"{path}.idx")
        os.truncate(index, int(keep * index.stat().st_size))
        refuses(ValueError, "cut short", MetaFile, path)


@settings(max_examples=size(suite=200, prove=2_000))
@given(
    damage=st.dictionaries(st.floats(0, 1, exclude_max=True), st.integers(1, 255), min_size=1, max_size=39),
    width=st.sampled_from([2, 4, 8]),
    sweep=st.sampled_from([1, 8192]),
)
def test_a_damaged_index_gives_the_right_rows_or_an_error_that_names_it(damage, width, sweep):
    rows = [f"row {i} " + "x" * (i % 7) for i in range(300)]
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.multiple(meta_index, RECORDS={width: meta_index.RECORDS[width]}, SWEEP=sweep),
    ):
        path = Path(folder) / "meta.txt"
        path.write_text("\n".join(rows))
        MetaFile(path).close()
        index = Path(f"{path}.idx")
        content = bytearray(index.read_bytes())
        for place, change in damage.items():
            content[int(place * len(content))] ^= change
        index.write_bytes(content)
        for ids in ([0], [299, 1], range(300), range(0, 300, 100), range(128, 138)):
            found = None
            said = ""
            try:
                with MetaFile(path) as file:
                    found = file.rows(ids)
            except ValueError as error:
                said = str(error)
            assert found == [rows[i] for i in ids] or all(word in said for word in (str(index), "delete it", "index="))
