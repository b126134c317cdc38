"""The figures of notebook 04 draw what the samplers do: every corner of every explorer is drawn and counted."""

from __future__ import annotations

import itertools
import math
import re
from functools import partial

import numpy as np
import pytest
from matplotlib.colors import to_hex
from support.n04 import figures as feistel
from support.n04 import figures as missed
from support.n04 import figures as resume
from support.n04 import figures as shards
from torch.utils.data import DistributedSampler as TorchSampler

from lib.data.permutation import Permutation
from lib.show.explore import explore
from lib.show.sheet import CellPatch, drawn_cells
from lib.show.style import PAPER, alt_text
from tests.pictures import assert_each_control_changes_the_picture


def mix(index: int) -> int:
    """A shuffle of 0..63 that leaves 0 for the last."""
    return (index * 37 + 11) % 64


PICTURE = np.arange(64.0).reshape(8, 8)
PLACES = [[(i * (2 * k + 1)) % 64 for i in range(64)] for k in range(4)]
EXPLORERS = {
    "pages": (shards.draw_pages, shards.PAGES_CONTROLS),
    "cursor": (shards.draw_cursor, shards.CURSOR_CONTROLS),
    "never seen": (missed.draw_never_seen, missed.NEVER_SEEN_CONTROLS),
    "missed": (missed.draw_missed, missed.MISSED_CONTROLS),
    "rest": (resume.draw_rest, resume.REST_CONTROLS),
    "calendar": (resume.draw_calendar, resume.CALENDAR_CONTROLS),
    "rounds": (partial(feistel.draw_rounds, PLACES), feistel.ROUNDS_CONTROLS),
    "walk": (partial(feistel.draw_walk, mix), feistel.WALK_CONTROLS),
    "mixing": (partial(feistel.draw_mixing, PICTURE), feistel.MIXING_CONTROLS),
}


def corners(name, sweep=False):
    """Yield (settings, figure) of all combinations of ends; with `sweep` of each control's other settings too."""
    explorer = explore(EXPLORERS[name][0], **EXPLORERS[name][1])
    ends = math.prod(len(control.corners) for control in explorer.controls.values())
    for values in itertools.islice(explorer.corners(), None if sweep else ends):
        yield values, explorer.update(**values)


def numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


@pytest.mark.parametrize("name", EXPLORERS)
def test_at_the_start_each_control_changes_the_picture(name):
    assert_each_control_changes_the_picture(*EXPLORERS[name])


