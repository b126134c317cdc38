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
from tools.site.asked import NUMBER, instructions, speaks_of, unheard, values, without_signs

Named = dict[str, tuple[Any, ...]]

HEADING = re.compile(r"(?m)^#{1,6} ")
CODE = re.compile(r"(?ms)^(```|~~~).*?^\1")
#: Where the part of a label that is no name begins.
REST_OF_A_LABEL = re.compile(r",| of | in | a | per | before| after| holds| that |\(")


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
    plain = without_signs(text)
    given = instructions(text)
    words = alt_text(explorer.figure)
    found: Named = {}
    for name, control in explorer.controls.items():
        called = _called(name, explorer.controls)
        numbers = _numbers(plain, called) | _best(words, control.value, called)
        numbers |= {float(number) for number in re.findall(rf"\b{name} ?= ?{NUMBER}", plain)}  # as in the code
        numbers |= {value for order in given for each in called for value in values(order, each)}
        options = tuple(option for option in control.options if _says(plain, numbers, control, option))
        if options:
            found[name] = options
    return found


def ordered_sliders(text: str, explorer: Explorer) -> set[str]:
    """Return the sliders that a text tells its reader to move, or gives a value to as in "m = 3", by control."""
    plain = without_signs(text)
    given = instructions(text)
    found: set[str] = set()
    for name, control in explorer.controls.items():
        called = _called(name, explorer.controls)
        equal = {value for letter in called if len(letter) == 1 for value in _numbers(plain, [letter])}
        if isinstance(control, Slider) and (
            equal & {*control.options} or any(speaks_of(order, each) for order in given for each in called)
        ):
            found.add(name)
    return found


def impossible(text: str, explorer: Explorer) -> list[str]:
    """Return, in words, the settings that a text tells its reader to make and that the controls don't have."""
    sliders = {name: control for name, control in explorer.controls.items() if isinstance(control, Slider)}
    called = {name: _called(name, explorer.controls) for name in sliders}
    options = {name: control.options for name, control in sliders.items()}
    return [f"{name} {value:g}" for name, value in dict.fromkeys(unheard(text, called, options))]


def missing(named: Named, stops: Mapping[str, Iterable[Any]]) -> Named:
    """Return the named options that are no stop of the page."""
    absent: Named = {}
    for name, options in named.items():
        lacking = tuple(option for option in options if option not in stops[name])
        if lacking:
            absent[name] = lacking
    return absent


def _says(plain: str, numbers: set[float], control: Control, option: Any) -> bool:
    """Say whether a text names an option: a number beside the control's name, or a word of more than three letters."""
    if isinstance(option, bool):
        return False  # both are always there
    if isinstance(option, int | float):
        return isinstance(control, Slider) and option in numbers
    return len(str(option)) > 3 and str(option).lower() in plain.lower()


def _called(name: str, controls: Mapping[str, Control]) -> list[str]:
    """Return what a text calls a control: "m · micro-batches" is m, micro-batch or micro-batches.

    Where several labels begin alike ("layers", "layers in the first bucket"), the whole label is the name.
    """
    words = _words(controls[name].label)
    others = {word for other, control in controls.items() if other != name for word in _words(control.label)}
    whole = {part.strip() for part in controls[name].label.split("·")}
    return [word for word in words if word not in others or word in whole or f"{word}s" in whole]


def _words(label: str) -> list[str]:
    names: list[str] = []
    for part in label.split("·"):
        word = REST_OF_A_LABEL.split(part)[0].strip()
        names.append(word)
        if len(word) > 3:
            names.append(re.sub(r"e?s$", "", word))
    return [name for name in dict.fromkeys(names) if name]


def _numbers(plain: str, called: Iterable[str]) -> set[float]:
    """Return the numbers that stand beside a control's name: m = 3, epoch 12, an overhead of 0.1, 12 chunks."""
    found: set[float] = set()
    for name in called:
        word = re.escape(name)
        if len(name) == 1:  # a letter means the control only where something is said to equal it
            found |= {float(number) for number in re.findall(rf"\b{word} ?= ?{NUMBER}", plain)}
            continue
        after = rf"(?i)\b{word}s? (?:= |of |at |to )?{NUMBER}"
        before = rf"(?i){NUMBER} {word}(?:e?s)?\b"
        found |= {float(number) for pattern in (after, before) for number in re.findall(pattern, plain)}
    return found


def _best(words: str, value: Any, called: Iterable[str]) -> set[float]:
    """Return the best number that a finding tells of a control: "4 chunks: 143 ticks; best 12: 126" sends one there."""
    told = value in _numbers(words, called)
    return {float(number) for number in re.findall(rf"\bbest {NUMBER}", words)} if told else set()
