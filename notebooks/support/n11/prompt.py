"""A pretended GPU whose streams are quick: what `record_stream` marks is passed when the memory is wanted again."""

# mypy: allow-untyped-calls

from __future__ import annotations

from lib.streams import PretendGPU
from lib.streams.pretend_memory import Block, Pools
from lib.streams.races import HOST, Operation, VectorClock


class PromptGPU(PretendGPU):
    """Give a block away as soon as the streams that were named for it have done what was in them when it was dropped.

    A PretendGPU is slow: where the host waits for nothing, a block that any stream was named for is never given away,
    so it does not matter which. Here the allocator finds each mark passed, as it may on a GPU, and whoever still uses
    the block in another stream is found out.
    """

    def __init__(self, count: int = 1) -> None:
        super().__init__(count=count)
        self._pools = _PromptPools(self)


class _PromptPools(Pools):
    def __init__(self, gpu: PromptGPU) -> None:
        super().__init__(gpu.operations, gpu._clocks)
        self._gpu = gpu
        # of each block that was dropped: an event in each stream named
        self._marks: dict[str, list[int]] = {}

    def _give_back(self, block: Block, users: set[str]) -> None:
        super()._give_back(block, users)
        self._marks[block.name] = [self._marked(lane) for lane in sorted(users - {block.stream})]

    def _marked(self, lane: str) -> int:
        self._gpu.events += 1
        self._gpu.issue(Operation("record", lane, lane, self._gpu.events))
        return self._gpu.events

    def _reused(self, size: int, stream: str) -> Block | None:
        """Take a block of the stream's pool; the host learns that its marks are passed."""
        entries: list[tuple[Block, VectorClock]] = [(block, {}) for block, _ in self._free]
        self._free[:] = entries  # nothing holds any of them back
        block = super()._reused(size, stream)
        for event in self._marks.pop(block.name, []) if block else []:
            self._gpu.issue(Operation("synchronize", HOST, "what record_stream marked", event))
        return block
