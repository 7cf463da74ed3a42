# SPDX-License-Identifier: Apache-2.0
"""A worker that sends what it must not: none of it is used, none of it does harm."""

from __future__ import annotations

import os
import struct

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from proxyd_engine import Engine
from proxyd_harness import Daemon
from proxyd_worker import Rounds, Worker, friendly, reply_to

from hostflag import wire
from hostflag.verdicts import Verdict
from hostflag.wire import Kind


@pytest.fixture
def daemon(short_dir: Path) -> Iterator[Daemon]:
    with Daemon(short_dir) as running:
        yield running


@pytest.fixture
def engine(daemon: Daemon) -> Iterator[Engine]:
    with Engine(daemon.path) as connected:
        yield connected.ready()


@pytest.fixture
def rounds(engine: Engine) -> Rounds:
    return Rounds(engine)


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
