"""An untouched stub is neither right nor wrong: what counts as one."""

from __future__ import annotations

import dis
import inspect
import linecache
from collections.abc import Callable
from types import CodeType
from typing import Any


def is_missing(answer: Any) -> bool:
    """Say whether a stub's value still stands in place of an answer."""
    return answer is None or answer is ...


def untouched(function: Callable[..., Any], may_be_empty: bool = False) -> bool:
    """Say whether a function is still its stub: nothing but a docstring, `...`, `pass` or NotImplementedError.

    may_be_empty: nothing at all is an answer here, and only NotImplementedError is not.

    Whoever has written `return`, or a lambda, has begun: that is an answer, and most often a wrong one.
    """
    code = getattr(inspect.unwrap(function), "__code__", None)  # a stub may wear a decorator
    if code is None or code.co_name == "<lambda>":
        return False
    if "NotImplementedError" in code.co_names and len(code.co_names) == 1:
        return True
    if may_be_empty:
        return False
    idle = {"RESUME", "NOP", "LOAD_CONST", "RETURN_CONST", "RETURN_VALUE"}
    steps = list(dis.get_instructions(code))
    returned = [step for step in steps if step.opname.endswith("_CONST")]
    gives_nothing = all(step.argval is None and not _is_written(step, code) for step in returned)
    return all(step.opname in idle for step in steps) and gives_nothing


def _is_written(step: dis.Instruction, code: CodeType) -> bool:
    """Say whether a `return` stands where an instruction comes from: Python makes the same of `return None` and `pass`.

    Where the text of the function is not at hand none is found.
    """
    at = step.positions
    if at is None or at.lineno is None or at.col_offset is None:
        return False
    line = linecache.getline(code.co_filename, at.lineno).encode()  # columns count bytes
    return line[at.col_offset :].startswith((b"return", b"None"))
