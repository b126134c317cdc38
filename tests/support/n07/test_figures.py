"""The figures of notebook 07 draw what scatter, autograd and BatchNorm do: each corner is drawn and checked."""

import math
import re
from functools import partial

import pytest
import torch
from torch import nn

from lib.pipeline.batchnorm import DeferredBatchNorm
from lib.show.explore import explore
from lib.show.sheet import drawn_cells
from lib.show.style import alt_text
from support.n07 import figures as n07
from tests.pictures import corners, told


def title_of(figure) -> str:
    return (figure.get_suptitle() or figure.axes[0].get_title("left")).replace("\n", " ")


def test_sizes_say_where_torch_chunk_gives_too_few():
    for values, words in told(n07.draw_sizes, n07.SIZES_CONTROLS, 2):
        rows = values["rows"]
        short = [m for m in range(1, min(rows, 8) + 1) if len(torch.arange(rows).chunk(m)) < m]
        assert f"for m = {', '.join(map(str, short)) or 'none'};" in words
    assert title_of(n07.draw_sizes(rows=3)) == "3 rows: torch.chunk and tensor_split give enough"
    assert title_of(n07.draw_sizes(rows=5)) == "5 rows: torch.chunk gives too few in 1 of 5 cases, tensor_split never"


def test_a_tuple_is_cut_alike_refused_or_loses_what_zip_loses():
    for values in corners(explore(n07.draw_tuple, **n07.TUPLE_CONTROLS), 20):
        figure = n07.draw_tuple(**values)
        rows, rows_y, chunks, how = (values[name] for name in ("rows", "rows_y", "chunks", "how"))
        crossed = sum(cell.cell.mark == "dropped" for cell in drawn_cells(figure))
        if how == n07.SCATTER:
            assert crossed == 0
            assert ("Refused" in alt_text(figure)) == (rows != rows_y)
        else:
            parts = list(zip(torch.arange(rows).chunk(chunks), torch.arange(rows_y).chunk(chunks), strict=False))
            lost_x = rows - sum(len(x) for x, _ in parts)
            lost_y = rows_y - sum(len(y) for _, y in parts)
            assert crossed == 4 * lost_x + 2 * lost_y
            assert ("lost" in title_of(figure)) == bool(lost_x or lost_y)
    single = n07.draw_tuple(rows=1, rows_y=1, chunks=6, how=n07.SCATTER)
    assert title_of(single).endswith("where 6 were asked for, 1 row of every tensor")
    figure = n07.draw_tuple(rows=7, rows_y=7, chunks=4, how=n07.SCATTER)
    owners = {cell.cell.index: cell.cell.rank for cell in drawn_cells(figure) if cell.cell.index[1] == "2"}
    assert owners == {"02": 0, "12": 0, "22": 1, "32": 1, "42": 2, "52": 2, "62": 3}


def test_the_arrows_end_in_the_whole_gradient_only_with_the_right_factors():
    for values, words in told(n07.draw_path, n07.PATH_CONTROLS, 24):
        rows = values["rows"]
        chunks = min(values["chunks"], values["rows"])
        how = values["how"]
        even = rows % chunks == 0
        hits = how == n07.BY_ROWS or (even and how == n07.BY_PARTS) or chunks == 1
        assert ("is equal to the whole gradient" in words) == hits, values
        length = float(re.search(r"its length ([\d.]+) times", words)[1])
        if hits:
            assert length == 1
        if even and how == n07.NOTHING:
            assert math.isclose(length, chunks, abs_tol=0.006)
    with pytest.raises(ValueError, match="how must be one of rows / all rows"):
        n07.factors([1, 2], "mean")


def test_live_bytes_name_the_peak_of_each_way_and_a_matrix_of_who_sees_whom_is_counted_by_rows():
    figure = n07.draw_live({"whole batch": [0, 4000, 8000, 0], "2 parts": [0, 4000, 0, 4000, 0]})
    assert alt_text(figure).endswith("whole batch 8 kB; 2 parts 4 kB.")
    assert title_of(figure) == "2 parts: 50 % of the peak of the whole batch"
    figure = n07.draw_live({"whole batch": [0, 8000, 0], "in turn": [0, 4000, 0], "all first": [0, 8000, 0]})
    assert title_of(figure) == "in turn: 50 %; all first: 100 % of the peak of the whole batch"

    def blocks(chunks):
        return torch.block_diag(*(torch.ones(len(p), len(p)) for p in torch.arange(12).tensor_split(chunks))).bool()

    seen = {"itself": lambda chunks: torch.eye(12).bool(), "its micro-batch": blocks}
    for values, words in told(partial(n07.draw_sees, seen), n07.SEES_CONTROLS):
        assert words.endswith(f"itself 1; its micro-batch {math.ceil(12 / values['chunks'])}.")
    assert "alone, but on 4 rows in its micro-batch" in title_of(n07.draw_sees(seen, chunks=3))
    unequal = n07.draw_sees(seen, chunks=5)
    assert "alone, but on up to 3 rows in its micro-batch" in title_of(unequal)
    assert unequal.axes[1].get_title("left") == "its micro-batch\nup to 3 rows"


class Deferred(DeferredBatchNorm):
    def __init__(self, features, momentum):
        super().__init__(features, momentum=momentum, chunks=99)


def test_deferred_statistics_are_those_of_whole_batches_and_plain_ones_are_not():
    for values, words in told(partial(n07.draw_running, Deferred), n07.RUNNING_CONTROLS, 3):
        assert "Deferred equals whole batches" in words
        cut, whole = (float(x) for x in re.search(r"ends at ([\d.]+), of whole batches at ([\d.]+)", words).groups())
        if values["ordered"]:
            assert (cut == whole) == (values["chunks"] == 1), values
    words = alt_text(n07.draw_running(nn.BatchNorm1d, chunks=4, momentum=0.1, ordered=True))
    assert "Deferred differs from whole batches" in words
