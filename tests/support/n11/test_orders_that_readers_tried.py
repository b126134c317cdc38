"""Orders that readers gave to notebook 11 for the engine's: wrong ones that once passed, and what they are told."""

from collections import Counter
from heapq import heappop, heappush
from itertools import takewhile

from support.kit.mistakes import edited
from support.n11 import checks as n11
from support.n11.runs import engine_order, following


def refused(verdict, says, *never):
    assert verdict.status == "wrong", verdict.message
    assert says in verdict.message
    assert not any(words in verdict.message for words in never), verdict.message


def test_a_list_that_backward_fills_is_an_empty_one():
    def filled_by_backward(root):
        ran = []
        for node in engine_order(root):
            node.register_prehook(lambda *_, node=node: ran.append(node))
        return ran

    refused(n11.check_engine(filled_by_backward), "yours says nothing")


def counted_users(root):
    """Return the nodes behind root, and how many edges lead to each."""
    found = [root]
    users = Counter()
    for node in found:
        for x in following(node):
            users[x] += 1
            found += [x] * (users[x] == 1)
    return found, users


def test_numbers_do_not_say_who_is_ready():
    def by_number(root):
        found, users = counted_users(root)
        order = []
        for node in sorted(found, key=lambda node: -node._sequence_nr()):
            if "Accumulate" in node.name():
                continue
            order.append(node)
            for x in following(node):
                users[x] -= 1
                order += [x] * (users[x] == 0 and "Accumulate" in x.name())
        return order

    refused(n11.check_engine(by_number), "yours says Add Mul Tanh Mul AccumulateGrad Sin", "graphs, node by node")


def test_a_walk_into_the_depth_is_not_told_of_what_is_ready():
    def depth_first(root):
        done = {}

        def visit(node):
            for x in following(node):
                if x not in done:
                    visit(x)
            done[node] = True

        visit(root)
        return [*done][::-1]

    refused(n11.check_engine(depth_first), "autograd ran", "became ready last")


def test_an_entry_none_does_not_end_the_entries():
    def stopping_at_none(root):
        users = Counter()
        found = [root]
        for node in found:
            for x in before_none(node):
                users[x] += 1
                found += [x] * (users[x] == 1)
        ready = [root]
        order = []
        while ready:
            node = max(ready, key=lambda node: node._sequence_nr())
            ready.remove(node)
            order.append(node)
            for x in before_none(node):
                users[x] -= 1
                ready += [x] * (users[x] == 0)
        return order

    def before_none(node):
        return takewhile(lambda x: x is not None, [x for x, _ in node.next_functions])

    refused(n11.check_engine(stopping_at_none), "a constant")


def test_a_node_that_stays_among_the_ready_ones_ends():
    endless = edited(engine_order, ("        ready.remove(node)\n", ""))
    refused(n11.check_engine(endless), "has not ended")


def test_what_outlives_the_call_spoils_the_next_one():
    found = "found += [x] * (users[x] == 1)"
    once = "found += [x] * (x not in SEEN)\n            SEEN.add(x)"
    answer = edited(engine_order, (found, once), names={"SEEN": set()})
    refused(n11.check_engine(answer), "when asked again")


def test_nodes_with_one_number_are_not_compared_themselves():
    answer = edited(
        engine_order,
        ("ready = [root]", "ready = [(0, 0, root)]"),
        ("max(ready, key=lambda node: node._sequence_nr())\n        ready.remove(node)", "heappop(ready)[2]"),
        ("ready.append(x)", "heappush(ready, (-x._sequence_nr(), len(ready), x))"),
        names={"heappop": heappop, "heappush": heappush},
    )
    refused(n11.check_engine(answer), "'<' not supported between instances of")
