# SPDX-License-Identifier: Apache-2.0
"""Python work of an engine's thread: it stands for a scheduler, a detokenizer, a sampler's metadata, and holds the interpreter lock."""

from __future__ import annotations

import time

from typing import Final


PROBE: Final = 100_000  # turns by which it is fitted first
FITS: Final = 3
TRIES: Final = 7


class Busy:
    """
    About ``ms`` of pure Python: a number of turns fixed once, on an interpreter that nobody else wants; what takes the lock away adds to it.

    ``ms`` afterwards: what it takes, measured; 0: nothing is done.
    """

    def __init__(self, ms: float) -> None:
        self._table: dict[int, tuple[int, int]] = {}
        self.turns = 0
        self.ms = 0.0
        if ms > 0:
            self.turns = PROBE
            for _ in range(FITS):
                self.turns = max(1, round(self.turns * ms / self._median_ms()))
            self.ms = self._median_ms()

    def __call__(self) -> None:
        """Do it. Nothing here lets go of the interpreter lock; others get it after the switch interval."""
        table = self._table
        for turn in range(self.turns):
            table[turn & 255] = (turn, turn + 1)

    def _median_ms(self) -> float:
        taken = []
        for _ in range(TRIES):
            began = time.perf_counter()
            self()
            taken.append((time.perf_counter() - began) * 1e3)
        return sorted(taken)[TRIES // 2]


IDLE: Final = Busy(0.0)
