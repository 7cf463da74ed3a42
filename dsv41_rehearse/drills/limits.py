# SPDX-License-Identifier: Apache-2.0
"""Drill: the daemon runs into what a process may have: descriptors, memory, locked memory, room for its log."""

from __future__ import annotations

import contextlib
import resource
import subprocess
import sys
import time

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from dsv41_rehearse import proc
from dsv41_rehearse.drafting import ShimDrafting
from dsv41_rehearse.drills import unharmed
from dsv41_rehearse.drills.caller import GEOMETRY, Caller
from dsv41_rehearse.drills.drill import Drill, Plan
from dsv41_rehearse.drills.logs import events
from dsv41_rehearse.drills.row import Row
from dsv41_rehearse.drills.smalldisk import NoMountError, SmallDisk
from dsv41_rehearse.drills.stage import Stage, pause
from dsv41_rehearse.engine import Engine
from dsv41_rehearse.stack import Child
from hostflag import messages as m
from hostflag.channel import BadMessage, ChannelClosed, ChannelTimeout
from hostflag.messages import FromDaemon, Geometry


TIMES: Final = (1, 20)
LOG: Final = "daemon.log"
CPU_PERCENT: Final = 60.0  # of a core: a listener that spins takes all of one
OVER_S: Final = 1.0
CTL_S: Final = 20.0
JUNK: Final = 20
LOST: Final = "lines of the log were lost: No space left"
UNSAID_S: Final = 30.0
SAID_S: Final = 3.0
SHORT_S: Final = 1.5  # for an answer: longer than accepting pauses without a descriptor
ROOM: Final = 14  # descriptors, more than a session and its probe take
GO_ON: Final = 5  # rounds
LARGE: Final = msgspec.structs.replace(GEOMETRY, ring_bytes=64 << 20)


