# SPDX-License-Identifier: Apache-2.0
"""A shim against real daemons and the reference worker: killed, stopped, drained, and come back."""

from __future__ import annotations

import contextlib
import os
import signal
import time

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine_hand import PATIENCE_S, until
from engine_harness import LARGE, Ask, drained
from proxyd_harness import Daemon
from proxyd_worker import Worker, friendly
from shim_harness import Driver, shim_with
from test_engine_real import drafts_after, worker

from engine_shim import Mode
from hostflag import wire
from hostflag.verdicts import Verdict


SLACK_S = 1.0  # beyond what a shared machine may take for what lasts milliseconds; a deadline here is a minute


@contextlib.contextmanager
def engine_on(path: Path, mode: Mode = Mode.ASYNC, **options: Any) -> Iterator[Driver]:
    with shim_with(path, geometry=LARGE, mode=mode, **{"deadline_ms": 60_000.0, **options}) as driver:
        yield driver


def bit_exact(driver: Driver, steps: int = 5) -> None:
    """Step until a round ends OK, then check that drafts are the newest row's own."""
    driver.ok()
    for index in range(steps):
        asks = [Ask(slot, 2, first=1000 * (index + 1)) for slot in range(1, 4)]
        ticket, out = driver.submit(asks)
        drained(driver.stream)
        assert ticket.ref
        assert driver.shim.verdict(ticket.ref) is Verdict.OK
        for ask, drafts in zip(asks, out, strict=True):
            assert drafts.tolist() == drafts_after(driver.device, ask.slot, ask.first + 1)
        driver.device.kept.clear()


def mute(peer: Worker, parts: list[bytes], header: wire.Header) -> None:
    """Be a worker that takes rounds and never answers one."""
    if header.kind is not wire.Kind.ROUND:
        friendly(peer, parts, header)


