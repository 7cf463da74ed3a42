# SPDX-License-Identifier: Apache-2.0
"""All sessions of the worker: who may open one, which ones it ends, which ones were forgotten by their peers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import structlog

from hostflag.control import Open
from hostflag.wire import MAX_PART_BYTES, PROTOCOL
from refworker.drafter import CannotDraft, Drafter
from refworker.session import Session


MAX_SESSIONS: Final = 64
SILENCE_S: Final = 300.0  # docs/CONTRACT.md: after it a session may be forgotten, also where its place is not needed
MAKES_ROOM_S: Final = 30.0  # a daemon at rest sends a PING every 2 s: fifteen that did not come

TABLE_BYTES: Final = 64  # a row's position and token, and at the most its request
_LINES: Final[dict[str, Any]] = {
    "rate_limited": True,
    "rate_burst": 2 * MAX_SESSIONS,
}  # a peer can open and close without end

_log = structlog.get_logger()


class NotOpened(Exception):
    """The session is not opened: ``code`` for programs, the text for people."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class Sessions:
    """
    Sessions by number. Each gets a drafter of its own from ``make``.

    ``makes_room_s``: one that was silent for so long ends where all ``limit`` places are taken and somebody needs one.
    """

    def __init__(
        self, make: Callable[[], Drafter], limit: int = MAX_SESSIONS, makes_room_s: float = MAKES_ROOM_S
    ) -> None:
        self._make = make
        self._limit = limit
        self._makes_room_s = makes_room_s
        self._sessions: dict[int, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, number: int, identity: bytes, opening: Open, now: float) -> list[Session]:
        """
        Open a session with empty contexts, also where it is open already.

        Returns the older sessions of the same engine name and rank, which have ended with it. Raises NotOpened.
        """
        self.close(number, "opened again")
        if opening.protocol != PROTOCOL:
            raise NotOpened(
                "protocol", f"this worker speaks protocol {PROTOCOL}, not {opening.protocol}: update the older side"
            )
        older = [s for s in self._sessions.values() if _same_engine(s.opening, opening)]
        for session in older:
            self.close(session.number, "its engine opened another session")
        if len(self._sessions) >= self._limit and not self._make_room(now):
            raise NotOpened("sessions", f"this worker has its {self._limit} sessions: end one, or start another worker")
        self._sessions[number] = Session(number, identity, opening, self._started(opening), now)
        _log.info(
            "session opened", session=f"{number:016x}", engine=opening.engine.name, rank=opening.engine.rank, **_LINES
        )
        return older

    def find(self, number: int, identity: bytes) -> Session | None:
        """Return an open session. One that another connection opened is none: OPEN comes first on every connection."""
        session = self._sessions.get(number)
        return session if session is not None and session.identity == identity else None

    def largest_round(self, identity: bytes) -> int:
        """Return the bytes of the largest message that the sessions of a connection can send; 0 where it has none open."""
        sizes = [s.geometry for s in self._sessions.values() if s.identity == identity]
        return max(
            (min(g.max_requests * g.window * (g.row_bytes + TABLE_BYTES), 2 * MAX_PART_BYTES) for g in sizes), default=0
        )

    def close(self, number: int, reason: str) -> None:
        """End a session and forget its contexts; none may be open."""
        session = self._sessions.pop(number, None)
        if session is not None:
            _log.info(
                "session closed", session=f"{number:016x}", engine=session.opening.engine.name, reason=reason, **_LINES
            )

    def reap(self, now: float) -> None:
        """End the sessions whose peers were silent for too long."""
        for session in list(self._sessions.values()):
            if now - session.seen > SILENCE_S:
                self.close(session.number, f"nothing was heard of it for {SILENCE_S:.0f} s")

    def _make_room(self, now: float) -> bool:
        """End the session that was silent longest, if it was for long enough: its engine is gone, or cannot be reached."""
        longest = min(self._sessions.values(), key=lambda session: session.seen)
        silence = now - longest.seen
        if silence <= self._makes_room_s:
            return False
        self.close(longest.number, f"nothing was heard of it for {silence:.0f} s, and its place is needed")
        return True

    def _started(self, opening: Open) -> Drafter:
        try:
            drafter = self._make()
            drafter.start(opening)
        except CannotDraft as error:
            raise NotOpened("model", str(error)) from error
        except Exception as error:
            _log.exception("drafter failed", doing="start", rate_limited=True)
            raise NotOpened(
                "drafter", f"the worker's drafter did not start ({error!r}): see the worker's log"
            ) from error
        return drafter


def _same_engine(one: Open, other: Open) -> bool:
    return (one.engine.name, one.engine.rank) == (other.engine.name, other.engine.rank)
