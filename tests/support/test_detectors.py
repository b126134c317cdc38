"""No sentence is false of the answer that gets it: every detector of every exercise on every answer that we know.

A detector is a mistake of an exercise, known by what it does. The verdict says the sentence of the first that fits, so
two that can't be told apart show here: the later one gets the earlier one's sentence.
"""

import ast
import inspect
import json
import re
import textwrap

import pytest
import torch

from support.kit.portable import lacking
from tests.rooms import EXERCISES, ROOMS
from tests.support.exercises import ask, be_patient, made_with, parts_of_each, without_return, written_with
from tools.hygiene import joined
from tools.project import chapters

PATIENCE = 1.0

#: What a missing `return` is told. Of several calls it is the one that gave None, which libtorch's cursor gives at its
#: end; of a `backward` torch says how many gradients it should have returned.
RETURNED_NONE = re.compile(
    r"return(ed|s) None|position \d: expected .*, got None|incorrect number of gradients \(expected \d, got 1\)"
)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Compute in one thread: these tensors are small, and threads that share a core with others spin."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def stub(*arguments, **named): ...


def raising_stub(*arguments, **named):
    raise NotImplementedError


def stub_of(exercise):
    """Return the stub that says nothing at all, or the one that raises where nothing at all may be an answer."""
    return raising_stub if exercise.may_pass else stub


def gives_none(*arguments, **named):
    list(arguments)


def gives_a_number(*arguments, **named):
    return 42 + len(arguments) * 0


def gives_a_word(*arguments, **named):
    return "forty-two" + "" * len(arguments)


def gives_an_empty_list(*arguments, **named):
    return list(arguments[:0])


def raises_a_bare_number(*arguments, **named):
    raise KeyError(7)


#: Answers that no detector knows.
ODD = {
    "gives None": gives_none,
    "raises a bare number": raises_a_bare_number,
    "gives a number": gives_a_number,
    "gives a word": gives_a_word,
    "gives an empty list": gives_an_empty_list,
}
ODD_IN_THE_SUITE = ("gives None", "raises a bare number")
FUNCTIONS = [name for name, exercise in EXERCISES.items() if all(map(callable, exercise.references))]


#: Exercises whose trial takes a fifth of a second of a core or more, or whose mistakes take a second or more together:
#: `make test` takes each third of what is tried on them.
SLOW = {
    "n00.check_rank_step",
    "n00.check_step",
    "n01.check_loader",
    "n01.check_order",
    "n01.check_predict",
    "n02.check_buffered",
    "n02.check_noise",
    "n03.check_sampler",
    "n03.check_score",
    "n03.check_share",
    "n04.check_cursor",
    "n04.check_inverse",
    "n05.check_client",
    "n05.check_epoch",
    "n05.check_file",
    "n05.check_index",
    "n05.check_packed",
    "n05.check_rank_dataset",
    "n06.check_ddp",
    "n07.check_accumulate",
    "n07.check_cut",
    "n07.check_jointly",
    "n07.check_saved_bytes",
    "n08.check_best_m",
    "n08.check_simulate",
    "n09.check_run_clock",
    "n09.check_worker",
    "n10.check_hook_checkpoint",
    "n11.check_copy_wait",
    "n12.check_mini",
    "n12.check_numbers",
    "n12.check_pipeline",
    "n14.check_search",
    "n16.check_job_5",
    "n16.check_job_7",
    "n16.check_job_8",
}
#: Exercises whose mistakes take two seconds each or more: `make test` takes each sixth.
SLOWEST = {
    "n09.check_spawn_workers",
    "n16.check_job_1",
    "n16.check_job_12",
    "n16.check_job_6",
    "n16.check_state",
}


def marks_of(name, number):
    """Return the marks of try `number`, from 0, of an exercise."""
    if name in SLOWEST:
        return [pytest.mark.costly] if number % 6 > 0 else []
    return [pytest.mark.costly] if number % 3 > 0 and name in SLOW else []


