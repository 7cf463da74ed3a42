# SPDX-License-Identifier: Apache-2.0
"""The engine side against the real daemon and the reference worker: every draft is the one that the newest row asks for."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import zlib

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine_harness import LARGE, PATIENCE_S, Ask, Device, drained, past, until
from proxyd_harness import Daemon

from engine_shim import Session, SoftStream, connect
from hostflag.messages import EngineIdentity
from hostflag.verdicts import Loss, Verdict


MOCK_STEP = 40_503


@contextlib.contextmanager
def worker(directory: Path) -> Iterator[str]:
    """Run a reference worker with the mock drafter; give its endpoint."""
    endpoint = f"ipc://{directory}/w"
    process = subprocess.Popen(
        [sys.executable, "-m", "refworker", "--bind", endpoint, "--drafter", "mock", "--log-level", "error"],
        cwd=Path(__file__).resolve().parent.parent,
    )
    try:
        yield endpoint
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


@contextlib.contextmanager
def session_with(path: Path, stream: SoftStream) -> Iterator[Session]:
    with connect(
        path, geometry=LARGE, model="test", engine=EngineIdentity(name="real", pid=os.getpid()), stream=stream,
        timeout_s=PATIENCE_S, deadline_ms=20_000,
    ) as session:  # fmt: skip
        yield session


def drafts_after(device: Device, slot: int, position: int) -> list[int]:
    """Return what the mock drafter answers when this is the newest row it holds."""
    crc = zlib.crc32(device.row(slot, 1, position).tobytes())
    return [(crc + i * MOCK_STEP) % LARGE.vocab for i in range(LARGE.drafts)]


def first_ok(session: Session, stream: SoftStream, device: Device) -> None:
    """Wait until the daemon has its worker."""
    batch = session.batch()

    def answered() -> bool:
        device.fill(batch, [Ask(40, 1)])
        ticket = session.submit(batch)
        drained(stream)
        return ticket.round is not None and session.verdict(ticket.round) is Verdict.OK

    until(answered, "a round ends OK")


@pytest.mark.parametrize("requests", [3, 16])
def test_every_draft_is_the_newest_rows_own(short_dir: Path, requests: int) -> None:
    with (
        worker(short_dir) as endpoint,
        Daemon(short_dir, "--network-timeout-ms=10000", worker=endpoint) as daemon,
        SoftStream() as stream,
        session_with(daemon.path, stream) as session,
    ):
        device = Device(LARGE)
        first_ok(session, stream, device)
        batch = session.batch()
        device.fill(batch, [Ask(slot, 128, prefill=True) for slot in range(requests)])
        session.submit(batch)
        drafted: set[int] = set()
        newest = dict.fromkeys(range(requests), 127)
        for step in range(60):
            drained(stream)
            until(lambda: past(session.word("retired"), session.word("submitted")) >= 0, "retired")
            device.kept.clear()
            rows = 1 + step % 6
            rejected = step % rows
            # The positions of rejected rows come again in the next step, with other bytes than a real engine's would be.
            asks = [
                Ask(slot, rows, first=newest[slot] + 1, rejected=rejected, gap=slot % 2) for slot in range(requests)
            ]
            out = device.fill(batch, asks)
            ticket = session.submit(batch)
            assert ticket.round is not None or ticket.rows_deferred > 0
            for slot in range(requests):
                newest[slot] += rows - rejected
            if ticket.round is None:
                continue
            table = session.table(ticket.round)
            drained(stream)
            assert session.verdict(ticket.round) is Verdict.OK
            for slot, one in enumerate(table.requests):
                if one.draft:
                    drafted.add(slot)
                    assert out[slot].tolist() == drafts_after(device, slot, newest[slot]), (step, slot)
        assert drafted == set(range(requests)), "nobody is target-only for ever"
        session.settle()
        status = session.status()
        assert status.lost is Loss.NONE
        assert status.rounds["OK"] == status.submitted - status.rounds["DISCONNECTED"]
        if requests == 16:
            assert status.rows_deferred > 0


def test_a_daemon_that_is_stopped_loses_the_session_and_frees_the_stream(short_dir: Path) -> None:
    with (
        worker(short_dir) as endpoint,
        Daemon(short_dir, worker=endpoint) as daemon,
        SoftStream() as stream,
        connect(
            daemon.path, geometry=LARGE, model="test", engine=EngineIdentity(name="real"), stream=stream,
            timeout_s=PATIENCE_S,
        ) as session,
    ):  # fmt: skip
        device = Device(LARGE)
        first_ok(session, stream, device)
        batch = session.batch()
        daemon.process.send_signal(signal.SIGSTOP)
        for _ in range(20):
            device.fill(batch, [Ask(0, 2)])
            session.submit(batch)
            drained(stream)
            if session.lost is not Loss.NONE:
                break
        assert session.lost in {Loss.BEAT, Loss.EXPIRIES}
        session.close(timeout_s=0.5)
        daemon.process.send_signal(signal.SIGCONT)
        daemon.wait_for("session over")


def test_a_daemon_that_is_killed_frees_a_parked_round(short_dir: Path) -> None:
    with (
        Daemon(short_dir, worker=f"ipc://{short_dir}/nobody") as daemon,
        SoftStream() as stream,
        session_with(daemon.path, stream) as session,
    ):
        device = Device(LARGE)
        batch = session.batch()
        stream.work(200_000_000)
        device.fill(batch, [Ask(0, 2)])
        session.submit(batch)
        daemon.process.kill()
        daemon.process.wait(PATIENCE_S)
        drained(stream)
        until(lambda: session.lost is Loss.HANGUP, "the hang-up is seen")
        assert session.verdict(1) is Verdict.LOST
