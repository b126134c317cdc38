"""The figures of notebook 05 draw what the datasets do: every corner of every explorer is drawn and counted."""

from __future__ import annotations

import io
import math
import re
from functools import partial

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle
from support import recordings
from support.n05 import figures as copy_on_read
from support.n05 import figures as file_map
from support.n05 import figures as holders
from support.n05 import figures as memory
from support.n05 import figures as mini_epochs
from support.n05 import figures as queries
from support.n05 import figures as ways
from support.n05.runs import HOW, Run, predict, write_captions

from lib.data.meta import MetaFile
from lib.data.rank_dataset import RankDataset
from lib.show.explore import explore
from lib.show.sheet import drawn_cells
from lib.show.style import ORANGE, alt_text

RECORD = recordings.load("headline")


def run(way="naive", peak=500, workers=2, world_size=2, mini_epochs=1) -> Run:
    """A run that holds peak MB at last: half of it private to ranks, the rest shared, then to workers."""
    half = peak * 500_000
    return Run(
        way, 2_000_000, 44, world_size, workers, mini_epochs,
        times=[0.0, 0.5, 1.0], ranks=[0, half, half], workers=[0, 0, half], server=[0, 0, 0], shared=[0, half, 0],
        built=0.5, rows_per_second=1e6,
    )  # fmt: skip


RUNS = [run("one", 222, 0, 1), run("naive", 1300), run("rank", 50, mini_epochs=4)]
EXPLORERS = {
    "holders": (holders.draw_holders, holders.HOLDERS_CONTROLS),
    "memory": (partial(memory.draw_memory, runs=RUNS, record=RECORD), memory.MEMORY_CONTROLS),
    "pages": (copy_on_read.draw_pages_copied, copy_on_read.PAGES_COPIED_CONTROLS),
    "file map": (file_map.draw_file_map, file_map.FILE_MAP_CONTROLS),
    "seen": (mini_epochs.draw_seen, mini_epochs.SEEN_CONTROLS),
}


def corners(name):
    explorer = explore(EXPLORERS[name][0], **EXPLORERS[name][1])
    for values in explorer.corners():
        yield values, explorer.update(**values)


def numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


@pytest.mark.parametrize("name", EXPLORERS)
def test_at_the_start_each_control_changes_the_picture(name):
    def picture(figure):
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=40)
        return buffer.getvalue()

    draw, controls = EXPLORERS[name]
    explorer = explore(draw, **controls)
    first = picture(explorer.figure)
    for key, control in controls.items():
        place = control.options.index(control.value)
        neighbour = control.options[place + 1 if place + 1 < len(control.options) else place - 1]
        assert picture(draw(**{**explorer.values, key: neighbour})) != first, key


# ---- who holds which rows


