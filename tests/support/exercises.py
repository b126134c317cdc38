"""Answers to try on the exercises of all rooms."""

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
    written = []
    for reference, parts in zip(as_tuple(exercise), parts_of_each(exercise), strict=True):
        chosen = [part for part in parts if only is None or part in only]
        if exercise.methods:
            methods = [part.rpartition(".")[2] for part in chosen]
            written.append(type(reference.__name__, (reference,), dict.fromkeys(methods, function)))
        elif not chosen:
            written.append(reference)
        else:
            written.append(called(chosen[0], function) if callable(reference) else None)
    return written


def called(name, function):
    """Return the function under another name."""
    return FunctionType(function.__code__, function.__globals__, name)


def parts_of_each(exercise):
    """Return the names of what the reader fills in, for each answer."""
    names = list(exercise.parts(*as_tuple(exercise)))
    each = len(exercise.methods) or 1
    return [names[start : start + each] for start in range(0, len(names), each)]


def as_tuple(exercise):
    """Return the references of an exercise, one for each answer."""
    return exercise.reference if exercise.answers > 1 else (exercise.reference,)
