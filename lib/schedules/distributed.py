"""The same model, balance and table on many processes: torch.distributed.pipelining and DDP, under torchrun.

                     pipeline 0      pipeline 1
    replica 0          rank 0  ──→     rank 1        along a row: activations, and their gradients back
                         ║               ║
    replica 1          rank 2  ──→     rank 3        along a column: gradients of the weights, averaged

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "pipeline"))        rank = data · 2 + pipeline

torch's engine sends, receives and computes; this file gives it our stages and our table, and stands where it is blind
 (as of torch 2.13):

1  it takes only equal micro-batches, of the sizes of the first step: any other batch is refused, with the numbers
2  it finds out shapes by a forward on uninitialized memory. BatchNorm counts that: buffers are put back. DDP expects
   gradients of it, and fails in the second step: so DDP is asked for none until the last backward of a step
3  DDP does not see the gradients of a split backward (I, W), and says nothing: those are averaged here, after the step
4  it wraps an error of a layer in another: the layer's own is raised, with a note that names the action
5  a stage whose input needs no gradient gets none from a split backward, and no word of it: that is refused
6  it appends the losses as the last stage makes them, and takes them by number: so micro-batches have, in the engine,
   the numbers of that order (spans and errors keep those of our table)
7  its W leads what I wrote down through the hooks of tensors a second time: what it was before is put in its place
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy  # noqa: F401  torch's engine needs it; found missing only there, one rank fails and the others wait
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.distributed import pipelining
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import schedules as engines
from torch.nn.parallel import DistributedDataParallel

from lib.runtime.device import current_stream, with_index
from lib.runtime.partitions import BalanceError, verify_module
from lib.runtime.recording import device_span
from lib.schedules.legal import validate
from lib.schedules.makers import MAKERS
from lib.schedules.split_backward import arrives_again
from lib.schedules.table import KINDS, Action, Op, Schedule


class EngineStage(pipelining.PipelineStage):
    """A stage that knows what it does: it records it, and says it when it fails."""

    order: Sequence[int] = range(sys.maxsize)  # the engine's micro-batches, by their numbers in our table
    lane = ""  # of its spans
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
        with self._doing("W", bwd_chunk_id), ExitStack() as hooks:
            for node, grads in self._starts_of_weights(bwd_chunk_id):  # 7 of the list above
                hooks.callback(arrives_again(node, grads))
            super().backward_weight_one_chunk(bwd_chunk_id, *args, **kwargs)

    def _starts_of_weights(self, bwd_chunk_id: int) -> Iterator[tuple[Node, tuple[Tensor | None, ...]]]:
        """Yield the nodes at which torch's W begins, and what it wrote down there in I."""
        state = self.backward_state.get(bwd_chunk_id)
        if state is None:
            return
        _, groups, *_ = state
        for group in groups or ():
            noted = group.get("grads") or [None] * len(group["intermediates"])
            for node, grads in zip(group["intermediates"], noted, strict=True):
                if grads is not None:
                    yield node, grads

    def _get_init_p2p_neighbors_ops(self) -> list[dist.P2POp]:
        # torch 2.11 greets its neighbours so; in a table like a V one of them is this rank, which gloo cannot connect.
        return [op for op in super()._get_init_p2p_neighbors_ops() if op.peer != dist.get_rank()]

    @contextmanager
    def _doing(self, op: Op, micro_batch: int) -> Iterator[None]:
        # What the engine received is waited for by now: on gloo by the thread, on NCCL by the stream that is in use.
        # So on a GPU two events of that stream bound the action: a clock of the host would count that wait as work.
        action = Action(op, self.stage_index, self.order[micro_batch])
        try:
            with device_span(current_stream(self.device), self.lane, str(action), KINDS[op]):
                yield
        except Exception as error:
            told = f"in {action}: stage {action.stage}, {KINDS[op]} of micro-batch {action.micro_batch}"
            if type(error) is RuntimeError and error.__cause__ is not None:
                # in F, B and I the engine raises an error of its own about the layer's; in W it does not
                layers = error.__cause__
                layers.add_note(told)
                raise layers from layers.__cause__
            error.add_note(told)
            raise


def engine_for(schedule: Schedule, stages: list[EngineStage], loss_fn: Callable[[Tensor, Tensor], Tensor]) -> Any:
    """Return torch's schedule for a table: the public class that makes the same, else its runtime with this table."""
    m = schedule.micro_batches
    n = len(schedule.ranks)
    v = len(stages)
    for maker in MAKERS.values():
        if maker.torch_class is None or not hasattr(pipelining, maker.torch_class):
            continue
        engine = getattr(pipelining, maker.torch_class)
        with suppress(ValueError):  # numbers that one of the two does not take
            # torch's class does what our table says only if the table is its maker's, action for action
            if maker.table(m, n, v).compact().ranks == schedule.compact().ranks:
                if issubclass(engine, engines.PipelineScheduleSingle):
                    return engine(stages[0], m, loss_fn)
                return engine(stages, m, loss_fn)
    runtime: Any = engines._PipelineScheduleRuntime(stages, m, loss_fn)  # type: ignore[no-untyped-call]
    with tempfile.TemporaryDirectory() as folder:
        schedule.compact().to_csv(Path(folder) / "table.csv")
        runtime._load_csv(f"{folder}/table.csv")
    return runtime