def mistakes():
    """Yield every mistake of every exercise; of those whose trial starts ranks or is slow, the suite takes a share."""
    for name, exercise in EXERCISES.items():
        starts_ranks = "multiprocessing" in lacking(exercise.view, exercise.fault, exercise.judge)
        for number, mistake in enumerate(exercise.famous):
            marks = marks_of(name, number)
            if number % 3 > 0 and starts_ranks:
                marks = [pytest.mark.prove]
            yield pytest.param(name, mistake, id=f"{name}-{mistake.sentence}", marks=marks)


def test_the_slow_exercises_exist():
    assert EXERCISES.keys() >= SLOW | SLOWEST


def odd_answers():
    """Yield every exercise of functions with every odd answer; where a trial is slow, the suite takes the first."""
    for name in FUNCTIONS:
        for number, odd in enumerate(ODD):
            marks = marks_of(name, number) if odd in ODD_IN_THE_SUITE else [pytest.mark.prove]
            yield pytest.param(name, odd, marks=marks)


IN_PARTS = [name for name in EXERCISES if sum(map(len, parts_of_each(EXERCISES[name]))) > 1]


def is_bare(exercise, message):
    """Say whether a verdict is a number and no more: no case, no word of the exercise."""
    said = message.removeprefix(exercise.what)
    words = re.findall(r"[A-Za-z]{2,}", re.sub(r"\b(is|not|expected|got|your code raised|\w+Error)\b", "", said))
    return not words


def faults(name, mistake, message):
    """Return what is false or bare in what a famous mistake is told."""
    exercise = EXERCISES[name]
    others = [
        other.sentence for other in exercise.famous if other.sentence not in (mistake.sentence, *mistake.contains)
    ]
    rest = message.replace(mistake.sentence, "")
    found = [f"it is told of another: {sentence}" for sentence in others if sentence in rest]
    if mistake.sentence not in message:
        found.append("it is not told its own sentence")
    if is_bare(exercise, message):
        found.append("it is told a bare number")
    return found


def odd_faults(name, odd, message):
    """Return what is false or bare in what an answer is told that no detector knows."""
    found = []
    is_class = bool(EXERCISES[name].methods)  # there another method, or Python itself, may well raise
    if not odd.startswith("raises") and not is_class and "your code raised" in message:
        found.append("it has raised nothing")
    first, *others = EXERCISES[name].references
    one_function = not is_class and not others and returns_a_value(first)
    if odd == "gives None" and one_function and "returned None" not in message:
        found.append("it is not told that it returned None")
    if odd.startswith("raises") and not re.search("KeyError:? 7", message):
        found.append("it is not told its error")
    if odd.startswith("raises") and "line" not in message:
        found.append("it is told a bare number, and not where")
    if is_bare(EXERCISES[name], message):
        found.append("it is told a bare number")
    return found


def returns_a_value(function):
    """Say whether the text of a function, without those inside it, returns or yields something else than None."""
    if function.__name__ == "<lambda>":
        return True
    waiting = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function)))).body[0].body
    for node in waiting:
        if isinstance(node, (ast.Yield, ast.YieldFrom)):
            return True
        if isinstance(node, ast.Return) and node.value is not None and ast.unparse(node.value) != "None":
            return True
        if not isinstance(node, (ast.FunctionDef, ast.Lambda)):
            waiting += ast.iter_child_nodes(node)
    return False


@pytest.mark.parametrize("name", EXERCISES)
def test_the_solution_is_right_and_the_stub_not_attempted(name, monkeypatch):
    be_patient(monkeypatch, 10.0)
    exercise = EXERCISES[name]
    verdict = ask(exercise, exercise.reference)
    assert verdict.status == "right", verdict
    verdict = exercise(*written_with(exercise, stub_of(exercise)))
    assert verdict.status == "open"
    assert "Not attempted yet" in verdict.message