def test_a_full_cell_is_a_row_that_a_process_holds_for_itself():
    for values, figure in corners("holders"):
        kind, ranks, workers = holders.WAYS[values["way"]], values["world_size"], values["workers"]
        plain = [patch.cell.index for patch in drawn_cells(figure) if patch.cell.mark == "plain"]
        faded = [patch.cell.index for patch in drawn_cells(figure) if patch.cell.mark == "faded"]
        holding = {"naive": ranks * (1 + workers) * 24, "server": 24, "rank": 24 // ranks // 2 * ranks}[kind]
        assert len(plain) == holding
        assert len(faded) == (holding * workers if kind == "rank" else 0)
        assert f"{holding} in all" in alt_text(figure)
        if kind == "rank":  # no row is held by two ranks
            assert len(set(plain)) == len(plain)


# ---- memory


def test_bars_are_the_model_and_what_exceeds_the_machine_is_hatched():
    for values, figure in corners("memory"):
        axes, machine = figure.axes[0], values["machine_gb"] * 1e9
        bars = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
        ends = [bar.get_x() + bar.get_width() for bar in bars]
        for way in ("naive", "server", "rank"):
            total = predict(
                way,
                rows=values["million_rows"] * 10**6,
                row_bytes=values["row_bytes"],
                world_size=values["world_size"],
                workers=values["workers"],
                mini_epochs=values["mini_epochs"],
            ).total
            assert any(math.isclose(end, max(total, memory.LEAST)) for end in ends)
        hatched = [bar for bar in bars if bar.get_hatch()]
        assert all(math.isclose(bar.get_x(), machine) for bar in hatched)
        assert len(hatched) == sum(end > machine * (1 + 1e-9) for end in ends)
        assert ("Nothing fits" in figure.get_suptitle()) == (len(hatched) == 4)


def test_every_measured_run_stands_beside_its_own_prediction():
    points = memory.points_of(RUNS, RECORD)
    assert [point.here for point in points] == [True, True, True, False]
    assert points[1].measured == 1300e6
    assert points[1].predicted == predict("naive", rows=2_000_000, row_bytes=44, world_size=2, workers=2).total
    assert points[3].label == "recorded: 400 M rows, W = 8, E = 8"
    assert 1 < points[3].measured / points[3].predicted < 1.1
    figure = memory.draw_memory(
        **{name: control.value for name, control in memory.MEMORY_CONTROLS.items()}, runs=RUNS, record=RECORD
    )
    drawn = {float(line.get_xdata()[0]) for line in figure.axes[0].lines if line.get_marker() in "oD"}
    assert drawn == {point.measured for point in points}
    assert recordings.provenance(RECORD) in figure.get_supxlabel()


def test_without_runs_or_recording_only_the_model_is_drawn():
    figure = memory.draw_memory(**{name: control.value for name, control in memory.MEMORY_CONTROLS.items()})
    assert "Measured" not in alt_text(figure)
    assert not [line for line in figure.axes[0].lines if line.get_marker() in "oD"]


def test_ways_are_stacked_to_their_pss_and_marked_where_they_exceed_the_machine():
    figure = ways.draw_ways({"small\nfew": RUNS[0], "large\nmany": RUNS[1]}, budget=400e6)
    assert "has room for 1 of these 2 ways" in alt_text(figure)
    assert "small few: peak 222 MB, fits; large many: peak 1.30 GB, over after 0.5 s" in alt_text(figure)
    for axes, one in zip(figure.axes, RUNS, strict=False):
        total = next(line for line in axes.lines if len(line.get_xdata()) == 3)
        assert [round(1e6 * y) for y in total.get_ydata()] == one.totals


# ---- copy on read


def test_a_page_is_copied_when_one_of_its_rows_was_read_but_never_a_packed_one():
    for values, figure in corners("pages"):
        copies = [patch.cell.index for patch in drawn_cells(figure) if patch.cell.color == ORANGE]
        read = [p.cell.index for p in drawn_cells(figure) if p.cell.color == ORANGE and p.cell.mark == "plain"]
        if values["rows"] == copy_on_read.PACKED:
            assert copies == []
        else:
            assert len(read) == values["reads"]
            assert {row // values["per_page"] for row in copies} == {row // values["per_page"] for row in read}
        pages = len({row // values["per_page"] for row in copies})
        assert alt_text(figure).endswith(f"copied {pages} pages.")


def test_growth_is_drawn_as_measured_and_says_so_where_nothing_can_be():
    grown = {
        "list of str": [(0, 0), (60, 9_000_000), (1000, 10_000_000)],
        "packed bytes": [(0, 0), (60, 0), (1000, 0)],
    }
    figure = copy_on_read.draw_growth(grown, 96)
    assert "list of str 10 MB; packed bytes 0 MB" in alt_text(figure)
    assert figure.axes[0].get_title("left").startswith("A sixteenth of the rows read, 90 % of the list")
    nothing = copy_on_read.draw_growth({"list of str": [], "packed bytes": []}, 96)
    assert "does not fork" in alt_text(nothing)


# ---- the file map


def test_the_map_shows_the_rows_that_a_rank_dataset_loads(tmp_path):
    write_captions(tmp_path / "rows.txt", file_map.SIZE)
    with MetaFile(tmp_path / "rows.txt") as meta_file:
        for values, figure in corners("file map"):
            rank = min(values["rank"], values["world_size"] - 1)
            part = min(values["mini_epoch"], values["mini_epochs"] - 1)
            dataset = RankDataset(meta_file, values["world_size"], rank, mini_epochs=values["mini_epochs"])
            dataset.set_epoch(values["epoch"])
            ids = np.concatenate([np.empty(0, int), *dataset.ids(part)]).tolist()
            said = alt_text(figure).split(" holds ")[1].split(";")[0]
            assert numbers(said) == ids
            pages = {row // file_map.PAGE for row in ids}
            assert f"on {len(pages)} of 12 pages" in alt_text(figure)
            bars = [patch for patch in figure.axes[0].patches if isinstance(patch, Rectangle)]
            assert sum(bar.get_fill() for bar in bars) == len(pages)
            shown = [patch.cell.index for patch in drawn_cells(figure) if isinstance(patch.cell.index, int)]
            assert sorted(shown) == sorted([*range(file_map.SIZE)] * 2)  # the order, and the file


# ---- epochs, costs, servers


def test_rows_of_another_epoch_are_hatched_in_its_colour():
    truth = [[0, 1], [2, 3], [4, 5]]
    figure = mini_epochs.draw_received({"kept": [[0, 1], [0, 1], [4, 5]], "new": truth}, truth)
    assert "kept: rows of epochs 0, 0, 2; new: rows of epochs 0, 1, 2" in alt_text(figure)
    assert figure.get_suptitle() == "kept: 1 of 3 epochs wrong; new: 0 of 3 epochs wrong"
    hatched = [patch.cell.index for patch in drawn_cells(figure) if patch.cell.mark == "padding"]
    assert hatched == [0, 1]


def test_a_rank_that_is_dealt_anew_sees_what_chance_predicts():
    for values, figure in corners("seen"):
        dashed, counted, once = figure.axes[0].lines[:3]
        assert np.abs(np.array(dashed.get_ydata()) - counted.get_ydata()).max() < 2.5
        assert set(once.get_ydata()) == {100 / values["world_size"]}
        assert len(counted.get_xdata()) == values["epochs"]


def test_cost_is_drawn_beside_the_model():
    costs = {1: {"bytes": 12_750_000, "seconds": 0.2}, 4: {"bytes": 3_187_500, "seconds": 0.4}}
    figure = mini_epochs.draw_cost(costs, 2_000_000, 44, 8)
    assert "E = 4 instead of 1: 25 % of the memory, 2.0 × the loading" in alt_text(figure)
    predicted, held = figure.axes[0].lines
    assert list(predicted.get_ydata()) == pytest.approx(list(held.get_ydata()))


def test_the_headline_shows_recording_and_prediction():
    figure = mini_epochs.draw_headline(RECORD)
    lines = [line for axes in figure.axes for line in axes.lines]
    flat = sorted(line.get_ydata()[0] for line in lines if len(line.get_ydata()) == 2)
    text, world = RECORD["predicted_text_bytes"] / 1e6, RECORD["world_size"]
    assert flat[0] == pytest.approx(text)
    assert flat[2] == pytest.approx(world * text)
    assert len(lines[0].get_xdata()) == len(RECORD["alone"]["pss_over_time"])
    assert recordings.provenance(RECORD) in figure.get_supxlabel()


def test_queries_are_drawn_by_server_and_by_way_to_ask():
    table = {
        "slow": dict(zip(HOW, (1000.0, 22.0, 5000.0), strict=True)),
        "fast": dict(zip(HOW, (2e3, 9e3, 5e5), strict=True)),
    }
    figure = queries.draw_queries(table)
    assert figure.axes[0].get_title("left") == "The same rows from one server: 22 to 500 k a second"
    marks = sorted(float(x) for line in figure.axes[0].lines if line.get_marker() in "os^" for x in line.get_xdata())
    assert marks == sorted(rate for rates in table.values() for rate in rates.values())
    assert to_hex(figure.get_facecolor()) == "#ffffff"


def test_the_late_acknowledgement_limits_the_queries():
    assert "at most 25 queries a second" in alt_text(queries.draw_late())
    assert "at most 5 queries a second" in alt_text(queries.draw_late(0.2))