# ---- the pipeline

SHORTER = "A shorter batch at the end of an epoch is left out by DataLoader(…, drop_last=True)"


class DistributedPipeline:
    """Train this process's stages of `module`, by its row of the table, together with the other ranks of the mesh.

        pipeline = DistributedPipeline(module, [2, 2], one_f_one_b(8, 2), loss_function, mesh=mesh)
        optimizer = SGD(pipeline.parameters(), lr=0.1)
        optimizer.zero_grad()
        loss = pipeline.step(inputs, targets)      # every rank of a replica gives the same batch; others, other rows
        optimizer.step()

    module: an nn.Sequential with the same weights on every rank; replica 0's are sent to the others. balance: layers a
    stage. mesh: dimension "pipeline", as long as the table has ranks, and if wanted "data", in either order.
    Every replica gives equally many rows, and loss_fn(output, target) is a mean over rows: then gradients are those of
    `module` on all rows together. Call zero_grad before each step: the engine scales what is there. device: of this
    rank; by default the current device of the mesh's kind.

    `stages`: this rank's, by number; their layers keep their names, so `state_dict()` is this rank's part of module's.
    `data_rank`, `replicas`: what a sampler is given as rank and world size. `first`, `last`: whether inputs and
    targets are needed here. `engine`: the schedule of torch.
    In a `with recorder:` each action is a span in lane "rank R" (R of all ranks), without the wait for its message.

    Raises TypeError, ValueError and BalanceError as GPipe does, ScheduleError for a table that can't run, ValueError if
    mesh, table and balance don't fit.
    """

    def __init__(
        self,
        module: nn.Sequential,
        balance: Sequence[int],
        schedule: Schedule,
        loss_fn: Callable[[Tensor, Tensor], Tensor],
        *,
        mesh: DeviceMesh,
        device: torch.device | str | None = None,
    ) -> None:
        verify_module(module)
        validate(schedule)
        _refuse_what_does_not_fit(module, balance, schedule, mesh)
        self.schedule = schedule
        self._splits = any(action.op == "W" for _, action in schedule)
        self._rows = 0  # of the first batch
        self._begun = False

        self.pipeline_rank = mesh.get_local_rank("pipeline")
        self.data_rank = 0
        self.replicas = 1
        self._group: dist.ProcessGroup | None = None  # of the replicas of this rank, if there are several
        if "data" in (mesh.mesh_dim_names or ()):
            self.data_rank = mesh.get_local_rank("data")
            self.replicas = mesh["data"].size()
            if self.replicas > 1:
                self._group = mesh["data"].get_group()
        self.device = with_index(torch.device(mesh.device_type)) if device is None else torch.device(device)

        last = schedule.stages - 1
        mine = sorted(stage for stage, rank in schedule.rank_of.items() if rank == self.pipeline_rank)
        self.first = 0 in mine
        self.last = last in mine
        ends = [0, *accumulate(balance)]
        self.stages = {stage: module[ends[stage] : ends[stage + 1]].to(self.device) for stage in mine}
        self._order = [i for _, (op, stage, i) in schedule if op == "F" and stage == last]  # 6 of the list above
        self._stages = []
        group = mesh["pipeline"].get_group()
        for stage, layers in self.stages.items():
            replicated = self._replicated(layers)
            engine_stage = EngineStage(replicated, stage, schedule.stages, self.device, group=group)
            engine_stage.order = self._order
            engine_stage.lane = f"rank {dist.get_rank()}"
            self._stages.append(engine_stage)
        self.engine = engine_for(_renumbered(schedule, self._order), self._stages, loss_fn)

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters of this rank's stages."""
        return (parameter for stage in self.stages.values() for parameter in stage.parameters())

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's part of the state dict of the whole module, under the same names."""
        return {name: value for stage in self.stages.values() for name, value in stage.state_dict().items()}

    def step(self, inputs: Tensor | None = None, targets: Tensor | None = None) -> Tensor | None:
        """Run one batch of this replica forward and backward; return its mean loss where the last stage is, else None.

        inputs are needed where stage 0 is, targets where the last one is. Raises ValueError for a batch that can't be
        cut into equal micro-batches or has other rows than the first one; what a layer raises, as it is.
        """
        if not self._begun:
            self._begun = True
            for stage in self._stages:
                stage.keep_buffers()
        losses: list[Tensor] = []
        given: dict[str, Any] = {}
        if self.last:
            given = {"target": self._checked("targets", targets), "losses": losses}
        with ExitStack() as quiet:
            for stage in self._stages:
                if isinstance(stage.submod, DistributedDataParallel):
                    quiet.enter_context(stage.submod.no_sync())
            if self.first:
                self.engine.step(self._checked("inputs", inputs), **given)
            else:
                self.engine.step(**given)
        if self._group is not None and self._splits:
            self._average(self._group)
        return torch.stack(losses).detach().mean() if losses else None

    def _checked(self, name: str, batch: object) -> Tensor:
        """Return a batch on the device, in the engine's order of micro-batches; raise for one that it doesn't take."""
        if not isinstance(batch, Tensor):
            raise TypeError(f"pipeline rank {self.pipeline_rank} needs {name}: a tensor, not {type(batch).__name__}")
        rows = len(batch)
        m = self.schedule.micro_batches
        if rows < m or rows % m:
            what = f"{rows} rows of {name} do not make {m} equal micro-batches, and torch's engine takes no others"
            raise ValueError(f"{what}: give a multiple of {m}. {SHORTER}")
        if self._rows not in (0, rows):
            what = f"{rows} rows of {name} after batches of {self._rows}"
            raise ValueError(f"{what}: torch's engine keeps the sizes of the first batch. {SHORTER}")
        self._rows = rows
        batch = batch.to(self.device)
        if self._order == list(range(m)):
            return batch
        parts = batch.chunk(m)
        return torch.cat([parts[i] for i in self._order])

    def _replicated(self, stage: nn.Module) -> nn.Module:
        """Return a stage with replica 0's weights, in DDP where DDP sees its gradients (3 of the list above)."""
        if self._group is None or not any(p.requires_grad for p in stage.parameters()):
            return stage
        if not self._splits:
            return DistributedDataParallel(stage, process_group=self._group)
        source = dist.get_global_rank(self._group, 0)
        for value in (*stage.parameters(), *stage.buffers()):
            dist.broadcast(value.detach(), source, group=self._group)
        return stage

    def _average(self, group: dist.ProcessGroup) -> None:
        """Put the mean over replicas in the place of this rank's gradients; all of them travel as one tensor."""
        gradients = [parameter.grad for parameter in self.parameters() if parameter.grad is not None]
        if not gradients:  # nor has this rank of any other replica
            return
        flat = torch.cat([gradient.flatten() for gradient in gradients]) / self.replicas
        dist.all_reduce(flat, group=group)
        means = torch.split(flat, [gradient.numel() for gradient in gradients])
        for gradient, mean in zip(gradients, means, strict=True):
            gradient.copy_(mean.view_as(gradient))


