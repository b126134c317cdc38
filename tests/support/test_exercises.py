"""Every exercise knows its reference, its stub and its famous mistakes; every guess is only commented on."""

from dataclasses import replace
from importlib import import_module

import pytest

from support import checks as base
from support.checks import Exercise, Guess

ROOMS = {name: import_module(f"support.{name}.checks") for name in [f"n{number:02}" for number in range(16)]}

EXERCISES = {
    f"{room}.{name}": value
    for room, module in ROOMS.items()
    for name, value in vars(module).items()
    if name.startswith("check_") and not hasattr(base, name)
}
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


LOSSES = {"A, told": {"test loss": [0.3, 0.31]}, "A, forgotten": {"test loss": [0.31, 0.3]},
    "B, told": {"test loss": [0.3, 0.31]}, "B, forgotten": {"test loss": [0.4, 0.42]}}  # fmt: skip
GUESSES = {  # right, wrong, and what the notebook tells beside the guess
    "n00.guess_weight": (0.75, 0.5, (6, 2)), "n00.guess_slow_rank": (8, 5, 4, 2), "n00.guess_python_speedup": (1, 2),
    "n01.guess_pipeline": (43, 78), "n01.guess_deeper_queue": (1, 4), "n01.guess_places": (3, 2),
    "n01.guess_who_gains": ("slow", "heavy"),
    "n02.guess_asker": ("Sampler", "DataLoader"), "n02.guess_table": ([(1, 2)], [(2, 1)], {"a": (1, 2)}),
    "n02.guess_handed_out": (10, 12), "n02.guess_loads": ((0, 6, 4), [10, 6, 4]), "n02.guess_streamed": (20, 10),
    "n03.guess_last_of_eight": ([1], [7]), "n03.guess_orders": (11, 36), "n03.guess_harmed": ("b", "AB", LOSSES),
    "n03.guess_missed_percent": (34.4, 0),
    "n04.guess_page_reads": (229, 29), "n04.guess_last_shard": ((8, 9, 0, 1), range(4)), "n04.guess_rest": (4, 12),
    "n04.guess_rounds": (5, 1),
    "n05.guess_list_megabytes": (104, 44, 1_000_000), "n05.guess_peak_megabytes": (624, 208, 1_000_000),
    "n05.guess_copied_percent": (94, 6, 500_000), "n05.guess_cold_hours": (6.9, 0.02), "n05.guess_received": (0, 2),
    "n06.guess_lone": (3, 1), "n06.guess_ring": (1.75, 8), "n06.guess_adam": (1, 8),
    "n06.guess_first_bucket": (25, 100), "n06.guess_flipped": ("b", "A"), "n06.guess_hang": ("b", "A"),
    "n07.guess_chunks": (3, 4), "n07.guess_lost": (2, 0), "n07.guess_way": (57, 80), "n07.guess_peak": (1, 0.125),
    "n07.guess_world": (0.5, 1),
    "n08.guess_model_parallel": (1, 3, 3), "n08.guess_idle": (43, 75, 4, 4), "n08.guess_waits": (3, 2),
    "n08.guess_unequal": (16, 18, [3, 1, 3], 4), "n08.guess_held": (4, 8, 8, 4),
    "n09.guess_size": (64, 512, {8: 0.8, 64: 1.3, 512: 1.9}), "n09.guess_streams": (17, 13),
    "n09.guess_grad": ("yes", "no"), "n09.guess_clocks": (16, 15, 4, [3, 1, 2]), "n09.guess_backward": (1, 2),
    "n09.guess_late": ([0], [0, 1, 2, 3, 4, 5]),
    "n10.guess_one_segment": (17, 9),
    "n10.guess_least": (16, 64),
    "n10.guess_flops": (4 / 3, 1.25),
    "n10.guess_fewer": (0, 3),
    "n10.guess_momentum": (0.19, 0.2),
    "n11.guess_first": ("a", "b"),
    "n11.guess_ticks": (9, 12, 4, 3, 5),
    "n11.guess_alive": ((2, 8), (8, 8)),
    "n11.guess_changes": (0, 4),
    "n11.guess_missing": ((2, 1), (1, 1)),
    "n12.guess_once": (4, 1),
    "n12.guess_step": (17, 78),
    "n12.guess_counted": (7, 1),
    "n13.guess_wait_stream": (15, 11),
    "n13.guess_timed": (11, 6),
    "n13.guess_step": (6, 9),
    "n13.guess_spoiled": (0, 2),
    "n13.guess_chunks": (12, 52),
    "n14.guess_ahead": (7, 5, 32, 4, 0.25),
    "n14.guess_interleaved": (16, 13.6, 8, 4, 2),
    "n14.guess_zero_bubble": (3, 0, 8, 4),
    "n14.guess_next_step": (0, 6, 8, 4),
    "n15.guess_data_rank": (1, 5),
    "n15.guess_rows": (40, 80),
    "n15.guess_unaveraged": ("c", "A"),
    "n15.guess_bubble": (20, 25),
    "n15.guess_activations": (1, 0.5),
    "n15.guess_partitions": (4, 1),
    "n15.guess_loss": (2.3, 0.0),
}  # fmt: skip


def test_the_table_has_every_guess():
    assert set(GUESSES) == {
        f"{room}.{name}" for room, module in ROOMS.items() for name in vars(module) if name.startswith("guess_")
    }


@pytest.mark.parametrize("name", GUESSES)
def test_a_guess_is_only_commented_on_and_none_is_told_nothing(name):
    room, function = name.split(".")
    right, wrong, *told = GUESSES[name]
    comment = getattr(ROOMS[room], function)
    missing, hit, missed, odd, dot = (comment(guess, *told) for guess in (None, right, wrong, "forty-two", "."))
    assert {verdict.status for verdict in (missing, hit, missed, odd, dot)} == {"note"}
    assert missing.message.startswith("No guess yet for ")
    assert missing.message.endswith("Put one in place of None: a wrong guess teaches more than none.")
    assert "that is it" in hit.message
    assert "that is it" not in missed.message
    assert odd.message.endswith("Read on for the reason.")
    truth = hit.message.rsplit(" = ", 1)[1].rstrip(".")
    assert f" = {truth}" not in missing.message
    if isinstance(comment, Guess):
        quick = replace(comment, truth=lambda *known, **named: 1.0)
        for number in (*comment.said, *range(101), *(k / 4 for k in range(400))):  # famous wrong ones are among them
            assert "…" not in quick(number, *told).message, "a comment is said to its end"
