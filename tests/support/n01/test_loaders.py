"""How a loader with workers is tried: right ones that are built otherwise pass, wrong ones are told what they did."""

import copy
import gc
import queue
import sys

import pytest

from support.kit.mistakes import edited
from support.n01 import checks as n01
from support.n01 import on_processes, trials
from support.n01.solved import load_in_order, work
from support.n01.solved import sendable as n01_sendable

CLEAR_UP = "send_home(team, orders, results, missing)"
load = n01._load
worker = n01._work


def clearing_up(lines):
    """Return the solution with another end."""
    return work, n01.edited(load_in_order, (CLEAR_UP, lines), names={"queue": queue})


A_QUEUE_FOR_EACH_RESULT = (
    work,
    load(
        ("results = context.Queue()", "results = [context.Queue() for _ in range(workers)]"),
        ("collate, queue, results)", "collate, queue, results[orders.index(queue)])"),
        ("results.get()", "results[number % workers].get()"),
        (CLEAR_UP, "[results[b % workers].get() for b in missing]; send_home(team, orders, results, ())"),
    ),
)
NO_IDLE_WORKER = (
    work,
    load(
        (
            "    results = context.Queue()",
            "    workers = min(workers, len(batches)) or 1\n    results = context.Queue()",
        )
    ),
)
LOOKS_AGAIN_AND_AGAIN = (
    work,
    load(
        (
            "arrived, *early[arrived] = results.get()",
            "\n                while results.empty():\n                    pass\n"
            "                arrived, *early[arrived] = results.get()",
        )
    ),
)
COUNTS_WITH_A_TIMEOUT = clearing_up("""while missing:
            try:
                missing.remove(results.get(timeout=.01)[0])
            except queue.Empty:
                pass
        send_home(team, orders, results, ())""")
SAMPLERS_ERROR_AT_ITS_TURN = (
    work,
    load(
        ("todo = enumerate(batches)", "late = []\n    todo = until_it_raises(batches, late)"),
        (
            "            while number not in early",
            "            if not missing and number not in early:\n                break\n"
            "            while number not in early",
        ),
        ("    finally:\n", "        for error in late:\n            raise error\n    finally:\n"),
    ),
)


SAMPLERS_ERROR_BEHIND_THE_END = (
    work,
    load(
        ("todo = enumerate(batches)", "late = []\n    todo = until_it_raises(batches, late)"),
        ("range(len(batches))", "iter(lambda: min(missing | set(early), default=None), None)"),
        (CLEAR_UP, CLEAR_UP + "\n        for error in late:\n            raise error"),
    ),
)


def until_it_raises(batches, late):
    """Number the lists; an error of the sampler is kept for later."""
    try:
        yield from enumerate(batches)
    except Exception as error:
        late.append(error)


for _, loads in (SAMPLERS_ERROR_AT_ITS_TURN, SAMPLERS_ERROR_BEHIND_THE_END):
    loads.__globals__["until_it_raises"] = until_it_raises
PUTS_BACK_WHAT_IS_EARLY = (
    work,
    load(
        (
            "arrived, *early[arrived] = results.get()\n",
            "message = results.get()\n                if message[0] != number:\n"
            "                    results.put(message)\n                    continue\n"
            "                arrived, *early[arrived] = message\n",
        )
    ),
)
RIGHT = {
    "ends whoever has ended, once more": clearing_up(
        CLEAR_UP + "\n        for w in team:\n            w.terminate()\n            w.close()"
    ),
    "puts back what is early": PUTS_BACK_WHAT_IS_EARLY,
    "the batches before it come first, then the sampler's error": SAMPLERS_ERROR_AT_ITS_TURN,
    "a queue for each worker's results": A_QUEUE_FOR_EACH_RESULT,
    "no worker that would get no order": NO_IDLE_WORKER,
    "looks again and again": LOOKS_AGAIN_AND_AGAIN,
    "counts, and looks with a timeout": COUNTS_WITH_A_TIMEOUT,
}


@pytest.mark.ranks
@pytest.mark.parametrize("answer", RIGHT.values(), ids=RIGHT)
@pytest.mark.parametrize("check", [n01.check_order, n01.check_loader])
def test_a_loader_that_is_built_otherwise_is_right(check, answer):
    verdict = check(*answer)
    assert verdict.status == "right", verdict


