"""Who empties the lists that a check hands out changes nothing for the answers that are judged afterwards."""

from copy import deepcopy
from functools import wraps

import pytest

from support.kit.exercise import Exercise, cases
from tests.rooms import EXERCISES
from tests.support.exercises import ask, made_with


def emptied(thing):
    """Empty the lists and dicts of a value, the innermost first."""
    if isinstance(thing, (list, tuple, dict)):
        for part in thing.values() if isinstance(thing, dict) else thing:
            emptied(part)
    if isinstance(thing, (list, dict)):
        thing.clear()


def emptying(name, function):
    """Return what does the same, and empties afterwards what it was given."""

    @wraps(function)
    def empties(*arguments, **named):
        result = deepcopy(function(*arguments, **named))
        emptied([*arguments, *named.values()])
        return result

    return empties


def can_be_emptied(exercise):
    """Say whether some case hands out a list or a dict to a function."""
    of_functions = not any(map(exercise.methods_of, exercise.references))
    values = [value for case in exercise.all_cases() for value in case.values()]
    return of_functions and any(isinstance(value, (list, dict)) for value in values)


WITH_LISTS = [name for name, exercise in EXERCISES.items() if can_be_emptied(exercise)]


@pytest.mark.parametrize("name", WITH_LISTS)
def test_what_an_answer_empties_it_empties_for_itself_alone(name):
    exercise = EXERCISES[name]
    before = deepcopy(exercise.all_cases())

    def nonsense(*arguments, **named):
        return "forty-two" + "" * len(arguments)

    told = exercise(nonsense).message
    verdict = ask(exercise, made_with(exercise, emptying)[0])
    assert verdict.status == "right" or "change" in verdict.message, verdict
    assert exercise.all_cases() == before
    assert exercise(nonsense).message == told
    assert ask(exercise, exercise.reference)


def test_where_the_contract_says_that_arguments_stay_as_they_are_who_empties_them_is_refused():
    exercise = Exercise("the total", reference=lambda numbers: sum(numbers), cases=cases("numbers", [[1]]), keeps=True)
    assert "changed its argument numbers" in exercise(emptying("", exercise.reference)).message
    assert WITH_LISTS
