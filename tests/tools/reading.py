"""What a machine can hold of "code is read to learn": rules on the text of one file, and who still breaks them.

Each rule takes the text of a file and yields what it finds: the line, what stands there, and what to do about it.
`python -m tests.tools.reading lib/pipeline tools/save.py` prints the findings in these folders and files;
`python -m tests.tools.reading --shrink` takes off the list of those that still break a rule what keeps to it now.
"""

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from tests.tools.unformatted import unformatted_code
from tools.project import ROOT

#: Lines at most in a file: about one concept.
FILE = 450
#: Lines at most in a function, its docstring included: one screen.
FUNCTION = 60
#: Columns of a line in notebooks and what is beside them (notebooks/ruff.toml); elsewhere there are 120.
NARROW = 110

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
Kind = type[ast.AST] | tuple[type[ast.AST], ...]


@cache
def nodes(text: str, kind: Kind) -> list[Any]:
    """Return the nodes of a kind in a file's tree."""
    return [node for node in _tree(text) if isinstance(node, kind)]


@cache
def _tree(text: str) -> list[ast.AST]:
    return list(ast.walk(ast.parse(text)))


def long_file(text: str) -> Iterator[str]:
    """A file is one concept."""
    lines = len(text.splitlines())
    if lines > FILE:
        yield f"{lines} lines: above {FILE} a file is more than one concept. Find the two, give each a file and a name"


def long_function(text: str) -> Iterator[str]:
    """A function fits a screen."""
    for function in nodes(text, FUNCTIONS):
        lines = function.end_lineno - function.lineno + 1
        if lines > FUNCTION:
            yield (
                f"line {function.lineno}: {function.name} has {lines} lines, a screen has {FUNCTION}. "
                "Give a part of it a name of its own"
            )


def unrelated_values(text: str) -> Iterator[str]:
    """One assignment a line: a tuple is written out on both sides only where the same things change places."""
    for assignment in nodes(text, ast.Assign):
        written_out = [part for part in (*assignment.targets, assignment.value) if isinstance(part, WRITTEN_OUT)]
        if assignment.value in written_out and len(written_out) > 1 and not _same_things(written_out):
            yield (
                f"line {assignment.lineno}: {_shortened(assignment)} assigns several values at once. "
                "Write one assignment a line"
            )


WRITTEN_OUT = (ast.Tuple, ast.List)


def _same_things(tuples: list[ast.Tuple | ast.List]) -> bool:
    first, *others = (sorted(map(ast.unparse, each.elts)) for each in tuples)
    return all(other == first for other in others)


def nested_conditional(text: str) -> Iterator[str]:
    """One decision an expression: `a if x else b` holds no second one."""
    for outer in nodes(text, ast.IfExp):
        decisions = [node for node in ast.walk(outer) if isinstance(node, ast.IfExp)]
        if len(decisions) > 1:
            yield (
                f"line {outer.lineno}: {_shortened(outer)} decides twice in one expression. "
                "Write if and elif, or give the inner decision a name"
            )


def formatting_off(text: str) -> Iterator[str]:
    """The formatter lays out everything but tables of data: what a statement between such comments holds is literal."""
    for line, statement in unformatted_code(text):
        yield (
            f"line {line}: the formatter is switched off for {_shortened(statement)}, which is no table of data "
            "(a list, dict, set or tuple of literals). Take the comment away and run ruff format"
        )


_CLOSES = re.compile(r"\s*([\])}].*?)  # (?!fmt: |type: |noqa)")


def torn_bracket(text: str) -> Iterator[str]:
    """A comment that does not fit behind its line stands above it: else the formatter takes the line apart for it."""
    lines = text.splitlines()
    for number, (opens, inside, closes) in enumerate(zip(lines, lines[1:], lines[2:], strict=False), start=1):
        end = _CLOSES.match(closes)
        if end is None or not opens.endswith(("(", "[", "{")) or inside.endswith(","):
            continue
        whole = f"{opens}{inside.strip()}{end[1]}"
        if len(whole) <= NARROW:
            yield f"line {number}: `{opens.strip()}` is torn open by the comment behind it. Write the comment above"


def _shortened(node: ast.AST) -> str:
    first, *more = ast.unparse(node).splitlines()
    return f"`{first}`" if len(first) <= 80 and not more else f"`{first[:80]} …`"


Rule = Callable[[str], Iterator[str]]
RULES: dict[str, Rule] = {
    "long file": long_file,
    "long function": long_function,
    "unrelated values": unrelated_values,
    "nested conditional": nested_conditional,
    "formatting off": formatting_off,
    "torn bracket": torn_bracket,
}

#: What a reader writes, word for word as the solutions' cells have it; and a cell may do in one line what a module
#: takes two for. (A room's famous mistakes are edits of this text.)
WORD_FOR_WORD = re.compile(r"notebooks/support/(built|n\d+/solved)\.py$")
NOT_THERE = {"unrelated values", "nested conditional"}
#: A shelf: a section a notebook, each of which is read by itself.
SHELF = "notebooks/support/built.py"


