# SPDX-License-Identifier: Apache-2.0
"""A snapshot of a session, for people and tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from hostflag.verdicts import Loss, Phase, Skip, Verdict


_PHASES: Final = {int(phase): phase for phase in Phase}


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStatus:
    """
    ``submitted`` ... ``retired``: the words. ``phase``: NONE where a daemon wrote no phase there. ``rounds``: settled rounds by verdict name, context-only ones included.

    ``skipped``: submits that made no drafting round, by reason. ``lost_ns``: CLOCK_MONOTONIC when the loss was seen, 0 before.
    ``expired``: rounds that this session's watchdog decided. ``watchdog_late_ns``: the longest gap between two ticks in flight,
    less the tick. ``lock_error``: 0 where the region is locked in memory, else a positive errno.
    """

    submitted: int
    gathered: int
    consumed: int
    released: int
    retired: int
    lost: Loss
    lost_ns: int
    phase: Phase
    in_flight: int
    ticks: int
    expired: int
    watchdog_late_ns: int
    watchdog_realtime: bool
    lock_error: int
    rounds: dict[str, int]
    skipped: dict[str, int]
    context_only: int
    rows_shipped: int
    rows_deferred: int
    rows_left_out: int


def status_of(status: Any) -> SessionStatus:
    """Return the SessionStatus of a ``struct hfe_status``."""
    return SessionStatus(
        submitted=int(status.submitted),
        gathered=int(status.gathered),
        consumed=int(status.consumed),
        released=int(status.released),
        retired=int(status.retired),
        lost=Loss(status.lost),
        lost_ns=int(status.lost_ns),
        phase=_PHASES.get(int(status.phase), Phase.NONE),  # a snapshot comes to be whatever a daemon wrote
        in_flight=int(status.in_flight),
        ticks=int(status.ticks),
        expired=int(status.expired),
        watchdog_late_ns=int(status.watchdog_late_ns),
        watchdog_realtime=bool(status.watchdog_realtime),
        lock_error=-int(status.lock_error),
        rounds={verdict.name: int(status.rounds[verdict]) for verdict in Verdict if verdict is not Verdict.OPEN},
        skipped={skip.name: int(status.skipped[skip]) for skip in Skip if skip is not Skip.NONE},
        context_only=int(status.context_only),
        rows_shipped=int(status.rows_shipped),
        rows_deferred=int(status.rows_deferred),
        rows_left_out=int(status.rows_left_out),
    )
