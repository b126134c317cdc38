"""What a check says of an exception: in which case it was raised, what it is, and where in the reader's own code.

in_case   a context manager: whatever is raised inside is told with the case
told_of   the sentence about an exception
calling   the line of the reader's code from which ours is called just now
standing  the line of the reader's code in which another thread is just now
Finding   raised by a trial of ours, deep inside the reader's call: its text is what the check says
"""

from __future__ import annotations

import linecache
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from threading import Thread

_LIB = find_spec("lib")
#: Files below these folders are not the reader's: ours, Python's own, installed packages.
NOT_THE_READERS = (
    str(Path(__file__).resolve().parents[1]),
    *(_LIB.submodule_search_locations or () if _LIB else ()),
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
)
#: Files with solutions: what they define stands where the reader's answer would.
IN_PLACE_OF_THE_READERS = ("solved.py", "built.py")
LONGEST = 300  # characters of an exception's own text that are quoted


class Finding(Exception):
    """What a trial has found out about an answer, raised inside the reader's call. Its text is a whole sentence."""


class InCaseError(Exception):
    """An exception of the reader's code, with the case in which it was raised, and what it means there."""

    def __init__(self, case: str, error: BaseException, meaning: str = "") -> None:
        super().__init__(case)
        self.case = case
        self.error = error
        self.meaning = meaning


@contextmanager
def in_case(case: str, meanings: Mapping[str, str] | None = None) -> Iterator[None]:
    """Note of whatever is raised inside in which case it was; the innermost case counts.

    meanings: words of an exception's text, and a sentence that is said behind it.
    """
    try:
        yield
    except (Finding, InCaseError):
        raise
    except (Exception, SystemExit) as error:
        meaning = next((why for words, why in (meanings or {}).items() if words in str(error)), "")
        raise InCaseError(case, error, meaning) from error


def named(error: BaseException) -> str:
    """Return type and first line of an exception, as "KeyError: 3"; no colon if it says nothing."""
    lines = str(error).strip().splitlines()
    if not lines:
        return type(error).__name__
    said = lines[0] if len(lines[0]) <= LONGEST else lines[0][: LONGEST - 1] + "…"
    return f"{type(error).__name__}: {said}"


def place(error: BaseException) -> str:
    """Return the last line of the reader's code that an exception or its cause went through, "" if there is none.

    A solution is not the reader's: a check may run it around their answer.
    """
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if Path(frame.filename).name not in IN_PLACE_OF_THE_READERS]
    found = _last_of_the_readers(theirs)
    return found or (place(error.__cause__) if error.__cause__ is not None else "")


def calling() -> str:
    """Return the line of the reader's code from which the running function is called, "" if there is none."""
    return _last_of_the_readers(traceback.extract_stack())


def standing(thread: Thread) -> str:
    """Return the line of the reader's code in which a thread is just now, "" if it is in none or has ended."""
    frame = sys._current_frames().get(thread.ident or 0)
    return _last_of_the_readers(traceback.extract_stack(frame)) if frame else ""


def _last_of_the_readers(frames: Sequence[traceback.FrameSummary]) -> str:
    for frame in reversed(frames):
        if _is_the_readers(frame.filename):
            line = linecache.getline(frame.filename, frame.lineno or 0).strip()
            quoted = f": `{line}`" if line else ""
            return f"in {frame.name}, line {frame.lineno}{quoted}"
    return ""


def told_of(error: BaseException) -> str:
    """Return what a check says of an exception: the reader's own, or ours over what the reader's code has given."""
    if isinstance(error, Finding):
        return str(error)
    if isinstance(error, InCaseError):
        return " ".join(filter(None, [f"{error.case}: {told_of(error.error)}", error.meaning]))
    where = place(error)
    said = named(error)
    if where:
        return f"your code raised {said} ({where})."
    if isinstance(error, TimeoutError):
        return f"{error}."
    asked = " Has something returned None, is a `return` missing?" if "NoneType" in said else ""
    return f"your code gives what can't be used here: {said.removesuffix('.')}.{asked}"


def known_by(error: BaseException) -> str:
    """Return by what an exception is recognised: case and text, whatever the line."""
    if isinstance(error, InCaseError):
        return f"{error.case}: {known_by(error.error)}"
    return named(error)


def _is_the_readers(filename: str) -> bool:
    # NumPy's compiled parts name their source
    if filename.startswith("<frozen") or filename.endswith(".pyx"):
        return False
    if Path(filename).name in IN_PLACE_OF_THE_READERS:
        return True
    return not filename.startswith(NOT_THE_READERS)
