# SPDX-License-Identifier: Apache-2.0
"""Python work of an engine's thread: it stands for a scheduler, a detokenizer, a sampler's metadata, and holds the interpreter lock."""

from __future__ import annotations

import time

from typing import Final


PROBE: Final = 100_000
TRIES: Final = 5


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
            per_turn_ms = min(self._taken_ms(PROBE) for _ in range(TRIES)) / PROBE
            self.turns = max(1, round(ms / per_turn_ms))
            self.ms = sorted(self._taken_ms(self.turns) for _ in range(TRIES))[TRIES // 2]

    def __call__(self) -> None:
        """Do it. Nothing here lets go of the interpreter lock; others get it after the switch interval."""
        table = self._table
        for turn in range(self.turns):
            table[turn & 255] = (turn, turn + 1)

    def _taken_ms(self, turns: int) -> float:
        self.turns = turns
        began = time.perf_counter()
        self()
        return (time.perf_counter() - began) * 1e3


IDLE: Final = Busy(0.0)