@pytest.mark.parametrize("written", [stub, raising_stub])
@pytest.mark.parametrize("name", IN_PARTS)
def test_half_a_stub_is_told_by_name_what_is_missing(name, written):
    exercise = EXERCISES[name]
    parts = [part for each in parts_of_each(exercise) for part in each]
    for missing in parts:
        if written is stub and missing in exercise.may_pass:
            continue
        verdict = exercise(*written_with(exercise, written, only=[missing]))
        assert verdict.status == "open"
        assert verdict.message.endswith(f"still the stub: {missing}.")


@pytest.mark.parametrize("name", IN_PARTS)
def test_of_a_half_that_is_written_none_is_told_that_it_is_still_the_stub(name):
    exercise = EXERCISES[name]
    parts = [part for each in parts_of_each(exercise) for part in each]
    for written in parts:
        others = [part for part in parts if part != written]
        verdict = exercise(*written_with(exercise, stub_of(exercise), only=others))
        assert verdict.status == "open"
        assert verdict.message.endswith(f"still the stub: {', '.join(others)}.")


def methods_left_open(path):
    """Yield of each class of a notebook that has stubs which methods they are."""
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code" and "class " in joined(cell["source"]):
            for part in ast.parse(joined(cell["source"])).body:
                if isinstance(part, ast.ClassDef):
                    functions = [inside for inside in part.body if isinstance(inside, ast.FunctionDef)]
                    stubs = sorted(function.name for function in functions if is_stub(function))
                    if stubs:
                        yield stubs


def is_stub(function):
    """Say whether nothing is in a function's text but `...`, or the NotImplementedError of a stub."""
    last = ast.unparse(function.body[-1])
    return len(function.body) == 1 and last in ("...", "raise NotImplementedError")


def test_the_methods_that_a_notebook_leaves_open_are_those_that_its_exercise_asks_for():
    asked = [
        (name.partition(".")[0], sorted(exercise.methods))
        for name, exercise in EXERCISES.items()
        for reference in exercise.references
        if isinstance(reference, type)
    ]
    left_open = [(f"n{path.name[:2]}", stubs) for path in chapters() for stubs in methods_left_open(path)]
    assert sorted(left_open) == sorted(asked)


@pytest.mark.parametrize("name, mistake", list(mistakes()))
def test_a_famous_mistake_is_told_its_own_sentence_and_no_other(name, mistake, monkeypatch):
    be_patient(monkeypatch, PATIENCE)
    verdict = ask(EXERCISES[name], mistake.answer)
    assert verdict.status == "wrong"
    found = faults(name, mistake, verdict.message)
    assert not found, f"{found}: {verdict.message}"


@pytest.mark.parametrize("name, odd", list(odd_answers()))
def test_an_answer_that_nobody_knows_gets_a_case_of_the_exercise(name, odd, monkeypatch):
    be_patient(monkeypatch, PATIENCE)
    exercise = EXERCISES[name]
    verdict = exercise(*written_with(exercise, ODD[odd]))
    assert verdict.status == "wrong"
    found = odd_faults(name, odd, verdict.message)
    assert not found, f"{found}: {verdict.message}"


def all_parts():
    """Yield every part of every exercise of functions; where a trial is slow, the suite takes each third."""
    for name in FUNCTIONS:
        inside = [part for each in parts_of_each(EXERCISES[name]) for part in each]
        for number, part in enumerate(inside):
            yield pytest.param(name, part, marks=marks_of(name, number))


@pytest.mark.parametrize("name, part", list(all_parts()))
def test_a_missing_return_is_told_as_such_wherever_something_is_to_be_returned(name, part, monkeypatch):
    be_patient(monkeypatch, PATIENCE)
    exercise = EXERCISES[name]
    verdict = exercise(*made_with(exercise, without_return, only=[part]))
    if returns_a_value(exercise.parts(*exercise.references)[part]):
        assert verdict.status == "wrong"
        assert RETURNED_NONE.search(verdict.message), verdict
    else:
        assert verdict.status == "right", verdict


def test_exercises_that_a_page_could_check_need_no_torch():
    portable = {name for name, exercise in EXERCISES.items() if exercise.portable}
    assert len(portable) >= 22
    assert len(ROOMS) > 1
