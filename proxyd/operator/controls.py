# SPDX-License-Identifier: Apache-2.0
"""What an operator can see and do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hostflag.messages import Dump
from proxyd.errors import RefusedError
from proxyd.sessions.peer import printable


if TYPE_CHECKING:
    from collections.abc import Callable

    from hostflag.messages import Status
    from proxyd.config.configuration import Reloaded
    from proxyd.links.workers import Workers
    from proxyd.sessions.roster import Roster
    from proxyd.views.standing import Standing


class Controls:
    """The daemon as its operators have it. What is refused is a RefusedError with what to do."""

    def __init__(self, roster: Roster, workers: Workers, standing: Standing, reload: Callable[[str], Reloaded]) -> None:
        self.workers = workers
        self._roster = roster
        self._standing = standing
        self._reload = reload

    def status(self) -> Status:
        return self._standing.status()

    def drain(self, reason: str, log: Any) -> None:
        """Take no new rounds and no new sessions; rounds in flight end as they would, engines are told."""
        if not reason or not reason.isprintable():
            raise RefusedError("reason", "say why: engines and /healthz are told, in printable letters")
        log.warning("operator drains", reason=reason, sessions=len(list(self._roster)))
        self._roster.drain(reason)

    def resume(self, log: Any) -> str:
        """Take rounds and sessions again. Returns how things stand."""
        if self._roster.draining is None:
            return "was not draining"
        log.info("operator resumes", sessions=len(list(self._roster)))
        self._roster.resume()
        return f"serving again, {self._sessions()}"

    def reload(self) -> str:
        """Read the configuration again. Returns what came of it."""
        reloaded = self._reload("an operator")
        if reloaded.faults:
            raise RefusedError("configuration", "the configuration of before stays: " + "; ".join(reloaded.faults))
        text = "; ".join(map(str, reloaded.changed)) or "nothing changed"
        return text + "".join(f"; needs a restart: {each}" for each in reloaded.restart)

    def dump(self, number: str, rounds: int) -> Dump:
        """Return the last rounds of the session with this number (16 hex digits)."""
        for session in self._roster:
            if f"{session.number:016x}" == number:
                engine = session.hello.engine
                records = session.pulse.records(rounds)
                return Dump(session=number, engine=printable(engine.name), rank=engine.rank, records=records)
        raise RefusedError("session", f"there is no session {number}: `dsv41-proxyctl status` lists them")

    @property
    def at_rest(self) -> bool:
        """Whether no round of any session is in flight."""
        return self._roster.in_flight == 0

    def drained(self) -> str:
        """Return how far a drain has come."""
        rounds = self._roster.in_flight
        flight = f"{rounds} rounds still in flight" if rounds else "no round in flight"
        return f"draining, {self._sessions()}, {flight}; `dsv41-proxyctl resume` ends it"

    def _sessions(self) -> str:
        count = len(list(self._roster))
        return f"{count} session{'s' if count != 1 else ''}"
