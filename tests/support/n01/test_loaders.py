"""How a loader with workers is tried: right ones that are built otherwise pass, wrong ones are told what they did."""

import pickle
import queue

import pytest

from support.kit import outside
from support.n01 import checks as n01
from support.n01 import on_processes, trials
from support.n01.solved import load_in_order, sendable, work

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
FETCHES_WHILE_ANYBODY_IS_THERE = clearing_up("""[q.put(None) for q in orders]
        while any(w.is_alive() for w in team):
            try:
                results.get(timeout=.01)
            except queue.Empty:
                pass
        [w.join() for w in team]""")
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


def until_it_raises(batches, late):
    """Number the lists; an error of the sampler is kept for later."""
    try:
        yield from enumerate(batches)
    except Exception as error:
        late.append(error)


SAMPLERS_ERROR_AT_ITS_TURN[1].__globals__["until_it_raises"] = until_it_raises
RIGHT = {
    "the batches before it come first, then the sampler's error": SAMPLERS_ERROR_AT_ITS_TURN,
    "a queue for each worker's results": A_QUEUE_FOR_EACH_RESULT,
    "no worker that would get no order": NO_IDLE_WORKER,
    "looks again and again": LOOKS_AGAIN_AND_AGAIN,
    "fetches while anybody is there": FETCHES_WHILE_ANYBODY_IS_THERE,
    "counts, and looks with a timeout": COUNTS_WITH_A_TIMEOUT,
}


@pytest.mark.ranks
@pytest.mark.parametrize("answer", RIGHT.values(), ids=RIGHT)
@pytest.mark.parametrize("check", [n01.check_order, n01.check_loader])
def test_a_loader_that_is_built_otherwise_is_right(check, answer):
    verdict = check(*answer)
    assert verdict.status == "right", verdict


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


ONE_LIST_AHEAD[1].__globals__["one_ahead"] = one_ahead
RIGHT_WORK = """
def work(dataset, collate, orders, results):
    while True:
        order = NEXT_ORDER
        if order is None:
            return
        number, indices = order
        try:
            results.put((number, collate([dataset[index] for index in indices]), None))
        except Exception as error:
            results.put((number, None, sendable(error)))
"""


def takes_orders(how, sentinel="None"):
    """A worker that takes its orders in another way, from functions of its own."""
    space = {"__name__": "__main__", "queue": queue, "sendable": sendable}
    helpers = f"""
def patiently(orders):
    while True:
        try:
            return orders.get(timeout=5)
        except queue.Empty:
            continue


def when_there(orders):
    while orders.empty():
        pass
    return orders.get()


def gives_up(orders, **patience):
    try:
        return orders.get(**patience)
    except queue.Empty:
        return {sentinel}
"""
    exec(helpers + RIGHT_WORK.replace("NEXT_ORDER", how), space)
    return space["work"], load_in_order


GIVES_UP = {
    "after five seconds": takes_orders("orders.get(timeout=5)"),
    "after an hour": takes_orders("orders.get(True, 3600)"),
    "without a word": takes_orders("gives_up(orders, timeout=60)"),
    "at once": takes_orders("gives_up(orders, block=False)"),
    "when none is there": takes_orders("None if orders.empty() else orders.get()"),
}


@pytest.mark.parametrize("answer", GIVES_UP.values(), ids=GIVES_UP)
@pytest.mark.parametrize("check", [n01.check_order, n01.check_loader])
def test_a_worker_that_gives_up_when_the_trainer_is_slow_is_told_so(check, answer):
    verdict = check(*answer)
    assert verdict.status == "wrong"
    assert trials.GIVES_UP in verdict.message
    assert not [said for said in check.mistakes if said in verdict.message and said != trials.GIVES_UP], verdict


@pytest.mark.ranks
@pytest.mark.parametrize("how", ["patiently(orders)", "when_there(orders)"])
def test_a_worker_that_looks_again_is_right(how):
    verdict = n01.check_loader(*takes_orders(how))
    assert verdict.status == "right", verdict


def written_back(error):
    """Send the error as bytes that may not be read again, and its text beside it."""
    try:
        return pickle.dumps(error), repr(error)
    except Exception:
        return b"", repr(error)


def work_sends_bytes(dataset, collate, orders, results):
    for number, indices in iter(orders.get, None):
        try:
            results.put((number, collate([dataset[index] for index in indices]), None))
        except Exception as error:
            results.put((number, None, written_back(error)))


def read(written):
    """Return the error that bytes hold, or one with its text."""
    try:
        return pickle.loads(written[0])
    except Exception:
        return RuntimeError(f"in a worker: {written[1]}")


TRAVELS_OTHERWISE = (work_sends_bytes, load(("raise error", "raise read(error)")))
TRAVELS_OTHERWISE[1].__globals__["read"] = read


@pytest.mark.ranks
def test_a_loader_that_reads_the_error_in_the_trainer_is_right():
    verdict = n01.check_loader(*TRAVELS_OTHERWISE)
    assert verdict.status == "right", verdict


def only_written(error):
    """Forget that what can be written may still not be read."""
    try:
        pickle.dumps(error)
    except Exception:
        return RuntimeError(repr(error))
    return error


def by_its_class(error):
    """Forget the text."""
    travels = sendable(error) is error
    return error if travels else RuntimeError(type(error).__name__)


WRITTEN_ONLY = worker(("sendable(error)", "only_written(error)"))
WRITTEN_ONLY.__globals__["only_written"] = only_written


