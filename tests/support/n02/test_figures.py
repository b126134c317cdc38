"""The figures of notebook 02 show what the run did: sequence diagram, order strips, padding."""

import re

import pytest

from lib.data.samplers import RandomSampler
from lib.show.sheet import drawn_cells
from lib.show.style import alt_text
from support.n02 import figures as n02
from support.n02 import streams
from support.n02.runs import Message, padding_share, pooled_batches, record_epoch, sentence_lengths
from tests.pictures import told

START = {name: control.value for name, control in n02.MESSAGES_CONTROLS.items()}


def heading(figure):
    return figure.axes[0].get_title("left").replace("\n", " ")


def cells(figure, mark=None):
    return [
        patch.cell.index for patch in drawn_cells(figure) if mark in (None, patch.cell.mark) and patch.cell.index != ""
    ]


def test_a_conversation_shows_each_message_and_then_the_order_in_the_colours_of_its_batches():
    figure = n02.draw_conversation(record_epoch(n02.SAMPLERS["sequential"], size=3, batch_size=2), batch_size=2)
    assert cells(figure) == [*[0, 1] * 3, *[2] * 3, 0, 1, 2]
    assert heading(figure) == "Only the Sampler asks for the length (1 ×); the epoch has 2 batches"
    assert "3 load, Dataset to DataLoader, 0, 1; 4 batch" in alt_text(figure)
    figure = n02.draw_conversation(record_epoch(n02.SAMPLERS["random"], 5, 2), batch_size=2)
    batch_of = {4: 0, 0: 0, 1: 1, 3: 1, 2: 2}
    assert all(p.cell.rank == batch_of[p.cell.index] for p in drawn_cells(figure) if p.cell.index != "")


@pytest.mark.parametrize("changed, says, shown", [
    ({"step": 2}, "Message 2 of 14: the Sampler names items 4, 0", [4, 0, 4, 0, *"?????"]),
    ({"step": 32}, "Message 14 of 14: the training loop gets item 1; the epoch is over", None),
    ({"step": 11, "drop_last": True}, "Message 11 of 12: item 1 would be a short batch: dropped", None),
])  # fmt: skip
def test_a_step_tells_its_message_and_hides_the_future(changed, says, shown):
    figure = n02.draw_messages(**{**START, **changed})
    assert heading(figure) == says
    assert shown is None or cells(figure) == shown
    assert cells(figure, "dropped") == ([1] if "drop_last" in changed else [])


def test_the_last_step_is_the_end_of_the_epoch_and_messages_that_have_scrolled_away_are_counted():
    assert alt_text(n02.draw_messages(**{**START, "step": 32})) == alt_text(n02.draw_messages(**{**START, "step": 14}))
    for values, words in told(n02.draw_messages, n02.MESSAGES_CONTROLS, 10):
        total = len(
            record_epoch(n02.SAMPLERS[values["sampler"]], values["N"], values["batch_size"], values["drop_last"])
        )
        assert words.startswith(f"Message {min(values['step'], total)} of {total}: ")
    figure = n02.draw_messages(N=2, batch_size=4, sampler="sequential", drop_last=True, step=9)
    assert cells(figure, "dropped") == [0, 1]
    said = [[text.get_text() for text in n02.draw_messages(**{**START, "step": n}).axes[0].texts] for n in (8, 13)]
    assert ["messages 1 to 5 are above the first one shown" in texts for texts in said] == [False, True]


def test_a_picture_names_whoever_asks_for_the_length_and_how_often():
    length = Message("length", "Dataset", "DataLoader", (4,), times=3)
    sampler = Message("length", "Dataset", "Sampler", (4,))
    figure = n02.draw_conversation([length, sampler], batch_size=2)
    assert heading(figure).startswith("Only the DataLoader and the Sampler asks for the length (4 ×)")


