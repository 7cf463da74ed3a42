# SPDX-License-Identifier: Apache-2.0
"""Drills: a daemon that does to its sockets what none should, and one that finds old HELLOs when it goes on."""

from __future__ import annotations

import time

from typing import Final

from dsv41_rehearse import proc
from dsv41_rehearse.drafting import ShimDrafting
from dsv41_rehearse.drill import BACK_S
from dsv41_rehearse.drills import regions
from dsv41_rehearse.drills.drill import Drill, Plan
from dsv41_rehearse.drills.logs import events
from dsv41_rehearse.drills.row import Row
from dsv41_rehearse.drills.rude import MISDEEDS, ask
from dsv41_rehearse.drills.stage import Stage, pause
from dsv41_rehearse.engine import Engine
from dsv41_rehearse.sessions import Release


TIMES: Final = (1, 20)
QUEUED: Final = (2, 20)
QUEUED_S: Final = (1.5, 3.0)  # an engine gives a daemon 2 s to answer: one or two HELLOs wait
UNMOVED_S: Final = 0.7
DONE_S: Final = 2.0
GONE_S: Final = 5.0


def _daemon_closes(plan: Plan) -> Row:
    times = plan.count(*TIMES)
    row = Row("daemon-closes", "")
    done: list[str] = []

    def act(_engine: Engine, drafting: ShimDrafting) -> None:
        for misdeed in [*MISDEEDS] * times:
            done.append(misdeed)
            if not _misbehave(row, stage, drafting, misdeed):
                return

    with Stage(plan=plan, daemon=False, planned=None) as stage:
        _start_rude(stage)
        played = stage.run(act)
    row.happened = (
        f"{', '.join(MISDEEDS)}: {times} times each while the loop ran; then stopped, and another daemon started"
    )
    row.expect(len(done) == len(MISDEEDS) * times, f"no drafts any more after {done[-1:]}")
    losses = {why: n for why, n in played.driven.status["losses"].items() if n}
    row.expect(losses == {"BEAT": len(done)}, f"sessions lost: {losses}; each was to be lost by its beat alone")
    row.parked = max((_parked(played.releases, session.id) for session in played.driven.sessions.seen), default=0)
    return played.fill(row)


def _parked(releases: list[Release], session: int) -> int:
    return sum(one.session == session for one in releases)


def _start_rude(stage: Stage) -> None:
    stage.start_daemon(module="dsv41_rehearse.drills.rude", before=[str(stage.stack.directory / "misdeed")])


def _misbehave(row: Row, stage: Stage, drafting: ShimDrafting, misdeed: str) -> bool:
    """Have it done: the session goes on. Then stop that daemon: its region is not to be another's while it lives."""
    sessions, victim, file = drafting.sessions, stage.newest_daemon, stage.stack.directory / "misdeed"
    before = sessions.seen[-1]
    ask(file, misdeed)
    row.expect(sessions.wait(lambda: not file.exists(), DONE_S), f"{misdeed}: not done within {DONE_S:g} s")
    pause(drafting, UNMOVED_S)
    drafted = sessions.wait_drafted_after(time.monotonic_ns(), BACK_S)
    row.expect(drafted is not None and sessions.seen[-1].id == before.id, f"{misdeed}: the session did not go on")
    victim.stop()
    stage.stack.unlink_socket()
    _start_rude(stage)
    back = sessions.wait_other_than(before.id, BACK_S)
    if back is not None:
        shared = regions.mapped_by(back.pid) & regions.mapped_by(victim.pid)
        row.expect(not shared, f"{misdeed}: the next session is on a region that the daemon before it still maps")
    victim.resume()
    pause(drafting, 0.2)  # it finds out by itself that it has been left
    row.expect(not regions.mapped_by(victim.pid), f"{misdeed}: once it went on, it kept the region")
    victim.end()
    stage.stack.forget(victim)
    return back is not None and sessions.wait_drafted_after(time.monotonic_ns(), BACK_S) is not None


def _hello_queued(plan: Plan) -> Row:
    times, chance = plan.count(*QUEUED), plan.random()
    row = Row("hello-queued", "")
    queued: list[int] = []
    grown: list[str] = []

    def act(_engine: Engine, drafting: ShimDrafting) -> None:
        before: proc.Footprint | None = None
        for _ in range(times):
            pause(drafting, 0.2)
            if not _stopped_and_asked(row, stage, drafting, chance.uniform(*QUEUED_S), queued):
                return
            before = before or _settled(stage.newest_daemon.pid)
        if before is not None:
            grown.extend(_growth(stage.newest_daemon.pid, before))

    with Stage(plan=plan, planned=None) as stage:
        played = stage.run(act)
    row.happened = (
        f"stopped {len(queued)} times while the engine asked; {sum(queued)} HELLOs were answered when it went on"
    )
    row.leaks += [f"daemon {what}" for what in grown]
    row.expect(len(queued) == times, "no drafts any more")
    losses = {why: n for why, n in played.driven.status["losses"].items() if n}
    row.expect(losses == {"BEAT": times}, f"sessions lost: {losses}; one each was to be")
    row.expect(
        played.driven.status["registrations"] <= 2, f"{played.driven.status['registrations']} regions were registered"
    )
    return played.fill(row)


def _stopped_and_asked(row: Row, stage: Stage, drafting: ShimDrafting, seconds: float, queued: list[int]) -> bool:
    """Stop the daemon for so long that the engine has left it, and HELLOs wait at its door; let it go on."""
    sessions, daemon = drafting.sessions, stage.newest_daemon
    before, ready = sessions.seen[-1], len(events(daemon, "session ready"))
    daemon.stop()
    pause(drafting, seconds)
    daemon.resume()
    back = sessions.wait_other_than(before.id, BACK_S)
    pause(drafting, 0.5)  # every HELLO that waited is answered, or found to be nobody's
    made = len(events(daemon, "session ready")) - ready
    queued.append(made)
    row.expect(made <= 2, f"{made} sessions were made of the HELLOs that waited")
    mapped = regions.mapped_by(daemon.pid)
    row.expect(len(mapped) <= 1, f"the daemon maps {len(mapped)} regions and has one engine")
    return back is not None


def _settled(pid: int) -> proc.Footprint:
    time.sleep(0.3)
    return proc.footprint(pid)


def _growth(pid: int, before: proc.Footprint) -> list[str]:
    until = time.monotonic() + GONE_S
    while (left := proc.footprint(pid).grown(before)) and time.monotonic() < until:
        time.sleep(0.05)
    return left


DRILLS: Final = (
    Drill(
        name="daemon-closes",
        fault="a daemon whose control plane closes or half-closes the session's socket, or sends an empty packet, while its loop runs",
        bound="the session goes on; stopped then, the daemon's region is nobody else's while it lives; no wrong draft",
        run=_daemon_closes,
        quick_s=12,
        group="daemon",
    ),
    Drill(
        name="hello-queued",
        fault="HELLOs queued at a stopped daemon, which then goes on",
        bound="one session and one region come of them; the daemon holds as much as before; no wrong draft",
        run=_hello_queued,
        quick_s=10,
        group="daemon",
    ),
)
