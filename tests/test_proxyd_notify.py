# SPDX-License-Identifier: Apache-2.0
"""The service manager's side: what it is told and when, and that it can neither block nor confuse the daemon."""

from __future__ import annotations

import signal
import time

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from notify_manager import Manager
from proxyd_engine import Engine
from proxyd_harness import Daemon, until
from proxyd_worker import Rounds, Worker
from test_proxyd_health import Held

from hostflag.verdicts import Verdict
from proxyd.errors import NotNowError, StartError
from proxyd.program import PAUSE_S, _not_started
from proxyd.service.notify import Notifier


SERVING: Final = "STATUS=serving: 0 engines"


@pytest.fixture
def manager(request: pytest.FixtureRequest, short_dir: Path) -> Iterator[Manager]:
    with Manager(f"{getattr(request, 'param', '')}{short_dir}/notify") as made:
        yield made


@pytest.fixture
def daemon(manager: Manager, short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    monkeypatch.setenv("NOTIFY_SOCKET", manager.address)
    with Daemon(short_dir) as running:
        yield running


@pytest.mark.parametrize("manager", ["", "@"], indirect=True, ids=["path", "abstract"])
def test_from_start_to_end(manager: Manager, daemon: Daemon) -> None:
    """READY without a worker, since it serves without one; then each change, in order, once."""
    assert manager.next() == f"READY=1\n{SERVING}"
    assert manager.next() == f"{SERVING}, no worker answers"
    with Worker(daemon.worker):
        manager.until(f"{SERVING}, worker answers")
        with Engine(daemon.path) as engine:
            Rounds(engine.ready()).until(Verdict.OK)
            manager.until("STATUS=serving: 1 engine, 1 with a worker")
        assert manager.next() == f"{SERVING}, worker answers"
        daemon.process.terminate()
        assert manager.next() == "STOPPING=1\nSTATUS=ending: 0 engines, worker answers"
        assert daemon.join() == 0
    assert manager.all_there() == []


@pytest.mark.parametrize("content", ["", "nonsense = 1\n"])
def test_a_reload_is_announced_and_over(
    manager: Manager, short_dir: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    """Also where it is refused: else `systemctl reload` would wait for its timeout."""
    monkeypatch.setenv("NOTIFY_SOCKET", manager.address)
    file = short_dir / "proxyd.toml"
    file.touch()
    with Daemon(short_dir, f"--config={file}") as daemon:
        manager.until(f"{SERVING}, no worker answers")
        file.write_text(content)
        before_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        daemon.process.send_signal(signal.SIGHUP)
        first, second = manager.next().split("\n")
        assert first == "RELOADING=1"
        name, _, value = second.partition("=")
        assert name == "MONOTONIC_USEC"
        assert before_us <= int(value) <= time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        outcome = "reload refused: see the log" if content else "reloaded"
        assert manager.next() == f"READY=1\n{SERVING}, no worker answers; {outcome}"


def test_a_start_that_fails_says_why(manager: Manager, short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", manager.address)
    began = time.monotonic()
    daemon = Daemon(short_dir, socket_path=short_dir / "none" / "e.sock")
    assert manager.next().startswith("STATUS=cannot start: cannot make the socket")
    assert daemon.join() == 1
    assert time.monotonic() - began > PAUSE_S, (
        "started again at once, it would soon be over for good (StartLimitBurst=)"
    )
    assert manager.all_there() == []


def test_a_start_that_no_retry_will_help_ends_at_once(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxyd.program.time.sleep", pytest.fail)
    notifier = Notifier.take({"NOTIFY_SOCKET": manager.address})
    assert _not_started(StartError("a fault"), notifier) == 78
    assert _not_started(NotNowError("a fault"), Notifier.take({})) == 1
    notifier.close()


def test_pings_come_while_loops_move(manager: Manager, short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", manager.address)
    monkeypatch.setenv("WATCHDOG_USEC", "800000")
    with Daemon(short_dir) as daemon, Engine(daemon.path) as engine:
        engine.ready()
        manager.until("STATUS=serving: 1 engine, 0 with a worker")
        for _ in range(3):
            manager.until("WATCHDOG=1")


def test_no_pings_while_a_loop_stands_still(manager: Manager, short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread is held, the event loop turns: systemd would restart it all the same."""
    monkeypatch.setenv("NOTIFY_SOCKET", manager.address)
    monkeypatch.setenv("WATCHDOG_USEC", "1200000")
    with Daemon(short_dir) as daemon, Engine(daemon.path) as engine:
        engine.ready()
        manager.until("WATCHDOG=1")
        held = Held(daemon, "hfd-round")
        try:
            manager.all_there()
            daemon.wait_for("session stalled")
            # The beat before it was held may still have earned one.
            assert manager.all_there().count("WATCHDOG=1") <= 1
        finally:
            held.let_go()
        manager.until("WATCHDOG=1")


def test_no_pings_where_they_are_for_another(
    manager: Manager, short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", manager.address)
    monkeypatch.setenv("WATCHDOG_USEC", "100000")
    monkeypatch.setenv("WATCHDOG_PID", "1")
    with Daemon(short_dir):
        manager.until(f"{SERVING}, no worker answers")  # half a second after the start
        assert manager.all_there() == []


def test_a_manager_that_does_not_read_blocks_nobody(
    manager: Manager, short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its queue holds about ten messages. Rounds, operators, the end go on; once it reads it is told how things stand now."""
    monkeypatch.setenv("NOTIFY_SOCKET", manager.address)
    monkeypatch.setenv("WATCHDOG_USEC", "40000")
    with Daemon(short_dir) as daemon, Worker(daemon.worker):
        for number in range(6):
            with Engine(daemon.path) as engine:
                Rounds(engine.ready(f"engine {number}")).until(Verdict.OK)
            daemon.wait_for("session over", number + 1)
        manager.until(f"{SERVING}, worker answers")
        until(lambda: "WATCHDOG=1" in manager.all_there(), "pings again")


def test_a_manager_that_does_not_read_does_not_hold_the_end_up(
    manager: Manager, short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", manager.address)
    monkeypatch.setenv("WATCHDOG_USEC", "40000")
    with Daemon(short_dir) as daemon:
        daemon.wait_for("no worker answers, waiting for one")
        time.sleep(0.5)  # pings fill the queue
        daemon.process.terminate()
        assert daemon.join() == 0


@pytest.mark.parametrize("address", ["vsock:2:1234", "nonsense", "/", "@", "/" + "x" * 200, "/nowhere/notify"])
def test_an_address_that_is_none(short_dir: Path, monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """The daemon serves and says in its log that nobody was told; a start that just times out would be a riddle."""
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    with Daemon(short_dir) as daemon:
        until(
            lambda: daemon.said("the service manager cannot be told") or daemon.said("systemd was not told"),
            "a line in the log",
        )
