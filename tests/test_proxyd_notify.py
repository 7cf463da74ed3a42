# SPDX-License-Identifier: Apache-2.0
"""The service manager's side: what it is told and when, and that it can neither block nor confuse the daemon."""

from __future__ import annotations

import os
import signal
import socket
import time

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast

import pytest

from proxyd_engine import Engine
from proxyd_harness import PATIENCE_S, Daemon, until
from proxyd_worker import Rounds, Worker
from test_proxyd_health import Held

from hostflag.verdicts import Verdict
from proxyd.events import Events
from proxyd.notify import MAX_WAITING, Notifier
from proxyd.roster import Roster
from proxyd.standing import Standing
from proxyd.supervision import Supervision


SERVING: Final = "STATUS=serving: 0 engines"


class Manager:
    """A service manager's socket. ``address`` is what NOTIFY_SOCKET says."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(PATIENCE_S)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)

    def __enter__(self) -> Manager:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def next(self) -> str:
        return self._socket.recv(4096).decode("ascii")

    def next_but_pings(self) -> str:
        while (message := self.next()) == "WATCHDOG=1":
            pass
        return message

    def until(self, message: str) -> None:
        """Read up to a message."""
        seen: list[str] = []
        while not seen or seen[-1] != message:
            try:
                seen.append(self.next())
            except TimeoutError:
                pytest.fail(f"no {message!r} in {seen}")

    def all_there(self) -> list[str]:
        """Return what has come and was not read."""
        self._socket.setblocking(False)
        messages = []
        try:
            while True:
                messages.append(self.next())
        except BlockingIOError:
            return messages
        finally:
            self._socket.settimeout(PATIENCE_S)


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
    daemon = Daemon(short_dir, socket_path=short_dir / "none" / "e.sock")
    assert daemon.join() == 78
    assert manager.next().startswith("STATUS=cannot start: cannot make the socket")
    assert manager.all_there() == []


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


def test_nothing_is_handed_on() -> None:
    environment = {"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "1", "WATCHDOG_PID": str(os.getpid()), "HOME": "/"}
    Notifier.take(environment).close()
    assert environment == {"HOME": "/"}


@pytest.mark.parametrize("value", ["", "0", "-1", "1e3", "nonsense", "٣"])
def test_a_watchdog_time_that_is_none(value: str) -> None:
    notifier = Notifier.take({"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": value})
    assert notifier.watchdog_s is None
    notifier.close()


def test_without_a_manager_nothing_happens() -> None:
    notifier = Notifier.take({"WATCHDOG_USEC": "1000000"})
    notifier.ready("a")
    notifier.status("b")
    notifier.ping()
    assert (notifier.watchdog_s, notifier.waiting, notifier.full) == (None, False, 0)


def test_a_status_is_one_line_of_ascii(manager: Manager) -> None:
    """What sdnotify loses: Latin-1 cannot say it, so the whole message, READY too, would be dropped in silence."""
    notifier = Notifier(manager.address)
    notifier.ready("worker \u2014 down\nREADY=0\x00" + "x" * 5000)
    first, second = manager.next().split("\n")
    assert first == "READY=1"
    assert second.startswith("STATUS=worker \\u2014 down READY=0 xxx")
    assert len(second) < 300
    notifier.close()


def test_what_found_no_room_is_kept_in_order_and_bounded(manager: Manager) -> None:
    notifier = Notifier(manager.address)
    while not notifier.full:
        notifier.ping()
    notifier.reloading()
    notifier.ready("reloaded")
    for number in range(100):
        notifier.status(f"number {number}")
    notifier.stopping("the end")
    assert set(manager.all_there()) == {"WATCHDOG=1"}
    notifier.flush()
    messages = manager.all_there()
    assert [message.split("\n")[0] for message in messages] == [
        "RELOADING=1",
        "READY=1",
        "STATUS=number 99",
        "STOPPING=1",
    ]
    while not notifier.waiting:
        notifier.reloading()
    for _ in range(10 * MAX_WAITING):
        notifier.reloading()
    manager.all_there()
    notifier.flush()
    assert 0 < len(manager.all_there()) <= MAX_WAITING
    notifier.close()


class StandIn:
    """A roster of one session, whose loop beats when the test says so."""

    def __init__(self) -> None:
        self.number, self.count, self.over = 1, 0, False
        self.loop = self

    def all(self) -> list[StandIn]:
        return [self]

    def beats(self) -> int:
        return self.count

    def stopped(self) -> bool:
        return self.over

    def line(self) -> str:
        return "as ever"


def test_no_ping_without_a_beat(short_dir: Path) -> None:
    with Manager(f"{short_dir}/notify") as manager:
        events, roster = Events(), StandIn()
        stand_in: Any = roster
        supervision = Supervision(
            events, Notifier(manager.address, 0.04), cast("Roster", stand_in), cast("Standing", stand_in)
        )
        assert manager.all_there() == ["READY=1\nSTATUS=as ever", "WATCHDOG=1"]
        for _ in range(10):
            events.turn()
        assert manager.all_there() == []
        roster.count += 1
        events.turn()
        assert manager.all_there() == ["WATCHDOG=1"]
        roster.over = True  # a loop that has ended beats no more, and holds no ping up
        events.turn()
        assert manager.all_there() == ["WATCHDOG=1"]
        supervision.close()
        events.close()
