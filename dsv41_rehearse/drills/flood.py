# SPDX-License-Identifier: Apache-2.0
"""Drill: one session is flooded by its worker while another one works."""

from __future__ import annotations

import statistics
import time

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from dsv41_rehearse import proc
from dsv41_rehearse.drafting import ShimDrafting
from dsv41_rehearse.drill import BACK_S
from dsv41_rehearse.drills import unharmed
from dsv41_rehearse.drills.apart import Apart
from dsv41_rehearse.drills.drill import Drill, Plan
from dsv41_rehearse.drills.misdeeds import Deed
from dsv41_rehearse.drills.relay import Relay
from dsv41_rehearse.drills.row import Row
from dsv41_rehearse.drills.stage import Stage, pause
from dsv41_rehearse.engine import Engine


WINDOWS: Final = (6, 30)
WINDOW_S: Final = 1.0
# Of the median of the windows' p99, flooded, to that without: less than that is no difference between windows of this length.
TIMES: Final = 1.25
MORE_MS: Final = 1.0
MIB: Final = 96.0
NETWORK_TIMEOUT_MS: Final = 150.0
FLOODS: Final = (Deed.ENDLESS, Deed.SPAM)
HERE, ELSEWHERE, NOWHERE = "here", "at another daemon", "none"


@dataclass
class Floods:
    """
    The act. ``windows_ms``: the working session's rounds, window by window, by where a flood goes on meanwhile, all side by side.

    A flood at another daemon costs the machine as much: what is left is what sessions of one daemon cost each other.
    """

    stage: Stage
    relay: Relay
    windows: int
    socket: Path
    windows_ms: dict[str, list[list[float]]] = field(default_factory=lambda: {NOWHERE: [], ELSEWHERE: [], HERE: []})
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
        flooded = [(NOWHERE, None), (ELSEWHERE, elsewhere), (HERE, here)]
        before_mib = proc.rss_private_mib(self.stage.newest_daemon.pid)
        for number in range(self.windows):
            for where, victim in flooded if number % 2 else flooded[::-1]:
                self._window(engine, drafting, where, FLOODS[number % len(FLOODS)], victim)
                self.grew_mib = max(self.grew_mib, proc.rss_private_mib(self.stage.newest_daemon.pid) - before_mib)
        for one in (here, elsewhere):
            one.end()

    def _window(self, engine: Engine, drafting: ShimDrafting, where: str, deed: Deed, victim: Apart | None) -> None:
        if victim is not None:
            self._flood(deed, victim.board.session)
        first = len(engine.tally.round_us.values)
        pause(drafting, WINDOW_S)
        self.windows_ms[where].append(sorted(us / 1e3 for us in engine.tally.round_us.values[first:]))
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
        if not self.relay.board.get("began_ns"):
            self.faults.append(f"no flood began ({deed.name})")


def _flood(plan: Plan) -> Row:
    with ExitStack() as exits:
        options = {"row_bytes": 2048, "gpu_ms": 1.0}
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
    if all(windows and all(windows) for windows in floods.windows_ms.values()):
        row.details |= {where: _spread(windows) for where, windows in floods.windows_ms.items()}
        _judge(row)
    else:
        row.faults.append("the other session had windows without rounds")
    row.details["grew_mib"] = round(floods.grew_mib, 1)
    row.expect(floods.grew_mib <= MIB, f"the daemon grew by {floods.grew_mib:.0f} MiB")
    unharmed.rounds(row, played, timeout_ms=NETWORK_TIMEOUT_MS)
    return played.fill(row)


def _p99(values: list[float]) -> float:
    return values[min(len(values) - 1, int(len(values) * 0.99))]


def _spread(windows: list[list[float]]) -> dict[str, Any]:
    """Return what is said of the windows: medians over them, and each one's p99."""
    p99s = [_p99(values) for values in windows]
    return {
        "rounds": sum(map(len, windows)),
        "p50_ms": round(statistics.median(statistics.median(values) for values in windows), 2),
        "p99_ms": round(statistics.median(p99s), 2),
        "windows' p99_ms": [round(ms, 2) for ms in p99s],
        "max_ms": round(max(values[-1] for values in windows), 2),
    }


def _judge(row: Row) -> None:
    """A machine that stands still for moments spoils some windows, not the median of them: no stall excuses it."""
    p99_ms = {where: row.details[where]["p99_ms"] for where in (NOWHERE, ELSEWHERE, HERE)}
    for where in (NOWHERE, ELSEWHERE):
        most_ms = TIMES * p99_ms[where] + MORE_MS
        said = (
            f"the other session's p99 was {p99_ms[HERE]:.2f} ms beside a flood, {p99_ms[where]:.2f} ms with one {where}"
        )
        row.expect(p99_ms[HERE] <= most_ms, f"{said}; bound {most_ms:.2f} ms")
    row.happened += f"; the other session's p99 {p99_ms[HERE]:.2f} ms, {p99_ms[ELSEWHERE]:.2f} ms beside one at another daemon, {p99_ms[NOWHERE]:.2f} ms without"


DRILLS: Final = (
    Drill(
        name="flood",
        fault="one session's worker sends parts or stale replies without end, and again on every new connection, while another session works",
        bound="the other session's p99, the median of windows of 1 s, is ≤ 1.25 times and 1 ms that of windows in between without a flood, and "
        "with the same flood at another daemon; all its rounds drafted; the daemon grows by ≤ 96 MiB",
        run=_flood,
        quick_s=26,
        group="worker",
    ),
)
