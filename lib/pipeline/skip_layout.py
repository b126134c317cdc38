"""Which partition stashes and which one pops each skip tensor, known before anything runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from torch import nn

from lib.pipeline.skip import Skippable
from lib.pipeline.skip_tracker import Key, Namespace


class SkipLayout:
    """The routes of all skip tensors: {(namespace, name): (partition that stashes, partition that pops)}."""

    def __init__(self, num_partitions: int, skip_routes: Mapping[Key, tuple[int, int]]) -> None:
        self.crossing: set[Key] = set()
        self.by_partition: list[list[tuple[int, Namespace | None, str]]] = [[] for _ in range(num_partitions)]
        # sorted by partitions alone: namespaces have no order
        for (ns, name), (prev_j, next_j) in sorted(skip_routes.items(), key=lambda route: route[1]):
            if prev_j != next_j:
                self.crossing.add((ns, name))
                self.by_partition[next_j].append((prev_j, ns, name))

    def copy_policy(self, next_j: int) -> Iterator[tuple[int, Namespace | None, str]]:
        """Yield (partition that stashed it, namespace, name) of all that partition `next_j` gets from others."""
        yield from self.by_partition[next_j]

    def requires_copy(self, ns: Namespace | None, name: str) -> bool:
        """Say whether this skip tensor is popped in another partition than it is stashed in."""
        return (ns, name) in self.crossing


def inspect_skip_layout(partitions: Iterable[nn.Sequential]) -> SkipLayout:
    """Return the layout of the skippable layers in `partitions`, those inside other layers included."""
    partitions = list(partitions)
    routes: dict[Key, tuple[int, int]] = {}
    stashed_at: dict[Key, int] = {}
    for j, partition in enumerate(partitions):
        for layer in partition.modules():
            if not isinstance(layer, Skippable):
                continue
            for key in layer.poppable():
                if key in stashed_at:  # if not, verify_skippables has said so
                    routes[key] = (stashed_at[key], j)
            for key in layer.stashable():
                stashed_at[key] = j
    return SkipLayout(len(partitions), routes)
