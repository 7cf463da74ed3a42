# SPDX-License-Identifier: Apache-2.0
"""One engine session from READY to its end: the socket, the round loop, the link to the worker."""

from __future__ import annotations

import os
import time

from typing import TYPE_CHECKING, Any, Final

from hostflag import wire
from hostflag.channel import BadMessage, Channel, ChannelClosed, ChannelTimeout
from hostflag.control import Close, Open, SessionGeometry
from hostflag.messages import Bye, Draining, Goodbye, Hello, Ready, Region, Resumed, SessionStatus, ToDaemon
from proxyd.links.echo import EchoKeeper
from proxyd.links.link import max_message_bytes
from proxyd.links.linkkeeper import LinkKeeper
from proxyd.service.events import READ
from proxyd.sessions.breakerlog import BreakerLog
from proxyd.sessions.flightrecord import flight_record
from proxyd.sessions.peer import Peer, printable
from proxyd.sessions.roundloop import BreakerState, EventKind, LinkState
from proxyd.sessions.tally import Tally
from proxyd.views.health import SessionFacts


if TYPE_CHECKING:
    from collections.abc import Callable

    from proxyd.links.workers import Workers
    from proxyd.service.events import Events, Timer
    from proxyd.sessions.pulse import Pulse
    from proxyd.sessions.roundloop import LoopEvent, RoundLoop


STOP_LIMIT_S: Final = 2.0
JOIN_LIMIT_S: Final = 1.0
MOST_FLIGHT_RECORDS: Final = 4  # of one user's sessions, in ten seconds
LOOK_S: Final = 0.5  # between two looks at the loop's pulse
_REASONS: Final = {
    EventKind.LOST: "the engine gave the session up",
    EventKind.ENGINE_GONE: "the engine is gone",
    EventKind.FAULT: "the region is not sound",
}


