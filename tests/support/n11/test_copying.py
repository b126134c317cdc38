"""What find_races says of copies between two devices: nothing of ours, and each duty that is left out."""

import pytest

from support.built import MyCopy, MyWait, moved
from support.kit.mistakes import edited
from support.n11.copying import fault_of_copy_wait, races_of

COPYING = (moved, MyCopy, MyWait)

#: Backward with a copy of its own, from which a duty can be left out; forward keeps all of them.
OWN_BACKWARD = """user = current_stream(prev_stream.device)
        with prev_stream, next_stream:
            back = gradient.to(prev_stream.device)
        gradient.record_stream(next_stream)
        back.record_stream(user)
        return None, None, back"""


def with_own_backward(*changes):
    written = OWN_BACKWARD
    for old, new in changes:
        assert old in written
        written = written.replace(old, new)
    return edited(COPYING, ("return None, None, moved(gradient, next_stream, prev_stream)", written))[1:]


@pytest.mark.parametrize("m", range(1, 7))
def test_ours_has_no_race_there_and_back(m):
    assert races_of(MyCopy, MyWait, m) == []
    assert races_of(*with_own_backward(), m) == []


@pytest.mark.parametrize("line", ["gradient.record_stream(next_stream)", "back.record_stream(user)"])
def test_each_record_of_backward_is_missed(line):
    answer = with_own_backward((line, "pass"))
    assert races_of(*answer)
    said = fault_of_copy_wait(answer)
    assert "find_races, in backward" in said
    assert "was given away in between" in said


@pytest.mark.parametrize("line", ["x.record_stream(source)", "y.record_stream(user)"])
def test_each_record_of_forward_is_missed(line):
    said = fault_of_copy_wait(edited(COPYING, (line, "pass"))[1:])
    assert "find_races, in forward" in said
    assert "was given away in between" in said


@pytest.mark.parametrize("line", ["next_stream.wait_stream(prev_stream)", "prev_stream.wait_stream(next_stream)"])
def test_each_wait_is_missed_and_is_a_race(line):
    answer = edited(COPYING, (line, "pass"))[1:]
    assert races_of(*answer)
    assert fault_of_copy_wait(answer)


def test_a_result_is_the_same_each_time_and_a_garbage_collection_does_not_change_it():
    answer = edited(COPYING, ("    x.record_stream(source)\n    y.record_stream(user)\n", ""))[1:]
    assert fault_of_copy_wait(answer).known_by == fault_of_copy_wait(answer).known_by


@pytest.mark.parametrize("named", ["source", "current_stream(source.device)"])
def test_a_stream_that_does_not_use_what_arrives_is_the_wrong_one_to_name(named):
    answer = edited(COPYING, ("y.record_stream(user)", f"y.record_stream({named})"))[1:]
    said = fault_of_copy_wait(answer)
    assert "was given away in between" in said


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("back.record_stream(user)", "next_stream"),
        ("back.record_stream(user)", "current_stream(next_stream.device)"),
        ("gradient.record_stream(next_stream)", "user"),
    ],
)
def test_backward_too_must_name_the_stream_that_uses_it(line, named):
    answer = with_own_backward((line, line.replace(line[line.index("(") :], f"({named})")))
    said = fault_of_copy_wait(answer)
    assert "find_races, in backward" in said
    assert "was given away in between" in said


def test_the_other_stream_of_a_copy_may_be_named_for_what_is_copied():
    # the target's stream waits for the copy, so its mark is passed only behind it
    answer = with_own_backward(("gradient.record_stream(next_stream)", "gradient.record_stream(prev_stream)"))
    assert fault_of_copy_wait(answer) == ""
