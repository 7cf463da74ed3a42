# SPDX-License-Identifier: Apache-2.0
"""Drill: a daemon that takes its time to die, since it dumps a large core."""

from __future__ import annotations

import resource
import signal
import time

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dsv41_rehearse.drafting import ShimDrafting
from dsv41_rehearse.drills import regions
from dsv41_rehearse.drills.drill import Drill, Plan
from dsv41_rehearse.drills.row import Row
from dsv41_rehearse.drills.stage import Stage, pause
from dsv41_rehearse.drills.timed import Timed, longest_ms
from dsv41_rehearse.drills.witness import Witness
from dsv41_rehearse.engine import Engine
from dsv41_rehearse.proc import alive
from dsv41_rehearse.stack import Child


MIB: Final = (192, 2_048)
TIMES: Final = (2, 10)
PATTERN: Final = Path("/proc/sys/kernel/core_pattern")
WORKER_MS: Final = 60.0  # of 63 in a step: nearly every death meets a parked round
RELEASED_MS: Final = 220.0
LOST_MS: Final = 520.0
DYING_S: Final = 180.0


@dataclass(frozen=True)
class Dump:
    """From the signal; ``released``: or from the gathering. ``core_mib``: what was dumped, 0 for nothing."""

    dying_ms: float
    lost: Timed
    reason: str | None
    released: list[Timed]
    core_mib: float


def _no_core() -> str | None:
    """Return why no core can be left here, None where one can."""
    pattern = PATTERN.read_text().strip()
    if pattern.startswith("|"):
        return f"cores are piped to a program here ({PATTERN}: {pattern})"
    if "/" in pattern or not pattern:
        return f"cores are not left where the process works ({PATTERN}: {pattern!r})"
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    if hard != resource.RLIM_INFINITY:
        return f"a core may have {hard} bytes at most here"
    return None


def _core_dump(plan: Plan) -> Row:
    reason = _no_core()
    if reason is not None:
        return Row("core-dump", "not done", skipped=reason)
    row, mib, dumps = Row("core-dump", ""), plan.count(*MIB), list[Dump]()

    def act(_engine: Engine, drafting: ShimDrafting) -> None:
        for _ in range(plan.count(*TIMES)):
            pause(drafting, 0.3)
            dump = _dump(row, stage, drafting, mib)
            if dump is None:
                return
            dumps.append(dump)

    with Stage(plan=plan, daemon=False, planned=plan.count(*TIMES), worker_ms=WORKER_MS) as stage:
        (stage.stack.directory / "cores").mkdir()
        _start_heavy(stage, mib)
        played = stage.run(act)
    row.expect(len(dumps) == plan.count(*TIMES), f"only {len(dumps)} of {plan.count(*TIMES)} were recovered from")
    dying = max((dump.dying_ms for dump in dumps), default=0.0)
    row.happened = f"{len(dumps)} times, cores of {max((dump.core_mib for dump in dumps), default=0):.0f} MiB, {dying:.0f} ms to die"
    row.expect(all(dump.core_mib >= mib for dump in dumps), "there was no such core")
    lost, released = [dump.lost for dump in dumps], [one for dump in dumps for one in dump.released]
    row.detected_ms, row.released_ms = longest_ms(lost), longest_ms(released)
    # The beat is held against the watchdog's own running time: what stalls it in the meantime adds up.
    row.bounds("loss seen after the signal", lost, LOST_MS, own=True)
    row.bounds("a parked round released", released, RELEASED_MS)
    row.parked = max((len(dump.released) for dump in dumps), default=0)
    row.details["reasons"] = sorted({str(dump.reason) for dump in dumps})
    return played.fill(row)


def _start_heavy(stage: Stage, mib: int) -> Child:
    return stage.start_daemon(
        module="dsv41_rehearse.drills.heavy", before=[str(mib), str(stage.stack.directory / "cores")]
    )


def _dump(row: Row, stage: Stage, drafting: ShimDrafting, mib: int) -> Dump | None:
    """Abort the daemon. The next one is started at once, so that a region taken too early would be seen."""
    sessions, victim = drafting.sessions, stage.newest_daemon
    before = sessions.seen[-1]
    with Witness(victim.pid) as witness:
        sent_ns = time.monotonic_ns()
        victim.process.send_signal(signal.SIGABRT)
        stage.stack.unlink_socket()
        _start_heavy(stage, mib)
        back = sessions.wait_other_than(before.id, DYING_S)
        if back is not None and alive(victim.pid):
            shared = regions.mapped_by(back.pid) & regions.mapped_by(victim.pid)
            row.expect(not shared, "the next session is on a region that the dying daemon still maps")
        died_ns = witness.death_ns(DYING_S)
    victim.process.wait()
    stage.stack.forget(victim)
    releases = [one for one in sessions.releases if one.session == before.id]
    return None if back is None else Dump(
        dying_ms=(died_ns - sent_ns) / 1e6,
        lost=Timed.between(sent_ns, back.lost_before_ns),
        reason=back.lost_before,
        released=[Timed.between(max(sent_ns, one.gathered_ns), one.past_ns) for one in releases],
        core_mib=_take_core(stage.stack.directory / "cores"),
    )  # fmt: skip


def _take_core(directory: Path) -> float:
    """Return how much core is there, MiB, and remove it: the next one is as large."""
    files = list(directory.iterdir())
    mib = sum(file.stat().st_size for file in files) / (1 << 20)
    for file in files:
        file.unlink()
    return mib


DRILLS: Final = (
    Drill(
        name="core-dump",
        fault="a daemon that dumps a large core: its socket stays open while it dies",
        bound="parked rounds released by their deadline; lost ≤ 520 ms after the signal; its region is nobody else's until it is dead",
        run=_core_dump,
        quick_s=12,
        group="daemon",
    ),
)
