"""Loaders that almost work: each breaks one clause of exercise 3 or 4, and is told which."""

import itertools
import multiprocessing
import pickle
import queue
from textwrap import indent

import pytest

from support.kit.mistakes import edited
from support.n01 import checks as n01
from support.n01 import trials
from support.n01.solved import OneProcessLoader, load_in_order, work

load = n01._load
worker = n01._work
RAISES = "if error is not None:\n                raise error"


def without_end(batches):
    """Count for ever."""
    return itertools.count()


def drained(results, missing):
    """Fetch what is still to come, and raise what a worker has raised meanwhile."""
    for _ in missing:
        _number, _batch, error = results.get()
        if error is not None:
            raise error


def remembers_one_error(kept):
    """Change the loader so that it has one place for an error that has arrived."""
    return load(
        ("    missing = set[int]()\n", "    missing = set[int]()\n    failed = None\n"),
        (
            "                missing.remove(arrived)\n",
            "                missing.remove(arrived)\n                if early[arrived][1] is not None:\n"
            f"                    failed = {kept}\n",
        ),
        (RAISES, "if failed and failed[0] == number:\n                raise failed[1]"),
    )


def marks_an_error_by(form, sign, found, before=""):
    """Send an error in the place of a batch, in a form of its own, and know it by a sign in the batch."""
    text = "f'{type(error).__name__}: {error}'" if before else "None"
    sent = f"*(({text}, None) if sendable(error) is not error else (None, error))"
    return (
        worker(("None, sendable(error)", sent if before else f"{form.format('sendable(error)')}, None")),
        load((RAISES, f"{before}if {sign}:\n                raise {found}")),
    )


