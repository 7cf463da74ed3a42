# SPDX-License-Identifier: Apache-2.0
"""How the daemon stands, put together for whoever asks: operators, /healthz, systemd."""

from __future__ import annotations

import os
import time

from typing import TYPE_CHECKING

from hostflag import stderr
from hostflag.messages import Status
from hostflag.version import VERSION
from proxyd.views import health
from proxyd.views.health import Facts


if TYPE_CHECKING:
    from proxyd.links.reach import Reach
    from proxyd.links.workers import Workers
    from proxyd.sessions.roster import Roster
    from proxyd.views.health import Health
    from proxyd.views.http import Content


class Standing:
    """``ending``: the daemon is on its way out. ``notes``: what came of the last reload, where somebody has to see to it."""

    def __init__(self, roster: Roster, workers: Workers, reach: Reach) -> None:
        self.ending = False
        self.notes: tuple[str, ...] = ()
        self._roster = roster
        self._workers = workers
        self._reach = reach
        self._began = time.monotonic()

    def health(self) -> Health:
        """Return whether the daemon does what it is there for."""
        draining = "the daemon ends" if self.ending else self._roster.draining
        return health.assess(
            Facts(
                draining=draining,
                endpoints=self._workers.endpoints,
                answers=self._reach.answers,
                faults=self._reach.faults,
                sessions=[session.facts() for session in self._roster if not session.echoes],
                notes=(*self.notes, *stderr.notes()),
            )
        )

    def page(self) -> Content:
        """Return what /healthz says."""
        return health.page(self.health(), len(list(self._roster)))

    def line(self) -> str:
        """Return how it stands in one line of ASCII, the same as long as nothing changes."""
        sessions = [session for session in self._roster if not session.echoes]
        served = sum(session.worker_up for session in sessions)
        if served:
            self._reach.learned(answers=True)  # for when they are gone
        doing = "ending" if self.ending else "draining" if self._roster.draining is not None else "serving"
        stalled = sum(session.pulse.stalled is not None for session in sessions)
        text = f"{doing}: {len(sessions)} engine{'s' if len(sessions) != 1 else ''}"
        if sessions:
            text += f", {served} with a worker"
        elif self._reach.answers is not None:
            text += ", worker answers" if self._reach.answers else ", no worker answers"
        return f"{text}, {stalled} stalled" if stalled else text

    def status(self) -> Status:
        """Return what an operator is told."""
        state = self.health()
        return Status(
            pid=os.getpid(),
            version=VERSION,
            seconds=round(time.monotonic() - self._began, 3),
            endpoint=self._workers.endpoint,
            endpoints=self._workers.endpoints,
            draining=self.ending or self._roster.draining is not None,
            healthy=state.healthy,
            reasons=state.reasons,
            notes=state.notes,
            sessions=tuple(session.status() for session in self._roster),
        )
