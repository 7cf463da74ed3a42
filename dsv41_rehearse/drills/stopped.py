# SPDX-License-Identifier: Apache-2.0
"""Drill: the daemon stops at a named point of its loop and goes on when the next session is running."""

from __future__ import annotations

import time

from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Final

from dsv41_rehearse.drafting import ShimDrafting
from dsv41_rehearse.drill import BACK_S
from dsv41_rehearse.drills import regions
from dsv41_rehearse.drills.drill import Drill, Plan
from dsv41_rehearse.drills.failpoints import FILE_VARIABLE, POINTS, Control, NoFailpointsError, build
from dsv41_rehearse.drills.gate import Gate
from dsv41_rehearse.drills.logs import events
from dsv41_rehearse.drills.row import Row
from dsv41_rehearse.drills.stage import Stage, pause
from dsv41_rehearse.drills.timed import Timed, longest_ms
from dsv41_rehearse.engine import Engine
from dsv41_rehearse.proc import state
from dsv41_rehearse.sessions import SessionSeen
from dsv41_rehearse.stack import Child


DEADLINES_MS: Final = (200.0, 20.0)
LOST_MS: Final = (400.0, 520.0)
PARKED: Final = 3
TICKS_MS: Final = 20.0  # two of the watchdog, with room for a late wake-up
REACHED_S: Final = 10.0
OVER_S: Final = 5.0
GIVEN_UP: Final = "the engine gave the session up"


@dataclass
class Stop:
    """
    One daemon that stopped at a point. ``silent_ms``: from its last beat to the loss seen, ``lost``: from the stop.

    ``held``: how long each round was parked that was held at all.
    """

    point: str
    silent_ms: float | None = None
    lost: Timed = field(default_factory=lambda: Timed(None, time.monotonic_ns()))
    held: list[Timed] = field(default_factory=list)
    back: bool = False


@dataclass
class Stops:
    """The act: every point once. ``faults``: what should not have been."""

    stage: Stage
    control: Control
    module: str
    gate: Gate = field(default_factory=Gate)
    done: list[Stop] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    _beat_ns: int = 0

    def act(self, _engine: Engine, drafting: ShimDrafting) -> None:
        """Do it."""
        try:
            for point in self.stage.plan.random().sample(POINTS, len(POINTS)):
                pause(drafting, 0.15)
                if not self._once(drafting, point):
                    return
        finally:
            self.control.disarm()
            self.gate.open()

    def start_daemon(self) -> Child:
        """Start a daemon with the test build."""
        return self.stage.start_daemon(module="dsv41_rehearse.drills.failing", before=[self.module, "proxyd"])

    def _once(self, drafting: ShimDrafting, point: str) -> bool:
        before, victim = drafting.sessions.seen[-1], self.stage.newest_daemon
        stop = Stop(point)
        self.done.append(stop)
        if not self._stop(drafting, victim, point):
            self.faults.append(f"{point}: the loop never came there")
            return False
        self.stage.stack.unlink_socket()
        successor = self.start_daemon()
        after = drafting.sessions.wait_other_than(before.id, BACK_S)
        self._time(stop, drafting, before, after)
        if after is not None:
            self._resume(stop, drafting, victim, successor)
        victim.resume()
        status = victim.end()
        if status != 0:
            self.faults.append(f"{point}: once it went on, it ended with status {status}: {victim.tail()}")
        self.stage.stack.forget(victim)
        return after is not None and not self.faults  # what is wrong once would be so again, and slowly

    def _stop(self, drafting: ShimDrafting, victim: Child, point: str) -> bool:
        """Arm the point and wait until the daemon has stopped there."""
        if point == "rest":
            self.gate.shut()  # under load it hardly ever rests
        self.control.arm(point)
        stopped = drafting.sessions.wait(lambda: state(victim.pid) == "T" and self.control.stopped_ns != 0, REACHED_S)
        self.gate.open()
        self._beat_ns = self.control.beat_ns  # soon the next daemon's
        return stopped

    def _time(self, stop: Stop, drafting: ShimDrafting, before: SessionSeen, after: SessionSeen | None) -> None:
        stopped_ns, deadline_ms = self.control.stopped_ns, self.stage.deadline_ms
        lost_ns = after.lost_before_ns if after else drafting.shim_status().lost_ns
        if lost_ns:
            stop.lost = Timed.between(stopped_ns, lost_ns)
            stop.silent_ms = (lost_ns - self._beat_ns) / 1e6
        releases = [one for one in drafting.sessions.releases if one.session == before.id]
        held = [Timed.between(max(stopped_ns, one.gathered_ns), one.past_ns) for one in releases]
        # After the loss rounds are let go at once: these are not parked.
        stop.held = [one for one in held if one.ms is not None and one.ms > deadline_ms / 2]

    def _resume(self, stop: Stop, drafting: ShimDrafting, victim: Child, successor: Child) -> None:
        """Let the old one go on while the new session rests: nothing of it may be seen there."""
        geometry = self.stage.scenario().geometry()
        if not self.gate.shut():
            self.faults.append(f"{stop.point}: the engine was not at rest")
        (inode,) = regions.mapped_by(successor.pid)
        if inode in regions.mapped_by(victim.pid) | regions.held_by(victim.pid):
            self.faults.append(f"{stop.point}: the old daemon still has the new session's region")
        was = regions.at_rest(inode, geometry)
        victim.resume()
        resumed = time.monotonic()
        while not events(victim, "session over", reason=GIVEN_UP) and time.monotonic() - resumed < OVER_S:
            time.sleep(0.005)
        if not events(victim, "session over", reason=GIVEN_UP):
            self.faults.append(f"{stop.point}: the old daemon did not end the session within {OVER_S:g} s")
        where = regions.difference(was, regions.at_rest(inode, geometry))
        if where:
            self.faults.append(f"{stop.point}: the new session's region changed when the old daemon went on, {where}")
        self.gate.open()
        stop.back = drafting.sessions.wait_drafted_after(time.monotonic_ns(), BACK_S) is not None