@cache
def files() -> tuple[str, ...]:
    """Return the Python files of lib, tools and tests, of the rooms, and the scripts beside the notebooks."""
    paths = [path for base in ("lib", "tools", "tests", "notebooks/support") for path in (ROOT / base).rglob("*.py")]
    paths += (ROOT / "notebooks").glob("*.py")
    return tuple(sorted(path.relative_to(ROOT).as_posix() for path in paths))


def findings(rule: str) -> dict[str, list[str]]:
    """Return what a rule finds, by file."""
    found = {}
    for name in files():
        said = list(RULES[rule]((ROOT / name).read_text(encoding="utf-8")))
        as_written = rule in NOT_THERE and WORD_FOR_WORD.match(name)
        excepted = as_written or (rule == "long file" and name == SHELF)
        if said and not excepted:
            found[name] = said
    return found


# ---- a name means one thing: the one rule that looks at several files at once

TWO_HOMES = "two homes"

#: A script's door; the mechanisms of lib as the reader has written them, word for word; what belongs to one notebook.
DOORS = {"main"}
WRITTEN_BY_THE_READER = re.compile(r"support\.(built|n\d+\.solved)$")
#: It becomes torch.simgpu, where torch looks for the names that torch.cuda has.
NAMES_OF_TORCH = {"lib.simulated.simgpu"}
OF_ONE_NOTEBOOK = ("draw_", "check_", "guess_")


@cache
def modules() -> dict[str, Path]:
    """Return the files of lib, support and tools by the full name of the module."""
    found = {}
    for base, folder in (("lib", ROOT), ("support", ROOT / "notebooks"), ("tools", ROOT)):
        for path in sorted((folder / base).rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def room_of(name: str) -> str | None:
    """Return the room of a module, "n07", or None for what no room holds."""
    found = re.match(r"support\.(n\d+)(\.|$)", name)
    return found[1] if found else None


def two_homes() -> dict[str, list[str]]:
    """Return the public names that two modules or more define, and which."""
    homes = defaultdict(list)
    for module, path in modules().items():
        if WRITTEN_BY_THE_READER.match(module) or module in NAMES_OF_TORCH:
            continue
        for name in _defined(path.read_text(encoding="utf-8")):
            own = room_of(module) and name.startswith(OF_ONE_NOTEBOOK)
            if not own and name not in DOORS:
                homes[name].append(module)
    return {name: where for name, where in homes.items() if len(where) > 1}


def _defined(text: str) -> Iterator[str]:
    """Yield the public functions and types that a module defines: def, class, and names of types (Clock = …)."""
    for node in ast.parse(text).body:
        names = []
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names = [node.name]
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [t.id for t in targets if isinstance(t, ast.Name) and t.id[0].isupper() and not t.id.isupper()]
        yield from (name for name in names if not name.startswith("_"))


# ---- what is still broken, and how much of it: neither may grow

KNOWN = ROOT / "tests/tools/known.txt"


def amount(said: list[str]) -> int:
    """Return how far a file breaks a rule: the lines of what is too long, else the number of places."""
    lines = [re.search(r"\b(\d+) lines", sentence) for sentence in said]
    return sum(int(found[1]) if found else 1 for found in lines)


def broken() -> dict[str, dict[str, int]]:
    """Return by rule the files that break it, and how far; names with two homes, and in how many they stand."""
    found = {rule: {name: amount(said) for name, said in findings(rule).items()} for rule in RULES}
    found[TWO_HOMES] = {name: len(where) for name, where in two_homes().items()}
    return found


def known() -> dict[str, dict[str, int]]:
    """Return what is known to break a rule, as `broken` does."""
    listed: dict[str, dict[str, int]] = {rule: {} for rule in (*RULES, TWO_HOMES)}
    for line in KNOWN.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            rule, what, size = line.split(": ")
            listed[rule][what] = int(size)
    return listed


def shrink() -> None:
    """Take off the list what keeps to the rules now, and note what breaks them less."""
    now = broken()
    head = [line for line in KNOWN.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    left = [
        f"{rule}: {what}: {min(size, now[rule][what])}"
        for rule, listed in known().items()
        for what, size in listed.items()
        if what in now[rule]
    ]
    KNOWN.write_text("\n".join([*head, *left]) + "\n", encoding="utf-8")


def main(under: list[str]) -> None:
    """Print what the rules find in the files whose names begin so; --shrink: take off the list what is mended."""
    if under == ["--shrink"]:
        shrink()
        return
    for rule in RULES:
        for name, said in findings(rule).items():
            if not under or name.startswith(tuple(under)):
                print(*(f"{name}: {sentence}" for sentence in said), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
