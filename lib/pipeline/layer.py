"""A partition with one micro-batch, as a function: a worker calls it in forward, and perhaps autograd in backward.

Neither thread knows anything of the pipeline. So the function brings along what the layers must find: the random
numbers and skip tensors of the micro-batch, and the contextvars and other values of the thread that called the model.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import Context, copy_context
from dataclasses import dataclass, field

from torch import nn

from lib.pipeline.checkpoint import Phase, in_phase, phase_here
from lib.pipeline.portal_tracker import SkipTrackerThroughPortals
from lib.pipeline.skip_tracker import tracker_here
from lib.runtime import recording
from lib.runtime.compiled_draws import CompiledDraws, compiled_graphs_heard
from lib.runtime.device import AbstractStream, get_device
from lib.runtime.microbatch import Batch, TensorOrTensors, check
from lib.runtime.random_state import Seeds
from lib.runtime.recording import Place
from lib.runtime.sharing import Crossing
from lib.runtime.thread_state import Values, during


@dataclass(eq=False)
class Layer:
    """Compute a micro-batch in a partition; an error is told where it happened.

    Holds nothing of the pipeline and its other micro-batches: the graph keeps it until backward.
    """

    place: Place
    partition: nn.Sequential
    stream: AbstractStream
    checkpointed: bool  # whether it is called in a Checkpoint first, and by its Recompute again
    seeds: Seeds
    skip_tracker: SkipTrackerThroughPortals
    taken_along: Values  # from the thread that calls run()
    compiled: bool  # at least one of its layers
    shared: Sequence[int]  # which tensors of the input have memory in common with others that cross the cut

    context: Context = field(default_factory=copy_context)  # contextvars, as they are where the pipeline is called
    draws: CompiledDraws = field(init=False)  # of compiled layers, once they have been called

    def __call__(self, input: TensorOrTensors) -> TensorOrTensors:
        """Return what the partition makes of the input."""
        # A copy: what a layer sets in forward, its recomputation must not find.
        output: TensorOrTensors = self.context.copy().run(self._compute, input)
        return output

    def _compute(self, input: TensorOrTensors) -> TensorOrTensors:
        values = {**self.taken_along, tracker_here: self.skip_tracker}
        if not self.checkpointed:
            values |= in_phase(Phase.ONLY)  # whatever that of a layer is in which this pipeline runs
        kind = "recompute" if self._phase() is Phase.SECOND else "compute"
        try:
            with (
                recording.span(kind, self.place, self.stream),
                self.seeds.own(*self.place),
                during(values),
                self._draws_seen(),
            ):
                crossing = Crossing()
                crossing.note_input(Batch(input), shared=self.shared)
                self.skip_tracker.begin(crossing)
                output: TensorOrTensors = self.partition(input)
                crossing.refuse_writes()
                check(output)
                self.skip_tracker.end(Batch(output))
            recording.follow(input, output, self.place, self.stream)
            return output
        except BaseException as error:
            error.add_note(self._where())
            raise

    def _phase(self) -> Phase:
        # A checkpointed one is called by its Checkpoint or Recompute, which have said so.
        return phase_here.value if self.checkpointed else Phase.ONLY

    def _draws_seen(self) -> AbstractContextManager[None]:
        # A compiled layer runs code that torch has made, which may draw random numbers in a way that we don't know.
        if not self.compiled:
            return nullcontext()
        match self._phase():
            case Phase.ONLY:
                return compiled_graphs_heard()
            case Phase.FIRST:
                self.seeds[self.place]  # what these are made of the process's generator draws: now, not in between
                self.draws = CompiledDraws(f"a compiled layer of partition {self.place.j}")
                return self.draws.noted()
            case Phase.SECOND:
                return self.draws.compared()

    def _where(self) -> str:
        i, j = self.place
        m, n = self.seeds.shape
        doing = "while recomputing" if self._phase() is Phase.SECOND else "in"
        return f"{doing} micro-batch {i} of {m} in partition {j} of {n} (on {get_device(self.stream)})"


def has_compiled_layers(partition: nn.Sequential) -> bool:
    """Return whether torch.compile has made one of these layers, or has been told to make it."""
    if "torch._dynamo" not in sys.modules:
        return False
    from torch._dynamo import OptimizedModule  # takes seconds, unless something has been compiled

    return any(isinstance(x, OptimizedModule) or x._compiled_call_impl is not None for x in partition.modules())