def _refuse_what_does_not_fit(
    module: nn.Sequential, balance: Sequence[int], schedule: Schedule, mesh: DeviceMesh
) -> None:
    """Raise BalanceError or ValueError, the same on every rank; before anything is sent."""
    if sum(balance) != len(module) or min(balance, default=0) < 1:
        raise BalanceError(f"balance {list(balance)} does not cut {len(module)} layers into stages of at least one")
    if schedule.stages != len(balance):
        cut = f"the balance {len(balance)}: {list(balance)}"
        raise ValueError(f"{schedule.name} has {schedule.stages} stages, {cut}")
    names = mesh.mesh_dim_names or ()
    if "pipeline" not in names or set(names) - {"pipeline", "data"}:
        raise ValueError(f'the dimensions of the mesh must be ("data", "pipeline") or ("pipeline",), not {names}')
    ranks = len(schedule.ranks)
    if mesh["pipeline"].size() != ranks:
        raise ValueError(
            f"{schedule.name} has {ranks} ranks, the mesh {mesh['pipeline'].size()} in its dimension "
            f'"pipeline": start replicas x {ranks} processes'
        )
    idle = [rank for rank in range(ranks) if not schedule.actions(rank)]
    if idle:
        raise ValueError(
            f"pipeline rank {idle[0]} has nothing to do in {schedule.name}, and torch's engine takes no such rank: "
            f"leave its row out, and start replicas x {ranks - len(idle)} processes"
        )
    splits = any(action.op == "W" for _, action in schedule)
    ends = [0, *accumulate(balance)]
    trained = [any(p.requires_grad for p in module[i:j].parameters()) for i, j in pairwise(ends)]
    if splits and any(trained) and not trained[0]:  # 5 of the list above
        raise ValueError(
            f"{schedule.name} splits the backward, and torch's engine loses gradients there if stage 0 has nothing "
            "to train: take a schedule with whole backwards (one_f_one_b), or give stage 0 the first layer to train"
        )


def _renumbered(schedule: Schedule, order: Sequence[int]) -> Schedule:
    """Return the table with the micro-batches numbered in this order: the k-th of it is k (6 of the list above)."""
    number = {i: k for k, i in enumerate(order)}
    rows: list[list[Action]] = [[] for _ in schedule.ranks]
    for rank, action in schedule:
        rows[rank].append(action._replace(micro_batch=number[action.micro_batch]))
    return Schedule(schedule.name, rows)