def test_whoever_asks_again_until_each_worker_has_ended_is_right():
    answer = clearing_up("""[results.get() for _ in missing]; [q.put(None) for q in orders]
        while any(w.is_alive() for w in team):
            [w.join(1) for w in team]""")
    assert n01.check_order(*answer).status == "right"


@pytest.mark.costly
@pytest.mark.parametrize(
    "change",
    [
        ("except Exception", "except TypeError"),
        ("except Exception", "except (TypeError, AttributeError)"),
        ("pickle.loads(pickle.dumps(error))", "copy.copy(error)"),
        ("pickle.loads(pickle.dumps(error))", "copy.deepcopy(error)"),
    ],
)
def test_whoever_tries_less_than_pickle_does_is_told_what_cannot_travel(change):
    sendable = edited(n01_sendable, change, names={"copy": copy})
    answer = edited(work, ("sendable(", "own_sendable("), names={"own_sendable": sendable})
    verdict = n01.check_loader(answer, load_in_order)
    assert verdict.status == "wrong"
    assert verdict.message.endswith(trials.CANT_TRAVEL)


EMPTY = {"Empty": queue.Empty}
HELD = "                missing.remove(arrived)\n"
ONE_LIST_AHEAD = (
    work,
    n01.edited(load_in_order, ("todo = enumerate(batches)", "todo = one_ahead(batches)")),
)


def one_ahead(batches):
    """Number the lists, with one that is read before it is ordered."""
    lists = iter(batches)
    ahead = [next(lists, None)]
    number = 0
    while ahead[0] is not None:
        now = ahead.pop()
        ahead.append(next(lists, None))
        yield number, now
        number += 1


def work_with_one_list(dataset, collate, orders, results):
    items = []
    while (order := orders.get()) is not None:
        try:
            items.clear()
            items += [dataset[index] for index in order[1]]
            results.put((order[0], collate(items), None))
        except Exception as error:
            results.put((order[0], None, error))


def told_otherwise(batches):
    """Number the lists, and raise a RuntimeError for whatever their sampler raises."""
    try:
        yield from enumerate(batches)
    except Exception as error:
        raise RuntimeError("no list") from error


