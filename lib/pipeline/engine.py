"""torch's engine (torch.distributed.pipelining) for one of our tables, and its stages, recorded and named in errors."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from inspect import signature
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import pipelining
from torch.distributed.pipelining import schedules as engines

from lib import recorder as recording
from lib.pipeline import schedule as tables
from lib.pipeline.schedule.action import Action, Op, Schedule
from lib.pipeline.schedule.simulate import KINDS

# torch's public class for the tables of a maker; the two count as the same only if maker and table agree.
CLASSES = {
    "gpipe": "ScheduleGPipe",
    "one_f_one_b": "Schedule1F1B",
    "interleaved_one_f_one_b": "ScheduleInterleaved1F1B",
    "looped_bfs": "ScheduleLoopedBFS",
    "interleaved_zero_bubble": "ScheduleInterleavedZeroBubble",
    "zbv": "ScheduleZBVZeroBubble",
    "dualpipe_v": "ScheduleDualPipeV",
}


class EngineStage(pipelining.PipelineStage):
    """A stage that knows what it does: it records it, and says it when it fails."""

    _kept: tuple[tuple[Tensor, Tensor], ...] = ()

    def keep_buffers(self) -> None:
        """Put the buffers back before the first micro-batch, whatever the engine has done with them until then."""
        self._kept = tuple((buffer, buffer.clone()) for buffer in self.submod.buffers())

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """Do F; torch's, as the next two are."""
        for buffer, value in self._kept:
            buffer.copy_(value)
        self._kept = ()
        with self._doing("F", fwd_chunk_id):
            return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(
        self, bwd_chunk_id: int, loss: Any = None, full_backward: bool = True, last_backward: Any = False
    ) -> None:
        """Do B, or I."""
        with self._doing("B" if full_backward else "I", bwd_chunk_id):
            super().backward_one_chunk(bwd_chunk_id, loss, full_backward, last_backward)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> None:
        """Do W."""
        with self._doing("W", bwd_chunk_id):
            super().backward_weight_one_chunk(bwd_chunk_id, *args, **kwargs)

    def _get_init_p2p_neighbors_ops(self) -> list[dist.P2POp]:
        # torch 2.11 greets its neighbours so; in a table like a V one of them is this rank, which gloo cannot connect.
        return [op for op in super()._get_init_p2p_neighbors_ops() if op.peer != dist.get_rank()]

    @contextmanager
    def _doing(self, op: Op, micro_batch: int) -> Iterator[None]:
        action, recorder = Action(op, self.stage_index, micro_batch), recording.current
        start = recorder.now() if recorder is not None else 0.0
        try:
            yield
        except Exception as error:
            # the engine raises a RuntimeError about the layer's error; in W it does not
            layers = error.__cause__ if type(error) is RuntimeError else None
            told = f"in {action}: stage {action.stage}, {KINDS[op]} of micro-batch {action.micro_batch}"
            (layers or error).add_note(told)
            if layers is None:
                raise
            raise layers from layers.__cause__
        if recorder is not None:
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            recorder.add(f"rank {dist.get_rank()}", str(action), start, recorder.now(), KINDS[op])


def engine_for(
    schedule: Schedule, stages: list[EngineStage], loss_fn: Callable[[Tensor, Tensor], Tensor]
) -> Any:
    """Return torch's schedule for a table: the public class that makes the same, else its runtime with this table."""
    m, n, v = schedule.micro_batches, len(schedule.ranks), len(stages)
    for maker, name in CLASSES.items():
        if hasattr(pipelining, name):
            engine, make = getattr(pipelining, name), getattr(tables, maker)
            with suppress(ValueError):  # numbers that one of the two does not take
                made = make(m, n, v) if "stages_per_rank" in signature(make).parameters else make(m, n)
                if made.compact().ranks == schedule.compact().ranks:
                    one = issubclass(engine, engines.PipelineScheduleSingle)
                    return engine(stages[0] if one else stages, m, loss_fn)
    runtime: Any = engines._PipelineScheduleRuntime(stages, m, loss_fn)  # type: ignore[no-untyped-call]
    with tempfile.TemporaryDirectory() as folder:
        schedule.compact().to_csv(Path(folder) / "table.csv")
        runtime._load_csv(f"{folder}/table.csv")
    return runtime