def test_a_rank_reads_the_pages_that_hold_its_samples():
    for values, figure in corners("pages", sweep=True):
        size, world_size, page = values["size"], values["world_size"], values["page"]
        said = numbers(alt_text(figure).split("Pages read by rank: ")[1])[:world_size]
        local = math.ceil(size / world_size)
        if values["cut"] == "stride":
            own = [list(TorchSampler(range(size), world_size, r, values["shuffle"])) for r in range(world_size)]
            assert said == [len({i // page for i in each}) for each in own]
        elif not values["shuffle"]:
            own = [[p % size for p in range(r * local, (r + 1) * local)] for r in range(world_size)]
            assert said == [len({i // page for i in each}) for each in own]
        pages = [patch for patch in figure.axes[0].patches if not isinstance(patch, CellPatch)]
        assert sum(to_hex(patch.get_facecolor()) != PAPER for patch in pages) == sum(said)
        assert sorted(patch.cell.index for patch in drawn_cells(figure)) == list(range(size))


def test_page_reads_are_summed_over_ranks():
    figure = shards.draw_page_reads({"stride": [[0, 1, 2], [0, 1, 2]], "contiguous": [[0, 1], [1, 2]]}, pages=3)
    assert "summed: stride 6; contiguous 4" in alt_text(figure)
    assert [axes.get_title("left") for axes in figure.axes] == ["stride: 6 reads", "contiguous: 4 reads"]


def test_the_cursor_walks_through_its_shard_and_stops_at_its_end():
    for values, figure in corners("cursor"):
        size, world_size = values["size"], values["world_size"]
        rank = min(values["rank"], world_size - 1)
        local = -(-size // world_size) if values["duplicates"] else size // world_size
        marks = [patch.cell.mark for patch in drawn_cells(figure)]
        assert marks.count("padding") == max(0, local * world_size - size)
        assert marks.count("dropped") == max(0, size - local * world_size)
        stands = min(rank * local + values["calls"] * values["batch_size"], (rank + 1) * local)
        assert f"index() = {stands}." in alt_text(figure)


def test_both_samplers_leave_out_the_same_number_but_only_libtorch_the_same_ones():
    for values, figure in corners("never seen"):
        rest = values["size"] % values["world_size"]
        for axes in figure.axes:
            cells = [patch for patch in axes.patches if isinstance(patch, CellPatch)]
            assert sum(patch.cell.mark == "dropped" for patch in cells) == rest * values["epochs"]
        ours = alt_text(figure).split("libtorch ")[1].split(";")[0]
        tail = range(values["size"] - rest, values["size"])
        assert ours == ("none" if not rest else shards.listed(list(tail)))


def test_ranks_that_agree_read_everything_once():
    for values, figure in corners("missed"):
        cells = [patch.cell for patch in drawn_cells(figure)]
        assert sum(cell.index for cell in cells) == missed.DECK
        if values["agree"] or values["world_size"] == 1:
            assert {cell.index for cell in cells} == {1}
        else:
            assert any(cell.mark == "dropped" for cell in cells)


@pytest.mark.parametrize("world_size", missed.WORLDS)
def test_ranks_that_disagree_miss_as_much_as_predicted(world_size):
    predicted = (1 - 1 / world_size) ** world_size
    assert missed.missed_share(world_size) == pytest.approx(predicted, abs=0.02)


def test_what_is_left_is_one_piece_with_stride_and_one_per_rank_otherwise():
    for values, figure in corners("rest", sweep=True):
        size, world_size = values["size"], values["world_size"]
        done, local = values["step"] * values["batch_size"], -(-size // world_size)
        used = [patch.cell.index != "" for patch in drawn_cells(figure)]
        assert sum(used[:size]) == min(size, done * world_size)
        assert used[:size] == sorted(used[:size], reverse=True)
        free = [not u for u in used[size:]]
        pieces = sum(now and not before for before, now in zip([False, *free], free, strict=False))
        assert f"{pieces} with contiguous shards" in alt_text(figure)
        if size % world_size == 0 and 0 < done < local:
            assert pieces == world_size


def test_no_sample_is_lost_or_comes_twice_after_a_restart_but_for_padding():
    for values, figure in corners("calendar"):
        uses, consumed = resume.two_runs(**values)
        size = values["size"]
        used = [use.sample for use in uses]
        assert set(used) == set(range(size))
        rest = size - min(consumed, size)
        padding = [consumed - size if consumed > size else 0, -rest % values["after"]]
        if values["restart"]:
            assert len(used) - size >= min(consumed, size)
        elif rest:
            assert len(used) - size == sum(padding)
        calendar = drawn_cells(figure)[-size:]
        assert len(drawn_cells(figure)) == len(uses) + size
        assert sum(patch.cell.mark == "padding" for patch in calendar) == sum(used.count(s) > 1 for s in set(used))


def test_the_calendar_names_the_step_that_used_a_sample():
    figure = resume.draw_calendar(size=36, before=4, after=3, steps=3, batch_size=2, restart=False)
    uses, _ = resume.two_runs(36, 4, 3, 3, 2)
    last_row = max(patch.at[1] for patch in drawn_cells(figure))
    calendar = [patch for patch in drawn_cells(figure) if patch.at[1] >= last_row - 1]
    found = {round(18 * (p.at[1] - last_row + 1) + p.at[0]): p.cell.index for p in calendar}
    assert found == {use.sample: use.step for use in uses}


def test_each_round_is_drawn_where_it_puts_an_index():
    for values, figure in corners("rounds"):
        for places, axes in zip(PLACES, figure.axes, strict=True):
            at = {patch.cell.index: patch.at for patch in axes.patches}
            place = places[values["follow"]]
            assert at[values["follow"]] == (place % 8, place // 8)


def test_every_walk_ends_inside_and_no_two_end_alike():
    for size in range(33, 65):
        paths = [feistel.walk_path(mix, index, size) for index in range(size)]
        assert [path[0] for path in paths] == list(range(size))
        assert all(place >= size for path in paths for place in path[1:-1])
        assert sorted(path[-1] for path in paths) == list(range(size))


def test_the_walk_of_every_corner_is_drawn():
    for values, figure in corners("walk"):
        dropped = [patch for patch in drawn_cells(figure) if patch.cell.mark == "dropped"]
        assert len(dropped) == 64 - values["size"]
        path = feistel.walk_path(mix, min(values["index"], values["size"] - 1), values["size"])
        assert f"walks {' → '.join(map(str, path))}." in alt_text(figure)


def test_few_rounds_leave_a_pattern_that_the_figure_shows_and_eight_leave_none():
    for values, figure in corners("mixing", sweep=True):
        beyond = numbers(alt_text(figure).split("lags beyond 5: ")[1])[0]
        assert (beyond > 0) == (values["rounds"] <= 4), values
        pixels = figure.axes[0].images[0].get_array()
        assert np.bincount(pixels.astype(int).ravel()).tolist() == [values["size"] // 64] * 64


def test_the_lag_test_lets_a_true_shuffle_pass_and_notices_an_order_that_is_none():
    lags = [2**k for k in range(12)]
    true = np.random.default_rng(5).permutation(4096)
    assert max(feistel.lag_surprise(true, lag) for lag in lags) < feistel.CHANCE
    assert min(feistel.lag_surprise(np.arange(4096), lag) for lag in lags) > feistel.CHANCE
    weak = Permutation(4096, rounds=2)[np.arange(4096)]
    assert max(feistel.lag_surprise(weak, lag) for lag in lags) > 100
