# SPDX-License-Identifier: Apache-2.0
"""Whatever comes over the network, the worker stays up, stays small, and answers who behaves."""

from __future__ import annotations

import contextlib
import socket
import struct
import time

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import numpy as np
import pytest
import zmq

from worker_peer import GEOMETRY, PATIENCE_MS, Ask, Peer, Worker, connected, make_round, opening, running_worker

from hostflag.control import SessionGeometry
from hostflag.wire import MAX_PART_BYTES, Kind, Status, encode_control, encode_header, encode_round
from refworker.gate import MAX_CONNECTIONS


ROUND: Final = [bytes(part) for part in encode_round(make_round([Ask(1, 1, [0, 1], anchor=5)], session=9))]
OPEN: Final = encode_control(9, opening(name="hostile"))
# A ZMTP 3.0 greeting without security, and the READY of a DEALER.
GREETING: Final = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(16 + 32)
READY_BODY: Final = b"\x05READY\x0bSocket-Type\0\0\0\x06DEALER"
READY: Final = bytes([4, len(READY_BODY)]) + READY_BODY
PROBE: Final = encode_header(Kind.PING, 0xFEED)


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    with running_worker(tmp_path_factory.mktemp("worker"), "--log-level", "error") as running:
        yield running


@pytest.fixture(autouse=True)
def good_session(worker: Worker) -> Iterator[None]:
    """A session that was open before, drafts after, and nothing was wrong inside the worker."""
    with connected(worker.endpoint, 1) as (peer,):
        peer.opened()
        yield
        assert peer.draft(Ask(1, 1, [3], anchor=5)).status is Status.OK
    assert worker.process.poll() is None
    assert worker.log() == ""


@pytest.fixture
def hostile(worker: Worker) -> Iterator[zmq.Socket[bytes]]:
    with connected(worker.endpoint, 9) as (peer,):
        yield peer.socket


def raw(worker: Worker) -> socket.socket:
    host, _, port = worker.endpoint.removeprefix("tcp://").rpartition(":")
    return socket.create_connection((host, int(port)), timeout=20)


def greeted(worker: Worker) -> socket.socket:
    """Return a raw connection that has been a peer like others so far."""
    peer, came = raw(worker), b""
    for data, answer in ((GREETING, b"NULL"), (READY, b"READY"), (bytes([0, len(PROBE)]) + PROBE, b"unknown-session")):
        peer.sendall(data)
        while answer not in came:
            more = peer.recv(65536)
            assert more, came
            came += more
    return peer


def answered(peer: zmq.Socket[bytes]) -> None:
    """Wait until the worker has been through everything sent before. It drops answers to a peer that has many to read."""
    until = time.monotonic() + PATIENCE_MS / 1000
    while time.monotonic() < until:
        peer.send(PROBE)
        while peer.poll(200):
            if PROBE[8:16] == peer.recv()[8:16]:
                return
    pytest.fail("the worker does not answer")


def resident_mib(worker: Worker) -> float:
    status = Path(f"/proc/{worker.process.pid}/status").read_text(encoding="ascii")
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


@pytest.mark.parametrize(
    "parts",
    [
        [b""],
        [b"", b""],
        [b"\0"],
        [b"\xff" * 23],
        [b"\0" * 24],
        [b"x" * 100_000],
        [OPEN, b""],
        [OPEN[:-1]],
        [encode_header(Kind.OPENED, 9)],
        [encode_header(Kind.REPLY, 9)],
        [encode_header(Kind.PONG, 9)],
        [encode_header(Kind.CLOSE, 9)],
        [encode_header(Kind.PING, 9, 0, 3) + b"abc"],
        [encode_header(Kind.ROUND, 9)],
        [encode_header(Kind.ROUND, 9), b""],
        [encode_header(Kind.ROUND, 9), b"", b""],
    ],
    ids=repr,
)
@pytest.mark.parametrize("opened", [False, True])
def test_messages_that_are_none(hostile: zmq.Socket[bytes], parts: list[bytes], opened: bool) -> None:
    if opened:
        hostile.send(OPEN)
    hostile.send_multipart(parts)
    answered(hostile)


def test_a_message_of_very_many_parts(hostile: zmq.Socket[bytes]) -> None:
    hostile.send_multipart([OPEN])
    hostile.send_multipart([*ROUND, *[b"more"] * 50_000])
    hostile.send_multipart([b""] * 50_000)
    answered(hostile)


def test_random_messages(hostile: zmq.Socket[bytes]) -> None:
    rng = np.random.default_rng(5)
    hostile.send(OPEN)
    for _ in range(2000):
        hostile.send_multipart([rng.bytes(int(rng.integers(0, 200))) for _ in range(int(rng.integers(1, 5)))])
    answered(hostile)


def changed(part: bytes, rng: np.random.Generator) -> bytes:
    """Change a few bytes behind the header's first three fields, so that most get past the first look."""
    bad = bytearray(part)
    for _ in range(int(rng.integers(1, 4))):
        bad[int(rng.integers(8, len(bad)))] = int(rng.integers(0, 256))
    return bytes(bad)


