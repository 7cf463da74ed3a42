# SPDX-License-Identifier: Apache-2.0
"""Drill: a driver call fails, at each step of a submit."""

from __future__ import annotations

import errno
import time

from dataclasses import dataclass, field
from typing import Final

import engine_shim

from dsv41_rehearse.drafting import ShimDrafting
from dsv41_rehearse.drill import BACK_S
from dsv41_rehearse.drills.drill import Drill, Plan
from dsv41_rehearse.drills.row import Row
from dsv41_rehearse.drills.said import Said
from dsv41_rehearse.drills.stage import Stage, pause
from dsv41_rehearse.drills.timed import Timed, longest_ms
from dsv41_rehearse.engine import Engine


MOST_STEPS: Final = 40
EVERY: Final = (3, 1)  # the quick form leaves steps out, others each time by its seed
REPEAT: Final = (1, 2)
REGIONS: Final = 30  # a soft stream serves 32
STEP_MS: Final = 240.0  # the deadline, two ticks and the step's own work
BACK_MS: Final = 1000.0


@dataclass
class Failures:
    """The act. ``failed``: the operations of a submit that failed, by number. ``steps``: how many a submit has."""

    stage: Stage
    row: Row
    failed: list[int] = field(default_factory=list)
    steps: int = 0
    _armed: int = 0
    _result: bool | None = None
    _stream: engine_shim.SoftStream | None = None

    def act(self, _engine: Engine, drafting: ShimDrafting) -> None:
        """Let one operation after the other fail, until a submit has no such one."""
        plan = self.stage.plan
        self._stream = drafting.stream
        drafting.on_submit, drafting.on_submitted = self._arm, self._disarm
        try:
            for _ in range(plan.count(*REPEAT)):
                every = plan.count(*EVERY)
                nth = 1 + plan.seed % every
                while nth <= MOST_STEPS and self._once(drafting, nth):
                    nth += every
        finally:
            drafting.on_submit = drafting.on_submitted = None

    def _once(self, drafting: ShimDrafting, nth: int) -> bool:
        """False: no submit has so many operations, or there is no session any more."""
        pause(drafting, 0.05)
        before = drafting.sessions.seen[-1]
        # Prompts make submits longer: one that gets through does not say that none has so many.
        if not any(self._tried(drafting, nth) for _ in range(3)):
            self.steps = max(self.steps, nth - 1)
            return False
        self.failed.append(nth)
        self.stage.planned = len(self.failed)
        if drafting.sessions.wait_other_than(before.id, BACK_S) is None:
            self.row.faults.append(f"operation {nth}: no session any more: {drafting.shim_status().target_only}")
            return False
        return True

    def _tried(self, drafting: ShimDrafting, nth: int) -> bool:
        """Arm the next submit; return whether it failed."""
        self._result, self._armed = None, nth
        if not drafting.sessions.wait(lambda: self._result is not None, BACK_S):
            self.row.faults.append("the engine stood still")
        self._armed = 0
        return bool(self._result)

    def _arm(self) -> None:
        if self._armed and self._result is None and self._stream is not None:
            self._stream.fail_nth(self._armed, errno.EIO)

    def _disarm(self, failed: bool) -> None:
        if self._armed and self._result is None and self._stream is not None:
            self._stream.fail_nth(0, 0)
            self._result = failed


@dataclass
class Steps:
    """A watcher: how long each step took. ``taken``: those that are too long, and of the others each that was the longest so far."""

    taken: list[Timed] = field(default_factory=list)
    _last_ns: int = 0

    def __call__(self, engine: Engine) -> None:  # noqa: ARG002 a watcher
        """A step is over, the next begins."""
        now = time.monotonic_ns()
        if self._last_ns:
            took = Timed.between(self._last_ns, now)
            if (took.ms or 0.0) > min(STEP_MS, longest_ms(self.taken) or 0.0):
                self.taken.append(took)
        self._last_ns = now


def _submit_fails(plan: Plan) -> Row:
    row = Row("submit-fails", "")
    options = {"row_bytes": 2048, "ring_bytes": 1 << 20}
    with Said(), Stage(plan=plan, shim={"regions": REGIONS, "backoff_ms": (1.0, 20.0)}, options=options) as stage:
        failures, steps = Failures(stage, row), Steps()
        played = stage.run(failures.act, steps)
    count, status = len(failures.failed), played.driven.status
    row.happened = f"operations {', '.join(map(str, dict.fromkeys(failures.failed)))} of a submit failed; it has {failures.steps} or so"
    losses = {why: n for why, n in status["losses"].items() if n}
    row.expect(count > 0, "nothing failed")
    row.expect(losses == {"SUBMIT": count}, f"losses: {losses}, {count} submits failed")
    # Never used again: each session after a failed submit has a region of its own.
    row.expect(
        status["registrations"] == count + 1 and status["adoptions"] == 0,
        f"{status['registrations']} regions, {status['adoptions']} adoptions",
    )
    row.expect(
        status["regions"]["poisoned"] == count,
        f"{status['regions']['poisoned']} poisoned regions, {count} submits failed",
    )
    row.released_ms = longest_ms(steps.taken)
    row.bounds("a step", steps.taken, STEP_MS)
    back = [
        Timed.between(one.lost_before_ns, one.first_ok_ns) for one in played.driven.sessions.seen[1:] if one.first_ok_ns
    ]
    row.recovered_ms = longest_ms(back)
    row.details["recovered_ms"] = [one.ms for one in back]
    row.bounds("drafting again after the loss", back, BACK_MS)
    return played.fill(row)


DRILLS: Final = (
    Drill(
        name="submit-fails",
        fault="a driver call of a submit fails (soft stream), one after the other",
        bound="the session is lost, no wrong draft; its region is never used again; no step takes longer than the deadline and two ticks; "
        "drafting again ≤ 1 s",
        run=_submit_fails,
        quick_s=6,
        group="engine",
    ),
)