@dataclass
class Limits:
    """
    The act. ``reasons``: what was said of each limit.

    ``beside``: by limit, rounds of the running session that were drafted while it held. ``short``: how sessions ended that were
    short of descriptors.
    """

    stage: Stage
    disk: SmallDisk | None
    times: int
    row: Row
    reasons: dict[str, str] = field(default_factory=dict)
    beside: Counter[str] = field(default_factory=Counter)
    short: Counter[str] = field(default_factory=Counter)
    _engine: Engine | None = None

    def act(self, engine: Engine, drafting: ShimDrafting) -> None:
        """Run into each of them, one at a time; after each, what was refused works again."""
        self._engine = engine
        steps: list[Callable[[ShimDrafting], None]] = [self._unlocked, self._descriptors, self._some, self._map]
        steps += [self._memfd]
        steps += [self._disk_full] if self.disk is not None else []
        self._works("before any limit")
        pause(drafting, OVER_S)  # and over again
        held = unharmed.Held(self.daemon.pid)
        for _ in range(self.times):
            for step in steps:
                pause(drafting, OVER_S / 4)  # the session before is over, and what it had is free
                step(drafting)
                self._works(f"after {step.__name__.strip('_')}")
        held.back(self.row, 12.0)

    @property
    def daemon(self) -> Child:
        return self.stage.newest_daemon

    def _try(self, geometry: Geometry = GEOMETRY) -> FromDaemon | None:
        """Do a handshake; return what the daemon said last, None where it said nothing."""
        with contextlib.suppress(ChannelClosed, ChannelTimeout, BadMessage), Caller(self.stage.stack.socket) as caller:
            return caller.ready("limited", geometry)
        return None

    def _works(self, when: str) -> None:
        answer = self._try()
        self.row.expect(isinstance(answer, m.Ready), f"{when}: no session: {answer}")

    @contextlib.contextmanager
    def _limit(self, what: int, most: int) -> Iterator[None]:
        before = resource.prlimit(self.daemon.pid, what)
        resource.prlimit(self.daemon.pid, what, (most, before[1]))
        try:
            yield
        finally:
            resource.prlimit(self.daemon.pid, what, before)

    @contextlib.contextmanager
    def _running(self, what: str, drafting: ShimDrafting) -> Iterator[None]:
        """While a limit holds: the running session has drafts, and has some at its end too."""
        assert self._engine is not None
        rounds = self._engine.tally.rounds
        before = rounds["OK"]
        yield
        at_end = rounds["OK"]
        if not drafting.sessions.wait(lambda: rounds["OK"] >= at_end + GO_ON, SAID_S):
            self.row.faults.append(f"{what}: the running session had no drafts any more")
        self.beside[what] += rounds["OK"] - before

    def _unlocked(self, drafting: ShimDrafting) -> None:
        with self._running("mlock", drafting):
            answer = self._try()
        reason = answer.lock_reason if isinstance(answer, m.Ready) else None
        if reason is None:
            self.row.faults.append(f"mlock refused: not said: {answer}")
        else:
            self.reasons["mlock"] = reason

    def _descriptors(self, drafting: ShimDrafting) -> None:
        """Not one more descriptor: who connects waits, and the daemon does not spin meanwhile."""
        pid = self.daemon.pid
        known = len(events(self.daemon, "connection not served"))
        with (
            self._limit(resource.RLIMIT_NOFILE, _free(pid, 1)[0]),
            Caller(self.stage.stack.socket) as waits,
            self._running("descriptors", drafting),
        ):
            # Waiting in the socket's queue: it is accepted once there is a descriptor for it.
            pause(drafting, 0.1)
            cpu = proc.cpu_seconds(pid)
            pause(drafting, OVER_S)
            percent = (proc.cpu_seconds(pid) - cpu) / OVER_S * 100
            self.row.expect(not waits.hung_up, "descriptors: who waited was hung up on")
        self.row.expect(percent < CPU_PERCENT, f"descriptors: the daemon took {percent:.0f} % of a core")
        self.row.details["cpu_percent without descriptors"] = round(percent, 1)
        said = events(self.daemon, "connection not served")
        if said:
            self.reasons["descriptors"] = str(said[-1]["reason"])
        self.row.expect(bool(said) and (known > 0 or len(said) > known), "descriptors: not said in the log")

    def _some(self, drafting: ShimDrafting) -> None:
        """Some more descriptors, but not enough for a session or just so: it is cut short at each step of its making."""
        pid = self.daemon.pid
        with self._running("some descriptors", drafting):
            for limit in _free(pid, ROOM)[1:]:
                pause(drafting, OVER_S / 4)
                with self._limit(resource.RLIMIT_NOFILE, limit):
                    self.short[self._answer()] += 1
        self.row.expect(len(self.short) > 1, f"some descriptors: sessions were cut short alike: {dict(self.short)}")

    def _answer(self) -> str:
        """Do a handshake that may be cut short; return what came last."""
        try:
            with Caller(self.stage.stack.socket, SHORT_S) as caller:
                answer = caller.ready("short")
        except ChannelTimeout:
            return "no answer"
        except (ChannelClosed, BadMessage) as fault:
            return f"{fault}"
        return answer.reason if isinstance(answer, m.Refused) else type(answer).__name__.lower()

    def _map(self, drafting: ShimDrafting) -> None:
        self._refused("address space", drafting, resource.RLIMIT_AS, _address_space(self.daemon.pid) + (16 << 20))

    def _memfd(self, drafting: ShimDrafting) -> None:
        self._refused("file size", drafting, resource.RLIMIT_FSIZE, LARGE.ring_bytes // 2)

    def _refused(self, what: str, drafting: ShimDrafting, limit: int, most: int) -> None:
        with self._limit(limit, most), self._running(what, drafting):
            answer = self._try(LARGE)
        if isinstance(answer, m.Refused):
            self.reasons[what] = f"{answer.code}: {answer.reason}"
            self.row.expect(answer.code == "memory", f"{what}: refused with {answer.code}: {answer.reason}")
        else:
            self.row.faults.append(f"{what}: not refused: {answer}")

    def _disk_full(self, drafting: ShimDrafting) -> None:
        assert self.disk is not None
        self.disk.fill(LOG)
        with self._running("disk", drafting):
            said = self._unsaid()
        self.row.expect(self.disk.full, "disk full: there was room for more")
        self.row.expect(LOST in said, f"disk full: the status says {said!r}")
        pause(drafting, 0.1)
        self.disk.empty()
        self._works("with room again")
        # Behind the first line that is taken again, which comes after the answer.
        drafting.sessions.wait(lambda: bool(events(self.daemon, "log lines lost")), SAID_S)
        lost = events(self.daemon, "log lines lost")
        if lost:
            self.reasons["disk"] = f"{lost[-1]['lines']} lines: {lost[-1]['reason']}"
        self.row.expect(bool(lost), "disk full: not said in the log once there was room")

    def _unsaid(self) -> str:
        """Do what the daemon has lines for until it had some (the same line is not said again at once); return its status."""
        until = time.monotonic() + UNSAID_S
        while True:
            for _ in range(JUNK):
                with Caller(self.stage.stack.socket) as caller:
                    caller.send(b"junk")
                    caller.refusal()
                self._works("with a full disk")
            said = _status(self.stage.stack.socket)
            if LOST in said or time.monotonic() > until:
                return said


def _free(pid: int, count: int) -> list[int]:
    """Return the ``count`` lowest numbers that are no descriptors of a process: the n-th as a limit allows n new ones, from 0."""
    taken = {int(entry.name) for entry in Path(f"/proc/{pid}/fd").iterdir()}
    return [number for number in range(len(taken) + count) if number not in taken][:count]


def _address_space(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()


def _status(socket: Path) -> str:
    command = [sys.executable, "-m", "proxyd.operator.ctl", "--socket", str(socket), "status"]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=CTL_S).stdout


def _limits(plan: Plan) -> Row:
    row = Row("limits", "")
    with ExitStack() as exits:
        stage = exits.enter_context(
            Stage(plan=plan, requests=1, daemon=False, deadline_ms=unharmed.DEADLINE_MS, daemon_flags=unharmed.PATIENT)
        )
        disk: SmallDisk | None = None
        try:
            disk = exits.enter_context(SmallDisk(stage.stack.directory / "disk"))
            (stage.stack.directory / LOG).symlink_to(disk.path / LOG)
        except NoMountError as fault:
            row.details["not done"] = f"disk full: {fault}"
        stage.start_daemon(module="dsv41_rehearse.drills.limited", before=["proxyd"])
        limits = Limits(stage, disk, plan.count(*TIMES), row)
        played = stage.run(limits.act)
    wanted = {"mlock", "descriptors", "address space", "file size"} | (set() if disk is None else {"disk"})
    row.expect(
        set(limits.reasons) == wanted, f"no reason was said for {', '.join(sorted(wanted - set(limits.reasons)))}"
    )
    row.details["short of descriptors"] = dict(limits.short)
    row.details["drafted while it held"] = dict(limits.beside)
    row.happened = f"{', '.join(limits.reasons)}: each run into {limits.times} times beside a running session"
    row.happened += "; no disk could be filled" if disk is None else ""
    row.details["reasons"] = limits.reasons
    unharmed.rounds(row, played)
    return played.fill(row)


DRILLS: Final = (
    Drill(
        name="limits",
        fault="the daemon may lock no memory; has no descriptor left, or 1 to 13; gets no memory for a region (RLIMIT_AS, RLIMIT_FSIZE); its log's disk is full",
        bound="each with a reason that says what it is, in the refusal, the log or the status; works again afterwards; the running session's "
        "rounds all drafted, also while a limit holds",
        run=_limits,
        quick_s=8,
        group="daemon",
    ),
)
