# SPDX-License-Identifier: Apache-2.0
"""Drill: one session is flooded by its worker while another one works."""

from __future__ import annotations

import statistics
import time

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dsv41_rehearse import proc
from dsv41_rehearse.drafting import ShimDrafting
from dsv41_rehearse.drill import BACK_S
from dsv41_rehearse.drills.apart import Apart
from dsv41_rehearse.drills.drill import Drill, Plan
from dsv41_rehearse.drills.misdeeds import Deed
from dsv41_rehearse.drills.relay import Relay
from dsv41_rehearse.drills.row import Row
from dsv41_rehearse.drills.stage import Stage, pause
from dsv41_rehearse.engine import Engine


WINDOWS: Final = (3, 20)
WINDOW_S: Final = 1.0
P99_MS: Final = 5.0  # by how much it may be longer: the flooded threads take their share of the processors
MIB: Final = 96.0
FLOODS: Final = (Deed.ENDLESS, Deed.SPAM)
HERE, ELSEWHERE, NOWHERE = "here", "at another daemon", "none"


@dataclass
class Floods:
    """
    The act. ``rounds_ms``: the working session's rounds, by where a flood goes on meanwhile, all side by side.

    A flood at another daemon costs the machine as much: what is left is what sessions of one daemon cost each other.
    """

    stage: Stage
    relay: Relay
    windows: int
    socket: Path
    rounds_ms: dict[str, list[float]] = field(default_factory=lambda: {NOWHERE: [], ELSEWHERE: [], HERE: []})
    flooded_mib: float = 0.0
    grew_mib: float = 0.0
    faults: list[str] = field(default_factory=list)

    def act(self, engine: Engine, drafting: ShimDrafting) -> None:
        """A window of each, again and again."""
        here, elsewhere = Apart(self.stage), Apart(self.stage, name="engine-2", socket=self.socket)
        for one in (here, elsewhere):
            if one.wait_drafted(3) is None:
                self.faults.append(f"a session that is to be flooded had no drafts: {one.child.tail()}")
                return
        flooded = {NOWHERE: None, ELSEWHERE: elsewhere, HERE: here}
        before_mib = proc.rss_private_mib(self.stage.newest_daemon.pid)
        for number in range(self.windows):
            for where, victim in flooded.items():
                self._window(engine, drafting, where, FLOODS[number % len(FLOODS)], victim)
                self.grew_mib = max(self.grew_mib, proc.rss_private_mib(self.stage.newest_daemon.pid) - before_mib)
        for one in (here, elsewhere):
            one.end()

    def _window(self, engine: Engine, drafting: ShimDrafting, where: str, deed: Deed, victim: Apart | None) -> None:
        if victim is not None:
            self._flood(deed, victim.board.session)
        first = len(engine.tally.round_us.values)
        pause(drafting, WINDOW_S)
        self.rounds_ms[where] += [us / 1e3 for us in engine.tally.round_us.values[first:]]
        if victim is None:
            return
        self.flooded_mib += self.relay.board.get("sent_bytes") / (1 << 20)
        self.relay.ask(Deed.NONE, count=0)
        if victim.wait_drafted(1) is None:
            self.faults.append("a flooded session had no drafts any more")

    def _flood(self, deed: Deed, session: int) -> None:
        """Every reply of that session begins one; the daemon hangs up, and the next reply begins the next."""
        self.relay.ask(deed, count=1_000, session=session)
        until = time.monotonic() + BACK_S
        while not self.relay.board.get("began_ns") and time.monotonic() < until:
            time.sleep(0.001)


def _flood(plan: Plan) -> Row:
    with ExitStack() as exits:
        options = {"row_bytes": 2048, "gpu_ms": 6.0}
        stage = exits.enter_context(
            Stage(plan=plan, daemon=False, requests=1, audit=False, worker_ms=1.0, options=options)
        )
        relay = Relay(stage.stack, stage.endpoint)
        stage.endpoint = relay.endpoint
        socket = stage.stack.directory / "other.sock"
        stage.start_daemon()
        stage.start_daemon(name="other", socket=socket)
        floods = Floods(stage, relay, plan.count(*WINDOWS), socket)
        played = stage.run(floods.act)
    row = Row("flood", f"flooded {2 * floods.windows} times for {WINDOW_S:g} s, with {floods.flooded_mib:.0f} MiB")
    row.faults += floods.faults
    if all(floods.rounds_ms.values()):
        row.details |= {where: _spread(sorted(ms)) for where, ms in floods.rounds_ms.items()}
        here, elsewhere = (_p99(sorted(floods.rounds_ms[where])) for where in (HERE, ELSEWHERE))
        row.bound("the other session's p99 beside a flood", here, elsewhere + P99_MS)
    else:
        row.faults.append("the other session had no rounds to compare")
    row.details["grew_mib"] = round(floods.grew_mib, 1)
    row.expect(floods.grew_mib <= MIB, f"the daemon grew by {floods.grew_mib:.0f} MiB")
    lost = len(played.driven.sessions.seen) - 1
    row.expect(lost == 0, f"the other session was lost {lost} times")
    return played.fill(row)


def _p99(values: list[float]) -> float:
    return values[min(len(values) - 1, int(len(values) * 0.99))]


def _spread(values: list[float]) -> dict[str, float]:
    return {
        "rounds": len(values),
        "p50_ms": round(statistics.median(values), 2),
        "p99_ms": round(_p99(values), 2),
        "max_ms": round(values[-1], 2),
    }


DRILLS: Final = (
    Drill(
        name="flood",
        fault="one session's worker sends parts or stale replies without end, and again on every new connection, while another session works",
        bound="the other session's p99 is at most 5 ms longer than beside the same flood at another daemon, in windows side by side; the daemon "
        "grows by ≤ 96 MiB",
        run=_flood,
        quick_s=14,
        group="worker",
    ),
)