def test_orders_are_cut_into_batches_or_groups_by_colour_and_what_did_not_come_is_crossed():
    drawn = drawn_cells(n02.draw_orders({"a": [3, 1, 2]}, "finding", batch_size=2))
    assert [(patch.cell.index, patch.cell.rank) for patch in drawn] == [(3, 0), (1, 0), (2, 1)]
    first, second, third = (patch.at[0] for patch in drawn)
    assert second - first == 1 < third - second
    groups = drawn_cells(n02.draw_orders({"a": [7, 8]}, "finding", groups={"a": [0, 5]}))
    assert [patch.cell.rank for patch in groups] == [0, 5]
    figure = n02.draw_orders({"epoch 0": [1, None], "epoch 1": []}, "finding", expected=2)
    assert [patch.cell.mark for patch in drawn_cells(figure)] == ["plain", "dropped", "dropped"]
    assert "epoch 0: 1, –; epoch 1: nothing" in alt_text(figure)


@pytest.mark.parametrize("rows", [{"none": []}, {"a": [0]}, {"a very long label indeed": list(range(40))}])
def test_orders_of_any_size_can_be_drawn(rows):
    assert cells(n02.draw_orders(rows, "finding", batch_size=3)) == next(iter(rows.values()))


def test_ahead_marks_what_is_on_its_way_and_rows_that_are_equal_have_one_colour():
    figure = n02.draw_ahead({"0 workers": [2, 4], "2 workers": [4, 4]}, size=4, batch_size=2)
    looks = [(patch.cell.index, patch.cell.mark, patch.cell.rank) for patch in drawn_cells(figure)][:-3]
    assert looks[:4] == [(0, "plain", 0), (1, "plain", 0), (2, "plain", None), (3, "plain", None)]
    assert looks[8:12] == [(0, "plain", 0), (1, "plain", 0), (2, "faded", 1), (3, "faded", 1)]
    assert heading(figure) == "Indices on their way when the first batch arrives: 0 workers 0, 2 workers 2"
    for rows, said in (
        ([[1], [1]], "all the same"),
        ([[1], [2]], "all different"),
        ([[1], [2], [1]], "only 2 different"),
    ):
        figure = n02.draw_rows({str(row): numbers for row, numbers in enumerate(rows)}, "with workers")
        assert heading(figure) == f"{len(rows)} rows of random numbers with workers: {said}"
        assert [patch.cell.rank for patch in drawn_cells(figure)] == [[[1], [2]].index(row) for row in rows]


def test_the_share_of_padding_is_that_of_the_pools():
    lengths = sentence_lengths(32)
    order = list(RandomSampler(lengths, seed=0))
    for values, words in told(n02.draw_padding, n02.PADDING_CONTROLS, 6):
        share = padding_share(lengths, pooled_batches(lengths, order, values["batch_size"], values["pool"]))
        assert int(re.findall(r"(\d+) %", words)[-1]) == round(100 * share), words


def test_a_pool_that_holds_the_epoch_is_called_one_pool_however_many_batches_it_may_hold():
    said = [alt_text(n02.draw_padding(batch_size=16, pool=pool)).split(" cut")[0] for pool in (2, 16)]
    assert said == ["One pool for the whole epoch"] * 2
    assert alt_text(n02.draw_padding(batch_size=8, pool=2)).startswith("Pools of 2 batches cut padding")
    assert n02.draw_padding(batch_size=16, pool=1).axes[1].get_title("left").startswith("pools of 1 batch: ")


@pytest.mark.costly
def test_the_picture_of_a_buffer_tells_the_classes_of_its_batches_and_no_photo_leaves_too_early():
    for values, words in told(n02.draw_buffer, n02.BUFFER_CONTROLS, 5):
        order = streams.through_buffer(values["size"], values["files"], seed=values["epoch"])
        assert f"A batch of 20 holds {streams.classes_in_batches(order):.1f} of 10 classes: " in words
        early, late = map(int, re.search(r"at most (\d+) places early and (\d+) late", words).groups())
        assert early <= values["size"] - 1
        assert (late == 0) == (values["size"] == 1)
