"""The settings that a notebook's prose names: an explorer on a page must have a stop for each of them.

A text says "set N = 2 and W = 5" or "go to epoch 12"; a page has some of a slider's values only. So the text around an
explorer, and the sentence of its first frame, are searched for the names on its controls, each with a number beside it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lib.show.explore import Control, Explorer, Slider
from lib.show.style import alt_text

Named = dict[str, tuple[Any, ...]]

NUMBER = r"(-?\d+(?:\.\d+)?)(?![\d.]*\d)"
HEADING = re.compile(r"(?m)^#{1,6} ")
CODE = re.compile(r"(?ms)^(```|~~~).*?^\1")
#: Signs that Markdown and formulas put around names and numbers.
SIGNS = re.compile(r"[*`$\\{}]")


def around(cells: Sequence[Mapping[str, Any]], place: int) -> str:
    """Return the text that speaks of the explorer of a cell: the cells above and below it, up to a heading."""
    above = cells[place - 1] if place else None
    below = cells[place + 1] if place + 1 < len(cells) else None
    parts: list[str] = []
    if above is not None and above["cell_type"] == "markdown":
        parts.append(HEADING.split(_plain(above))[-1])
    if below is not None and below["cell_type"] == "markdown":
        parts.append(HEADING.split(_plain(below))[0])
    return "\n\n".join(parts)


def _plain(cell: Mapping[str, Any]) -> str:
    """Return a cell's text without its blocks of code, where # begins a comment and a number is no setting."""
    return CODE.sub("", "".join(cell["source"]))


def named_settings(text: str, explorer: Explorer) -> Named:
    """Return the options that a text, or the words of the first frame, name: {control: its options, in their order}."""
    plain = SIGNS.sub("", text)
    words = alt_text(explorer.figure)
    found: Named = {}
    for name, control in explorer.controls.items():
        numbers = {*_numbers(plain, control), *_best(words, control)}
        options = tuple(option for option in control.options if _says(plain, numbers, option))
        if options:
            found[name] = options
    return found


def missing(named: Named, stops: Mapping[str, Iterable[Any]]) -> Named:
    """Return the named options that are no stop of the page."""
    absent: Named = {}
    for name, options in named.items():
        lacking = tuple(option for option in options if option not in stops[name])
        if lacking:
            absent[name] = lacking
    return absent


def _says(plain: str, numbers: set[float], option: Any) -> bool:
    """Say whether a text names an option: a number beside the control's name, or a word of more than three letters."""
    if isinstance(option, bool):
        return False  # both are always there
    if isinstance(option, int | float):
        return option in numbers
    return len(str(option)) > 3 and str(option).lower() in plain.lower()


def _names(control: Control) -> list[str]:
    """Return what a text calls a control: "m · micro-batches" is m, micro-batch or micro-batches."""
    names: list[str] = []
    for part in control.label.split("·"):
        word = re.split(r",| of | in | a | per | before| after|\(", part)[0].strip()
        names.append(word)
        if len(word) > 3:
            names.append(re.sub(r"e?s$", "", word))
    return [name for name in names if name]


def _numbers(plain: str, control: Control) -> set[float]:
    """Return the numbers that stand beside a control's name: m = 3, epoch 12, an overhead of 0.1, 12 chunks."""
    if not isinstance(control, Slider):
        return set()
    found: set[float] = set()
    for name in _names(control):
        word = re.escape(name)
        if len(name) == 1:  # a letter means the control only where something is said to equal it
            found |= {float(number) for number in re.findall(rf"\b{word} ?= ?{NUMBER}", plain)}
            continue
        after = rf"(?i)\b{word}s? (?:= |of |at |to )?{NUMBER}"
        before = rf"(?i){NUMBER} {word}(?:e?s)?\b"
        found |= {float(number) for pattern in (after, before) for number in re.findall(pattern, plain)}
    return found


def _best(words: str, control: Control) -> set[float]:
    """Return the best number that a finding tells of a control: "4 chunks: 143 ticks; best 12: 126" sends one there."""
    told = control.value in _numbers(words, control)
    return {float(number) for number in re.findall(rf"\bbest {NUMBER}", words)} if told else set()
