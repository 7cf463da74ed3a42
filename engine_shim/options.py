# SPDX-License-Identifier: Apache-2.0
"""What of a session can be tuned; the defaults are what docs and tests assume."""

from __future__ import annotations

from dataclasses import dataclass

from engine_shim._engine import lib
from hostflag.messages import Geometry


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """
    Times in milliseconds.

    ``tick_ms``: the watchdog's tick while rounds are in flight. ``starved_ms``: no submit when its last tick is older.
    ``beat_limit_ms``: the session is lost when the daemon's beat stood still for so long; None takes the larger of twice
    the deadline and the daemon's network timeout + 250, and the age of a beat on top: counted from when the daemon stopped
    it is then never less than that larger one; 0 never. ``expiries_limit``: lost after so many expired rounds with
    none finished between; 0 never. ``backlog_rows``: prefill rows that can wait in device memory; None takes a window a
    request. ``realtime``: SCHED_FIFO for the watchdog where it is permitted. ``batched``: write and wait as one operation
    where the stream has one. ``stream_limit_ms``: a synchronous submit fails where the stream takes longer to get past its copies.
    ``echo_us``: not None asks for a session whose rounds the daemon answers itself, after so long, with ids that follow from their rows
    (echo.py): for self-test and benchmarks. ``base``: the last round before the first; not 0 makes the engine bring its own region. ``daemon_uids``: users, besides those of
    trust.py, as whom a daemon may run.
    """

    tick_ms: float = 5.0
    starved_ms: float = 50.0
    beat_limit_ms: float | None = None
    expiries_limit: int = 3
    backlog_rows: int | None = None
    realtime: bool = True
    batched: bool = True
    stream_limit_ms: float = 10_000.0
    echo_us: float | None = None
    base: int = 0
    daemon_uids: tuple[int, ...] = ()

    def backlog(self, geometry: Geometry) -> int:
        """Return how many prefill rows can wait."""
        return geometry.max_requests * geometry.window if self.backlog_rows is None else self.backlog_rows

    def beat_limit(self, deadline_ms: float, network_timeout_ms: float) -> float:
        """Return the beat limit in milliseconds for these timings."""
        if self.beat_limit_ms is not None:
            return self.beat_limit_ms
        return max(2 * deadline_ms, network_timeout_ms + 250) + int(lib.HF_BEAT_EVERY_MS)
