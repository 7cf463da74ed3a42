# SPDX-License-Identifier: Apache-2.0
"""Drive one engine against a daemon: look at both before, run the scenario, look again, and say what is wrong."""

from __future__ import annotations

import os
import time

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import engine_shim

from dsv41_rehearse import interrupts, proc
from dsv41_rehearse.books import Books
from dsv41_rehearse.device import Device, keep
from dsv41_rehearse.drafting import ModeName, NoDrafting, ShimDrafting
from dsv41_rehearse.drill import Drill
from dsv41_rehearse.engine import Engine
from dsv41_rehearse.progress import Watcher
from dsv41_rehearse.report import DaemonReport
from dsv41_rehearse.scenario import Scenario
from dsv41_rehearse.sessions import Sessions, SessionSeen


IDLE_S: Final = 1.5
SETTLE_S: Final = 3.0  # how long what was closed may take to be gone on the other side
STREAM_CLOSE_S: Final = 5.0
Seen = TypeVar("Seen")


@dataclass(frozen=True, kw_only=True)
class Drive:
    """
    How to drive. ``audit``: the directory of the engine's lines. ``start_round``: the first round's number.

    ``respawns``: sessions that may be lost and are followed by another one, None: as the shim has it; ``shim``: further ones of its
    options. ``drill``: what is done to the others meanwhile.
    """

    scenario: Scenario
    socket: Path
    mode: ModeName = "async"
    audit: Path | None = None
    check_mock: bool = False
    measure_idle: bool = False
    start_round: int | None = None
    respawns: int | None = None
    shim: Mapping[str, Any] = field(default_factory=dict)
    drill: Drill | None = None


@dataclass(frozen=True, kw_only=True)
class Driven:
    """What came of it. ``lost``: why there was no session at the end, None where there was one."""

    engine: Engine
    books: Books
    sessions: Sessions
    illegal_ids: int
    daemon: DaemonReport
    before: dict[str, Any]
    after: dict[str, Any]
    left_over: list[str]
    lost: str | None
    status: dict[str, Any]
    seconds: float


def drive(how: Drive, watch: Watcher) -> Driven:
    """
    Run a scenario to its end.

    Raises what engine_shim.Shim raises where there is no daemon, or it refuses; what a drill raised; StreamStuckError.
    """
    first_pid = None if how.mode == "none" else _probe(how)
    before = _held(first_pid)
    with _drafting(how, f"rehearse-{os.getpid()}", how.start_round) as (drafting, device):
        sessions = drafting.sessions if isinstance(drafting, ShimDrafting) else Sessions()
        idle = None if first_pid is None or not how.measure_idle else _watched_idle(first_pid)
        with Books(how.scenario, how.audit, check_mock=how.check_mock) as books:
            engine = Engine(
                how.scenario, device, drafting, books, watch,
                sessions=sessions, hold=how.drill.active if how.drill else _not_held,
            )  # fmt: skip
            began, cpu = time.monotonic(), _cpu(first_pid)
            _run(engine, drafting, how.drill)
        seconds = time.monotonic() - began
        daemon = DaemonReport(
            rss_private_mib=_or_none(proc.rss_private_mib, _pid(sessions)),
            region_mib=round(how.scenario.region_mib(), 2),
            idle_cpu_percent=idle,
            cpu_percent=_cpu_percent(sessions, cpu, seconds),
        )
        lost, status = drafting.lost, drafting.status()
        illegal = device.illegal_ids
    left_over, after = _left_over(before, _pid(sessions), judge_daemon=lost is None)
    return Driven(
        engine=engine, books=books, sessions=sessions, illegal_ids=illegal, daemon=daemon, before=before, after=after,
        left_over=left_over, lost=lost, status=status, seconds=seconds,
    )  # fmt: skip


def _not_held() -> bool:
    return False


def _run(engine: Engine, drafting: ShimDrafting | NoDrafting, drill: Drill | None) -> None:
    if drill is None or isinstance(drafting, NoDrafting):
        engine.run()
        return
    try:
        drill.begin(engine, drafting)
        engine.run()
    finally:
        drafting.sessions.over = True
    drill.finish()


