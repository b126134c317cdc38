"""The figures of notebook 07 draw what scatter, autograd and BatchNorm do: each corner is drawn and checked."""

import math
import re

import pytest
import torch
from torch import nn

from lib.show.explore import explore
from lib.show.sheet import drawn_cells
from lib.show.style import alt_text, rank_color
from support.n07 import figures as n07
from tests.pictures import corners, told


def title_of(figure) -> str:
    return (figure.get_suptitle() or figure.axes[0].get_title("left")).replace("\n", " ")


def test_a_cut_has_the_sizes_of_tensor_split_and_cells_the_colour_of_their_micro_batch():
    for values, words in told(n07.draw_cut, n07.CUT_CONTROLS, 16):
        rows, chunks = values["rows"], values["chunks"]
        sizes = [len(part) for part in torch.arange(rows).tensor_split(min(rows, chunks))]
        assert f"of {' + '.join(map(str, sizes))} rows" in words and "the same tensor" in words
        assert "none may be empty" in title_of(n07.draw_cut(rows=3, chunks=5, width=1))
    figure = n07.draw_cut(rows=7, chunks=4, width=1)
    owners = {cell.cell.index: cell.cell.rank for cell in drawn_cells(figure)}
    assert owners == {"00": 0, "10": 0, "20": 1, "30": 1, "40": 2, "50": 2, "60": 3}


def test_sizes_say_where_torch_chunk_gives_too_few():
    for values, words in told(n07.draw_sizes, n07.SIZES_CONTROLS, 10):
        rows = values["rows"]
        short = [m for m in range(1, rows + 1) if len(torch.arange(rows).chunk(m)) < m]
        assert f"for m = {', '.join(map(str, short)) or 'none'};" in words


def test_a_tuple_is_cut_alike_refused_or_loses_what_zip_loses():
    for values in corners(explore(n07.draw_tuple, **n07.TUPLE_CONTROLS), 20):
        figure = n07.draw_tuple(**values)
        rows, rows_y, chunks, how = (values[name] for name in ("rows", "rows_y", "chunks", "how"))
        crossed = sum(cell.cell.mark == "dropped" for cell in drawn_cells(figure))
        if how == n07.SCATTER:
            assert crossed == 0 and ("Refused" in alt_text(figure)) == (rows != rows_y)
        else:
            parts = list(zip(torch.arange(rows).chunk(chunks), torch.arange(rows_y).chunk(chunks), strict=False))
            lost_x, lost_y = rows - sum(len(x) for x, _ in parts), rows_y - sum(len(y) for _, y in parts)
            assert crossed == 4 * lost_x + 2 * lost_y
            assert ("lost" in title_of(figure)) == bool(lost_x or lost_y)


def test_the_arrows_end_in_the_whole_gradient_only_with_the_right_factors():
    for values, words in told(n07.draw_path, n07.PATH_CONTROLS, 24):
        rows, chunks, how = values["rows"], min(values["chunks"], values["rows"]), values["how"]
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


def test_digits_that_differ_are_red_and_counted():
    values = {"float32": {1: 0.123456789, 2: 0.123456799}, "float64": {1: 0.5, 4: 0.5 + 2**-40}}
    figure = n07.draw_digits(values, sure={"float32": 5, "float64": 13})
    assert "float32: the first 5 of 9" in alt_text(figure)
    assert "float64: fewer than 13 of 17" in alt_text(figure)
    assert title_of(figure) == "The same gradient to 7 of 9 digits in float32, 12 of 17 digits in float64"


@pytest.mark.parametrize("value, truth, many", [(-1.5, 1.5, 0), (15.0, 1.5, 0), (1.25, 1.25, 9), (1.26, 1.25, 2)])
def test_digits_agree_from_the_first_on_and_only_with_sign_and_power(value, truth, many):
    assert n07.agreeing(value, truth, 9) == many


