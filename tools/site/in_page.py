"""What runs in the Python of a page: a reader's code, and the exercise's own check of it, as in the notebook.

The rooms are read as they are. Some import torch or NumPy for other exercises; in a page those are missing, and a
placeholder stands in for them while the rooms are read. Afterwards it raises: no verdict comes from a placeholder.

judge  a reader's code and the name of a check; returns the verdict and what was printed, as JSON
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import importlib
import importlib.abc
import importlib.machinery
import io
import json
import linecache
import sys
import time
import traceback
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar

#: Packages that the rooms import and a page has not.
GONE = frozenset({"IPython", "PIL", "ipywidgets", "matplotlib", "numpy", "psutil", "torch"})
#: Under this name the reader's code is compiled; a check quotes its lines.
YOURS = "<your code>"
KIT = "/support/kit/"
#: What a check says of cells; a page has none.
CELLS = " Fill in the stub above and run its cell and this one again."
SECONDS = 5.0  # for which one call of a reader's code may run before it is stopped, on a usual machine
LAPS = 500_000  # of a loop that does nothing, by which a machine's pace is taken
USUAL = 0.05  # seconds that these take in the Python of a page
TICK = 1e-6  # seconds by which a clock goes on at least, from look to look
PRINTED = 20_000  # characters of output that are kept


class OutOfTime(BaseException):
    """The reader's code has run too long. No Exception: no check may take it for one of the reader's."""


# ---- what is missing


class Missing(type):
    """A class that stands for whatever torch has: it may be called, subclassed, indexed, computed with."""

    reading: ClassVar[int] = 0
    """How many imports of ours are under way."""
    asked: ClassVar[set[str]] = set()
    """What the reader's code has asked for and not found."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Missing._made(name)

    def __call__(cls, *_: Any, **__: Any) -> Any:
        """Return another of these."""
        return Missing._made(cls.__name__)

    def __instancecheck__(cls, thing: Any) -> bool:
        return False

    def __iter__(cls) -> Iterator[Any]:
        return iter(())

    def __len__(cls) -> int:
        return 0

    def __index__(cls) -> int:
        return 1

    def __float__(cls) -> float:
        return 1.0

    def __enter__(cls) -> Any:
        return cls

    def __exit__(cls, *_: object) -> None:
        return None

    @staticmethod
    def _made(name: str) -> Any:
        if not Missing.reading:
            Missing.asked.add("torch")
            raise ModuleNotFoundError(f"this page's Python lacks torch ({name})")
        return Missing(name, (), {})


def _itself(cls: Any, *_: Any) -> Any:
    return Missing._made(cls.__name__)


OPERATIONS = """
add radd sub rsub mul rmul truediv rtruediv floordiv mod pow matmul neg lt le gt ge getitem
"""
for _name in OPERATIONS.split():
    setattr(Missing, f"__{_name}__", _itself)