def _probe(how: Drive) -> int:
    """Open a session and close it: the daemon is there, it takes us, and what both load on first use is loaded."""
    with _drafting(how, f"rehearse-probe-{os.getpid()}", None) as (drafting, _):
        assert isinstance(drafting, ShimDrafting)
        return drafting.sessions.seen[-1].pid


@contextmanager
def _drafting(how: Drive, name: str, start_round: int | None) -> Iterator[tuple[ShimDrafting | NoDrafting, Device]]:
    with interrupts.held(), _device(how.scenario) as (device, stream):
        if how.mode == "none":
            with interrupts.let_through():
                yield NoDrafting(), device
            return
        drafting = ShimDrafting(
            how.scenario, stream, device, how.socket,
            name=name, mode=engine_shim.Mode(how.mode), start_round=start_round, respawns=how.respawns,
            shim=how.shim,
        )  # fmt: skip
        try:
            with interrupts.let_through():
                drafting.begin()
                yield drafting, device
        finally:
            drafting.close()


@contextmanager
def _device(scenario: Scenario) -> Iterator[tuple[Device, engine_shim.SoftStream]]:
    stream = engine_shim.SoftStream()
    device = Device(scenario, stream)
    try:
        yield device, stream
    finally:
        try:
            stream.close(STREAM_CLOSE_S)
        except BaseException:
            keep(device)
            raise


def _pid(sessions: Sessions) -> int | None:
    """Return the newest daemon's process id."""
    return sessions.newest.pid if sessions.newest else None


def _cpu_percent(sessions: Sessions, first: float | None, seconds: float) -> float | None:
    """Return what the newest daemon used since the run began, or since it came."""
    newest: SessionSeen | None = sessions.newest
    if newest is None:
        return None
    if len(sessions.seen) == 1:
        return _percent(first, _cpu(newest.pid), seconds)
    return _percent(newest.cpu_s, _cpu(newest.pid), (time.monotonic_ns() - newest.met_ns) / 1e9)


def _held(daemon_pid: int | None) -> dict[str, Any]:
    # What the probe opened is closed by now on this side; the daemon's side takes a moment.
    time.sleep(0.2)
    return {
        "engine": proc.footprint(),
        "daemon": _or_none(proc.footprint, daemon_pid),
        "shm_files": proc.shm_files(),
    }


def _left_over(
    before: dict[str, Any], daemon_pid: int | None, *, judge_daemon: bool
) -> tuple[list[str], dict[str, Any]]:
    """
    Return what both hold more than before, once it has had time to go.

    A daemon that lost the session may be stopped, and holds what it held until it goes on.
    """
    until = time.monotonic() + SETTLE_S
    while True:
        after = _held(daemon_pid)
        left = [f"engine {grown}" for grown in after["engine"].grown(before["engine"])]
        if judge_daemon and before["daemon"] is not None and after["daemon"] is not None:
            left += [f"daemon {grown}" for grown in after["daemon"].grown(before["daemon"])]
        if after["shm_files"] > before["shm_files"]:
            left.append(f"{after['shm_files'] - before['shm_files']} files in /dev/shm")
        if not left or time.monotonic() > until:
            return left, after
        time.sleep(0.1)


def _watched_idle(daemon_pid: int) -> float | None:
    time.sleep(0.3)  # what connecting started is over
    try:
        return proc.cpu_percent_over(daemon_pid, IDLE_S)
    except OSError:
        return None


def _cpu(daemon_pid: int | None) -> float | None:
    return _or_none(proc.cpu_seconds, daemon_pid)


def _or_none(look: Callable[[int], Seen], pid: int | None) -> Seen | None:
    """Look at a process that may be gone, or not ours to look at, or never was."""
    if pid is None:
        return None
    try:
        return look(pid)
    except OSError:
        return None


def _percent(before: float | None, after: float | None, seconds: float) -> float | None:
    return None if before is None or after is None else round((after - before) / seconds * 100, 2)


def plain(values: dict[str, Any]) -> dict[str, Any]:
    """Return a before or after as plain values."""
    return {name: asdict(value) if isinstance(value, proc.Footprint) else value for name, value in values.items()}
