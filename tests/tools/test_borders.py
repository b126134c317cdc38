"""The house keeps its shape (CONTRIBUTING.md, "Where each thing goes"): imports, names, code laid out to be read."""

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from support.course import COURSE
from tests.tools.reading import FILE, FUNCTION, RULES, TWO_HOMES, amount, findings, known, modules, room_of, two_homes
from tools.project import ROOT

DRAWING = {"matplotlib", "ipywidgets", "IPython"}


@cache
def tree(name: str) -> ast.Module:
    return ast.parse(modules()[name].read_text(encoding="utf-8"))


@cache
def imports(name: str, *, only_at_import: bool = False) -> list[str]:
    """Return the full names that a module imports; only_at_import: without those in functions and for type checkers."""

    def statements(parent: ast.AST) -> Iterator[ast.AST]:
        for child in ast.iter_child_nodes(parent):
            if isinstance(child, ast.expr):
                continue
            if only_at_import and isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            if only_at_import and isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            yield child
            yield from statements(child)

    found = []
    for statement in statements(tree(name)):
        if isinstance(statement, ast.Import):
            found += [alias.name for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom):
            assert statement.level == 0, f"{name} imports relatively: write the full name"
            assert statement.module, f"{name} imports relatively: write the full name"
            found += [f"{statement.module}.{alias.name}" for alias in statement.names]
    return found


def arrows(name: str) -> set[str]:
    ours = modules()
    found = (full if full in ours else full.rpartition(".")[0] for full in imports(name))
    return {module for module in found if module in ours and module != name}


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


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
    shared = {name for name in modules() if name.startswith("support.") and not room_of(name)}
    assert {room_of(name) for name in rooms} == {chapter.room for chapter in COURSE}
    for name in rooms:
        for target in arrows(name):
            at_home = room_of(target) == room_of(name)
            assert at_home or target.partition(".")[0] == "lib" or target in shared, f"{name} imports {target}"
    for name in shared:
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


@pytest.mark.parametrize("base", ["lib", "support"])
def test_folders_go_round_in_no_circle(base: str):
    # of what lies beside lib's folders some stands below them, lib.arguments, and some above, lib.measure
    files = {name: path.parent for name, path in modules().items() if path.parent != ROOT / "lib"}
    folders: defaultdict[Path, set[Path]] = defaultdict(set)
    for name, home in files.items():
        if name.partition(".")[0] == base:
            needs = {files[target] for target in arrows(name) if target.startswith(f"{base}.") and target in files}
            folders[home] |= needs - {home}
    done: set[Path] = set()
    while folders:
        free = sorted(folder for folder, needs in folders.items() if needs <= done)
        assert free, f"a circle among the folders {', '.join(sorted(folder.name for folder in folders))}"
        done |= {*free}
        for folder in free:
            del folders[folder]


def test_no_prediction_and_no_check_of_a_room_imports_its_figures():
    for name in (name for name in modules() if room_of(name)):
        drawn = [target for target in arrows(name) if target.endswith(".figures")]
        assert not drawn, f"{name} imports {drawn[0]}: move what both need to a file that draws nothing"


def test_the_kit_stands_on_itself_alone():
    for name in (name for name in modules() if name.startswith("support.kit.")):
        above = [target for target in arrows(name) if not target.startswith("support.kit.")]
        assert not above, f"{name} imports {above[0]}: the kit is what all rooms stand on"


def test_pipeline_schedules_and_streams_stand_on_runtime_and_do_not_import_each_other():
    siblings = {"pipeline", "schedules", "streams"}
    above_runtime = {*siblings, "data", "training", "show"}
    for name in (name for name in modules() if name.startswith("lib.")):
        home = name.split(".")[1]
        targets = {full.split(".")[1] for full in imports(name) if full.startswith("lib.")}
        if home == "runtime":
            assert not targets & above_runtime, f"{name} imports {targets & above_runtime}; runtime is below them"
        if home in siblings:
            others = targets & (siblings - {home})
            assert not others, f"{name} imports {others}; move what both need to lib.runtime"


def test_no_file_name_stands_twice_in_lib():
    homes = defaultdict(list)
    for path in (ROOT / "lib").rglob("*.py"):
        if path.name != "__init__.py":
            homes[path.name].append(str(path.relative_to(ROOT)))
    twice = [paths for paths in homes.values() if len(paths) > 1]
    assert not twice, f"open one of these and you may be at the wrong door: {twice}"


#: So many files need a map, in the docstring of the folder's __init__: lines that begin with names of files.
NEEDS_A_MAP = 10
MAPPED = [
    folder
    for base in ("lib", "notebooks/support/kit")
    for folder in [ROOT / base, *(ROOT / base).iterdir()]
    if folder.is_dir() and len(list(folder.glob("*.py"))) > NEEDS_A_MAP
]


@pytest.mark.parametrize("folder", MAPPED, ids=lambda folder: folder.name)
def test_a_large_folder_has_a_map_that_names_each_of_its_files_once(folder: Path):
    map_of_it = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""
    rows = re.findall(r"(?m)^((?:[a-z_]+, )*[a-z_]+) {2,}\S", map_of_it)
    named = [name for row in rows for name in row.split(", ")]
    there = [path.stem for path in folder.glob("*.py") if path.stem != "__init__"]
    assert sorted(named) == sorted(there)


