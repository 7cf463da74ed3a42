# SPDX-License-Identifier: Apache-2.0
"""One peer's flood, whatever door it comes by, costs no other session a round, and the daemon no memory and no pages of log."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import urllib.request

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec
import pytest

from flooding_relay import Relay
from proxyd_engine import Engine, connect, hello
from proxyd_harness import PATIENCE_S, Daemon, until
from proxyd_worker import Rounds, Worker

from hostflag import messages as m
from hostflag.channel import ChannelClosed, ChannelTimeout, operator_end
from hostflag.verdicts import Verdict
from proxyd.service.server import MAX_OPERATORS
from proxyd.sessions.handshake import LINES_A_USER


ROUNDS: Final = 60
PATIENT: Final = "--network-timeout-ms=3000"  # the worker here is a thread of the process that storms
MAX_GROWTH_MIB: Final = 192
MAX_LINES: Final = 4 * LINES_A_USER  # four kinds of line a session


def resident_mib(daemon: Daemon) -> float:
    status = Path(f"/proc/{daemon.pid}/status").read_text(encoding="ascii")
    return int(status.partition("RssAnon:")[2].split()[0]) / 1024


@contextlib.contextmanager
def undisturbed(daemon: Daemon, rounds: Rounds) -> Iterator[None]:
    """Whatever is done meanwhile, every round of this session gets its drafts."""
    rounds.until(Verdict.OK)
    before, lines = resident_mib(daemon), len(daemon.lines)
    yield
    verdicts = [rounds.next() for _ in range(ROUNDS)]
    assert verdicts == [Verdict.OK] * ROUNDS
    assert daemon.process.poll() is None
    assert resident_mib(daemon) < before + MAX_GROWTH_MIB
    loud = [line for line in daemon.lines[lines:] if line.get("level") != "debug"]
    assert len(loud) <= MAX_LINES, loud


@contextlib.contextmanager
def storm(act: Callable[[], None]) -> Iterator[list[int]]:
    """Do it again and again in a thread; at the end it must have been done at least once. Gives how often that was."""
    over, done = threading.Event(), [0]

    def run() -> None:
        while not over.is_set():
            with contextlib.suppress(OSError, ChannelClosed, ChannelTimeout):
                act()
            done[0] += 1

    thread = threading.Thread(target=run)
    thread.start()
    try:
        until(lambda: done[0] >= 3, "the storm has begun")
        yield done
    finally:
        over.set()
        thread.join()


def test_a_worker_that_floods_one_link_costs_no_other_session_a_round(short_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    with contextlib.ExitStack() as stack:
        stack.enter_context(Worker(f"tcp://127.0.0.1:{port}"))
        relay = stack.enter_context(Relay(port))
        daemon = stack.enter_context(Daemon(short_dir, PATIENT, worker=relay.endpoint))
        first = Rounds(stack.enter_context(Engine(daemon.path)).ready("flooded"))
        first.until(Verdict.OK)
        mine = len(relay._accepted) - 1
        other = Rounds(stack.enter_context(Engine(daemon.path)).ready("other"))
        with undisturbed(daemon, other):
            relay.flood = mine
            while not relay.ended.is_set():
                assert other.next() is Verdict.OK
        until(
            lambda: any("floods" in line["reason"] for line in daemon.said("worker link lost")), "the flood is logged"
        )
        first.until(Verdict.OK)
        assert relay.flooded > 1 << 18


@pytest.fixture
def served(short_dir: Path) -> Iterator[tuple[Daemon, Rounds]]:
    with Daemon(short_dir, PATIENT) as daemon, Worker(daemon.worker), Engine(daemon.path) as engine:
        yield daemon, Rounds(engine.ready("other"))


def junk_at_the_socket(daemon: Daemon) -> None:
    with connect(daemon.path) as connection:
        connection.send(os.urandom(500))
        connection.send(b"[" * 60_000)


def fds_at_the_socket(daemon: Daemon) -> None:
    with Path(os.devnull).open("rb") as null, connect(daemon.path) as connection:
        socket.send_fds(connection, [msgspec.json.encode(hello())], [null.fileno()] * 100)


def hellos_without_end(daemon: Daemon) -> None:
    with connect(daemon.path) as connection:
        connection.setblocking(False)
        for _ in range(200):
            connection.send(msgspec.json.encode(hello()))


def sessions_that_die(daemon: Daemon) -> None:
    with Engine(daemon.path) as engine:
        engine.ready("short")


def goodbyes_to_a_running_session(daemon: Daemon) -> None:
    with Engine(daemon.path) as engine:
        engine.ready("talkative")
        engine.channel.socket.setblocking(False)
        for _ in range(200):
            engine.channel.send(m.Create())


def operators(daemon: Daemon) -> None:
    with operator_end(connect(daemon.path)) as channel:
        channel.send(m.OperatorHello(protocol=m.PROTOCOL_VERSION))
        for _ in range(50):  # and none of the answers is read
            channel.send(m.StatusRequest())


def operators_with_junk(daemon: Daemon) -> None:
    with connect(daemon.path) as connection:
        connection.send(msgspec.json.encode(m.OperatorHello(protocol=m.PROTOCOL_VERSION)))
        connection.send(b'{"type": "SWITCH_WORKER", "endpoints": ["' + b"x" * 300 + b'"]}')
        connection.send(b"\xff" * 60_000)


def scrapers(daemon: Daemon) -> None:
    with urllib.request.urlopen(daemon.said("ready")[0]["metrics"], timeout=PATIENCE_S) as response:
        response.read()


def http_junk(daemon: Daemon) -> None:
    host, port = daemon.said("ready")[0]["metrics"].split("/")[2].split(":")
    with contextlib.ExitStack() as stack:
        for _ in range(64):  # more than may stay, all of them slow
            connection = stack.enter_context(socket.create_connection((host, int(port))))
            connection.send(b"GET /" + os.urandom(2000))


@pytest.mark.parametrize(
    "act",
    [
        junk_at_the_socket,
        fds_at_the_socket,
        hellos_without_end,
        goodbyes_to_a_running_session,
        operators,
        operators_with_junk,
        scrapers,
        http_junk,
    ],
)
def test_a_storm_at_a_door(served: tuple[Daemon, Rounds], act: Callable[[Daemon], None]) -> None:
    daemon, rounds = served
    rounds.until(Verdict.OK)  # linked
    held = daemon.resources()
    with undisturbed(daemon, rounds), storm(lambda: act(daemon)):
        assert [rounds.next() for _ in range(ROUNDS)] == [Verdict.OK] * ROUNDS
    daemon.back_to(held)


def test_a_storm_of_signals(served: tuple[Daemon, Rounds]) -> None:
    """Those that a daemon heeds, and those that others send it by the thousand: a child's end, a terminal's size."""
    daemon, rounds = served

    def signals() -> None:
        for number in (signal.SIGHUP, signal.SIGCHLD, signal.SIGWINCH, signal.SIGURG, signal.SIGCONT, signal.SIGPIPE):
            os.kill(daemon.pid, number)

    rounds.until(Verdict.OK)
    lines = len(daemon.lines)
    with storm(signals) as done:
        assert [rounds.next() for _ in range(ROUNDS)] == [Verdict.OK] * ROUNDS
        until(lambda: done[0] > 500, "many signals were sent")
    assert daemon.process.poll() is None
    assert len(daemon.lines) - lines <= MAX_LINES
    assert rounds.next() is Verdict.OK


def test_sessions_that_come_and_die(served: tuple[Daemon, Rounds]) -> None:
    daemon, rounds = served
    with undisturbed(daemon, rounds), storm(lambda: sessions_that_die(daemon)):
        assert [rounds.next() for _ in range(ROUNDS)] == [Verdict.OK] * ROUNDS


def test_operators_that_go_before_they_are_answered_keep_no_place(short_dir: Path) -> None:
    """A dsv41-proxyctl that was interrupted: the newcomer's place is still the oldest's."""
    with Daemon(short_dir) as daemon, contextlib.ExitStack() as stack:
        daemon.process.send_signal(signal.SIGSTOP)
        for _ in range(MAX_OPERATORS):
            with operator_end(connect(daemon.path)) as channel:
                channel.send(m.OperatorHello(protocol=m.PROTOCOL_VERSION))
        daemon.process.send_signal(signal.SIGCONT)
        outcome = 'dsv41_proxyd_handshakes_total{outcome="operator"}'
        until(lambda: daemon.scrape().get(outcome) == MAX_OPERATORS, "they were heard")
        held = [stack.enter_context(operator_end(connect(daemon.path))) for _ in range(MAX_OPERATORS + 1)]
        for channel in held:
            channel.send(m.OperatorHello(protocol=m.PROTOCOL_VERSION))
            assert isinstance(channel.receive(PATIENCE_S).message, m.Done)
        with pytest.raises(ChannelClosed):
            held[0].receive(PATIENCE_S)
        for channel in held[1:]:
            channel.send(m.StatusRequest())
            assert isinstance(channel.receive(PATIENCE_S).message, m.Status)
