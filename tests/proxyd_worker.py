# SPDX-License-Identifier: Apache-2.0
"""A worker in a thread, friendly or not, and an engine's rounds one after the other: for tests of the link."""

from __future__ import annotations

import array
import threading

from collections.abc import Callable

import zmq

from proxyd_engine import GEOMETRY, Engine
from proxyd_harness import until

from hostflag import wire
from hostflag.control import Opened, SessionGeometry
from hostflag.verdicts import Verdict
from hostflag.wire import Kind, Reply, Status


SESSION: SessionGeometry = SessionGeometry.of(GEOMETRY)
DRAFTS = [1, 2, 3, 4, 5]
Answer = Callable[["Worker", list[bytes], wire.Header], None]


def friendly(worker: Worker, parts: list[bytes], header: wire.Header) -> None:
    """Answer as the contract asks."""
    match header.kind:
        case Kind.OPEN:
            worker.opens.append(wire.decode_control(header, parts[1]))
            worker.send(parts[0], wire.encode_control(header.session, Opened(worker="w1", drafter="test")))
        case Kind.ROUND:
            worker.send(parts[0], reply_to(header))
        case Kind.PING:
            worker.send(parts[0], wire.encode_header(Kind.PONG, header.session, header.round))


def reply_to(header: wire.Header) -> bytes:
    reply = Reply(
        session=header.session,
        round=header.round,
        status=Status.OK,
        n_requests=1,
        ids=memoryview(array.array("q", DRAFTS)),
        extra=memoryview(b""),
    )
    return wire.encode_reply(reply, SESSION)


class Worker:
    """A ROUTER in a thread, with one way to answer."""

    def __init__(self, endpoint: str, answer: Answer = friendly) -> None:
        self.answer = answer
        self.opens: list[object] = []
        self.rounds = 0
        self.idle = True  # every message taken so far was answered
        self._context = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._router.setsockopt(zmq.LINGER, 0)
        self._router.bind(endpoint)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._router.close()
        self._context.term()

    def send(self, identity: bytes, *parts: bytes) -> None:
        self._router.send_multipart([identity, *parts])

    def _run(self) -> None:
        while not self._stop.is_set():
            if self._router.poll(20):
                self.idle = False
                parts = self._router.recv_multipart()
                header = wire.decode_header(parts[1])
                self.rounds += header.kind is Kind.ROUND
                self.answer(self, parts, header)
                self.idle = True


class Rounds:
    """Goes on with an engine's rounds until one ends as expected."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._t = 0
        self.verdicts: list[Verdict] = []

    def until(self, verdict: Verdict) -> None:
        def one() -> bool:
            self._t += 1
            self.verdicts.append(self._engine.round(self._t))
            return self.verdicts[-1] is verdict

        until(one, f"a round that ends {verdict.name}; {self.verdicts[-5:]}")

    def next(self) -> Verdict:
        self._t += 1
        self.verdicts.append(self._engine.round(self._t))
        return self.verdicts[-1]
