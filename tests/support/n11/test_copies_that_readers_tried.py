"""Copies and waits that readers gave to notebook 11: wrong ones that once passed, and what they are told."""

import pytest
import torch

from lib.runtime.device import current_stream
from support.built import MyCopy, MyWait, moved
from support.kit.mistakes import edited
from support.n11 import checks as n11
from support.n11.copying import races_of

COPYING = (moved, MyCopy, MyWait)


def refused(verdict, says, *never):
    assert verdict.status == "wrong", verdict.message
    assert says in verdict.message
    assert not any(words in verdict.message for words in never), verdict.message


@pytest.mark.parametrize("function", [MyCopy, MyWait])
def test_streams_in_the_class_are_those_of_the_last_micro_batch(function):
    text = edited(function, ("ctx.streams", f"{function.__name__}.streams"), names={"moved": moved})
    answer = [text if own is function else own for own in (MyCopy, MyWait)]
    assert n11.check_copy_wait(*answer).status == "wrong"


@pytest.mark.parametrize("function", [MyCopy, MyWait])
def test_streams_on_a_stack_fit_only_one_order_of_backward(function):
    kept = ("ctx.streams = prev_stream, next_stream", "STACK.append((prev_stream, next_stream))")
    stacked = edited(function, kept, ("= ctx.streams", "= STACK.pop()"), names={"moved": moved, "STACK": []})
    answer = [stacked if own is function else own for own in (MyCopy, MyWait)]
    refused(n11.check_copy_wait(*answer), "find_races", "the last one")


def test_ours_has_no_race_in_streams_of_their_own():
    assert n11.check_copy_wait(MyCopy, MyWait)
    assert not races_of(MyCopy, MyWait, 3, own=3)


def test_numbers_that_lose_digits_on_their_way_are_not_right():
    _, *answer = edited(COPYING, ("x.to(target.device)", "x.half().to(target.device).to(x.dtype)"))
    assert n11.check_copy_wait(*answer).status == "wrong"


def test_a_copy_that_lets_a_stream_wait_for_a_compute_stream_is_refused():
    waits = "    source.wait_stream(current_stream(source.device))\n    with source, target:\n"
    _, *answer = edited(COPYING, ("    with source, target:\n", waits))
    refused(n11.check_copy_wait(*answer), "wait")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("x.to(target.device)", "x.reshape(-1).to(target.device)", "its shape was (300, 2) and is (600,)"),
        ("x.to(target.device)", "x.float().to(target.device)", "it was of torch.float64"),
        ("return moved(x, prev", "return moved(x.contiguous(), prev", "'clone' is launched into 'compute'"),
        ("return x.detach()", "return x.contiguous()", "in the same memory"),
        ("return x.detach()", "return x.t()", "MyWait hands on x as it is: its shape was"),
    ],
)
def test_what_is_the_same_for_a_row_of_floats_only_is_no_copy(old, new, says):
    _, *answer = edited(COPYING, (old, new))
    refused(n11.check_copy_wait(*answer), says)


def test_who_keeps_a_tensor_in_ctx_is_not_told_of_save_for_backward():
    answer = edited(MyWait, ("return x.detach()", "ctx.x = x\n        return x.detach()"))
    refused(n11.check_copy_wait(MyCopy, answer), "is kept, and takes memory", "save_for_backward")


BACK = "return None, None, moved(gradient, next_stream, prev_stream)"


