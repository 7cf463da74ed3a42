# SPDX-License-Identifier: Apache-2.0
"""The link to the worker: absent, coming, going, silent, refusing, hostile. The engine always gets its round back."""

from __future__ import annotations

import array
import contextlib
import os
import socket
import struct
import threading
import time

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import zmq

from proxyd_harness import GEOMETRY, Daemon, Engine, until

from hostflag import wire
from hostflag.control import Open, Opened, Refused, SessionGeometry
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
                parts = self._router.recv_multipart()
                header = wire.decode_header(parts[1])
                self.rounds += header.kind is Kind.ROUND
                self.answer(self, parts, header)


@pytest.fixture
def daemon(short_dir: Path) -> Iterator[Daemon]:
    with Daemon(short_dir) as running:
        yield running


@pytest.fixture
def engine(daemon: Daemon) -> Iterator[Engine]:
    with Engine(daemon.path) as connected:
        yield connected.ready()


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


@pytest.fixture
def rounds(engine: Engine) -> Rounds:
    return Rounds(engine)


def test_an_absent_worker_is_said_once(daemon: Daemon, engine: Engine) -> None:
    daemon.wait_for("worker unreachable, waiting")
    assert [engine.round(t) for t in range(1, 20)] == [Verdict.DISCONNECTED] * 19
    time.sleep(2)  # several tries to connect
    assert len(daemon.said("worker unreachable, waiting")) == 1
    assert not daemon.said("worker up")


def test_a_worker_comes_goes_and_comes_back(daemon: Daemon, rounds: Rounds) -> None:
    with Worker(daemon.worker) as worker:
        rounds.until(Verdict.OK)
        line = daemon.wait_for("worker up")
        assert (line["worker"], line["drafter"], line["endpoint"]) == ("w1", "test", daemon.worker)
        opening = worker.opens[0]
        assert isinstance(opening, Open)
        assert opening.geometry == SESSION
        assert (opening.model, opening.engine.name) == ("test", "engine")
    rounds.until(Verdict.DISCONNECTED)
    daemon.wait_for("worker link lost")
    with Worker(daemon.worker):
        rounds.until(Verdict.OK)
        assert {rounds.next() for _ in range(10)} == {Verdict.OK}


def test_the_drafts_reach_the_engine(daemon: Daemon, engine: Engine) -> None:
    with Worker(daemon.worker):
        Rounds(engine).until(Verdict.OK)
    wanted = struct.pack("5q", *DRAFTS)
    assert wanted in os.pread(engine.region_fd, os.fstat(engine.region_fd).st_size, 0)


def test_a_silent_worker_times_out_and_is_linked_anew(daemon: Daemon, rounds: Rounds) -> None:
    def silent(worker: Worker, parts: list[bytes], header: wire.Header) -> None:
        if header.kind is not Kind.ROUND:
            friendly(worker, parts, header)

    with Worker(daemon.worker, silent) as worker:
        rounds.until(Verdict.TIMEOUT)
        worker.answer = friendly
        rounds.until(Verdict.OK)
        assert len(worker.opens) >= 2
    assert daemon.scrape()["dsv41_proxyd_link_resets_total"] >= 1


def test_a_worker_that_refuses_is_said_with_its_reason(daemon: Daemon, rounds: Rounds) -> None:
    def refusing(worker: Worker, parts: list[bytes], header: wire.Header) -> None:
        if header.kind is Kind.OPEN:
            worker.send(
                parts[0], wire.encode_control(header.session, Refused(code="model", reason="another\x1b model"))
            )

    with Worker(daemon.worker, refusing):
        line = daemon.wait_for("worker refused the session")
        assert (line["code"], line["reason"]) == ("model", "another? model")
        assert rounds.next() is Verdict.REFUSED


def header_with(**changes: int) -> Callable[[wire.Header], bytes]:
    def make(header: wire.Header) -> bytes:
        fields = {
            "magic": 0x34465344,
            "version": 1,
            "kind": Kind.REPLY,
            "session": header.session,
            "round": header.round,
        }
        values = {**fields, **changes}
        body = reply_to(header)[24:]
        return struct.pack("<IHHQII", *values.values(), len(body)) + body

    return make


def body_with(index: int, value: int) -> Callable[[wire.Header], bytes]:
    """A reply with one of its u32 fields, or the first id, changed."""

    def make(header: wire.Header) -> bytes:
        whole = bytearray(reply_to(header))
        struct.pack_into("<q" if index == 4 else "<I", whole, 24 + 4 * index, value)
        return bytes(whole)

    return make


