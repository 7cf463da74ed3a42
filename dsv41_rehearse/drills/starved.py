# SPDX-License-Identifier: Apache-2.0
"""Drills: an engine whose watchdog cannot run: stalled half-way through a round's end, or short of processor time."""

from __future__ import annotations

import time

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

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
BUSY: Final = {"cpu_ms": 6.0, "gpu_ms": 0.3}  # more than either quota, and nearly always with a round in flight
BUSY_WORKER_MS: Final = 6.0
QUOTAS: Final = (50.0, 20.0)
QUOTA_S: Final = (6.0, 60.0)
# A quota that the whole engine shares seldom starves the watchdog alone: both go on with the next period. So then it has its own,
# of which its ticks are gone in a quarter of a period, while the engine goes on.
WATCHDOG: Final = "hf-watchdog"
WATCHDOG_PERCENT: Final = 0.1
WATCHDOG_PERIOD_MS: Final = 1_000.0
WATCHDOG_S: Final = (4.0, 20.0)
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
    try:
        for percent in QUOTAS:
            _at_quota(plan, row, percent)
        _watchdog_at_quota(plan, row)
    except NoCgroupError as error:
        return Row("cpu-quota", "not done", skipped=str(error))
    return row


@contextmanager
def _in_group(stage: Stage) -> Iterator[tuple[Apart, Group]]:
    """An engine with drafts, in a group of its own."""
    engine = Apart(stage)
    # Before it has threads of real-time priority, which a group without a share of such time does not take.
    with Group("cpu", [engine.child.pid]) as group:
        if engine.wait_drafted(20) is None:
            raise TimeoutError(f"no drafts to begin with: {engine.child.tail()}")
        yield engine, group


def _at_quota(plan: Plan, row: Row, percent: float) -> None:
    with Stage(plan=plan, options=BUSY, worker_ms=BUSY_WORKER_MS) as stage:
        with _in_group(stage) as (engine, group):
            group.quota(percent)
            time.sleep(plan.seconds(*QUOTA_S))
            before = engine.board.drafted
            row.expect(engine.wait(lambda: engine.board.drafted > before + 5), f"at {percent:g} %: no drafts any more")
            throttled = group.throttled()
            group.quota(UNBOUND)
            made = engine.end()
        engine.fill(row, made)
    # On a busy machine it may get no more than the larger quota anyway.
    row.expect(throttled > 0 or percent > min(QUOTAS), f"at {percent:g} %: the quota was never reached")
    _judge(row, f"{percent:g} %", made, throttled)


def _watchdog_at_quota(plan: Plan, row: Row) -> None:
    """The engine at the smaller quota, and its watchdog with next to nothing of its own."""
    with Stage(plan=plan, options=BUSY, worker_ms=BUSY_WORKER_MS) as stage:
        with _in_group(stage) as (engine, group), Group("cpu", _threads(engine), threads=True) as watchdog:
            group.quota(min(QUOTAS))
            watchdog.quota(WATCHDOG_PERCENT, WATCHDOG_PERIOD_MS)
            time.sleep(plan.seconds(*WATCHDOG_S))
            throttled = watchdog.throttled()
            watchdog.quota(UNBOUND)
            group.quota(UNBOUND)
            row.expect(engine.wait_drafted(5) is not None, "no drafts once the watchdog runs again")
            made = engine.end()
        engine.fill(row, made)
    row.expect(throttled > 0, "the watchdog's own quota was never reached")
    refused = _judge(row, f"{min(QUOTAS):g} %, its watchdog {WATCHDOG_PERCENT:g} %", made, throttled)
    row.expect(refused > 0, "no submit was refused though the watchdog was starved")


def _threads(engine: Apart) -> list[int]:
    """Return its watchdogs."""
    tasks = Path(f"/proc/{engine.child.pid}/task").iterdir()
    return [int(task.name) for task in tasks if (task / "comm").read_text().strip() == WATCHDOG]


def _judge(row: Row, at: str, made: dict[str, Any], throttled: int) -> int:
    """Note in the row what the engine, filled in last, did at that quota. Return how many submits were refused."""
    row.expect(not row.details["losses"], f"at {at}: sessions lost: {row.details['losses']}")
    held = [Timed(ms, since_ns) for ms, since_ns in made["held"]]
    if held:
        row.released_ms = max(row.released_ms or 0.0, longest_ms(held) or 0.0)
        row.bounds(f"at {at}: a round that its watchdog ended was released", held, DEADLINE_MS + 2 * PERIOD_MS)
    rounds, refused = row.details["rounds"], row.details["skipped"].get(REFUSED, 0)
    row.happened += (
        f"{'; ' if row.happened else ''}{at}: {rounds.get('OK', 0)} rounds with drafts, {refused} submits refused"
    )
    kept = {name: row.details[name] for name in ("rounds", "skipped", "steps")}
    row.details[f"at {at}"] = {**kept, "throttled": throttled}
    return int(refused)


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
        fault="CPU quota of 50 % and 20 % of one processor on the engine process; then of 0.1 % on its watchdog alone as well",
        bound="no loss, no wrong draft; what its watchdog ends is released within the deadline and two periods of the quota; submits are "
        "refused while the watchdog is starved, and drafts come again",
        run=_cpu_quota,
        quick_s=25,
        group="engine",
    ),
)
