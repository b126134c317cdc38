"""The house keeps its shape (README, "Where each thing goes"): imports, sizes, and names."""

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tools.project import ROOT

DRAWING = {"matplotlib", "ipywidgets", "IPython"}
SHARED = {"support.built", "support.checks", "support.digits", "support.captions", "support.ranks",
    "support.recordings", "support.runs", "support.setup", "support.training"}  # fmt: skip

#: Lines at most in a file: about one concept.
FILE = 450


@cache
def modules() -> dict[str, Path]:
    found = {}
    for base, folder in (("lib", ROOT), ("support", ROOT / "notebooks"), ("tools", ROOT)):
        for path in sorted((folder / base).rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def tree(name: str) -> ast.Module:
    return ast.parse(modules()[name].read_text(encoding="utf-8"))


def imports(name: str, *, only_at_import: bool = False) -> Iterator[str]:
    def nodes(parent: ast.AST) -> Iterator[ast.AST]:
        for child in ast.iter_child_nodes(parent):
            if only_at_import and isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            if only_at_import and isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            yield child
            yield from nodes(child)

    for node in nodes(tree(name)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{name} imports relatively: write the full name"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def arrows(name: str) -> set[str]:
    ours = modules()
    found = (full if full in ours else full.rpartition(".")[0] for full in imports(name))
    return {module for module in found if module in ours and module != name}


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def room_of(name: str) -> str | None:
    found = re.match(r"support\.(n\d+)(\.|$)", name)
    return found[1] if found else None


def test_lib_imports_itself_torch_and_numpy_knows_nothing_of_the_notebooks_and_only_lib_show_draws():
    allowed = {"lib", "torch", "numpy", *sys.stdlib_module_names}
    for name in (name for name in modules() if name.startswith("lib")):
        outside = [full for full in imports(name) if full.split(".")[0] in ("support", "tools", "tests")]
        assert not outside, f"{name} imports {outside[0]}"
        if not name.startswith("lib.show"):
            foreign = {full.partition(".")[0] for full in imports(name, only_at_import=True)} - allowed
            assert not foreign, f"importing {name} needs {', '.join(foreign)}; `import lib` needs torch and numpy only"
            assert not {full.partition(".")[0] for full in imports(name)} & DRAWING, f"{name} draws"
            assert not [full for full in imports(name) if full.startswith("lib.show")], f"{name} imports lib.show"


def test_a_room_imports_lib_and_what_all_share_but_no_other_room_and_what_all_share_imports_none():
    rooms = [name for name in modules() if room_of(name)]
    assert len({room_of(name) for name in rooms}) == 16
    for name in rooms:
        for target in arrows(name):
            at_home = room_of(target) == room_of(name)
            assert at_home or target.partition(".")[0] == "lib" or target in SHARED, f"{name} imports {target}"
    for name in SHARED & modules().keys():
        # recordings names the functions that measure as text, and imports them only to record
        assert not [target for target in arrows(name) if room_of(target)], name


@pytest.mark.parametrize("base", ["lib", "support", "tools"])
def test_imports_go_round_in_no_circle(base: str):
    graph = {name: sorted(arrows(name)) for name in modules() if name.partition(".")[0] == base}
    done: set[str] = set()

    def visit(name: str, way: tuple[str, ...]) -> None:
        assert name not in way, " imports ".join((*way[way.index(name) :], name))
        if name not in done:
            for target in graph.get(name, ()):
                visit(target, (*way, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def test_folders_of_lib_go_round_in_no_circle():
    folders = defaultdict(set)
    for name in modules():
        if name.startswith("lib.") and name.count(".") > 1:
            home = name.split(".")[1]
            folders[home] |= {t.split(".")[1] for t in arrows(name) if t.count(".") > 1 and t.split(".")[1] != home}
    order: list[str] = []
    while folders:
        free = sorted(folder for folder, needs in folders.items() if needs <= set(order))
        assert free, f"a circle among the folders {', '.join(sorted(folders))}"
        order += free
        for folder in free:
            del folders[folder]


def test_a_file_is_one_concept():
    for name, path in modules().items():
        if not room_of(name):
            assert lines(path) <= FILE, f"{name} has {lines(path)} lines; above {FILE} a file is more than one concept"


def test_a_public_name_of_lib_means_one_thing():
    homes = defaultdict(list)
    for module in modules():
        if module.startswith("lib"):
            for name in defined(tree(module)):
                homes[name].append(module)
    assert {name: where for name, where in homes.items() if len(where) > 1} == {}


def defined(module: ast.Module) -> Iterator[str]:
    """Yield the public functions and types that a module defines: def, class, and names of types (Clock = …)."""
    for node in module.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names = [node.name]
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [t.id for t in targets if isinstance(t, ast.Name) and t.id[0].isupper() and not t.id.isupper()]
        else:
            names = []
        yield from (name for name in names if not name.startswith("_"))


def test_the_reading_path_takes_two_sittings():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    path = text[text.index("**Read it in two sittings.**") : text.index("## Where each thing goes")]
    files = re.findall(r"\]\((lib/[a-z_/]+\.py)\)", path)
    assert len(files) == 10
    assert sum(lines(ROOT / file) for file in files) <= 2_400
