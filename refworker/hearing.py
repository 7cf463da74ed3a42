# SPDX-License-Identifier: Apache-2.0
"""How long nothing was heard of a peer: that can be told only of the time in which the worker listened."""

from __future__ import annotations

from typing import Final


STEP_S: Final = 1.0  # the most that counts at once: a worker that was stopped heard nothing of anybody


class Hearing:
    """
    A clock for silences, in seconds. It goes on where everything that came is read, and stands still meanwhile.

    A drafter that takes a minute, or a worker that is stopped, makes nobody silent: what peers sent then lies in the queues.
    """

    def __init__(self, now: float) -> None:
        self.clock = 0.0
        self._listened = now

    def caught_up(self, now: float) -> None:
        """Nothing waits to be read."""
        self.clock += min(now - self._listened, STEP_S)
        self._listened = now
