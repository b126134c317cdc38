"""What the pictures of notebook 05 say, against lib's classes and the models that they are drawn from."""

import re

import numpy as np
import pytest

from lib.data import MetaFile, RankDataset
from lib.show.explore import explore
from lib.show.sheet import drawn_cells
from lib.show.style import ORANGE, alt_text
from support.captions import Holding, write_captions
from support.n05 import figures as n05
from support.n05.runs import MeasuredWay
from tests.pictures import corners


def test_a_full_cell_is_a_row_that_a_process_holds_for_itself():
    for values in corners(explore(n05.draw_holders, **n05.HOLDERS_CONTROLS), 20):
        figure = n05.draw_holders(**values)
        kind = n05.HOLDER_WAYS[values["way"]]
        ranks = values["world_size"]
        workers = values["workers"]
        plain = [patch.cell.index for patch in drawn_cells(figure) if patch.cell.mark == "plain"]
        held = {"naive": ranks * (1 + workers) * 24, "server": 24, "rank": 24 // ranks // 2 * ranks}.get(kind, 0)
        assert f"{held} rows in all" in alt_text(figure)
        assert len(plain) == held, "the page cache is drawn, and is nobody's"
        assert (kind == "rank" and workers > 0) == ("its workers share them" in figure.axes[0].get_title("left"))
        assert kind != "rank" or len(set(plain)) == len(plain), "no row is held by two ranks"
        assert kind != "rank" or "rows at a time" in figure.axes[0].get_title("left"), "the other half comes later"


@pytest.mark.costly
def test_a_page_is_copied_when_one_of_its_strings_was_read_and_growth_is_drawn_as_measured():
    for values in corners(explore(n05.draw_pages_copied, **n05.PAGES_COPIED_CONTROLS), 20):
        figure = n05.draw_pages_copied(**values)
        orange = [patch.cell for patch in drawn_cells(figure) if patch.cell.color == ORANGE]
        read = {cell.index // values["per_page"] for cell in orange if cell.mark == "plain"}
        assert {cell.index // values["per_page"] for cell in orange} == read
        assert sum(cell.mark == "plain" for cell in orange) == values["reads"]
        assert f"copied {len(read)} pages, of packed bytes none" in alt_text(figure)
        rest = n05.PAGED_ROWS % values["per_page"]
        assert (f"pages, only {rest} in the last." if rest else "pages. ") in alt_text(figure)
    figure = n05.draw_growth({"list": {10: 9_000_000, 1000: 10_000_000}, "packed": {10: 0, 1000: 0}}, [9e6, 10e6])
    assert "after reading 1,000 rows: list 10 MB; packed 0 MB" in alt_text(figure)


def test_the_map_shows_the_rows_that_every_rank_dataset_loads(tmp_path):
    write_captions(tmp_path / "rows.txt", n05.SIZE)
    padded = {"world_size": 5, "rank": 4, "mini_epochs": 3, "mini_epoch": 2, "epoch": 0}
    with MetaFile(tmp_path / "rows.txt") as meta_file:
        for values in [padded, *corners(explore(n05.draw_file_map, **n05.FILE_MAP_CONTROLS), 8)]:
            world = values["world_size"]
            parts = values["mini_epochs"]
            rank = min(values["rank"], world - 1)
            part = min(values["mini_epoch"], parts - 1)
            ids = []
            for other in range(world):
                dataset = RankDataset(meta_file, world, other, mini_epochs=parts)
                dataset.set_epoch(values["epoch"])
                ids.append(np.concatenate([*dataset.ids(part)]).tolist())
            figure = n05.draw_file_map(**values)
            words = alt_text(figure)
            said = words.split(" holds ")[1].split(";")[0]
            assert [int(number) for number in re.findall(r"\d+", said)] == ids[rank]
            assert f"on {len({row // n05.ROWS_A_PAGE for row in ids[rank]})} of 12 pages" in words
            assert ("There is no rank" in words) == (values["rank"] >= world)
            assert ("There is no mini-epoch" in words) == (values["mini_epoch"] >= parts)
            cells = [patch.cell for patch in drawn_cells(figure) if patch.cell.index != ""]
            assert {cell.index for cell in cells if cell.rank is not None} == set().union(*ids), values
            assert {cell.index for cell in cells if cell.rank == rank} == set(ids[rank])


@pytest.mark.parametrize("budget, fitting", [(400e6, 1), (50e6, 0), (2e9, 2)])
def test_a_run_fits_where_its_peak_does(budget, fitting):
    runs = {
        "few": MeasuredWay(Holding(1, 104e6), 115_000_000, 1.0),
        "many": MeasuredWay(Holding(6, 104e6), 690_000_000, 1.0),
    }
    words = alt_text(n05.draw_ways(runs, budget=budget))
    assert f"has room for {fitting} of these 2 runs" in words
    assert "many: peak 690 MB, predicted 624 MB" in words


@pytest.mark.parametrize("peaks", [(118, 685, 234), (227, 231, 57, 17), (20, 30)])
def test_the_legend_covers_neither_the_small_machine_nor_a_bar(peaks):
    runs = {f"way {peak}": MeasuredWay(Holding(1, peak * 0.9e6), int(peak * 1e6), 1.0) for peak in peaks}
    figure = n05.draw_ways(runs, budget=200e6)
    figure.canvas.draw()
    axes = figure.axes[0]
    around = axes.get_legend().get_window_extent()
    dashed = next(line for line in axes.lines if line.get_linestyle() == "--" and len(set(line.get_xdata())) == 1)
    texts = [text.get_window_extent() for text in axes.texts]
    assert not any(around.overlaps(other) for other in [dashed.get_window_extent(), *texts])
    assert not any(around.overlaps(bar.get_window_extent()) for bar in axes.patches)
