# SPDX-License-Identifier: Apache-2.0
"""
The design that the seed discarded, as a baseline and nothing else: the round runs in a thread of the engine's own process.

Same stream operations, same words, same worker and messages as the product's, but whoever releases the stream needs the
interpreter lock that the engine's thread holds while it launches.
"""

from __future__ import annotations

import os
import threading
import time

from collections.abc import Sequence
from typing import Any, Final

import zmq

from bench.gpu.card import Pinned
from bench.gpu.step import Item, Tensors
from engine_shim.cudastream import TO_DEVICE, TO_HOST, CudaStream
from hostflag import wire
from hostflag.control import Open, Opened, SessionGeometry
from hostflag.messages import EngineIdentity, Geometry


NAP_S: Final = 20e-6
ANSWER_MS: Final = 2000
SLOTS: Final = 8
GATHERED, RELEASED, CONSUMED = 0, 128, 256


class ThreadProxyError(Exception):
    """The worker does not answer; the message says what came."""


class ThreadProxy:
    """Submits rounds to a stream, and a thread of ours does them. ``failed``: rounds that were released without a reply."""

    def __init__(self, stream: CudaStream, tensors: Tensors, geometry: Geometry, endpoint: str) -> None:
        self._stream = stream
        self._tensors = tensors
        self._geometry = geometry
        self._round = 0
        self.failed = 0
        self.released_ms: list[float] = []  # from gathered seen to released
        self._words = Pinned(stream, 4096)
        rows = tensors.max_rows
        self._staging = [Pinned(stream, rows * (geometry.row_bytes + 12)) for _ in range(SLOTS)]
        self._reply = Pinned(stream, geometry.max_requests * geometry.drafts * 8)
        self._jobs: list[tuple[int, list[wire.Request], int, bool]] = []
        self._bell = threading.Condition()
        self._session = int.from_bytes(os.urandom(8), "little")
        self._context: zmq.Context[Any] = zmq.Context(io_threads=1)
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.set(zmq.LINGER, 0)
        self._socket.set(zmq.RCVTIMEO, ANSWER_MS)
        self._socket.connect(endpoint)
        self._open()
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="thread-proxy")
        self._thread.start()

    def submit(self, items: Sequence[Item]) -> None:
        """Enqueue a step's round, as native/gather.c does. Never waits."""
        shipped = [item for item in items if item.shipped(self._geometry.window)]
        drafting = any(item.draft for item in items)
        if not shipped and not drafting:
            return
        self._round += 1
        staging = self._staging[self._round % SLOTS]
        requests, rows = [], sum(item.shipped(self._geometry.window) for item in shipped)
        at = 0
        for index, item in enumerate(shipped):
            count = item.shipped(self._geometry.window)
            first = item.first_row + item.rows - count
            self._gather(staging, at, rows, first, count)
            requests.append(wire.Request(item.slot, 1, at, count, item.draft, index + 1 if item.draft else -1))
            at += count
        self._words_then(requests, rows, drafting=drafting)

    def _gather(self, staging: Pinned, at: int, rows: int, first: int, count: int) -> None:
        tensors, copy = self._tensors, self._stream.copy
        copy(staging.address + at * 8, tensors.positions + first * 8, count * 8, TO_HOST)
        copy(staging.address + rows * 8 + at * 4, tensors.tokens + first * 4, count * 4, TO_HOST)
        row = self._geometry.row_bytes
        copy(staging.address + rows * 12 + at * row, tensors.rows + first * row, count * row, TO_HOST)

    def _words_then(self, requests: list[wire.Request], rows: int, *, drafting: bool) -> None:
        stream, words, number = self._stream, self._words.address, self._round
        stream.write_word(words + GATHERED, number)
        if drafting:
            stream.wait_word(words + RELEASED, number)
            drafts = sum(request.draft for request in requests) * self._geometry.drafts * 8
            stream.copy(self._tensors.drafts, self._reply.address, drafts, TO_DEVICE)
        stream.write_word(words + CONSUMED, number)
        with self._bell:
            self._jobs.append((number, requests, rows, not drafting))
            self._bell.notify()

    def _run(self) -> None:
        while True:
            with self._bell:
                self._bell.wait_for(lambda: self._jobs or self._ending)
                if not self._jobs:
                    return
                job = self._jobs.pop(0)
            while self._words.word(GATHERED) < job[0]:
                time.sleep(NAP_S)
            began = time.perf_counter()
            try:
                self._do(*job)
            except (zmq.ZMQError, wire.BadMessage):
                self.failed += 1
            finally:
                self._words.set_word(RELEASED, job[0])
            if not job[3]:
                self.released_ms.append((time.perf_counter() - began) * 1e3)

    def _do(self, number: int, requests: list[wire.Request], rows: int, context_only: bool) -> None:
        view = self._staging[number % SLOTS].view
        message = wire.Round(
            session=self._session, round=number, context_only=context_only, row_bytes=self._geometry.row_bytes,
            drafts=self._geometry.drafts, requests=requests,
            positions=view[: rows * 8].cast("q"), tokens=view[rows * 8 : rows * 12].cast("i"),
            rows=view[rows * 12 : rows * (12 + self._geometry.row_bytes)],
        )  # fmt: skip
        self._socket.send_multipart(wire.encode_round(message))
        if context_only:
            return
        part = self._socket.recv()
        reply = wire.decode_reply(wire.decode_header(part), part, SessionGeometry.of(self._geometry))
        if reply.round != number or reply.status is not wire.Status.OK:
            raise wire.BadMessage(f"the reply to round {number} is of round {reply.round}, {reply.status.name}")
        ids = memoryview(reply.ids).cast("B")
        self._reply.view[: len(ids)] = ids

    def _open(self) -> None:
        opening = Open(
            protocol=wire.PROTOCOL,
            engine=EngineIdentity(name=f"thread-proxy-{os.getpid()}"),
            model="bench",
            geometry=SessionGeometry.of(self._geometry),
        )
        self._socket.send(wire.encode_control(self._session, opening))
        answer = self._socket.recv()
        if not isinstance(wire.decode_control(wire.decode_header(answer), answer), Opened):
            raise ThreadProxyError(f"the worker answers OPEN with {answer!r}")

    def close(self) -> None:
        """End the thread, once the stream is past every round."""
        with self._bell:
            self._ending = True
            self._bell.notify()
        self._thread.join(10)
        self._socket.close()
        self._context.term()
        for memory in (*self._staging, self._words, self._reply):
            memory.free()
