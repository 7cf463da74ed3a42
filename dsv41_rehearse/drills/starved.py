# SPDX-License-Identifier: Apache-2.0
"""Drills: an engine whose watchdog cannot run: stalled half-way through a round's end, or short of processor time."""

from __future__ import annotations

import time

from contextlib import closing
from typing import Final

from dsv41_rehearse.drills.apart import Apart
from dsv41_rehearse.drills.cgroups import Group, NoCgroupError
from dsv41_rehearse.drills.drill import Drill, Plan
from dsv41_rehearse.drills.failpoints import FILE_VARIABLE, WATCHDOG_POINT, Control, NoFailpointsError, build
from dsv41_rehearse.drills.row import Row
from dsv41_rehearse.drills.stage import Stage
from dsv41_rehearse.drills.timed import Timed, longest_ms
from hostflag.verdicts import Skip


STALLS: Final = (4, 40)
STALL_S: Final = 0.4
WORKER_MS: Final = 30.0  # of 33 in a step: nearly every stop of the daemon meets a parked round
HIT_S: Final = 2.0
PAUSE_S: Final = (0.1, 0.3)
FREED_MS: Final = 170.0  # the network timeout, and room for a late wake-up
REFUSED: Final = Skip.WATCHDOG.name
BUSY: Final = {"cpu_ms": 40.0}  # of 43 in a step: more than either quota
QUOTAS: Final = (50.0, 20.0)
QUOTA_S: Final = (6.0, 60.0)
UNBOUND: Final = 10_000.0
PERIOD_MS: Final = 100.0
DEADLINE_MS: Final = 200.0


def _watchdog_stalled(plan: Plan) -> Row:
    try:
        module = build("engine_shim._engine")
    except NoFailpointsError as error:
        return Row("watchdog-stalled", "not done", skipped=str(error))
    times, chance = plan.count(*STALLS), plan.random()
    freed: list[Timed] = []
    row = Row("watchdog-stalled", "")
    with (
        Stage(plan=plan, worker_ms=WORKER_MS) as stage,
        closing(Control(stage.stack.directory / "failpoints")) as control,
    ):
        stage.stack.environment[FILE_VARIABLE] = str(control.path)
        engine = Apart(stage, failing=module)
        if engine.wait_drafted(5) is None:
            raise TimeoutError(f"no drafts to begin with: {engine.child.tail()}")
        for _ in range(times):
            time.sleep(chance.uniform(*PAUSE_S))
            _stall_once(row, stage, engine, control, freed)
        row = engine.fill(row, engine.end())
    row.happened = (
        f"stalled {len(freed)} times for {STALL_S * 1e3:g} ms between swap and release, the daemon back meanwhile"
    )
    row.expect(len(freed) == times, f"only {len(freed)} of {times} stalls met a round that expired")
    row.released_ms = longest_ms(freed)
    row.bounds("released by the daemon once it goes on", freed, FREED_MS)
    row.expect(not row.details["losses"], f"sessions lost: {row.details['losses']}")
    row.expect(
        row.details["skipped"].get(REFUSED, 0) >= times, "submits were not refused while the watchdog stood still"
    )
    return row


def _stall_once(row: Row, stage: Stage, engine: Apart, control: Control, freed: list[Timed]) -> None:
    """Stop the daemon until a round expires, let it go on while the watchdog has not yet released that round."""
    daemon = stage.newest_daemon
    control.arm(WATCHDOG_POINT, STALL_S)
    daemon.stop()
    hit = engine.wait(lambda: control.stopped_ns != 0, HIT_S)
    daemon.resume()
    if not hit:
        control.disarm()
        return
    resumed_ns, steps = time.monotonic_ns(), engine.board.steps
    # Parked, it launches no step. Still within the stall: only the daemon can have released it.
    if engine.wait(lambda: engine.board.steps > steps, STALL_S - 0.05):
        freed.append(Timed.between(resumed_ns, time.monotonic_ns()))
    if engine.wait_drafted(2) is None:
        row.faults.append("no drafts any more after a stall")


def _cpu_quota(plan: Plan) -> Row:
    row = Row("cpu-quota", "")
    for percent in QUOTAS:
        try:
            _at_quota(plan, row, percent)
        except NoCgroupError as error:
            return Row("cpu-quota", "not done", skipped=str(error))
    return row


def _at_quota(plan: Plan, row: Row, percent: float) -> None:
    with Stage(plan=plan, options=BUSY) as stage:
        engine = Apart(stage)
        # Before it has threads of real-time priority, which a group without a share of such time does not take.
        with Group("cpu", [engine.child.pid]) as group:
            if engine.wait_drafted(20) is None:
                raise TimeoutError(f"no drafts to begin with: {engine.child.tail()}")
            group.quota(percent)
            time.sleep(plan.seconds(*QUOTA_S))
            before = engine.board.drafted
            row.expect(engine.wait(lambda: engine.board.drafted > before + 5), f"at {percent:g} %: no drafts any more")
            throttled = group.throttled()
            group.quota(UNBOUND)
            made = engine.end()
        engine.fill(row, made)
    starved = row.details["skipped"].get(REFUSED, 0)
    # On a busy machine it may get no more than the larger quota anyway.
    row.expect(throttled > 0 or percent > min(QUOTAS), f"at {percent:g} %: the quota was never reached")
    row.expect(not row.details["losses"], f"at {percent:g} %: sessions lost: {row.details['losses']}")
    held_ms = made["held_ms"]
    if held_ms is not None:
        row.released_ms = max(row.released_ms or 0.0, round(held_ms, 1))
        row.bound(
            f"at {percent:g} %: a round that its watchdog ended was released", held_ms, DEADLINE_MS + 2 * PERIOD_MS
        )
    rounds = row.details["rounds"]
    row.happened += f"{'; ' if row.happened else ''}{percent:g} %: {rounds.get('OK', 0)} rounds with drafts, {starved} submits refused"
    kept = {name: row.details[name] for name in ("rounds", "skipped", "steps")}
    row.details[f"at {percent:g} %"] = {**kept, "throttled": throttled}


DRILLS: Final = (
    Drill(
        name="watchdog-stalled",
        fault="the watchdog stalled for 400 ms between its swap of an expired round's verdict and the release",
        bound="the daemon, outvoted, releases the round within its network timeout; submits are refused meanwhile; no loss, no wrong draft",
        run=_watchdog_stalled,
        quick_s=8,
        group="engine",
    ),
    Drill(
        name="cpu-quota",
        fault="CPU quota of 50 % and 20 % of one processor on the engine process",
        bound="no loss, no wrong draft; what its watchdog ends is released within the deadline and two periods of the quota",
        run=_cpu_quota,
        quick_s=25,
        group="engine",
    ),
)
