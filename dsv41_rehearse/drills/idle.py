# SPDX-License-Identifier: Apache-2.0
"""Drill: nothing to do for a long time, then a request."""

from __future__ import annotations

import statistics
import time

from typing import Final

from dsv41_rehearse.drafting import ShimDrafting
from dsv41_rehearse.drill import BACK_S
from dsv41_rehearse.drills.drill import Drill, Plan
from dsv41_rehearse.drills.gate import Gate
from dsv41_rehearse.drills.row import Row
from dsv41_rehearse.drills.stage import Stage, pause
from dsv41_rehearse.drills.timed import Timed
from dsv41_rehearse.engine import Engine


IDLE_S: Final = (30.0, 600.0)
BUSY_S: Final = 3.0
NORMAL: Final = 1.5  # times the longest of the rounds before


def _idle(plan: Plan) -> Row:
    seconds = plan.seconds(*IDLE_S)
    gate = Gate()
    before: list[float] = []
    first: list[Timed] = []

    def act(engine: Engine, drafting: ShimDrafting) -> None:
        try:
            pause(drafting, BUSY_S)
            gate.shut()
            before.extend(us / 1e3 for us in engine.tally.round_us.values)
            pause(drafting, seconds)
        finally:
            opened_ns = time.monotonic_ns()
            gate.open()
        decided_ns = drafting.sessions.wait_drafted_after(opened_ns, BACK_S)
        if decided_ns is not None:
            first.append(Timed.between(drafting.sessions.drafted_gathered_ns, decided_ns))

    with Stage(plan=plan, requests=1) as stage:
        played = stage.run(act, gate)
    row = Row("idle", f"idle for {seconds:g} s, then on")
    row.details |= {
        "before_ms": {"max": max(before), "median": statistics.median(before)},
        "first_ms": [one.ms for one in first],
    }
    row.expect(bool(first), "there was no round afterwards")
    row.bounds("the first round afterwards", first, max(before) * NORMAL)
    return played.fill(row)


DRILLS: Final = (
    Drill(
        name="idle",
        fault="idle for 60 s (the long run: 10 minutes), then a request",
        bound="no loss; the first round takes as long as a round does",
        run=_idle,
        quick_s=36,
        group="rest",
    ),
)
