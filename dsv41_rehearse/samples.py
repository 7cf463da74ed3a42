# SPDX-License-Identifier: Apache-2.0
"""Samples of one quantity, and what is said of them."""

from __future__ import annotations

import statistics

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Spread:
    """
    Percentiles of ``n`` samples, in the unit of the samples; all None where there are none.

    ``batch``: mean requests a step, where the quantity depends on it.
    """

    n: int
    p50: float | None
    p99: float | None
    max: float | None
    mean: float | None
    batch: float | None = None

    def __str__(self) -> str:
        if self.p50 is None or self.p99 is None or self.max is None:
            return "no samples"
        return f"p50 {short(self.p50)}, p99 {short(self.p99)}, max {short(self.max)}"


@dataclass(frozen=True)
class Few:
    """What is said of a handful of samples; all None where there are none."""

    n: int
    min: float | None
    p50: float | None
    max: float | None

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Few:
        """Return what is said of those that are there."""
        there = sorted(value for value in values if value is not None)
        if not there:
            return cls(0, None, None, None)
        return cls(len(there), round(there[0], 3), round(statistics.median(there), 3), round(there[-1], 3))

    def __str__(self) -> str:
        if self.min is None or self.p50 is None or self.max is None:
            return "none"
        return short(self.max) if self.n == 1 else f"{short(self.min)} to {short(self.max)}, median {short(self.p50)}"


def short(value: float) -> str:
    """Return a number as people like to read it: three digits, or the whole ones where there are more."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


class Samples:
    """A growing list of numbers, 8 bytes each."""

    def __init__(self) -> None:
        self.values: array[float] = array("d")

    def __len__(self) -> int:
        return len(self.values)

    def add(self, value: float) -> None:
        """Append one."""
        self.values.append(value)

    def percentile(self, percent: float) -> float | None:
        """Return a percentile, None without samples."""
        return round(float(np.percentile(self.values, percent)), 3) if self.values else None

    def spread(self, batch: float | None = None) -> Spread:
        """Return what is said of them."""
        if not self.values:
            return Spread(0, None, None, None, None, batch)
        values: np.ndarray[Any, np.dtype[np.float64]] = np.frombuffer(self.values, np.float64)
        p50, p99 = np.percentile(values, [50, 99])
        return Spread(
            len(values), round(float(p50), 3), round(float(p99), 3), round(float(values.max()), 3),
            round(float(values.mean()), 3), batch,
        )  # fmt: skip
