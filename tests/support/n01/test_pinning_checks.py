"""What is particular about the check of notebook 01's pinning stage."""

import queue
import threading

import pytest

from support.n01 import checks as n01
from support.n01 import pinning


def recursive_stage(results, data, pin):
    def handed(number, batch, error):
        try:
            return number, pin(batch) if error is None else None, error
        except Exception as failed:
            return number, None, failed

    for message in iter(results.get, None):
        data.put(handed(*message))


def test_a_pinning_stage_that_is_built_otherwise_is_right():
    assert n01.check_pinning(recursive_stage).status == "right"


def edited_stage(*changes):
    return n01._pin(*changes)


def by_two_loops(results, data, pin):
    """Errors and batches go different ways."""
    message = results.get()
    while message is not None:
        number, batch, error = message
        pinned = None
        try:
            pinned = pin(batch) if error is None else None
        except Exception as failed:
            error = failed
        data.put((number, pinned, error))
        message = results.get()


class Stage:
    def __init__(self, pin):
        self.pin = pin

    def __call__(self, message):
        number, batch, error = message
        if error is not None:
            return message
        try:
            return number, self.pin(batch), None
        except Exception as failed:
            return number, None, failed


def by_object(results, data, pin):
    stage = Stage(pin)
    while True:
        message = results.get()
        if message is None:
            break
        data.put(stage(message))


def patient_stage(results, data, pin):
    """Look again and again, with a timeout."""
    while True:
        try:
            message = results.get(timeout=0.01)
        except queue.Empty:
            continue
        if message is None:
            return
        data.put(Stage(pin)(message))


def looking_stage(results, data, pin):
    while True:
        while results.empty():
            pass
        message = results.get()
        if message is None:
            return
        number, batch, error = message
        try:
            data.put((number, None if error is not None else pin(batch), error))
        except Exception as failed:
            data.put((number, None, failed))


def asking_stage(results, data, pin):
    while True:
        try:
            message = results.get_nowait()
        except queue.Empty:
            continue
        if message is None:
            return
        data.put(Stage(pin)(message))


@pytest.mark.parametrize("answer", [by_two_loops, by_object, patient_stage, looking_stage, asking_stage])
def test_a_stage_by_other_ways_is_right(answer):
    assert n01.check_pinning(answer).status == "right"


def one_ahead(results, data, pin):
    """Take each message before the one in front of it leaves."""
    waiting = []
    for message in iter(results.get, None):
        waiting.append(Stage(pin)(message))
        if len(waiting) > 1:
            data.put(waiting.pop(0))
    for message in waiting:
        data.put(message)


def a_thread_each(results, data, pin):
    """Take the next message while the one in front of it is being pinned."""
    threads = [threading.Thread()]
    for message in iter(results.get, None):
        threads.append(threading.Thread(target=in_turn, args=(threads[-1], data, Stage(pin), message)))
        threads[-1].start()
    for thread in threads[1:]:
        thread.join()


def in_turn(before, data, stage, message):
    """Hand on a message behind the one in front of it."""
    handed_on = stage(message)
    if before.ident:
        before.join()
    data.put(handed_on)


def by_its_result(results, data, pin):
    """An error of `pin` comes back as its result, and is known by its class."""

    def tried(batch):
        try:
            return pin(batch)
        except Exception as failed:
            return failed

    for number, batch, error in iter(results.get, None):
        pinned = tried(batch) if error is None else error
        failed = isinstance(pinned, Exception)
        data.put((number, None, pinned) if failed else (number, pinned, None))


def by_none(kept):
    """What is None was not pinned: hand on the batch as it was, or nothing."""

    def stage(results, data, pin):
        for message in iter(results.get, None):
            number, pinned, error = Stage(pin)(message)
            if pinned is not None or error is not None:
                data.put((number, pinned, error))
            elif kept:
                data.put((number, message[1], None))

    return stage


SENT_ON = "data.put((number, batch, error))"


