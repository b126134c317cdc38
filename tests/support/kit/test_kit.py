"""The kit of the rooms: wrong answers, judges that always catch, exact guesses, a reader's threads."""

import threading
import time
from fractions import Fraction
from functools import partial
from queue import SimpleQueue

import numpy as np
import pytest
import torch

from support import built, imitated
from support.kit.exact import exact_number
from support.kit.exercise import Exercise
from support.kit.judged import Fault, judged
from support.kit.mistakes import Mistake, edited, famous, with_methods
from support.kit.portable import lacking
from support.kit.raised import Finding, in_case
from support.kit.threads import Aside, StuckError, Waits


class Counter:
    """Counts."""

    def __init__(self):
        self.count = 0

    def step(self):
        self.count += 1
        return self.count


def double(number):
    return 2 * number


# ---- mistakes


def test_a_wrong_answer_is_the_right_one_with_some_of_its_text_otherwise():
    assert edited(double, ("2 *", "3 *"))(5) == 15
    assert double(5) == 10


def test_edits_follow_each_other_and_may_use_names_that_the_solution_does_not():
    assert edited(double, ("2 *", "two *"), ("two", "three"), names={"three": 3})(5) == 15


def test_a_class_is_edited_in_its_methods_and_keeps_the_others():
    wrong = edited(Counter, ("+= 1", "+= 2"))()
    assert wrong.step() == 2
    assert with_methods(Counter, step=lambda self: "no")().step() == "no"


def test_several_parts_are_edited_together_and_know_each_other():
    depend, fence = edited((built.depend, built.fence), ("i - 1", "i - 2"))
    assert fence.__globals__["depend"] is depend


def test_an_edited_answer_can_be_edited_again():
    assert edited(edited(double, ("2 *", "3 *")), ("3 *", "4 *"))(5) == 20


def test_an_edit_of_what_stands_nowhere_fails_and_names_it():
    with pytest.raises(ValueError, match="double has no '7'"):
        edited(double, ("7", "8"))


def test_a_table_as_text_or_as_data_makes_a_wrong_answer_for_each_sentence():
    as_text = famous(
        double,
        """
        Three times.
            2 * → 3 *
        Twice, and one more.
            2 * → 3 * | 3 * number → 2 * number + 1
        """,
    )
    as_data = famous(double, {"Three times.": ("2 *", "3 *"), "Twice, and one more.": ("2 * number", "2 * number + 1")})
    for table in (as_text, as_data):
        assert [wrong(5) for wrong in table.values()] == [15, 11]


def test_a_mistake_names_those_that_it_contains_and_none_that_there_is_not():
    exercise = Exercise(
        "double",
        double,
        cases=[{"number": 1}],
        mistakes={"Three times.": lambda n: 3 * n, "Six times.": Mistake(lambda n: 6 * n, contains=("Three times.",))},
    )
    assert exercise.mistakes["Six times."](1) == 6
    assert [mistake.contains for mistake in exercise.famous] == [(), ("Three times.",)]
    with pytest.raises(ValueError, match="no mistake here"):
        Exercise("double", double, mistakes={"Six times.": Mistake(double, contains=("Four times.",))})


# ---- judged


def doubles(answer):
    for number in (1, 4):
        with in_case(f"for {number}"):
            got = answer(number)
        if got != 2 * number:
            return f"for {number}, {got} is not twice as much."
    return ""


DOUBLE = Exercise("double", double, judge=judged(doubles, "twice."), mistakes={"You squared.": lambda n: n**2})


def test_a_right_answer_is_praised_and_a_famous_mistake_known_by_its_fault():
    assert DOUBLE(double).message == "double: twice."
    assert DOUBLE(lambda n: n * n).message == "double: for 1, 1 is not twice as much. You squared."
    assert DOUBLE(lambda n: n * n + n).message == "double: for 4, 20 is not twice as much."


def test_a_fault_that_tells_a_part_is_known_by_the_whole():
    def begins(answer):
        order = answer()
        return Fault(f"it begins with {order[0]}.", order)

    mistakes = {"You go down.": lambda: [3, 2, 1], "You go up and down.": lambda: [3, 4, 3]}
    order = Exercise("the order", lambda: [1, 2, 3], judge=judged(begins, ""), mistakes=mistakes)
    assert order(lambda: [3, 4, 3]).message == "the order: it begins with 3. You go up and down."


def test_a_mistake_that_the_trial_names_itself_is_not_tried_behind_a_wrong_answer():
    tried = []

    def says_its_number(answer):
        tried.append(answer())
        return f"it is {answer()}."

    judge = judged(says_its_number, "", unsaid=("That is prime.",))
    one = Exercise("one", lambda: 1, judge=judge, mistakes={"it is 2.": lambda: 2, "That is prime.": lambda: 3})
    assert one(lambda: 4).message == "one: it is 4."
    assert tried == [4, 3]
    assert one(lambda: 3).message == "one: it is 3. That is prime."


def test_an_exception_of_the_readers_is_told_with_its_case_and_its_line():
    def raises(number):
        return {1: 2}[number]

    said = DOUBLE(raises).message
    line = raises.__code__.co_firstlineno + 1
    assert said == f"double: for 4: your code raised KeyError: 4 (in raises, line {line}: `return {{1: 2}}[number]`)."