def test_the_folders_that_need_a_map_are_found():
    assert {folder.name for folder in MAPPED} >= {"data", "pipeline", "runtime", "schedules", "streams", "kit"}


@pytest.mark.parametrize("rule", RULES)
def test_code_is_laid_out_to_be_read(rule: str):
    found = findings(rule)
    listed = known()[rule]
    worse = [name for name, said in sorted(found.items()) if amount(said) > listed.get(name, 0)]
    assert not worse, "\n".join(f"{name}: {sentence}" for name in worse for sentence in found[name])
    mended = sorted(name for name, size in listed.items() if amount(found.get(name, [])) < size)
    assert not mended, f"break the rule less now; run `python -m tests.tools.reading --shrink`: {', '.join(mended)}"


LONG = "def long():\n" + FUNCTION * "    pass\n"
BROKEN = {
    "long file": [FILE * "pass\n" + "pass\n"],
    "long function": [LONG, LONG.replace("def", "async def")],
    "unrelated values": [
        "a, b = 1, f(2)",
        "[a, b] = [1, 2]",
        "a, b = b, a + b",
        "self.a, (b, c) = d, (e, f)",
        "a, *b = c, d, e",
        "whole = a, b = 1, 2",
    ],
    "nested conditional": ["a = 1 if b else 2 if c else 3", "a = f(1 if b else 2) if c else 3"],
    "formatting off": [
        "def f(a,\n      b): ...  # fmt: skip",
        "a = f(b,\n      [1, 2])  # fmt: skip",
        "a = [1,\n     lambda: 2]  # fmt: skip",
        "a = [b for b in c]  # fmt: skip",
        "@mark(f(1),  # one\n      2)  # fmt: skip\ndef g(): ...",
        "# fmt: off\na = [1,\n     2]\nf(a)",
        "# fmt: off\na = [1,\n     2]\n# fmt: on\nb = {}\n# fmt: off\nf(a)\n# fmt: on",
    ],
    "torn bracket": [
        "try: f()\nexcept (\n    Exception\n):  # whatever it is\n    pass",
        "a: tuple[\n    int, ...\n] = ()  # so many",
        "f(\n    a, b\n)  # because",
    ],
}
KEPT = {
    "long file": [FILE * "pass\n"],
    "long function": [LONG.replace("    pass\n", "", 1), "class Long:\n" + FUNCTION * "    pass\n"],
    "unrelated values": [
        "a, b = b, a",
        "a[0], a[1] = a[1], a[0]",
        "m, n = shape",
        "a = b = 1",
        "a = 1, 2",
        "(a,) = f()",
    ],
    "nested conditional": ["a = 1 if b else 2\nc = 3 if d else 4", "a = [1 if b else 2, 3 if c else 4]"],
    "formatting off": [
        "a = 'after # fmt: skip nothing is formatted'",
        "# fmt: off\n__all__ = ['a',\n           'b']",
        "TABLE = {'a': Case(1, b, size=(2, 3)),\n         'c': [-1, 2**20, d.e]}  # fmt: skip",
        "@pytest.mark.parametrize('a', [(1, 2),\n                               (3, 4)])  # fmt: skip\ndef f(a): g(a)",
        "assert f(1) == [[1, 2],\n               [3, 4]]  # fmt: skip",
        "# fmt: off\na = [1,\n     2]\n# fmt: on\nf(a)",
    ],
    "torn bracket": [
        "# because\nf(a, b)",
        "f(\n    a,\n    b,\n)  # because",
        "f(\n    a, b\n)  # type: ignore[arg-type]",
        f"f(\n    {110 * 'a'}\n)  # because",
    ],
}


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_finds_what_breaks_it_and_nothing_else(rule: str):
    for text in BROKEN[rule]:
        assert len(list(RULES[rule](text))) == 1, text
    for text in KEPT[rule]:
        assert list(RULES[rule](text)) == [], text


def test_a_public_name_means_one_thing_in_lib_support_and_tools_together():
    found = two_homes()
    listed = known()[TWO_HOMES]
    new = [name for name, where in sorted(found.items()) if len(where) > listed.get(name, 0)]
    said = [f"{name} stands in {' and in '.join(found[name])}" for name in new]
    assert not new, "; ".join([*said, "give one of them a name that says what sets it apart"])
    fewer = sorted(name for name, size in listed.items() if len(found.get(name, [])) < size)
    assert not fewer, f"have fewer homes now; run `python -m tests.tools.reading --shrink`: {', '.join(fewer)}"


def test_the_reading_path_takes_two_sittings():
    text = (ROOT / "docs" / "lib.md").read_text(encoding="utf-8")
    path = text[text.index("**Read it in two sittings.**") :].split("\n## ")[0]
    files = re.findall(r"\]\(\.\./(lib/[a-z_/]+\.py)\)", path)
    assert len(files) == 13
    length = sum(lines(ROOT / file) for file in files)
    assert length <= 2_400, f"{length} lines are more than two sittings: take a file off the path"
    told = int(re.findall(r"That is about ([\d,]+) lines", path)[0].replace(",", ""))
    assert abs(length - told) <= 100, f"docs/lib.md says about {told} lines, and it is {length}"
