"""The figures of notebook 05 say what the datasets do."""

import re

import numpy as np
import pytest

from lib.data.meta import MetaFile
from lib.data.rank_dataset import RankDataset
from lib.show.explore import explore
from lib.show.sheet import drawn_cells
from lib.show.style import ORANGE, alt_text
from support import recordings
from support.n05 import figures as n05
from support.n05.runs import HOW, Run, predict, write_captions
from tests.pictures import corners, told

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
MEMORY = {name: control.value for name, control in n05.MEMORY_CONTROLS.items()}


def test_a_full_cell_is_a_row_that_a_process_holds_for_itself():
    for values in corners(explore(n05.draw_holders, **n05.HOLDERS_CONTROLS), 20):
        figure = n05.draw_holders(**values)
        kind, ranks, workers = n05.HOLDER_WAYS[values["way"]], values["world_size"], values["workers"]
        plain = [patch.cell.index for patch in drawn_cells(figure) if patch.cell.mark == "plain"]
        holding = {"naive": ranks * (1 + workers) * 24, "server": 24, "rank": 24 // ranks // 2 * ranks}[kind]
        assert len(plain) == holding and f"{holding} in all" in alt_text(figure)
        assert kind != "rank" or len(set(plain)) == len(plain), "no row is held by two ranks"


def test_a_way_is_said_to_fit_where_the_model_fits_the_machine():
    for values in corners(explore(n05.draw_memory, **n05.MEMORY_CONTROLS), 40):
        figure = n05.draw_memory(**values)
        ends = [bar.get_x() + bar.get_width() for bar in figure.axes[0].patches]
        machine = values.pop("machine_gb") * 1e9
        rows = values.pop("million_rows") * 10**6
        for way in ("naive", "server", "rank"):
            total = predict(way, rows=rows, **values).total
            assert max(total, n05.LEAST) in (pytest.approx(end) for end in ends)
        assert ("Nothing fits" in figure.get_suptitle()) == (sum(end > machine * (1 + 1e-9) for end in ends) == 4)


def test_runs_stand_beside_their_predictions_and_are_marked_where_they_exceed_the_machine():
    points = n05.points_of(RUNS, RECORD)
    assert [point.here for point in points] == [True, True, True, False] and points[1].measured == 1300e6
    assert points[1].predicted == predict("naive", rows=2_000_000, row_bytes=44, world_size=2, workers=2).total
    assert points[3].label == "recorded: 400 M rows, W = 8, E = 8"
    assert 1 < points[3].measured / points[3].predicted < 1.1
    figure = n05.draw_memory(**MEMORY, runs=RUNS, record=RECORD)
    assert "Measured" in alt_text(figure) and recordings.provenance(RECORD) in figure.get_supxlabel()
    assert "Measured" not in alt_text(n05.draw_memory(**MEMORY)), "without runs only the model"
    figure = n05.draw_ways({"small\nfew": RUNS[0], "large\nmany": RUNS[1]}, budget=400e6)
    assert "has room for 1 of these 2 ways" in alt_text(figure)
    assert "small few: peak 222 MB, fits; large many: peak 1.30 GB, over after 0.5 s" in alt_text(figure)


def test_a_page_is_copied_when_one_of_its_rows_was_read_but_never_a_packed_one():
    for values in corners(explore(n05.draw_pages_copied, **n05.PAGES_COPIED_CONTROLS), 40):
        figure = n05.draw_pages_copied(**values)
        orange = [patch.cell for patch in drawn_cells(figure) if patch.cell.color == ORANGE]
        pages = {cell.index // values["per_page"] for cell in orange}
        read = [cell.index for cell in orange if cell.mark == "plain"]
        assert len(read) == (0 if values["rows"] == n05.PACKED else values["reads"])
        assert pages == {row // values["per_page"] for row in read}
        assert alt_text(figure).endswith(f"copied {len(pages)} pages.")


def test_growth_is_drawn_as_measured_and_says_so_where_nothing_can_be():
    grown = {"list of str": [(0, 0), (60, 9_000_000), (1000, 10_000_000)], "packed bytes": [(0, 0), (60, 0), (1000, 0)]}
    figure = n05.draw_growth(grown, 96)
    assert "list of str 10 MB; packed bytes 0 MB" in alt_text(figure)
    assert figure.axes[0].get_title("left").startswith("A sixteenth of the rows read, 90 % of the list")
    nothing = n05.draw_growth({"list of str": [], "packed bytes": []}, 96)
    assert "does not fork" in alt_text(nothing)


def test_the_map_shows_the_rows_that_a_rank_dataset_loads(tmp_path):
    write_captions(tmp_path / "rows.txt", n05.SIZE)
    with MetaFile(tmp_path / "rows.txt") as meta_file:
        for values, words in told(n05.draw_file_map, n05.FILE_MAP_CONTROLS, 24):
            rank = min(values["rank"], values["world_size"] - 1)
            part = min(values["mini_epoch"], values["mini_epochs"] - 1)
            dataset = RankDataset(meta_file, values["world_size"], rank, mini_epochs=values["mini_epochs"])
            dataset.set_epoch(values["epoch"])
            ids = np.concatenate([np.empty(0, int), *dataset.ids(part)]).tolist()
            said = words.split(" holds ")[1].split(";")[0]
            assert [int(number) for number in re.findall(r"\d+", said)] == ids
            assert f"on {len({row // n05.PAGE for row in ids})} of 12 pages" in words


def test_rows_of_another_epoch_are_hatched_in_its_colour():
    truth = [[0, 1], [2, 3], [4, 5]]
    figure = n05.draw_received({"kept": [[0, 1], [0, 1], [4, 5]], "new": truth}, truth)
    assert "kept: rows of epochs 0, 0, 2; new: rows of epochs 0, 1, 2" in alt_text(figure)
    assert figure.get_suptitle() == "kept: 1 of 3 epochs wrong; new: 0 of 3 epochs wrong"
    assert [patch.cell.index for patch in drawn_cells(figure) if patch.cell.mark == "padding"] == [0, 1]


def test_a_rank_that_is_dealt_anew_sees_what_chance_predicts():
    for values in corners(explore(n05.draw_seen, **n05.SEEN_CONTROLS), 38):
        dashed, counted, once = (np.array(line.get_ydata()) for line in n05.draw_seen(**values).axes[0].lines[:3])
        assert abs(dashed - counted).max() < 2.5 and len(counted) == values["epochs"]
        assert set(once) == {100 / values["world_size"]}


def test_cost_and_headline_are_drawn_beside_the_model():
    costs = {1: {"bytes": 12_750_000, "seconds": 0.2}, 4: {"bytes": 3_187_500, "seconds": 0.4}}
    figure = n05.draw_cost(costs, 2_000_000, 44, 8)
    assert "E = 4 instead of 1: 25 % of the memory, 2.0 × the loading" in alt_text(figure)
    predicted, held = figure.axes[0].lines
    assert list(predicted.get_ydata()) == pytest.approx(list(held.get_ydata()))
    figure = n05.draw_headline(RECORD)
    flat = sorted(line.get_ydata()[0] for axes in figure.axes for line in axes.lines if len(line.get_ydata()) == 2)
    text, world = RECORD["predicted_text_bytes"] / 1e6, RECORD["world_size"]
    assert (flat[0], flat[2]) == (pytest.approx(text), pytest.approx(world * text))
    assert recordings.provenance(RECORD) in figure.get_supxlabel()


def test_queries_are_drawn_by_way_to_ask_and_a_late_acknowledgement_limits_them():
    rates = {"slow": (1000.0, 22.0, 5000.0), "fast": (2e3, 9e3, 5e5)}
    figure = n05.draw_queries({name: dict(zip(HOW, three, strict=True)) for name, three in rates.items()})
    assert figure.axes[0].get_title("left") == "The same rows from one server: 22 to 500 k a second"
    assert "at most 25 queries a second" in alt_text(n05.draw_late())
    assert "at most 5 queries a second" in alt_text(n05.draw_late(0.2))
