# SPDX-License-Identifier: Apache-2.0
"""Drills: the worker is killed and comes back; the daemon is led to another one."""

from __future__ import annotations

import time

from dataclasses import dataclass
from typing import Final

from dsv41_rehearse.drafting import ShimDrafting
from dsv41_rehearse.drill import BACK_S
from dsv41_rehearse.drills.drill import Drill, Plan
from dsv41_rehearse.drills.row import Row
from dsv41_rehearse.drills.scrape import counters, grown, rounds
from dsv41_rehearse.drills.stage import Stage, pause
from dsv41_rehearse.drills.timed import Timed, longest_ms
from dsv41_rehearse.engine import Engine


KILLS: Final = (3, 50)
SWITCHES: Final = (4, 50)
AT_ONCE_MS: Final = 20.0  # far below timeout and deadline: what takes longer has waited for something
BACK_MS: Final = 1000.0
AWAY_S: Final = 0.4
BREAKER_OPEN: Final = "breaker_open{"
IN_FLIGHT: Final = 3  # rounds of an engine with two steps in flight


@dataclass
class Back:
    """
    What came of one time.

    ``fell_back``: the rounds without drafts, for how long each was parked. ``without_ms``: between the first and the last of them.
    ``back``: until drafts came again. ``opened``: whether the circuit breaker was open meanwhile.
    """

    fell_back: list[Timed]
    back: Timed
    without_ms: float = 0.0
    opened: bool = False


def _since(drafting: ShimDrafting, ns: int) -> list[Timed]:
    """Return the rounds that fell back and were gathered, or parked, after ``ns``: for how long since."""
    ended = [one for one in drafting.sessions.fell_back if one.decided_ns >= ns]
    return [Timed.between(max(ns, one.gathered_ns), one.decided_ns) for one in ended]


def _without_ms(drafting: ShimDrafting, ns: int) -> float:
    times = [one.decided_ns for one in drafting.sessions.fell_back if one.decided_ns >= ns]
    return (max(times) - min(times)) / 1e6 if times else 0.0


def _breaker_open(stage: Stage) -> bool:
    shown = {name: value for name, value in counters(stage.newest_daemon).items() if name.startswith(BREAKER_OPEN)}
    return bool(shown) and all(shown.values())


def _worker_kill(plan: Plan) -> Row:
    wanted, chance = plan.count(*KILLS), plan.random()
    done: list[Back] = []

    def act(_engine: Engine, drafting: ShimDrafting) -> None:
        for _ in range(wanted):
            pause(drafting, chance.uniform(0.2, 0.5))
            victim = stage.stack.named("worker")
            hurt_ns = victim.kill()
            stage.stack.forget(victim)
            pause(drafting, AWAY_S)
            fell_back, opened = _since(drafting, hurt_ns), _breaker_open(stage)
            stage.start_worker(bind=stage.endpoint)
            ready_ns = stage.stack.named("worker").ready_ns
            back_ns = drafting.sessions.wait_drafted_after(ready_ns, BACK_S)
            done.append(Back(fell_back, Timed.between(ready_ns, back_ns), opened=opened))
            if back_ns is None:
                return
        seen.append(counters(stage.newest_daemon))
        closed.append(not _breaker_open(stage))

    closed: list[bool] = []
    seen: list[dict[str, float]] = []
    with Stage(plan=plan, audit=False, worker_ms=30.0) as stage:
        daemon = stage.newest_daemon.pid
        seen.append(counters(stage.newest_daemon))
        played = stage.run(act)
    row = Row("worker-kill", f"killed {len(done)} times for {AWAY_S:g} s and more, most times with a round parked")
    fell_back = [one for time in done for one in time.fell_back]
    row.released_ms = longest_ms(fell_back)
    row.bounds("a round decided after the kill", fell_back, AT_ONCE_MS)
    _back(row, done, wanted)
    row.expect(all(one.fell_back for one in done), "no round fell back")
    opened = sum(one.opened for one in done)
    row.expect(opened == len(done), f"the circuit breaker was open {opened} times of {len(done)}")
    row.expect(closed == [True], "the circuit breaker stayed open")
    row.expect({one.pid for one in played.driven.sessions.seen} == {daemon}, "another daemon")
    if len(seen) == 2:
        opens = row.details["breaker_opens"] = grown(seen[0], seen[1], "breaker_opens_total")
        row.expect(opens == len(done), f"the circuit breaker opened {opens} times at {len(done)} kills")
        row.details["by verdict"] = {
            name: grown(seen[0], seen[1], rounds(name)) for name in ("disconnected", "breaker", "timeout")
        }
        row.expect(row.details["by verdict"]["timeout"] == 0, "rounds ran into the timeout")
    return played.fill(row)


def _back(row: Row, done: list[Back], wanted: int) -> None:
    row.expect(len(done) == wanted, f"only {len(done)} of {wanted} were done")
    back = [one.back for one in done]
    row.recovered_ms = longest_ms(back)
    row.bounds("drafting again after the worker was there", back, BACK_MS)


def _endpoint_change(plan: Plan) -> Row:
    wanted, chance = plan.count(*SWITCHES), plan.random()
    done: list[Back] = []

    def act(_engine: Engine, drafting: ShimDrafting) -> None:
        for number in range(wanted):
            pause(drafting, chance.uniform(0.2, 0.5))
            asked_ns = time.monotonic_ns()
            stage.stack.switch_worker(endpoints[(number + 1) % 2])
            told_ns = time.monotonic_ns()
            back_ns = drafting.sessions.wait_drafted_after(told_ns, BACK_S)
            pause(drafting, 0.1)
            back = Timed.between(told_ns, back_ns)
            done.append(Back(_since(drafting, asked_ns), back, _without_ms(drafting, asked_ns)))
            if back_ns is None:
                return

    with Stage(plan=plan) as stage:
        endpoints = [stage.endpoint, stage.start_worker(name="worker-2")]
        played = stage.run(act)
    row = Row("endpoint-change", f"{len(done)} times led to the other of two workers, under load")
    row.details["fell_back"] = [len(one.fell_back) for one in done]
    row.details["without_ms"] = [round(one.without_ms, 1) for one in done]
    most = max((len(one.fell_back) for one in done), default=0)
    row.expect(most <= IN_FLIGHT, f"{most} rounds without drafts at once, {IN_FLIGHT} can be in flight")
    _back(row, done, wanted)
    return played.fill(row)


DRILLS: Final = (
    Drill(
        name="worker-kill",
        fault="SIGKILL to the worker under load; another one on its endpoint after 0.4 s",
        bound="rounds decided ≤ 20 ms after the kill or their gathering, none by a timeout; the circuit breaker opens, and closes again; "
        "drafting again ≤ 1 s after the worker is ready; the session and the daemon stay",
        run=_worker_kill,
        quick_s=8,
        group="worker",
    ),
    Drill(
        name="endpoint-change",
        fault="dsv41-proxyctl switch-worker under load, between two workers",
        bound="drafting again ≤ 1 s after it was told, at most the rounds in flight (3) without drafts",
        run=_endpoint_change,
        quick_s=6,
        group="worker",
    ),
)
