"""The figures of notebook 04 say what the samplers do."""

import re
from functools import partial

import numpy as np
import pytest

from lib.show.explore import explore
from lib.show.sheet import drawn_cells
from lib.show.style import alt_text
from support.kit.mistakes import edited
from support.n04 import blocks, runs
from support.n04 import figures as n04
from support.n04.cutting import pages_of
from support.n04.runs import block_shares
from support.n04.solved import Cursor, my_batches, std_shuffle
from tests.pictures import told
from tools.site import atlas


def mix(index: int) -> int:
    return (index * 37 + 11) % 64


def numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


def test_page_reads_are_summed_and_who_is_never_seen_or_does_not_exist_is_named():
    figure = n04.draw_page_reads({"stride": [[0, 1, 2], [0, 1, 2]], "contiguous": [[0, 1], [1, 2]]}, pages=3)
    assert "summed: stride 6; contiguous 4" in alt_text(figure)
    subtracts = edited(Cursor, ("place % self.size for", "place if place < self.size else place - self.size for"))
    at = {"size": 2, "world_size": 5, "rank": 0, "epoch": 0, "calls": 1}
    assert "Does not exist: 2." in alt_text(n04.draw_cursor(subtracts, **at))
    assert "Does not exist" not in alt_text(n04.draw_cursor(Cursor, **at))
    figure = n04.draw_never_seen({"cut first": [[0, 1]] * 2, "repaired": [[0, 1], [2, 0]]}, size=3)
    assert alt_text(figure).endswith("Never seen: cut first 2; repaired none.")


def test_the_cursor_walks_through_its_shard_and_stops_at_its_end():
    for values, words in told(partial(n04.draw_cursor, Cursor), n04.CURSOR_CONTROLS, 12):
        size = values["size"]
        world_size = values["world_size"]
        rank = min(values["rank"], world_size - 1)
        local = -(-size // world_size)
        stands = min(rank * local + values["calls"] * n04.BATCH, (rank + 1) * local)
        assert f"position = {stands}." in words
        assert words.startswith(f"Epoch {values['epoch']}:")
        shuffled = std_shuffle(range(local * world_size), values["epoch"])
        added = [position for position, number in enumerate(shuffled) if number >= size >= world_size]
        cells = drawn_cells(n04.draw_cursor(Cursor, **values))
        assert [number for number, patch in enumerate(cells) if patch.cell.mark == "padding"] == added
        assert ("Padding at" in words) == bool(added)
        assert ("has no rank" in words) == (values["rank"] >= world_size)


def test_blocks_deal_every_position_by_one_formula_but_for_a_short_last_round_and_are_stride_at_1():
    for size, world_size in ((48, 4), (37, 4), (3, 8), (1797, 8)):
        length = -(-size // world_size)
        for block in (1, 2, 5, length, 3 * length):
            shares = block_shares(size, world_size, block)
            assert sorted(place for share in shares for place in share) == list(range(size))
            lengths = [len(share) for share in shares]
            assert max(lengths) - min(lengths) <= 1
            whole = size - size % (world_size * block)
            for rank, share in enumerate(shares):
                assert all(place // block % world_size == rank for place in share if place < whole)
        assert block_shares(size, world_size, 1) == [list(range(rank, size, world_size)) for rank in range(world_size)]
        ends = [(share[0], share[-1]) for share in block_shares(size, world_size, length) if share]
        assert all(last - first + 1 <= length for first, last in ends)
    own = [[place for batch in my_batches(1797, 8, rank, 32) for place in batch] for rank in range(8)]
    dealt = block_shares(1797, 8, 32)
    assert [share[:224] for share in own] == [share[:224] for share in dealt]


def test_a_block_leaves_one_piece_where_all_ranks_have_finished_theirs_and_the_picture_counts_what_is_read():
    for values, words in told(blocks.draw_blocks, blocks.BLOCK_CONTROLS, 12):
        shares = block_shares(blocks.SIZE, blocks.WORLD, values["block"])
        done = values["step"] * values["batch_size"]
        finished = done % values["block"] == 0 or done >= len(shares[0])
        assert ("1 piece left" in words or "0 pieces left" in words) == finished
        reads = sum(len(pages_of(share, values["rows_of_a_page"])) for share in shares)
        assert f" {reads} page reads of" in words
    at = {"block": 1, "batch_size": 4, "rows_of_a_page": 8}  # 12 positions a rank are 3 steps
    assert "after 3 steps" in alt_text(blocks.draw_blocks(**at, step=4))


def test_pieces_after_a_step_are_one_for_every_rank_with_epoch_shards():
    assert blocks.most_pieces(block_shares(32, 4, 8), 2) == 4
    assert blocks.most_pieces(block_shares(32, 4, 2), 2) == 1
    assert runs.pieces_after(block_shares(32, 4, 4), 1, 2) == 4
    assert runs.pieces_after(block_shares(32, 4, 4), 2, 2) == 1


def test_the_price_of_a_block_names_the_one_with_the_fewest_reads_that_leaves_one_piece():
    reads = {"file": {1: 9, 32: 5, 64: 3, 225: 3}, "shuffled": {1: 9, 32: 9, 64: 9, 225: 9}}
    left = {1: 1, 32: 1, 64: 8, 225: 8}
    assert blocks.fewest_with_a_prefix(reads["file"], left) == 32
    assert blocks.fewest_with_a_prefix(reads["file"], {**left, 64: 1}) == 64
    figure = blocks.draw_block_prices(reads, left)
    assert "file: 9 at 1, 5 at 32, 3 at 64, 3 at 225" in alt_text(figure)
    assert figure.get_suptitle().startswith("File: of the blocks")  # of the shuffled rows it is not so


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
    figure = n04.draw_calendar(size=34, before=4, after=3, steps=5, batch_size=2, restart=False)
    assert "36 + 0 uses" in figure.axes[0].get_title(loc="left")
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
    "no rank 7, calls beyond the end": (
        partial(n04.draw_cursor, Cursor),
        n04.CURSOR_CONTROLS,
        {"size": (7,), "world_size": (2, 8), "rank": (1, 7), "epoch": (0, 1), "calls": (0, 4)},
    ),
    "no step, blocks longer than what is used": (
        blocks.draw_blocks,
        blocks.BLOCK_CONTROLS,
        {"block": (1, 12), "batch_size": (2, 4), "step": (0, 2), "rows_of_a_page": (1, 16)},
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


@pytest.mark.costly
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


def test_the_title_of_the_mixing_is_true_of_the_rounds_drawn():
    """None of them may have a pattern, all, some, and one may stand alone."""
    said = {
        (1,): "has a pattern after 1 round",
        (3, 4): "has a pattern after 3, 4 rounds",
        (4, 5): "has a pattern up to 4 rounds, none from 5 on",
        (5, 8): "has no pattern after 5, 8 rounds",
    }
    for rounds, words in said.items():
        figure = n04.draw_mixing(np.arange(64.0).reshape(8, 8), rounds=rounds)
        assert figure.get_suptitle().endswith(f"seed 3 {words}")
