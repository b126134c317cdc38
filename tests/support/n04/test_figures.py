"""The figures of notebook 04 say what the samplers do."""

import math
import re
from functools import partial

import numpy as np
import pytest
from torch.utils.data import DistributedSampler as TorchSampler

from lib.data.permutation import Permutation
from lib.show.sheet import drawn_cells
from lib.show.style import alt_text
from support.n04 import figures as n04
from tests.pictures import told


def mix(index: int) -> int:
    """A shuffle of 0..63 that leaves 0 for the last."""
    return (index * 37 + 11) % 64


def numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


def test_a_rank_reads_the_pages_that_hold_its_samples_and_reads_are_summed_over_ranks():
    for values, words in told(n04.draw_pages, n04.PAGES_CONTROLS, 24):
        size, world_size, page = values["size"], values["world_size"], values["page"]
        said = numbers(words.split("Pages read by rank: ")[1])[:world_size]
        local = math.ceil(size / world_size)
        if values["cut"] == "stride":
            own = [list(TorchSampler(range(size), world_size, r, values["shuffle"])) for r in range(world_size)]
            assert said == [len({i // page for i in each}) for each in own]
        elif not values["shuffle"]:
            own = [[p % size for p in range(r * local, (r + 1) * local)] for r in range(world_size)]
            assert said == [len({i // page for i in each}) for each in own]
    figure = n04.draw_page_reads({"stride": [[0, 1, 2], [0, 1, 2]], "contiguous": [[0, 1], [1, 2]]}, pages=3)
    assert "summed: stride 6; contiguous 4" in alt_text(figure)


def test_the_cursor_walks_through_its_shard_and_stops_at_its_end():
    for values, words in told(n04.draw_cursor, n04.CURSOR_CONTROLS, 40):
        size, world_size = values["size"], values["world_size"]
        rank = min(values["rank"], world_size - 1)
        local = -(-size // world_size) if values["duplicates"] else size // world_size
        assert max(0, size - local * world_size) == len(numbers(words.partition("In no shard: ")[2]))
        stands = min(rank * local + values["calls"] * values["batch_size"], (rank + 1) * local)
        assert f"index() = {stands}." in words


def test_both_samplers_leave_out_the_same_number_but_only_libtorch_the_same_ones():
    for values, words in told(n04.draw_never_seen, n04.NEVER_SEEN_CONTROLS, 12):
        rest = values["size"] % values["world_size"]
        tail = range(values["size"] - rest, values["size"])
        assert words.split("libtorch ")[1].split(";")[0] == (n04.listed(list(tail)) if rest else "none")


@pytest.mark.parametrize("world_size", n04.WORLDS)
def test_ranks_that_disagree_miss_as_much_as_predicted_and_those_that_agree_read_everything_once(world_size):
    predicted = (1 - 1 / world_size) ** world_size
    assert n04.missed_share(world_size) == pytest.approx(predicted, abs=0.02)
    for agree in (True, False):
        controls = {name: control.value for name, control in n04.MISSED_CONTROLS.items()}
        figure = n04.draw_missed(**{**controls, "world_size": world_size, "agree": agree})
        reads = [patch.cell.index for patch in drawn_cells(figure)]
        assert sum(reads) == n04.DECK and (set(reads) == {1}) == (agree or world_size == 1)


def test_what_is_left_is_one_piece_with_stride_and_one_per_rank_otherwise():
    for values, words in told(n04.draw_rest, n04.REST_CONTROLS, 24):
        size, world_size = values["size"], values["world_size"]
        used = n04.used_at(size, world_size, values["step"], values["batch_size"], "stride")
        done = values["step"] * values["batch_size"]
        assert [who is not None for who in used] == [p < done * world_size for p in range(size)]
        free = [
            who is None for who in n04.used_at(size, world_size, values["step"], values["batch_size"], "contiguous")
        ]
        pieces = sum(now and not before for before, now in zip([False, *free], free, strict=False))
        assert f"{pieces} with contiguous shards" in words
        if size % world_size == 0 and 0 < done < size // world_size:
            assert pieces == world_size


def test_no_sample_is_lost_or_comes_twice_after_a_restart_and_the_calendar_names_its_step():
    for values, _ in told(n04.draw_calendar, n04.CALENDAR_CONTROLS, 24):
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


def test_each_round_is_drawn_where_it_puts_an_index():
    places = [[(i * (2 * k + 1)) % 64 for i in range(64)] for k in range(4)]
    figure = n04.draw_rounds(places, follow=9)
    for round_, axes in zip(places, figure.axes, strict=True):
        assert {patch.cell.index: patch.at for patch in axes.patches}[9] == (round_[9] % 8, round_[9] // 8)


def test_every_walk_ends_inside_no_two_end_alike_and_the_words_tell_it():
    for size in range(33, 65):
        paths = [n04.walk_path(mix, index, size) for index in range(size)]
        assert [path[0] for path in paths] == list(range(size))
        assert all(place >= size for path in paths for place in path[1:-1])
        assert sorted(path[-1] for path in paths) == list(range(size))
    for values, words in told(partial(n04.draw_walk, mix), n04.WALK_CONTROLS):
        path = n04.walk_path(mix, min(values["index"], values["size"] - 1), values["size"])
        assert f"walks {' → '.join(map(str, path))}." in words


def test_few_rounds_leave_a_pattern_that_figure_and_lag_test_show_and_eight_leave_none():
    for values, words in told(partial(n04.draw_mixing, np.arange(64.0).reshape(8, 8)), n04.MIXING_CONTROLS):
        beyond = numbers(words.split("lags beyond 5: ")[1])[0]
        assert (beyond > 0) == (values["rounds"] <= 4), values
    lags = [2**k for k in range(12)]
    true = np.random.default_rng(5).permutation(4096)
    assert max(n04.lag_surprise(true, lag) for lag in lags) < n04.CHANCE
    assert min(n04.lag_surprise(np.arange(4096), lag) for lag in lags) > n04.CHANCE
    weak = Permutation(4096, rounds=2)[np.arange(4096)]
    assert max(n04.lag_surprise(weak, lag) for lag in lags) > 100
