"""The figures of notebook 02 show what the run did: sequence diagram, order strips, padding."""

import re

import pytest
from support.n02.figures import (
    MESSAGES_CONTROLS,
    PADDING_CONTROLS,
    SAMPLERS,
    SENTENCES,
    draw_ahead,
    draw_conversation,
    draw_messages,
    draw_orders,
    draw_padding,
    draw_weighted,
)
from support.n02.runs import padding_share, pooled_batches, record_epoch, sentence_lengths

from lib.data.samplers import RandomSampler
from lib.show.explore import explore
from lib.show.sheet import drawn_cells
from lib.show.style import alt_text

START = {name: control.value for name, control in MESSAGES_CONTROLS.items()}


def heading(figure):
    return figure.axes[0].get_title("left").replace("\n", " ")


def cells(figure, mark=None):
    return [
        patch.cell.index for patch in drawn_cells(figure) if mark in (None, patch.cell.mark) and patch.cell.index != ""
    ]


def smallest_type(figure):
    figure.draw_without_rendering()
    texts = [text for axes in figure.axes for text in axes.texts if text.get_text()]
    return min(text.get_fontsize() for text in texts)


def test_a_conversation_shows_each_message_with_its_indices_and_then_the_order():
    messages = record_epoch(SAMPLERS["sequential"], size=3, batch_size=2)
    figure = draw_conversation(messages, batch_size=2)
    in_messages = [0, 1] * 3 + [2] * 3
    assert cells(figure) == [*in_messages, 0, 1, 2]
    assert heading(figure) == "Length once; then indices, load, batch for each of 2 batches"
    assert "3 load, DataLoader to Dataset, 0, 1; 4 batch" in alt_text(figure)


def test_the_colour_of_a_cell_is_its_batch():
    figure = draw_conversation(record_epoch(SAMPLERS["reversed"], 5, 2), batch_size=2)
    batch_of = {4: 0, 3: 0, 2: 1, 1: 1, 0: 2}
    for patch in drawn_cells(figure):
        if patch.cell.index != "":
            assert patch.cell.rank == batch_of[patch.cell.index]


def test_arrows_run_from_sender_to_receiver():
    figure = draw_conversation(record_epoch(SAMPLERS["sequential"], 1, 1), batch_size=1)
    arrows = [t for t in figure.axes[0].texts if hasattr(t, "arrow_patch")]
    x = {"Dataset": 1.0, "Sampler": 3.3, "DataLoader": 5.6, "training loop": 7.9}
    assert [(arrow.xyann[0], arrow.xy[0]) for arrow in arrows] == [
        (x["Dataset"], x["Sampler"]),
        (x["Sampler"], x["DataLoader"]),
        (x["DataLoader"], x["Dataset"]),
        (x["DataLoader"], x["training loop"]),
    ]


def test_the_future_is_not_drawn():
    figure = draw_messages(**{**START, "step": 2})
    assert heading(figure) == "Message 2 of 13: the Sampler orders items 4, 0"
    assert cells(figure) == [4, 0, 4, 0, "?", "?", "?", "?", "?"]


def test_the_last_step_is_the_end_of_the_epoch_however_far_the_slider_goes():
    end = draw_messages(**{**START, "step": 31})
    assert heading(end) == "Message 13 of 13: the training loop gets items 1; the epoch is over".replace(
        "items", "item"
    )
    assert alt_text(end) == alt_text(draw_messages(**{**START, "step": 13}))


def test_a_dropped_item_is_named_crossed_and_not_loaded():
    figure = draw_messages(**{**START, "step": 31, "drop_last": True})
    assert heading(figure) == "Message 11 of 11: item 1 would be a short batch: dropped; the epoch is over"
    assert cells(figure, "dropped") == [1]


def test_a_dataset_smaller_than_a_batch_is_dropped_whole():
    figure = draw_messages(N=2, batch_size=4, sampler="odd first", drop_last=True, step=9)
    assert cells(figure, "dropped") == [1, 0]


def test_the_messages_explorer_draws_every_corner():
    for values in explore(draw_messages, **MESSAGES_CONTROLS).corners():
        figure = draw_messages(**values)
        total = len(record_epoch(SAMPLERS[values["sampler"]], values["N"], values["batch_size"], values["drop_last"]))
        shown = min(values["step"], total)
        assert heading(figure).startswith(f"Message {shown} of {total}: ")
    assert smallest_type(figure) >= 9