class Session:
    """
    Owns ``channel``, ``loop`` and ``pulse`` from its start on.

    ``number`` is the session's id, ``region_bytes`` what its region takes, ``log`` knows the peer. When nothing is left of
    it, ``on_over`` is called, once, with what it amounted to.
    """

    def __init__(
        self,
        events: Events,
        workers: Workers,
        channel: Channel[ToDaemon],
        loop: RoundLoop,
        hello: Hello,
        *,
        peer: Peer,
        pulse: Pulse,
        number: int,
        region_bytes: int,
        region_id: str,
        log: Any,
        on_over: Callable[[Session, Tally], None],
    ) -> None:
        self.hello = hello
        self.peer = peer
        self.number = number
        self.region_bytes = region_bytes
        self.region_id = region_id
        self.loop = loop
        self.pulse = pulse
        self._events = events
        self._channel = channel
        self._on_over = on_over
        self._began = time.monotonic()
        self._reason = ""  # why it ends; empty while it does not
        self._stuck: Timer | None = None
        self._stalled = False
        self._next_look: Timer | None = None
        engine = hello.engine
        self._log = log.bind(session=f"{number:016x}", engine=engine.name, rank=engine.rank)
        opening = Open(
            protocol=wire.PROTOCOL, engine=engine, model=hello.model, geometry=SessionGeometry.of(hello.geometry)
        )
        self._breaker = BreakerLog(self._log, rate_key=f"{number:016x}")
        message = wire.encode_control(number, opening)
        self._keeper: LinkKeeper | EchoKeeper
        if hello.echo_us is not None:
            self._keeper = EchoKeeper(loop, hello.geometry, hello.echo_us, opening=message)
        else:
            self._keeper = LinkKeeper(
                events,
                workers,
                loop,
                opening=message,
                max_bytes=max_message_bytes(hello.geometry),
                log=self._log,
                rate_key=f"{number:016x}",
            )

    def start(self, region_fd: int | None) -> None:
        """Heed engine and loop, tell the engine that it is ready, with its new region where it asked for one. Raises OSError."""
        self._events.watch(self.loop, READ, self._guarded(self._heed_loop))
        self._events.watch(self._channel, READ, self._guarded(self._heed_engine))
        self._guarded(self._keeper.start)()
        self._guarded(self._look)()
        lock_reason = _lock_advice(self.loop.lock_error(), self.region_bytes)
        try:
            if region_fd is not None:
                self._channel.send(Region(bytes=self.region_bytes), [region_fd])
            self._channel.send(Ready(locked=not lock_reason, lock_reason=lock_reason))
        except (ChannelClosed, ChannelTimeout):
            self.end(_REASONS[EventKind.ENGINE_GONE])
            return
        self._log.info("session ready", model=self.hello.model, region_bytes=self.region_bytes, not_locked=lock_reason)

    def abandon(self) -> None:
        """End at once a session whose ``start`` raised: its loop may never be heard."""
        self.end("it could not start")
        self._over()

    @property
    def ending(self) -> bool:
        return bool(self._reason)

    @property
    def echoes(self) -> bool:
        """Whether it is an engine's self-test, which says nothing of workers."""
        return self.hello.echo_us is not None

    @property
    def worker_up(self) -> bool:
        return self.loop.link_state() is LinkState.UP

    def status(self) -> SessionStatus:
        """Return how it is now. Not once it is over."""
        engine = self.hello.engine
        return SessionStatus(
            session=f"{self.number:016x}",
            engine=printable(engine.name),
            rank=engine.rank,
            pid=engine.pid,
            seconds=round(time.monotonic() - self._began, 3),
            round=self.loop.done(),
            link=self.loop.link_state().name.lower(),
            endpoint=self._keeper.endpoint,
            worker=self._keeper.worker,
            breaker=self.loop.breaker_state().name.lower(),
            beating=self.pulse.beating,
        )

    def facts(self) -> SessionFacts:
        """Return what its health follows from."""
        trouble = None
        if not self.worker_up:
            why = f": {self._keeper.why}" if self._keeper.why else ""
            trouble = f"no worker (link {self.loop.link_state().name.lower()} at {self._keeper.endpoint}{why})"
        elif self.loop.breaker_state() is BreakerState.OPEN:
            trouble = f"the circuit breaker is open: the worker at {self._keeper.endpoint} fails"
        name = f"{printable(self.hello.engine.name)} rank {self.hello.engine.rank}"
        return SessionFacts(name=name, trouble=trouble, stalled=self.pulse.stalled)

    @property
    def in_flight(self) -> int:
        """How many rounds are submitted and not retired."""
        return self.pulse.in_flight(self.loop)

    def drain(self, reason: str) -> None:
        """Take no new rounds, and tell the engine why."""
        if not self.ending:
            self.loop.drain()
            self._tell(Draining(reason=reason))

    def resume(self) -> None:
        """Take rounds again, and tell the engine."""
        if not self.ending:
            self.loop.resume()
            self._tell(Resumed())

    def end(self, reason: str) -> None:
        """Begin the end; what is in flight is released by the loop. Only the first reason counts."""
        if self.ending:
            return
        self._reason = reason
        if reason in _REASONS.values():
            self._log.info("flight record", reason=reason, rate_burst=MOST_FLIGHT_RECORDS, **flight_record(self.pulse))
        self._events.forget(self._channel)
        self._keeper.stop()
        self._stuck = self._events.after(STOP_LIMIT_S, self._say_stuck)
        self.loop.stop(wire.encode_control(self.number, Close(reason=reason)))

    def _guarded(self, act: Callable[[], None]) -> Callable[[], None]:
        def call() -> None:
            try:
                act()
            except Exception:  # noqa: BLE001 - one session's trouble must not become the others'
                self._log.exception("session failed")
                self.end("an error in the daemon")

        return call

    def _heed_engine(self) -> None:
        try:
            received = self._channel.receive(0)
        except ChannelTimeout:
            return
        except ChannelClosed:
            self.end(_REASONS[EventKind.ENGINE_GONE])
            return
        except BadMessage as fault:
            self._log.warning("engine sent no message of the protocol", reason=printable(str(fault)))
            self.end("the engine broke the protocol")
            return
        received.close_fds()  # no message of a running session carries any
        if isinstance(received.message, Goodbye):
            self.end("the engine said goodbye")
            return
        self._log.warning("engine sent what has no place in a running session", kind=type(received.message).__name__)
        self.end("the engine broke the protocol")

    def _heed_loop(self) -> None:
        for event in self.loop.events():
            self._take(event)

    def _take(self, event: LoopEvent) -> None:
        match event.kind:
            case EventKind.STOPPED:
                self._over()
            case EventKind.LOST | EventKind.ENGINE_GONE:
                self.end(_REASONS[event.kind])
            case EventKind.FAULT:
                self._log.error("the engine's region is not sound", reason=event.reason)
                self.end(_REASONS[event.kind])
            case EventKind.BREAKER_OPEN | EventKind.BREAKER_PROBE | EventKind.BREAKER_CLOSED:
                self._breaker.take(event)
            case EventKind.BAD_GATHER:
                self._log.error("a gathered round does not fit its header", reason=event.reason)
            case _:
                self._keeper.take(event)

    def _over(self) -> None:
        self.end("the round loop stopped")  # where it was the loop's own wish
        if self._stuck is not None:
            self._stuck.cancel()
        self._events.forget(self.loop)
        tally = Tally()
        tally.add_loop(self.loop)
        if not self.loop.join(JOIN_LIMIT_S):
            self._say_stuck()
            return
        self._keeper.close()
        if self._next_look is not None:
            self._next_look.cancel()
        self.pulse.close()
        # The region is let go of and the loop's own socket closed: only now may the engine see the end.
        self._tell(Bye())
        self._channel.close()
        self._log.info(
            "session over",
            reason=self._reason,
            seconds=round(time.monotonic() - self._began, 3),
            rounds=tally.rounds(),
            context_only=int(tally.counters.context_only),
            rows=int(tally.counters.rows_sent),
        )
        self._on_over(self, tally)

    def _look(self) -> None:
        now = time.monotonic()
        # All sessions look at the same moments, so that each further one does not wake the process again.
        self._next_look = self._events.after(LOOK_S + LOOK_S / 10 - now % LOOK_S, self._guarded(self._look))
        self.pulse.look(self.loop, now)
        stalled = self.pulse.stalled
        if stalled and not self._stalled:
            self._log.error("session stalled", reason=stalled)
        elif self._stalled and not stalled:
            self._log.info("session moves again")
        self._stalled = bool(stalled)

    def _tell(self, message: Draining | Resumed | Bye) -> None:
        try:
            self._channel.send(message)
        except (ChannelClosed, ChannelTimeout) as fault:
            # It knows, or it does not read: the socket's end says the same.
            self._log.debug("engine was not told", message=type(message).__name__, reason=str(fault))

    def _say_stuck(self) -> None:
        # Nothing is closed under a loop that runs: its memory and sockets are kept until the process ends.
        self._log.error("round loop does not stop", reason=self._reason)


def _lock_advice(error: int, region_bytes: int) -> str | None:
    advice = f"{os.strerror(error)}: LimitMEMLOCK= (ulimit -l) must allow {region_bytes} bytes a session"
    return advice if error else None
