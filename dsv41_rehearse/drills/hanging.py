# SPDX-License-Identifier: Apache-2.0
"""Drill: the worker hangs, and answers when its round is long over."""

from __future__ import annotations

import time

from contextlib import ExitStack
from typing import Final

from dsv41_rehearse.drafting import ShimDrafting
from dsv41_rehearse.drill import BACK_S
from dsv41_rehearse.drills.drill import Drill, Plan
from dsv41_rehearse.drills.misdeeds import Deed
from dsv41_rehearse.drills.relay import Relay
from dsv41_rehearse.drills.row import Row
from dsv41_rehearse.drills.scrape import counters, dropped, grown
from dsv41_rehearse.drills.stage import Played, Stage, pause
from dsv41_rehearse.drills.timed import Timed, longest_ms
from dsv41_rehearse.engine import Engine


HANGS: Final = (2, 30)
LATE: Final = (4, 60)
HANGS_S: Final = 0.4
TIMEOUT_MS: Final = (150.0, 165.0)
BACK_MS: Final = 1000.0


class Hangs:
    """The act: the worker stopped for a while, then single replies held back until a later round waits."""

    def __init__(self, stage: Stage, relay: Relay, plan: Plan) -> None:
        self._stage, self._relay, self._plan = stage, relay, plan
        self.hangs = self.late = self.stale = 0
        self.back: list[Timed] = []
        self.faults: list[str] = []

    def act(self, _engine: Engine, drafting: ShimDrafting) -> None:
        """Do it."""
        chance = self._plan.random()
        before = counters(self._stage.newest_daemon)
        for number in range(self._plan.count(*HANGS) + self._plan.count(*LATE)):
            pause(drafting, chance.uniform(0.2, 0.4))
            go_on_ns = self._hang(drafting) if number < self._plan.count(*HANGS) else self._hold_back(drafting)
            back_ns = drafting.sessions.wait_drafted_after(go_on_ns, BACK_S)
            if back_ns is None:
                self.faults.append("no drafts any more")
                return
            self.back.append(Timed.between(go_on_ns, back_ns))
        pause(drafting, 0.1)
        self.stale = grown(before, counters(self._stage.newest_daemon), dropped("stale"))

    def _hang(self, drafting: ShimDrafting) -> int:
        worker = self._stage.stack.named("worker")
        worker.stop()
        pause(drafting, HANGS_S)
        worker.resume()
        self.hangs += 1
        return time.monotonic_ns()

    def _hold_back(self, drafting: ShimDrafting) -> int:
        before = len(drafting.sessions.fell_back)
        self._relay.ask(Deed.LATE)
        if not drafting.sessions.wait(lambda: len(drafting.sessions.fell_back) > before, BACK_S):
            self.faults.append("a reply that was held back made no round fall back")
        self.late += self._relay.done
        return time.monotonic_ns()


def _worker_hang(plan: Plan) -> Row:
    with ExitStack() as exits:
        stage = exits.enter_context(Stage(plan=plan, daemon=False))
        relay = Relay(stage.stack, stage.endpoint)
        stage.endpoint = relay.endpoint
        stage.start_daemon()
        hangs = Hangs(stage, relay, plan)
        played = stage.run(hangs.act)
    return played.fill(_judged(hangs, played))


def _judged(hangs: Hangs, played: Played) -> Row:
    row = Row(
        "worker-hang", f"stopped for {HANGS_S:g} s {hangs.hangs} times; {hangs.late} replies came in a later round"
    )
    took = [Timed(one.took_ms, one.gathered_ns) for one in played.driven.sessions.fell_back if one.verdict == "TIMEOUT"]
    row.details["timeouts_ms"] = [one.ms for one in took]
    row.details["stale"] = hangs.stale
    row.faults += hangs.faults
    row.expect(len(took) >= hangs.hangs + hangs.late, f"only {len(took)} rounds ran into the timeout")
    row.bounds("verdict TIMEOUT", took, TIMEOUT_MS[1], TIMEOUT_MS[0])
    row.expect(hangs.stale == hangs.late, f"{hangs.late} late replies, {hangs.stale} counted as dropped")
    row.detected_ms = row.released_ms = longest_ms(took)
    row.parked = 1
    row.recovered_ms = longest_ms(hangs.back)
    row.bounds("drafting again after the worker went on", hangs.back, BACK_MS)
    return row


DRILLS: Final = (
    Drill(
        name="worker-hang",
        fault="the worker stopped for 0.4 s; single replies that come when their round is over and a later one waits",
        bound="verdict TIMEOUT at 150 ms; each late reply dropped and counted; drafting again ≤ 1 s after the worker goes on",
        run=_worker_hang,
        quick_s=6,
        group="worker",
    ),
)
