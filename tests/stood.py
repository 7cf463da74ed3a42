# SPDX-License-Identifier: Apache-2.0
"""A machine that stood still when a test says so."""

from __future__ import annotations

from dsv41_rehearse.drills.timed import Window


MS = 1_000_000


class Stood:
    """A machine that stood still at these times (ms, from and to)."""

    def __init__(self, *stalls: tuple[float, float]) -> None:
        self._stalls = stalls

    def longest_ms(self, window: Window | None = None) -> float:
        since, until = (0.0, 1e12) if window is None else (window.since_ns / MS, window.until_ns / MS)
        return max((min(end, until) - max(begin, since) for begin, end in self._stalls), default=0.0)

    def summed_ms(self, window: Window | None = None) -> float:
        since, until = (0.0, 1e12) if window is None else (window.since_ns / MS, window.until_ns / MS)
        return sum(max(0.0, min(end, until) - max(begin, since)) for begin, end in self._stalls)
