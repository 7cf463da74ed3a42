# SPDX-License-Identifier: Apache-2.0
"""One connection from accept to READY, or to REFUSED; an operator's is handed on."""

from __future__ import annotations

import contextlib
import os

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import structlog

from hostflag import geometry as geometries
from hostflag.channel import BadMessage, Channel, ChannelClosed, ChannelTimeout, Received, accepted_end
from hostflag.messages import PROTOCOL_VERSION, Attach, Create, Hello, OperatorHello, Refused, ToDaemon, Welcome
from hostflag.version import VERSION
from proxyd.errors import RefusedError
from proxyd.operator.operators import admit
from proxyd.service.events import READ
from proxyd.sessions.peer import peer_of, printable
from proxyd.sessions.region import adoptable, created


if TYPE_CHECKING:
    import socket

    from collections.abc import Callable

    from proxyd.service.events import Events
    from proxyd.sessions.admission import Admission
    from proxyd.sessions.roster import Roster


TIME_LIMIT_S: Final = 5.0
# The outcomes of handshakes that went well; any other is a REFUSED code, or "gone".
READY: Final = "ready"
OPERATOR: Final = "operator"
LINES_A_USER: Final = 32  # of the same kind in ten seconds: all sessions may start and end in them
MAX_UNREAD: Final = 8  # packets that a refused engine may have sent ahead


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What this daemon tells every engine, and whom it takes. ``metrics`` is the URL, None where there is none."""

    network_timeout_ms: float
    metrics: str | None
    admission: Admission


class Handshake:
    """
    Owns ``connection`` until it becomes a session's or an operator's or is closed; ``on_over`` gets the outcome in any case.

    ``on_operator`` gets an operator that was admitted: its channel, and a log that knows it.
    """

    def __init__(
        self,
        events: Events,
        roster: Roster,
        terms: Terms,
        connection: socket.socket,
        *,
        on_operator: Callable[[Channel[ToDaemon], Any], None],
        on_over: Callable[[Handshake, str], None],
    ) -> None:
        self._events = events
        self._roster = roster
        self._terms = terms
        self._on_operator = on_operator
        self._on_over = on_over
        self._channel: Channel[ToDaemon] = accepted_end(connection)
        self._peer = peer_of(connection)
        self._hello: Hello | None = None
        self._number = 0
        # Whatever this peer brings about, as one engine or as thousands: no line without end.
        self._log: Any = structlog.get_logger().bind(
            pid=self._peer.pid,
            uid=self._peer.uid,
            rate_limited=True,
            rate_key=f"uid {self._peer.uid}",
            rate_burst=LINES_A_USER,
        )
        events.watch(self._channel, READ, self._ready)  # first: where it fails, the connection stays the caller's
        self._timer = events.after(TIME_LIMIT_S, self._too_slow)

    @property
    def silent(self) -> bool:
        """Whether nothing was heard of it yet."""
        return self._hello is None

    def refuse(self, code: str, reason: str) -> None:
        """Tell the engine why, as far as it listens, and close."""
        self._log.warning(
            "engine refused", code=code, reason=reason, rate_key=f"{code}, uid {self._peer.uid}", rate_burst=1
        )
        with contextlib.suppress(ChannelClosed, ChannelTimeout):  # who does not listen is closed all the same
            self._channel.send(Refused(code=code, reason=reason))
        self._close(code)

    def _ready(self) -> None:
        try:
            self._take(self._channel.receive(0))
        except ChannelTimeout:
            return
        except ChannelClosed:
            self._log.debug("engine went away before it was ready")
            self._close("gone")
        except BadMessage as fault:
            self.refuse("message", f"{printable(str(fault))}; this daemon speaks protocol {PROTOCOL_VERSION}")
        except RefusedError as fault:
            self.refuse(fault.code, fault.reason)
        except Exception:  # noqa: BLE001 - one engine's trouble must not become the others'
            self._log.exception("handshake failed")
            self.refuse("internal", "an error in the daemon: its log says more")

    def _take(self, received: Received[ToDaemon]) -> None:
        message = received.message
        try:
            if received.fds and not (isinstance(message, Attach) and len(received.fds) == 1):
                raise RefusedError("fds", f"{len(received.fds)} descriptors came with {type(message).__name__}")
            if self._hello is None and isinstance(message, OperatorHello):
                self._hand_on(message)
            elif self._hello is None:
                self._greet(message)
            elif isinstance(message, Create):
                self._create(self._hello)
            elif isinstance(message, Attach):
                self._attach(self._hello, message.base, received.fds)
            else:
                raise RefusedError("order", f"{type(message).__name__} came where CREATE or ATTACH was due")
        finally:
            received.close_fds()

    def _greet(self, message: ToDaemon) -> None:
        if not isinstance(message, Hello):
            raise RefusedError("order", f"{type(message).__name__} came where HELLO was due")
        self._terms.admission.check_engine(self._peer)
        _check(message, self._terms.network_timeout_ms)
        self._roster.must_be_open()
        self._hello = message
        self._number = self._roster.new_number()
        self._channel.send(
            Welcome(
                session=f"{self._number:016x}",
                pid=os.getpid(),
                version=VERSION,
                network_timeout_ms=self._terms.network_timeout_ms,
                metrics=self._terms.metrics,
            )
        )

    def _hand_on(self, message: OperatorHello) -> None:
        admit(message, self._peer, self._terms.admission)
        self._timer.cancel()
        self._events.forget(self._channel)
        self._on_operator(self._channel, self._log)
        self._on_over(self, OPERATOR)

    def _create(self, hello: Hello) -> None:
        self._roster.make_room(hello, self._peer)
        fd = created(hello.geometry)
        try:
            self._hand_over(hello, fd, 0, to_engine=True)
        finally:
            os.close(fd)  # the loop has its map, the engine its own descriptor

    def _attach(self, hello: Hello, base: int, fds: list[int]) -> None:
        if not fds:
            raise RefusedError("attach", "ATTACH came without a region")
        adoptable(fds[0], hello.geometry, base)
        self._roster.must_be_free(fds[0])
        self._roster.make_room(hello, self._peer)
        self._hand_over(hello, fds[0], base, to_engine=False)

    def _hand_over(self, hello: Hello, region_fd: int, base: int, *, to_engine: bool) -> None:
        session = self._roster.add(
            self._channel,
            hello,
            peer=self._peer,
            number=self._number,
            network_timeout_ms=self._terms.network_timeout_ms,
            region_fd=region_fd,
            base=base,
            log=self._log,
        )
        self._timer.cancel()
        self._events.forget(self._channel)
        try:
            session.start(region_fd if to_engine else None)
        except Exception as fault:  # noqa: BLE001 - nobody would ever hear of this session's end
            self._log.exception("session cannot start")
            self.refuse("internal", f"the session cannot start: {printable(str(fault))}")  # while its channel is there
            session.abandon()
            return
        self._on_over(self, READY)

    def _too_slow(self) -> None:
        self.refuse("timeout", f"the handshake was not over within {TIME_LIMIT_S:g} s")

    def _close(self, outcome: str) -> None:
        if self._channel.fileno() < 0:
            return  # it was closed already: there is one outcome
        self._timer.cancel()
        self._events.forget(self._channel)
        # A close with input unread would be an error at the peer, which could then miss REFUSED.
        for _ in range(MAX_UNREAD):
            try:
                self._channel.receive(0).close_fds()
            except BadMessage:
                continue
            except (ChannelClosed, ChannelTimeout):
                break
        self._channel.close()
        self._on_over(self, outcome)


def _check(hello: Hello, network_timeout_ms: float) -> None:
    """Raise RefusedError with what the engine's side has to change."""
    if hello.protocol != PROTOCOL_VERSION:
        older = "engine's side" if hello.protocol < PROTOCOL_VERSION else "daemon"
        raise RefusedError(
            "protocol",
            f"the engine speaks protocol {hello.protocol}, this daemon ({VERSION}) {PROTOCOL_VERSION}: update the {older}",
        )
    if hello.layout_hash != geometries.layout_hash():
        raise RefusedError(
            "layout",
            f"the engine's build lays the region out as {hello.layout_hash}, this daemon as {geometries.layout_hash()}: "
            f"install version {VERSION} on the engine's side too, or update both",
        )
    if fault := geometries.fault(hello.geometry):
        raise RefusedError("geometry", f"{fault}: correct it in the engine's settings")
    if hello.deadline_ms <= network_timeout_ms:
        raise RefusedError(
            "deadline",
            f"a deadline of {hello.deadline_ms:g} ms is not above this daemon's network timeout of {network_timeout_ms:g} ms: "
            "raise the engine's deadline, or lower --network-timeout-ms",
        )
    if hello.echo_us is not None and (hello.geometry.extra_bytes or hello.echo_us >= network_timeout_ms * 1e3):
        raise RefusedError(
            "echo",
            f"an echo takes less than the network timeout of {network_timeout_ms:g} ms, and has no extra bytes: correct the self-test's "
            "settings",
        )
    for what, name in (("engine's name", hello.engine.name), ("model", hello.model)):
        if not name or not name.isprintable():
            raise RefusedError("identity", f"the {what} is empty or holds control characters")