def test_a_gradient_of_another_type_is_told_to_be_one():
    made = """with prev_stream, next_stream:
            y = torch.empty(gradient.shape, device=prev_stream.device)
            y.copy_(gradient)
        return None, None, y"""
    answer = edited(MyCopy, (BACK, made), names={"torch": torch})
    refused(n11.check_copy_wait(answer, MyWait), "must not change the gradient", "launched")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("y = x.to(target.device)", "y = x.to(target.device).clone()", "'clone' is launched into 'copies of cuda:1'"),
        ("y = x.to(target.device)", "y = x.contiguous().to(target.device)", "'clone' is launched into 'copies'"),
        (BACK, BACK.replace("(gradient", "(gradient.contiguous()"), "MyCopy.backward 'clone' is launched"),
        (
            BACK,
            "y = moved(gradient, next_stream, prev_stream)\n"
            "        current_stream(prev_stream.device).wait_stream(prev_stream)\n        return None, None, y",
            "In MyCopy.backward 'compute' waits for the copy",
        ),
    ],
)
def test_a_copy_launches_one_copy_and_lets_nobody_wait_there_and_back(old, new, says):
    _, *answer = edited(COPYING, (old, new), names={"current_stream": current_stream})
    refused(n11.check_copy_wait(*answer), says)


def test_a_stream_that_waits_for_itself_is_not_said_to_stand_still():
    line = "        prev_stream.wait_stream(next_stream)\n"
    wrong = line.replace("prev_stream.wait", "current_stream(prev_stream.device).wait")
    answer = edited(MyWait, (line, wrong), names={"current_stream": current_stream})
    refused(n11.check_copy_wait(MyCopy, answer), "'copies of cuda:1' doesn't wait for what it uses", "stands still")


@pytest.mark.parametrize("awaited", ["prev_stream", "next_stream"])
def test_a_stream_that_waits_for_itself_waits_for_nobody(awaited):
    answer = edited(MyWait, ("next_stream.wait_stream(prev_stream)", f"{awaited}.wait_stream({awaited})"))
    refused(n11.check_copy_wait(MyCopy, answer), "In MyWait.forward nobody waits", "waits for", "only hands on")


@pytest.mark.parametrize(
    ("line", "name", "waiting"),
    [
        ("next_stream.wait_stream(prev_stream)", "forward", "compute of cuda:1"),
        ("prev_stream.wait_stream(next_stream)", "backward", "copies of cuda:1"),
    ],
)
def test_a_wait_for_more_than_what_is_needed_is_refused(line, name, waiting):
    also = line.replace(line[line.index("(") :], "(current_stream(torch.device('cuda', 0)))")
    answer = edited(MyWait, (line, f"{line}\n        {also}"), names={"current_stream": current_stream, "torch": torch})
    refused(n11.check_copy_wait(MyCopy, answer), f"In MyWait.{name} '{waiting}' waits for 'compute'")


@pytest.mark.parametrize("copied", ["gradient.contiguous()", "gradient.clone()"])
def test_a_wait_that_copies_the_gradient_is_refused(copied):
    answer = edited(MyWait, ("None, None, gradient", f"None, None, {copied}"))
    refused(n11.check_copy_wait(MyCopy, answer), "In MyWait.backward 'clone' is launched")


def test_a_wait_that_sends_no_gradient_back_is_not_laid_on_the_copy_before_it():
    answer = edited(MyWait, ("None, None, gradient", "None, None, None"))
    refused(n11.check_copy_wait(MyCopy, answer), "MyWait.backward gives None for x", "raised", "copied")


def test_a_gradient_that_is_kept_for_ever_is_refused():
    kept = KEEPING.replace("ctx.gradient = gradient", "KEPT.append(gradient)")
    _, *answer = edited(COPYING, (BACK, kept), names={"current_stream": current_stream, "KEPT": []})
    refused(n11.check_copy_wait(*answer), "When backward is through what was copied is kept")


def test_a_gradient_that_wait_keeps_as_long_as_the_graph_is_refused():
    kept = ("return None, None, gradient", "ctx.gradient = gradient\n        return None, None, gradient")
    refused(n11.check_copy_wait(MyCopy, edited(MyWait, kept)), "When backward is through what was copied is kept")


def test_torch_may_be_asked_for_the_current_stream():
    asked = ("current_stream(target.device)", "torch.accelerator.current_stream(target.device)")
    _, *answer = edited(COPYING, asked, names={"torch": torch})
    verdict = n11.check_copy_wait(*answer)
    assert verdict, verdict.message


