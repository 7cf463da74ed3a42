# SPDX-License-Identifier: Apache-2.0
"""Accepted drafts over time, in buckets that are fine while the run goes on and as many as people can look at after it."""

from __future__ import annotations

from array import array
from typing import Final


FINE_NS: Final = 20_000_000
MAX_BUCKETS: Final = 240


class Timeline:
    """Time is CLOCK_MONOTONIC, ns."""

    def __init__(self, began_ns: int) -> None:
        self.began_ns = began_ns
        self._accepted: array[int] = array("Q")
        self._verified: array[int] = array("Q")

    def add(self, now_ns: int, accepted: int, verified: int) -> None:
        """Add what a step accepted in so many verified request steps."""
        bucket = (now_ns - self.began_ns) // FINE_NS
        if (missing := bucket + 1 - len(self._verified)) > 0:
            nothing = array("Q", [0]) * missing
            self._accepted.extend(nothing)
            self._verified.extend(nothing)
        self._accepted[bucket] += accepted
        self._verified[bucket] += verified

    def seconds(self, ns: int | None) -> float | None:
        """Return a moment of this clock as seconds of the run."""
        return None if ns is None else round((ns - self.began_ns) / 1e9, 4)

    def series(self, buckets: int = MAX_BUCKETS) -> list[tuple[float, float]]:
        """Return (seconds, accepted drafts a verified request step) of each bucket in which anything was verified."""
        if not any(self._verified):
            return []
        width = (len(self._verified) - 1) // buckets + 1
        scale = width * FINE_NS / 1e9
        found = []
        for at in range(0, len(self._verified), width):
            accepted, verified = sum(self._accepted[at : at + width]), sum(self._verified[at : at + width])
            if verified:
                found.append((round((at / width + 0.5) * scale, 3), round(accepted / verified, 4)))
        return found