@pytest.mark.parametrize(
    "answer, says",
    [
        (
            edited_stage(
                ("while (message := results.get()) is not None", "while message := results.get() or results.get()")
            ),
            pinning.STAYS,
        ),
        (
            edited_stage(("except Exception", "except MemoryError")),
            f"RuntimeError('CUDA error: out of memory'), and the stage raised it, too. {pinning.RAISES}",
        ),
        (
            edited_stage(("error = failed", "data.put((number, None, failed))\n                raise")),
            f"MemoryError('no pinned memory is left'), and the stage raised it, too. {pinning.ENDS}",
        ),
        (edited_stage(("batch = pin(batch)", "pin(batch); batch = pin(batch)")), pinning.TWICE),
        (edited_stage((f"        {SENT_ON}", f"    {SENT_ON}")), "due is (0, 'pinned zero', None)"),
        (
            edited_stage((SENT_ON, "data.put((number, batch, error or None))")),
            f'the message (8, None, None) came out, due is (8, None, PinError("the pages can\'t be locked")). '
            f"{pinning.DROPS_ERRORS}",
        ),
        (edited_stage((SENT_ON, f"{SENT_ON}\n    data.put(None)")), "18 messages came out, due are 17"),
        (edited_stage((SENT_ON, "data.put((number, error, batch))")), "due is (0, 'pinned zero', None)"),
        (
            edited_stage(("error = failed", "batch = failed")),
            f"due is (3, None, MemoryError('no pinned memory is left')). {pinning.IN_ITS_PLACE}",
        ),
        (edited_stage(("error = failed", "return")), "3 messages came out, due are 17"),
        (edited_stage(("error = failed", "error = str(failed)")), "due is (3, None, MemoryError"),
        (edited_stage(("error = failed", "continue")), "due is (3, None, MemoryError"),
        (edited_stage(("error = failed", "error = RuntimeError(str(failed))")), pinning.OTHER_ERROR),
        (edited_stage(("error = failed", "error = type(failed)(*failed.args)")), pinning.OTHER_ERROR),
        (
            edited_stage((SENT_ON, "data.put((number, batch, None))")),
            f"due is (1, None, OSError('no such file')). {pinning.DROPS_ERRORS}",
        ),
        (
            edited_stage((SENT_ON, f"number == 1 or {SENT_ON}")),
            "the message (3, None, MemoryError('no pinned memory is left')) came out, due is (1, None,",
        ),
        (edited_stage((SENT_ON, "data.put([number, batch, error])")), pinning.NUMBERS_LOST),
        (edited_stage(("if error is None", "if batch is None")), pinning.PINS_ERRORS),
        (edited_stage(("if error is None", "if batch")), "RuntimeError: Boolean value of Tensor"),
        (edited_stage(("if error is None", "if len(batch or ())")), "RuntimeError: Boolean value of Tensor"),
        (
            edited_stage(("if error is None", "if batch is not None and batch != ''")),
            f"the message (6, '', None) came out, due is (6, 'pinned ', None). {pinning.EMPTY}",
        ),
        (
            edited_stage(("except Exception", "except (RuntimeError, MemoryError)")),
            f'PinError("the pages can\'t be locked"), and the stage raised it, too. {pinning.RAISES}',
        ),
        (
            edited_stage(("                batch = None\n", "")),
            f"due is (3, None, MemoryError('no pinned memory is left')). {pinning.LEFT_BESIDE}",
        ),
        (
            edited_stage(("if error is None", "if error is None and batch is not None")),
            f"the message (9, None, None) came out, due is (9, 'pinned None', None). {pinning.EMPTY}",
        ),
        (edited_stage(("if error is None", "if not error")), pinning.PINS_ERRORS),
        (
            edited_stage(
                (
                    "if error is None",
                    "error = batch if isinstance(batch, Exception) else error\n        if error is None",
                )
            ),
            f"due is (11, 'pinned eleven', None). {pinning.UNPINNED}",
        ),
        (edited_stage(("= pin(batch)", "= pin(batch) or batch")), "due is (0, 'pinned zero', None)"),
        (by_its_result, f"due is (13, ValueError('pinned thirteen'), None). {pinning.ANYTHING}"),
        (by_none(kept=True), f"(12, 'twelve', None) came out, due is (12, None, None). {pinning.ANYTHING}"),
        (by_none(kept=False), "due is (12, None, None)."),
        (a_thread_each, f"message 2 was taken when 1 had been handed on. {pinning.AHEAD}"),
        (one_ahead, f"message 1 was taken when 0 had been handed on. {pinning.AHEAD}"),
        (edited_stage(("results.get()", "results.get(timeout=60)")), pinning.GIVES_UP),
        (edited_stage(("results.get()", "results.get(block=False)")), pinning.GIVES_UP),
    ],
)
def test_a_wrong_stage_is_told_what_it_did(answer, says):
    verdict = n01.check_pinning(answer)
    assert verdict.status == "wrong"
    assert says in verdict.message
    others = [sentence for sentence in n01.check_pinning.mistakes if sentence in verdict.message]
    assert [sentence for sentence in others if sentence not in says] == [], verdict


def test_a_stage_that_never_ends_is_told_so(monkeypatch):
    monkeypatch.setattr(pinning, "PATIENCE", 0.3)

    def endless(results, data, pin):
        while results:
            pass

    assert "the stage does not end" in n01.check_pinning(endless).message


def by_elements(results, data, pin):
    """Pin what a list, a tuple or a dictionary holds, as torch's own stage does; `pin` is given the whole batch."""

    def pinned(batch):
        if isinstance(batch, dict):
            return {name: pin(part) for name, part in batch.items()}
        if isinstance(batch, (list, tuple)):
            return [pin(part) for part in batch]
        return pin(batch)

    for message in iter(results.get, None):
        data.put(Stage(pinned)(message))


def test_a_batch_of_several_tensors_is_pinned_as_one():
    message = n01.check_pinning(by_elements).message
    assert (
        "the message (14, ['pinned a', 'pinned b'], None) came out, due is (14, \"pinned ['a', 'b']\", None)."
        in message
    )
