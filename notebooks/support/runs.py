"""What two notebooks run: processes (00, 09), chunk sizes (07, 08), a study (06, 15), streams predicted (11, 13)."""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional as F

from lib.arguments import integer
from lib.data.meta import MetaFile
from lib.data.rank_dataset import RankDataset
from lib.data.samplers import DistributedSampler
from lib.measure import compare, measure
from lib.runtime.microbatch import gather, scatter
from lib.timeline import Recorder, Trace, Work, play
from support.digits import Digits
from support.recordings import measured_or_recorded, origin_of
from support.training import CAPTIONS, TinyClip

# ---- The same tasks in several processes, with a span for each (00, 09).

START_LIMIT = 60.0  # seconds for all processes to come up


def count() -> int:
    """Add numbers in a Python loop: work that holds the interpreter's lock from beginning to end."""
    total = 0
    for number in range(400_000):
        total += number
    return total


def run_in_processes(work: Callable[[], Any], processes: int, tasks: int = 8) -> Trace:
    """Run `tasks` times `work()` in new processes, process k taking tasks k, k + processes, …; returns the spans.

    work: a function that can be imported (a fresh process knows nothing that a notebook cell defined). All
    processes begin when the last is up, so their start-up time is in no span. Raises ValueError for counts below 1,
    RuntimeError if a process failed.
    """
    processes, tasks = integer("processes", processes, at_least=1), integer("tasks", tasks, at_least=1)
    context, recorder = multiprocessing.get_context("spawn"), Recorder()
    everyone_is_up = context.Barrier(processes)
    lanes = [
        context.Process(target=_lane, args=(work, k, processes, tasks, recorder, everyone_is_up), daemon=True)
        for k in range(processes)
    ]
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.join()
    failed = [f"process {k} (exit code {lane.exitcode})" for k, lane in enumerate(lanes) if lane.exitcode]
    if failed:
        raise RuntimeError(f"{', '.join(failed)} failed; its error is printed above or in the terminal")
    return recorder.trace()


def _lane(
    work: Callable[[], Any], k: int, processes: int, tasks: int, recorder: Recorder, everyone_is_up: Any
) -> None:
    everyone_is_up.wait(START_LIMIT)
    for task in range(k, tasks, processes):
        with recorder.span(f"process {k}", str(task)):
            work()


# ---- How fast a step is in micro-batches of several sizes, on a CPU or a GPU (07, 08).
#
# `python -m support.recordings chunk_speed_gpu`, on a GPU, writes notebooks/recorded/chunk_speed_gpu.json.


