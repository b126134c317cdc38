"""Where the formatter is switched off, by a comment on the line or by two around some, for what is no table of data."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DISPLAYS = (ast.Tuple, ast.List, ast.Set, ast.Dict)
#: What a table may hold, beside numbers that are worked out (2**20) and what a constructor makes of the like.
LITERALS = (ast.Constant, ast.Name, ast.Attribute, ast.Subscript, ast.Starred, ast.keyword, *DISPLAYS)
#: Functions that, like a class, only put together what they are given.
CONSTRUCTORS = {"dict", "set", "frozenset", "tuple", "list", "range", "partial", "param", "parametrize", "tensor"}


def unformatted_code(text: str) -> Iterator[tuple[int, ast.stmt]]:
    """Yield the line where each such stretch begins, with the first statement in it that is no table of data."""
    for first, last in _stretches(text):
        others = [statement for statement in _innermost(text, first, last) if not _is_table(statement, first)]
        if others:
            yield first, others[0]


def _stretches(text: str) -> Iterator[tuple[int, int]]:
    """Yield the first and the last line of each stretch that a comment takes away from the formatter."""
    if "# fmt:" not in text:
        return
    off = None
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT:
            continue
        line = token.start[0]
        if re.match(r"# fmt: *skip\b", token.string):
            yield line, line
        elif re.match(r"# fmt: *off\b", token.string):
            off = line
        elif re.match(r"# fmt: *on\b", token.string) and off is not None:
            yield off, line
            off = None
    if off is not None:
        yield off, len(text.splitlines())


def _innermost(text: str, first: int, last: int) -> list[ast.stmt]:
    """Return the statements that touch these lines and hold no other statement that does, from top to bottom."""

    def touches(statement: ast.stmt) -> bool:
        begin = min(part.lineno for part in (statement, *getattr(statement, "decorator_list", ())))
        return begin <= last and first <= (statement.end_lineno or begin)

    statements = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.stmt)]
    touched = {statement for statement in statements if touches(statement)}
    innermost = [statement for statement in touched if not touched & (set(ast.walk(statement)) - {statement})]
    return sorted(innermost, key=lambda statement: statement.lineno)


def _is_table(statement: ast.stmt, line: int) -> bool:
    """Say whether a statement assigns, returns, expects or is parametrized by literals and nothing else."""
    table: ast.expr | None = None
    if isinstance(statement, (ast.Assign, ast.AnnAssign, ast.Return)):
        table = statement.value
    elif isinstance(statement, ast.Assert) and isinstance(statement.test, ast.Compare):
        table = statement.test.comparators[-1]
    elif isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
        on_line = (d for d in statement.decorator_list if d.lineno <= line <= (d.end_lineno or d.lineno))
        table = next(on_line, None)
    if table is None:
        return False
    parts = [part for part in ast.walk(table) if isinstance(part, (ast.expr, ast.keyword, ast.comprehension))]
    return all(map(_belongs_in_a_table, parts)) and any(isinstance(part, DISPLAYS) for part in parts)


def _belongs_in_a_table(part: ast.AST) -> bool:
    if isinstance(part, (ast.UnaryOp, ast.BinOp)):
        return not any(isinstance(inner, (ast.Name, ast.Call)) for inner in ast.walk(part))
    if isinstance(part, ast.Call):
        name = ast.unparse(part.func).rpartition(".")[2]
        return name in CONSTRUCTORS or name[:1].isupper()
    return isinstance(part, LITERALS)
