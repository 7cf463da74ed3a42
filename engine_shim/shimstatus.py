# SPDX-License-Identifier: Apache-2.0
"""A snapshot of a shim: its sessions so far, its regions, its budget."""

from __future__ import annotations

import statistics

from collections.abc import Sequence
from dataclasses import dataclass

from engine_shim.mode import Mode
from engine_shim.status import SessionStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Recoveries:
    """How long it took from a loss to the next session, ms, the last ``RECOVERIES_KEPT`` of them. None where there was none."""

    ms: tuple[float, ...]
    min: float | None
    p50: float | None
    max: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionCounts:
    """
    ``in_use``: a session's. ``free``: the next session's. ``fenced``: their last owner may still be there.

    ``settling``: the owner is gone, the stream is not past its rounds yet. ``poisoned``: never used again, since a submit
    failed in it or a daemon left garbage in its words; its memory is the engine's until its end.
    """

    in_use: int
    free: int
    fenced: int
    settling: int
    poisoned: int
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShimStatus:
    """
    ``mode``: how rounds run; ``async_refusal``: why they cannot be asynchronous, None where they can.

    ``session``: the id of the session in use, or None: steps are target-only, and ``target_only`` says why.

    ``sessions``: how many there were. ``losses``: lost ones by reason; DRAINED are the planned ones. ``last_loss``,
    ``lost_ns``: the newest one's reason, and when it was seen (CLOCK_MONOTONIC; 0: none yet). ``registrations``: regions that were
    made known to the stream; ``adoptions``: sessions that began on one that another session had before. ``budget_left``: sessions
    that may still be lost unplanned; ``budget_wait_s``: seconds until there is one more to lose, 0 where there is one now. ``rounds``
    ... ``rows_left_out``: as in SessionStatus, over all sessions. ``current``: the session in use, in detail.
    """

    mode: Mode
    async_refusal: str | None
    session: int | None
    target_only: str | None
    sessions: int
    losses: dict[str, int]
    last_loss: str | None
    lost_ns: int
    recovery_ms: Recoveries
    registrations: int
    adoptions: int
    regions: RegionCounts
    budget_left: int
    budget_wait_s: float
    rounds: dict[str, int]
    skipped: dict[str, int]
    context_only: int
    rows_shipped: int
    rows_deferred: int
    rows_left_out: int
    current: SessionStatus | None


def recoveries_of(ms: Sequence[float]) -> Recoveries:
    """Return the summary of these times."""
    if not ms:
        return Recoveries(ms=(), min=None, p50=None, max=None)
    return Recoveries(ms=tuple(ms), min=min(ms), p50=statistics.median(ms), max=max(ms))
