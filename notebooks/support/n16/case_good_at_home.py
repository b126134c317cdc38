"""Case 4 of notebook 16: an epoch that is told to the dataset, and not to the workers' copies of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler, get_worker_info

from lib.text import plural
from support.kit.mistakes import edited
from support.n16.casebook import case, unfinished, with_evidence
from support.n16.rank import Stand
from support.n16.series import by_lines_of
from support.n16.warm import on_ranks

# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="arg-type, type-arg, var-annotated"
# ruff: noqa: D103


def job_4(dist, rows, epochs, first_epoch, workers):
    class Noisy(Dataset):  # the noise depends on epoch and row alone
        epoch = torch.zeros((), dtype=torch.int64).share_memory_()

        def set_epoch(self, epoch):
            self.epoch.fill_(epoch)

        def __len__(self):
            return len(rows)

        def __getitem__(self, index):
            random = torch.Generator().manual_seed(int(self.epoch) * len(rows) + index)
            return index, rows[index] + torch.randn(rows[index].shape, generator=random)

    dataset = Noisy()
    sampler = DistributedSampler(dataset, seed=5)
    loader = DataLoader(dataset, 4, sampler=sampler, num_workers=workers, persistent_workers=workers > 0)
    seen = []
    for epoch in range(first_epoch, epochs):
        sampler.set_epoch(epoch)
        dataset.set_epoch(epoch)
        for numbers, pictures in loader:
            seen += [(epoch, int(row), x.tolist()) for row, x in zip(numbers, pictures, strict=True)]
    return seen


_SHARED = (
    "epoch = torch.zeros((), dtype=torch.int64).share_memory_()",
    "epoch = 0",
    "self.epoch.fill_(epoch)",
    "self.epoch = epoch",
    "int(self.epoch)",
    "self.epoch",
)


def sick_4():
    """Return the job as the notebook has it."""
    return edited(job_4, *zip(_SHARED[::2], _SHARED[1::2], strict=True))


#: Workers are started with each start of the job, and know the epoch in which that was: 0, 10 and 20.
FORECAST_4 = 3


class ReadsNoted:
    """Rows that note how many the trainer's own process has read, how many workers there are, and which have read."""

    def __init__(self, rows: Any, noted: Tensor | None = None) -> None:
        self.rows = rows
        #: By the trainer, workers, and 1 for each of them that has read.
        self.noted = torch.zeros(64, dtype=torch.int64).share_memory_() if noted is None else noted

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        worker = get_worker_info()
        if worker is None:
            self.noted[0] += 1
        else:
            self.noted[1] = worker.num_workers
            self.noted[2 + worker.id] = 1
        return self.rows[index]

    def __getattr__(self, asked: str) -> Any:
        found = getattr(self.rows, asked)
        return (lambda *given, **named: self.same(found(*given, **named))) if callable(found) else found

    def same(self, found: Any) -> Any:
        """Return what is the same rows in the same memory, as share_memory_() and numpy(), with reads noted, too."""
        if getattr(found, "shape", None) != self.rows.shape:
            return found
        where = torch.as_tensor(self.rows).data_ptr()
        return ReadsNoted(found, self.noted) if torch.as_tensor(found).data_ptr() == where else found


def with_reads_noted(dist, rows, workers, **given):
    rows = ReadsNoted(rows)
    seen = job_4(dist, rows, workers=workers, **given)
    by_trainer, at_work, *readers = rows.noted.tolist()
    return seen, by_trainer, at_work, sum(readers)


#: Ranks, rows, epochs, the first of them, workers.
TRIALS = ((2, 12, 6, 3, 2), (1, 9, 6, 4, 1), (2, 10, 2, 0, 0), (3, 14, 2, 0, 1))


def fault_of_4(job: Callable[..., Any]) -> str:
    """Run it with each of the trials; each row of each epoch must have the noise of that epoch."""
    named = edited(job, (f"def {job.__name__}(", "def job_4(")) if job.__name__ != "job_4" else job
    for world, count, epochs, first, workers in TRIALS:
        rows = torch.randn(count, 3, generator=torch.Generator().manual_seed(count))
        where = (
            f"on {plural(world, 'rank')} with {plural(workers, 'worker')} each, {count} rows and epochs {first} to "
            f"{epochs - 1}"
        )
        given = {"rows": rows, "epochs": epochs, "first_epoch": first, "workers": workers}
        found = on_ranks(with_reads_noted, world, given, named, ReadsNoted)
        stands = [by_lines_of(named, stand) for stand in found]
        said = unfinished(where, stands) or _fault_of_views(
            where, stands, rows, range(first, epochs), workers
        )
        if said:
            return with_evidence(said, stands)
    return ""


