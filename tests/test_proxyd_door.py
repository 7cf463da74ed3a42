# SPDX-License-Identifier: Apache-2.0
"""A connection from accept to session, in this process: what fails between leaves nothing, and what was told is what counts."""

from __future__ import annotations

import errno
import os
import select
import socket

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog

from proxyd_engine import hello
from proxyd_harness import PATIENCE_S, raised, until

from hostflag import messages as m
from hostflag.channel import Channel, ChannelClosed, accepted_end, engine_end, operator_end
from hostflag.messages import FromDaemon, ToOperator
from proxyd.config.settings import Settings
from proxyd.links.link import Links
from proxyd.links.workers import Workers
from proxyd.operator.operators import Operator
from proxyd.service.events import Events
from proxyd.sessions import handshake, roster
from proxyd.sessions.admission import Admission
from proxyd.sessions.handshake import Handshake, Terms
from proxyd.sessions.roster import Roster
from proxyd.sessions.roundloop import LoopConfig, RoundLoop


class Door:
    """Handshakes with a roster of their own; ``outcomes`` of those that are over."""

    def __init__(self, directory: Path) -> None:
        self.events = Events(raised)
        self._links = Links(f"ipc://{directory}/w")
        workers = Workers(self.events, self._links, [self._links.endpoint])
        self.sessions = Roster(self.events, workers, Settings(), lambda: None)
        self.outcomes: list[str] = []

    def close(self) -> None:
        self.sessions.end("the test is over")
        try:
            until(self._empty, "every session ends")
        finally:
            self._links.close()
            self.events.close()

    def _empty(self) -> bool:
        self.events.after(0.0, lambda: None)
        self.events.turn()
        return not len(self.sessions)

    def meet(self, connection: socket.socket) -> None:
        Handshake(
            self.events,
            self.sessions,
            Terms(network_timeout_ms=Settings().network_timeout_ms, metrics=None, admission=Admission()),
            connection,
            on_operator=lambda _channel, _log: None,
            on_over=lambda _handshake, outcome: self.outcomes.append(outcome),
        )

    def ask(self, channel: Channel[FromDaemon], message: m.Message) -> FromDaemon:
        channel.send(message)
        self.events.turn()
        received = channel.receive(PATIENCE_S)
        received.close_fds()
        return received.message

    def exhausted(self, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
        """Let the user's epoll watches be used up once ``after`` more were made."""
        real, made = self.events.watch, [0]

        def watch(*given: Any) -> None:
            made[0] += 1
            if made[0] > after:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            real(*given)

        monkeypatch.setattr(self.events, "watch", watch)


@pytest.fixture
def door(short_dir: Path) -> Iterator[Door]:
    made = Door(short_dir)
    yield made
    made.close()


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Give a connection's end here, and the peer's."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    yield ours, theirs
    ours.close()
    theirs.close()


def hung_up(channel: Channel[Any]) -> bool:
    poller = select.poll()
    poller.register(channel.fileno(), 0)
    return any(events & select.POLLHUP for _, events in poller.poll(PATIENCE_S * 1000))


def test_a_connection_that_cannot_be_watched_stays_its_callers(
    door: Door,
    ends: tuple[socket.socket, socket.socket],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(handshake, "TIME_LIMIT_S", 0.0)
    door.exhausted(monkeypatch, after=0)
    with pytest.raises(OSError, match="No space left"):
        door.meet(ends[0])
    ends[0].close()  # as the listener does
    door.events.after(0.0, lambda: None)
    door.events.turn()  # no time limit is left that could come to its end
    assert door.outcomes == []


@pytest.mark.parametrize("watches", [0, 1])
def test_a_session_that_cannot_be_watched_is_refused_and_forgotten(
    door: Door, ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch, watches: int
) -> None:
    """Neither its loop nor its channel: its loop ends, its maps and descriptors go, and it takes nobody's place."""
    door.meet(ends[0])
    with engine_end(ends[1]) as engine:
        assert isinstance(door.ask(engine, hello()), m.Welcome)
        door.exhausted(monkeypatch, watches)
        answer = door.ask(engine, m.Create())
        assert isinstance(answer, m.Refused)
        assert (answer.code, "No space left" in answer.reason) == ("internal", True)
        assert door.outcomes == ["internal"]
        assert len(door.sessions) == 0
        assert hung_up(engine)


def test_a_handshake_ends_once(door: Door, ends: tuple[socket.socket, socket.socket]) -> None:
    made = Handshake(
        door.events,
        door.sessions,
        Terms(network_timeout_ms=150.0, metrics=None, admission=Admission()),
        ends[0],
        on_operator=lambda _channel, _log: None,
        on_over=lambda _handshake, outcome: door.outcomes.append(outcome),
    )
    for code in ("busy", "timeout"):
        made.refuse(code, "for a test")
    assert door.outcomes == ["busy"]


def test_the_timeout_in_force_is_the_one_that_was_told(
    door: Door, ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reload between WELCOME and CREATE is for the next session: the engine's deadline was held against what it was told."""
    begun: list[LoopConfig] = []

    def loop(region_fd: int, socket_fd: int, config: LoopConfig) -> RoundLoop:
        begun.append(config)
        return RoundLoop(region_fd, socket_fd, config)

    monkeypatch.setattr(roster, "RoundLoop", loop)
    door.meet(ends[0])
    with engine_end(ends[1]) as engine:
        told = door.ask(engine, hello())
        assert isinstance(told, m.Welcome)
        door.sessions.settings = replace(door.sessions.settings, network_timeout_ms=5000.0, spin_us=7.0)
        assert isinstance(door.ask(engine, m.Create()), m.Region)
        assert [config.network_timeout_ns for config in begun] == [told.network_timeout_ms * 1e6]
        assert [config.spin_ns for config in begun] == [7000]  # of which nobody was told


class Desk:
    """An operator and its connection."""

    def __init__(self, events: Events, ends: tuple[socket.socket, socket.socket]) -> None:
        self.over: list[Operator] = []
        self.channel: Channel[ToOperator] = operator_end(ends[1])
        controls: Any = Controls()
        self.operator = Operator(events, accepted_end(ends[0]), controls, structlog.get_logger(), self.over.append)


class Controls:
    """At rest, whatever is asked."""

    at_rest = True

    def drain(self, reason: str, log: Any) -> None:
        """Nothing is in flight."""

    def drained(self) -> str:
        return "draining"


def test_an_operator_that_cannot_be_watched_leaves_no_timer(
    door: Door, ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    door.exhausted(monkeypatch, after=0)
    with pytest.raises(OSError, match="No space left"):
        Desk(door.events, ends)
    assert ends[0].fileno() >= 0
    assert door.events._timeout() is None


def test_an_operator_that_cannot_be_watched_again_has_its_answer(
    door: Door, ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(door.events, ends)
    desk.operator.greet()
    assert isinstance(desk.channel.receive(PATIENCE_S).message, m.Done)
    door.exhausted(monkeypatch, after=0)
    desk.channel.send(m.Drain(reason="for a test"))
    door.events.turn()
    assert desk.channel.receive(PATIENCE_S).message == m.Done(text="draining")
    with pytest.raises(ChannelClosed):
        desk.channel.receive(PATIENCE_S)
    assert desk.over == [desk.operator]
