"""Answers to try on the exercises of all rooms."""

from functools import wraps
from inspect import signature
from itertools import islice
from types import FunctionType

from tests.rooms import ROOMS

#: By name of the room: the multiple of a thread's patience that its check needs. Rooms whose checks wait.
WAITING = {"n09": 1, "n12": 4}


def be_patient(monkeypatch, seconds):
    """Set how long a thread may take: wrong answers that hang are given up soon, right ones are left in peace."""
    for room, times in WAITING.items():
        monkeypatch.setattr(ROOMS[room], "PATIENCE", times * seconds)


def ask(exercise, answer):
    return exercise(*answer) if exercise.answers > 1 else exercise(answer)


def written_with(exercise, function, only=None):
    """Return answers whose parts are all this function, or only these parts, while the others stay the reference's.

    Each is called as the reference's part is: a verdict speaks of it by name.
    """
    return made_with(exercise, lambda name, _: called(name, function), only)


def made_with(exercise, make, only=None):
    """Return answers whose parts, or only these, are made from the reference's: make(name, part).

    Answers find each other by name, as in a notebook: what calls another of them calls the new one.
    """
    spaces = []
    written = []
    for reference, parts in zip(exercise.references, parts_of_each(exercise), strict=True):
        chosen = [part for part in parts if only is None or part in only]
        if isinstance(reference, FunctionType):
            spaces.append(dict(reference.__globals__))
            reference = in_space(reference, spaces[-1])
        if exercise.methods_of(reference):
            names = [part.rpartition(".")[2] for part in chosen]
            methods = {name: make(name, getattr(reference, name)) for name in names}
            written.append(type(reference.__name__, (reference,), methods))
        elif not chosen:
            written.append(reference)
        else:
            written.append(make(chosen[0], reference) if callable(reference) else None)
    for space in spaces:
        space.update((answer.__name__, answer) for answer in written if hasattr(answer, "__name__"))
    return written


def in_space(function, space):
    """Return the function with these globals."""
    copy = FunctionType(function.__code__, space, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__wrapped__ = function
    return copy


def called(name, function):
    """Return the function under another name."""
    return FunctionType(function.__code__, function.__globals__, name)


def without_return(name, function):
    """Return what does the same and forgets to return what comes of it."""

    @wraps(function)
    def forgetful(*arguments, **named):
        function(*arguments, **named)

    forgetful.__name__ = name
    forgetful.__signature__ = signature(function)
    del forgetful.__wrapped__  # else a check that reads the answer's text finds the function within
    return forgetful


def parts_of_each(exercise):
    """Return the names of what the reader fills in, for each answer."""
    names = iter(exercise.parts(*exercise.references))
    counts = [len(exercise.methods_of(reference)) or 1 for reference in exercise.references]
    return [list(islice(names, count)) for count in counts]
