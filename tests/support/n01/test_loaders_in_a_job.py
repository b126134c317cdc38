"""What a loader meets in a job: a slow trainer, errors that pickle cannot carry, a second loop beside the first."""

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


@pytest.mark.costly
@pytest.mark.ranks
@pytest.mark.parametrize("how", ["patiently(orders)", "when_there(orders)"])
def test_a_worker_that_looks_again_is_right(how):
    verdict = n01.check_loader(*takes_orders(how))
    assert verdict.status == "right", verdict


def written_back(error):
    """Send the error as bytes that may not be read again, and its text beside it."""
    try:
        return pickle.dumps(error), str(error)
    except Exception:
        return b"", str(error)


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


def by(text):
    """A worker in which the RuntimeError that stands for an error is made by `text`."""
    return n01.edited(
        work,
        ("sendable(error)", "error if sendable(error) is error else RuntimeError(text(error))"),
        names={"text": text},
    )


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
        (by(repr), load_in_order),
        (by(lambda error: error.args[0]), load_in_order),
    ],
    ids=["as it is", "written and not read", "without its text", "by repr", "by its args"],
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
@pytest.mark.parametrize("check", [n01.check_order, pytest.param(n01.check_loader, marks=pytest.mark.prove)])
def test_a_buffer_that_two_loops_share_is_told_so(check):
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


COUNTED = {
    "what has arrived": load(
        ("    missing = set[int]()\n", "    missing = set[int]()\n    load_in_order.came = 0\n"),
        ("missing.remove(arrived)", "load_in_order.came += 1"),
        (CLEAR_UP, "send_home(team, orders, results, range(len(missing) - load_in_order.came))"),
    ),
    "what was ordered": load(
        ("    missing = set[int]()\n", "    missing = set[int]()\n    load_in_order.ordered = 0\n"),
        ("missing.add(number)", "load_in_order.ordered = number + 1"),
        ("missing.remove(arrived)", "missing.add(arrived)"),
        (CLEAR_UP, "send_home(team, orders, results, range(load_in_order.ordered - len(missing)))"),
    ),
}


@pytest.mark.ranks
@pytest.mark.parametrize("loader", COUNTED.values(), ids=COUNTED)
def test_what_two_loops_count_together_is_named(loader):
    verdict = n01.check_order(work, loader)
    assert verdict.status == "wrong"
    assert outside.REMEMBERED in verdict.message
    assert not [said for said in n01.check_order.mistakes if said in verdict.message], verdict


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


WAITS_FOR_MORE = {
    "all that is ordered": "while missing",
    "W batches at a time": "while number % workers == 0 and missing & set(range(number, number + workers))",
}


@pytest.mark.parametrize("waits", WAITS_FOR_MORE.values(), ids=WAITS_FOR_MORE)
@pytest.mark.parametrize("check", [n01.check_order, n01.check_loader])
def test_a_loader_that_waits_for_later_batches_than_the_due_one_is_told_so(check, waits):
    verdict = check(work, load(("while number not in early", waits)))
    assert verdict.status == "wrong"
    assert f"batch 2 is there, and is not handed over. {trials.WAITS}" in verdict.message.replace("4 is", "2 is")
    assert [said for said in check.mistakes if said in verdict.message] == [trials.WAITS]


def test_an_exception_that_is_false_is_raised_too():
    verdict = n01.check_loader(work, load(("error is not None", "error")))
    assert verdict.status == "wrong"
    assert f"item 7 raises FalseError, and batch 3 is None. {trials.FALSE}" in verdict.message
    assert [said for said in n01.check_loader.mistakes if said in verdict.message] == [trials.FALSE]


def test_an_exception_that_is_made_anew_has_lost_what_it_carried():
    verdict = n01.check_loader(work, load(("raise error", "raise type(error)(*error.args)")))
    assert verdict.status == "wrong"
    assert trials.REBUILT in verdict.message
    assert [said for said in n01.check_loader.mistakes if said in verdict.message] == [trials.REBUILT]


IN_THE_BUFFER = (
    "            batch, error = early.pop(number)\n            hand_out(1)\n",
    "            hand_out(1)\n            batch, error = early.pop(number)\n",
)
BY_FORMULA = {
    on_processes.AFTER_NO_LIST: ("len(missing) - (number in early)", IN_THE_BUFFER),
    on_processes.AT_NO_LIST: ("len(missing) - (len(missing) == 2 and not early)", ()),
}


@pytest.mark.costly
@pytest.mark.ranks
@pytest.mark.parametrize("moment, answer", BY_FORMULA.items(), ids=BY_FORMULA)
def test_whoever_fetches_one_too_few_where_the_sampler_raises_hangs_with_large_batches(moment, answer):
    count, moved = answer
    in_all = f"send_home(team, orders, results, range({count}))"
    begun = ("    try:\n        hand_out", "    number = 0\n    try:\n        hand_out")
    verdict = n01.check_loader(work, load(begun, (CLEAR_UP, in_all), *filter(None, [moved])))
    assert verdict.status == "wrong"
    assert f"with large batches, {moment}" in verdict.message
    assert on_processes.HOME in verdict.message
