# SPDX-License-Identifier: Apache-2.0
"""Drills: engine, daemon or both stopped by a signal or frozen by a control group, again and again."""

from __future__ import annotations

import os
import random
import signal
import time

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, Literal

from dsv41_rehearse.drills.apart import Apart
from dsv41_rehearse.drills.cgroups import Group, NoCgroupError
from dsv41_rehearse.drills.drill import Drill, Plan
from dsv41_rehearse.drills.row import Row
from dsv41_rehearse.drills.stage import Stage


Who = Literal["engine", "daemon", "both"]
How = Literal["signal", "freezer"]
TIMES: Final = (6, 80)
LONGEST_S: Final = (1.5, 5.0)
SHORTEST_S: Final = 0.1
# A daemon alone that stands still for longer than its beat may is lost, and rightly so: here it never does.
DAEMON_S: Final = (0.05, 0.25)
LONG_S: Final = (0.7, 1.5)
LONG_EVERY: Final = 3
BETWEEN_S: Final = (0.05, 0.4)


@dataclass
class Pauses:
    """What was done. ``held_s``: how long each time. ``back_ms``: from going on to the next round with drafts. ``lost``: by right."""

    held_s: list[float] = field(default_factory=list)
    back_ms: list[float] = field(default_factory=list)
    lost: int = 0


@contextmanager
def _pauser(how: How, pids: Sequence[int]) -> Iterator[list[tuple[Callable[[], None], Callable[[], None]]]]:
    """Yield for each process how it is stopped and how it goes on."""
    with ExitStack() as exits:
        if how == "freezer":
            groups = [exits.enter_context(Group("freezer", [pid])) for pid in pids]
            yield [(group.freeze, group.thaw) for group in groups]
            return
        pausers = [(_sender(pid, signal.SIGSTOP), _sender(pid, signal.SIGCONT)) for pid in pids]
        for _, go_on in pausers:
            exits.callback(go_on)
        yield pausers


def _sender(pid: int, number: signal.Signals) -> Callable[[], None]:
    def send() -> None:
        with suppress(ProcessLookupError):  # what ended is found out where its drafts do not come
            os.kill(pid, number)

    return send


def _paused(plan: Plan, name: str, who: Who, how: How) -> Row:
    times = plan.count(*TIMES)
    with Stage(plan=plan, planned=None) as stage:
        engine = Apart(stage)
        if engine.wait_drafted(20) is None:
            raise TimeoutError(f"no drafts to begin with: {engine.child.tail()}")
        pids = {"engine": [engine.child.pid], "daemon": [stage.newest_daemon.pid]}
        pids["both"] = pids["engine"] + pids["daemon"]
        try:
            with _pauser(how, pids[who]) as pausers:
                done = _again_and_again(plan, engine, pausers, who, times, long=how == "freezer")
        except NoCgroupError as error:
            return Row(name, "not done", skipped=str(error))
        row = engine.fill(Row(name, _told(who, how, done)), engine.end())
    return _judge(row, done, times)


def _again_and_again(
    plan: Plan,
    engine: Apart,
    pausers: list[tuple[Callable[[], None], Callable[[], None]]],
    who: Who,
    times: int,
    *,
    long: bool,
) -> Pauses:
    chance, done = plan.random(), Pauses()
    for number in range(times):
        time.sleep(chance.uniform(*BETWEEN_S))
        chance.shuffle(pausers)
        held_s = _length(plan, chance, who, long=long and number % LONG_EVERY == 0)
        session = engine.board.session
        for stop, _ in pausers:
            stop()
        time.sleep(held_s)
        for _, go_on in pausers:
            go_on()
        done.held_s.append(held_s)
        back_ms = engine.wait_drafted()
        if back_ms is None:
            return done
        done.back_ms.append(back_ms)
        if who == "daemon" and held_s >= LONG_S[0]:
            done.lost += 1
            # What it was in flight with may end OK before the next session is there.
            engine.wait(lambda session=session: engine.board.session != session)  # type: ignore[misc]
            engine.wait_drafted()
    return done


def _length(plan: Plan, chance: random.Random, who: Who, *, long: bool) -> float:
    if who == "daemon":
        return chance.uniform(*(LONG_S if long else DAEMON_S))
    return chance.uniform(SHORTEST_S, plan.seconds(*LONGEST_S))


def _told(who: Who, how: How, done: Pauses) -> str:
    did = "frozen" if how == "freezer" else "stopped"
    times = f"{len(done.held_s)} times for {min(done.held_s):.2f} to {max(done.held_s):.2f} s"
    right = f", {done.lost} of them too long for its beat" if done.lost else ""
    return f"{who} {did} {times}{right}"


def _judge(row: Row, done: Pauses, times: int) -> Row:
    losses = row.details["losses"]
    count = sum(losses.values())
    said = ", ".join(f"{n} {why}" for why, n in losses.items()) or "none"
    row.expect(count == done.lost, f"sessions lost: {said}; by right: {done.lost}")
    row.expect(len(done.back_ms) == times, f"no drafts any more after {len(done.held_s)} of {times}")
    if done.back_ms:
        row.recovered_ms = round(max(done.back_ms), 1)
    row.details["held_s"] = [round(s, 3) for s in done.held_s]
    return row


def _drill(name: str, who: Who, how: How, fault: str, *, bound: str, quick_s: float) -> Drill:
    return Drill(
        name=name,
        fault=fault,
        bound=bound,
        run=lambda plan: _paused(plan, name, who, how),
        quick_s=quick_s,
        group="pauses",
    )


_NO_LOSS: Final = "no session lost, no wrong draft"
DRILLS: Final = (
    _drill(
        "engine-stop", "engine", "signal", "SIGSTOP and SIGCONT to the engine process, 80 times for 0.1 to 5 s",
        bound=_NO_LOSS, quick_s=8,
    ),
    _drill(
        "daemon-stop-short", "daemon", "signal",
        "SIGSTOP and SIGCONT to the daemon, 80 times for less than its beat may be missed", bound=_NO_LOSS, quick_s=5,
    ),
    _drill(
        "both-stop", "both", "signal", "SIGSTOP and SIGCONT to engine and daemon, 80 times for 0.1 to 5 s", bound=_NO_LOSS, quick_s=8
    ),
    _drill(
        "freeze-daemon", "daemon", "freezer",
        "the daemon in a frozen control group, 80 times, every third for longer than its beat may be missed",
        bound="lost only where its beat was missed, and drafting again each time; no wrong draft", quick_s=7,
    ),
    _drill(
        "freeze-engine", "engine", "freezer", "the engine in a frozen control group, 80 times for 0.1 to 5 s",
        bound=_NO_LOSS, quick_s=8,
    ),
    _drill(
        "freeze-both", "both", "freezer", "engine and daemon in frozen control groups, 80 times for 0.1 to 5 s",
        bound=_NO_LOSS, quick_s=8,
    ),
)  # fmt: skip
