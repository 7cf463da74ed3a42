# SPDX-License-Identifier: Apache-2.0
"""Accepted drafts over time, in buckets that are fine while the run goes on and as many as people can look at after it."""

from __future__ import annotations

from collections import defaultdict
from typing import Final


FINE_NS: Final = 20_000_000
MAX_BUCKETS: Final = 240


class Timeline:
    """Time is CLOCK_MONOTONIC, ns."""

    def __init__(self, began_ns: int) -> None:
        self.began_ns = began_ns
        self._accepted: defaultdict[int, int] = defaultdict(int)
        self._verified: defaultdict[int, int] = defaultdict(int)

    def add(self, now_ns: int, accepted: int, verified: int) -> None:
        """Add what a step accepted in so many verified request steps."""
        bucket = (now_ns - self.began_ns) // FINE_NS
        self._accepted[bucket] += accepted
        self._verified[bucket] += verified

    def seconds(self, ns: int | None) -> float | None:
        """Return a moment of this clock as seconds of the run."""
        return None if ns is None else round((ns - self.began_ns) / 1e9, 4)

    def series(self, buckets: int = MAX_BUCKETS) -> list[tuple[float, float]]:
        """Return (seconds, accepted drafts a verified request step) of each bucket in which anything was verified."""
        if not self._verified:
            return []
        width = max(self._verified) // buckets + 1
        accepted: defaultdict[int, int] = defaultdict(int)
        verified: defaultdict[int, int] = defaultdict(int)
        for bucket, count in self._verified.items():
            accepted[bucket // width] += self._accepted[bucket]
            verified[bucket // width] += count
        scale = width * FINE_NS / 1e9
        return [
            (round((one + 0.5) * scale, 3), round(accepted[one] / verified[one], 4))
            for one in sorted(verified)
            if verified[one]
        ]
