"""The figures of notebook 07 draw what scatter, autograd and BatchNorm do: each corner is drawn and checked."""

from __future__ import annotations

import math
import re

import pytest
import torch
from matplotlib.colors import to_hex
from support.n07 import figures as micro_batches
from support.n07 import figures as micro_cost
from support.n07 import figures as micro_digits
from support.n07 import figures as micro_gradients
from support.n07 import figures as micro_norm
from torch import nn

from lib.show.explore import explore
from lib.show.sheet import drawn_cells
from lib.show.style import RED, alt_text, rank_color
from tests.pictures import assert_each_control_changes_the_picture

EXPLORERS = {
    "cut": (micro_batches.draw_cut, micro_batches.CUT_CONTROLS),
    "sizes": (micro_batches.draw_sizes, micro_batches.SIZES_CONTROLS),
    "tuple": (micro_batches.draw_tuple, micro_batches.TUPLE_CONTROLS),
    "path": (micro_gradients.draw_path, micro_gradients.PATH_CONTROLS),
    "sees": (micro_norm.draw_sees, micro_norm.SEES_CONTROLS),
    "norm": (micro_norm.draw_norm, micro_norm.NORM_CONTROLS),
    "running": (micro_norm.draw_running, micro_norm.RUNNING_CONTROLS),
}


def corners(name):
    explorer = explore(EXPLORERS[name][0], **EXPLORERS[name][1])
    for values in explorer.corners():
        yield values, explorer.update(**values)


def title_of(figure) -> str:
    text = figure._suptitle.get_text() if figure._suptitle else figure.axes[0].get_title("left")
    return text.replace("\n", " ")


@pytest.mark.parametrize("name", EXPLORERS)
def test_at_the_start_each_control_changes_the_picture(name):
    assert_each_control_changes_the_picture(*EXPLORERS[name])


def test_a_cut_shows_every_item_three_times_and_the_sizes_of_tensor_split():
    for values, figure in corners("cut"):
        rows, chunks, width = values["rows"], values["chunks"], values["width"]
        assert len(drawn_cells(figure)) == 3 * rows * width
        sizes = [len(part) for part in torch.arange(rows).tensor_split(min(rows, chunks))]
        assert f"of {' + '.join(map(str, sizes))} rows" in alt_text(figure)
        assert "the same tensor" in alt_text(figure)
        assert ("none may be empty" in title_of(figure)) == (chunks > rows)


def test_cells_of_a_cut_have_the_colour_of_their_micro_batch():
    figure = micro_batches.draw_cut(rows=7, chunks=4, width=1)
    owners = {cell.cell.index: cell.cell.rank for cell in drawn_cells(figure)}
    assert owners == {"00": 0, "10": 0, "20": 1, "30": 1, "40": 2, "50": 2, "60": 3}


def test_sizes_say_where_torch_chunk_gives_too_few():
    for values, figure in corners("sizes"):
        rows = values["rows"]
        short = [m for m in range(1, rows + 1) if len(torch.arange(rows).chunk(m)) < m]
        assert f"for m = {', '.join(map(str, short)) or 'none'};" in alt_text(figure)
        assert len(drawn_cells(figure)) == 2 * rows * rows
        red = [text.get_text() for text in figure.axes[0].texts if text.get_color() == RED]
        assert red == [f"gives {len(torch.arange(rows).chunk(m))}" for m in short]
        assert not [text for text in figure.axes[1].texts if text.get_color() == RED]


def test_a_tuple_is_cut_alike_refused_or_loses_what_zip_loses():
    for values, figure in corners("tuple"):
        rows, rows_y, chunks, how = (values[name] for name in ("rows", "rows_y", "chunks", "how"))
        crossed = sum(cell.cell.mark == "dropped" for cell in drawn_cells(figure))
        if how == micro_batches.SCATTER:
            assert crossed == 0
            assert ("Refused" in alt_text(figure)) == (rows != rows_y)
        else:
            parts = list(zip(torch.arange(rows).chunk(chunks), torch.arange(rows_y).chunk(chunks), strict=False))
            lost_x = rows - sum(len(x) for x, _ in parts)
            lost_y = rows_y - sum(len(y) for _, y in parts)
            assert crossed == 4 * lost_x + 2 * lost_y
            assert ("lost" in title_of(figure)) == bool(lost_x or lost_y)


def test_the_arrows_end_in_the_whole_gradient_only_with_the_right_factors():
    for values, figure in corners("path"):
        rows, chunks, how = values["rows"], min(values["chunks"], values["rows"]), values["how"]
        even = rows % chunks == 0
        hits = how == micro_gradients.BY_ROWS or (even and how == micro_gradients.BY_PARTS) or chunks == 1
        assert ("is equal to the whole gradient" in alt_text(figure)) == hits, values
        length = float(re.search(r"its length ([\d.]+) times", alt_text(figure))[1])
        if hits:
            assert length == 1
        if even and how == micro_gradients.NOTHING:
            assert math.isclose(length, chunks, abs_tol=0.006)


def test_factors_of_an_unknown_way_are_refused():
    with pytest.raises(ValueError, match="how must be one of rows / all rows"):
        micro_gradients.factors([1, 2], "mean")


def test_digits_that_differ_are_red_and_counted():
    values = {"float32": {1: 0.123456789, 2: 0.123456799}, "float64": {1: 0.5, 4: 0.5 + 2**-40}}
    figure = micro_digits.draw_digits(values, sure={"float32": 5, "float64": 13})
    assert "float32: the first 5 of 9" in alt_text(figure)
    assert "float64: fewer than 13 of 17" in alt_text(figure)
    red = [sum(to_hex(patch.get_facecolor()) == RED for patch in axes.patches) for axes in figure.axes]
    assert red == [2, 5]
    assert title_of(figure) == "The same gradient to 7 of 9 digits in float32, 12 of 17 digits in float64"