def test_a_move_of_any_control_changes_the_picture():
    first = draw_messages(**START)
    drawn = [(patch.cell, patch.at) for patch in drawn_cells(first)]
    for name, control in MESSAGES_CONTROLS.items():
        at = control.options.index(control.value)
        value = control.options[at + 1 if at + 1 < len(control.options) else at - 1]
        moved = draw_messages(**{**START, name: value})
        assert [(patch.cell, patch.at) for patch in drawn_cells(moved)] != drawn, name


def test_orders_are_cut_into_batches_by_colour_and_a_gap():
    figure = draw_orders({"a": [3, 1, 2]}, "finding", batch_size=2)
    assert [(patch.cell.index, patch.cell.rank) for patch in drawn_cells(figure)] == [(3, 0), (1, 0), (2, 1)]
    first, second, third = (patch.at[0] for patch in drawn_cells(figure))
    assert second - first == 1 < third - second
    assert heading(figure) == "finding"


def test_what_should_have_come_and_did_not_is_crossed_and_blank_stays_blank():
    figure = draw_orders({"epoch 0": [1, None], "epoch 1": []}, "finding", expected=2)
    assert [patch.cell.mark for patch in drawn_cells(figure)] == ["plain", "dropped", "dropped"]
    assert "epoch 0: 1, –; epoch 1: nothing" in alt_text(figure)


def test_groups_colour_the_cells():
    figure = draw_orders({"a": [7, 8]}, "finding", groups={"a": [0, 5]})
    assert [patch.cell.rank for patch in drawn_cells(figure)] == [0, 5]


@pytest.mark.parametrize("rows", [{"none": []}, {"a": [0]}, {"a very long label indeed": list(range(40))}])
def test_orders_of_any_size_can_be_drawn(rows):
    figure = draw_orders(rows, "finding", batch_size=3)
    assert len(cells(figure)) == len(next(iter(rows.values())))
    assert smallest_type(figure) >= 9


def test_ahead_marks_what_is_used_on_its_way_and_not_asked_for():
    figure = draw_ahead({"0 workers": [2, 4], "2 workers": [4, 4]}, size=4, batch_size=2)
    looks = [(patch.cell.index, patch.cell.mark, patch.cell.rank) for patch in drawn_cells(figure)][:-3]
    assert looks[:4] == [(0, "plain", 0), (1, "plain", 0), (2, "plain", None), (3, "plain", None)]
    assert looks[8:12] == [(0, "plain", 0), (1, "plain", 0), (2, "faded", 1), (3, "faded", 1)]
    assert heading(figure) == "Indices on their way when the first batch arrives: 0 workers 0, 2 workers 2"


def test_weighted_draws_one_cell_for_each_draw_and_names_the_index_that_is_furthest_off():
    figure = draw_weighted([0, 1, 1, 1], [1, 1])
    assert cells(figure) == [0, 1, 1, 1]
    assert "index 0: 1 drawn, 2 due; index 1: 3 drawn, 2 due" in alt_text(figure)
    assert heading(figure) == "Weights set odds, not counts: of 4 draws index 0 got 1, 2 were due"


def test_padding_bars_are_the_lengths_and_the_title_the_shares():
    lengths = sentence_lengths(SENTENCES)
    for values in explore(draw_padding, **PADDING_CONTROLS).corners():
        figure = draw_padding(**values)
        for axes in figure.axes:
            words = {bar.get_gid(): bar.get_width() for bar in axes.patches}
            assert {int(name.split()[1]): width for name, width in words.items() if name.startswith("words")} == dict(
                enumerate(lengths)
            )
        padding = sum(bar.get_width() for bar in figure.axes[1].patches if bar.get_gid().startswith("padding"))
        share = padding_share(
            lengths,
            pooled_batches(lengths, list(RandomSampler(lengths, seed=0)), values["batch_size"], values["pool"]),
        )
        assert padding / (padding + sum(lengths)) == pytest.approx(share)
        percent = re.findall(r"(\d+) %", figure._suptitle.get_text())
        assert int(percent[-1]) == round(100 * share)
    assert smallest_type(figure) >= 9
