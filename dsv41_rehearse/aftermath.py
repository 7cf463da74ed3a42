# SPDX-License-Identifier: Apache-2.0
"""What losses there were in a run, how long each thing took, and what of it is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dsv41_rehearse.drill import Drill, Loss
from dsv41_rehearse.drive import Driven
from dsv41_rehearse.report import LossReport
from dsv41_rehearse.samples import Few


SESSIONS_LOST: Final = "sessions lost: "


@dataclass(frozen=True)
class Aftermath:
    """
    Times are ms. ``losses``: by reason. ``adoptions``: sessions on a region that another session had before, not registered again.

    ``recovery_ms``: to the first drafted round, from ``recovery_from``: the next daemon's log line "ready" where the rehearsal
    started it, else the loss. ``released_ms``: of rounds that were parked at a loss.
    """

    losses: dict[str, int]
    loss_seen_ms: Few
    released_ms: Few
    recovery_from: str
    recovery_ms: Few
    recovery_from_kill_ms: Few
    registrations: int
    adoptions: int
    loss_times: list[LossReport]


def aftermath(driven: Driven, drill: Drill | None) -> Aftermath:
    """Return what came of a run's losses."""
    status = driven.status
    ours: Sequence[Loss] = drill.losses if drill else ()
    times = [_of_drill(driven, loss) for loss in ours] if ours else _of_sessions(driven)
    recovery = [loss.recovery_ms for loss in ours] if ours else driven.sessions.recoveries_ms()
    return Aftermath(
        losses=dict(status.get("losses", {})),
        loss_seen_ms=Few.of(loss.seen_ms for loss in ours),
        released_ms=Few.of(loss.released_ms for loss in ours),
        recovery_from="ready" if ours else "loss",
        recovery_ms=Few.of(recovery),
        recovery_from_kill_ms=Few.of(loss.recovery_from_kill_ms for loss in ours),
        registrations=status.get("registrations", 0),
        adoptions=status.get("adoptions", 0),
        loss_times=times,
    )


def _of_drill(driven: Driven, loss: Loss) -> LossReport:
    at = driven.engine.timeline
    return LossReport(
        loss.reason,
        at.seconds(loss.hurt_ns),
        at.seconds(loss.lost_ns),
        at.seconds(loss.ready_ns),
        at.seconds(loss.back_ns),
    )


def _of_sessions(driven: Driven) -> list[LossReport]:
    at = driven.engine.timeline
    return [
        LossReport(
            one.lost_before, None, at.seconds(one.lost_before_ns or None), None, at.seconds(one.first_ok_ns or None)
        )
        for one in driven.sessions.seen[1:]
    ]


def faults(driven: Driven, drill: Drill | None, *, expect_ok: bool) -> list[str]:
    """Return what is wrong, in words. ``expect_ok``: only what the drill did may have been lost."""
    planned, bound = (drill.planned, drill.bound_ms) if drill else (0, None)
    losses = {reason: count for reason, count in driven.status.get("losses", {}).items() if count}
    found = []
    if expect_ok and sum(losses.values()) != planned:
        said = ", ".join(f"{count} {reason}" for reason, count in sorted(losses.items())) or "none"
        found.append(f"{SESSIONS_LOST}{said}; planned: {planned}")
    for loss in drill.losses if drill else ():
        if loss.recovery_ms is None:
            found.append("no draft after the next daemon was ready")
        elif bound is not None and loss.recovery_ms > bound:
            found.append(
                f"drafting again {loss.recovery_ms:.0f} ms after the next daemon was ready: at most {bound:.0f}"
            )
    return found
