# SPDX-License-Identifier: Apache-2.0
"""The control plane's waiting place: order, timers, and what happens to a call whose reason went away."""

from __future__ import annotations

import resource
import socket

from collections.abc import Iterator

import pytest

from proxyd.service import listener
from proxyd.service.events import READ, WRITE, Events
from proxyd.service.listener import Listener


@pytest.fixture
def events() -> Iterator[Events]:
    made = Events()
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