class _Gone(types.ModuleType):
    __path__: list[str] = []  # noqa: RUF012 (Python asks a package for it)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Missing._made(name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a placeholder for what is missing while ours is read, and nothing afterwards."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        package = name.partition(".")[0]
        if package not in GONE:
            return None
        if not Missing.reading:
            Missing.asked.add(package)
            raise ModuleNotFoundError(f"this page's Python lacks {package}", name=name)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Gone(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        return None


def prepare() -> None:
    """Put placeholders in the way of what a page has not, and let its clock go on: once for a process."""
    sys.meta_path.insert(0, _Finder())
    builtins.input = _nobody_answers
    time.perf_counter = _clock(time.perf_counter)


def _nobody_answers(*_: object) -> str:
    raise OSError("a page has no keyboard for input(): write the value into the code")


def _clock(coarse: Callable[[], float]) -> Callable[[], float]:
    """Return a clock that never says the same twice: a browser's stands still for a tenth of a millisecond."""
    last = [coarse()]

    def now() -> float:
        last[0] = max(coarse(), last[0] + TICK)
        return last[0]

    return now


@contextlib.contextmanager
def _reading() -> Iterator[None]:
    """Let placeholders stand for what is missing; afterwards take them out of the reader's way."""
    Missing.reading += 1
    try:
        yield
    finally:
        Missing.reading -= 1
        if not Missing.reading:
            for name in [name for name in sys.modules if name.partition(".")[0] in GONE]:
                del sys.modules[name]


def exercise(name: str) -> Any:
    """Return the exercise of a room, by "n08.check_simulate"."""
    room, _, check = name.partition(".")
    with _reading():
        return getattr(importlib.import_module(f"support.{room}.checks"), check)


# ---- what the notebook has defined above the exercise


def _names(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def given(code: str, above: Iterable[tuple[list[str], str]]) -> list[str]:
    """Return those statements of the notebook, in order, that define what the code names, and what these name."""
    wanted = _names(ast.parse(code))
    chosen: list[str] = []
    for names, source in reversed(list(above)):
        if wanted.intersection(names):
            chosen.append(source)
            wanted |= _names(ast.parse(source))
    return chosen[::-1]


def space_of(code: str, above: Iterable[tuple[list[str], str]], check: str) -> dict[str, Any]:
    """Return the names that the notebook has at this place, as far as the code needs them.

    Of a part that an earlier exercise asks for, ours stands there.
    """
    room = check.partition(".")[0]
    space: dict[str, Any] = {"__name__": "__main__"}
    with _reading():
        space["checks"] = importlib.import_module(f"support.{room}.checks")
        for source in given(code, above):
            with contextlib.suppress(Exception):  # what a page can't give is missing where it is used
                exec(source, space)
    return space


# ---- time


def still_here() -> None:
    """Tell the page that the check goes on; the worker puts its own function here."""


def slowness() -> float:
    """Return how many times slower than a usual machine this one is now, at least 1: a phone, or one that is busy."""
    began = time.perf_counter()
    for _ in range(LAPS):
        pass
    return max(1.0, (time.perf_counter() - began) / USUAL)


@contextlib.contextmanager
def _timed(slower: float) -> Iterator[None]:
    """Raise OutOfTime in the reader's code when the time of a call is up, wherever it loops or calls itself."""
    monitoring = getattr(sys, "monitoring", None)
    if monitoring is None:  # Python 3.11, in which only tests run this
        yield
        return
    until = time.monotonic() + SECONDS * slower
    told = time.monotonic()

    def starts(code: types.CodeType, *_: int) -> Any:
        nonlocal until
        if KIT in code.co_filename:  # the next case, or the next famous mistake
            still_here()
            return None
        if code.co_filename != YOURS:
            return monitoring.DISABLE
        caller = sys._getframe(1).f_back
        if caller is None or caller.f_code.co_filename != YOURS:
            still_here()
            until = time.monotonic() + SECONDS * slower
        return goes_on(code)

    def goes_on(code: types.CodeType, *_: int) -> Any:
        nonlocal told
        if code.co_filename != YOURS:
            return monitoring.DISABLE
        now = time.monotonic()
        if now > until:
            raise OutOfTime
        if now > told + 1:  # it is stopped here in time, so the page need not end it
            told = now
            still_here()
        return None

    tool = monitoring.PROFILER_ID
    events = monitoring.events
    monitoring.use_tool_id(tool, "page")
    monitoring.register_callback(tool, events.PY_START, starts)
    monitoring.register_callback(tool, events.JUMP, goes_on)
    monitoring.set_events(tool, events.JUMP | events.PY_START)
    try:
        yield
    finally:
        monitoring.set_events(tool, 0)
        monitoring.free_tool_id(tool)
        monitoring.restart_events()


def _line_of(error: BaseException, code: str) -> str:
    """Return in which line of the reader's code an error was raised: "line 3: `while True:`"; "" if in none."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename == YOURS and frame.lineno:
            return _quoted(frame.lineno, code)
    return ""


def _quoted(number: int, code: str) -> str:
    lines = code.splitlines()
    text = lines[number - 1].strip() if 0 < number <= len(lines) else ""
    return f"line {number}" + (f": `{text}`" if text else "")


# ---- the verdict


class _Printed(io.StringIO):
    """Keeps the first characters of what is printed."""

    def write(self, said: str) -> int:
        room = PRINTED - self.tell()
        if room > 0:
            super().write(said[:room])
        return len(said)


def judge(job: str) -> str:
    """Run a reader's code, then its check. Returns JSON: status, message, output.

    job: JSON with `check` ("n08.check_simulate"), `answers` (names in the code), `code`, and `above`, a list of the
    statements of the notebook, each with the names that it defines.
    status: right, wrong, open; lacks: this page's Python hasn't what the code asks for; failed: the code itself fails.
    """
    task = json.loads(job)
    printed = _Printed()
    with contextlib.redirect_stdout(printed):
        status, message = _checked(task)
    return json.dumps({"status": status, "message": message, "output": printed.getvalue()})


def _checked(task: Mapping[str, Any]) -> tuple[str, str]:
    Missing.asked = set()
    code = task["code"]
    try:
        compiled = compile(code, YOURS, "exec")
    except SyntaxError as error:
        return "failed", f"Python can't read {_quoted(error.lineno or 1, code)} ({error.msg})."
    lines = [f"{line}\n" for line in code.splitlines()]
    linecache.cache[YOURS] = (len(code), None, lines, YOURS)
    found = exercise(task["check"])
    space = space_of(code, task["above"], task["check"])
    slower = slowness()
    try:
        with _timed(slower):
            exec(compiled, space)
            answers = _answers(task["answers"], space)
            verdict = found(*answers)
    except OutOfTime as error:
        where = _line_of(error, code)
        return (
            "failed",
            f"Your code has run for {SECONDS * slower:.0f} seconds and has not ended; it was stopped in {where}.",
        )
    except MemoryError as error:
        return "failed", _in_a_sentence("Your code asks for more memory than a page has", error, code)
    except NameError as error:
        return _of_missing() or ("failed", _in_a_sentence(f"NameError: {error}", error, code))
    except (Exception, SystemExit) as error:
        said = f"Your code raised {type(error).__name__}: {error}".rstrip(": ")
        return _of_missing() or ("failed", _in_a_sentence(said, error, code))
    if verdict.status == "wrong" and Missing.asked:
        return _of_missing() or ("", "")
    return verdict.status, verdict.message.removesuffix(CELLS)


def _answers(names: Iterable[str], space: Mapping[str, Any]) -> list[Any]:
    missing = [name for name in names if name not in space]
    if missing:
        raise NameError(f"the check asks for {' and '.join(missing)}, and your code defines no such name")
    return [space[name] for name in names]


def _of_missing() -> tuple[str, str] | None:
    """Return the third verdict, if the code has asked for what a page lacks."""
    if not Missing.asked:
        return None
    names = " and ".join(sorted(Missing.asked))
    said = f"This page's Python lacks {names}, so it can't judge your code. The notebook can: take it there."
    return "lacks", said


def _in_a_sentence(said: str, error: BaseException, code: str) -> str:
    where = _line_of(error, code)
    return f"{said.removesuffix('.')}" + (f" (in {where})." if where else ".")
