"""The index cell that the data notebooks share."""

from lib.show.sheet import Cell, cell_axes, cell_font, draw_cell, draw_cells, draw_legend, drawn_cells
from lib.show.style import HATCH, new_figure, pale, rank_color
from tests.lib.refusal import refuses


def sheet(columns=4, rows=2):
    figure, axes = new_figure(9, 3)
    return figure, cell_axes(axes, columns=columns, rows=rows)


def test_cells_are_where_they_were_drawn_and_hue_marks_and_texts_can_be_told_and_read():
    figure, axes = sheet()
    draw_cells(axes, [Cell(7, 0), Cell(8, 1), Cell(9)], columns=2)
    assert [(patch.cell.index, patch.at) for patch in drawn_cells(figure)] == [(7, (0, 0)), (8, (1, 0)), (9, (0, 1))]
    assert (Cell(0, 1).hue, Cell(0, 1, color="#123456").hue, Cell(0).hue) == (rank_color(1), "#123456", None)
    assert (pale("#000000", 0), pale("#123456", 1)) == ("#ffffff", "#123456")
    _, axes = sheet()
    padding, dropped = draw_cells(axes, [Cell(1, 0, "padding"), Cell(2, 0, "dropped")])
    assert padding.get_hatch() == HATCH["padding"]
    assert dropped.get_linestyle() != "-"
    assert len(axes.lines) == 2  # the cross
    refuses(ValueError, "mark must be one of plain, padding, dropped, faded, not 'gone'", Cell, 0, mark="gone")
    _, axes = sheet()
    draw_cell(axes, 0, 0, Cell(""))
    assert not axes.texts
    draw_legend(axes, [(Cell("", 0), "mine")], x=0, y=1, step=2)
    assert [text.get_text() for text in axes.texts] == ["mine"]
    for columns in (2, 20, 60):
        assert 9 <= cell_font(sheet(columns)[1]) <= 12
