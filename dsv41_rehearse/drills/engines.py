# SPDX-License-Identifier: Apache-2.0
"""Drill: engines are killed, in the middle of a round and anywhere in the handshake."""

from __future__ import annotations

import json
import subprocess
import sys
import time

from dataclasses import dataclass, field
from typing import Final

from dsv41_rehearse.drafting import ShimDrafting
from dsv41_rehearse.drills import unharmed
from dsv41_rehearse.drills.apart import Apart
from dsv41_rehearse.drills.drill import Drill, Plan
from dsv41_rehearse.drills.row import Row
from dsv41_rehearse.drills.scrape import counters
from dsv41_rehearse.drills.stage import Stage
from dsv41_rehearse.drills.timed import Timed, longest_ms
from dsv41_rehearse.engine import Engine


KILLED: Final = (2, 20)
DYING: Final = (60, 1_000)
WORKER_MS: Final = (
    25.0  # of 28 in a step: most kills meet a parked round; the worker drafts for one engine after the other
)
GONE_MS: Final = 1000.0
MAY_MIB: Final = 12.0
DYING_S: Final = 600.0


@dataclass
class Deaths:
    """The act. ``seen``: from the kill to the daemon's having forgotten the session."""

    stage: Stage
    plan: Plan
    row: Row
    seen: list[Timed] = field(default_factory=list)
    points: dict[str, int] = field(default_factory=dict)

    def act(self, _engine: Engine, _drafting: ShimDrafting) -> None:
        """Do it. The first of each loads what is loaded once, and is not counted."""
        self._die(5)
        self._kill(0)
        held = unharmed.Held(self.stage.newest_daemon.pid)
        for number in range(self.plan.count(*KILLED)):
            self._kill(number + 1)
        self.points = self._die(self.plan.count(*DYING))
        self._kill(0)  # which has drafts before: the worker does not keep places for the dead
        self._gone(time.monotonic_ns())
        held.back(self.row, MAY_MIB)

    def _kill(self, number: int) -> None:
        engine = Apart(self.stage, name=f"engine-{number}")
        if engine.wait_drafted(3) is None:
            self.row.faults.append(f"an engine had no drafts to begin with: {engine.child.tail()}")
        killed_ns = engine.child.kill()
        self.stage.stack.forget(engine.child)
        seen = self._gone(killed_ns)
        if number and seen is not None:
            self.seen.append(seen)

    def _gone(self, since_ns: int) -> Timed | None:
        """Wait until only the bystander's session is there. Returns how long that took; None: it did not come to that."""
        while time.monotonic_ns() < since_ns + unharmed.SETTLED_S * 1e9:
            now = counters(self.stage.newest_daemon)
            if (
                now['sessions{state="running"}'] == 1
                and now['sessions{state="ending"}'] == 0
                and not now["handshaking"]
            ):
                return Timed.between(since_ns, time.monotonic_ns())
            time.sleep(0.005)
        self.row.faults.append("sessions of engines that are gone are still there")
        return None

    def _die(self, count: int) -> dict[str, int]:
        command = [
            sys.executable,
            "-m",
            "dsv41_rehearse.drills.dying",
            str(self.stage.stack.socket),
            str(count),
            str(self.plan.seed),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=DYING_S)
        points: dict[str, int] = json.loads(done.stdout)
        return points


def _engine_kill(plan: Plan) -> Row:
    row = Row("engine-kill", "")
    # An engine that is killed leaves the end of its audit unwritten.
    with Stage(
        plan=plan,
        audit=False,
        worker_ms=WORKER_MS,
        requests=1,
        deadline_ms=unharmed.DEADLINE_MS,
        daemon_flags=unharmed.PATIENT,
    ) as stage:
        deaths = Deaths(stage, plan, row)
        played = stage.run(deaths.act)
    row.happened = (
        f"{len(deaths.seen)} engines killed with a round parked, {sum(deaths.points.values())} more where they stood"
    )
    row.details["killed at"] = deaths.points
    row.detected_ms = longest_ms(deaths.seen)
    row.expect(
        len(deaths.seen) == plan.count(*KILLED), f"only {len(deaths.seen)} engines were killed with a round parked"
    )
    row.bounds("the daemon has let go", deaths.seen, GONE_MS)
    unharmed.rounds(row, played)
    return played.fill(row)


DRILLS: Final = (
    Drill(
        name="engine-kill",
        fault="SIGKILL to an engine with a round parked; 1,000 engines connect and are killed at any point of the handshake or a round",
        bound="the session is over ≤ 1 s after; descriptors, threads, shared memory and memory of the daemon as before; another engine's "
        "rounds all drafted",
        run=_engine_kill,
        quick_s=10,
        group="engine",
    ),
)
