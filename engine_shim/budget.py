# SPDX-License-Identifier: Apache-2.0
"""How often a session may be lost, unplanned, and be followed by another one."""

from __future__ import annotations

import collections
import math
import time

from collections.abc import Callable


class Budget:
    """``respawns`` in any ``reset_s`` seconds: each comes back that long after it was taken. One thread takes, any looks."""

    def __init__(self, respawns: int, reset_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._respawns = respawns
        self._reset_s = reset_s
        self._clock = clock
        self._taken: collections.deque[float] = collections.deque(maxlen=max(respawns, 1))

    def take(self) -> bool:
        """Take one. False where there is none, see ``wait_s``."""
        if self.left == 0:
            return False
        self._taken.append(self._clock())
        return True

    @property
    def left(self) -> int:
        """How many can be taken now."""
        since = self._clock() - self._reset_s
        return self._respawns - sum(taken > since for taken in list(self._taken))

    @property
    def wait_s(self) -> float:
        """Seconds until one can be taken; 0 now, infinite where there never is one."""
        if self.left > 0:
            return 0.0
        if self._respawns == 0:
            return math.inf
        return max(0.0, min(self._taken) + self._reset_s - self._clock())
