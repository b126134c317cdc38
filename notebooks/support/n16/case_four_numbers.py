"""Case 2 of notebook 16: an evaluation that counts the rows by which a sampler has evened out the shares."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lib.text import plural
from support.kit.mistakes import edited
from support.n16.casebook import case, scalar_of, unfinished, with_evidence
from support.n16.rank import Stand
from support.n16.series import ends_of_trials

# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="arg-type, var-annotated"
# ruff: noqa: D103


def job_2(dist, model, rows, labels, batch_size):
    dataset = list(zip(rows, labels, strict=True))
    sampler = range(dist.get_rank(), len(dataset), dist.get_world_size())
    loader = DataLoader(dataset, batch_size, sampler=sampler)
    model.eval()
    right = torch.zeros((), dtype=torch.float64)
    seen = torch.zeros((), dtype=torch.float64)
    with torch.no_grad():
        for inputs, target in loader:
            right += (model(inputs).argmax(dim=1) == target).sum()
            seen += len(target)
    print(f"right {right:.0f} of {seen:.0f}")
    dist.all_reduce(right)
    dist.all_reduce(seen)
    return (right / seen).item()


_DEALT = (
    "range(dist.get_rank(), len(dataset), dist.get_world_size())",
    "DistributedSampler(dataset, shuffle=False)",
)


def sick_2():
    """Return the job as the notebook has it."""
    return edited(job_2, _DEALT)


#: 1,000 rows on 64 ranks are dealt as 1,024, and the first 24, which are wrong, count twice.
FORECAST_2 = 900 / 1024


class RowsCounted(nn.Linear):
    """A linear layer that counts the rows that it has seen."""

    rows = 0

    def forward(self, x: Tensor) -> Tensor:
        """Count, and compute."""
        self.rows += x.numel() // x.shape[-1]  # a row may come alone, without a batch around it
        return super().forward(x)


def with_evaluated_rows(dist, name, weight, rows, labels, batch_size):
    counted = RowsCounted(rows.shape[1], len(weight), bias=False)
    counted.weight.data = weight
    model = nn.Sequential(nn.Dropout(0.5), counted)  # it computes something else in training
    return globals()[name](dist, model, rows, labels, batch_size), counted.rows


#: Ranks: rows, batch size. Two trials of each, since many a wrong accuracy is also that of another mistake.
TRIALS = {2: [(11, 4), (31, 8)], 4: [(10, 3), (3, 2), (37, 5)], 3: [(9, 2), (31, 8)], 1: [(7, 3)]}


def drawn_2(count: int) -> dict[str, Tensor]:
    """Return weights of three classes, rows, and labels of which two in three are right; some rows come again."""
    random = torch.Generator().manual_seed(count)
    which = torch.arange(count) % -(-2 * count // 3)  # the last third is the first ones again
    rows = torch.randn(count, 4, generator=random)[which]
    weight = torch.randn(3, 4, generator=random)
    labels = (rows @ weight.T).argmax(1)
    wrong = which % 3 == 0
    return {"weight": weight, "rows": rows, "labels": torch.where(wrong, (labels + 1) % 3, labels)}


def fault_of_2(job: Callable[..., Any]) -> str:
    """Run it with each of the trials; every rank must say what one process says, and share the work."""
    name = job.__code__.co_name
    for world, settings in TRIALS.items():
        trials = [{"name": name, **drawn_2(count), "batch_size": size} for count, size in settings]
        found = ends_of_trials(with_evaluated_rows, world, trials, job, RowsCounted)
        for (count, size), stands in zip(settings, found, strict=False):
            where = f"on {plural(world, 'rank')} with {count} rows and batches of {size}"
            said = unfinished(where, stands) or _fault_of_answers(where, stands, count)
            if said:
                return with_evidence(said, found)
    return ""


def _fault_of_answers(where: str, stands: list[Stand], count: int) -> str:
    data = drawn_2(count)
    due = ((data["rows"] @ data["weight"].T).argmax(1) == data["labels"]).double().mean().item()
    most = -(-count // len(stands))
    for rank, (given, rows) in enumerate(stand.value for stand in stands):
        got = scalar_of(given)
        if not isinstance(got, Real) or not abs(float(got) - due) < 1e-6:
            digits = 8 if isinstance(got, float) and f"{got:.4f}" == f"{due:.4f}" else 4
            shown = f"{got:.{digits}f}" if isinstance(got, float) else repr(got)
            return f"{where} rank {rank} says {shown}; one process says {due:.{digits}f}."
        if rows > most:
            return f"{where} rank {rank} runs {rows} rows through the model, more than its share of {most}."
    return ""


check_job_2 = case(
    2,
    job_2,
    FORECAST_2,
    fault_of_2,
    "every rank says what one process says, however many ranks there are, and the work is shared.",
    {
        "Rows that were dealt twice count twice.": sick_2(),
        "Dropping rows is as wrong as dealing some twice: each row counts once.": edited(
            sick_2(), ("shuffle=False", "shuffle=False, drop_last=True")
        ),
        "A mean of the ranks' shares gives a row of a small share more weight.": edited(
            job_2,
            (
                "    dist.all_reduce(right)\n    dist.all_reduce(seen)\n",
                "    share = right / seen\n    dist.all_reduce(share)\n",
            ),
            ("(right / seen).item()", "(share / dist.get_world_size()).item()"),
        ),
        "Rows are counted right, and the right answers among them still twice.": edited(
            sick_2(), ("return (right / seen).item()", "return (right / len(dataset)).item()")
        ),
        "Then each rank does the work of all.": edited(
            job_2,
            ("range(dist.get_rank(), len(dataset), dist.get_world_size())", "range(len(dataset))"),
        ),
        "In training a model computes something else: dropout is at work.": edited(
            job_2, ("model.eval()", "model.train()")
        ),
        "Two equal rows are two rows: tell them apart by their numbers.": edited(
            job_2,
            (
                "            right += (model(inputs).argmax(dim=1) == target).sum()\n            seen += len(target)\n",
                "            hits = (model(inputs).argmax(dim=1) == target).tolist()\n"
                "            mine += zip(map(tuple, inputs.tolist()), target.tolist(), hits, strict=True)\n",
            ),
            ("    model.eval()\n", "    model.eval()\n    mine = []\n"),
            (
                "    dist.all_reduce(right)\n    dist.all_reduce(seen)\n",
                "    of_all = [None] * dist.get_world_size()\n"
                "    dist.all_gather_object(of_all, mine)\n"
                "    different = {row for part in of_all for row in part}\n"
                "    right = torch.tensor(float(sum(hit for *_, hit in different)))\n"
                "    seen = len(different)\n",
            ),
            ('    print(f"right {right:.0f} of {seen:.0f}")\n', ""),
        ),
        "Only rank 0 has the sum; the others are asked, too.": edited(
            job_2,
            ("dist.all_reduce(right)", "dist.reduce(right, 0)"),
            ("dist.all_reduce(seen)", "dist.reduce(seen, 0)"),
        ),
        "That is this rank's own share.": edited(
            job_2, ("    dist.all_reduce(right)\n    dist.all_reduce(seen)\n", "")
        ),
    },
    {
        "That is what it should return.": 0.9,
        "Are the rows that it counts twice right ones or wrong ones?": 924 / 1024,
        "It divides by the rows that it has counted.": 0.876,
    },
)
"""Case 2: (job_2, forecast_2)."""
