# SPDX-License-Identifier: Apache-2.0
"""The worker's loop: one ROUTER, any number of peers, every message checked, none that could end it."""

from __future__ import annotations

import time

from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple

import structlog
import zmq

from hostflag import stderr
from hostflag.audit import AuditWriter
from hostflag.control import Close, Control, Open, Opened, Refused
from hostflag.wire import (
    MAX_CONTROL_BYTES,
    ROUND_PARTS,
    BadMessage,
    BadVersion,
    Header,
    Kind,
    Reply,
    Round,
    Status,
    decode_control,
    decode_header,
    decode_round,
    encode_control,
    encode_header,
    encode_reply,
    encode_status,
    wants_reply,
)
from refworker import auditing
from refworker.endpoint import QUEUED_MESSAGES
from refworker.gate import Gate
from refworker.hearing import Hearing
from refworker.session import DraftFault, Session
from refworker.sessions import NotOpened, Sessions


CHORES_S: Final = 1.0

_log = structlog.get_logger()


class Message(NamedTuple):
    """
    What one peer sent. ``parts`` after its identity: one more than any message has is kept, to tell; the rest is not.

    ``size``: bytes of all parts. ``fd``: the connection it came over, -1 where there is no telling.
    """

    identity: bytes
    parts: list[memoryview]
    size: int
    fd: int


