# SPDX-License-Identifier: Apache-2.0
"""A daemon that is killed and followed by another, with all times counted from its death."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dsv41_rehearse.drafting import ShimDrafting
from dsv41_rehearse.drill import BACK_S, Loss
from dsv41_rehearse.drills.row import Row
from dsv41_rehearse.drills.stage import Stage
from dsv41_rehearse.drills.timed import Timed, longest_ms
from dsv41_rehearse.drills.witness import Witness


SEEN_MS = 20.0
RELEASED_MS = 20.0
BACK_MS = 500.0


@dataclass(frozen=True)
class Killed:
    """
    ``loss``: its ``hurt_ns`` is the death, not the signal. ``parked``: for how long rounds waited after it, or after their gathering.

    ``dying_ms``: from the signal to the last thread's end.
    """

    loss: Loss
    parked: Sequence[Timed]
    dying_ms: float
    real_time: bool


def kill_daemon(stage: Stage, drafting: ShimDrafting) -> Killed:
    """Kill the daemon, start the next one, wait until it is drafted with."""
    sessions = drafting.sessions
    before = sessions.seen[-1]
    victim = stage.newest_daemon
    with Witness(victim.pid) as witness:
        sent_ns = victim.kill()
        died_ns = witness.death_ns()
    ready = stage.start_daemon()
    back = sessions.wait_other_than(before.id, BACK_S)
    stage.stack.forget(victim)
    releases = [one for one in sessions.releases if one.session == before.id]
    parked = [Timed.between(max(died_ns, one.gathered_ns), one.past_ns) for one in releases]
    loss = Loss(
        hurt_ns=died_ns,
        reason=back.lost_before if back else drafting.lost,
        lost_ns=back.lost_before_ns if back else drafting.shim_status().lost_ns or None,
        ready_ns=ready.ready_ns,
        back_ns=back.first_ok_ns if back else None,
        released_ns=[one.past_ns - max(died_ns, one.gathered_ns) for one in releases],
        pid_before=before.pid,
        pid_after=back.pid if back else None,
    )
    return Killed(loss, parked, (died_ns - sent_ns) / 1e6, witness.real_time)


def judge(row: Row, killed: Sequence[Killed]) -> Row:
    """Note the longest of each time in a row and hold it against its bound."""
    losses = [one.loss for one in killed]
    seen = [Timed(loss.seen_ms, loss.hurt_ns) for loss in losses]
    back = [Timed(loss.recovery_ms, loss.ready_ns or loss.hurt_ns) for loss in losses]
    parked = [time for one in killed for time in one.parked]
    row.detected_ms = _shown(longest_ms(seen))
    row.released_ms = _shown(longest_ms(parked))
    row.parked = max((len(one.parked) for one in killed), default=0)
    row.recovered_ms = _shown(longest_ms(back))
    row.expect(bool(killed), "nothing was killed")
    row.bounds("loss seen after the death", seen, SEEN_MS)
    row.bounds("released after the death", parked, RELEASED_MS)
    row.bounds("drafting again after the next daemon was ready", back, BACK_MS)
    reasons = {loss.reason for loss in losses}
    row.expect(reasons <= {"HANGUP"}, f"lost by {', '.join(sorted(str(reason) for reason in reasons))}: HANGUP only")
    row.details["dying_ms"] = round(max((one.dying_ms for one in killed), default=0.0), 2)
    row.details["witness"] = "real-time" if all(one.real_time for one in killed) else "ordinary priority"
    return row


def _shown(ms: float | None) -> float | None:
    """Negative ones: before the last thread was gone."""
    return None if ms is None else round(ms, 3)
