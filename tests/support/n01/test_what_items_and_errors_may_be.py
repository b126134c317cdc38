"""What a worker of notebook 01 may load and raise: an item that is None, an error that equals no copy of itself."""

import pickle

import pytest

from support.kit.mistakes import edited
from support.n01 import checks as n01
from support.n01.solved import load_in_order, work


def without_items_that_are_none(dataset, collate, orders, results):
    for number, indices in iter(orders.get, None):
        items = [dataset[index] for index in indices]
        results.put((number, collate([item for item in items if item is not None]), None))


def test_an_item_that_is_none_belongs_to_its_batch():
    verdict = n01.check_order(without_items_that_are_none, load_in_order)
    assert verdict.status == "wrong"
    assert "batch 1 is [2], due is [2, None]." in verdict.message


def if_its_copy_is_alike(of):
    """Send an error only if pickle gives the same back, by what it holds."""

    def sendable(error):
        try:
            back = pickle.loads(pickle.dumps(error))
        except Exception:
            return RuntimeError(str(error))
        return error if of(back) == of(error) else RuntimeError(str(error))

    def work(dataset, collate, orders, results):
        for number, indices in iter(orders.get, None):
            try:
                message = (number, collate([dataset[index] for index in indices]), None)
                pickle.dumps(message)
            except Exception as error:
                message = (number, None, sendable(error))
            results.put(message)

    return work


def test_an_error_that_pickle_carries_is_right_whatever_class_its_copy_has():
    assert n01.check_loader(if_its_copy_is_alike(type), load_in_order).status == "right"


@pytest.mark.parametrize("of", [lambda error: error.args, repr, vars], ids=["args", "repr", "vars"])
def test_an_error_that_pickle_carries_is_raised_itself_also_where_its_copy_equals_nothing(of):
    verdict = n01.check_loader(if_its_copy_is_alike(of), load_in_order)
    assert verdict.status == "wrong"
    assert "The exception itself is to be raised, and nothing in its place." in verdict.message


@pytest.mark.parametrize("kind", ["IndexError", "KeyError", "RuntimeError", "LookupError", "ValueError"])
def test_an_error_of_the_sampler_is_no_end_whatever_its_class(kind):
    ends = edited(
        load_in_order,
        (
            "    todo = enumerate(batches)",
            "    def lists():\n        taken = iter(batches)\n        while True:\n            try:\n"
            f"                indices = next(taken)\n            except (StopIteration, {kind}):\n"
            "                return\n            yield indices\n    todo = enumerate(lists())",
        ),
        (
            "        for number in range(len(batches)):\n",
            "        for number in range(99):\n            if not (missing or early):\n                return\n",
        ),
    )
    verdict = n01.check_loader(work, ends)
    assert verdict.status == "wrong"
    assert "the batch sampler raises, and the loop got" in verdict.message
