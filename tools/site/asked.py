"""What a text asks its reader to do with the controls: "set chunks to 6", "go to epoch 12", "move *step* to 8".

An order is a clause that begins with a verb such as set, move or drag. A control that an order speaks of gets finer
steps on a page; a value that an order gives and that its control lacks is a fault of the text or of the figure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

NUMBER = r"(-?\d+(?:\.\d+)?)(?![\d.]*\d)"
#: Signs that Markdown and formulas put around names and numbers.
SIGNS = re.compile(r"[*`$\\{}]")
THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}\b)")
WORDS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
VERBS = "set|move|drag|put|go|turn|slide|step|choose|pick|select|switch|try|change"
BEGIN = r"(?:^|[.,;:!?(\n]\s*|\b(?:now|then|and|or|next|first) )"
ORDER = re.compile(rf"(?i){BEGIN}((?:{VERBS})\b.*?)(?=[.;:!?](?:\s|$)|,(?! ?\d)|\n\n|\Z)", re.DOTALL)
MORE = rf"(?:(?:,| and| or|, and|, or)(?: back)?(?: to)? {NUMBER})*"


def without_signs(text: str) -> str:
    """Return a text as it is read: no signs of Markdown, no commas in thousands."""
    return THOUSANDS.sub("", SIGNS.sub("", text))


def instructions(text: str) -> list[str]:
    """Return the clauses of a text that tell the reader to do something, with digits for the numbers."""
    found: list[str] = []
    plain = without_signs(text)
    start = 0
    while order := ORDER.search(plain, start):
        found.append(" ".join(_digits(order[1]).split()))
        start = order.end()
    return found


def _digits(text: str) -> str:
    for value, word in enumerate(WORDS, 2):
        text = re.sub(rf"(?i)\b{word}\b", str(value), text)
    return text


def speaks_of(order: str, name: str) -> bool:
    """Say whether an order has the name of a control; a letter counts as written."""
    flags = 0 if len(name) == 1 else re.IGNORECASE
    return re.search(rf"\b{re.escape(name)}s?\b", order, flags) is not None


def values(order: str, name: str) -> set[float]:
    """Return the numbers that an order gives to the control of that name."""
    word = re.escape(name)
    flags = 0 if len(name) == 1 else re.IGNORECASE
    found: set[float] = set()
    for given in re.finditer(rf"\b{word}s?(?: back)?(?: ?= ?| to | at | from | ){NUMBER}{MORE}", order, flags):
        found |= {float(number) for number in re.findall(NUMBER, given[0][len(name) :])}
    if len(name) > 1:
        found |= {float(number) for number in re.findall(rf"(?<!= ){NUMBER} {word}(?:e?s)?\b", order, flags)}
    return found


def unheard(
    text: str, called: Mapping[str, Iterable[str]], options: Mapping[str, Iterable[object]]
) -> Iterator[tuple[str, float]]:
    """Yield the values that a text orders and that no control has, with the name that the text calls the control.

    called: what texts call a control, by its name. options: what the control can be set to.
    """
    bearers: dict[str, set[object]] = {}
    for control, names in called.items():
        for name in names:
            bearers.setdefault(name, set()).update(options[control])
    for order in instructions(text):
        for name, possible in bearers.items():
            yield from ((name, value) for value in sorted(values(order, name)) if value not in possible)
