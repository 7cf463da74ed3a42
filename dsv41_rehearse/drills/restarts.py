# SPDX-License-Identifier: Apache-2.0
"""Drills: the daemon restarted under load, unplanned and planned."""

from __future__ import annotations

import subprocess
import sys
import time

from dataclasses import dataclass, field, replace
from typing import Final

from dsv41_rehearse.drafting import ShimDrafting
from dsv41_rehearse.drill import BACK_S
from dsv41_rehearse.drills.drill import Drill, Plan
from dsv41_rehearse.drills.row import Row
from dsv41_rehearse.drills.stage import Stage, pause
from dsv41_rehearse.drills.timed import Timed, longest_ms
from dsv41_rehearse.engine import Engine
from dsv41_rehearse.gauge import Gauge, grown


RESTARTS: Final = (10, 1_000)
DRAINS: Final = (4, 50)
BACK_MS: Final = 500.0
PAUSE_S: Final = (0.05, 0.35)
LINE_EVERY: Final = 50
BYTES_A_STEP: Final = 160  # samples, outputs, the timeline: 90 as Python counts, more as memory is handed out
CTL_S: Final = 20.0


@dataclass(frozen=True)
class Restart:
    """Times (CLOCK_MONOTONIC): of the signal, or the drain; of the next daemon's readiness; of the first round with drafts."""

    planned: bool
    hurt_ns: int
    ready_ns: int
    back_ns: int

    @property
    def back(self) -> Timed:
        """From the next daemon's readiness to the first round with drafts."""
        return Timed.between(self.ready_ns, self.back_ns)


@dataclass
class Restarts:
    """What was done so far, and what engine and daemon held after each."""

    stage: Stage
    done: list[Restart] = field(default_factory=list)
    gauge: Gauge = field(default_factory=Gauge)

    def once(self, drafting: ShimDrafting, *, planned: bool) -> bool:
        """End the daemon, start the next one, wait for drafts. False: there are none."""
        sessions = drafting.sessions
        before, victim = sessions.seen[-1], self.stage.newest_daemon
        hurt_ns = time.monotonic_ns()
        if planned:
            drain(self.stage)
            victim.end()
        else:
            victim.kill()
        ready = self.stage.start_daemon()
        back = sessions.wait_other_than(before.id, BACK_S)
        self.stage.stack.forget(victim)
        if back is None:
            return False
        self.done.append(Restart(planned, hurt_ns, ready.ready_ns, back.first_ok_ns))
        self.gauge.look(back.pid)
        return True

    def count(self, *, planned: bool) -> int:
        """Return how many were of that kind."""
        return sum(one.planned is planned for one in self.done)


def drain(stage: Stage) -> None:
    """Have the daemon drained, as an operator does before a restart. Raises CalledProcessError where it refuses."""
    command = [
        sys.executable,
        "-m",
        "proxyd.operator.ctl",
        "--socket",
        str(stage.stack.socket),
        "drain",
        "--reason",
        "drill",
    ]
    subprocess.run(command, capture_output=True, check=True, timeout=CTL_S)


def _daemon_restarts(plan: Plan) -> Row:
    wanted, chance = plan.count(*RESTARTS), plan.random()

    def act(_engine: Engine, drafting: ShimDrafting) -> None:
        for number in range(wanted):
            pause(drafting, chance.uniform(*PAUSE_S))
            if not restarts.once(drafting, planned=chance.random() < 0.3):
                return
            if (number + 1) % LINE_EVERY == 0:
                plan.say(f"{number + 1} of {wanted}: {restarts.gauge.newest}")

    with Stage(plan=plan, planned=None) as stage:
        restarts = Restarts(stage)
        played = stage.run(act)
    killed, ended = restarts.count(planned=False), restarts.count(planned=True)
    row = Row(
        "daemon-restarts", f"{killed} times killed, {ended} times drained and ended, each time another one started"
    )
    back = [one.back for one in restarts.done]
    row.recovered_ms = longest_ms(back)
    row.bounds("drafting again after the next daemon was ready", back, BACK_MS)
    row.expect(len(restarts.done) == wanted, f"only {len(restarts.done)} of {wanted} were recovered from")
    status = played.driven.status
    losses = {why: n for why, n in status["losses"].items() if n}
    row.expect(losses == _expected(killed, ended), f"sessions lost: {losses}; expected: {_expected(killed, ended)}")
    row.expect(status["registrations"] == 1, f"{status['registrations']} regions were registered: one would do")
    row.expect(status["adoptions"] == len(restarts.done), f"{status['adoptions']} adoptions of the one region")
    flat(row, restarts.gauge, steps=played.report.steps)
    return played.fill(row)