@pytest.mark.parametrize("value, truth, many", [(-1.5, 1.5, 0), (15.0, 1.5, 0), (1.25, 1.25, 9), (1.26, 1.25, 2)])
def test_digits_agree_from_the_first_on_and_only_with_sign_and_power(value, truth, many):
    assert micro_digits.agreeing(value, truth, 9) == many


def test_losses_are_compared_with_the_first_curve():
    figure = micro_digits.draw_losses({"whole": [2.0, 1.0], "cut": [2.0, 1.0], "undivided": [2.0, 3.0]})
    assert title_of(figure) == "undivided: ends 3.0 × as high"
    assert "cut is the same curve; undivided ends higher" in alt_text(figure)


def test_a_row_sees_its_micro_batch_in_batch_norm_and_itself_elsewhere():
    for values, figure in corners("sees"):
        most = math.ceil(micro_norm.ROWS / values["chunks"])
        assert alt_text(figure).endswith(f"Linear + ReLU 1; LayerNorm 1; BatchNorm1d {most}.")
        sizes = [len(part) for part in torch.arange(micro_norm.ROWS).tensor_split(values["chunks"])]
        pictures = [axes.images[0].get_array() for axes in figure.axes]
        filled = [int((picture < 1).any(-1).sum()) for picture in pictures]
        assert filled == [micro_norm.ROWS, micro_norm.ROWS, sum(size * size for size in sizes)]


def test_normalising_by_micro_batch_is_what_batch_norm_does():
    values = micro_norm.channel()
    parts = micro_norm.normalised(values, 3).tensor_split(3)
    assert all(abs(float(part.mean())) < 1e-9 for part in parts)
    assert all(math.isclose(float(part.std(correction=0)), 1, rel_tol=1e-3) for part in parts)


def test_rows_that_move_are_joined_by_lines_in_the_colour_of_their_micro_batch():
    for values, figure in corners("norm"):
        lines = [line for line in figure.axes[0].lines if len(line.get_xdata()) == 2 and line.get_marker() == "o"]
        assert len(lines) == micro_norm.ROWS
        parts = micro_norm.channel(values["ordered"]).tensor_split(values["chunks"])
        owners = [i for i, part in enumerate(parts) for _ in part]
        assert [line.get_color() for line in lines] == [rank_color(i) for i in owners]
        moved = max(abs(line.get_ydata()[1] - line.get_ydata()[0]) for line in lines)
        assert f"moves most, {moved:.2f}" in alt_text(figure)


def test_two_rows_a_micro_batch_become_plus_and_minus_one():
    values = micro_norm.normalised(micro_norm.channel(), 6)
    assert torch.allclose(values.abs(), torch.ones(12, dtype=torch.float64), atol=1e-2)


def test_deferred_statistics_are_those_of_whole_batches_and_plain_ones_are_not():
    for values, figure in corners("running"):
        assert "deferred one equals whole batches" in alt_text(figure)
        away = float(re.search(r"is ([\d.]+) away at most", alt_text(figure))[1])
        assert (away == 0) == (values["chunks"] == 1), values


def test_live_bytes_name_the_peak_of_each_way():
    figure = micro_cost.draw_live({"whole batch": [0, 4000, 8000, 0], "2 parts": [0, 4000, 0, 4000, 0]})
    assert alt_text(figure).endswith("whole batch 8 kB; 2 parts 4 kB.")
    assert title_of(figure) == "2 parts: 50 % of the peak of the whole batch"


def record(fixed: float, sizes=(64, 16, 4, 1)) -> dict:
    """A machine that obeys the model: a row takes 1 µs, a micro-batch `fixed` µs more."""
    return {"size": list(sizes), "rows_per_second": [1e6 * s / (s + fixed) for s in sizes]}


def test_the_prediction_is_exact_on_a_machine_that_obeys_the_model():
    one = record(fixed=8)
    assert math.isclose(micro_cost.fixed_rows(one), 8)
    figure = micro_cost.draw_speed({"this CPU": one})
    (axes,) = figure.axes
    predicted, measured = axes.lines[0], axes.lines[1]
    assert predicted.get_linestyle() == "--"
    assert math.isclose(predicted.get_ydata()[0], measured.get_ydata()[-1])
    assert math.isclose(predicted.get_ydata()[-1], measured.get_ydata()[0])
    assert "the smallest reaches less than half" in alt_text(figure)


def test_half_of_the_best_speed_is_found_between_two_points():
    assert micro_cost.half_speed({"size": [4, 2, 1], "rows_per_second": [8.0, 6.0, 2.0]}) == 1.5
    assert micro_cost.half_speed({"size": [4, 1], "rows_per_second": [8.0, 6.0]}) == 1.0


def test_without_a_measurement_only_the_prediction_is_drawn_and_labelled():
    figure = micro_cost.draw_speed({}, "no recording yet")
    assert title_of(figure).startswith("Predicted, not measured")
    assert "nothing measured" in alt_text(figure) and "no recording yet" in alt_text(figure)


def test_the_layers_of_the_jacobian_are_in_training_mode():
    assert isinstance(micro_norm.layer_of("BatchNorm1d"), nn.BatchNorm1d)
    assert all(micro_norm.layer_of(name).training for name in micro_norm.LAYERS)
