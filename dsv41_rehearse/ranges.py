# SPDX-License-Identifier: Apache-2.0
"""Numbers on the command line."""

from __future__ import annotations

import argparse
import math

from collections.abc import Callable


def within(kind: type[int | float], low: float, high: float) -> Callable[[str], float]:
    """Return a converter for argparse that refuses what is out of bounds, and NaN with it."""

    def convert(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {_plain(low)} to {_plain(high)}")
        return value

    return convert


def _plain(bound: float) -> str:
    """Return a bound as it would be typed: 4294967295, not 4.29e+09."""
    return str(int(bound)) if bound == int(bound) else str(bound)