def _expected(killed: int, drained: int) -> dict[str, int]:
    return {why: n for why, n in (("HANGUP", killed), ("DRAINED", drained)) if n}


def flat(row: Row, gauge: Gauge, *, steps: int, regions: int = 1) -> None:
    """
    Note what grew from the first looks to the last.

    ``steps``: that the engine made; its own accounts of each stay. ``regions``: how many there may come to be; the first one is there.
    """
    first, last = gauge.ends()
    if first is not None and last is not None:
        # A region is a descriptor, and a map and a descriptor of shared memory.
        more = regions - 1
        may = replace(
            first, fds=first.fds + more, shared_memory=first.shared_memory + 2 * more,
            rss_mib=first.rss_mib + steps * BYTES_A_STEP / (1 << 20),
        )  # fmt: skip
        row.leaks += grown(may, last)
        row.details["held"] = {"first": str(first), "last": str(last)}


def _drain(plan: Plan) -> Row:
    wanted, chance = plan.count(*DRAINS), plan.random()
    budget: list[int] = []

    def act(_engine: Engine, drafting: ShimDrafting) -> None:
        budget.append(drafting.shim_status().budget_left)
        for _ in range(wanted):
            pause(drafting, chance.uniform(*PAUSE_S))
            if not restarts.once(drafting, planned=True):
                break
        budget.append(drafting.shim_status().budget_left)

    with Stage(plan=plan, planned=None, respawns=3) as stage:
        restarts = Restarts(stage)
        played = stage.run(act)
    row = Row("drain", f"{len(restarts.done)} times drained, ended and followed by another daemon, under load")
    row.expect(len(restarts.done) == wanted, f"only {len(restarts.done)} of {wanted} were recovered from")
    losses = {why: n for why, n in played.driven.status["losses"].items() if n}
    row.expect(losses == {"DRAINED": wanted}, f"losses: {losses}; only planned ones were to be")
    row.expect(len(set(budget)) == 1, f"the budget went from {budget[0]} to {budget[-1]}")
    back = [one.back for one in restarts.done]
    row.recovered_ms = longest_ms(back)
    row.bounds("without drafts for longer than the restart took", back, BACK_MS)
    row.details["restart_ms"] = [round((one.ready_ns - one.hurt_ns) / 1e6) for one in restarts.done]
    row.details["without_ms"] = [round((one.back_ns - one.hurt_ns) / 1e6) for one in restarts.done]
    return played.fill(row)


DRILLS: Final = (
    Drill(
        name="daemon-restarts",
        fault="the daemon restarted 1,000 times under load, most times killed, else drained and ended",
        bound="no wrong draft; one region, adopted each time; drafting again ≤ 500 ms after readiness; fds, maps, threads and memory flat",
        run=_daemon_restarts,
        quick_s=12,
        group="daemon",
    ),
    Drill(
        name="drain",
        fault="planned drain and restart under load",
        bound="no unplanned loss, no budget spent; without drafts no longer than the restart takes, and ≤ 500 ms from readiness on",
        run=_drain,
        quick_s=6,
        group="daemon",
    ),
)