def chunk_speed(
    device: str = "cpu",
    *,
    rows: int = 512,
    width: int = 128,
    layers: int = 4,
    step: int = 2,
    repeats: int = 7,
    smallest: int = 1,
) -> dict[str, Any]:
    """Measure forward and backward of a mini-batch in micro-batches of rows, rows / step, … `smallest` rows.

    The gradient is that of the whole batch, for every size. Returns "size" and "rows_per_second" (lists), and the
    seconds of scatter into 8 and of gather of the same data ("scatter", "gather"). rows must be a multiple of each.
    """
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(*(part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())))
    model.to(device)
    x = torch.randn(rows, width, generator=generator).to(device)
    sizes = [rows]
    while sizes[-1] > smallest:
        sizes.append(max(smallest, sizes[-1] // step))
    steps: dict[str, Callable[[], None]] = {
        str(size): partial(_step, model, x, rows // size) for size in sizes
    }
    times = compare(steps, repeats=repeats, device=device)
    batches = scatter(x, min(8, rows))
    return {
        "device": torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else "CPU",
        "rows": rows,
        "width": width,
        "layers": layers,
        "size": sizes,
        # The fastest round of each: a busy machine adds time, and adds more to short steps; it never takes any away.
        "rows_per_second": [rows / min(times[str(size)].samples) for size in sizes],
        "scatter": measure(lambda: scatter(x, min(8, rows)), device=device).median,
        "gather": measure(lambda: gather(batches), device=device).median,
    }


def _step(model: nn.Module, x: torch.Tensor, chunks: int) -> None:
    for batch in scatter(x, chunks):
        part = batch.tensor
        (model(part).square().mean() * (len(part) / len(x))).backward()


def gpu_speed() -> dict[str, Any]:
    """Measure on the GPU with a model that is large enough to keep it busy."""
    return chunk_speed("cuda", rows=16384, width=1024, step=4, smallest=16)


def find_gpu_speed() -> tuple[dict[str, Any] | None, str]:
    """Return gpu_speed(), measured here or recorded, or None; and a note for the figure, "" if measured here."""
    data, source = measured_or_recorded("chunk_speed_gpu", gpu_speed)
    if data is None:
        return None, f"{source} (python -m support.recordings chunk_speed_gpu, on a GPU)."
    return data, origin_of(data) or ""


# ---- Does it cost accuracy that a rank sees only its own rows?
#
#     deal            dealt to W ranks and E mini-epochs by                 in the next epoch
#
#     full shuffle    DistributedSampler, from the order of all rows        anew
#     rank            RankDataset                                           anew
#     rank, once      RankDataset, then shuffled inside each part           as before
#     blocks          cutting the file into W · E, shuffled inside each     as before
#
# All ranks together do one step on W parts; as each sample's loss is its own, that step is the one of the
# whole batch. So the batches of W ranks are put together here and trained on in one process: the same steps,
# and no ranks to start. Equal seeds have equal first weights, so that deals can be compared in pairs.

Rows: TypeAlias = npt.NDArray[np.int64]
How: TypeAlias = Literal["full shuffle", "rank", "rank, once", "blocks"]


@dataclass(frozen=True)
class Deal:
    """A way to deal the rows: `how` of the table above, E, and whether the file is sorted by class first."""

    how: How
    mini_epochs: int = 1
    sorted_file: bool = False

    def __post_init__(self) -> None:
        if self.how not in get_args(How):
            raise ValueError(f"how must be one of {', '.join(get_args(How))}, not {self.how!r}")
        integer("mini_epochs", self.mini_epochs, at_least=1)
        if self.how == "full shuffle" and self.mini_epochs != 1:
            raise ValueError(f"a full shuffle has one mini-epoch, not {self.mini_epochs}")

    @property
    def name(self) -> str:
        """As it stands in a table: "rank, E = 8, sorted file"."""
        parts = "" if self.how == "full shuffle" else f", E = {self.mini_epochs}"
        return f"{self.how}{parts}{', sorted file' if self.sorted_file else ''}"


FULL = Deal("full shuffle")
DEALS = (FULL, Deal("rank", 1), Deal("rank", 4), Deal("rank", 8))
MISTAKES = (Deal("rank, once", 8), Deal("blocks", 8), Deal("blocks", 8, sorted_file=True))
REPAIRED = Deal("rank", 8, sorted_file=True)


@dataclass(frozen=True)
class Data:
    """The digits, decoded once: images (n, 1, 8, 8) and digits (n,), to train and to test on."""

    meta_file: MetaFile
    images: torch.Tensor
    digits: torch.Tensor
    test_images: torch.Tensor
    test_digits: torch.Tensor


def load_data(folder: str | Path = "data/digits") -> Data:
    """Decode all images of a folder that write_digits made."""

    def stacked(split: str) -> tuple[torch.Tensor, torch.Tensor]:
        dataset = Digits(folder, split)
        images, digits = zip(*(dataset[i] for i in range(len(dataset))), strict=True)
        return torch.stack(images), torch.tensor(digits)

    return Data(MetaFile(Path(folder) / "train.txt"), *stacked("train"), *stacked("test"))


def parts(deal: Deal, data: Data, epoch: int, seed: int = 0, world_size: int = 2) -> Iterator[Rows]:
    """Yield the rows of each mini-epoch in the order in which all ranks together train on them; each row once."""
    size, done = len(data.meta_file), 0
    file = np.argsort(data.digits.numpy(), kind="stable") if deal.sorted_file else np.arange(size)
    random = np.random.default_rng((seed, epoch))
    for shares in _shares(deal, data.meta_file, epoch, seed, world_size):
        # the head that is repeated so that all ranks have equally many does not count, as in 06_train.py
        rows = _in_turns(shares)[: size - done]
        if deal.how in ("rank, once", "blocks"):
            rows = _in_turns([random.permutation(rows[rank::world_size]) for rank in range(world_size)])
        done += len(rows)
        yield file[rows]


def _shares(deal: Deal, meta: MetaFile, epoch: int, seed: int, world_size: int) -> Iterator[list[Rows]]:
    """Yield the rows of each mini-epoch by rank."""
    ranks = range(world_size)
    if deal.how == "full shuffle":
        samplers = [DistributedSampler(range(len(meta)), world_size, rank, seed=seed) for rank in ranks]
        for sampler in samplers:
            sampler.set_epoch(epoch)
        yield [np.array([*sampler]) for sampler in samplers]
    elif deal.how == "blocks":  # rank r has E in a row
        blocks = np.array_split(np.arange(len(meta)), world_size * deal.mini_epochs)
        for mini_epoch in range(deal.mini_epochs):
            yield [blocks[rank * deal.mini_epochs + mini_epoch] for rank in ranks]
    else:
        datasets = [RankDataset(meta, world_size, rank, seed, mini_epochs=deal.mini_epochs) for rank in ranks]
        for dataset in datasets:
            dataset.set_epoch(epoch if deal.how == "rank" else 0)
        for mini_epoch in range(deal.mini_epochs):
            yield [np.concatenate([*dataset.ids(mini_epoch)]) for dataset in datasets]


def _in_turns(shares: Sequence[Rows]) -> Rows:
    """Return the rows of all ranks in turns: first of each, second of each, …"""
    turns = max(map(len, shares))
    return np.array([share[turn] for turn in range(turns) for share in shares if turn < len(share)], np.int64)


def train(
    deal: Deal,
    data: Data,
    seed: int = 0,
    *,
    epochs: int = 8,
    world_size: int = 2,
    batch_size: int = 64,
    learning_rate: float = 0.005,
) -> dict[str, float]:
    """Train once and return {"accuracy": on the test rows, "loss": mean over the training rows, afterwards}."""
    model = TinyClip(seed=seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate, fused=True)
    for epoch in range(epochs):
        for rows in parts(deal, data, epoch, seed, world_size):
            for batch in torch.split(torch.from_numpy(rows), batch_size):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(data.images[batch], CAPTIONS), data.digits[batch])
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
    with torch.no_grad():
        loss = F.cross_entropy(model(data.images, CAPTIONS), data.digits)
        right = model(data.test_images, CAPTIONS).argmax(dim=1) == data.test_digits
    return {"accuracy": right.float().mean().item(), "loss": loss.item()}


def study(
    data: Data,
    seeds: Iterable[int] = range(3),
    deals: Sequence[Deal] = DEALS,
    *,
    on_result: Callable[[Deal, int, Mapping[str, float]], object] = lambda *_: None,
    **arguments: Any,
) -> dict[str, list[dict[str, float]]]:
    """Train every deal with every seed, on one thread; return the results by name of the deal, in order of seeds."""
    threads = torch.get_num_threads()
    results: dict[str, list[dict[str, float]]] = {deal.name: [] for deal in deals}
    torch.set_num_threads(1)
    try:
        for seed in seeds:
            for deal in deals:
                result = train(deal, data, seed, **arguments)
                results[deal.name].append(result)
                on_result(deal, seed, result)
    finally:
        torch.set_num_threads(threads)
    return results


# ---- What streams can hide, predicted from the seconds of copies and computing (11, 13).

COPY_IN, COMPUTE, COPY_OUT = LANES = ("copy in", "compute", "copy out")


def predict_chunks(
    chunks: int,
    copy_in: float,
    compute: float,
    copy_out: float,
    *,
    depth: int = 2,
    overhead: float = 0.0,
    launch: float = 0.0,
    rows: int | None = None,
) -> Trace:
    """Predict a StreamPipeline: lanes "copy in", "compute", "copy out", spans C0 F0 D0, C1 F1 D1, …

    copy_in, compute, copy_out: seconds of the whole tensor; a chunk takes its share of them, by its rows if `rows` are
    given, and `overhead` seconds on top in each lane: what an operation costs the device however small it is. launch:
    seconds in which the host launches a chunk's three; it runs ahead, so they are hidden until they are the limit. The
    waits are those of `StreamPipeline`, [1] to [4]. Not in the model: copies that slow each other or the computing.
    Raises ValueError.
    """
    chunks, depth = integer("chunks", chunks, at_least=1), integer("depth", depth, at_least=1)
    if rows is not None:
        chunks = min(chunks, integer("rows", rows, at_least=1))
    seconds = [_seconds(*pair) for pair in zip(LANES, (copy_in, compute, copy_out), strict=True)]
    overhead, launch = _seconds("overhead", overhead), _seconds("launch", launch)
    tasks = []
    for i in range(chunks):
        share = 1 / chunks if rows is None else (rows // chunks + (i < rows % chunks)) / rows
        into, work, out = (part * share + overhead for part in seconds)
        read, fetched = ([f"{letter}{i - depth}"] if i >= depth else [] for letter in "FD")
        tasks += [
            Work("host", f"launch {i}", launch),  # and on to the next: the host waits for nothing
            Work(COPY_IN, f"C{i}", into, [f"launch {i}", *read], "copy"),  # [2] the buffer has been read
            Work(
                COMPUTE, f"F{i}", work, [f"C{i}", *fetched]
            ),  # [1] the data are there, [4] that result was fetched
            Work(COPY_OUT, f"D{i}", out, [f"F{i}"], "copy"),  # [3] the result is there
        ]
    return play(tasks, LANES).only(lane=LANES)


def predict_prefetch(
    batches: int, copy: float, compute: float, *, depth: int = 2, ahead: bool = True
) -> Trace:
    """Predict a DevicePrefetcher: lanes "copy" and "compute"; ahead=False for copies on the computing stream.

    copy, compute: seconds of a batch. The host takes no time here, and the loader always has a batch. Raises
    ValueError.
    """
    batches, depth = integer("batches", batches, at_least=1), integer("depth", depth, at_least=1)
    copy, compute = _seconds("copy", copy), _seconds("compute", compute)
    tasks = []
    for i in range(batches):
        # ahead: the host launches copy i once computation i - 2 · depth is done, the last it waited for
        before = i - (2 * depth if ahead else 1)
        tasks.append(Work("copy", f"C{i}", copy, [f"F{before}"] if before >= 0 else [], "copy"))
        tasks.append(Work("compute", f"F{i}", compute, [f"C{i}"]))
    return play(tasks, ("copy", "compute"))


def best_chunks(
    copy_in: float, compute: float, copy_out: float, overhead: float, *, depth: int = 2, most: int = 64
) -> int:
    """Return the number of chunks, 1 to `most`, with the shortest predicted time; the smallest of equals."""
    times: Sequence[float] = [
        predict_chunks(chunks, copy_in, compute, copy_out, depth=depth, overhead=overhead).makespan
        for chunks in range(1, integer("most", most, at_least=1) + 1)
    ]
    least = min(times)
    return 1 + next(k for k, time in enumerate(times) if time <= least * (1 + 1e-12))


def _seconds(name: str, value: float) -> float:
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} must be a number of seconds, 0 or more, not {value!r}")
    return float(value)
