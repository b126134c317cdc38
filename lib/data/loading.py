"""Where a batch's time goes: a dataset that writes down what its workers do, and an epoch that is recorded.

    hop        from -> to                              who does it in torch
    read       storage -> pageable host memory         a worker (`num_workers` of them)
    load       bytes -> tensors: decode, augment       the same worker
    pin        pageable -> pinned host memory          a thread of the main process (`pin_memory=True`)
    transfer   pinned host memory -> device            the GPU's copy engine (`.to(device, non_blocking=True)`)
    step       forward, backward, update               the trainer

`run_epoch` measures an epoch; `simulate_loading` (loading_model.py) predicts it: traces with the same lanes and labels.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

import torch
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, get_worker_info

from lib.data.loading_model import TRAINER, check_seconds, simulate_loading, simulate_path, worker_lane
from lib.timeline import Recorder, Span, Trace

__all__ = [
    "TRAINER",
    "TimedDataset",
    "costs",
    "moments",
    "prepare",
    "queue_depth",
    "run_epoch",
    "simulate_loading",
    "simulate_path",
]


def prepare(image: torch.Tensor, size: int = 64, detail: int = 1) -> torch.Tensor:
    """Enlarge a (1, h, w) image to (1, size, size) and turn it a little: real work for a core, as augmentation is.

    detail: enlarge to `detail` times the size first and average afterwards; the work grows with its square.
    The angle, -15° to 15°, follows from the pixels: it varies like a random one and every run gives the same picture.
    """
    angle = math.radians(float(image.sum() * 255) % 31 - 15)
    cos, sin = math.cos(angle), math.sin(angle)
    large = functional.interpolate(
        image[None], size=(detail * size,) * 2, mode="bicubic", align_corners=False
    )
    turn = torch.tensor([[[cos, -sin, 0.0], [sin, cos, 0.0]]])
    grid = functional.affine_grid(turn, list(large.shape), align_corners=False)
    turned = functional.grid_sample(large, grid, align_corners=False)
    return functional.avg_pool2d(turned, detail)[0].clamp_(0, 1)


class TimedDataset(Dataset[Any]):
    """Wrap a dataset and record what loading each batch takes, in the lane of the worker that does it.

    recorder: gets a span of kind "load" per batch, in lane "worker k", or "trainer" where the main process loads.
    latency: seconds that a simulated storage takes to answer the one request of a batch: a sleep, recorded as kind
    "read". Only this waiting is simulated; reading the files and preparing the images is done. Raises ValueError.
    """

    def __init__(self, dataset: Dataset[Any], recorder: Recorder, *, latency: float = 0.0) -> None:
        self.dataset, self.recorder, self.latency = dataset, recorder, check_seconds("latency", latency)

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return the items of one batch: torch's DataLoader asks for a whole batch where a dataset has this method."""
        info = get_worker_info()
        lane = TRAINER if info is None else worker_lane(info.id)
        if self.latency:
            with self.recorder.span(lane, "read", "read"):
                time.sleep(self.latency)
        with self.recorder.span(lane, "load", "load"):
            return [self.dataset[index] for index in indices]


def run_epoch(loader: DataLoader[Any], step: Callable[[Any], object], recorder: Recorder) -> Trace:
    """Train one epoch and return who did what when, from the call of `iter(loader)` to the end of the last step.

    The loader's dataset is a TimedDataset over the same recorder, which is cleared first. Batches are numbered by the
    rule that torch keeps: worker k of W loads batches k, k + W, k + 2 W, …
    """
    recorder.clear()
    asked = recorder.now()
    for number, batch in enumerate(loader):
        taken = recorder.now()
        if loader.num_workers:  # otherwise the trainer did not wait: it loaded
            recorder.add(TRAINER, f"wait {number}", asked, taken, "wait")
        step(batch)
        asked = recorder.now()
        recorder.add(TRAINER, f"step {number}", taken, asked, "step")
    lanes = (*map(worker_lane, range(loader.num_workers)), TRAINER)
    return Trace(_numbered(recorder.trace(), loader.num_workers), lanes)


def _numbered(trace: Trace, num_workers: int) -> Iterator[Span]:
    loaded: dict[tuple[str, str], int] = {}
    for span in trace:
        label = span.label
        if span.kind in ("read", "load"):
            turn = loaded[span.lane, span.kind] = loaded.get((span.lane, span.kind), -1) + 1
            worker = 0 if span.lane == TRAINER else int(span.lane.rpartition(" ")[2])
            label = f"{span.kind} {turn * max(num_workers, 1) + worker}"
        yield Span(span.lane, label, span.start, span.end, span.kind)


def costs(*traces: Trace) -> dict[str, float]:
    """Return the measured numbers that `simulate_loading` takes, as medians: seconds of "load", "waiting" and "step".

    traces: of `run_epoch`, without workers, so that nothing competes. Raises ValueError for traces without a step.
    """

    def middle(kind: str) -> float:
        return median([span.duration for trace in traces for span in trace.only(kind=kind)] or [0.0])

    if not middle("step"):
        raise ValueError("there is no step in these traces, so nothing was measured")
    waiting = middle("read")
    return {"load": waiting + middle("load"), "waiting": waiting, "step": middle("step")}


def moments(trace: Trace) -> dict[str, list[float]]:
    """Return when each batch was "asked" for and "taken" by the trainer, and when its loading "started" and "ended".

    trace: of `run_epoch` or `simulate_loading`, with workers or without.
    """
    spans = {(span.kind, int(span.label.rpartition(" ")[2])): span for span in trace}
    order = range(len(trace.only(kind="step")))
    return {
        "asked": [spans["step", batch - 1].end if batch else trace.start for batch in order],
        "taken": [(spans.get(("transfer", batch)) or spans["step", batch]).start for batch in order],
        "started": [(spans.get(("read", batch)) or spans["load", batch]).start for batch in order],
        "ended": [spans["load", batch].end for batch in order],
    }


def queue_depth(trace: Trace) -> list[tuple[float, int]]:
    """Return (time, number of batches that are loaded and not yet taken) at each change, from (start, 0) on."""
    at, depth = moments(trace), {trace.start: 0}
    changes = [(time, 1) for time in at["ended"]] + [(time, -1) for time in at["taken"]]
    level = 0
    for moment, change in sorted(changes):
        level += change
        depth[moment] = level
    return list(depth.items())
