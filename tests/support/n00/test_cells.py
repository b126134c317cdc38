"""Cells of notebook 00 may be run again in any order: no loop takes the name of a function that another cell needs."""

import ast
import json

from tools.project import ROOT

NOTEBOOK = ROOT / "notebooks" / "00_start_here.ipynb"


def module_of_cells():
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code" and cell["id"] != "setup"]
    return [node for text in code for node in ast.parse(text).body]


def names_stored(node):
    if isinstance(node, ast.FunctionDef):
        return set()
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}


def test_no_cell_gives_the_name_of_a_function_to_something_else():
    nodes = module_of_cells()
    functions = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    assert "count" in functions
    taken = {name for node in nodes for name in names_stored(node) if name in functions}
    assert not taken
