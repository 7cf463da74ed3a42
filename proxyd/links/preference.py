# SPDX-License-Identifier: Apache-2.0
"""Which endpoint to move to, given which ones answer: no clock, no sockets of its own."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final


HOLD_S: Final = 2.0  # how long a preferred endpoint has to answer without a miss before it is gone back to
MOST_HOLD_S: Final = 60.0
RELAPSE_S: Final = 30.0  # one that fails again so soon after that has to answer twice as long the next time


class Preference:
    """Decides over ``endpoints``, the most preferred one first. Times are monotonic seconds."""

    def __init__(self, endpoints: Sequence[str]) -> None:
        self._endpoints = tuple(endpoints)
        self._answers_since: dict[str, float] = {}
        self._hold_s = HOLD_S
        self._back_at = float("-inf")  # when a preferred endpoint was last gone back to

    def first(self, answering: Collection[str]) -> str:
        """Return the most preferred endpoint that answers; the most preferred of all where none does."""
        return next((each for each in self._endpoints if each in answering), self._endpoints[0])

    def choice(self, current: str, answering: Collection[str], *, settled: bool, now: float) -> tuple[str, str] | None:
        """
        Return where to move to and why, or None to stay.

        ``settled``: all sessions have their worker at ``current``. Then only a more preferred endpoint is a reason to move.
        """
        self._note(answering, now)
        if current in answering or settled:
            return self._back(current, now)
        others = [each for each in self._endpoints if each in answering]
        if not others:
            return None
        self._hold_s = min(2 * self._hold_s, MOST_HOLD_S) if now - self._back_at < RELAPSE_S else HOLD_S
        self._answers_since.clear()
        return others[0], "the one before does not answer"

    def _note(self, answering: Collection[str], now: float) -> None:
        for endpoint in self._endpoints:
            if endpoint not in answering:
                self._answers_since.pop(endpoint, None)
            else:
                self._answers_since.setdefault(endpoint, now)

    def _back(self, current: str, now: float) -> tuple[str, str] | None:
        for endpoint in self._endpoints:
            if endpoint == current:
                break
            if now - self._answers_since.get(endpoint, now) >= self._hold_s:
                self._back_at = now
                return endpoint, "a preferred one answers again"
        return None
