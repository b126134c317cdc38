"""Predictions without a kernel: what a check says of a guess, found by asking it, as data for static/guess.js.

A check is asked about hundreds of guesses. What it says is the same sentence over whole ranges of numbers, but for the
guess that is repeated in it, and something else at single guesses: the truth, the famous wrong answers. Where a range
ends is found by halving. So a check is written once, in Python, and its page says what it says.

A sentence is [how the guess is written in it, the text before, the text after]; written "": it is not repeated.
"""

from __future__ import annotations

import ast
import html
import itertools
import json
import math
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from support.kit.guess import Guess
from support.kit.verdict import Verdict

Check = Callable[[Any], Verdict]
Sentence = tuple[str, str, str]
MANY = 40  # more different comments on numbers than any check has
TABLES = (Mapping, list, tuple, set, str, int, float)
NONE = re.compile(r"No guess yet for (.*)\. Put one in place of None", re.DOTALL)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _nested(value: Any) -> Any:
    return [*map(_nested, value)] if isinstance(value, list | tuple) else value


#: How a sentence may repeat a guess; guess.js has the same names.
NUMBERS: dict[str, Callable[[Any], str]] = {
    "short": _short,
    **{way: ("{:" + way + "}").format for way in ("g", ",g", ".3g", ".0f", ".1f")},
    "repr": repr,
    "short %": lambda number: _short(100 * number),
    "g %": lambda number: f"{100 * number:g}",
    ".0f %": lambda number: f"{100 * number:.0f}",
    "digits": lambda number: str([int(digits) for digits in re.findall(r"-?\d+", str(number))]),
}
WORDS: dict[str, Callable[[Any], str]] = {"repr": repr, "as it is": str, "upper": str.upper, "lower": str.lower}
LISTS: dict[str, Callable[[Any], str]] = {
    "list": lambda value: repr(_nested(value)),
    "tuple": lambda value: repr(tuple(value)),
    "sorted": lambda value: repr(sorted(value)),
}


def asked(source: str) -> list[ast.Call]:
    """Return the calls in a cell that comment on a guess: checks.guess_idle(my_guess, 4, 4), my_guess being None."""
    with suppress(SyntaxError):
        calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) and node.args]
        return [call for call in calls if ast.unparse(call.func).split(".")[-1].startswith("guess_")]
    return []