def mapped(pid: int) -> set[str]:
    """Return the inodes of the regions that a process maps."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {line.split()[4] for line in lines if "memfd:dsv41-region" in line}


@pytest.mark.parametrize("mode", list(Mode))
def test_every_draft_is_exact_before_and_after_a_kill(short_dir: Path, mode: Mode) -> None:
    with worker(short_dir) as endpoint, engine_on(short_dir / "e.sock", mode) as driver:
        for _ in range(2):
            with Daemon(short_dir, "--network-timeout-ms=10000", worker=endpoint) as daemon:
                driver.session()
                bit_exact(driver)
                daemon.process.kill()
                driver.lost()
        status = driver.shim.status()
        assert (status.losses, status.registrations, status.adoptions) == ({"HANGUP": 2}, 1, 1)


def test_a_kill_is_seen_at_once_and_releases_a_parked_round(short_dir: Path) -> None:
    """The worker does not answer: only the loss can release the round, its deadline is a minute away."""
    with (
        Worker(f"ipc://{short_dir}/w", mute),
        Daemon(short_dir, "--network-timeout-ms=55000") as daemon,
        engine_on(short_dir / "e.sock") as driver,
    ):
        driver.session()
        until(lambda: any("worker_up" in name and value for name, value in daemon.scrape().items()), "the worker is up")
        ticket, _ = driver.submit()
        marker = driver.stream.marker()
        assert not driver.stream.wait(marker, 0.2), "parked"
        killed = time.monotonic()
        daemon.process.kill()
        assert driver.stream.wait(marker, PATIENCE_S)
        released_s = time.monotonic() - killed
        assert released_s < SLACK_S
        until(lambda: driver.shim.session is None, "lost")
        assert ticket.ref
        assert driver.shim.verdict(ticket.ref) is Verdict.LOST
        assert driver.shim.status().lost_ns / 1e9 - killed < SLACK_S


def test_a_stopped_daemon_keeps_its_region_and_touches_no_other(short_dir: Path) -> None:
    """A link stands for the socket: the stopped daemon holds the path that it made."""
    link = short_dir / "e.sock"
    first_dir, second_dir = short_dir / "1", short_dir / "2"
    first_dir.mkdir()
    second_dir.mkdir()
    link.symlink_to(first_dir / "e.sock")
    with (
        worker(short_dir) as endpoint,
        Daemon(first_dir, worker=endpoint) as old,
        engine_on(link, deadline_ms=200.0) as driver,
    ):
        first = driver.session()
        driver.ok()
        stopped = time.monotonic()
        old.process.send_signal(signal.SIGSTOP)
        driver.lost()
        lost_s = driver.shim.status().lost_ns / 1e9 - stopped
        assert 0.4 <= lost_s < 0.52 + SLACK_S
        assert set(driver.shim.status().losses) <= {"BEAT", "EXPIRIES"}
        with Daemon(second_dir, worker=endpoint) as new:
            (short_dir / "l").symlink_to(second_dir / "e.sock")
            (short_dir / "l").rename(link)
            driver.session(other_than=first)
            bit_exact(driver)
            assert old.process.poll() is None
            assert driver.shim.status().regions.fenced == 1
            theirs, ours = mapped(old.pid), mapped(new.pid)
            assert theirs
            assert not theirs & ours
            assert mapped(os.getpid()) >= theirs | ours
            old.process.send_signal(signal.SIGCONT)
            bit_exact(driver, steps=20)
            until(lambda: not mapped(old.pid), "the old one lets go")
            old.wait_for("session over")
            until(lambda: driver.shim.status().regions.free == 1, "its region is free again")
            assert driver.shim.session is not None
            assert sum(driver.shim.status().losses.values()) == 1


def test_what_was_queued_at_a_stopped_daemon_does_no_harm(short_dir: Path) -> None:
    """The keeper goes on asking the stopped daemon; when that goes on, it finds connections that nobody is at any more."""
    with (
        worker(short_dir) as endpoint,
        Daemon(short_dir, worker=endpoint) as daemon,
        engine_on(short_dir / "e.sock", deadline_ms=200.0, handshake_s=0.1) as driver,
    ):
        first = driver.session()
        bit_exact(driver)
        daemon.process.send_signal(signal.SIGSTOP)
        driver.lost()
        until(lambda: driver.shim._keeper.tries >= 4, "it is asked again and again")
        daemon.process.send_signal(signal.SIGCONT)
        second = driver.session(other_than=first)
        bit_exact(driver)
        daemon.wait_for("session over")
        until(lambda: driver.shim.status().regions.fenced == 0, "nothing is fenced for good")
        assert driver.shim.session == second
        assert driver.shim.status().registrations <= 2
        daemon.exactly("session ready", driver.shim.status().sessions)


def test_a_restart_that_is_planned_costs_no_budget(short_dir: Path) -> None:
    with worker(short_dir) as endpoint, engine_on(short_dir / "e.sock", respawns=0) as driver:
        for _ in range(2):
            with Daemon(short_dir, worker=endpoint) as daemon:
                driver.session()
                driver.ok()
                daemon.process.terminate()
                driver.lost()
        status = driver.shim.status()
        assert (status.losses, status.registrations) == ({"DRAINED": 2}, 1)


@pytest.mark.slow
def test_many_kills_under_load_leave_nothing(short_dir: Path) -> None:
    def held() -> tuple[int, int, int]:
        threads = [path.joinpath("comm").read_text() for path in Path("/proc/self/task").iterdir()]
        fds = sum(1 for _ in Path("/proc/self/fd").iterdir())
        return fds, sum(name.startswith("hf-") for name in threads), len(mapped(os.getpid()))

    seen = []
    with worker(short_dir) as endpoint, engine_on(short_dir / "e.sock", backoff_ms=(5.0, 50.0)) as driver:
        for _ in range(12):
            with Daemon(short_dir, worker=endpoint) as daemon:
                driver.session()
                bit_exact(driver, steps=2)
                driver.submit([Ask(slot, 1, first=9000) for slot in range(3)])
                daemon.process.kill()
                driver.lost()
            seen.append(held())
        status = driver.shim.status()
        assert (status.losses, status.registrations, status.adoptions) == ({"HANGUP": 12}, 1, 11)
    assert max(seen[2:]) <= max(seen[:2])
