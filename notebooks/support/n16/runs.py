"""What notebook 16 computes of accuracies: pairs of equal seeds, compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class DealCompared:
    """Mean and standard deviation over seeds; mean difference to the first, and its 95 % interval, low to high."""

    name: str
    mean: float
    deviation: float
    difference: float
    low: float
    high: float
    sure: bool = True
    """Whether zero is left out by the wider intervals, too, that hold for all comparisons together (Bonferroni)."""

    @property
    def settled(self) -> bool:
        """Whether the interval leaves out zero; if not, whatever difference there is lies within it."""
        return self.low > 0 or self.high < 0


def against_first(
    results: Mapping[str, Sequence[Mapping[str, float]]], what: str = "accuracy"
) -> list[DealCompared]:
    """Compare everything with the first, seed by seed: result i of each is of the same seed.

    The interval is that of Student's t for paired differences. Raises ValueError for less than two seeds, or not the
    same number of them everywhere.
    """
    columns = {name: np.array([row[what] for row in rows]) for name, rows in results.items()}
    counts = {name: len(column) for name, column in columns.items()}
    if len(set(counts.values())) > 1:
        raise ValueError(f"pairs need the same seeds everywhere, but there are {counts}")
    if min(counts.values(), default=0) < 2:
        raise ValueError("one seed says nothing about the spread; take two or more")
    first = next(iter(columns.values()))
    return [_comparison(name, column, column - first, len(columns) - 1) for name, column in columns.items()]


def _comparison(
    name: str, values: npt.NDArray[np.float64], differences: npt.NDArray[np.float64], among: int
) -> DealCompared:
    error = float(differences.std(ddof=1)) / len(values) ** 0.5
    freedom = len(values) - 1
    mean = float(differences.mean())
    half = t_point(freedom) * error
    sure = abs(mean) > t_point(freedom, among) * error
    low = mean - half
    high = mean + half
    return DealCompared(name, float(values.mean()), float(values.std(ddof=1)), mean, low, high, sure)


def t_point(freedom: int, among: int = 1) -> float:
    """Return the point of Student's t for 95 % intervals; among: that so many hold together."""
    from scipy import stats  # takes a second, which only who compares should wait for

    return float(stats.t.ppf(1 - 0.025 / max(1, among), freedom))
