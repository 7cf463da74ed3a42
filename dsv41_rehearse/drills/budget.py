# SPDX-License-Identifier: Apache-2.0
"""Drill: more sessions are lost than the budget has."""

from __future__ import annotations

import logging
import time

from dataclasses import dataclass, field
from typing import Final

from dsv41_rehearse.drafting import ShimDrafting
from dsv41_rehearse.drill import BACK_S
from dsv41_rehearse.drills.drill import Drill, Plan
from dsv41_rehearse.drills.row import Row
from dsv41_rehearse.drills.said import Said
from dsv41_rehearse.drills.stage import Stage, pause
from dsv41_rehearse.drills.timed import Timed, longest_ms
from dsv41_rehearse.engine import Engine


RESPAWNS: Final = 2
RESET_S: Final = (6.0, 20.0)
TIMES: Final = (1, 5)
BACK_MS: Final = 500.0
SPENT: Final = "sessions were lost unplanned"


@dataclass
class Spending:
    """The act. ``without_s``: target-only with a daemon there. ``back``: from the moment that one came back to the first draft."""

    stage: Stage
    reset_s: float
    times: int
    row: Row
    without_s: list[float] = field(default_factory=list)
    back: list[Timed] = field(default_factory=list)
    kills: int = 0

    def act(self, _engine: Engine, drafting: ShimDrafting) -> None:
        """Lose sessions until there are none left, then wait for the next. Each time begins with the whole budget."""
        for _ in range(self.times):
            drafting.sessions.wait(lambda: drafting.shim_status().budget_left == RESPAWNS, self.reset_s + BACK_S)
            for _ in range(RESPAWNS):
                if not self._lose(drafting):
                    return
            self._spend(drafting)

    def _lose(self, drafting: ShimDrafting) -> bool:
        before = drafting.sessions.seen[-1]
        pause(drafting, 0.1)
        self._replace_daemon()
        if drafting.sessions.wait_other_than(before.id, BACK_S) is None:
            self.row.faults.append("no session though there was budget")
            return False
        return True

    def _replace_daemon(self) -> None:
        victim = self.stage.newest_daemon
        victim.kill()
        self.stage.stack.forget(victim)
        self.kills += 1
        self.stage.planned = self.kills
        self.stage.start_daemon()

    def _spend(self, drafting: ShimDrafting) -> None:
        """One more loss than there is budget for."""
        before = drafting.sessions.seen[-1]
        self._replace_daemon()
        began = time.monotonic()
        # Nothing was left before, either: it is spent once the keeper has seen this loss, too.
        drafting.sessions.wait(lambda: SPENT in (drafting.shim_status().target_only or ""), BACK_S)
        status = drafting.shim_status()
        self.row.expect(SPENT in (status.target_only or ""), f"the status says {status.target_only!r}")
        comes_ns = time.monotonic_ns() + int(status.budget_wait_s * 1e9)
        back = drafting.sessions.wait_other_than(before.id, self.reset_s + BACK_S)
        if back is None:
            self.row.faults.append("the budget did not come back")
            return
        self.without_s.append(round(time.monotonic() - began, 2))
        self.back.append(Timed.between(comes_ns, back.first_ok_ns))
        self.row.expect(back.met_ns >= comes_ns - 20_000_000, "a session came before the budget did")


def _budget_spent(plan: Plan) -> Row:
    reset_s = plan.seconds(*RESET_S)
    row = Row("budget-spent", "")
    with Said() as said, Stage(plan=plan, requests=1, respawns=RESPAWNS, shim={"respawn_reset_s": reset_s}) as stage:
        spending = Spending(stage, reset_s, plan.count(*TIMES), row)
        played = stage.run(spending.act)
    times = len(spending.without_s)
    row.happened = (
        f"{spending.kills} sessions lost with {RESPAWNS} allowed in {reset_s:g} s; {times} times without budget"
    )
    lines = said.lines(SPENT, logging.ERROR)
    row.expect(len(lines) == times, f"said {len(lines)} times that the budget is spent, {times} would do")
    row.recovered_ms = longest_ms(spending.back)
    row.expect(times == spending.times, f"the budget came back {times} of {spending.times} times")
    row.bounds("drafting again after the budget came back", spending.back, BACK_MS)
    row.details |= {"said": lines, "target_only_s": spending.without_s}
    return played.fill(row)


DRILLS: Final = (
    Drill(
        name="budget-spent",
        fault="one more session lost than the budget allows, a daemon there all the while",
        bound="target-only, said once in the log and in the status; drafting again ≤ 500 ms after the budget comes back",
        run=_budget_spent,
        quick_s=9,
        group="engine",
    ),
)
