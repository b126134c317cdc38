"""Every exercise of every room knows its reference, its stub and its mistakes; every guess is only commented on."""

from dataclasses import replace

import pytest

from support.checks import Exercise, Guess, Tried
from tests.rooms import EXERCISES, GUESSES, ROOMS

MISTAKES = [(name, sentence) for name, exercise in EXERCISES.items() for sentence in exercise.mistakes]

# a missing `return` is told by what came of the None, in all others as "returned None"
NONE_TOLD_OTHERWISE = {
    "n00.check_step",
    *("n02.check_loader", "n02.check_pooled", "n02.check_dealt", "n02.check_epoch_keys", "n02.check_repaired"),
    *("n04.check_cursor", "n05.check_packed", "n05.check_file", "n05.check_client", "n05.check_rank_dataset"),
    *("n06.check_ring", "n09.check_spawn_workers", "n10.check_checkpoint", "n11.check_fence"),
    *("n12.check_mini", "n13.check_prefetch", "n13.check_streamed"),
    *("n06.check_ddp", "n06.check_gather", "n06.check_state"),
    *("n15.check_pipeline_step", "n15.check_average"),
}


@pytest.fixture
def patience(monkeypatch):
    """Set how long a thread may take: wrong answers that hang are given up soon, right ones are left in peace."""

    def set_to(seconds):
        monkeypatch.setattr(ROOMS["n09"], "PATIENCE", seconds)
        monkeypatch.setattr(ROOMS["n12"], "PATIENCE", 4 * seconds)  # for a whole pipeline

    return set_to


def ask(exercise, answer):
    return exercise(*answer) if exercise.answers > 1 else exercise(answer)


def written_with(exercise, function):
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
def test_the_reference_is_right_and_the_untouched_stub_is_open(name, patience):
    patience(10.0)
    exercise = EXERCISES[name]
    assert isinstance(exercise, Exercise) and ask(exercise, exercise.reference).status == "right"
    assert exercise(*written_with(exercise, stub)).status == "open"


@pytest.mark.parametrize("name, sentence", MISTAKES)
def test_a_famous_mistake_is_wrong_and_told_by_its_sentence(name, sentence, patience):
    patience(0.6)
    verdict = ask(EXERCISES[name], EXERCISES[name].mistakes[sentence])
    assert verdict.status == "wrong" and sentence in verdict.message


@pytest.mark.parametrize("name", [name for name, exercise in EXERCISES.items() if callable(exercise.reference)])
def test_an_answer_that_raises_or_returns_nothing_is_wrong_and_the_error_is_told(name, patience):
    patience(0.6)
    exercise = EXERCISES[name]
    verdict = exercise(*written_with(exercise, raises))
    assert verdict.status == "wrong"
    assert "ValueError: a parrot of the reader's" in verdict.message
    verdict = exercise(*written_with(exercise, returns_nothing))
    assert verdict.status == "wrong" and ("returned None" in verdict.message) == (name not in NONE_TOLD_OTHERWISE)


@pytest.mark.parametrize("name", GUESSES)
def test_a_guess_of_a_room_brings_the_values_with_which_it_is_tried(name):
    assert isinstance(GUESSES[name], Guess)
    assert isinstance(GUESSES[name].tried, Tried), f"{name} has no tried=Tried(right=…, wrong=…)"


@pytest.mark.parametrize("name", GUESSES)
def test_a_guess_is_only_commented_on_and_none_is_told_nothing(name):
    comment = GUESSES[name]
    told = comment.tried.known
    missing = comment(None, *told)
    hit = comment(comment.tried.right, *told)
    missed = comment(comment.tried.wrong, *told)
    odd = comment("forty-two", *told)
    dot = comment(".", *told)
    assert {verdict.status for verdict in (missing, hit, missed, odd, dot)} == {"note"}
    assert missing.message.startswith("No guess yet for ")
    assert missing.message.endswith("Put one in place of None: a wrong guess teaches more than none.")
    assert "that is it" in hit.message
    assert "that is it" not in missed.message
    assert odd.message.endswith("Read on for the reason.")
    truth = hit.message.rsplit(" = ", 1)[1].rstrip(".")
    assert f" = {truth}" not in missing.message


@pytest.mark.parametrize("name", GUESSES)
def test_a_comment_on_a_number_is_said_to_its_end(name):
    told = GUESSES[name].tried.known
    quick = replace(GUESSES[name], truth=lambda *known, **named: 1.0)
    famous = GUESSES[name].said
    for number in (*famous, *range(101), *(k / 4 for k in range(400))):
        message = quick(number, *told).message.replace(", …]", "]")  # a list that goes on is not cut off
        assert "…" not in message
