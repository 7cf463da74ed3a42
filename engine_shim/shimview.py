# SPDX-License-Identifier: Apache-2.0
"""How a shim's snapshot is taken: from its keeper, its regions' counters, and the session in use."""

from __future__ import annotations

import collections

from collections.abc import Sequence

from engine_shim.keeper import Keeper
from engine_shim.pool import Pool
from engine_shim.session import Session
from engine_shim.shimstatus import ShimStatus, recoveries_of
from engine_shim.spare import Spare
from engine_shim.status import SessionStatus
from engine_shim.stream import Stream
from engine_shim.trial import Trial


class ShimView:
    """Looks; whoever calls makes sure that nothing is unmapped meanwhile."""

    def __init__(self, trial: Trial, stream: Stream, pool: Pool, keeper: Keeper) -> None:
        self._trial = trial
        self._stream = stream
        self._kept_before = stream.kept
        self._pool = pool
        self._keeper = keeper

    def look(self, session: Session | None, spare: Spare) -> ShimStatus:
        """Return a snapshot. ``session``: the one in use. ``spare``: who takes steps without one."""
        counted = [spare.status(), *(place.region.status() for place in self._pool)]
        current = None if session is None else session.status()
        return self._snapshot(session, current, counted, self._stream.kept - self._kept_before, self._keeper.reason)

    def without_memory(self, reason: str) -> ShimStatus:
        """Return what can be said where neither regions nor the stream may be touched."""
        return self._snapshot(None, None, (), 0, reason)

    def _snapshot(
        self,
        session: Session | None,
        current: SessionStatus | None,
        counted: Sequence[SessionStatus],
        registrations: int,
        reason: str | None,
    ) -> ShimStatus:
        keeper = self._keeper
        return ShimStatus(
            mode=self._trial.mode,
            async_refusal=self._trial.refusal,
            session=None if session is None else session.id,
            target_only=None if session is not None else reason,
            sessions=keeper.sessions,
            losses=dict(keeper.losses),
            last_loss=keeper.last_loss,
            lost_ns=keeper.lost_ns,
            recovery_ms=recoveries_of(list(keeper.recovery_ms)),
            registrations=registrations,
            adoptions=keeper.adoptions,
            regions=self._pool.counts(),
            budget_left=keeper.budget.left,
            budget_wait_s=keeper.budget.wait_s,
            rounds=_sum([status.rounds for status in counted]),
            skipped=_sum([status.skipped for status in counted]),
            context_only=sum(status.context_only for status in counted),
            rows_shipped=sum(status.rows_shipped for status in counted),
            rows_deferred=sum(status.rows_deferred for status in counted),
            rows_left_out=sum(status.rows_left_out for status in counted),
            current=current,
        )


def _sum(counts: Sequence[dict[str, int]]) -> dict[str, int]:
    total: collections.Counter[str] = collections.Counter()
    for each in counts:
        total.update(each)
    return dict(total)
