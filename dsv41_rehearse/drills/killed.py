# SPDX-License-Identifier: Apache-2.0
"""Drill: the daemon is killed while a round is parked."""

from __future__ import annotations

from typing import Final

from dsv41_rehearse.drafting import ShimDrafting
from dsv41_rehearse.drills.drill import Drill, Plan
from dsv41_rehearse.drills.losses import Killed, judge, kill_daemon
from dsv41_rehearse.drills.row import Row
from dsv41_rehearse.drills.stage import Stage, pause
from dsv41_rehearse.engine import Engine


WORKER_MS: Final = 60.0  # of 63 in a step: nearly every kill meets a parked round
TRIES: Final = 3


def _daemon_kill(plan: Plan) -> Row:
    wanted, chance = plan.count(3, 30), plan.random()
    killed: list[Killed] = []

    def act(_engine: Engine, drafting: ShimDrafting) -> None:
        while sum(bool(one.loss.released_ns) for one in killed) < wanted and len(killed) < TRIES * wanted:
            pause(drafting, chance.uniform(0.3, 0.6))
            killed.append(kill_daemon(stage, drafting))
            stage.planned = len(killed)
            if killed[-1].loss.back_ns is None:
                return

    with Stage(plan=plan, worker_ms=WORKER_MS) as stage:
        played = stage.run(act)
    parked = sum(bool(one.loss.released_ns) for one in killed)
    row = Row("daemon-kill", f"killed {len(killed)} times, {parked} times with rounds parked")
    row.expect(parked >= wanted, f"only {parked} of {wanted} kills met a parked round")
    return played.fill(judge(row, killed))


DRILLS: Final = (
    Drill(
        name="daemon-kill",
        fault="SIGKILL to the daemon with a round parked, 3 requests",
        bound="from the end of its last thread: loss seen ≤ 20 ms, parked rounds released ≤ 20 ms; drafting again ≤ 500 ms after "
        "the next daemon is ready; the output is the text",
        run=_daemon_kill,
        quick_s=8,
        group="daemon",
    ),
)