@pytest.mark.parametrize(
    "make",
    [
        lambda header: b"",
        lambda header: b"x",
        lambda header: os.urandom(24),
        lambda header: os.urandom(100_000),
        lambda header: reply_to(header)[:-1],
        lambda header: reply_to(header) + b"\0" * 8,
        header_with(magic=0),
        header_with(version=2),
        header_with(kind=Kind.ROUND),
        header_with(kind=99),
        header_with(session=1),
        header_with(round=2**32 - 5),
        body_with(0, 99),
        body_with(1, 2**32 - 1),
        body_with(2, 2**31),
        body_with(3, 8),
        body_with(4, -1),
        body_with(4, 256),
        body_with(4, 2**62),
    ],
)
def test_a_hostile_reply_is_never_used(daemon: Daemon, rounds: Rounds, make: Callable[[wire.Header], bytes]) -> None:
    def hostile(worker: Worker, parts: list[bytes], header: wire.Header) -> None:
        if header.kind is Kind.ROUND:
            worker.send(parts[0], make(header))
        else:
            friendly(worker, parts, header)

    with Worker(daemon.worker) as worker:
        rounds.until(Verdict.OK)
        worker.answer = hostile
        verdict = rounds.next()
        assert verdict in {Verdict.TIMEOUT, Verdict.BAD_REPLY, Verdict.DISCONNECTED}
        worker.answer = friendly
        rounds.until(Verdict.OK)
    assert daemon.process.poll() is None


@pytest.mark.parametrize("body", [b"", b"{", b'{"worker": 1}', b"\xff" * 50, b'{"worker": "' + b"x" * 60_000 + b'"}'])
def test_an_opened_that_is_not_sound_does_no_harm(daemon: Daemon, engine: Engine, body: bytes) -> None:
    def careless(worker: Worker, parts: list[bytes], header: wire.Header) -> None:
        if header.kind is Kind.OPEN:
            worker.send(parts[0], wire.encode_header(Kind.OPENED, header.session, 0, len(body)) + body)
        else:
            friendly(worker, parts, header)

    with Worker(daemon.worker, careless):
        engine.round(1)
        daemon.wait_for("the worker's OPENED is not sound")


def test_what_listens_there_is_no_worker(short_dir: Path) -> None:
    """A peer that speaks no ZMQ, and one that says nothing at all."""
    path = short_dir / "w"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(str(path))
        listening.listen()
        with Daemon(short_dir) as daemon, Engine(daemon.path) as engine:
            rounds = Rounds(engine.ready())
            stranger, _ = listening.accept()
            with stranger, contextlib.suppress(BrokenPipeError):  # it hangs up in the middle, and is right
                stranger.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 1000)
            assert rounds.next() is Verdict.DISCONNECTED
            silent, _ = listening.accept()
            with silent:
                assert rounds.next() is Verdict.DISCONNECTED
                daemon.wait_for("worker unreachable, waiting")
            listening.close()
            path.unlink()
            with Worker(daemon.worker):
                rounds.until(Verdict.OK)


def test_two_sessions_have_a_link_each(daemon: Daemon, engine: Engine) -> None:
    with Worker(daemon.worker) as worker, Engine(daemon.path) as other:
        other.ready("other")
        Rounds(engine).until(Verdict.OK)
        Rounds(other).until(Verdict.OK)
        names = {opening.engine.name for opening in worker.opens if isinstance(opening, Open)}
        assert names == {"engine", "other"}
        assert all(up for name, up in daemon.scrape().items() if "worker_up" in name)


def test_sessions_and_links_that_end_leave_nothing(daemon: Daemon) -> None:
    with Worker(daemon.worker):
        with Engine(daemon.path) as engine:
            Rounds(engine.ready()).until(Verdict.OK)
        daemon.wait_for("session over")
        until(lambda: daemon.resources()["threads"] == 3, "the first session's thread")
        before = daemon.resources()
        for count in range(2, 30):
            with Engine(daemon.path) as engine:
                Rounds(engine.ready()).until(Verdict.OK)
            daemon.wait_for("session over", count)
        daemon.back_to(before)


def test_the_largest_message_is_that_of_the_geometry() -> None:
    from proxyd.link import max_message_bytes

    header, reply = 24, 16
    assert max_message_bytes(GEOMETRY) == header + 65_536
    wide = msgspec.structs.replace(GEOMETRY, max_requests=256, drafts=64, extra_bytes=1024)
    assert max_message_bytes(wide) == header + reply + 256 * (64 * 8 + 1024)
