"""What later notebooks go on from is, word for word, what the solutions of the earlier ones have."""

import ast
import json
import re

import pytest

from support import built
from tools.hygiene import joined
from tools.project import ROOT, chapters, notebooks

SOLUTIONS = {path.name[:2]: path for path in notebooks() if path.parent.name == "solutions"}
NOTEBOOKS = {path.name[:2]: path for path in chapters()}
TEXT = (ROOT / "notebooks" / "support" / "built.py").read_text(encoding="utf-8")


def sections(text):
    head, *parts = re.split(r"(?m)^# ---- (\d\d): .*$", text)
    assert not [part for part in ast.parse(head).body[1:] if not isinstance(part, (ast.Import, ast.ImportFrom))]
    return {number: ast.parse(part).body for number, part in zip(parts[::2], parts[1::2], strict=True)}


def name_of(part):
    return part.name if isinstance(part, (ast.FunctionDef, ast.ClassDef)) else ast.unparse(part.targets[0])


def statements(path):
    """Return every statement of a notebook's code cells, and `x = y` for what reads `x = use(y, its check)`."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = [joined(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    own = [text for text in code if "from support.setup import setup" not in text]  # it has a shell's command
    parts = [part for text in own for part in ast.parse(text).body]
    used = [part for part in parts if re.match(r"\w+ = (checks\.)?use\(\w+,", ast.unparse(part))]
    return parts + [ast.parse(f"{name_of(part)} = {part.value.args[0].id}").body[0] for part in used]


def solved(number):
    """Return the syntax tree, as text, of what a solution has, and of what only its notebook has: no exercise."""
    parts = statements(SOLUTIONS[number])
    known = {name_of(part) for part in parts if isinstance(part, (ast.FunctionDef, ast.ClassDef))}
    shown = [part for part in statements(NOTEBOOKS[number]) if isinstance(part, (ast.FunctionDef, ast.ClassDef))]
    return {ast.dump(part) for part in parts + [part for part in shown if part.name not in known]}


def invented(text):
    found = []
    for number, parts in sections(text).items():
        right = solved(number)
        found += [name_of(part) for part in parts if ast.dump(part) not in right]
    return found


def rooms_that_say_so():
    """Return the rooms whose solved.py says of itself that it has the solution word for word."""
    files = sorted((ROOT / "notebooks/support").glob("n*/solved.py"))
    return [path for path in files if "word for word" in ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))]


@pytest.mark.parametrize("path", rooms_that_say_so(), ids=lambda path: path.parent.name)
def test_a_room_that_says_word_for_word_has_its_solution_word_for_word(path):
    right = solved(path.parent.name[1:])
    body = ast.parse(path.read_text(encoding="utf-8")).body
    parts = [part for part in body if isinstance(part, (ast.FunctionDef, ast.ClassDef))]
    assert parts
    assert [part.name for part in parts if ast.dump(part) not in right] == []


def test_every_part_is_as_its_solution_has_it_and_stands_there_once():
    assert invented(TEXT) == []
    names = [name_of(part) for parts in sections(TEXT).values() for part in parts]
    assert len(names) == len(set(names))
    assert [name for name in names if not hasattr(built, name)] == []
    assert list(sections(TEXT)) == sorted(sections(TEXT))


@pytest.mark.parametrize(
    "old, new, culprit",
    [
        ("trained[::-1]", "trained", "MyDDP"),
        ("def my_step(replicas, batches", "def my_step(batches, replicas", "my_step"),
        ("share = my_share", "share = sorted", "share"),
        ("def reduce_scatter(tensor, dist):\n", 'def reduce_scatter(tensor, dist):\n    ""\n', "reduce_scatter"),
        ("# ---- 16: ", "# ---- 15: ", "save"),
        ("# ---- 06: ", "def more(): ...\n\n\n# ---- 06: ", "more"),
        ("answers = [out_queues", "answers = [in_queues", "run_clock"),
        ("serve = worker", "serve = spawn_workers", "serve"),
        ("self.grad = torch.is_grad", "self.grad = not torch.is_grad", "Task"),
    ],
)  # fmt: skip
def test_any_difference_is_found(old, new, culprit):
    assert old in TEXT
    assert culprit in invented(TEXT.replace(old, new, 1))
