# SPDX-License-Identifier: Apache-2.0
"""Drill: one session is flooded by its worker while another one works."""

from __future__ import annotations

import statistics
import time

from contextlib import ExitStack
from dataclasses import dataclass, field
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


WINDOWS: Final = (4, 20)
WINDOW_S: Final = 1.2
P99_MS: Final = 2.0  # by how much it may be longer beside a flood
MIB: Final = 96.0
FLOODS: Final = (Deed.ENDLESS, Deed.SPAM)


@dataclass
class Floods:
    """The act. ``quiet_ms``, ``flooded_ms``: the other session's rounds, window by window, side by side."""

    stage: Stage
    relay: Relay
    windows: int
    quiet_ms: list[list[float]] = field(default_factory=list)
    flooded_ms: list[list[float]] = field(default_factory=list)
    flooded_mib: float = 0.0
    grew_mib: float = 0.0
    faults: list[str] = field(default_factory=list)

    def act(self, engine: Engine, drafting: ShimDrafting) -> None:
        """A window without, a window with, again and again."""
        other = Apart(self.stage)
        if other.wait_drafted(3) is None:
            self.faults.append(f"the session that is to be flooded had no drafts: {other.child.tail()}")
            return
        session = other.board.session
        before_mib = proc.rss_private_mib(self.stage.newest_daemon.pid)
        for number in range(self.windows):
            self.quiet_ms.append(self._window(engine, drafting))
            self._flood(FLOODS[number % len(FLOODS)], session)
            self.flooded_ms.append(self._window(engine, drafting))
            self.flooded_mib += self.relay.board.get("sent_bytes") / (1 << 20)
            self.grew_mib = max(self.grew_mib, proc.rss_private_mib(self.stage.newest_daemon.pid) - before_mib)
            self.relay.ask(Deed.NONE, count=0)
            if other.wait_drafted(1) is None:
                self.faults.append("the flooded session had no drafts any more")
                return
        other.end()

    def _flood(self, deed: Deed, session: int) -> None:
        """Every reply of that session begins one; the daemon hangs up, and the next reply begins the next."""
        self.relay.ask(deed, count=1_000, session=session)
        until = time.monotonic() + BACK_S
        while not self.relay.board.get("began_ns") and time.monotonic() < until:
            time.sleep(0.001)

    def _window(self, engine: Engine, drafting: ShimDrafting) -> list[float]:
        first = len(engine.tally.round_us.values)
        pause(drafting, WINDOW_S)
        return [us / 1e3 for us in engine.tally.round_us.values[first:]]


def _flood(plan: Plan) -> Row:
    with ExitStack() as exits:
        stage = exits.enter_context(
            Stage(plan=plan, daemon=False, requests=1, audit=False, worker_ms=1.0, options={"row_bytes": 2048, "gpu_ms": 6.0})
        )
        relay = Relay(stage.stack, stage.endpoint)
        stage.endpoint = relay.endpoint
        stage.start_daemon()
        floods = Floods(stage, relay, plan.count(*WINDOWS))
        played = stage.run(floods.act)
    quiet = sorted(ms for window in floods.quiet_ms for ms in window)
    flooded = sorted(ms for window in floods.flooded_ms for ms in window)
    row = Row("flood", f"flooded {len(floods.flooded_ms)} times for {WINDOW_S:g} s, with {floods.flooded_mib:.0f} MiB")
    row.faults += floods.faults
    if quiet and flooded:
        row.details |= {
            "quiet": _spread(quiet), "flooded": _spread(flooded), "grew_mib": round(floods.grew_mib, 1),
        }  # fmt: skip
        row.bound("the other session's p99 beside a flood", _p99(flooded), _p99(quiet) + P99_MS)
    else:
        row.faults.append("the other session had no rounds to compare")
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
        bound="the other session's p99 is at most 2 ms longer than without, in windows side by side; the daemon grows by ≤ 96 MiB",
        run=_flood,
        quick_s=14,
        group="worker",
    ),
)
