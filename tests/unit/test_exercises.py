"""Every exercise knows its reference, its stub and its famous mistakes; every guess is only commented on."""

from __future__ import annotations

from importlib import import_module

import pytest

from lib.checks import base
from lib.checks.base import Exercise

ROOMS = {name: import_module(f"lib.checks.{name}") for name in ("n07",)}

EXERCISES = {
    f"{room}.{name}": value
    for room, module in ROOMS.items()
    for name, value in vars(module).items()
    if name.startswith("check_") and not hasattr(base, name)
}
MISTAKES = [(name, sentence) for name, exercise in EXERCISES.items() for sentence in exercise.mistakes]


def ask(exercise, answer):
    return exercise(*answer) if exercise.answers > 1 else exercise(answer)


def written_with(exercise, function):
    """Make an answer of which every part that the reader writes is `function`; for a value, None."""
    parts = exercise.reference if exercise.answers > 1 else (exercise.reference,)
    if exercise.methods:
        return [type("Answer", (part,), dict.fromkeys(exercise.methods, function)) for part in parts]
    return [function if callable(part) else None for part in parts]


def stub(*arguments, **named): ...


def returns_nothing(*arguments, **named):
    list(arguments)


def raises(*arguments, **named):
    raise ValueError("a parrot of the reader's")


@pytest.mark.parametrize("name", EXERCISES)
def test_the_reference_is_right_and_the_untouched_stub_is_open(name):
    exercise = EXERCISES[name]
    assert isinstance(exercise, Exercise)
    assert ask(exercise, exercise.reference).status == "right"
    assert exercise(*written_with(exercise, stub)).status == "open"


@pytest.mark.parametrize("name, sentence", MISTAKES)
def test_a_famous_mistake_is_wrong_and_told_by_its_sentence(name, sentence):
    verdict = ask(EXERCISES[name], EXERCISES[name].mistakes[sentence])
    assert verdict.status == "wrong"
    assert sentence in verdict.message


@pytest.mark.parametrize(
    "name", [name for name, exercise in EXERCISES.items() if callable(exercise.reference)]
)
def test_an_answer_that_raises_or_returns_nothing_is_wrong_and_the_error_is_told(name):
    exercise = EXERCISES[name]
    verdict = exercise(*written_with(exercise, raises))
    assert verdict.status == "wrong"
    assert "ValueError: a parrot of the reader's" in verdict.message
    assert exercise(*written_with(exercise, returns_nothing)).status == "wrong"


GUESSES = {  # right, wrong, and what the notebook tells beside the guess
    "n07.guess_chunks": (3, 4),
    "n07.guess_lost": (2, 0),
    "n07.guess_times": (8, 1),
    "n07.guess_way": (34, 10),
    "n07.guess_peak": (1, 0.125),
}


def test_the_table_has_every_guess():
    assert set(GUESSES) == {
        f"{room}.{name}"
        for room, module in ROOMS.items()
        for name in vars(module)
        if name.startswith("guess_")
    }


@pytest.mark.parametrize("name", GUESSES)
def test_a_guess_is_only_commented_on_and_none_is_told_nothing(name):
    room, function = name.split(".")
    right, wrong, *told = GUESSES[name]
    missing, hit, missed = (getattr(ROOMS[room], function)(guess, *told) for guess in (None, right, wrong))
    assert missing.status == hit.status == missed.status == "note"
    assert missing.message.startswith("No guess yet for ")
    assert missing.message.endswith("Put one in place of None: a wrong guess teaches more than none.")
    assert "that is it" in hit.message
    assert "that is it" not in missed.message
    truth = hit.message.rsplit(" = ", 1)[1].rstrip(".")
    assert f" = {truth}" not in missing.message