TAKEN = "    with source, target:\n        y = x.to(target.device)\n"
TAKEN_BEFORE = "    with source, target:\n        y = torch.empty_like(x, device=target.device)\n    y.copy_(x)\n"
RECORDS = "    x.record_stream(source)\n    y.record_stream(user)\n"
RECORDED_IN_WAIT = [
    (f"        {waits}\n", f"        {waits}\n        {x}.record_stream({waited_for})\n")
    for waits, x, waited_for in (
        ("next_stream.wait_stream(prev_stream)", "x", "prev_stream"),
        ("prev_stream.wait_stream(next_stream)", "gradient", "next_stream"),
    )
]
ALLOCATED = "    y = torch.empty_like(x, device=target.device)\n    y.copy_(x)\n"


@pytest.mark.parametrize(
    ("changes", "says", "never"),
    [
        ([("return x.detach()", "return x * 1")], "launches nothing", "clone"),
        ([("return x.detach()", "str(x)\n        return x.detach()")], "the host stands still", "synchronize"),
        ([(TAKEN, ALLOCATED)], "into 'compute'", "`.to`"),
        ([(TAKEN, TAKEN_BEFORE)], "into 'compute'", "here only the target's"),
        ([(RECORDS, ""), *RECORDED_IN_WAIT], "may still read it", "No stream is recorded"),
        (
            [
                (
                    "ctx.streams = prev_stream, next_stream\n        return moved",
                    "S[:] = prev_stream, next_stream\n        return moved",
                ),
                ("= ctx.streams\n        return None, None, moved", "= S\n        return None, None, moved"),
            ],
            "belongs to all copies",
            "in the class",
        ),
        ([("return x.detach()", "ctx.x = x\n        return x.detach()")], "is kept", "copy of the gradient"),
    ],
)
def test_what_the_answer_has_not_is_not_said_of_it(changes, says, never):
    _, *answer = edited(COPYING, *changes, names={"torch": torch, "S": []})
    refused(n11.check_copy_wait(*answer), says, never)


def synchronized(x, source, target):
    torch.accelerator.synchronize()
    return moved(x, source, target)


@pytest.mark.parametrize(
    ("old", "direction"),
    [
        ("moved(x, prev_stream, next_stream)", "MyCopy.forward"),
        ("moved(gradient, next_stream, prev_stream)", "backward"),
    ],
)
def test_a_host_that_waits_for_a_whole_device_is_seen(old, direction):
    changes = (old, old.replace("moved", "synchronized"))
    _, *answer = edited(COPYING, changes, names={"synchronized": synchronized})
    refused(n11.check_copy_wait(*answer), f"In {direction} the host stands still")


def test_a_host_that_waits_in_the_backward_of_wait_is_not_laid_on_copy():
    line = "        prev_stream.wait_stream(next_stream)\n"
    answer = edited(MyWait, (line, "        next_stream.synchronize()\n"))
    refused(n11.check_copy_wait(MyCopy, answer), "In backward the host stands still", "MyCopy.backward")


KEEPING = """ctx.gradient = gradient
        user = current_stream(prev_stream.device)
        with next_stream, prev_stream:
            back = gradient.to(prev_stream.device)
        back.record_stream(user)
        return None, None, back"""


def test_who_keeps_the_gradient_in_place_of_a_record_gives_it_away_with_the_graph():
    _, *answer = edited(COPYING, (BACK, KEEPING), names={"current_stream": current_stream})
    refused(n11.check_copy_wait(*answer), "the copy may last longer", "the weights")


def test_a_copy_stream_that_is_recorded_by_its_name_is_not_told_of_what_is_current():
    _, *answer = edited(COPYING, ("y.record_stream(user)", "y.record_stream(target)"))
    refused(n11.check_copy_wait(*answer), "recorded for the copy stream in which its memory was taken", "so this")