def test_an_exception_without_words_is_no_bare_colon_and_an_exit_is_caught_too():
    def asserts(number):
        raise AssertionError

    def leaves(number):
        raise SystemExit

    assert "raised AssertionError (in asserts" in DOUBLE(asserts).message
    assert "raised SystemExit (in leaves" in DOUBLE(leaves).message


def test_an_error_inside_numpy_is_told_with_the_readers_line_and_not_with_numpys():
    def draws(number):
        return np.random.default_rng(number).integers(0)

    said = DOUBLE(draws).message
    assert "raised ValueError: high <= 0 (in draws, line " in said
    assert "_rand_int64" not in said


def test_an_exception_of_ours_is_not_called_the_readers():
    rows = Exercise("rows", [1], judge=judged(sum, ""))
    assert rows("ab").message.startswith("rows: your code gives what can't be used here: TypeError")


def test_who_is_not_done_in_time_is_told_where_it_is_and_not_of_what_the_code_gives(monkeypatch):
    begun = threading.Event()
    monkeypatch.setattr(imitated.Aside, "over", lambda *_: not begun.wait())
    rows = Exercise("rows", [1], judge=judged(partial(imitated.in_threads, world_size=1), ""))

    def for_ever(dist):
        begun.set()
        while True:
            pass

    assert rows(for_ever).message.startswith("rows: the ranks were not done after 20 s (in for_ever, line ")


def test_a_finding_inside_the_readers_call_is_told_as_it_is():
    def trial(answer):
        def notices():
            raise Finding("it asks twice.")

        answer(notices)
        return ""

    assert Exercise("asks", double, judge=judged(trial, ""))(lambda ask: ask()).message == "asks: it asks twice."


# ---- exact


def test_a_number_is_read_as_it_was_meant():
    weight = exact_number("the weight", lambda: 3 / 4)
    for mine in (0.75, "0.75", "3/4", " 3 / 4 ", "75 %", "75%", Fraction(3, 4)):
        assert "that is it" in weight(mine).message, mine
    share = exact_number("the share", lambda: 43, "%")
    for mine in (43, 43.0, "43", "43 %", 0.43, "0.43"):
        assert "that is it" in share(mine).message, mine
    assert "that is it" in exact_number("the time", lambda: 8, "ticks")("8 ticks").message
    days = exact_number("the month", lambda: 6.75, "days")
    for mine in ("6 3/4", "6 3/4 days", "6  3 / 4", "27/4", "675 %"):
        assert days(mine).message == days(6.75).message, mine
    assert exact_number("all", lambda: 1000)("1 000").message.startswith("You said 1000: that is it")


def test_near_is_not_hit_and_a_famous_wrong_number_is_told_why():
    ticks = exact_number("the time", lambda: 8, "ticks", {7.5: "half a tick is lost"})
    assert ticks(7.5).message == "You said 7.5 (half a tick is lost); the time = 8 ticks. Read on for the reason."
    assert ticks("15/2").message == ticks(7.5).message
    assert "that is it" in exact_number("flops", lambda: 4 / 3, digits=3)(1.33).message
    share = exact_number("the share", lambda: 15.8, "%", whole=True)
    assert share("0.16").message == "You said 16: that is it, the share = 16 %."
    assert share(100).message.startswith("You said 100;")
    assert "that is it" not in exact_number("flops", lambda: 4 / 3)(1.33).message
    for odd in (True, "many", [8], None, float("nan"), "1/0"):
        assert "that is it" not in ticks(odd).message


# ---- threads


def test_what_runs_aside_is_kept_with_its_result_or_error():
    with Aside(lambda: 3, lambda: {}["x"]) as aside:
        assert aside.over(5)
    assert [run.end for run in aside.runs] == ["returned 3", "raised KeyError: 'x'"]


def test_who_waits_or_computes_for_ever_is_given_up_and_ended_with_all_that_it_started():
    def serves():
        queue = SimpleQueue()
        queue.get()

    def waits():
        inner = threading.Thread(target=serves)
        inner.start()
        inner.join()

    def computes():
        while True:
            time.sleep(0.001)

    before = threading.active_count()
    with Aside(waits, computes) as aside:
        assert not aside.over(0.05)
        assert len(aside.left(0.01)) == 1
    assert threading.active_count() == before


def test_a_deadlock_is_named_at_once():
    waits = Waits(everybody=lambda: 2)

    def wait(who, whom):
        with waits.changed:
            waits.wait(who, f"get from {whom}", lambda: False)

    with Aside(lambda: wait("anna", "bert"), lambda: wait("bert", "anna")) as aside:
        assert aside.over(5)
    assert isinstance(aside.error, StuckError)
    assert "anna waits in get from bert" in str(aside.error)
    assert "bert waits in get from anna" in str(aside.error)


# ---- portable


def uses_torch():
    return torch.ones(1)


def leads_to_torch():
    return [uses_torch]


def test_what_needs_torch_is_found_through_all_that_it_calls():
    leads_to_torch.__module__ = uses_torch.__module__ = "support.imagined"
    assert lacking(double) == set()
    assert lacking(leads_to_torch) == {"torch"}
    assert lacking([{"a": (leads_to_torch,)}]) == {"torch"}
    assert lacking(built.clock_cycles) == set()
    assert lacking(built.MyCheckpoint) == {"torch"}
