# SPDX-License-Identifier: Apache-2.0
"""The sessions of this daemon: who may have one, which ones there are, what the ended ones amounted to."""

from __future__ import annotations

import os

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import structlog

from hostflag import geometry as geometries
from hostflag import region as regions
from hostflag.channel import Channel
from hostflag.messages import Hello, ToDaemon
from hostflag.region import RegionFault
from proxyd.errors import RefusedError
from proxyd.sessions.loopsettings import loop_config
from proxyd.sessions.peer import printable
from proxyd.sessions.pulse import Pulse
from proxyd.sessions.roundloop import LoopError, RoundLoop
from proxyd.sessions.session import Session
from proxyd.sessions.tally import Tally


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from proxyd.config.settings import Settings
    from proxyd.links.workers import Workers
    from proxyd.service.events import Events
    from proxyd.sessions.peer import Peer


MAX_SESSIONS: Final = 16
MAX_ENDING: Final = 16  # sessions whose loops are on their way out
MOST_REPLACED: Final = (
    4  # lines, of one user's engines in ten seconds: two of one name replace each other again and again
)
MAX_REGION_BYTES: Final = 4 << 30  # of all sessions together


class Roster:
    """``on_empty`` is called whenever the last session is over."""

    def __init__(self, events: Events, workers: Workers, settings: Settings, on_empty: Callable[[], None]) -> None:
        self._events = events
        self._workers = workers
        self.settings = settings  # sessions start with those of the time
        self._on_empty = on_empty
        self._sessions: dict[int, Session] = {}
        self._ended = Tally()
        self.draining: str | None = None  # why there are no new rounds and no new sessions, until ``resume``
        self.started = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        """Yield the sessions that run: not those that are ending."""
        return (session for session in list(self._sessions.values()) if not session.ending)

    def new_number(self) -> int:
        """Return a session id that is not in use: random, 64 bits, never 0."""
        while True:
            number = int.from_bytes(os.urandom(8), "little")
            if number and number not in self._sessions:
                return number

    def all(self) -> list[Session]:
        """Return all sessions, those that are ending included."""
        return list(self._sessions.values())

    def must_be_open(self) -> None:
        """Raise RefusedError while there are to be no new sessions."""
        if self.draining is not None:
            raise RefusedError("draining", f"this daemon takes no sessions now: {self.draining}; connect again later")

    def make_room(self, hello: Hello, peer: Peer) -> int:
        """
        End the older sessions of the same engine, of ``peer``'s user, and return the bytes of the region that this one would get.

        Raises RefusedError where there is no room for one more, or where the engine is another user's.
        """
        self.must_be_open()
        region_bytes = geometries.region_bytes(hello.geometry)
        older = [session for session in self if _names(session.hello) == _names(hello)]
        for session in older:
            _must_be_own(session, peer)
        for session in older:
            _say_replaced(session, peer)
            session.end("the engine has a newer session")
        running = list(self)
        if len(running) >= MAX_SESSIONS or len(self) - len(running) >= MAX_ENDING:
            raise RefusedError("busy", f"this daemon has {MAX_SESSIONS} sessions already: stop an engine, or try again")
        in_use = sum(session.region_bytes for session in running)
        if in_use + region_bytes > MAX_REGION_BYTES:
            raise RefusedError(
                "memory",
                f"a region of {region_bytes} bytes is too much beside the {in_use} in use (limit {MAX_REGION_BYTES}): "
                "make ring_bytes, slots or max_requests smaller",
            )
        return region_bytes

    def must_be_free(self, region_fd: int) -> None:
        """Raise RefusedError where a session, one that ends included, still has the region: two loops would write to it."""
        region_id = regions.check(region_fd).region_id
        for session in self._sessions.values():
            if session.region_id == region_id:
                raise RefusedError("attach", f"session {session.number:016x} still has this region: wait for its end")

    def add(
        self,
        channel: Channel[ToDaemon],
        hello: Hello,
        *,
        peer: Peer,
        number: int,
        network_timeout_ms: float,
        region_fd: int,
        base: int,
        log: Any,
    ) -> Session:
        """
        Start a session on a region whose counter stands at ``base``. It owns ``channel`` once its ``start`` is called.

        ``network_timeout_ms``: what WELCOME said, whatever a reload has changed since.

        Raises RefusedError where its loop does not start.
        """
        header = regions.check(region_fd)
        settings = replace(self.settings, network_timeout_ms=network_timeout_ms)
        config = loop_config(settings, hello, number=number, base=base)
        try:
            pulse = Pulse(region_fd, config.network_timeout_ns / 1e9)
        except (RegionFault, OSError) as fault:
            raise RefusedError("memory", f"the region cannot be looked at: {fault}") from fault
        try:
            loop = RoundLoop(region_fd, channel.fileno(), config)
        except (LoopError, OSError) as fault:
            pulse.close()
            raise RefusedError("region", f"no round loop on this region: {fault}") from fault
        session = Session(
            self._events,
            self._workers,
            channel,
            loop,
            hello,
            peer=peer,
            pulse=pulse,
            number=number,
            region_bytes=header.bytes,
            region_id=header.region_id,
            log=log,
            on_over=self._remove,
        )
        self._sessions[number] = session
        self.started += 1
        return session

    def drain(self, reason: str) -> None:
        """Take no new rounds and no new sessions; rounds in flight end as they would."""
        self.draining = reason
        for session in self:
            session.drain(reason)

    def resume(self) -> None:
        """Take rounds and sessions again."""
        self.draining = None
        for session in self:
            session.resume()

    @property
    def in_flight(self) -> int:
        """How many rounds of all sessions are submitted and not retired."""
        return sum(session.in_flight for session in self)

    def end(self, reason: str) -> None:
        for session in self:
            session.end(reason)

    def tally(self) -> Tally:
        """Return what all sessions, ended ones included, have counted; a self-test's rounds are none of an engine's."""
        tally = Tally()
        tally.add(self._ended)
        for session in self._sessions.values():
            if not session.echoes:
                tally.add_loop(session.loop)
        return tally

    def _remove(self, session: Session, tally: Tally) -> None:
        if not session.echoes:
            self._ended.add(tally)
        del self._sessions[session.number]
        if not self._sessions:
            self._on_empty()


def _names(hello: Hello) -> tuple[str, int]:
    return hello.engine.name, hello.engine.rank


def _say_replaced(session: Session, peer: Peer) -> None:
    if peer.pid == session.peer.pid:
        return
    # An engine that was started again, or two that were given one name by mistake.
    structlog.get_logger().warning(
        "session of another process replaced",
        session=f"{session.number:016x}",
        engine=session.hello.engine.name,
        rank=session.hello.engine.rank,
        pid=session.peer.pid,
        by_pid=peer.pid,
        uid=peer.uid,
        rate_limited=True,
        rate_key=f"uid {peer.uid}",
        rate_burst=MOST_REPLACED,
    )


def _must_be_own(session: Session, peer: Peer) -> None:
    """Raise RefusedError where the session is another user's: a name that anybody may say must end nobody else's rounds."""
    if session.peer.uid != peer.uid:
        # Not beside it either: the worker, metrics and logs know engines by name and rank.
        raise RefusedError(
            "name",
            f"engine {printable(session.hello.engine.name)} rank {session.hello.engine.rank} is pid {session.peer.pid} of uid "
            f"{session.peer.uid}, and this is pid {peer.pid} of uid {peer.uid}: stop that one, or give this one another name",
        )
