# SPDX-License-Identifier: Apache-2.0
"""Drill: an engine has a forked child that goes on running when the daemon, or the engine itself, is killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from dsv41_rehearse.drafting import ShimDrafting
from dsv41_rehearse.drills.drill import Drill, Plan
from dsv41_rehearse.drills.logs import events
from dsv41_rehearse.drills.losses import Killed, judge, kill_daemon
from dsv41_rehearse.drills.row import Row
from dsv41_rehearse.drills.stage import Stage, pause
from dsv41_rehearse.drills.timed import Timed, longest_ms
from dsv41_rehearse.engine import Engine


TIMES: Final = (2, 30)
WORKER_MS: Final = 30.0
OVER_S: Final = 20.0
GONE_MS: Final = 250.0
MORE_MS: Final = 20.0


@contextmanager
def living_child() -> Iterator[None]:
    """Meanwhile this process, the engine, has a forked child."""
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(tell)
            os.read(told, 1)
        finally:
            # Ctrl-C comes to the whole group: what it raises must not go on with the engine's work in here.
            os._exit(0)
    os.close(told)
    try:
        yield
    finally:
        os.close(tell)
        os.waitpid(pid, 0)


@dataclass
class Forks:
    """The act. By whether the engine had a child: ``killed`` daemons; ``gone``: from an engine's kill to the daemon's having noticed."""

    stage: Stage
    times: int
    killed: dict[bool, list[Killed]] = field(default_factory=lambda: {True: [], False: []})
    gone: dict[bool, list[Timed]] = field(default_factory=lambda: {True: [], False: []})
    faults: list[str] = field(default_factory=list)

    def act(self, _engine: Engine, drafting: ShimDrafting) -> None:
        """With and without a child, side by side."""
        for number in range(self.times):
            for child in (False, True):
                pause(drafting, 0.2)
                self._engine_killed(drafting, f"forking-{number}-{child}", child=child)
            with living_child():
                pause(drafting, 0.2)
                self._daemon_killed(drafting, child=True)
            self._daemon_killed(drafting, child=False)

    def _daemon_killed(self, drafting: ShimDrafting, *, child: bool) -> None:
        self.killed[child].append(kill_daemon(self.stage, drafting))
        self.stage.planned = len(self.killed[True]) + len(self.killed[False])

    def _engine_killed(self, drafting: ShimDrafting, name: str, *, child: bool) -> None:
        command = [
            sys.executable,
            "-W",
            "ignore",
            "-m",
            "dsv41_rehearse.drills.forking",
            str(self.stage.stack.socket),
            name,
        ]
        with subprocess.Popen(
            [*command, "yes" if child else "no"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as engine:
            assert engine.stdout
            if engine.stdout.readline() != "there\n":
                self.faults.append(f"{name} had no session")
                return
            killed_ns = time.monotonic_ns()
            engine.kill()
            daemon = self.stage.newest_daemon
            if not drafting.sessions.wait(lambda: bool(events(daemon, "session over", engine=name)), OVER_S):
                self.faults.append(f"{name}: the daemon did not notice its end")
                return
            self.gone[child].append(Timed.between(killed_ns, time.monotonic_ns()))
            # The child ends with its standard input.


def _forked_child(plan: Plan) -> Row:
    with Stage(plan=plan, worker_ms=WORKER_MS, requests=2) as stage:
        forks = Forks(stage, plan.count(*TIMES))
        played = stage.run(forks.act)
    row = Row(
        "forked-child",
        f"{len(forks.killed[True])} daemons and {len(forks.gone[True])} engines killed while a forked child runs, as many without",
    )
    row.faults += forks.faults
    without = judge(Row("", ""), forks.killed[False])
    judge(row, forks.killed[True])
    row.details["seen_ms without a child"] = without.detected_ms
    row.expect(len(forks.gone[True]) == forks.times, f"only {len(forks.gone[True])} of {forks.times} ends were noticed")
    row.bounds("the daemon noticed the engine's end", forks.gone[True], GONE_MS)
    without_ms = longest_ms(forks.gone[False]) or 0.0
    row.bounds("that, with a child, against without", forks.gone[True], without_ms + MORE_MS)
    row.details["engine's end seen_ms"] = {
        how: [one.ms for one in forks.gone[child]] for how, child in (("with", True), ("without", False))
    }
    return played.fill(row)


DRILLS: Final = (
    Drill(
        name="forked-child",
        fault="the engine forks a child that keeps running; then the daemon is killed, or the engine",
        bound="loss seen ≤ 20 ms after the daemon's death, as without a child; the daemon notices the engine's end at most 20 ms later than "
        "without",
        run=_forked_child,
        quick_s=12,
        group="engine",
    ),
)