class Server:
    """
    Serves sessions over a bound ROUTER whose receive timeout bounds how late ``stop`` is seen.

    ``worker`` and ``drafter`` are what OPENED says; ``delay_s`` is the least time that drafting for a round takes. One
    thread serves all sessions in turn, as one GPU would. ``counts`` says how often what happened.
    """

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        sessions: Sessions,
        *,
        worker: str,
        drafter: str,
        delay_s: float = 0.0,
        audit: AuditWriter | None = None,
        gate: Gate | None = None,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._socket = socket
        self._sessions = sessions
        self._opened = Opened(worker=worker, drafter=drafter)
        self._delay_s = delay_s
        self._audit = audit
        self._gate = gate
        self._stopping = False
        self._chores_at = 0.0
        self._hearing = Hearing(time.monotonic())
        self._handlers: dict[Kind, Callable[[Header, Message], None]] = {
            Kind.OPEN: self._on_open,
            Kind.ROUND: self._on_round,
            Kind.PING: self._on_ping,
            Kind.CLOSE: self._on_close,
        }

    def stop(self) -> None:
        """End ``run`` soon; for signal handlers and other threads."""
        self._stopping = True

    def run(self) -> None:
        """Serve until ``stop``."""
        while not self._stopping:
            try:
                message = self._receive()
            except zmq.Again:
                message = None
            if message is not None:
                self._serve(message)
            self._watch(message)
            now = time.monotonic()
            if now >= self._chores_at:
                self._chores(now)

    def _receive(self) -> Message:
        # Part by part: a peer can make a message of any number of parts.
        identity, parts, fd, size = self._socket.recv(), list[memoryview](), -1, 0
        more = self._socket.get(zmq.RCVMORE)
        while more:
            frame = self._socket.recv(copy=False)
            more = frame.more
            size += len(frame)
            if len(parts) <= ROUND_PARTS:
                parts.append(frame.buffer)
                fd = int(frame.get(zmq.SRCFD))
        return Message(identity, parts, size, fd)

    def _watch(self, message: Message | None) -> None:
        """Let the gate know what came, and once nothing waits, see who is silent and whether somebody sends without end."""
        if self._gate is not None and message is not None and message.fd >= 0:
            # A queue full of such, and one as large as its sessions' can be: that much may be on its way.
            most = QUEUED_MESSAGES * max(message.size, MAX_CONTROL_BYTES) + self._sessions.largest_round(
                message.identity
            )
            self._gate.heard(message.fd, most)
        if message is None or not int(self._socket.get(zmq.EVENTS)) & zmq.POLLIN:
            self._hearing.caught_up(time.monotonic())
            if self._gate is not None:
                self._gate.look()

    def _serve(self, message: Message) -> None:
        try:
            self._dispatch(message)
        except BadVersion as error:
            self._dropped(error)
            if error.kind == Kind.OPEN:
                # The other version's header begins like ours: it can log who speaks what.
                self._send(message.identity, encode_control(error.session, Refused(code="protocol", reason=str(error))))
        except BadMessage as error:
            self._dropped(error)
        except Exception:  # noqa: BLE001
            # Whatever a peer found, the other sessions go on; a count above 0 is a bug in here.
            self.counts["internal errors"] += 1
            _log.exception("internal error", rate_limited=True)

    def _dispatch(self, message: Message) -> None:
        if not message.parts:
            raise BadMessage("the message has no part")
        header = decode_header(message.parts[0])
        handler = self._handlers.get(header.kind)
        if handler is None:
            raise BadMessage(f"a worker gets no {header.kind.name}")
        if header.kind is not Kind.ROUND and len(message.parts) != 1:
            raise BadMessage(f"{header.kind.name} has one part, more came")
        handler(header, message)

    def _on_round(self, header: Header, message: Message) -> None:
        began = time.monotonic()
        session = self._find(header, message)
        if session is None:
            self._say_no(header, message, Status.UNKNOWN_SESSION, "the session is not open")
            return
        try:
            received = decode_round(header, message.parts, session.geometry)
        except BadMessage as error:
            self._say_no(header, message, Status.BAD_ROUND, str(error))
            return
        self.counts["rounds"] += 1
        try:
            self._draft(session, received, began)
        except DraftFault as error:
            self._note(received, None)
            _log.error(
                "drafter failed", session=f"{header.session:016x}", reason=str(error), exc_info=error, rate_limited=True
            )
            self._say_no(header, message, Status.FAILED, str(error))

    def _draft(self, session: Session, received: Round, began: float) -> None:
        session.take(received)
        reply = None
        if not received.context_only:
            reply = session.draft(received)
            if self._delay_s:
                time.sleep(max(0.0, began + self._delay_s - time.monotonic()))
            self._send(session.identity, encode_reply(reply, session.geometry))
        # After the reply: the audit costs this worker's next round, not the engine's wait.
        self._note(received, reply)

    def _note(self, received: Round, reply: Reply | None) -> None:
        if self._audit is None:
            return
        try:
            self._audit.write(auditing.line(received, reply))
        except OSError as fault:
            self._not_audited(fault)

    def _not_audited(self, fault: OSError) -> None:
        self.counts["audit failures"] += 1
        _log.error("audit not written", reason=fault.strerror, rate_limited=True)

    def _say_no(self, header: Header, message: Message, status: Status, reason: str) -> None:
        self.counts[f"rounds {status.name}"] += 1
        _log.warning(
            "round refused", status=status.name, session=f"{header.session:016x}", reason=reason, rate_limited=True
        )
        if wants_reply(message.parts[0]):
            self._send(message.identity, encode_status(header.session, header.round, status))

    def _on_open(self, header: Header, message: Message) -> None:
        answer: Control = self._opened
        try:
            opening = decode_control(header, message.parts[0])
            assert isinstance(opening, Open)
            for older in self._sessions.open(header.session, message.identity, opening, self._hearing.clock):
                gone = Refused(code="replaced", reason="another session of the same engine name and rank was opened")
                self._send(older.identity, encode_control(older.number, gone))
        except (NotOpened, BadMessage) as error:
            code = error.code if isinstance(error, NotOpened) else "malformed"
            answer = Refused(code=code, reason=str(error)[:2048])
            self.counts["sessions refused"] += 1
            _log.warning(
                "session refused", session=f"{header.session:016x}", code=code, reason=str(error), rate_limited=True
            )
        self._send(message.identity, encode_control(header.session, answer))

    def _on_ping(self, header: Header, message: Message) -> None:
        if header.body_bytes:
            raise BadMessage(f"a PING is empty, {header.body_bytes} bytes of body came")
        if self._find(header, message) is not None:
            self._send(message.identity, encode_header(Kind.PONG, header.session, header.round))
            return
        unknown = Refused(code="unknown-session", reason="the session is not open here: open it again")
        self._send(message.identity, encode_control(header.session, unknown))

    def _on_close(self, header: Header, message: Message) -> None:
        closing = decode_control(header, message.parts[0])
        assert isinstance(closing, Close)
        if self._sessions.find(header.session, message.identity) is not None:
            self._sessions.close(header.session, closing.reason)

    def _find(self, header: Header, message: Message) -> Session | None:
        session = self._sessions.find(header.session, message.identity)
        if session is not None:
            session.seen = self._hearing.clock
        return session

    def _send(self, identity: bytes, part: bytes) -> None:
        try:
            self._socket.send_multipart((identity, part), zmq.NOBLOCK)
        except zmq.ZMQError as error:
            # Gone (EHOSTUNREACH), or it does not read what it asked for (EAGAIN).
            self.counts["not sent"] += 1
            _log.warning("message not sent", reason=str(error), rate_limited=True)

    def _dropped(self, error: BadMessage) -> None:
        self.counts["dropped"] += 1
        _log.warning("message dropped", reason=str(error), rate_limited=True)

    def _chores(self, now: float) -> None:
        self._chores_at = now + CHORES_S
        self._sessions.reap(self._hearing.clock)
        if self._audit is not None:
            try:
                self._audit.flush()
            except OSError as fault:
                self._not_audited(fault)
        if lost := stderr.take_lost():
            _log.error("log lines lost", lines=lost[0], reason=lost[1])
