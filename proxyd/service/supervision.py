# SPDX-License-Identifier: Apache-2.0
"""The daemon under a service manager: it hears of every change, and is pinged only while the round loops move."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog


if TYPE_CHECKING:
    from proxyd.service.events import Events, Timer
    from proxyd.service.notify import Notifier
    from proxyd.sessions.roster import Roster
    from proxyd.views.standing import Standing


PINGS: Final = 4  # in the time that the manager allows for one
RETRY_S: Final = 0.1


class Supervision:
    """Owns ``notifier``. Not before the daemon serves: construction says that it is ready."""

    def __init__(self, events: Events, notifier: Notifier, roster: Roster, standing: Standing) -> None:
        self._events = events
        self._notifier = notifier
        self._roster = roster
        self._standing = standing
        self._beats: dict[int, int] = {}  # of each session's loop, at the last ping
        self._retry: Timer | None = None
        if notifier.fault:
            structlog.get_logger().warning("the service manager cannot be told", reason=notifier.fault)
        self._said = standing.line()
        notifier.ready(self._said)
        self._next_ping: Timer | None = None
        self._ping()
        self.look()

    def look(self) -> None:
        """Say what has changed since the last call. Cheap: it is called after every turn of the event loop."""
        line = self._standing.line()
        if line != self._said:
            self._said = line
            self._notifier.status(line)
        if self._notifier.waiting and self._retry is None:
            self._retry = self._events.after(RETRY_S, self._try_again)

    def reloading(self) -> None:
        self._notifier.reloading()

    def reloaded(self, outcome: str) -> None:
        """``outcome`` in a few words: it stands in ``systemctl status`` until something changes."""
        self._notifier.ready(f"{self._said}; {outcome}")

    def stopping(self) -> None:
        self._said = self._standing.line()
        self._notifier.stopping(self._said)

    def close(self) -> None:
        for timer in (self._retry, self._next_ping):
            if timer is not None:
                timer.cancel()
        self._notifier.close()

    def _ping(self) -> None:
        # Here and in no thread of its own: a ping proves that this event loop turns as well.
        if self._notifier.watchdog_s is None:
            return
        self._next_ping = self._events.after(self._notifier.watchdog_s / PINGS, self._ping)
        beats = {each.number: each.loop.beats() for each in self._roster.all() if not each.loop.stopped()}
        if all(beat != self._beats.get(number) for number, beat in beats.items()):
            self._beats = beats
            self._notifier.ping()

    def _try_again(self) -> None:
        self._retry = None
        self._notifier.flush()
