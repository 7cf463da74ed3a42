# SPDX-License-Identifier: Apache-2.0
"""The engine thread's side of changing sessions: which one it submits to, and which it may still ask about."""

from __future__ import annotations

from typing import Final

from engine_shim.session import Session
from engine_shim.ticket import RoundRef


PAST: Final = 4  # lost sessions whose rounds can still be asked for, besides those that the stream is not past


class Seat:
    """
    ``offered`` is the keeper's to set; all else is the engine thread's.

    A session object lives for as long as anybody holds it, and with it the C struct: whoever is in a call on it keeps it.
    """

    def __init__(self) -> None:
        self.offered: Session | None = None
        self.taken: Session | None = None
        self._past: dict[int, Session] = {}
        self.unsettled: list[Session] = []  # lost, and not past all its rounds

    def take(self) -> Session | None:
        """Go over to the session that is offered, before anything is submitted to it; return it."""
        before, self.taken = self.taken, self.offered
        if before is not None:
            self._past[before.id] = before
            self.unsettled.append(before)
        # Before the next session's first round: where it has the same region, the books must be closed by then.
        self.settle()
        self._forget()
        return self.taken

    def _forget(self) -> None:
        """Of a session that is forgotten every round counts as consumed: so none that the stream may still be at."""
        for number in list(self._past)[:-PAST]:
            if self._past[number] not in self.unsettled:
                del self._past[number]

    def settle(self) -> int:
        """Book what has finished of every session."""
        booked = 0 if self.taken is None else self.taken.settle()
        for session in list(self.unsettled):
            ended = session.ended  # before the last look, not after it
            booked += session.settle()
            if ended:
                self.unsettled.remove(session)
        return booked

    def find(self, ref: RoundRef) -> Session | None:
        """Return the session of a round; None where it is forgotten."""
        if self.taken is not None and self.taken.id == ref.session:
            return self.taken
        return self._past.get(ref.session)

    def clear(self) -> None:
        self.offered = self.taken = None
        self._past.clear()
        self.unsettled.clear()