ONE_LIST_AHEAD[1].__globals__["one_ahead"] = one_ahead
WRONG = {
    "reads one list ahead": (
        ONE_LIST_AHEAD,
        f"when batch 0 is handed over, 4 lists are read, due are 3. {trials.WHOLE}",
    ),
    "one list of items": ((work_with_one_list, load_in_order), trials.REUSED),
    "catches two classes": (
        (worker(("except Exception", "except (LookupError, ValueError)")), load_in_order),
        f"item 7 raises UnknownError, and the loop waits for ever. {trials.LOST}",
    ),
    "collates a tuple": (
        (
            worker(("collate([dataset[index] for index in indices])", "collate(tuple(dataset[i] for i in indices))")),
            load_in_order,
        ),
        f"`collate` was given a tuple. {trials.NO_LIST_GIVEN}",
    ),
    "an IndexError is the end": (
        (
            worker(("        except Exc", "        except IndexError:\n            return\n        except Exc")),
            load_in_order,
        ),
        f"item 7 raises IndexError, a worker ends behind it, and the loop waits for ever. {trials.GOES_HOME}",
    ),
    "an empty queue is the end": (
        (
            edited(
                work,
                ("        except Exc", "        except Empty:\n            return\n        except Exc"),
                names=EMPTY,
            ),
            load_in_order,
        ),
        f"item 7 raises Empty, a worker ends behind it, and the loop waits for ever. {trials.GOES_HOME}",
    ),
    "waits a second for each worker": (
        clearing_up("[results.get() for _ in missing]; [q.put(None) for q in orders]; [w.join(1) for w in team]"),
        trials.LEFT_ALONE,
    ),
    "a batch that is None": (
        (work, load(("if error is not None", "if batch is None"))),
        trials.NOTHING,
    ),
    "collates in the trainer": (
        (
            worker(("collate([dataset[index] for index in indices])", "[dataset[index] for index in indices]")),
            load(("yield batch", "yield collate(batch)")),
        ),
        trials.COLLATED_HERE,
    ),
    "keeps the last three": (
        (
            work,
            load(
                ("yield batch", "kept = [*kept, batch][-3:]\n            yield batch"),
                ("    try:\n        hand", "    kept = []\n    try:\n        hand"),
            ),
        ),
        f"2 of those before it are still held. {trials.KEPT}",
    ),
    "catches only what items raise": ((worker(("except Exception", "except KeyError")), load_in_order), trials.TORN),
    "the sampler's error in place of a worker's": (
        SAMPLERS_ERROR_BEHIND_THE_END,
        f"item 2 raises KeyError, and the sampler's error came in its place. {trials.LOST}",
    ),
    "first orders outside the try": (
        (work, load(("    try:\n        hand_out(workers * prefetch)\n", f"{n01._FIRST_ORDERS}    try:\n"))),
        f"the batch sampler raises at list 1: 2 workers still there. {trials.NO_LIST}",
    ),
    "a worker goes home behind an error": (
        (worker((n01._SENT_ERROR, n01._SENT_ERROR + "\n            return")), load_in_order),
        trials.GOES_HOME,
    ),
    "an error is raised when it arrives": (
        (
            work,
            load((HELD, HELD + 16 * " " + "if early[arrived][1]:\n" + 20 * " " + "raise early[arrived][1]\n")),
        ),
        trials.LOST,  # by the first case in which it arrives early, that of the late batch at the latest
    ),
    "another exception of the same type": (
        (work, load(("raise error", "raise type(error)(str(error))"))),
        trials.AS_TEXT,
    ),
    "clears up only behind a break": ((work, load(("finally:", "except GeneratorExit:"))), trials.LEFT),
    "knows nothing of a RuntimeError": (
        (
            worker(
                (
                    "        except Exception",
                    "        except RuntimeError:\n            raise\n        except Exception",
                )
            ),
            load_in_order,
        ),
        f"item 7 raises RuntimeError, and the loop waits for ever. {trials.LOST}",
    ),
    "ends behind a MemoryError": (
        (
            worker(
                (
                    "        except Exception",
                    "        except MemoryError:\n            return\n        except Exception",
                )
            ),
            load_in_order,
        ),
        f"item 7 raises MemoryError, a worker ends behind it, and the loop waits for ever. {trials.GOES_HOME}",
    ),
    "one order too many": (
        (work, load(("hand_out(workers * prefetch)", "hand_out(workers * prefetch + 1)"))),
        "4 orders were given, due are 3. More orders are out than W · prefetch places allow.",
    ),
    "another error for that of the sampler": (
        (
            work,
            n01.edited(load_in_order, ("enumerate(batches)", "told(batches)"), names={"told": told_otherwise}),
        ),
        "your code raised RuntimeError: no list",
    ),
    "fetches one too many behind an error": (
        (
            work,
            load(
                ("    try:\n", "    error = None\n    try:\n"),
                (CLEAR_UP, "send_home(team, orders, results, [*missing, *([0] * (error is not None))])"),
            ),
        ),
        "your code waits for one more",
    ),
    "swallows the error": ((work, load((CLEAR_UP, CLEAR_UP + "\n        return"))), f"and no error. {trials.LOST}"),
    "fetches one too many": (
        clearing_up("[results.get() for _ in [*missing, 0]]; send_home(team, orders, results, ())"),
        trials.TOO_MANY,
    ),
    "other workers": ((work, load(("number % workers", "number // prefetch % workers"))), trials.ONE_QUEUE),
    "one None for all": (
        clearing_up("[results.get() for _ in missing]; orders[0].put(None); [w.join() for w in team]"),
        trials.LEFT,
    ),
    "asks for ever whether anybody is there": (
        clearing_up("[results.get() for _ in missing]\n        while any(w.is_alive() for w in team): pass"),
        trials.LEFT,
    ),
}


@pytest.mark.parametrize("answer, says", WRONG.values(), ids=WRONG)
def test_a_wrong_loader_is_told_what_it_did_and_nothing_else(answer, says):
    verdict = n01.check_loader(*answer)
    assert verdict.status == "wrong"
    assert says in verdict.message
    others = [sentence for sentence in n01.check_loader.mistakes if sentence in verdict.message]
    assert [sentence for sentence in others if sentence not in says and says not in sentence] == [], verdict
    assert not [
        lie
        for lie in ("nothing bounds", "and the loop waits for one more", "and no error")
        if lie in verdict.message and lie not in says
    ], verdict