@pytest.mark.parametrize(
    "answer",
    [
        (worker(("sendable(error)", "error")), load_in_order),
        (WRITTEN_ONLY, load_in_order),
        (
            n01.edited(work, ("sendable(error)", "by_its_class(error)"), names={"by_its_class": by_its_class}),
            load_in_order,
        ),
    ],
    ids=["as it is", "written and not read", "without its text"],
)
def test_an_error_that_cannot_travel_is_told_to_come_as_its_text(answer):
    verdict = n01.check_loader(*answer)
    assert verdict.status == "wrong"
    assert trials.CANT_TRAVEL in verdict.message
    sentences = [said for said in n01.check_loader.mistakes if said in verdict.message]
    assert len(sentences) <= 1, verdict


def state_shared(clear):
    """A buffer that is made once for all loops; cleared before each, it fails where two take turns."""
    lines = "    early = shared\n" + "    early.clear()\n" * clear
    fetched = "[early.update({number: said}) for number, *said in [results.get() for _ in missing]]"
    return work, n01.edited(
        load_in_order,
        ("    early = dict[int, Any]()\n", lines),
        (CLEAR_UP, f"{fetched}; send_home(team, orders, results, ())"),
        names={"shared": {}},
    )


@pytest.mark.ranks
@pytest.mark.parametrize("check", [n01.check_order, n01.check_loader])
def test_a_buffer_that_two_loops_share_is_told_so(monkeypatch, check):
    monkeypatch.setattr(on_processes, "PATIENCE", 3.0)  # it is more where a right loader is slow now
    verdict = check(*state_shared(clear=True))
    assert verdict.status == "wrong"
    assert trials.SHARED in verdict.message


def made_once(*changes):
    """A loader that makes something once for all loops, in `kept`."""
    return work, n01.edited(load_in_order, *changes, names={"kept": [], "queues": {}})


ORDERS = "[context.Queue() for _ in range(workers)]"
OUTLIVES = {
    "the team": made_once(("    team = [context", "    team = kept\n    team += [context")),
    "the queues of orders": made_once(
        (f"    orders = {ORDERS}\n", f"    orders = queues[workers] = queues.get(workers) or {ORDERS}\n")
    ),
}


@pytest.mark.parametrize("answer", OUTLIVES.values(), ids=OUTLIVES)
def test_what_one_loop_leaves_to_the_next_is_named(answer):
    verdict = n01.check_loader(*answer)
    assert verdict.status == "wrong"
    assert outside.REMEMBERED in verdict.message
    assert not [said for said in n01.check_loader.mistakes if said in verdict.message], verdict


def work_whole_messages(dataset, collate, orders, results):
    """Pickle each message in the worker, and send bytes."""
    for number, indices in iter(orders.get, None):
        try:
            said = pickle.dumps((collate([dataset[index] for index in indices]), None))
        except Exception as error:
            said = pickle.dumps((None, sendable(error)))
        results.put((number, said))


WHOLE_MESSAGES = (
    work_whole_messages,
    n01.edited(
        load_in_order,
        (
            "arrived, *early[arrived] = results.get()",
            "arrived, said = results.get()\n                early[arrived] = pickle.loads(said)",
        ),
        names={"pickle": pickle},
    ),
)


@pytest.mark.ranks
def test_a_loader_whose_workers_pickle_whole_messages_is_right():
    verdict = n01.check_loader(*WHOLE_MESSAGES)
    assert verdict.status == "right", verdict


def test_a_buffer_in_which_a_loop_leaves_something_is_told_so():
    verdict = n01.check_loader(*state_shared(clear=False))
    assert verdict.status == "wrong"
    assert f"in `shared`. {outside.REMEMBERED}" in verdict.message
    assert not [said for said in n01.check_loader.mistakes if said in verdict.message], verdict


WRONG = {
    "reads one list ahead": (
        ONE_LIST_AHEAD,
        f"when batch 0 is handed over, 4 lists are read, due are 3. {trials.WHOLE}",
    ),
    "one list of items": ((work_with_one_list, load_in_order), trials.REUSED),
    "catches two classes": (
        (worker(("except Exception", "except (LookupError, ValueError)")), load_in_order),
        f"item 7 raises, and the loop waits for ever. {trials.LOST}",
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
    "first orders outside the try": (
        (work, load(("    try:\n        hand_out(workers * prefetch)\n", f"{n01._FIRST_ORDERS}    try:\n"))),
        f"the batch sampler raises at list 1: 2 workers still there. {trials.NO_LIST}",
    ),
    "a worker goes home behind an error": (
        (worker((n01._SENT_ERROR, n01._SENT_ERROR + "\n            return")), load_in_order),
        "all wait for each other: nobody puts what the others wait for.",
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
    "no more than a while": "[q.put(None) for q in orders]; [w.join(0.2) for w in team]",
    "not behind an error": """was_right = not batches or "error" not in locals() or error is None
        send_home(team, orders, results, missing if was_right else ())""",
}


@pytest.mark.ranks
@pytest.mark.parametrize("name, lines", UNFETCHED.items(), ids=UNFETCHED)
def test_a_loader_that_leaves_large_results_unfetched_is_told_so_and_of_no_other_fault(monkeypatch, name, lines):
    monkeypatch.setattr(on_processes, "PATIENCE", 3.0)  # it is more where a right loader is slow now
    verdict = n01.check_loader(*clearing_up(lines))
    assert verdict.status == "wrong"
    moment = "after an error" if name == "not behind an error" else "after a `break`"
    assert f"on real processes, with large batches, {moment}" in verdict.message
    assert on_processes.HOME in verdict.message
    assert (on_processes.TIMED in verdict.message) == (name in ("a timeout", "a timeout for each", "an empty queue"))
    assert ("2 workers are still there" in verdict.message) == (name == "no more than a while")
    assert not [sentence for sentence in n01.check_loader.mistakes if sentence in verdict.message]


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