def _daemon_stop(plan: Plan) -> Row:
    try:
        module = build("proxyd._daemon")
    except NoFailpointsError as error:
        return Row("daemon-stop", "not done", skipped=str(error))
    row = Row("daemon-stop", "")
    for deadline_ms in DEADLINES_MS:
        _at_deadline(plan, row, module, deadline_ms)
    return row


def _at_deadline(plan: Plan, row: Row, module: str, deadline_ms: float) -> None:
    # At 20 ms a slow machine alone may end sessions: only the output is judged then, and how many rounds each stop parked.
    planned = len(POINTS) if deadline_ms == DEADLINES_MS[0] else None
    # The daemon's own patience has to be below the engine's.
    flags = () if deadline_ms == DEADLINES_MS[0] else ("--network-timeout-ms", "15")
    with ExitStack() as exits:
        stage = exits.enter_context(
            Stage(plan=plan, worker_ms=2.0, deadline_ms=deadline_ms, daemon_flags=flags, daemon=False, planned=planned)
        )
        control = exits.enter_context(closing(Control(stage.stack.directory / "failpoints")))
        stage.stack.environment[FILE_VARIABLE] = str(control.path)
        stops = Stops(stage, control, module)
        stops.start_daemon()
        played = stage.run(stops.act, stops.gate)
    played.fill(row)
    row.faults += stops.faults
    row.expect(
        len(stops.done) == len(POINTS) and all(stop.back for stop in stops.done), "not every stop was recovered from"
    )
    _judge(row, stops.done, deadline_ms)


def _judge(row: Row, stops: list[Stop], deadline_ms: float) -> None:
    at = f"at {deadline_ms:g} ms"
    held = [one for stop in stops for one in stop.held]
    lost_ms = [stop.lost.ms for stop in stops]
    row.parked = max(row.parked or 0, *(len(stop.held) for stop in stops))
    row.details[at] = {
        stop.point: {"lost_ms": stop.lost.ms, "silent_ms": stop.silent_ms, "held_ms": [one.ms for one in stop.held]}
        for stop in stops
    }
    for stop in stops:
        least = LOST_MS[0] if deadline_ms == DEADLINES_MS[0] else None
        row.bounds(f"{at}, {stop.point}: lost", [stop.lost], LOST_MS[1], least, own=True)
        if deadline_ms == DEADLINES_MS[1]:
            row.expect(len(stop.held) <= PARKED, f"{at}, {stop.point}: {len(stop.held)} rounds were parked")
    if held:
        row.bounds(f"{at}: a parked round released", held, deadline_ms + TICKS_MS)
        row.released_ms = max(row.released_ms or 0.0, longest_ms(held) or 0.0)
    row.detected_ms = max([row.detected_ms or 0.0, *(ms for ms in lost_ms if ms is not None)])
    row.happened += (
        f"{'; ' if row.happened else ''}{at} stopped at {len(stops)} points, {len(held)} rounds parked in all"
    )


DRILLS: Final = (
    Drill(
        name="daemon-stop",
        fault="SIGSTOP to the daemon at each of 8 named points of its loop, SIGCONT once the next session runs",
        bound="lost at 400-520 ms; with a deadline of 20 ms at most 3 rounds parked; once the old one goes on nothing of it is to be "
        "seen in the new session's region, byte by byte, and it ends its own session",
        run=_daemon_stop,
        quick_s=40,
        group="daemon",
    ),
)