def predictions(source: str, space: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the data of each prediction that a cell checks; `space`: the names of the notebook after the cell."""
    found = []
    for call in asked(source):
        function = eval(ast.unparse(call.func), space)
        known = [eval(ast.unparse(each), space) for each in call.args[1:]]
        named = {each.arg: eval(ast.unparse(each.value), space) for each in call.keywords if each.arg}
        found.append({"name": ast.unparse(call.func).split(".")[-1], **exported(function, *known, **named)})
    return found


def exported(function: Any, *known: Any, **named: Any) -> dict[str, Any]:
    """Return what a check says of any guess. known, named: what the notebook tells it beside the guess."""
    with one_truth(function, known, named) as truth:

        def check(guess: Any) -> Verdict:
            try:
                verdict: Verdict = function(guess, *known, **named)
            except Exception as error:
                raise ValueError(f"a guess is only commented on, but {guess!r} raises {error!r}") from error
            return verdict

        told = NONE.match(check(None).message)
        things = list(_things(function))
        numbers = sorted({number for number in _numbers(things, truth) if abs(number) < 1e15})
        whole = sorted({round(number) for number in numbers} | set(range(-3, 201)))
        words = {thing for thing in things if isinstance(thing, str) and len(thing) <= 40}
        seen = {"number": NUMBERS, "word": WORDS, "list": LISTS}
        kind = "list" if isinstance(truth, list | tuple) else "number"
        if isinstance(truth, str) and not re.fullmatch(r"[-+.\de]+", truth):
            kind = "word"
        unit = next((thing.unit for thing in _guesses(function)), "")
        return {
            "what": told[1] if told else "",
            "unit": unit,
            "kind": kind if kind in seen else "number",
            "whole": ranges(check, whole, lambda low, high: (low + high) // 2),
            "number": ranges(check, numbers, lambda low, high: (low + high) / 2),
            "word": _of_words(check, words),
            "list": _of_lists(check, truth, list(_told_of_lists(function))),
        }


def prediction_fragment(prediction: Mapping[str, Any], name: str) -> str:
    """Return the HTML that guess.js turns into a prediction. name: under which the guess is remembered."""
    data = html.escape(json.dumps(prediction, ensure_ascii=False, separators=(",", ":")))
    still = (
        f"<noscript>Guess {html.escape(prediction['what'])}; without a script, the notebook has the answer.</noscript>"
    )
    return f'<div class="guess" id="{name}" data-guess="{data}">{still}</div>'


# ---- what to ask about


def _guesses(function: Any) -> Iterator[Guess]:
    if isinstance(function, Guess):
        yield function
    for cell in getattr(function, "__closure__", None) or ():
        if isinstance(cell.cell_contents, Guess):
            yield cell.cell_contents


@contextmanager
def one_truth(function: Any, known: Sequence[Any], named: Mapping[str, Any]) -> Iterator[Any]:
    """Compute the truth once, and give it; a check computes it for each guess, some with processes."""
    guess = next(_guesses(function))
    compute = guess.truth
    truth = guess.truth(*known, **named)
    object.__setattr__(guess, "truth", lambda *known, **named: truth)
    try:
        yield truth
    finally:
        object.__setattr__(guess, "truth", compute)


def _things(thing: Any, seen: set[int] | None = None) -> Iterator[Any]:
    """Yield numbers and words in a check: in its closures, tables, constants. At them it may say something special."""
    seen = set() if seen is None else seen
    if isinstance(thing, bool) or thing is None or id(thing) in seen:
        return
    seen.add(id(thing))
    inside: Iterable[Any] = ()
    if isinstance(thing, int | float | str):
        yield thing
    elif isinstance(thing, Mapping):
        inside = [*thing.keys(), *thing.values()]
    elif isinstance(thing, list | tuple | set | frozenset):
        inside = thing
    elif isinstance(thing, types.FunctionType):
        cells = [cell.cell_contents for cell in thing.__closure__ or ()]
        room = {name: value for name, value in thing.__globals__.items() if name in thing.__code__.co_names}
        tables = [value for value in room.values() if isinstance(value, TABLES)]
        ours = [value for value in room.values() if getattr(value, "__module__", None) == thing.__module__]
        inside = [*cells, thing.__defaults__, *thing.__code__.co_consts, *tables, *ours]
    elif isinstance(thing, types.CodeType):
        inside = thing.co_consts
    elif isinstance(thing, Guess):
        fields = [value for name, value in vars(thing).items() if name != "tried"]  # what tests ask says nothing
        inside = [*fields, vars(type(thing)).get("__call__")]
    for each in inside:
        yield from _things(each, seen)


def _numbers(things: Iterable[Any], truth: Any) -> Iterator[float]:
    """Yield numbers to ask about: those in a check, in its texts, round ones, and many about the truth."""
    own: set[float] = set()
    for thing in things:
        if isinstance(thing, int | float):
            own.add(float(thing))
        else:
            own |= {float(text) for text in re.findall(r"-?\d+(?:\.\d+)?", str(thing)) if len(text) < 16}
    with suppress(TypeError, ValueError):
        right = float(truth)
        own |= {right} | {right * factor for factor in own}
        own |= {right * (0.2 + k * 0.010137) for k in range(200)}
    yield from own
    yield from (number * factor for number in own for factor in (0.5, 2, 10, 100, 1000, 0.1, 0.01, 0.9717, 1.0313))
    yield from (k * step for step in (0.05, 0.25, 1.0, 7.7171) for k in range(-4, 202))
    yield from (sign * 10 ** (k / 7) for sign in (-1, 1) for k in range(-20, 90))


# ---- what is said


def _sentences(check: Check, guess: Any, ways: Mapping[str, Callable[[Any], str]]) -> set[Sentence]:
    """Return all sentences that fit what is said of a guess: it may stand anywhere in it, written in any way."""
    message = check(guess).message
    found: set[Sentence] = {("", message, "")}
    for name, way in ways.items():
        with suppress(TypeError):  # sorted: 1 and "a"
            said = way(guess)
            for place in _places(said, message):
                found.add((name, message[:place], message[place + len(said) :]))
    return found


def _places(said: str, message: str) -> Iterator[int]:
    """Yield where a text stands in another. It is asked for so many numbers that patterns would be compiled all day."""
    place = message.find(said) if said else -1
    while place >= 0:
        yield place
        place = message.find(said, place + len(said))


def _best(fitting: set[Sentence], ways: Iterable[str]) -> Sentence:
    """Return the sentence that repeats the guess, if there is one: in the way named first, at the first place."""
    order = {name: place for place, name in enumerate([*ways, ""])}
    return min(fitting, key=lambda sentence: (order[sentence[0]], len(sentence[1])))


def ranges(check: Check, probes: Sequence[float], between: Callable[[Any, Any], Any]) -> dict[str, Any]:
    """Return what is said of numbers. at: of single ones; said: in each range; cuts: their last numbers."""
    runs: list[tuple[Any, Any, set[Sentence]]] = []
    at: dict[float, str] = {}

    for probe in probes:
        fitting = _sentences(check, probe, NUMBERS)
        if runs and runs[-1][2] & fitting:
            first, _, before = runs.pop()
            runs.append((first, probe, before & fitting))
        elif any(fitting & _sentences(check, each, NUMBERS) for each in _beside(probe)):
            runs.append((probe, probe, fitting))
        else:
            at[probe] = check(probe).message
        if len(runs) + len(at) > MANY:
            said = [check(each).message for each in probes[:3]]
            raise ValueError(f"too many different comments: in which way do {said} repeat a guess? Add it to NUMBERS")
    cuts = []
    for (_, low, left), (high, _, _) in itertools.pairwise(runs):
        while (middle := between(low, high)) not in (low, high):
            if left & _sentences(check, middle, NUMBERS):
                low = middle
            else:
                high = middle
        cuts.append(low)
    return {"at": list(at.items()), "cuts": cuts, "said": [_best(fitting, NUMBERS) for _, _, fitting in runs]}


def _beside(number: float) -> tuple[float, float]:
    """Return the numbers next to one: whole ones of a whole one."""
    if isinstance(number, int):
        return number - 1, number + 1
    return math.nextafter(number, -math.inf), math.nextafter(number, math.inf)


def _of_words(check: Check, known: set[str]) -> dict[str, Any]:
    """Return what is said of words. at: of single ones; folded: in whatever capitals; other: of any other."""
    letters = ["".join(pair) for size in (1, 2) for pair in itertools.product("ABCD", repeat=size)]
    probes = {*known, *letters, "yes", "no", "none", "both", "same", "all"}
    probes = {text.strip() for text in probes if text.strip() and not re.search(r"\d", text)}
    other = set.intersection(*(_sentences(check, text, WORDS) for text in ("zebra", "Forty-two", "quux of it", "ZzZ")))
    at: dict[str, str] = {}
    folded: dict[str, Sentence] = {}
    for text in sorted({text.lower() for text in probes}):
        variants = {text, text.upper(), text.capitalize(), *(each for each in probes if each.lower() == text)}
        fitting = {each: _sentences(check, each, WORDS) for each in variants}
        if all(sentences & other for sentences in fitting.values()):
            continue
        alike = set.intersection(*fitting.values())
        if alike:
            folded[text] = _best(alike, WORDS)
        else:
            at |= {each: check(each).message for each, sentences in fitting.items() if not sentences & other}
    return {"at": at, "folded": folded, "other": _best(other, WORDS)}


def shape(value: Any) -> str:
    """Return the shape of a list: n for a number, s for a word: [n[sn]]."""
    if isinstance(value, list | tuple):
        return f"[{''.join(map(shape, value))}]"
    return "s" if isinstance(value, str) else "n"


def _told_of_lists(function: Any) -> Iterator[Any]:
    """Yield the wrong lists that a prediction has a sentence of its own for: its texts such as "(1, 8)"."""
    for guess in _guesses(function):
        for text in guess.said:
            with suppress(ValueError, SyntaxError):
                value = ast.literal_eval(str(text))
                if isinstance(value, list | tuple):
                    yield value


def _of_lists(check: Check, truth: Any, told: Sequence[Any]) -> dict[str, Any]:
    """Return what is said of lists. as: their type, at: of single ones, shapes: of others of a shape, other: of any.

    told: lists that have a sentence of their own.
    """
    container: Any = tuple if isinstance(truth, tuple) else list
    lists = [[*range(k, 97, 96 // size)][:size] for size in range(1, 9) for k in (3, 2, 5)]
    lists += [each[::-1] for each in lists] + [[], ["x"], ["y"], ["yes", "no"], ["no", "so"]]
    if isinstance(truth, list | tuple):
        lists += [_moved(truth, by) for by in (11, 13, 17)]
    shapes: dict[str, set[Sentence]] = {}
    for each in lists:
        with suppress(TypeError, ValueError):
            fitting = _sentences(check, container(each), LISTS)
            shapes[shape(each)] = shapes.get(shape(each), fitting) & fitting
    at = []
    if isinstance(truth, list | tuple):
        at = [[_nested(each), check(container(each)).message] for each in (truth, *told)]
    other = set.intersection(*(found for name, found in shapes.items() if name in ("[s]", "[nnnnnnn]", "[nnnnnnnn]")))
    # Lists of one shape may get sentences that have no form in common, where a guess is read as a word: none, then.
    odd = {name: _best(found, LISTS) for name, found in shapes.items() if found and not found & other}
    return {"as": container.__name__, "at": at, "shapes": odd, "other": _best(other, LISTS) if other else None}


def _moved(value: Any, by: int) -> Any:
    """Return a list of the same shape with other numbers and words in it."""
    if isinstance(value, list | tuple):
        return [_moved(each, by + 7 * place) for place, each in enumerate(value)]
    return f"{value}z" if isinstance(value, str) else value + by