def test_losses_are_compared_with_the_first_curve_and_live_bytes_name_the_peak_of_each_way():
    figure = n07.draw_losses({"whole": [2.0, 1.0], "cut": [2.0, 1.0], "undivided": [2.0, 3.0]})
    assert title_of(figure) == "undivided: ends 3.0 × as high"
    assert "cut is the same curve; undivided ends higher" in alt_text(figure)
    figure = n07.draw_live({"whole batch": [0, 4000, 8000, 0], "2 parts": [0, 4000, 0, 4000, 0]})
    assert alt_text(figure).endswith("whole batch 8 kB; 2 parts 4 kB.")
    assert title_of(figure) == "2 parts: 50 % of the peak of the whole batch"


def test_a_row_sees_its_micro_batch_in_batch_norm_and_itself_elsewhere():
    for values, words in told(n07.draw_sees, n07.SEES_CONTROLS):
        most = math.ceil(n07.ROWS / values["chunks"])
        assert words.endswith(f"Linear + ReLU 1; LayerNorm 1; BatchNorm1d {most}.")


def test_the_row_that_moves_most_is_told():
    for values in corners(explore(n07.draw_norm, **n07.NORM_CONTROLS), 9):
        figure = n07.draw_norm(**values)
        lines = [line for line in figure.axes[0].lines if len(line.get_xdata()) == 2 and line.get_marker() == "o"]
        parts = n07.channel(values["ordered"]).tensor_split(values["chunks"])
        assert [line.get_color() for line in lines] == [rank_color(i) for i, part in enumerate(parts) for _ in part]
        moved = max(abs(line.get_ydata()[1] - line.get_ydata()[0]) for line in lines)
        assert f"moves most, {moved:.2f}" in alt_text(figure)


def test_normalising_by_micro_batch_is_what_batch_norm_does_and_two_rows_become_plus_and_minus_one():
    values = n07.channel()
    parts = n07.normalised(values, 3).tensor_split(3)
    assert all(abs(float(part.mean())) < 1e-9 for part in parts)
    assert all(math.isclose(float(part.std(correction=0)), 1, rel_tol=1e-3) for part in parts)
    values = n07.normalised(n07.channel(), 6)
    assert torch.allclose(values.abs(), torch.ones(12, dtype=torch.float64), atol=1e-2)
    assert isinstance(n07.layer_of("BatchNorm1d"), nn.BatchNorm1d)
    assert all(n07.layer_of(name).training for name in n07.LAYERS)


def test_deferred_statistics_are_those_of_whole_batches_and_plain_ones_are_not():
    for values, words in told(n07.draw_running, n07.RUNNING_CONTROLS, 21):
        assert "deferred one equals whole batches" in words
        away = float(re.search(r"is ([\d.]+) away at most", words)[1])
        assert (away == 0) == (values["chunks"] == 1), values


def record(fixed: float, sizes=(64, 16, 4, 1)) -> dict:
    """A machine that obeys the model: a row takes 1 µs, a micro-batch `fixed` µs more."""
    return {"size": list(sizes), "rows_per_second": [1e6 * s / (s + fixed) for s in sizes]}


def test_the_prediction_is_exact_on_a_machine_that_obeys_the_model_and_alone_it_is_labelled():
    one = record(fixed=8)
    assert math.isclose(n07.fixed_rows(one), 8)
    figure = n07.draw_speed({"this CPU": one})
    predicted, measured = (list(line.get_ydata()) for line in figure.axes[0].lines[:2])
    assert (predicted[0], predicted[-1]) == (pytest.approx(measured[-1]), pytest.approx(measured[0]))
    assert "the smallest reaches less than half" in alt_text(figure)
    assert n07.half_speed({"size": [4, 2, 1], "rows_per_second": [8.0, 6.0, 2.0]}) == 1.5
    assert n07.half_speed({"size": [4, 1], "rows_per_second": [8.0, 6.0]}) == 1.0
    figure = n07.draw_speed({}, "no recording yet")
    assert title_of(figure).startswith("Predicted, not measured")
    assert "nothing measured" in alt_text(figure) and "no recording yet" in alt_text(figure)
