# SPDX-License-Identifier: Apache-2.0
"""The round loop alone, between a fake engine and whatever its links lead to."""

from __future__ import annotations

import contextlib
import select
import socket
import time

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from fake_engine import GEOMETRY, PATIENCE_S, SESSION, FakeEngine, until
from fake_worker import FakeWorker

from hostflag.control import Close, Open, SessionGeometry
from hostflag.messages import EngineIdentity, Geometry
from hostflag.verdicts import Verdict
from hostflag.wire import PROTOCOL, encode_control
from proxyd._daemon import lib
from proxyd.links.link import Link, Links, max_message_bytes
from proxyd.sessions.roundloop import EventKind, LinkState, LoopConfig, LoopEvent, RoundLoop


MS: Final = 1_000_000
S: Final = 1_000_000_000


@dataclass
class Running:
    """A loop with its engine and what it said. ``peer`` is the engine's end of the session's socket."""

    engine: FakeEngine
    loop: RoundLoop
    links: Links | None
    peer: socket.socket
    given: dict[int, Link] = field(default_factory=dict)
    events: list[LoopEvent] = field(default_factory=list)
    stopped: bool = False
    joined: bool = False

    def give(self) -> Link:
        """Give the loop a link."""
        assert self.links is not None
        link = self.links.make(max_message_bytes(self.engine.geometry))
        link.give(self.loop, opening(self.engine.geometry))
        self.given[link.tag] = link
        return link

    def hear(self) -> None:
        """Take the loop's events; close what it returned."""
        for event in self.loop.events():
            self.events.append(event)
            if event.kind is EventKind.LINK_RETURNED:
                self.given.pop(event.tag).close()
            self.stopped |= event.kind is EventKind.STOPPED

    def heard(self, kind: EventKind) -> list[LoopEvent]:
        self.hear()
        return [event for event in self.events if event.kind is kind]

    def wait_for(self, kind: EventKind, count: int = 1) -> LoopEvent:
        until(lambda: len(self.heard(kind)) >= count, f"{kind.name} in {self.events}")
        return self.heard(kind)[count - 1]

    def last(self) -> list[str]:
        """Wait for the end; return the kinds of the last three events."""
        self.wait_for(EventKind.STOPPED)
        return [event.kind.name for event in self.events[-3:]]

    def hung_up(self) -> bool:
        """Whether the loop has closed its end of the session's socket."""
        poller = select.poll()
        poller.register(self.peer, 0)
        return any(events & select.POLLHUP for _, events in poller.poll(0))

    def wait_link(self, state: LinkState) -> None:
        until(lambda: self.loop.link_state() is state, f"the link is {state.name}, it is {self.loop.link_state().name}")

    def up(self, worker: FakeWorker) -> None:
        """Give a link and open it."""
        ups = len(self.heard(EventKind.LINK_UP))
        self.give()
        worker.open()
        self.wait_for(EventKind.LINK_UP, ups + 1)

    def counter(self, name: str) -> int:
        return int(getattr(self.loop.counters(), name))

    def rounds(self, verdict: Verdict) -> int:
        return int(self.loop.counters().rounds[verdict])

    def booked(self, verdict: Verdict, count: int) -> None:
        """See so many rounds with that verdict, and no more: a round is booked right behind its release, not before it."""
        until(lambda: self.rounds(verdict) >= count, f"{count} rounds ended {verdict.name}")
        assert self.rounds(verdict) == count

    def dropped(self, why: str) -> int:
        return int(self.loop.counters().dropped[getattr(lib, f"HFD_DROP_{why}")])

    def resume(self) -> None:
        lib.hfd_loop_resume(self.loop._loop)

    def again(self, **changes: Any) -> contextlib.AbstractContextManager[Running]:
        """Run another loop over the same region, with links to the same place."""
        assert self.joined
        return over(self.engine, self.links.endpoint if self.links else None, config(**changes))

    def stop(self) -> float:
        """Stop, join, close everything; again does nothing. Returns how long stop and join took, in seconds."""
        start = time.monotonic()
        if self.joined:
            return 0.0
        if not self.stopped:
            self.loop.stop(closing())
        until(lambda: self.heard(EventKind.STOPPED), "STOPPED")
        assert self.loop.join(PATIENCE_S)
        self.joined = True
        took = time.monotonic() - start
        assert self.given == {}, "a link was not returned"
        return took


def opening(geometry: Geometry = GEOMETRY) -> bytes:
    message = Open(
        protocol=PROTOCOL, engine=EngineIdentity(name="engine"), model="test", geometry=SessionGeometry.of(geometry)
    )
    return encode_control(SESSION, message)


def closing() -> bytes:
    return encode_control(SESSION, Close(reason="the test is over"))


def config(**changes: Any) -> LoopConfig:
    defaults: dict[str, Any] = {
        "session": SESSION,
        "base": 0,
        "network_timeout_ns": 10 * S,  # a loaded machine must not make a test fail
        "spin_ns": 20_000,
        "nap_ns": 20_000,
        "ping_ns": 0,
        "ping_limit_ns": 10 * S,
        "open_limit_ns": 30 * S,
        "reopen_ns": 0,
        "breaker_failures": 0,
    }
    return LoopConfig(**{**defaults, **changes})


@contextlib.contextmanager
def over(engine: FakeEngine, endpoint: str | None, settings: LoopConfig) -> Iterator[Running]:
    """Run a loop over the region of an engine. It is stopped at the end, unless it stopped before."""
    with contextlib.ExitStack() as stack:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stack.callback(ours.close)
        with theirs:
            loop = RoundLoop(engine.fd, theirs.fileno(), settings)  # it has its own duplicate
        links = Links(endpoint) if endpoint else None
        if links:
            stack.callback(links.close)
        run = Running(engine, loop, links, ours)
        stack.callback(run.stop)
        yield run


@contextlib.contextmanager
def running(
    worker: FakeWorker | str | None = None, *, geometry: Geometry = GEOMETRY, **changes: Any
) -> Iterator[Running]:
    """Run a loop over a new region. ``worker``: whom links lead to."""
    settings = config(**changes)
    engine = FakeEngine(geometry, settings.base)
    try:
        with over(engine, worker.endpoint if isinstance(worker, FakeWorker) else worker, settings) as run:
            yield run
    finally:
        engine.close()
