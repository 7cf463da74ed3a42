# SPDX-License-Identifier: Apache-2.0
"""A worker on a ROUTER whose every message is sent by the test."""

from __future__ import annotations

import contextlib

from collections.abc import Iterator, Sequence
from typing import Any

import zmq

from fake_engine import GEOMETRY, PATIENCE_S, SESSION

from hostflag._hostflag import ffi
from hostflag.control import Opened, Refused, SessionGeometry
from hostflag.messages import Geometry
from hostflag.wire import Header, Kind, Round, Status, decode_header, decode_round, encode_control, encode_header


class FakeWorker:
    """A worker whose every message is sent by the test."""

    def __init__(self, geometry: Geometry = GEOMETRY, endpoint: str = "tcp://127.0.0.1:*") -> None:
        self.geometry = SessionGeometry.of(geometry)
        self._context = zmq.Context()
        self.socket: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.SNDHWM, 0)  # a ROUTER drops what is beyond it
        self.socket.setsockopt(zmq.RCVTIMEO, int(PATIENCE_S * 1000))
        self.socket.bind(endpoint)
        self.endpoint = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.peer = b""

    def close(self) -> None:
        self._context.destroy(linger=0)

    def receive(self) -> tuple[Header, list[bytes]]:
        """Return the next message, whose sender ``send`` then answers."""
        self.peer, *parts = self.socket.recv_multipart()
        return decode_header(parts[0]), parts

    def expect(self, kind: Kind) -> Header:
        """Return the next message, which has to be of that kind. PINGs are answered on the way."""
        while True:
            header, _ = self.receive()
            if header.kind is Kind.PING and kind is not Kind.PING:
                self.send(encode_header(Kind.PONG, header.session, header.round))
                continue
            assert header.kind is kind, header
            return header

    def expect_round(self) -> Round:
        while True:
            header, parts = self.receive()
            if header.kind is Kind.ROUND:
                return decode_round(header, parts, self.geometry)
            assert header.kind is Kind.PING, header
            self.send(encode_header(Kind.PONG, header.session, header.round))

    def send(self, *parts: bytes | memoryview) -> None:
        self.socket.send_multipart([self.peer, *parts])

    def open(self) -> None:
        """Answer the OPEN that must come next."""
        header = self.expect(Kind.OPEN)
        self.send(encode_control(header.session, Opened(worker="fake", drafter="none")))

    def refuse(self, code: str = "model") -> None:
        self.send(encode_control(SESSION, Refused(code=code, reason="a test")))

    def answer(self, message: Round, ids: Sequence[int] | None = None, **changes: Any) -> None:
        self.send(reply_to(message, self.geometry, ids, **changes))


def reply_to(
    message: Round,
    geometry: SessionGeometry,
    ids: Sequence[int] | None = None,
    *,
    session: int = SESSION,
    number: int | None = None,
    extra: bytes | None = None,
    **says: int,
) -> bytes:
    """Return a REPLY with these ids, 0, 1, 2... by default. ``says``: fields of ``struct hw_reply`` that are wrong on purpose."""
    n_requests = len(message.requests)
    values = range(n_requests * geometry.drafts) if ids is None else ids
    fields = {"n_requests": n_requests, "drafts": geometry.drafts, "extra_bytes": geometry.extra_bytes, **says}
    body = bytes(ffi.buffer(ffi.new("struct hw_reply *", fields)))
    body += b"".join(value.to_bytes(8, "little", signed=True) for value in values)
    body += bytes(n_requests * geometry.extra_bytes) if extra is None else extra
    return encode_header(Kind.REPLY, session, message.round if number is None else number, len(body)) + body


def status_reply(number: int, status: Status, session: int = SESSION) -> bytes:
    body = bytes(ffi.buffer(ffi.new("struct hw_reply *", {"status": status})))
    return encode_header(Kind.REPLY, session, number, len(body)) + body


@contextlib.contextmanager
def fake_worker(geometry: Geometry = GEOMETRY, endpoint: str = "tcp://127.0.0.1:*") -> Iterator[FakeWorker]:
    worker = FakeWorker(geometry, endpoint)
    try:
        yield worker
    finally:
        worker.close()