def _fault_of_views(where: str, stands: list[Stand], rows: Tensor, epochs: range, workers: int) -> str:
    world = len(stands)
    for rank, (seen, by_trainer, at_work, readers) in enumerate(stand.value for stand in stands):
        if not isinstance(seen, list):
            return f"{where} the job returned {seen!r}; it should return what it has seen, as before."
        said = _fault_of_reads(rank, by_trainer, at_work, workers)
        if said:
            return f"{where} {said}"
        for epoch, number, picture in seen:
            if (rows[number] + noise(epoch, number, len(rows))).sub(torch.tensor(picture)).abs().max() < 1e-6:
                continue
            others = [e for e in range(50) if _is_of(e, number, rows, picture)]
            whose = f" but that of epoch {others[0]}" if others else ""
            return f"{where}, in epoch {epoch}, row {number} has a noise that is not its own{whose}."
        for epoch in epochs:
            if [number for at, number, _ in seen if at == epoch] != order(epoch, rank, world, len(rows)):
                return (
                    f"{where}, in epoch {epoch}, rank {rank} has other rows, or another order, than before."
                )
        others = sorted({epoch for epoch, *_ in seen} - {*epochs})
        if others:
            return f"{where} rank {rank} has seen rows in another epoch, too: {', '.join(map(str, others))}."
        if readers != workers:
            return f"{where} on rank {rank} only {readers} of {workers} workers read `rows`."
    return ""


def _fault_of_reads(rank: int, by_trainer: int, at_work: int, workers: int) -> str:
    if workers and by_trainer:
        beside = "beside its workers" if at_work else "and no worker touches what it was given"
        return f"the trainer of rank {rank} reads {by_trainer} rows itself, {beside}."
    if workers and not at_work:
        return f"nobody on rank {rank} has read `rows` by its index."
    if at_work != workers:
        return f"the loader of rank {rank} has {plural(at_work, 'worker')}, where it is given {workers}."
    return ""


def noise(epoch: int, number: int, count: int) -> Tensor:
    """Return the noise of one of so many rows in an epoch."""
    return torch.randn(3, generator=torch.Generator().manual_seed(epoch * count + number))


def order(epoch: int, rank: int, world: int, count: int) -> list[int]:
    """Return the rows of a rank in an epoch."""
    sampler: Any = DistributedSampler(range(count), world, rank, seed=5)
    sampler.set_epoch(epoch)
    return list(sampler)


def _is_of(epoch: int, number: int, rows: Tensor, picture: list[float]) -> bool:
    return bool(
        (rows[number] + noise(epoch, number, len(rows))).sub(torch.tensor(picture)).abs().max() < 1e-6
    )


check_job_4 = case(
    4,
    job_4,
    FORECAST_4,
    fault_of_4,
    "each row has the noise of its epoch, for any number of ranks and workers, and workers do the reading.",
    {
        "Each worker reads from its own copy of the dataset, and in the copy the epoch is still the first.": sick_4(),
        "Then the trainer does all the reading.": edited(
            sick_4(), ("num_workers=workers, persistent_workers=workers > 0", "num_workers=0")
        ),
        "A random number of the worker is another in every run: the noise is to depend on epoch and row alone.": edited(
            sick_4(),
            (
                "torch.Generator().manual_seed(self.epoch * len(rows) + index)",
                "torch.Generator().manual_seed(torch.initial_seed() % 2**40)",
            ),
        ),
        "Without set_epoch the sampler deals the same order in each epoch.": edited(
            job_4, ("        sampler.set_epoch(epoch)\n", "")
        ),
    },
    {
        "That is what it should be.": 30,
        "A restart starts workers anew.": 1,
        "Two restarts, and the first start.": 2,
        "Workers of one start have copies of the same epoch.": 6,
    },
)
"""Case 4: (job_4, forecast_4)."""
