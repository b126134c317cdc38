"""The figures of notebook 04 say what the samplers do."""

import re
from functools import partial

import numpy as np
import pytest

from lib.show.explore import explore
from lib.show.sheet import drawn_cells
from lib.show.style import alt_text
from support.n04 import figures as n04
from support.n04.solved import Cursor
from tests.pictures import told
from tools.site import atlas


def mix(index: int) -> int:
    return (index * 37 + 11) % 64


def numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


def test_page_reads_are_summed_and_who_is_never_seen_or_does_not_exist_is_named():
    figure = n04.draw_page_reads({"stride": [[0, 1, 2], [0, 1, 2]], "contiguous": [[0, 1], [1, 2]]}, pages=3)
    assert "summed: stride 6; contiguous 4" in alt_text(figure)
    at = {"size": 2, "world_size": 5, "rank": 0, "calls": 1, "duplicates": True}
    assert "Does not exist: 2." in alt_text(n04.draw_cursor(Cursor, **at, shuffle=True))
    assert "Does not exist" not in alt_text(n04.draw_cursor(Cursor, **at, shuffle=False))
    figure = n04.draw_never_seen({"cut first": [[0, 1]] * 2, "repaired": [[0, 1], [2, 0]]}, size=3)
    assert alt_text(figure).endswith("Never seen: cut first 2; repaired none.")


def test_the_cursor_walks_through_its_shard_and_stops_at_its_end():
    for values, words in told(partial(n04.draw_cursor, Cursor), n04.CURSOR_CONTROLS, 12):
        size = values["size"]
        world_size = values["world_size"]
        rank = min(values["rank"], world_size - 1)
        local = -(-size // world_size) if values["duplicates"] else size // world_size
        assert max(0, size - local * world_size) == len(numbers(words.partition("In no shard: ")[2]))
        stands = min(rank * local + values["calls"] * n04.BATCH, (rank + 1) * local)
        assert f"position = {stands}." in words
        assert ("has no rank" in words) == (values["rank"] >= world_size)


def test_what_is_left_is_one_piece_with_stride_and_one_per_rank_otherwise():
    for size, world_size, step, batch_size in ((32, 4, 2, 2), (12, 3, 1, 2), (20, 5, 2, 1)):
        words = alt_text(n04.draw_rest(size=size, world_size=world_size, step=step, batch_size=batch_size))
        assert f"1 with stride, {world_size} with contiguous shards" in words
        used = n04.used_at(size, world_size, step, batch_size, "stride")
        assert [who is not None for who in used] == [p < step * batch_size * world_size for p in range(size)]


def test_no_sample_is_lost_or_comes_twice_after_a_restart_and_the_calendar_names_its_step():
    for values, _ in told(n04.draw_calendar, n04.CALENDAR_CONTROLS, 8):
        uses, consumed = n04.two_runs(**values)
        size = values["size"]
        used = [use.sample for use in uses]
        assert set(used) == set(range(size))
        rest = size - min(consumed, size)
        if values["restart"]:
            assert len(used) - size >= min(consumed, size)
        elif rest:
            assert len(used) - size == max(0, consumed - size) + -rest % values["after"]
    figure = n04.draw_calendar(size=36, before=4, after=3, steps=3, batch_size=2, restart=False)
    last_row = max(patch.at[1] for patch in drawn_cells(figure))
    calendar = [patch for patch in drawn_cells(figure) if patch.at[1] >= last_row - 1]
    found = {round(18 * (p.at[1] - last_row + 1) + p.at[0]): p.cell.index for p in calendar}
    assert found == {use.sample: use.step for use in n04.two_runs(36, 4, 3, 3, 2)[0]}


def test_each_round_is_drawn_where_it_puts_an_index_and_every_walk_ends_inside_no_two_alike():
    places = [[(i * (2 * k + 1)) % 64 for i in range(64)] for k in range(4)]
    figure = n04.draw_rounds(places, follow=9)
    for round_, axes in zip(places, figure.axes, strict=True):
        assert {patch.cell.index: patch.at for patch in axes.patches}[9] == (round_[9] % 8, round_[9] // 8)
    for size in range(33, 65):
        paths = [n04.walk_path(mix, index, size) for index in range(size)]
        assert [path[0] for path in paths] == list(range(size))
        assert all(place >= size for path in paths for place in path[1:-1])
        assert sorted(path[-1] for path in paths) == list(range(size))
    for values, words in told(partial(n04.draw_walk, mix), n04.WALK_CONTROLS, 4):
        path = n04.walk_path(mix, min(values["index"], values["size"] - 1), values["size"])
        assert f"walks {' → '.join(map(str, path))}." in words


def test_a_position_beyond_n_is_told_to_be_another_one_as_the_picture_tells_it():
    words = alt_text(n04.draw_walk(mix, index=39, size=33))
    assert "Position 32 (not 39: n is 33) walks" in words


BOTH = (False, True)
#: Settings of explorers in which a control does nothing, or something other than where it stands: all others differ.
AT_THE_EDGE = {
    "no rank 7, empty shards, calls beyond the end": (
        partial(n04.draw_cursor, Cursor),
        n04.CURSOR_CONTROLS,
        {"size": (7,), "world_size": (2, 8), "rank": (1, 7), "calls": (0, 4), "duplicates": BOTH, "shuffle": (False,)},
    ),
    "no step of run 1, steps beyond the epoch": (
        n04.draw_calendar,
        n04.CALENDAR_CONTROLS,
        {"size": (20,), "before": (2, 4), "after": (3,), "steps": (0, 3, 4, 6), "restart": BOTH},
    ),
    "positions beyond n": (
        partial(n04.draw_walk, mix),
        n04.WALK_CONTROLS,
        {"index": (31, 32, 37), "size": (33, 36)},
    ),
}


@pytest.mark.parametrize("edge", AT_THE_EDGE)
def test_an_explorer_says_the_same_of_two_settings_exactly_where_it_draws_the_same(edge):
    draw, controls, stops = AT_THE_EDGE[edge]
    frames = atlas.frames_of(explore(draw, **controls), stops, processes=1).frames.values()
    pictures = {frame.elements for frame in frames}
    words = {frame.words for frame in frames}
    assert len(pictures) == len(words) == len({(frame.elements, frame.words) for frame in frames})


def test_few_rounds_leave_a_pattern_that_the_lag_test_shows_and_eight_leave_none():
    words = alt_text(n04.draw_mixing(np.arange(64.0).reshape(8, 8), rounds=(2, 8)))
    few, many = (numbers(part.split(", ")[-1])[0] for part in words.split(" test. ")[1].split("; "))
    assert few > 0
    assert many == 0
    lags = [2**k for k in range(12)]
    true = np.random.default_rng(5).permutation(4096)
    assert max(n04.lag_surprise(true, lag) for lag in lags) < n04.CHANCE
    assert min(n04.lag_surprise(np.arange(4096), lag) for lag in lags) > n04.CHANCE
