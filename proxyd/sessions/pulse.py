# SPDX-License-Identifier: Apache-2.0
"""Whether a session's round loop moves: told by what it and its engine write, never by its own word alone."""

from __future__ import annotations

import os

from typing import TYPE_CHECKING, Final

from hostflag.region import View, Word


if TYPE_CHECKING:
    from hostflag.messages import RoundRecord
    from proxyd.sessions.roundloop import RoundLoop


BEAT_LIMIT_S: Final = 1.0  # a loop beats every 80 ms, whatever it does
ROUND_LIMIT_S: Final = 1.0  # for a gathered round, where its reply may not be waited for longer anyway
REPLY_MARGIN_S: Final = 0.25
MOST_BETWEEN_LOOKS_S: Final = 0.5  # more was a pause of this process: the loop stood still because everything did
_HALF: Final = 1 << 31


class Pulse:
    """
    One loop, looked at again and again; times in s, monotonic. It has a read-only map of the region of its own, until ``close``.

    A round may wait ``network_timeout_s`` for its reply. Raises RegionFault where ``region_fd``, which stays the caller's, cannot
    be mapped, OSError where no descriptor is left.
    """

    def __init__(self, region_fd: int, network_timeout_s: float) -> None:
        self._round_limit_s = max(ROUND_LIMIT_S, network_timeout_s + REPLY_MARGIN_S)
        self._view = View(region_fd)
        try:
            # Kept open, so that the region can be looked at from outside (/proc/PID/fd) while this process is stopped.
            self._fd = os.dup(region_fd)
        except OSError:
            self._view.close()
            raise
        self._looked_at: float | None = None
        self._beats = -1
        self._done = -1
        self._without_beat_s = 0.0
        self._without_end_s = 0.0

    def close(self) -> None:
        """Unmap. Closing twice is harmless."""
        self._view.close()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def look(self, loop: RoundLoop, now: float) -> None:
        """Note what has moved since the look before."""
        since = 0.0 if self._looked_at is None else min(max(0.0, now - self._looked_at), MOST_BETWEEN_LOOKS_S)
        self._looked_at = now
        beats, done = loop.beats(), loop.done()
        self._without_beat_s = 0.0 if beats != self._beats else self._without_beat_s + since
        waits = _past(self._view.word(Word.GATHERED), done) > 0
        self._without_end_s = self._without_end_s + since if waits and done == self._done else 0.0
        self._beats, self._done = beats, done

    @property
    def beating(self) -> bool:
        """Whether the loop was seen to run lately."""
        return self._without_beat_s < BEAT_LIMIT_S

    @property
    def stalled(self) -> str | None:
        """What stands still, as people would say it; None where nothing does."""
        if not self.beating:
            return f"the round loop has not moved for {self._without_beat_s:.1f} s"
        if self._without_end_s >= self._round_limit_s:
            return f"a gathered round has waited for {self._without_end_s:.1f} s"
        return None

    def in_flight(self, loop: RoundLoop) -> int:
        """Return how many rounds are submitted and not retired."""
        return max(0, _past(self._view.word(Word.SUBMITTED), loop.done()))

    def word(self, word: Word) -> int:
        """Return a word of the region as it is now."""
        return self._view.word(word)

    def records(self, count: int) -> tuple[RoundRecord, ...]:
        """Return the newest ``count`` rounds of the engine's flight recorder, the oldest first."""
        return self._view.records(count)


def _past(a: int, b: int) -> int:
    """Return how far round ``a`` is past ``b``; cyclic."""
    return (a - b + _HALF) % (2 * _HALF) - _HALF
