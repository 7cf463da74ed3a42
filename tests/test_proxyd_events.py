# SPDX-License-Identifier: Apache-2.0
"""The control plane's waiting place: order, timers, and what happens to a call whose reason went away."""

from __future__ import annotations

import errno
import os
import resource
import signal
import socket

from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from proxyd_harness import raised

from proxyd.service import listener
from proxyd.service.events import READ, WRITE, Events
from proxyd.service.listener import Listener
from proxyd.service.signals import Signals


@pytest.fixture
def events() -> Iterator[Events]:
    made = Events(raised)
    yield made
    made.close()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, two = socket.socketpair()
    yield one, two
    one.close()
    two.close()


def test_timers_are_called_in_order_and_once(events: Events) -> None:
    called: list[str] = []
    events.after(0.02, lambda: called.append("later"))
    events.after(0.0, lambda: called.append("now"))
    events.after(0.0, lambda: called.append("never")).cancel()
    while len(called) < 2:
        events.turn()
    assert called == ["now", "later"]


def test_with_nothing_pending_it_sleeps_without_a_timeout(events: Events) -> None:
    assert events._timeout() is None
    timer = events.after(60, lambda: None)
    assert events._timeout() is not None
    timer.cancel()
    assert events._timeout() is None


def test_a_source_that_an_earlier_call_ended_is_not_called(events: Events) -> None:
    pairs = [socket.socketpair() for _ in range(2)]
    called: list[int] = []

    def first_come(mine: int) -> None:
        called.append(mine)
        for one, _ in pairs:
            events.forget(one)

    for number, (one, two) in enumerate(pairs):
        two.send(b"x")
        events.watch(one, READ, lambda number=number: first_come(number))  # type: ignore[misc]
    events.turn()
    assert len(called) == 1
    for one, two in pairs:
        one.close()
        two.close()


def test_change_and_forget(events: Events, pair: tuple[socket.socket, socket.socket]) -> None:
    called: list[str] = []
    events.watch(pair[0], READ, lambda: called.append("x"))
    events.change(pair[0], WRITE)
    events.turn()
    assert called == ["x"]
    events.forget(pair[0])
    events.forget(pair[0])
    events.after(0, lambda: called.append("timer"))
    events.turn()
    assert called == ["x", "timer"]


def test_out_of_descriptors_accepting_pauses_and_goes_on(events: Events, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "PAUSE_S", 0.01)
    faults: list[Exception] = []
    accepted: list[socket.socket] = []
    listening = socket.create_server(("127.0.0.1", 0))
    door = Listener(events, listening, accepted.append, faults.append)
    client = socket.create_connection(listening.getsockname())
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (client.fileno(), limits[1]))
    try:
        events.turn()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert len(faults) == 1
    assert not accepted
    while not accepted:
        events.turn()
    door.close()
    door.close()
    for connection in (client, *accepted):
        connection.close()


def test_a_connection_that_cannot_be_served_is_closed(events: Events) -> None:
    faults: list[Exception] = []

    def refuse(_connection: socket.socket) -> None:
        raise ValueError("no")

    listening = socket.create_server(("127.0.0.1", 0))
    door = Listener(events, listening, refuse, faults.append)
    with socket.create_connection(listening.getsockname(), timeout=30) as client:
        events.turn()
        assert client.recv(1) == b""
    assert [type(fault) for fault in faults] == [ValueError]
    door.close()


def test_a_call_that_raises_costs_no_other_its_turn(pair: tuple[socket.socket, socket.socket]) -> None:
    faults: list[str] = []
    called: list[str] = []
    events = Events(lambda fault: faults.append(str(fault)))

    def fail(what: str) -> None:
        raise ValueError(what)

    for end in pair:
        end.send(b"x")
    events.watch(pair[0], READ, lambda: fail("source"))
    events.watch(pair[1], READ, lambda: called.append("source"))
    events.after(0.0, lambda: fail("timer"))
    events.after(0.0, lambda: called.append("timer"))
    events.turn()
    assert faults == ["source", "timer"]
    assert called == ["source", "timer"]
    events.turn()  # what is ready is tried again; a timer was due once
    assert faults == ["source", "timer", "source"]
    events.close()


def test_unless_told_otherwise_a_fault_is_a_line_in_the_log() -> None:
    events = Events()
    events.after(0.0, lambda: raised(KeyError("nothing")))
    with structlog.testing.capture_logs() as lines:
        events.turn()
    events.close()
    (line,) = lines
    assert (line["event"], line["reason"]) == ("an event was not dealt with", "'nothing'")
    assert line["rate_limited"] is True
    assert isinstance(line["exc_info"], KeyError)


def test_accepting_goes_on_once_a_watch_is_to_be_had(events: Events, monkeypatch: pytest.MonkeyPatch) -> None:
    """Out of descriptors, then out of epoll watches: it must not end with that."""
    monkeypatch.setattr(listener, "PAUSE_S", 0.0)
    faults: list[Exception] = []
    accepted: list[socket.socket] = []
    listening = socket.create_server(("127.0.0.1", 0))
    door = Listener(events, listening, accepted.append, faults.append)
    events.forget(listening)
    real, left = events.watch, [2]

    def watch(*given: Any) -> None:
        if left[0]:
            left[0] -= 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(*given)

    monkeypatch.setattr(events, "watch", watch)
    door._resume()
    with socket.create_connection(listening.getsockname()):
        while not accepted:
            events.turn()
    assert [str(fault) for fault in faults] == ["[Errno 28] No space left on device"] * 2
    door.close()
    accepted[0].close()


def test_a_signal_that_is_not_dealt_with_takes_no_other_with_it() -> None:
    heeded: list[signal.Signals] = []
    faults: list[Exception] = []
    events = Events(faults.append)

    def heed(number: signal.Signals) -> None:
        heeded.append(number)
        if number == signal.SIGHUP:
            raise ValueError("a reload that fails")

    signals = Signals(events, heed)
    try:
        for number in (signal.SIGHUP, signal.SIGTERM):
            signal.raise_signal(number)
        events.turn()
    finally:
        signals.close()
        events.close()
    assert heeded == [signal.SIGHUP, signal.SIGTERM]
    assert len(faults) == 1
