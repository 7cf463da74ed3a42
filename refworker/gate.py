# SPDX-License-Identifier: Apache-2.0
"""
The worker's door: a thread that lets only known keys in, and cuts connections that cost more than they may.

libzmq hands a message over once all its parts are there, and no option bounds their number: what a connection has received since
its last whole message does. Connections over Unix sockets are not counted: there the rights of the file decide who comes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
import threading
import time

from collections import Counter
from collections.abc import Collection
from types import TracebackType
from typing import Final

import structlog
import zmq

from zmq.utils import z85
from zmq.utils.monitor import parse_monitor_message

from hostflag.wire import MAX_CONTROL_BYTES, MAX_PART_BYTES
from refworker.endpoint import QUEUED_MESSAGES


LOOK_MS: Final = 50
BUSY_BYTES: Final = 2 * MAX_PART_BYTES  # more, while messages may wait to be taken: the largest one there is
MAX_CONNECTIONS: Final = 256
SLACK_BYTES: Final = 256 << 10  # the kernel's buffers, frames, encryption
STRANGER_BYTES: Final = QUEUED_MESSAGES * MAX_CONTROL_BYTES + SLACK_BYTES
ZAP: Final = "inproc://zeromq.zap.01"
FAILED: Final = {
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: "broken off",
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "no ZMQ, or other keys than ours",
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "a key that is not allowed",
}
EVENTS: Final = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | sum(FAILED)
_RECEIVED: Final = struct.Struct("128xQ")  # struct tcp_info, up to and with tcpi_bytes_received
_RESET: Final = struct.pack("ii", 1, 0)

_log = structlog.get_logger()


class Gate:
    """Watches a ROUTER, not bound yet, until its end. ``allowed``: the public keys (32 bytes) that may enter; None: no keys."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], router: zmq.Socket[bytes], allowed: Collection[bytes] | None
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._allowed = allowed
        self._router = router
        self._limits: dict[int, int] = {}  # by descriptor, in order of arrival: bytes that may have been received
        self._strangers: dict[int, None] = {}  # those from which no whole message came yet
        self._look_at = 0.0
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._zap = context.socket(zmq.REP)
        self._zap.setsockopt(zmq.LINGER, 0)
        if allowed is not None:
            self._zap.bind(ZAP)
        self._monitor = router.get_monitor_socket(EVENTS)
        self._thread = threading.Thread(target=self._run, name="gate")

    def __enter__(self) -> Gate:
        try:
            self._thread.start()
        except RuntimeError as fault:
            self._let_go()
            raise OSError(errno.EAGAIN, f"no thread for the gate: {fault}") from fault
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.eventfd_write(self._bell, 1)
        self._thread.join()
        self._let_go()

    def _let_go(self) -> None:
        self._router.disable_monitor()
        self._monitor.close(linger=0)
        self._zap.close()
        os.close(self._bell)

    def heard(self, fd: int, most_bytes: int) -> None:
        """A whole message came over ``fd``; until the next one ``most_bytes`` more may. The serving thread calls it."""
        received = received_bytes(fd)
        if received is not None:
            self._strangers.pop(fd, None)
            self._limits[fd] = received + most_bytes + SLACK_BYTES

    def look(self) -> None:
        """Cut who sends without end. The serving thread calls it where it has taken every whole message."""
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + LOOK_MS / 1000
            self._look(0)

    def _run(self) -> None:
        poller = zmq.Poller()
        for source in (self._bell, self._zap, self._monitor):
            poller.register(source, zmq.POLLIN)
        while True:
            ready = dict(poller.poll(LOOK_MS if self._limits else None))
            if self._bell in ready:
                return
            try:
                if self._zap in ready:
                    self._admit(self._zap.recv_multipart())
                self._take_events()
                self._look(BUSY_BYTES)
            except Exception:  # noqa: BLE001 - the door has to go on
                self.counts["internal errors"] += 1
                _log.exception("internal error", rate_limited=True)

    def _admit(self, request: list[bytes]) -> None:
        """Answer a question of libzmq's (ZAP, RFC 27): version, id, domain, address, identity, mechanism, key."""
        key = request[6] if len(request) == 7 and request[5] == b"CURVE" else b""
        good = self._allowed is not None and key in self._allowed
        if not good:
            self.counts["keys refused"] += 1
            shown = z85.encode(key).decode() if len(key) == 32 else "none"
            _log.warning(
                "key refused: not in the file of allowed keys",
                public_key=shown,
                address=request[3].decode("ascii", "replace") if len(request) > 3 else "?",
                rate_limited=True,
            )
        code, text = (b"200", b"OK") if good else (b"400", b"key not allowed")
        self._zap.send_multipart([b"1.0", request[1] if len(request) > 1 else b"", code, text, b"", b""])

    def _take_events(self) -> None:
        with contextlib.suppress(zmq.Again):
            while True:
                event = parse_monitor_message(self._monitor.recv_multipart(zmq.NOBLOCK))
                kind, value = int(event["event"]), int(event["value"])
                if kind == zmq.EVENT_ACCEPTED:
                    self._meet(value)
                elif kind == zmq.EVENT_DISCONNECTED:
                    self._limits.pop(value, None)
                    self._strangers.pop(value, None)
                else:
                    self.counts["handshakes failed"] += 1
                    _log.warning("handshake failed", reason=FAILED[zmq.Event(kind)], rate_limited=True)

    def _meet(self, fd: int) -> None:
        if received_bytes(fd) is None:
            return
        self._strangers[fd] = None
        self._limits.setdefault(fd, STRANGER_BYTES)
        if len(self._limits) > MAX_CONNECTIONS:
            self._cut(next(iter(self._strangers)), f"more than {MAX_CONNECTIONS} connections")

    def _look(self, more: int) -> None:
        for fd, limit in list(self._limits.items()):
            received = received_bytes(fd)
            if received is not None and received > limit + more:
                self._cut(fd, "more bytes than any message has, and none whole")

    def _cut(self, fd: int, reason: str) -> None:
        self._limits.pop(fd, None)
        self._strangers.pop(fd, None)
        self.counts["connections cut"] += 1
        _log.warning("connection cut", reason=reason, rate_limited=True)
        with contextlib.suppress(OSError), _duplicate(fd) as connection:
            # libzmq, whose descriptor it is, sees an end and closes it: with a reset, which a peer hears whose window is full.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            connection.shutdown(socket.SHUT_RDWR)


def _duplicate(fd: int) -> socket.socket:
    """Return a socket of our own on what is libzmq's. Raises OSError where ``fd`` is no socket (any more)."""
    copy = os.dup(fd)
    try:
        return socket.socket(socket.AF_INET, socket.SOCK_STREAM, fileno=copy)
    except OSError:
        os.close(copy)
        raise


def received_bytes(fd: int) -> int | None:
    """Return how many bytes came over a TCP connection so far; None where ``fd`` is none (any more)."""
    try:
        with _duplicate(fd) as connection:
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RECEIVED.size)
    except OSError:
        return None
    return int(_RECEIVED.unpack(info)[0]) if len(info) == _RECEIVED.size else None
