# SPDX-License-Identifier: Apache-2.0
"""The circuit breaker's changes in the log: a line where it opens and one where it closes, whatever it tries in between; few of many."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from proxyd.sessions.roundloop import EventKind


if TYPE_CHECKING:
    from proxyd.sessions.roundloop import LoopEvent


MOST_LINES: Final = 3  # of each kind, in the log's interval: a connection that goes again and again opens it each time


class BreakerLog:
    """Follows one session's breaker. Probes and openings after them are of the debug level."""

    def __init__(self, log: Any, rate_key: str) -> None:
        self._log = log
        self._limited: Final = {"rate_limited": True, "rate_key": rate_key, "rate_burst": MOST_LINES}
        self._open = False
        self._probes = 0

    def take(self, event: LoopEvent) -> None:
        """Say a BREAKER event."""
        match event.kind:
            case EventKind.BREAKER_OPEN if not self._open:
                self._open = True
                self._probes = 0
                self._log.warning("circuit breaker open", reason=event.reason, **self._limited)
            case EventKind.BREAKER_OPEN:
                self._log.debug("circuit breaker stays open", reason=event.reason)
            case EventKind.BREAKER_PROBE:
                self._probes += 1
                self._log.debug("circuit breaker lets a round through")
            case EventKind.BREAKER_CLOSED:
                self._open = False
                self._log.info("circuit breaker closed", reason=event.reason, probes=self._probes, **self._limited)
