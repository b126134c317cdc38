"""What the graph of a pipeline holds: which micro-batch must go backward before which, read off the graph.

Backward of micro-batch i in partition j must be over before that of i - 1 begins there. So from the node of (i, j) a
way through the graph must lead to the node of (i - 1, j); where that one is computed again, to its Recompute as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, TypeAlias

from support.kit.judged import Fault

_Pair: TypeAlias = tuple[int, int]


def fault_of_the_graph(
    root: Any, layers: Mapping[_Pair, Any], starts: Sequence[int], partitions: int
) -> Fault | None:
    """Say which micro-batch may go backward too early or has to wait for an earlier one, None if none does.

    root: the node of the output. layers: the node that a pair's first layer left. starts: the first row of each
    micro-batch, which its first column holds.
    """
    nodes = list(_behind(root))
    recomputes = _recomputes(nodes, starts)
    checkpoints = _checkpoints(nodes, recomputes)
    pairs = product(range(len(starts)), range(partitions))
    first = {pair: node for pair in pairs if (node := checkpoints.get(pair, layers.get(pair))) is not None}
    behind = {pair: set(_behind(node)) for pair, node in first.items()}
    unheld = []
    for j, i in product(range(partitions), range(len(starts) - 1)):
        found = behind.get((i + 1, j), set())
        if not all(node is None or node in found for node in (recomputes.get((i, j)), first.get((i, j)))):
            unheld.append((i, j))
    if not unheld:
        return _fault_of_waiting(first, behind)
    i, j = unheld[0]
    said = (
        "the outcome is right, but the graph does not hold every partition to its order. In partition "
        f"{j} no way leads from micro-batch {i + 1} to micro-batch {i}, so {i} may go backward, or be computed again, "
        f"before {i + 1} has gone backward"
    )
    joins = sum("Join" in node.name() for node in nodes)
    return Fault(said, f"{unheld} of {joins} ties")


def _fault_of_waiting(first: Mapping[_Pair, Any], behind: Mapping[_Pair, set[Any]]) -> Fault | None:
    for (i, j), (later, k) in product(first, first):
        if later == i + 1 and first[later, k] in behind[i, j]:
            said = (
                f"the outcome is right, but {later} waits for {i}: a way leads from micro-batch {i} in partition {j} "
                f"to micro-batch {later} in partition {k}. The last micro-batch goes first, and waits for none"
            )
            return Fault(said, said)
    return None


def fault_of_dictionaries(root: Any, earlier: Any = None) -> str:
    """Say whether two Recomputes share a dictionary: what one has left there, the other overwrites.

    earlier: the node of the output of an earlier batch, whose backward is still to come.
    """
    made = [node for node in _behind(root) if "Recompute" in node.name()]
    own = {id(node.shared) for node in made}
    if own & {id(node.shared) for node in _behind(earlier) if "Recompute" in node.name()}:
        return "a Recompute shares its dictionary with one of the batch before: each pair needs a new one"
    shared = len(own)
    if shared == len(made):
        return ""
    dictionaries = "1 dictionary" if shared == 1 else f"{shared} dictionaries"
    return f"{len(made)} Recomputes share {dictionaries}: each pair needs a new one"


def _behind(root: Any) -> Iterator[Any]:
    """Yield the nodes that backward reaches from this one, and the node itself."""
    found = {None}
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            yield node
            waiting += [following for following, _ in node.next_functions]


def _recomputes(nodes: Sequence[Any], starts: Sequence[int]) -> dict[_Pair, Any]:
    """Return the Recompute of each pair that has one: behind that of a partition lie those of the partitions before."""
    found: dict[_Pair, Any] = {}
    made = [node for node in nodes if "Recompute" in node.name()]
    for i, start in enumerate(starts):
        own = [node for node in made if int(node.saved_tensors[0][0, 0]) == start]
        found |= {(i, len({*own} & {*_behind(node)}) - 1): node for node in own}
    return found


def _checkpoints(nodes: Sequence[Any], recomputes: Mapping[_Pair, Any]) -> dict[_Pair, Any]:
    """Return the Checkpoint of each pair that has a Recompute: the two share a dictionary."""
    pairs = {id(node.shared): pair for pair, node in recomputes.items()}
    return {
        pairs[id(node.shared)]: node
        for node in nodes
        if "TwoNodeCheckpoint" in node.name() and id(node.shared) in pairs
    }