def cut(part: bytes, rng: np.random.Generator) -> bytes:
    body = part[24 : int(rng.integers(24, len(part)))]
    return part[:20] + struct.pack("<I", len(body)) + body


@pytest.mark.parametrize("spoil", [changed, cut])
@pytest.mark.parametrize("parts", [[OPEN], ROUND], ids=["OPEN", "ROUND"])
def test_messages_that_are_nearly_right(
    hostile: zmq.Socket[bytes], parts: list[bytes], spoil: Callable[[bytes, np.random.Generator], bytes]
) -> None:
    rng = np.random.default_rng(6)
    for number in range(1000):
        if number % 50 == 0:
            hostile.send(OPEN)
        hostile.send_multipart([spoil(parts[0], rng), *parts[1:]])
    answered(hostile)


def test_positions_at_the_end_of_the_numbers(worker: Worker, hostile: zmq.Socket[bytes]) -> None:
    end = (1 << 63) - 1
    peer = Peer(hostile, 9, name="hostile")
    peer.opened()
    for positions in ([end], [0, end], [end - 1, end, end], [1 << 62]):
        assert peer.draft(Ask(1, 1, positions, anchor=5)).status is Status.OK


def test_a_session_as_large_as_can_be(worker: Worker, hostile: zmq.Socket[bytes]) -> None:
    """Opening one reserves nothing."""
    before = resident_mib(worker)
    huge = SessionGeometry(
        row_bytes=1 << 20,
        window=1 << 20,
        drafts=64,
        vocab=0x7FFF_FFFF,
        max_requests=256,
        state_slots=4096,
        extra_bytes=1 << 17,
    )
    Peer(hostile, 9, huge, name="hostile").opened()
    answered(hostile)
    assert resident_mib(worker) < before + 64


def test_a_part_that_is_too_long_breaks_the_connection(worker: Worker) -> None:
    with greeted(worker) as peer:
        peer.sendall(b"\x02" + struct.pack(">Q", MAX_PART_BYTES + 1) + b"x" * 1000)
        began = time.monotonic()
        with contextlib.suppress(ConnectionResetError):
            while peer.recv(65536):
                pass
        assert time.monotonic() - began < 14  # an unanswered heartbeat would end it too, but not before 15 s


@pytest.mark.parametrize(
    "part", [b"\x01\x00", b"\x03" + struct.pack(">Q", 60_000) + bytes(60_000)], ids=["empty", "long"]
)
def test_a_message_of_endless_parts_costs_the_connection(worker: Worker, part: bytes) -> None:
    """Libzmq would collect them without end, and hand out none. What is cut off is forgotten."""
    before = resident_mib(worker)
    data = part * max(1, 65536 // len(part))
    sent = 0
    with greeted(worker) as peer, contextlib.suppress(ConnectionError):
        while sent < 2 << 30:
            sent += peer.send(data)
    assert sent < 2 << 30, "nothing stopped it"
    until = time.monotonic() + PATIENCE_MS / 1000
    while resident_mib(worker) > before + 256 and time.monotonic() < until:
        time.sleep(0.05)
    assert resident_mib(worker) < before + 256


def test_silent_connections_are_bounded(worker: Worker) -> None:
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(greeted(worker))
        strangers = [stack.enter_context(raw(worker)) for _ in range(MAX_CONNECTIONS + 8)]
        strangers[0].settimeout(PATIENCE_MS / 1000)
        with contextlib.suppress(ConnectionError):
            while strangers[0].recv(4096):
                pass
        first.sendall(bytes([0, len(PROBE)]) + PROBE)
        assert b"unknown-session" in first.recv(4096), "one from which a message came is no stranger"


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: worker\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01" + b"\0" * 300,
        b"\xff" * 5000,
        GREETING,
        GREETING + READY + b"\x00\x05abc",
        GREETING + READY + b"\x02" + b"\xff" * 8,
        GREETING + READY[:5],
    ],
    ids=["HTTP", "TLS", "ones", "greeting", "half a frame", "endless frame", "half a command"],
)
def test_peers_that_speak_no_zmq(worker: Worker, data: bytes) -> None:
    with raw(worker) as peer, contextlib.suppress(ConnectionError):
        peer.sendall(data)


def test_connections_that_come_and_go(worker: Worker) -> None:
    for _ in range(200):
        with raw(worker) as peer, contextlib.suppress(ConnectionError):
            peer.sendall(GREETING)


def test_a_flood_of_rounds_for_nobody_does_not_grow_it(worker: Worker) -> None:
    message = make_round([Ask(1, 1, range(1000), anchor=5)], session=404)
    parts = encode_round(message)
    before = resident_mib(worker)
    with connected(worker.endpoint, 404) as (peer,):
        for _ in range(2000):
            peer.socket.send_multipart(parts)
            assert peer.receive()[0].kind is Kind.REPLY
        assert resident_mib(worker) < before + 64
    assert message.rows.nbytes == 1000 * GEOMETRY.row_bytes