@pytest.mark.parametrize("check", [n01.check_order, n01.check_loader])
def test_whoever_orders_from_the_shortest_queue_is_told_whose_the_batch_is(check):
    shortest = "orders.index(min(orders, key=lambda queue: queue.qsize()))"
    verdict = check(work, load(("number % workers", shortest)))
    assert verdict.status == "wrong"
    assert trials.ONE_QUEUE in verdict.message


UNFETCHED = {
    "a timeout": """ended = False
        while not ended:
            try:
                results.get(timeout=.01)
            except queue.Empty:
                ended = True
        send_home(team, orders, results, ())""",
    "a timeout for each": """for _ in missing:
            try:
                results.get(timeout=3)
            except queue.Empty:
                pass
        send_home(team, orders, results, ())""",
    "an empty queue": """while not results.empty():
            results.get()
        send_home(team, orders, results, ())""",
    "after the join": "[q.put(None) for q in orders]; [w.join() for w in team]; [results.get() for _ in missing]",
    "not behind an error": """was_right = not batches or "error" not in locals() or error is None
        send_home(team, orders, results, missing if was_right else ())""",
}


@pytest.mark.costly  # each waits until its processes are given up
@pytest.mark.ranks
@pytest.mark.parametrize("name, lines", UNFETCHED.items(), ids=UNFETCHED)
def test_a_loader_that_leaves_large_results_unfetched_is_told_so_and_of_no_other_fault(name, lines):
    verdict = n01.check_loader(*clearing_up(lines))
    assert verdict.status == "wrong"
    moment = "after an error" if name == "not behind an error" else "after a `break`"
    assert f"on real processes, with large batches, {moment}" in verdict.message
    assert on_processes.HOME in verdict.message
    assert (on_processes.TIMED in verdict.message) == (name in ("a timeout", "a timeout for each", "an empty queue"))
    assert not [sentence for sentence in n01.check_loader.mistakes if sentence in verdict.message]


@pytest.mark.costly
@pytest.mark.ranks
@pytest.mark.parametrize(
    "answer",
    [
        clearing_up("[results.get(timeout=.01) for _ in missing]; send_home(team, orders, results, ())"),
        (work, load(("= results.get()", "= results.get(timeout=5)"))),
    ],
    ids=["clearing up", "in the loop"],
)
def test_whoever_takes_an_empty_queue_for_an_error_is_told_that_it_is_none(answer):
    verdict = n01.check_loader(*answer)
    assert "your code raised Empty()" in verdict.message
    assert on_processes.TIMED in verdict.message


@pytest.mark.ranks
def test_a_loader_that_ends_on_an_empty_queue_is_told_that_no_batch_came():
    taken = "arrived, *early[arrived] = results.get()"
    impatient = f"try: {taken[:-1]}timeout=5)\n                except Empty: return"
    answer = n01.edited(load_in_order, (taken, impatient), names=EMPTY)
    said = on_processes._tried(work, answer, [on_processes.AFTER_EPOCH], on_processes.PATIENCE)
    assert said.endswith(f"after an epoch, no batch came. {on_processes.TIMED}")


@pytest.mark.ranks
def test_a_right_loader_on_a_machine_that_is_too_busy_gets_more_time(monkeypatch):
    given = []

    def tried(work, load, ends, patience):
        given.append(patience)
        return "with large batches, after an epoch, all wait for ever." if patience == 1.0 and len(given) == 1 else ""

    monkeypatch.setattr(on_processes, "PATIENCE", 1.0)
    monkeypatch.setattr(on_processes, "SLOW", 1e9)
    monkeypatch.setattr(on_processes, "_tried", tried)
    assert on_processes.fault_on_processes(work, load_in_order, [on_processes.AFTER_EPOCH]) == ""
    assert len(given) == 3
    assert given[-1] > 1.0


def test_a_loop_that_an_error_leaves_halfway_is_ended_by_its_trial(monkeypatch):
    ignored = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    trial = trials._Trial(work, load_in_order, trials.EpochCase(size=12, batch=2))

    def of_batch(got):
        raise KeyError("of what was handed over")  # as an item may: it is held, and holds the loop

    trial.of_batch = of_batch
    assert "KeyError" in trial.fault()
    assert all(worker.over for worker in trial.team.workers)
    del trial
    gc.collect()
    assert not ignored
