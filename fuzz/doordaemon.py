# SPDX-License-Identifier: Apache-2.0
"""A daemon as far as its door goes: real handshakes, operators and roster rules, but no round loops and no workers."""

from __future__ import annotations

import socket

from types import TracebackType
from typing import Any, Final, cast

from fuzz.watch import must
from hostflag import geometry as geometries
from hostflag import region as regions
from hostflag.channel import Channel, ChannelClosed, ChannelTimeout
from hostflag.messages import Hello, Ready, Region, Status, ToDaemon
from proxyd.config.configuration import Reloaded
from proxyd.config.settings import Settings
from proxyd.errors import RefusedError
from proxyd.operator.controls import Controls
from proxyd.operator.operators import Operator
from proxyd.service.events import Events
from proxyd.sessions.admission import Admission
from proxyd.sessions.handshake import Handshake, Terms
from proxyd.sessions.peer import Peer
from proxyd.sessions.roster import Roster
from proxyd.views.http import Content


MOST_REGION_BYTES: Final = 2 << 20  # what a larger one would cost is time
MOST_TURNS: Final = 64


class Hall(Roster):
    """The roster, but that a session which would start is only noted; then its engine is sent away."""

    def __init__(self, events: Events, workers: Any) -> None:
        super().__init__(events, workers, Settings(), lambda: None)
        self.begun = 0

    def make_room(self, hello: Hello, peer: Peer) -> int:
        size = super().make_room(hello, peer)
        if size > MOST_REGION_BYTES:
            raise RefusedError("memory", "a fuzzer's daemon has little")
        return size

    def add(self, channel: Channel[ToDaemon], hello: Hello, **given: Any) -> Any:
        self.begun += 1
        return Begun(channel, hello, given["region_fd"], given["base"])


class Begun:
    """What a handshake starts."""

    def __init__(self, channel: Channel[ToDaemon], hello: Hello, region_fd: int, base: int) -> None:
        self._channel = channel
        must(geometries.fault(hello.geometry) is None, "a session of a geometry that is out of bounds")
        must(regions.check(region_fd).geometry == hello.geometry, "a region of another geometry")
        must(region_fd >= 0 and 0 <= base < 1 << 32, "a session on no region")

    def start(self, region_fd: int | None) -> None:
        """Send what a session sends, and close."""
        try:
            if region_fd is not None:
                self._channel.send(Region(bytes=1), [region_fd])
            self._channel.send(Ready(locked=True))
        except (ChannelClosed, ChannelTimeout):
            pass  # a peer that does not listen
        self._channel.close()


class Workers:
    """Links to nowhere."""

    endpoint = "tcp://127.0.0.1:1"
    endpoints = (endpoint,)
    settled = True
    answered = True

    def switch(self, endpoints: tuple[str, ...], done: Any, _why: str) -> None:
        must(1 <= len(endpoints) == len(set(endpoints)), "endpoints that are none")
        done()


class Standing:
    def status(self) -> Status:
        return Status(
            pid=1, version="v", seconds=0.0, endpoint="e", endpoints=("e",), draining=False, healthy=True, reasons=(), notes=(),
            sessions=(),
        )  # fmt: skip


class Door:
    """One daemon for one input. A context manager: nothing of it is left."""

    def __init__(self) -> None:
        self._events = Events(_finding)
        workers: Any = Workers()
        self._roster = Hall(self._events, workers)
        self._controls = Controls(self._roster, workers, cast("Any", Standing()), lambda _who: Reloaded())
        self._operators: list[Operator] = []
        self._handshakes = 0
        self._over: list[str] = []

    def __enter__(self) -> Door:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for operator in list(self._operators):
            operator.close()
        self._events.close()
        if error is None:
            must(len(self._over) == self._handshakes, f"a handshake that is not over, or twice: {self._over}")
            must(
                self._over.count("ready") == self._roster.begun,
                "another number of sessions than handshakes that went well",
            )

    @staticmethod
    def page() -> Content:
        return Content("text/plain", b"metrics\n")

    def welcome(self, connection: socket.socket) -> None:
        """Take a connection as the daemon's listener does."""
        connection.setblocking(False)
        self._handshakes += 1
        Handshake(
            self._events,
            self._roster,
            Terms(network_timeout_ms=150.0, metrics=None, admission=Admission()),
            connection,
            on_operator=self._on_operator,
            on_over=lambda _handshake, outcome: self._over.append(outcome),
        )

    def settle(self) -> None:
        """Do what is due; a peer that keeps it busy without end is a finding."""
        for _ in range(MOST_TURNS):
            self._events.after(0.0, lambda: None)  # turn does not wait
            self._events.turn()
            if not self._events._selector.get_map() or not self._events._selector.select(0):
                return
        must(False, "it never comes to rest")

    def _on_operator(self, channel: Channel[ToDaemon], log: Any) -> None:
        operator = Operator(self._events, channel, self._controls, log, self._operators.remove)
        self._operators.append(operator)
        operator.greet()


def _finding(fault: Exception) -> None:
    """The daemon would go on; what it never expected is a finding all the same."""
    raise fault