FEW = "missing and len(early) < workers"
BEGINS = "        for number in range"
FILLS_ITS_PLACES = """        while {}:
            arrived, *early[arrived] = results.get()
            missing.remove(arrived)
"""
RAISES_WHILE_IT_CLEARS_UP = edited(
    load_in_order,
    (n01.END_ALL, "drained(results, missing); send_home(team, orders, results, ())"),
    names={"drained": drained},
)
TAKES_A_TUPLE_FOR_AN_ERROR = load(
    (
        RAISES,
        "if isinstance(batch, tuple) or error is not None:\n                raise batch if error is None else error",
    )
)
BEGINS_WITH_ONE_ORDER_EACH = load(
    ("hand_out(workers * prefetch)", "hand_out(workers)"),
    ("            hand_out(1)\n", "            hand_out(1 + workers * (prefetch - 1) * (number == 0))\n"),
)
TAKES_A_LIST_AND_WAITS = load(
    (
        "            while number not in early",
        "            ahead = list(islice(todo, 1))\n            while number not in early",
    ),
    (
        "            hand_out(1)\n",
        "            for further, indices in ahead:\n"
        "                orders[further % workers].put((further, indices))\n"
        "                missing.add(further)\n",
    ),
)
GOES_ON_BEHIND_NONE = worker(
    (
        "while (order := orders.get()) is not None:\n",
        "while True:\n        order = orders.get()\n        if order is None:\n            continue\n",
    )
)
STARTS = "    for worker in team:\n        worker.start()\n"
BEGINS_WHEN_IT_IS_CALLED = load(
    (
        "    try:\n        hand_out(workers * prefetch)\n",
        "    hand_out(workers * prefetch)\n\n    def rest():\n      try:\n",
    ),
    ("    finally:\n        send_home", "      finally:\n        send_home"),
    ("(team, orders, results, missing)", "(team, orders, results, missing)\n\n    return rest()"),
)
STARTS_BEHIND_THE_SAMPLER = load(
    ("    todo = enumerate(batches)", "    todo = None"),
    (STARTS, ""),
    ("    try:\n", "    try:\n        todo = enumerate(batches)\n" + indent(STARTS, "    ")),
)
WRONG = {
    "takes its results from a queue between threads": (
        (work, edited(load_in_order, ("results = context", "results = queue"), names={"queue": queue})),
        f"batch 0 came by other ways. {trials.OWN}",
    ),
    "takes its results from a queue of another context": (
        (work, edited(load_in_order, ("results = context", "results = mp"), names={"mp": multiprocessing})),
        f"batch 0 came by other ways. {trials.OWN}",
    ),
    "starts no process of the context": (
        (work, load((STARTS, ""))),
        "no process of `context` was started",
    ),
    "leaves out a batch that is false": (
        (work, load(("yield batch", "if batch:\n                yield batch"))),
        "batch 0 is 1, due is 0.",
    ),
    "joins a worker that was never started": (
        (work, STARTS_BEHIND_THE_SAMPLER),
        "your code raised AssertionError: can only join a started process",
    ),
    "loads the whole dataset first": (
        (worker(("    while (order", "    dataset = list(dataset)\n    while (order")), load_in_order),
        f"item 7 raises KeyError, and the loop waits for ever. {trials.LOST}",
    ),
    "takes None for an order": (
        (worker(("while (order := orders.get()) is not None", "while order := (*orders.get(),)")), load_in_order),
        "in a worker your code raised TypeError: ",
    ),
    "remembers the last error only": (
        (work, remembers_one_error("(arrived, early[arrived][1])")),
        f"item 3 raises KeyError, and batch 1 is None. {trials.LOST}",
    ),
    "remembers the first error only": (
        (work, remembers_one_error("failed or (arrived, early[arrived][1])")),
        f"item 3 raises KeyError, and batch 1 is None. {trials.LOST}",
    ),
    "raises behind a break what nobody asks for": (
        (work, RAISES_WHILE_IT_CLEARS_UP),
        f"your code raised KeyError: 'item 4 has no file' (in drained, line 31: `raise error`). {trials.UNASKED}",
    ),
    "takes a tuple for an error": (
        (work, TAKES_A_TUPLE_FOR_AN_ERROR),
        f"`raise batch if error is None else error`). {trials.NOTHING}",
    ),
    "takes a batch of words for its own mark of an error": (
        (
            worker(("None, sendable(error)", "('error', sendable(error)), None")),
            load((RAISES, 'if isinstance(batch, tuple) and batch[0] == "error":\n                raise batch[1]')),
        ),
        f"`raise batch[1]`). {trials.NOTHING}",
    ),
    "takes bytes for an error that was written": (
        (
            edited(work, ("None, sendable(error)", "pickle.dumps(sendable(error)), None"), names={"pickle": pickle}),
            edited(
                load_in_order,
                (RAISES, "if isinstance(batch, bytes):\n                raise pickle.loads(batch)"),
                names={"pickle": pickle},
            ),
        ),
        f"`raise pickle.loads(batch)`). {trials.NOTHING}",
    ),
    "looks for an error in a dictionary": (
        (
            worker(("None, sendable(error)", "{'error': sendable(error)}, None")),
            load((RAISES, "if isinstance(batch, dict) and \"error\" in batch:\n                raise batch['error']")),
        ),
        f"`raise batch['error']`). {trials.NOTHING}",
    ),
    "knows an error in a tuple by what lies beside it": (
        marks_an_error_by("(None, {})", "isinstance(batch, tuple) and isinstance(batch[1], Exception)", "batch[1]"),
        f"`raise batch[1]`). {trials.NOTHING}",
    ),
    "knows an error in a list by what lies in it": (
        marks_an_error_by("[{}]", "isinstance(batch, list) and isinstance([*batch, 0][0], Exception)", "batch[0]"),
        f"`raise batch[0]`). {trials.NOTHING}",
    ),
    "knows an error in a dictionary by a word of its own": (
        marks_an_error_by("{{'exc': {}}}", "isinstance(batch, dict) and 'exc' in batch", "batch['exc']"),
        f"`raise batch['exc']`). {trials.NOTHING}",
    ),
    "takes a text for what pickle can't carry": (
        marks_an_error_by("error", "isinstance(batch, str)", "RuntimeError(batch)", RAISES + "\n            "),
        f"`raise RuntimeError(batch)`). {trials.NOTHING}",
    ),
    "fetches what fills its places, and only then begins": (
        (work, load((BEGINS, FILLS_ITS_PLACES.format("missing") + BEGINS))),
        f"batch 0 is there, and is not handed over. {trials.WAITS}",
    ),
    "fetches one result for each worker, and only then begins": (
        (work, load((BEGINS, FILLS_ITS_PLACES.format(FEW) + BEGINS))),
        f"batch 0 is there, and is not handed over. {trials.WAITS}",
    ),
    "has one place a worker, where nobody says how many": (
        (work, load(("prefetch: int = 2", "prefetch: int = 1"))),
        f"when batch 0 is handed over, 2 orders were given, due are 3. {trials.STARVED}",
    ),
    "keeps its queue of results for the next loop": (
        (
            work,
            edited(
                load_in_order,
                ("results = context.Queue()", "results = kept.setdefault(0, context.Queue())"),
                names={"kept": {}},
            ),
        ),
        "your code keeps something outside of its function, in `kept`.",
    ),
    "begins with one order for each worker": (
        (work, BEGINS_WITH_ONE_ORDER_EACH),
        f"while batch 0 is waited for, 1 order was given, due are 2. {trials.STARVED}",
    ),
    "takes a list, waits, and orders it": (
        (work, TAKES_A_LIST_AND_WAITS),
        f"while batch 0 is waited for, 3 lists are read, due are 2. {trials.WHOLE}",
    ),
    "a worker goes on behind None": (
        (GOES_ON_BEHIND_NONE, load_in_order),
        f"until a worker has ended. {trials.STAYS}",
    ),
    "sends what pickle can't write": (
        (worker(("sendable(error)))", "(error, error.__traceback__)))")), load_in_order),
        f"all wait for each other. {trials.LOST_ON_THE_WAY}",
    ),
    "orders what pickle can't write": (
        (work, load((".put((number, indices))", ".put((number, (index for index in indices)))"))),
        f"all wait for each other. {trials.LOST_ON_THE_WAY}",
    ),
    "gives each batch twice": (
        (work, load(("yield batch", "yield batch\n            yield batch"))),
        "batch 1 is [0, 1], due is [2, 3].",
    ),
    "counts an order before its list has come": (
        (
            work,
            load(
                (
                    "for number, indices in islice(todo, count):\n",
                    "for _ in range(count):\n            missing.add(-1)\n"
                    "            number, indices = next(todo, (-1, []))\n            missing.discard(-1)\n"
                    "            if number < 0:\n                return\n",
                )
            ),
        ),
        f"the batch sampler raises, and the loop waits for ever. {trials.TOO_MANY}",
    ),
    "leaves out a batch that fails": (
        (work, load((RAISES, "if error is not None:\n                continue"))),
        f"item 7 raises KeyError, and batch 3 is [8, 9]. {trials.LOST}",
    ),
    "raises what it has sent": (
        (edited(work, (n01._SENT_ERROR, n01._SENT_ERROR + "\n            raise")), load_in_order),
        f"item 7 raises KeyError, a worker ends behind it, and the loop waits for ever. {trials.GOES_HOME}",
    ),
    "loads each index of a list once": (
        (edited(work, ("for index in indices", "for index in dict.fromkeys(indices)")), load_in_order),
        "batch 0 is [1, 3], due is [1, 1, 3].",
    ),
    "counts from one": (
        (work, load(("enumerate(batches)", "enumerate(batches, 1)"))),
        f"batch 0: {trials.IN_VAIN} {trials.NOT_FOUND}",
    ),
    "begins when it is called": ((work, BEGINS_WHEN_IT_IS_CALLED), trials.EAGER),
    "tries a batch beforehand, and collates its list again": (
        (
            worker(
                (
                    n01._LOADED,
                    "items = [dataset[index] for index in indices]\n            collate(items)\n            "
                    + n01._LOADED_ITEMS,
                )
            ),
            load_in_order,
        ),
        "`collate` was given one list twice: it may keep what it is given, so make a new one each time.",
    ),
    "loads an item once more": (
        (
            worker(
                (
                    n01._LOADED,
                    n01._LOADED + "\n        except LookupError:\n            " + n01._LOADED,
                )
            ),
            load_in_order,
        ),
        "item 7 raises KeyError, and batch 3 is [6, 7]. An error in a worker must reach the training process, "
        "at its batch's turn.",
    ),
    "knows two errors of collate": (
        (
            worker(
                (
                    n01._LOADED,
                    "items = [dataset[index] for index in indices]\n"
                    "        except Exception as error:\n"
                    "            results.put((number, None, sendable(error)))\n"
                    "            continue\n"
                    "        try:\n            " + n01._LOADED_ITEMS,
                ),
                (
                    "            " + n01._LOADED_ITEMS + "\n        except Exception",
                    "            " + n01._LOADED_ITEMS + "\n        except (KeyError, ValueError)",
                ),
            ),
            load_in_order,
        ),
        f"`collate` raises for batch 3, and the loop waits for ever. {trials.TORN}",
    ),
    "has no end": (
        (
            work,
            edited(
                load_in_order,
                ("range(len(batches))", "without_end(batches)"),
                names={"without_end": without_end},
            ),
        ),
        trials.TOO_MANY,
    ),
}


@pytest.mark.parametrize("answer, says", WRONG.values(), ids=WRONG)
def test_a_loader_that_almost_works_is_told_which_clause_it_breaks_and_nothing_else(answer, says):
    verdict = n01.check_loader(*answer)
    assert verdict.status == "wrong"
    assert says in verdict.message
    others = [sentence for sentence in n01.check_loader.mistakes if sentence in verdict.message]
    assert [sentence for sentence in others if sentence not in says] == [], verdict


def test_a_loader_that_begins_when_it_is_called_is_wrong_before_anything_fails():
    assert trials.EAGER in n01.check_order(work, BEGINS_WHEN_IT_IS_CALLED).message


def test_an_item_that_fails_is_not_loaded_once_more():
    class TriesAgain(OneProcessLoader):
        def __iter__(self):
            for indices in self.batches:
                try:
                    yield self.collate([self.dataset[index] for index in indices])
                except OSError:
                    yield self.collate([self.dataset[index] for index in indices])

    assert "where an item raises OSError" in n01.check_alone(TriesAgain).message
