# SPDX-License-Identifier: Apache-2.0
"""
The yardstick: bare pyzmq, DEALER to ROUTER and back, two processes, the same bytes, the same worker with the same work.

The rows lie in a ring as large as the region's and are written there just before, as the stream's copies do.
"""

from __future__ import annotations

import os
import struct
import time

from typing import Any, Final

import numpy as np
import zmq

from dsv41_rehearse.bench_case import Case
from dsv41_rehearse.device import U8
from dsv41_rehearse.samples import Samples
from hostflag import wire
from hostflag.control import Open, Opened, SessionGeometry
from hostflag.messages import EngineIdentity


ROUND_AT: Final = 16  # of the round's number in a header: magic, version, type and session are before it
ANSWER_S: Final = 5.0


class RawError(Exception):
    """The worker does not answer as the contract says; the message says what came."""


class RawPath:
    """One DEALER that speaks the contract by itself. The ring is written and sent from, piece after piece."""

    def __init__(self, endpoint: str, case: Case) -> None:
        self._case = case
        self._session = int.from_bytes(os.urandom(8), "little")
        self._context: zmq.Context[Any] = zmq.Context(io_threads=1)
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.set(zmq.LINGER, 0)
        self._socket.set(zmq.RCVTIMEO, int(ANSWER_S * 1000))
        self._ring: U8 = np.zeros(case.geometry.ring_bytes, np.uint8)
        self._at = 0
        self._round = 0
        self._socket.connect(endpoint)
        self._open()

    def close(self) -> None:
        """Close the socket and its context."""
        self._socket.close()
        self._context.term()

    def measure(self, rows: int, seconds: float) -> Samples:
        """Return the time from handing a round to the socket to having its reply, us, for rounds of ``rows`` rows."""
        head = bytearray(self._head(rows))
        source = self._case.source[: rows * self._case.geometry.row_bytes]
        samples = Samples()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(self._case.gpu_ms / 1e3)
            piece = self._piece(len(source))
            piece[:] = source
            self._round += 1
            struct.pack_into("<I", head, ROUND_AT, self._round)
            began = time.perf_counter_ns()
            self._socket.send(head, zmq.SNDMORE)
            self._socket.send(piece.data)
            reply = self._socket.recv()
            samples.add((time.perf_counter_ns() - began) / 1e3)
            self._check(reply)
        return samples

    def _piece(self, size: int) -> U8:
        if self._at + size > len(self._ring):
            self._at = 0
        piece = self._ring[self._at : self._at + size]
        self._at += size
        return piece

    def _head(self, rows: int) -> bytes:
        geometry = self._case.geometry
        message = wire.Round(
            session=self._session,
            round=0,
            context_only=False,
            row_bytes=geometry.row_bytes,
            drafts=geometry.drafts,
            requests=[wire.Request(0, 1, 0, rows, True, 1)],
            positions=np.arange(rows, dtype=np.int64).data,
            tokens=np.ones(rows, np.int32).data,
            rows=memoryview(b""),
        )
        return wire.encode_round(message)[0]

    def _open(self) -> None:
        opening = Open(
            protocol=wire.PROTOCOL,
            engine=EngineIdentity(name=f"bench-raw-{os.getpid()}"),
            model="bench",
            geometry=SessionGeometry.of(self._case.geometry),
        )
        self._socket.send(wire.encode_control(self._session, opening))
        answer = self._socket.recv()
        header = wire.decode_header(answer)
        if not isinstance(wire.decode_control(header, answer), Opened):
            raise RawError(f"the worker answers OPEN with {answer!r}")

    def _check(self, part: bytes) -> None:
        header = wire.decode_header(part)
        reply = wire.decode_reply(header, part, SessionGeometry.of(self._case.geometry))
        if header.round != self._round or reply.status is not wire.Status.OK:
            raise RawError(f"the reply to round {self._round} is of round {header.round}, {reply.status.name}")
