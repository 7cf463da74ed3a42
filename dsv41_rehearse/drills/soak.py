# SPDX-License-Identifier: Apache-2.0
"""Drill: many rounds, and every so often a fault that nobody chose."""

from __future__ import annotations

import time

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from dsv41_rehearse.drafting import ShimDrafting
from dsv41_rehearse.drill import BACK_S
from dsv41_rehearse.drills.drill import Drill, Plan
from dsv41_rehearse.drills.restarts import Restarts, flat
from dsv41_rehearse.drills.row import Row
from dsv41_rehearse.drills.stage import Stage
from dsv41_rehearse.drills.timed import Window
from dsv41_rehearse.engine import Engine
from dsv41_rehearse.stack import Child


ROUNDS: Final = (2_000, 100_000)
EVERY: Final = (250, 500)
DEADLINE_MS: Final = 200.0
USUAL_MS: Final = 25.0  # that a round of eight requests takes at most where nothing stands still
SHORT_S: Final = (0.05, 0.25)  # less than a beat may be missed
LONG_S: Final = (0.7, 1.2)
REGIONS: Final = 2  # one that is fenced while its daemon stands still, one in use
LINE_S: Final = 15.0
ROUNDS_S: Final = 120.0  # for the rounds between two faults, on the slowest machine


@dataclass
class Soak:
    """
    The act. ``faults``: what was done, how often.

    ``expired``: when each round was that the watchdog ended with no fault under way, from its gathering on.
    """

    plan: Plan
    stage: Stage
    rounds: int
    every: int
    restarts: Restarts
    faults: Counter[str] = field(default_factory=Counter)
    expired: list[Window] = field(default_factory=list)
    stuck: str | None = None
    _said: float = 0.0

    def act(self, engine: Engine, drafting: ShimDrafting) -> None:
        """Run to the end, with a fault every so many rounds."""
        chance = self.plan.random()
        kinds: list[tuple[str, Callable[[Engine, ShimDrafting], bool]]] = [
            ("daemon killed", lambda _, shim: self.restarts.once(shim, planned=False)),
            ("daemon drained", lambda _, shim: self.restarts.once(shim, planned=True)),
            ("daemon stopped shortly", lambda _, shim: self._stopped(shim, self._daemon, chance.uniform(*SHORT_S))),
            ("daemon stopped for long", lambda _, shim: self._lost(shim, chance.uniform(*LONG_S))),
            ("worker killed", lambda _, shim: self._worker_killed(shim)),
            ("worker stopped", lambda _, shim: self._stopped(shim, self._worker, chance.uniform(*LONG_S))),
        ]
        while made(engine) < self.rounds:
            if not self._quiet(engine, drafting):
                self.stuck = f"the engine stood still after {made(engine)} rounds"
                return
            name, do = chance.choice(kinds)
            self.faults[name] += 1
            if not do(engine, drafting):
                self.stuck = f"no drafts any more after {name}"
                return
            self.restarts.gauge.look(drafting.sessions.seen[-1].pid)
            self._say(engine)

    def _quiet(self, engine: Engine, drafting: ShimDrafting) -> bool:
        """Let so many rounds pass without a fault; none of them may expire."""
        sessions = drafting.sessions
        # What the fault left in flight is booked by then.
        sessions.wait_drafted_after(time.monotonic_ns(), BACK_S)
        began_ns, start, expired = time.monotonic_ns(), made(engine), engine.tally.rounds["EXPIRED"]
        known = len(sessions.releases)
        came = sessions.wait(lambda: made(engine) >= start + self.every, ROUNDS_S)
        more = engine.tally.rounds["EXPIRED"] - expired
        timed = [Window(one.gathered_ns, one.past_ns) for one in sessions.releases[known:] if one.verdict == "EXPIRED"]
        # Counted first, timed after: one that is counted alone was somewhere in these rounds.
        self.expired += timed + [Window(began_ns, time.monotonic_ns())] * (more - len(timed))
        return came

    @property
    def _daemon(self) -> Child:
        return self.stage.newest_daemon

    @property
    def _worker(self) -> Child:
        return self.stage.stack.named("worker")

    def _stopped(self, drafting: ShimDrafting, who: Child, seconds: float) -> bool:
        who.stop()
        drafting.sessions.wait(lambda: False, seconds)
        who.resume()
        return drafting.sessions.wait_drafted_after(time.monotonic_ns(), BACK_S) is not None

    def _lost(self, drafting: ShimDrafting, seconds: float) -> bool:
        before = drafting.sessions.seen[-1]
        self._daemon.stop()
        drafting.sessions.wait(lambda: False, seconds)
        self._daemon.resume()
        return drafting.sessions.wait_other_than(before.id, BACK_S) is not None

    def _worker_killed(self, drafting: ShimDrafting) -> bool:
        victim = self._worker
        victim.kill()
        self.stage.stack.forget(victim)
        self.stage.start_worker(bind=self.stage.endpoint)
        return drafting.sessions.wait_drafted_after(time.monotonic_ns(), BACK_S) is not None

    def _say(self, engine: Engine) -> None:
        if time.monotonic() - self._said > LINE_S:
            self._said = time.monotonic()
            self.plan.say(
                f"{made(engine)} of {self.rounds} rounds, {sum(self.faults.values())} faults; {self.restarts.gauge.newest}"
            )


def made(engine: Engine) -> int:
    """Return how many drafting rounds were made."""
    return sum(engine.tally.rounds.values())


def _soak(plan: Plan) -> Row:
    options = {"gpu_ms": 1.5, "length": 2_000}
    with Stage(plan=plan, requests=8, worker_ms=1.0, audit=False, planned=None, options=options) as stage:
        soak = Soak(plan, stage, plan.count(*ROUNDS), plan.count(*EVERY), Restarts(stage))
        played = stage.run(soak.act)
    row = Row("soak", f"{made(played.driven.engine)} rounds, {sum(soak.faults.values())} faults")
    row.expect(soak.stuck is None, str(soak.stuck))
    row.expired("the soak", soak.expired, DEADLINE_MS, USUAL_MS, among=made(played.driven.engine))
    row.details["faults"] = dict(soak.faults)
    row.expect(
        played.driven.status["registrations"] <= REGIONS,
        f"{played.driven.status['registrations']} regions were registered",
    )
    flat(row, soak.restarts.gauge, steps=played.report.steps, regions=REGIONS)
    return played.fill(row)


DRILLS: Final = (
    Drill(
        name="soak",
        fault="100,000 rounds, 8 requests, a random fault every 500 rounds: daemon killed, drained, stopped; worker killed, stopped",
        bound="no wrong draft, no round expired without a fault, fds, threads and memory flat",
        run=_soak,
        quick_s=30,
        group="soak",
    ),
)
