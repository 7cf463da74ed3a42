# SPDX-License-Identifier: Apache-2.0
"""Drive one engine against a daemon: look at both before, run the scenario, look again, and say what is wrong."""

from __future__ import annotations

import os
import time

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import engine_shim

from dsv41_rehearse import proc
from dsv41_rehearse.device import Device
from dsv41_rehearse.engine import Engine
from dsv41_rehearse.ledger import Ledger
from dsv41_rehearse.progress import Watcher
from dsv41_rehearse.report import DaemonReport
from dsv41_rehearse.scenario import Scenario
from dsv41_rehearse.session import EngineSession
from hostflag.audit import AuditWriter, engine_file


IDLE_S: Final = 1.5
SETTLE_S: Final = 3.0  # how long what was closed may take to be gone on the other side
STREAM_CLOSE_S: Final = 5.0
Seen = TypeVar("Seen")
_kept: list[object] = []  # device memory of a stream that did not end: it may still write there


@dataclass(frozen=True, kw_only=True)
class Drive:
    """How to drive. ``audit``: the directory of the engine's lines. ``start_round``: the first round's number."""

    scenario: Scenario
    socket: Path
    audit: Path | None = None
    check_mock: bool = False
    measure_idle: bool = False
    start_round: int | None = None


@dataclass(frozen=True, kw_only=True)
class Driven:
    """What came of it."""

    session: int
    metrics: str | None
    engine: Engine
    ledger: Ledger
    illegal_ids: int
    daemon_pid: int
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

    Raises what engine_shim.connect raises where there is no daemon, or it refuses.
    """
    daemon_pid = _probe(how)
    before = _held(daemon_pid)
    with _session(how, f"rehearse-{os.getpid()}", how.start_round) as (session, device):
        ledger = Ledger(session.id, how.scenario, check_mock=how.check_mock)
        idle = _watched_idle(daemon_pid) if how.measure_idle else None
        engine = Engine(how.scenario, device, session, ledger, watch)
        began, cpu = time.monotonic(), _cpu(daemon_pid)
        with _writer(how.audit, session.id) as ledger.writer:
            engine.run()
        seconds = time.monotonic() - began
        daemon = DaemonReport(
            rss_private_mib=_or_none(proc.rss_private_mib, daemon_pid),
            region_mib=round(how.scenario.region_mib(), 2),
            idle_cpu_percent=idle,
            cpu_percent=_percent(cpu, _cpu(daemon_pid), seconds),
        )
        lost, status, metrics = session.lost, session.status(), session.metrics
        illegal = device.illegal_ids
    left_over, after = _left_over(before, daemon_pid, judge_daemon=lost is None)
    return Driven(
        session=ledger.session, metrics=metrics, engine=engine, ledger=ledger, illegal_ids=illegal,
        daemon_pid=daemon_pid, daemon=daemon, before=before, after=after, left_over=left_over, lost=lost,
        status=status, seconds=seconds,
    )  # fmt: skip


def _probe(how: Drive) -> int:
    """Open a session and close it: the daemon is there, it takes us, and what both load on first use is loaded."""
    with _session(how, f"rehearse-probe-{os.getpid()}", None) as (session, _):
        return session.daemon_pid


@contextmanager
def _session(how: Drive, name: str, start_round: int | None) -> Iterator[tuple[EngineSession, Device]]:
    stream = engine_shim.SoftStream()
    device = Device(how.scenario, stream)
    try:
        session = EngineSession(how.scenario, stream, device, how.socket, name=name, start_round=start_round)
        try:
            yield session, device
        finally:
            session.close()
    finally:
        try:
            stream.close(STREAM_CLOSE_S)
        except BaseException:
            _kept.append(device)
            raise


@contextmanager
def _writer(directory: Path | None, session_id: int) -> Iterator[AuditWriter | None]:
    if directory is None:
        yield None
        return
    with AuditWriter(engine_file(directory, session_id)) as writer:
        yield writer


def _held(daemon_pid: int) -> dict[str, Any]:
    # What the probe opened is closed by now on this side; the daemon's side takes a moment.
    time.sleep(0.2)
    return {
        "engine": proc.footprint(),
        "daemon": _or_none(proc.footprint, daemon_pid),
        "shm_files": proc.shm_files(),
    }


def _left_over(before: dict[str, Any], daemon_pid: int, *, judge_daemon: bool) -> tuple[list[str], dict[str, Any]]:
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


def _cpu(daemon_pid: int) -> float | None:
    return _or_none(proc.cpu_seconds, daemon_pid)


def _or_none(look: Callable[[int], Seen], pid: int) -> Seen | None:
    """Look at a process that may be gone, or not ours to look at."""
    try:
        return look(pid)
    except OSError:
        return None


def _percent(before: float | None, after: float | None, seconds: float) -> float | None:
    return None if before is None or after is None else round((after - before) / seconds * 100, 2)


def plain(values: dict[str, Any]) -> dict[str, Any]:
    """Return a before or after as plain values."""
    return {name: asdict(value) if isinstance(value, proc.Footprint) else value for name, value in values.items()}
