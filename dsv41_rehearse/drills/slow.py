# SPDX-License-Identifier: Apache-2.0
"""Drill: a daemon that is so slow that slots run out."""

from __future__ import annotations

import time

from dataclasses import dataclass, field
from typing import Final

from dsv41_rehearse.drafting import ShimDrafting
from dsv41_rehearse.drill import BACK_S
from dsv41_rehearse.drills.drill import Drill, Plan
from dsv41_rehearse.drills.row import Row
from dsv41_rehearse.drills.stage import Played, Stage, pause
from dsv41_rehearse.drills.timed import Timed, longest_ms
from dsv41_rehearse.engine import Engine


TIMES: Final = (15, 300)
DEADLINE_MS: Final = 60.0
SLOTS: Final = 4
# Two rounds expire while it stands still, the third is in flight; a fourth loss of patience would be a lost session.
STILL_S: Final = 2.4 * DEADLINE_MS / 1e3
GOES_S: Final = (0.04, 0.12)
SUBMIT_MS: Final = 20.0
RELEASED_MS: Final = DEADLINE_MS + 20.0


@dataclass
class Slowness:
    """The act. ``submits``: those that took longer than the longest before."""

    stage: Stage
    times: int
    done: int = 0
    back: bool = True
    submits: list[Timed] = field(default_factory=list)
    _submit_ns: int = 0

    def act(self, _engine: Engine, drafting: ShimDrafting) -> None:
        """Let it go on for moments only, again and again."""
        chance, daemon = self.stage.plan.random(), self.stage.newest_daemon
        drafting.on_submit, drafting.on_submitted = self._begin, self._end
        try:
            for _ in range(self.times):
                pause(drafting, chance.uniform(*GOES_S))
                daemon.stop()
                pause(drafting, STILL_S)
                daemon.resume()
                self.done += 1
        finally:
            daemon.resume()
        self.back = drafting.sessions.wait_drafted_after(time.monotonic_ns(), BACK_S) is not None

    def _begin(self) -> None:
        self._submit_ns = time.monotonic_ns()

    def _end(self, failed: bool) -> None:  # noqa: ARG002 what a drafting calls
        if self._submit_ns:
            took = Timed.between(self._submit_ns, time.monotonic_ns())
            # All that are too long, and of the others the longest.
            if (took.ms or 0.0) > min(SUBMIT_MS, longest_ms(self.submits) or 0.0):
                self.submits.append(took)


def _slow_daemon(plan: Plan) -> Row:
    options = {"slots": SLOTS, "gpu_ms": 2.0}
    # A machine that stands still beside it makes a session be lost by right: what counts here is that nothing blocks.
    with Stage(
        plan=plan,
        worker_ms=1.0,
        deadline_ms=DEADLINE_MS,
        daemon_flags=("--network-timeout-ms", "40"),
        options=options,
        planned=None,
    ) as stage:
        slowness = Slowness(stage, plan.count(*TIMES))
        played = stage.run(slowness.act)
    return played.fill(_judged(slowness, played))


def _judged(slowness: Slowness, played: Played) -> Row:
    skipped = {why: n for why, n in played.report.skipped.items() if n}
    booked = {why: n for why, n in played.driven.status["skipped"].items() if n}
    row = Row(
        "slow-daemon",
        f"stopped {slowness.done} times for {STILL_S * 1e3:.0f} ms; {skipped.get('SLOTS', 0)} steps found no slot",
    )
    row.expect(skipped.get("SLOTS", 0) > 0, "slots never ran out")
    row.expect(booked.get("SLOTS", 0) >= skipped.get("SLOTS", 0), f"{skipped} steps skipped, {booked} counted")
    row.expect(slowness.back, "no drafts any more")
    held = [Timed.between(one.gathered_ns, one.past_ns) for one in played.releases]
    row.released_ms = longest_ms(held)
    row.bounds("a round released", held, RELEASED_MS)
    row.expect(bool(slowness.submits), "no submit was timed")
    row.bounds("a submit", slowness.submits, SUBMIT_MS)
    row.details |= {
        "submit_max_ms": longest_ms(slowness.submits),
        "losses": {why: n for why, n in played.driven.status["losses"].items() if n},
    }
    return row


DRILLS: Final = (
    Drill(
        name="slow-daemon",
        fault="a daemon that stands still for 144 ms at a time and goes on for 40 to 120 ms; 4 slots, a deadline of 60 ms",
        bound="steps without a free slot are skipped and counted; a submit takes ≤ 20 ms, a round is released at its deadline",
        run=_slow_daemon,
        quick_s=6,
        group="daemon",
    ),
)
